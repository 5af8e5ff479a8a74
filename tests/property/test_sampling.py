"""Class-balanced sampling: how often a row is drawn, over any number of epochs."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbert.data.plan import EpochPlan
from tfbert.data.sampling import ClassSampler, quotas

many = settings(max_examples=150, deadline=None)
counts = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)
rules = st.sampled_from(["balanced", "sqrt"])


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    np.random.default_rng(seed).shuffle(labels)
    return labels


@many
@given(counts, rules, st.integers(0, 2**31 - 1), st.integers(1, 6))
def test_the_rows_of_a_class_go_round(sizes: list[int], rule: str, seed: int, epochs: int) -> None:
    """After any number of epochs each row of a class was drawn equally often, but for one; each epoch has its quota."""
    labels = labels_of(sizes)
    sampler = ClassSampler(labels, rule, seed)
    times = np.zeros(len(labels), int)
    for epoch in range(epochs):
        rows = sampler.rows(epoch)
        assert len(rows) == len(labels)
        assert (np.diff(rows) >= 0).all()
        drawn = np.bincount(labels[rows], minlength=len(sizes))
        np.testing.assert_array_equal(drawn[: len(sampler.quotas)], sampler.quotas)
        times += np.bincount(rows, minlength=len(labels))
        for number, size in enumerate(sizes):
            of_class = times[labels == number]
            assert size == 0 or of_class.max() - of_class.min() <= 1


@many
@given(counts, st.integers(0, 500))
def test_quotas_are_fair(sizes: list[int], total: int) -> None:
    """Balanced draws of two classes that have rows differ by at most one; classes without rows have none."""
    drawn = quotas(np.array(sizes), "balanced", total)
    assert drawn.sum() == total
    present = [int(n) for n, size in zip(drawn, sizes, strict=True) if size]
    assert max(present) - min(present) <= 1
    assert all(n == 0 for n, size in zip(drawn, sizes, strict=True) if not size)
    share = Fraction(total, len(present))
    assert all(abs(n - share) < 1 for n in present)


def test_quotas_of_sqrt() -> None:
    assert quotas(np.array([900, 100, 0]), "sqrt", 1000).tolist() == [750, 250, 0]
    assert quotas(np.array([900, 100]), "balanced", 1000).tolist() == [500, 500]
    with pytest.raises(ValueError, match="one of balanced, sqrt. Received: 'none'"):
        quotas(np.array([1]), "none", 1)


def test_what_is_drawn_depends_on_seed_and_epoch_alone() -> None:
    labels = labels_of([90, 10])
    one, again, other = (ClassSampler(labels, "balanced", seed) for seed in (0, 0, 1))
    later = again.rows(7)
    assert [one.rows(epoch).tolist() for epoch in (0, 3, 7)][-1] == later.tolist()
    assert one.rows(0).tolist() != other.rows(0).tolist()
    assert one.rows(0).tolist() != one.rows(1).tolist()


@many
@given(counts, rules, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 90)), st.integers(0, 5), st.booleans())
def test_a_plan_over_drawn_rows(
    sizes: list[int], rule: str, batch: int, batch_tokens: int | None, epoch: int, shuffle: bool
) -> None:
    """Exactly the drawn rows, from any step on, within the tokens of a batch."""
    labels = labels_of(sizes)
    lengths = np.random.default_rng(1).integers(1, 20, len(labels)).astype(np.int32)
    plan = EpochPlan(
        lengths,
        batch,
        window=13,
        epoch=epoch,
        shuffle=shuffle,
        batch_tokens=batch_tokens,
        sampler=ClassSampler(labels, rule),
    )
    batches = [rows.tolist() for rows in plan.batches()]
    assert len(batches) == plan.num_batches
    assert sorted(row for rows in batches for row in rows) == ClassSampler(labels, rule).rows(epoch).tolist()
    for start in range(len(batches) + 1):
        assert [rows.tolist() for rows in plan.batches(start)] == batches[start:]
    for rows in batches:
        padded = -(-int(lengths[rows].max()) // 8) * 8
        assert batch_tokens is None or len(rows) == 1 or len(rows) * padded <= batch_tokens
