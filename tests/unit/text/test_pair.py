"""Truncation and packing: always within max_len, always closed by [SEP], the longer text loses first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbert.errors import ConfigError
from tfbert.text.pair import check_max_len, pack, truncated_lengths

CLS, SEP = 101, 102


def loop(a: list[int], b: list[int], budget: int) -> tuple[list[int], list[int]]:
    """Google's `_truncate_seq_pair`, on copies."""
    a, b = a.copy(), b.copy()
    while len(a) + len(b) > budget:
        (a if len(a) > len(b) else b).pop()
    return a, b


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 80))
def test_pair_truncation_equals_googles_loop(length_a: int, length_b: int, budget: int):
    a, b = loop([1] * length_a, [2] * length_b, budget)
    assert truncated_lengths(length_a, length_b, budget) == (len(a), len(b))


def test_pair_truncation_equals_googles_loop_for_every_small_case():
    for length_a in range(13):
        for length_b in range(13):
            for budget in range(26):
                a, b = loop([1] * length_a, [2] * length_b, budget)
                assert truncated_lengths(length_a, length_b, budget) == (len(a), len(b))


@pytest.mark.parametrize(
    "length_a, length_b, wanted",
    [
        (2, 100, (2, 5)),
        (100, 0, (7, 0)),
        (0, 100, (0, 7)),
        (50, 50, (4, 3)),
        (100, 2, (5, 2)),
        (4, 3, (4, 3)),
        (3, 4, (3, 4)),
    ],
)
def test_who_loses(length_a: int, length_b: int, wanted: tuple[int, int]):
    """Case 044, max_len 10."""
    a, b = list(range(1000, 1000 + length_a)), list(range(2000, 2000 + length_b))
    keep_a, keep_b = wanted
    token_ids, segment_ids = pack(a, b, 10, CLS, SEP)
    assert token_ids == [CLS, *a[:keep_a], SEP, *b[:keep_b], SEP]
    assert segment_ids == [0] * (keep_a + 2) + [1] * (keep_b + 1)


@pytest.mark.parametrize("length, kept", [(0, 0), (1, 1), (5, 5), (6, 6), (7, 6), (600, 6)])
def test_single_texts_fit_max_len(length: int, kept: int):
    """Case 043, max_len 8."""
    text = list(range(1000, 1000 + length))
    assert pack(text, None, 8, CLS, SEP) == ([CLS, *text[:kept], SEP], None)


@pytest.mark.parametrize(
    "lengths, total", [((5, 0), 8), ((3, 3), 8), ((3, 2), 8), ((2, 2), 7), ((600, 600), 8), ((0, 0), 3)]
)
def test_pairs_fit_max_len(lengths: tuple[int, int], total: int):
    token_ids, segment_ids = pack([7] * lengths[0], [8] * lengths[1], 8, CLS, SEP)
    assert len(token_ids) == len(segment_ids or ()) == total
    assert token_ids[-1] == SEP and token_ids.count(SEP) == 2


@given(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 40)), st.integers(4, 50))
def test_rows_are_whole_at_every_length(length_a: int, length_b: int | None, max_len: int):
    b = None if length_b is None else [8] * length_b
    token_ids, segment_ids = pack([7] * length_a, b, max_len, CLS, SEP)
    full = length_a + 2 if length_b is None else length_a + length_b + 3
    assert len(token_ids) == min(full, max_len)
    assert token_ids[0] == CLS and token_ids[-1] == SEP
    if b is not None:
        assert segment_ids is not None
        assert len(segment_ids) == len(token_ids)
        assert segment_ids == sorted(segment_ids)
        assert [s for t, s in zip(token_ids, segment_ids, strict=True) if t == SEP] == [0, 1]


def test_inputs_are_left_as_they_were():
    a, b = [7] * 20, [8] * 20
    pack(a, b, 10, CLS, SEP)
    assert (a, b) == ([7] * 20, [8] * 20)


@pytest.mark.parametrize("max_len, pair", [(2, False), (1, False), (0, False), (-5, False), (3, True), (2, True)])
def test_a_max_len_without_room_is_refused(max_len: int, pair: bool):
    with pytest.raises(ConfigError, match=f"at least {4 if pair else 3} .*Received: {max_len}"):
        check_max_len(max_len, pair)


def test_the_smallest_max_len():
    check_max_len(3, pair=False)
    check_max_len(4, pair=True)
    assert pack([7, 7], None, 3, CLS, SEP)[0] == [CLS, 7, SEP]
    assert pack([7, 7], [8, 8], 4, CLS, SEP)[0] == [CLS, 7, SEP, SEP]
