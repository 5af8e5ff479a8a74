"""Plan to batches on the replicas: read ahead in a thread, cut into slices, filled up."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbert.data.plan import EpochPlan
from tfbert.data.record import Record, dump
from tfbert.data.store import RowStore, open_store
from tfbert.errors import DataError

pytestmark = pytest.mark.usefixtures("logical_cpus")


def read_ahead(items: Iterator[Any], ahead: int = 2) -> Any:
    from tfbert.data.feed import ReadAhead

    return ReadAhead(items, ahead)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads()


# -------------------------------------------------------------------------------------------------------- read ahead


@pytest.mark.parametrize("ahead", [1, 2, 100])
def test_items_come_in_order(ahead: int):
    """Case 060: each item once, in order, and then the end, as often as it is asked for."""
    items = read_ahead(iter(range(50)), ahead)
    assert list(items) == list(range(50))
    assert list(items) == []


def test_nothing_to_read():
    assert list(read_ahead(iter(()))) == []


def test_no_more_than_so_many_ahead():
    """Memory is bounded: the thread waits until there is room."""
    made: list[int] = []
    full = threading.Event()

    def items() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            if i == 3:  # two wait in the queue, the third is held by the thread that waits for room
                full.set()
            yield i

    with read_ahead(items(), 2) as stream:
        assert next(stream) == 0
        assert full.wait(10)
        assert next(stream) == 1
        assert len(made) <= 5


def test_an_error_comes_at_its_place():
    """What was read before it is delivered first; after it there is nothing more."""

    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise DataError("rows.jsonl:4: damaged")

    stream = read_ahead(items(), 8)
    assert [next(stream) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(DataError, match="rows.jsonl:4: damaged"):
        next(stream)
    assert list(stream) == []


def test_an_error_of_any_kind():
    def items() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    stream = read_ahead(items())
    assert next(stream) == 1
    with pytest.raises(KeyboardInterrupt):
        next(stream)


def test_stopping_early_ends_the_thread_and_the_items():
    """The generator's own cleanup runs, also while the thread waits for room."""
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            closed.set()

    with read_ahead(items(), 1) as stream:
        assert len(threads()) == 1
        assert next(stream) == 0
    assert closed.is_set()
    assert list(stream) == []
    stream.close()


def test_a_block_left_by_an_error():
    with pytest.raises(ValueError, match="elsewhere"), read_ahead(iter(range(100)), 1):
        raise ValueError("elsewhere")


def test_dropping_it_ends_the_thread():
    """Nobody called close: the thread does not keep its reader alive, and ends when that is gone."""
    stream = read_ahead(iter(range(1000)), 1)
    next(stream)
    gone = weakref.ref(stream)
    (thread,) = threads()
    del stream
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_at_least_one_ahead():
    with pytest.raises(ValueError, match="ahead must be at least 1. Received: 0"):
        read_ahead(iter(()), 0)


# ------------------------------------------------------------------------------------------------------------ batches


def write(folder: Path, records: list[Record]) -> RowStore:
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(dump(record) for record in records))
    return open_store(path)


def rows_of_length(*lengths: int) -> list[Record]:
    return [Record(list(range(1, length + 1)), None, i % 3, 1.0 + i) for i, length in enumerate(lengths)]


def settings(**changes: Any) -> Any:
    from tfbert.data.feed import FeedSettings

    return FeedSettings(
        **{"pad_id": 0, "max_len": 16, "length_multiple": 4, "task": "classify", "num_classes": 3} | changes
    )


def test_a_batch_is_filled_up_with_rows_of_no_weight(tmp_path: Path):
    """Case 081: no replica is ever empty; the filling changes no sum."""
    from tfbert.data.feed import make_batch

    store = write(tmp_path, rows_of_length(3, 5, 2))
    batch = make_batch(store, np.array([2, 0, 1]), settings(), 4)
    assert batch["weights"].tolist() == [3, 1, 2, 0]
    assert batch["labels"].tolist() == [2, 0, 1, 2]
    assert batch["padding_mask"].sum(axis=1).tolist() == [2, 3, 5, 2]
    assert batch["token_ids"].shape == (4, 8)


def test_padding_and_classes(tmp_path: Path):
    """Cases 048 and 101."""
    from tfbert.data.feed import make_batch

    store = write(tmp_path, rows_of_length(3, 5, 2))
    batch = make_batch(store, np.array([0, 1, 2]), settings(pad_to_max=True, class_weights={1: 10}), 1)
    assert batch["token_ids"].shape == (3, 16)
    assert batch["weights"].tolist() == [1, 20, 3]


def test_without_a_task_there_are_no_labels(tmp_path: Path):
    from tfbert.data.feed import make_batch

    store = write(tmp_path, [Record([5, 6], None, None, 7.0)])
    batch = make_batch(store, np.array([0]), settings(task=None), 2)
    assert "labels" not in batch
    assert batch["weights"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            Record([5, 40, 6], None, 0),
            "rows.jsonl:3: a token id must be below the model's vocab_size, 40. Received: 40",
        ),
        (Record([5, 6], [0, 2], 0), "rows.jsonl:3: a segment id must be below the model's type_vocab_size, 2"),
        (Record([5, 6], None, 3), "rows.jsonl:3: a label must be a class id from 0 to 2. Received: 3"),
        (Record([5, 6], None, None), "rows.jsonl:3: a label must be a class id from 0 to 2. Received: None"),
    ],
)
def test_ids_that_the_model_lacks_are_refused_with_their_place(tmp_path: Path, record: Record, message: str):
    """Cases 045 and 102: on a GPU they would read as zeros."""
    from tfbert.data.feed import make_batch

    store = write(tmp_path, [*rows_of_length(3, 3), record])
    with pytest.raises(DataError, match=message):
        make_batch(store, np.array([1, 2, 0]), settings(vocab_size=40, type_vocab_size=2), 1)


def test_batches_before_one_that_is_refused_come_once(tmp_path: Path):
    """Several are read together; those before an id that the model lacks come out, each once."""
    from tfbert.data.feed import plan_batches

    store = write(tmp_path, [Record([5, 6, 7 + i], None, 0) for i in range(8)])
    batches = plan_batches(store, EpochPlan(store.lengths, 2, shuffle=False), settings(vocab_size=12), 1)
    got = []
    with pytest.raises(DataError, match="rows.jsonl:6: a token id must be below"):
        for batch in batches:
            got.append(batch["token_ids"][:, 2].tolist())
    assert got == [[7, 8], [9, 10]]


def test_replicas_share_a_batch_at_one_length(tmp_path: Path):
    """Cases 056 and 080: dicts of arrays, with disjoint slices in order, all padded to the longest row of the batch."""
    from tfbert.data.feed import distribute, plan_batches
    from tfbert.strategy import make_strategy

    store = write(tmp_path, rows_of_length(2, 9, 3, 4, 5, 6, 7))
    strategy = make_strategy("cpu:3")
    plan = EpochPlan(store.lengths, 4, shuffle=False, window=1, length_multiple=4)
    seen = []
    with distribute(plan_batches(store, plan, settings(), 3), strategy) as stream:
        for rows, batch in zip(plan.batches(), stream, strict=True):
            assert type(batch) is dict
            parts = [strategy.experimental_local_results(batch[name]) for name in ("token_ids", "weights")]
            each, length = -(-len(rows) // 3), -(-store.lengths[rows].max() // 4) * 4
            assert [tuple(part.shape) for part in parts[0]] == [(each, length)] * 3
            weights = np.concatenate([part.numpy() for part in parts[1]])
            assert weights.tolist() == [*(1.0 + rows), *([0] * (3 * each - len(rows)))]
            seen += rows.tolist()
    assert sorted(seen) == list(range(7))


def test_an_epoch_can_begin_in_the_middle(tmp_path: Path):
    """Case 065: the batches from number k on are those of the whole epoch."""
    from tfbert.data.feed import plan_batches

    store = write(tmp_path, rows_of_length(*range(1, 17)))
    plan = EpochPlan(store.lengths, 4, seed=3, epoch=2, length_multiple=4)
    whole = [batch["weights"].tolist() for batch in plan_batches(store, plan, settings(), 1)]
    assert [batch["weights"].tolist() for batch in plan_batches(store, plan, settings(), 1, start=2)] == whole[2:]
    assert len(whole) == 4


def test_rows_that_do_not_divide_evenly_are_refused():
    from tfbert.data.feed import place
    from tfbert.strategy import make_strategy

    with pytest.raises(ValueError, match="Rows must divide evenly over 2 replicas. Received: 3"):
        place({"weights": np.ones(3, np.float32)}, make_strategy("cpu:2"))


# ------------------------------------------------------------------------------------------------------------ masking


def masked_rows(store: RowStore, batch_size: int, unit: str, epoch: int = 1) -> dict[int, tuple[bytes, list[Any]]]:
    """Row -> its masked tokens and the places to guess, as they come in batches of any size."""
    from tfbert.data.feed import plan_batches
    from tfbert.data.masking import Masking
    from tfbert.data.plan import EpochPlan
    from tfbert.text.wordpiece import SPECIAL_TOKENS, Vocabulary

    masking = Masking.of(Vocabulary([*SPECIAL_TOKENS, *map(str, range(60))]), unit=unit, rate=0.3, seed=1)
    plan = EpochPlan(store.lengths, batch_size, seed=4, epoch=epoch)
    result: dict[int, tuple[bytes, list[Any]]] = {}
    batches = plan_batches(store, plan, settings(task=None, masking=masking), 4)
    for rows, batch in zip(plan.batches(), batches, strict=True):
        assert len(batch["masked_ids"]) % 4 == 0
        assert not batch["masked_weights"][len(rows) :].any()
        assert "word_starts" not in batch
        for i, row in enumerate(rows):
            chosen = batch["masked_weights"][i] > 0
            places = list(zip(batch["masked_positions"][i][chosen], batch["masked_ids"][i][chosen], strict=True))
            result[int(row)] = batch["token_ids"][i][: store.lengths[row]].tobytes(), places
    return result


@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_row_is_masked_alike_in_batches_of_any_size(tmp_path: Path, unit: str):
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 60, rng.integers(3, 14)).tolist() for _ in range(50)]
    records = [Record(ids, words="1" + "".join(map(str, rng.integers(0, 2, len(ids) - 1)))) for ids in rows]
    store = write(tmp_path, records)
    several = masked_rows(store, 16, unit)
    assert several == masked_rows(store, 3, unit)
    assert several != masked_rows(store, 16, unit, epoch=2)
    assert set(several) == set(range(50))
    for row, (_, places) in several.items():
        for place, token in places:
            assert records[row].token_ids[place] == token
            if unit == "word" and records[row].words[place] == "0":  # the rest of the word is masked too
                assert place - 1 in [at for at, _ in places]


def test_whole_words_need_words(tmp_path: Path):
    store = write(tmp_path, [Record([9, 10], words="10"), Record([9, 10])])
    with pytest.raises(DataError, match=r"rows.jsonl:2: masking whole words needs rows with `words`.*whole_words"):
        masked_rows(store, 2, "word")
    assert masked_rows(store, 2, "token")
