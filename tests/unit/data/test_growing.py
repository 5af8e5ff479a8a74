"""Batches that grow: every row once, the same from any position, each size for the same number of rows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tfbert.data.growing import GrowingPlan
from tfbert.data.plan import EpochPlan

LENGTHS = np.random.default_rng(0).integers(3, 20, 1003).astype(np.int32)


def make(epoch: int = 0, **settings: Any) -> GrowingPlan:
    return GrowingPlan(LENGTHS, 64, **{"window": 200, "epoch": epoch, "start_rows": 8, "growing_rows": 1500} | settings)


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_epoch_has_every_row_once(epoch: int) -> None:
    batches = list(make(epoch).batches())
    assert len(batches) == make(epoch).num_batches
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert all(1 <= len(batch) <= 64 for batch in batches)


def test_sizes_double_at_equal_numbers_of_rows() -> None:
    rows: Counter[int] = Counter()
    for epoch in range(2):
        for batch in make(epoch).batches():
            rows[len(batch)] += len(batch)
    assert set(rows) >= {8, 16, 32, 64}
    assert {size: round(rows[size] / 500) for size in (8, 16, 32)} == {8: 1, 16: 1, 32: 1}  # 1500 / 3 each


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_position_is_reached_without_those_before(epoch: int) -> None:
    plan = make(epoch)
    batches = list(plan.batches())
    for start in [*range(0, len(batches) + 1, 7), len(batches), len(batches) + 3]:
        rest = list(plan.batches(start))
        assert [b.tolist() for b in rest] == [b.tolist() for b in batches[start:]]


def test_the_order_is_that_of_full_batches() -> None:
    whole = EpochPlan(LENGTHS, 64, window=200)
    assert np.concatenate(list(make().batches())).tolist() == np.concatenate(list(whole.batches())).tolist()
    for plan in (make(start_rows=64), make(growing_rows=0), make(2)):
        same = list(EpochPlan(LENGTHS, 64, window=200, epoch=plan.epoch).batches())
        assert [b.tolist() for b in plan.batches()] == [b.tolist() for b in same]


def test_a_size_that_is_no_power_of_two() -> None:
    sizes = [len(batch) for batch in make(start_rows=10, growing_rows=900).batches()]
    assert set(sizes[:7]) <= {9, 10}
    assert max(sizes) == 64


@pytest.mark.parametrize("settings", [{"start_rows": 0}, {"growing_rows": -1}])
def test_wrong_sizes_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="start_rows must be at least 1 and growing_rows at least 0"):
        make(**settings)
