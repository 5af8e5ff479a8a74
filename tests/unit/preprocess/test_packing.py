"""Documents to rows: every token in one row, no row too long, pairs as they are labelled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.packing import PackedRow, Packing, Side, Text, cut_units, pack_document
from tfbert.errors import ConfigError

FOREIGN = -1  # token of a text that is lent


def text_of(lengths: list[int], begins: list[bool] | None = None) -> Text:
    """Tokens are numbered, so that a row tells where its tokens come from."""
    size = sum(lengths)
    flags = np.array(begins, bool) if begins is not None else np.ones(size, bool)
    return Text(np.arange(size, dtype=np.int32), flags, np.array(lengths, np.int64))


def lend(rng: np.random.Generator, room: int) -> Side:
    size = int(rng.integers(1, room + 1))
    return Side(np.full(size, FOREIGN, np.int32), np.ones(size, bool))


def tokens(row: PackedRow) -> list[int]:
    """In the order of the text."""
    sides = [row.first, row.second] if row.label != 1 or row.borrowed else [row.second, row.first]
    return [int(token) for side in sides if side is not None for token in side.token_ids if token != FOREIGN]


documents = st.lists(st.integers(1, 12), max_size=30)


@given(documents, st.integers(3, 20), st.floats(0, 1), st.integers(0, 99))
def test_single_texts_hold_every_token_once_in_order(lengths: list[int], max_len: int, short: float, seed: int):
    document, packing = text_of(lengths), Packing(max_len, "none", short)
    rows, dropped = pack_document(document, packing, np.random.default_rng(seed))
    assert [token for row in rows for token in tokens(row)] == list(range(sum(lengths)))
    assert dropped == 0
    assert all(
        1 <= len(row.first.token_ids) <= max_len - 2 and row.second is None and row.label is None for row in rows
    )


@given(documents, st.integers(5, 20), st.floats(0, 1), st.integers(0, 99), st.sampled_from(["nsp", "sop"]))
def test_pairs_hold_every_token_once_in_order(lengths: list[int], max_len: int, short: float, seed: int, pairs: str):
    document, packing = text_of(lengths), Packing(max_len, pairs, short)
    rows, dropped = pack_document(document, packing, np.random.default_rng(seed), lend)
    kept = [token for row in rows for token in tokens(row)]
    assert kept == list(range(sum(lengths) - dropped))
    assert dropped <= (pairs == "sop")
    for row in rows:
        assert row.second is not None
        assert len(row.first.token_ids) and len(row.second.token_ids)
        assert len(row.first.token_ids) + len(row.second.token_ids) <= max_len - 3
        foreign = bool((row.second.token_ids == FOREIGN).any())
        assert foreign == bool(row.borrowed) == (pairs == "nsp" and row.label == 1)
        if not foreign:  # the two sides touch
            before, after = (row.second, row.first) if row.label else (row.first, row.second)
            assert before.token_ids[-1] + 1 == after.token_ids[0]


@given(documents, st.integers(1, 8), st.data())
def test_units_are_cut_where_words_begin(lengths: list[int], longest: int, data: st.DataObject):
    begins = data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    document = text_of(lengths, begins)
    units = cut_units(document, longest)
    assert units.lengths.sum() == sum(lengths)
    assert units.lengths.max(initial=0) <= longest
    ends = set(np.cumsum(units.lengths).tolist())
    assert ends >= set(np.cumsum(lengths).tolist())
    for end in ends - set(np.cumsum(lengths).tolist()):
        inside = begins[end] or not any(begins[end - k] for k in range(1, longest) if end - k >= 0)
        assert inside or not any(begins[end - longest + 1 : end])


def shares(pairs: str, seed: int = 0) -> tuple[float, int]:
    document = text_of([3] * 4000)
    rows, _ = pack_document(document, Packing(25, pairs, 0.1), np.random.default_rng(seed), lend)
    return sum(row.label or 0 for row in rows) / len(rows), len(rows)


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
def test_labels_are_balanced(pairs: str):
    share, rows = shares(pairs)
    assert abs(share - 0.5) < 5 * 0.5 / rows**0.5


def test_rows_are_full_but_for_the_short_ones():
    document = text_of([1] * 50_000)
    for short in (0.0, 0.3):
        rows, _ = pack_document(document, Packing(50, "none", short), np.random.default_rng(0))
        sizes = np.array([len(row.first.token_ids) for row in rows[:-1]])
        assert abs(np.mean(sizes < 48) - short * 46 / 47) < 0.05
        assert sizes.max() == 48


def test_whole_sentences_stay_whole_where_they_fit():
    rows, _ = pack_document(text_of([4, 4, 4, 4, 4]), Packing(11, "none", 0.0), np.random.default_rng(0))
    assert [len(row.first.token_ids) for row in rows] == [8, 8, 4]


def test_a_single_sentence_in_a_pair():
    """case 153: NSP can only take a text of another document; SOP cuts it where a word begins, near the middle."""
    one = text_of([6], [True, True, False, False, True, True])
    for seed in range(10):
        (row,), _ = pack_document(one, Packing(20, "nsp"), np.random.default_rng(seed), lend)
        assert row.label == 1
        (row,), _ = pack_document(one, Packing(20, "sop"), np.random.default_rng(seed), lend)
        assert tokens(row) == list(range(6))
        assert len((row.second if row.label else row.first).token_ids) == 4
    assert pack_document(text_of([1]), Packing(20, "sop"), np.random.default_rng(0)) == ([], 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((2,), "at least 3 with --pairs none"),
        ((4, "sop"), "at least 5 with --pairs sop"),
        ((9, "both"), "--pairs is one of none, nsp, sop"),
        ((9, "none", 1.5), "--short_fraction"),
    ],
)
def test_settings_that_make_no_sense(arguments: tuple, message: str):
    with pytest.raises(ConfigError, match=message):
        Packing(*arguments)
