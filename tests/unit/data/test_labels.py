"""Label files, label names, labels of rows."""

from pathlib import Path

import pytest

from tfbert.data.labels import LabelReader, load_label_map, sorted_names
from tfbert.data.source import RowError
from tfbert.errors import DataError


@pytest.mark.parametrize(
    "met, names",
    [
        ({"10", "9", "-1", "2.5"}, ("-1", "2.5", "9", "10")),
        ({"1", "1.0", "01"}, ("01", "1", "1.0")),
        ({"b", "a", "10", "9"}, ("10", "9", "a", "b")),
        ({"nan", "1", "2"}, ("1", "2", "nan")),
        ({"inf", "1", "-5"}, ("-5", "1", "inf")),
        (set(), ()),
    ],
)
def test_names_are_sorted_as_numbers_where_all_are(met: set[str], names: tuple[str, ...]) -> None:
    assert sorted_names(met).names == names


@pytest.mark.parametrize(
    "name, content, ids",
    [
        ("l.txt", "b\na\n", {"b": 0, "a": 1}),
        ("l.txt", "\n b \r\n\r\na", {"b": 0, "a": 1}),
        ("l.txt", "x\tA\ny\tB\nz\tA\n", {"x": 0, "y": 1, "z": 0}),
        ("l.txt", "[体育]\n[财经]\n", {"[体育]": 0, "[财经]": 1}),
        ("l.txt", '["b", "a"]', {"b": 0, "a": 1}),
        ("l.txt", "a\u2028b\nc\n", {"a\u2028b": 0, "c": 1}),
        ("l.json", "[3, true, 1.5]", {"3": 0, "true": 1, "1.5": 2}),
        ("l.json", '{\n "x": 1,\n "y": 0,\n "z": 1\n}', {"y": 0, "x": 1, "z": 1}),
        ("l.json", '{"label": "100", "label_desc": "news"}', {"100": 0}),
        ("l.jsonl", '{"label": 100, "label_desc": "n"}\n{"label": 101, "label_desc": "m"}', {"100": 0, "101": 1}),
    ],
)
def test_label_files(tmp_path: Path, name: str, content: str, ids: dict[str, int]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert load_label_map(tmp_path / name).ids == ids


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("l.txt", b"", "at least one label"),
        ("l.json", b"", "at least one label"),
        ("l.json", b"[]", "at least one label"),
        ("l.txt", b"a\nb\na\n", "may stand only once. Received: 'a' twice"),
        ("l.json", b'["a", " a"]', "may stand only once"),
        ("l.json", b'{"a": 0, "b": 2}', "class ids count from 0 without gaps"),
        ("l.json", b'["a", ["b"]]', "a label is a text or a number"),
        ("l.json", b'{"a": null}', "a label is a text or a number"),
        ("l.json", b'"a"', "a list or an object"),
        ("l.json", b'{"label": "a"}\n{"name": "b"}', "l.json:2: a label row is an object with `label`"),
        ("l.json", b'["a", "b"', "l.json:1:"),
        ("l.json", b'["a\\nb"]', "no line end"),
        ("l.json", b'["a", ""]', "not empty"),
        ("l.txt", b"\xff\n", "cannot be read"),
        ("none.txt", None, "cannot be read"),
    ],
)
def test_damaged_label_files_are_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load_label_map(tmp_path / name)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / name))


IDS = {"a": 0, "b": 1, "[x]": 2, "c,d": 3}


@pytest.mark.parametrize(
    "task, raw, label",
    [
        ("classify", " a\u3000", 0),
        ("classify", "[x]", 2),
        ("classify", "c,d", 3),
        ("multilabel", "b, a,b,", [0, 1]),
        ("multilabel", "", []),
        ("multilabel", " , ", []),
        ("multilabel", "[x]", [2]),
        ("multilabel", '["c,d", "a"]', [0, 3]),
        ("multilabel", "[]", []),
        ("regression", " 1e-3 ", 0.001),
        ("regression", "-0", 0.0),
    ],
)
def test_labels_of_rows(task: str, raw: str, label: object) -> None:
    assert LabelReader(task, IDS)(raw) == label


@pytest.mark.parametrize(
    "task, raw, reason",
    [
        ("classify", "", "empty label"),
        ("classify", "\u3000", "empty label"),
        ("classify", "A", "unknown label"),
        ("classify", "a b", "unknown label"),
        ("classify", "a\nb", "label"),
        ("multilabel", "a,z", "unknown label"),
        ("multilabel", '["a", "q\\tz"]', "label"),
        ("regression", "", "empty label"),
        ("regression", "1,5", "label"),
        ("regression", "nan", "label"),
        ("regression", "-inf", "label"),
    ],
)
def test_labels_that_reject_a_row(task: str, raw: str, reason: str) -> None:
    with pytest.raises(RowError) as error:
        LabelReader(task, IDS)(raw)
    assert error.value.reason == reason
