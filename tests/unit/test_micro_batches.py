"""Finding how much a device holds, without changing anything but the number of micro-batches."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import CONFIG, distance, make_store, train, weights_of

from tfbert.data.feed import FeedSettings, make_batch
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.errors import TrainingError
from tfbert.loop.trainer import Trainer
from tfbert.training.micro_batches import (
    MemoryBound,
    find_micro_batches,
    largest_micro_batch,
    longest_batch,
    peak_bytes,
)

pytestmark = pytest.mark.usefixtures("logical_cpus", "eagerly")
ROOM = 1e15


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RowStore:
    return make_store(tmp_path_factory.mktemp("micro") / "data.jsonl", 32)


@given(st.integers(1, 300), st.integers(0, 400))
def test_the_largest_by_doubling(rows: int, room: int) -> None:
    """At least half of what would fit, never more, and nothing far above the room is tried."""
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    found = largest_micro_batch(rows, fits)
    best = min(rows, room)
    assert found <= best < max(2 * found, 1) or found == best
    assert max(tried) <= max(2 * room, 1)


def test_a_bound_is_not_passed_by_trying() -> None:
    taken = iter([100, 110, 120, 140, 180])
    bound = MemoryBound(200, lambda: next(taken))
    assert bound.holds()  # 10 above the start
    assert [(bound.allows_twice(), bound.holds()) for _ in range(2)] == [(True, True)] * 2
    assert bound.allows_twice()
    assert bound.holds()
    assert not bound.allows_twice()  # 180 and 80 more
    assert 50e6 < peak_bytes() < 1e12


def test_the_longest_batch(store: RowStore) -> None:
    feed = FeedSettings(0, 32, length_multiple=4, task="classify", num_classes=3)
    plan = EpochPlan(store.lengths, 5, window=10, shuffle=False, length_multiple=4)
    rows = next(plan.batches(plan.longest_batch()))
    assert store.lengths[rows].max() == store.lengths.max()
    example = make_batch(store, rows, feed, 1)
    for count in (1, 5, 13):
        batch = longest_batch(example, count, ("token_ids", "segment_ids", "padding_mask"))
        assert {name: (len(v), v.dtype) for name, v in batch.items()} == {
            name: (count, v.dtype) for name, v in example.items()
        }
        assert batch["token_ids"].shape[1] == example["token_ids"].shape[1]
        assert not batch["weights"].any()
        assert batch["padding_mask"].all()


def limited(trainer: Trainer, rows_at_once: int, error: Exception, calls: list[tuple[int, int]]) -> None:
    """Steps fail where a micro-batch of a replica has more rows."""
    original = trainer._take_step

    def step(batch: Any, rate: float) -> Any:
        parts = trainer.strategy.experimental_local_results(batch["weights"])
        rows = int(parts[0].shape[0])
        calls.append((rows, trainer.accumulate))
        if -(-rows // trainer.accumulate) > rows_at_once:
            raise error
        return original(batch, rate)

    trainer._take_step = step


def everything(trainer: Trainer) -> dict[str, np.ndarray]:
    found = {v.path: v for v in trainer.model.variables} | trainer.optimizer.state()
    if trainer.average is not None:
        found |= {f"average/{path}": v for path, v in trainer.average.shadows.items()}
    return {name: np.array(v.numpy()) for name, v in found.items()}


OOM = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


@pytest.mark.parametrize(
    ("devices", "room", "bytes_", "expected"),
    [
        ("cpu:1", 99, None, 1),
        ("cpu:1", 99, ROOM, 1),
        ("cpu:1", 5, None, 4),  # 4 of 16 rows at once
        ("cpu:1", 8, ROOM, 2),
        ("cpu:2", 3, None, 4),  # 8 rows each, 2 at once
    ],
)
def test_trying_finds_what_fits_and_changes_nothing(
    store: RowStore, devices: str, room: int, bytes_: float | None, expected: int
) -> None:
    """Weights, moments, average and loss scale are those of before, bit by bit; training is that of the plain run."""
    settings: dict[str, Any] = {
        "optimizer": "adamw",
        "rate": 0.01,
        "batch": 16,
        "ema": 0.9,
        "fgm": 0.5,
        "settings": {"config": CONFIG, "head_dropout": 0.3, "head": "mean", "dtype": "mixed_float16"},
        "optimizer_settings": {"loss_scaling": True, "weight_decay": 0.1, "clip_norm": 1.0},
    }
    feed = FeedSettings(0, 32, length_multiple=4, task="classify", num_classes=3)
    calls: list[tuple[int, int]] = []

    def find(trainer: Trainer) -> None:
        before = everything(trainer)
        original = trainer._take_step
        limited(trainer, room, OOM, calls)
        example = make_batch(store, np.array([int(store.lengths.argmax())]), feed, 1)
        replicas = trainer.strategy.num_replicas_in_sync
        assert find_micro_batches(trainer, example, 16 // replicas, 1, bytes_) == expected
        after = everything(trainer)
        assert all(np.array_equal(after[name], value) for name, value in before.items())
        assert trainer.accumulate == expected
        trainer._take_step = original

    run = train(store, devices, accumulate=1, prepare=find, **settings)
    plain = train(store, devices, accumulate=expected, **settings)
    assert distance(run.weights, plain.weights) == 0
    assert bytes_ is not None or calls[0] == (16 // int(devices[-1]), 1)  # on a GPU the best comes first


def test_the_least_number_of_micro_batches_is_kept(store: RowStore) -> None:
    feed = FeedSettings(0, 32, length_multiple=4, task="classify", num_classes=3)

    def find(trainer: Trainer) -> None:
        assert find_micro_batches(trainer, make_batch(store, np.arange(2), feed, 1), 16, 3, None) == 3

    train(store, batch=16, prepare=find)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OOM, TrainingError), (MemoryError(), TrainingError), (tf.errors.InternalError(None, None, "x"), Exception)],
)
def test_a_row_that_does_not_fit(store: RowStore, error: Exception, raised: type[Exception]) -> None:
    feed = FeedSettings(0, 32, length_multiple=4, task="classify", num_classes=3)

    def find(trainer: Trainer) -> None:
        start = weights_of(trainer.model)
        limited(trainer, 0, error, [])
        with pytest.raises(raised, match="x" if raised is Exception else "longest row must fit into memory"):
            find_micro_batches(trainer, make_batch(store, np.arange(2), feed, 1), 16, 1, None)
        assert distance(weights_of(trainer.model), start) == 0
        raise KeyError

    with pytest.raises(KeyError):
        train(store, prepare=find)


def test_a_bound_that_is_passed_already(store: RowStore) -> None:
    feed = FeedSettings(0, 32, length_multiple=4, task="classify", num_classes=3)

    def find(trainer: Trainer) -> None:
        with pytest.raises(TrainingError, match=r"does not, [0-9.]+ GB of 0.001\. .* or allow more"):
            find_micro_batches(trainer, make_batch(store, np.arange(2), feed, 1), 16, 1, 1e6)
        raise KeyError

    with pytest.raises(KeyError):
        train(store, prepare=find)


def test_an_error_without_a_message() -> None:
    from tfbert.training.recovery import out_of_memory

    assert "2 micro-batch(es) a step, and MemoryError" in str(out_of_memory(MemoryError(), 2))
