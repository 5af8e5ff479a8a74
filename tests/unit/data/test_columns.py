"""Columns by role."""

import pytest

from tfbert.data.columns import FieldReader, Roles, parse_filters, split_names
from tfbert.data.source import RowError
from tfbert.errors import ConfigError

ALL = Roles("t", "b", "l", "y", "w", ("k1", "k2"), (("f", "0"), ("g", "")))


def test_fields_come_back_by_role() -> None:
    assert ALL.wanted == ["t", "b", "l", "y", "w", "k1", "k2", "f", "g"]
    row = FieldReader(ALL)(["text", "second", "label", "type", " 0.5", "1", "2", "x", "y"])
    assert (row.text, row.text_b, row.label, row.type, row.weight) == ("text", "second", "label", "type", 0.5)
    assert row.keep == {"k1": "1", "k2": "2"}


def test_roles_that_are_not_given_are_absent() -> None:
    row = FieldReader(Roles("3"))(["text"])
    assert (row.text, row.text_b, row.label, row.type, row.weight, row.keep) == ("text", None, None, None, 1.0, {})


@pytest.mark.parametrize("f, g, filtered", [("0", "x", True), ("1", "", True), ("00", " ", False), ("", "0", False)])
def test_any_filter_that_matches_leaves_the_row_out(f: str, g: str, filtered: bool) -> None:
    reader = FieldReader(ALL)
    fields = ["text", "second", "label", "type", "1", "1", "2", f, g]
    if filtered:
        with pytest.raises(RowError, match="filtered"):
            reader(fields)
    else:
        assert reader(fields).text == "text"


def test_prediction_needs_no_targets() -> None:
    assert ALL.without_targets().wanted == ["t", "b", "k1", "k2", "f", "g"]


def test_roles_survive_the_manifest() -> None:
    assert Roles.from_dict(ALL.to_dict()) == ALL


def test_names_joined_by_commas() -> None:
    assert split_names(None) == ()
    assert split_names("") == ()
    assert split_names("a, b,-1") == ("a", "b", "-1")
    with pytest.raises(ConfigError, match="may not be empty"):
        split_names("a,,b")


def test_filters_have_one_form() -> None:
    assert parse_filters(["a!=1", "b!=", "c!=x!=y"]) == (("a", "1"), ("b", ""), ("c", "x!=y"))
    for wrong in ("a=1", "!=1", "a"):
        with pytest.raises(ConfigError, match="COLUMN!=VALUE"):
            parse_filters([wrong])
