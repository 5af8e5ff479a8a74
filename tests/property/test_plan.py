"""The epoch plan: every row exactly once, from any step on, on any number of replicas, in an order that mixes."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tfbert.data.batch import padded_length
from tfbert.data.plan import EpochPlan, replica_slice
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary

SHARED = Path(os.environ.get("TFBERT_SHARED", Path(__file__).parents[2].parent / "shared"))
DATA = SHARED / "data"
many = settings(max_examples=300, deadline=None)


@st.composite
def plans(draw: st.DrawFn, most_rows: int = 400) -> EpochPlan:
    num_rows = draw(st.integers(0, most_rows))
    longest = draw(st.integers(1, 70))
    lengths = np.random.default_rng(draw(st.integers(0, 99))).integers(1, longest + 1, num_rows).astype(np.int32)
    return EpochPlan(
        lengths,
        global_batch_size=draw(st.integers(1, 40)),
        window=draw(st.one_of(st.integers(1, 60), st.integers(1, 2 * most_rows), st.just(300_000))),
        seed=draw(st.integers(0, 2**64)),
        epoch=draw(st.integers(0, 1000)),
        shuffle=draw(st.booleans()),
        length_multiple=draw(st.integers(1, 20)),
        batch_tokens=draw(st.one_of(st.none(), st.integers(1, 600))),
    )


def epoch(plan: EpochPlan, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in plan.batches(start)]


def rows(plan: EpochPlan) -> list[int]:
    return [row for batch in epoch(plan) for row in batch]


def plan_of(num_rows: int, global_batch_size: int, **settings) -> EpochPlan:
    lengths = np.random.default_rng(num_rows).integers(3, 30, num_rows).astype(np.int32)
    return EpochPlan(lengths, global_batch_size, **settings)


# ------------------------------------------------------------------------------------------- every row, every step


@many
@given(plans())
def test_an_epoch_is_a_permutation(plan: EpochPlan):
    batches = epoch(plan)
    assert sorted(row for batch in batches for row in batch) == list(range(plan.num_rows))
    assert len(batches) == plan.num_batches
    assert all(batches)


@many
@given(plans())
def test_only_one_batch_is_short(plan: EpochPlan):
    plan = replace(plan, batch_tokens=None)
    sizes = [len(batch) for batch in epoch(plan)]
    assert len(sizes) == -(-plan.num_rows // plan.global_batch_size)
    assert sorted(sizes, reverse=True)[:-1] == [plan.global_batch_size] * (len(sizes) - 1)


@many
@given(plans())
def test_batches_stay_within_the_tokens(plan: EpochPlan):
    assume(plan.batch_tokens is not None)
    for batch in epoch(plan):
        longest = -(-int(plan.lengths[batch].max()) // plan.length_multiple) * plan.length_multiple
        assert len(batch) <= plan.global_batch_size
        assert len(batch) * longest <= plan.batch_tokens or len(batch) == 1


@many
@given(plans())
def test_batches_by_tokens_take_what_fits(plan: EpochPlan):
    """Without shuffling, the batches of a window follow each other, so the next row must not have fitted."""
    assume(plan.batch_tokens is not None)
    plan = replace(plan, shuffle=False)
    for window in range(plan.num_windows):
        batches = plan.window_batches(window)
        for batch, after in zip(batches[:-1], batches[1:], strict=True):
            longest = -(-int(plan.lengths[after[0]]) // plan.length_multiple) * plan.length_multiple
            assert len(batch) == plan.global_batch_size or (len(batch) + 1) * longest > plan.batch_tokens


# ----------------------------------------------------------------------------------------------- resume, replicas


@many
@given(plans(), st.data())
@example(EpochPlan(np.arange(1, 21, dtype=np.int32), 4, window=8), None)
def test_resume_gives_the_tail(plan: EpochPlan, data: st.DataObject | None):
    """Case 065."""
    batches = epoch(plan)
    starts = range(len(batches) + 2) if data is None else [data.draw(st.integers(0, len(batches) + 1))]
    for start in starts:
        assert epoch(replace(plan), start) == batches[start:]


def test_resume_does_not_depend_on_what_was_read_before():
    plan = plan_of(100, 8, window=20)
    whole = epoch(plan)
    half_read = plan.batches()
    next(half_read)
    assert epoch(plan, 5) == whole[5:]
    assert epoch(plan) == whole
    assert [batch.tolist() for batch in half_read] == whole[1:]


@many
@given(plans(), st.integers(1, 7), st.data())
def test_steps_of_several_batches_take_the_same_rows_in_the_same_order(
    plan: EpochPlan, per_step: int, data: st.DataObject
):
    """So their number may change in the middle of an epoch, and no row is lost or seen twice."""
    batches = epoch(plan)
    start = data.draw(st.integers(0, len(batches)))
    joined = replace(plan, per_step=per_step)
    assert joined.num_batches == len(batches)
    assert epoch(joined, start) == [
        sum(batches[first : first + per_step], []) for first in range(start, len(batches), per_step)
    ]


@given(st.integers(0, 200), st.integers(1, 40))
def test_replica_slices_are_disjoint_complete_and_even(num_rows: int, num_replicas: int):
    every = list(range(num_rows))
    slices = [every[replica_slice(num_rows, replica, num_replicas)] for replica in range(num_replicas)]
    assert [row for part in slices for row in part] == every
    sizes = [len(part) for part in slices]
    assert max(sizes) - min(sizes) <= 1
    if num_rows % num_replicas == 0:
        assert len(set(sizes)) == 1


def test_the_number_of_replicas_only_slices():
    for batch in plan_of(90, 8, seed=3).batches():
        for replicas in (1, 2, 3, 7):
            parts = [batch[replica_slice(len(batch), replica, replicas)] for replica in range(replicas)]
            assert np.concatenate(parts).tolist() == batch.tolist()


# ---------------------------------------------------------------------------------------------------- order, seeds


@many
@given(plans())
def test_the_same_numbers_give_the_same_order(plan: EpochPlan):
    assert epoch(replace(plan, lengths=plan.lengths.copy())) == epoch(plan)


@pytest.mark.parametrize("num_rows, batch, window", [(12, 3, 300_000), (12, 1, 4), (300, 8, 10), (5000, 32, 700)])
@pytest.mark.parametrize("batch_tokens", [None, 64])
def test_epochs_and_seeds_differ(num_rows: int, batch: int, window: int, batch_tokens: int | None):
    """Case 057."""
    plan = plan_of(num_rows, batch, window=window, batch_tokens=batch_tokens, seed=1)
    others = [replace(plan, epoch=1), replace(plan, epoch=2), replace(plan, seed=2), replace(plan, seed=2**40)]
    orders = [rows(p) for p in (plan, *others)]
    assert len({tuple(order) for order in [*orders, range(num_rows)]}) == 6
    assert rows(replace(plan)) == orders[0]


@many
@given(plans())
def test_buckets_change_the_batches_and_not_the_rows_of_a_window(plan: EpochPlan):
    one_bucket = replace(plan, length_multiple=1000, batch_tokens=None)
    bucketed = replace(plan, length_multiple=1, batch_tokens=None)
    for window in range(plan.num_windows):
        mixed = np.concatenate(one_bucket.window_batches(window))
        sorted_by_length = np.concatenate(bucketed.window_batches(window))
        assert sorted(mixed.tolist()) == sorted(sorted_by_length.tolist())


@many
@given(plans())
def test_rows_of_a_batch_are_neighbours_in_length(plan: EpochPlan):
    """No row of another batch of the window lies strictly between two buckets of one batch."""
    for window in range(min(plan.num_windows, 3)):
        buckets = [-(-plan.lengths[batch] // plan.length_multiple) for batch in plan.window_batches(window)]
        buckets.sort(key=lambda b: (b.min(), b.max()))
        for batch, after in zip(buckets[:-1], buckets[1:], strict=True):
            assert batch.tolist() == sorted(batch.tolist())
            assert batch.max() <= after.min()


@many
@given(plans())
def test_without_shuffling_windows_stay_in_file_order(plan: EpochPlan):
    plan = replace(plan, shuffle=False)
    for window in range(plan.num_windows):
        first = window * plan.window_rows
        inside = np.concatenate(plan.window_batches(window))
        assert sorted(inside.tolist()) == list(range(first, min(first + plan.window_rows, plan.num_rows)))
        lengths = -(-plan.lengths[inside] // plan.length_multiple)
        assert lengths.tolist() == sorted(lengths.tolist())
        for length in set(lengths.tolist()):
            assert inside[lengths == length].tolist() == sorted(inside[lengths == length].tolist())
    assert rows(replace(plan, epoch=plan.epoch + 1, seed=5)) == rows(plan)


def test_rows_of_one_length_are_not_reordered_without_shuffling():
    assert rows(EpochPlan(np.full(100, 7, np.int32), 8, window=20, shuffle=False)) == list(range(100))


def test_windows_are_whole_batches():
    plan = plan_of(100, 8, window=10)
    assert plan.window_rows == 16
    assert [len(plan.window_batches(window)) for window in range(plan.num_windows)] == [2] * 6 + [1]


@many
@given(plans())
def test_a_window_reads_few_places_of_the_file(plan: EpochPlan):
    """Reads stay local: a window is made of runs of consecutive rows, at most one cut at either end."""
    block = max(1, min(plan.window_rows // 256, 1024))
    for window in range(min(plan.num_windows, 3)):
        inside = np.sort(np.concatenate(plan.window_batches(window)))
        runs = 1 + int(np.count_nonzero(np.diff(inside) != 1))
        assert runs <= len(inside) / block + 3


# ------------------------------------------------------------------------------------------------------- real use


@pytest.mark.parametrize("batch_tokens", [None, 400])
def test_a_sorted_file_gives_mixed_batches(batch_tokens: int | None):
    """Case 064: three classes in a row, and a window far smaller than a class."""
    labels = np.repeat([0, 1, 2], 100)
    plan = plan_of(300, 8, window=10, batch_tokens=batch_tokens)
    of_one_class = sum(len(set(labels[batch])) == 1 for batch in plan.batches())
    assert of_one_class <= 2


@pytest.mark.parametrize("window", [2_000, 30_000, 300_000])
def test_large_windows_mix_a_sorted_file(window: int):
    """100,000 rows in ten classes: the first hundred batches hold every class about as often."""
    labels = np.repeat(np.arange(10), 10_000)
    plan = plan_of(100_000, 32, window=window)
    seen = np.zeros(10)
    for batch, _ in zip(plan.batches(), range(100), strict=False):
        counts = np.bincount(labels[batch], minlength=10)
        assert counts.max() < 32
        seen += counts
    assert seen.min() > 0.5 * seen.mean() and seen.max() < 2 * seen.mean()


def test_fewer_rows_than_the_window():
    """Case 051: 7 rows, a buffer of 100, batches of 2."""
    plan = plan_of(7, 2, window=100)
    assert plan.num_batches == 4
    assert sorted(len(batch) for batch in epoch(plan)) == [1, 2, 2, 2]
    assert sorted(rows(plan)) == sorted(rows(replace(plan, epoch=1))) == list(range(7))
    assert rows(plan) != rows(replace(plan, epoch=1))


@pytest.mark.parametrize("batch_tokens", [None, 100])
def test_no_rows_are_no_steps(batch_tokens: int | None):
    plan = EpochPlan(np.zeros(0, np.int32), 8, batch_tokens=batch_tokens)
    assert (plan.num_batches, epoch(plan), epoch(plan, 3)) == (0, [], [])


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"length_multiple": 0}, {"batch_tokens": 0}, {"seed": -1}, {"epoch": -1}]
)
def test_settings_without_sense_are_refused(wrong: dict[str, int]):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} must be at least [01]. Received: {value}"):
        plan_of(10, 2, **wrong)
    with pytest.raises(ValueError, match="global_batch_size must be at least 1"):
        plan_of(10, 0)
    with pytest.raises(ValueError, match="Received: -1"):
        next(plan_of(10, 2).batches(-1))


def test_a_memory_mapped_index_serves_as_lengths(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 50, 500).astype("<i4")
    lengths.tofile(tmp_path / "lengths")
    mapped = np.memmap(tmp_path / "lengths", "<i4", "r")
    assert epoch(EpochPlan(mapped, 8, window=64)) == epoch(EpochPlan(lengths, 8, window=64))


@pytest.mark.parametrize(
    "file, column, max_len", [("zh/thucnews/train.txt", 0, 64), ("zh/chnsenticorp/train.tsv", 1, 256)]
)
def test_little_padding_on_real_lengths(file: str, column: int, max_len: int):
    """Under 2 % where batches are padded to their longest row; random batches have 25 % and 60 %."""
    if not DATA.is_dir():
        pytest.skip(f"the real texts are not at {DATA}")
    vocabulary = Vocabulary.load(DATA / "vocab/bert-base-chinese/vocab.txt")
    encoder = RowEncoder(vocabulary, EncodingSettings(max_len, False, (), False))
    lines = (DATA / file).read_text(encoding="utf-8").split("\n")[1:-1]
    lengths = np.array([len(encoder.encode(line.split("\t")[column])[0]) for line in lines], np.int32)

    def padding(plan: EpochPlan, multiple: int) -> float:
        longest = [int(lengths[batch].max()) for batch in plan.batches()]
        sizes = [len(batch) for batch in plan.batches()]
        padded = [padded_length(length, multiple, max_len) for length in longest]
        return 1 - lengths.sum() / np.dot(sizes, padded)

    assert padding(EpochPlan(lengths, 32, window=10_000, length_multiple=1), 1) < 0.02
    assert padding(EpochPlan(lengths, 32, window=10_000, length_multiple=1000), 1) > 0.2
    # Rounding up to a multiple costs half of it a row and nothing else.
    rounded = 1 - lengths.sum() / np.minimum(-(-lengths // 8) * 8, max_len).sum()
    assert padding(EpochPlan(lengths, 32, window=10_000, length_multiple=8), 8) < rounded + 0.02
