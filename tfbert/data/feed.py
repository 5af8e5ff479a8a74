"""Plan to batches on the devices: rows are read, padded and cut into one slice a replica.

Every batch is a dict: `token_ids`, `segment_ids`, `padding_mask` (rows, L), `labels`, `weights` (rows,). The slices of
one global batch share one padded length; rows of weight 0 fill it up so that each replica has the same number of rows.
"""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfbert.data.batch import Batch, collate, labels_of, padded_length, row_weights
from tfbert.data.masking import Masking, mask_batch
from tfbert.data.plan import EpochPlan, Rows, replica_slice
from tfbert.data.rows import RowColumns
from tfbert.data.store import RowStore
from tfbert.errors import DataError

if TYPE_CHECKING:  # it takes seconds to load, and reading needs none of it
    import tensorflow as tf

PREFETCH_BATCHES = 8
READ_ROWS = 256
Worker = tuple[int, int]  # rank of a process that reads its share of every batch, and the number of them
ALONE: Worker = (0, 1)


@dataclass(frozen=True)
class FeedSettings:
    """How rows become arrays.

    Args:
        pad_id: id of [PAD].
        max_len: longest row.
        length_multiple: batches are padded to multiples of this.
        pad_to_max: pad every batch to `max_len`.
        task: classify, multilabel or regression; None delivers no labels.
        num_classes: width of multi-hot labels.
        class_weights: class id -> weight, or None.
        vocab_size, type_vocab_size: rows of the model's embeddings; a larger id is refused.
        masking: of a masked language model, or None; batches then have what `mask_batch` gives.
    """

    pad_id: int
    max_len: int
    length_multiple: int = 8
    pad_to_max: bool = False
    task: str | None = None
    num_classes: int = 0
    class_weights: Mapping[int, float] | None = None
    vocab_size: int | None = None
    type_vocab_size: int | None = None
    masking: Masking | None = None


class _Share(NamedTuple):
    """The rows of a global batch that one worker reads.

    Attributes:
        rows: their numbers, those that fill the batch up included.
        num_real: how many come before these.
        longest: tokens of the longest row of the global batch; None where this worker has all of them.
    """

    rows: Rows
    num_real: int
    longest: int | None


def _share(store: RowStore, rows: Rows, multiple: int, worker: Worker) -> _Share:
    """Copies of the first row fill a batch up to a multiple, so that no replica is ever empty; they will weigh 0."""
    missing = -len(rows) % multiple
    if not missing and worker == ALONE:
        return _Share(rows, len(rows), None)
    longest = int(store.lengths[rows].max())
    filled = np.concatenate([rows, np.repeat(rows[:1], missing)])
    part = replica_slice(len(filled), *worker)
    num_real = min(max(len(rows) - part.start, 0), part.stop - part.start)
    return _Share(filled[part], num_real, longest)


def make_batch(
    store: RowStore, rows: Rows, settings: FeedSettings, multiple: int, epoch: int = 0, worker: Worker = ALONE
) -> Batch:
    """Reads rows into one global batch whose row count is a multiple of `multiple`, or a worker's share of it.

    Raises:
        DataError: with `file:line`, where a row is damaged, has no label of the task, an id that the model lacks, or no
            words where whole words are masked.
    """
    return next(_batches_of(store, [_share(store, rows, multiple, worker)], settings, epoch))


def _batches_of(store: RowStore, shares: Sequence[_Share], settings: FeedSettings, epoch: int) -> Iterator[Batch]:
    """Batches whose rows are read together. A damaged row or label is told before the first comes out, an id that the
    model lacks at its batch.
    """
    rows = np.concatenate([share.rows for share in shares]) if len(shares) > 1 else shares[0].rows
    columns = store.columns(rows)
    targets = _targets(columns, settings, lambda i: store.place(int(rows[i])))
    lengths = columns.token_ids.lengths
    ends = list(itertools.accumulate(len(share.rows) for share in shares))
    firsts = [0, *ends[:-1]]
    shortest = np.minimum.reduceat(lengths, firsts).tolist()
    longest = np.maximum.reduceat(lengths, firsts).tolist()
    for share, first, last, *extremes in zip(shares, firsts, ends, shortest, longest, strict=True):
        batch = _inputs_of(store, share, columns.cut(first, last), settings, *extremes)
        for name, values in targets.items():
            batch[name] = values[first:last]
        if share.num_real < len(share.rows):
            batch["weights"] = np.where(np.arange(last - first) < share.num_real, batch["weights"], np.float32(0))
        yield batch if settings.masking is None else mask_batch(batch, share.rows, settings.masking, epoch)


def _targets(columns: RowColumns, settings: FeedSettings, place: Callable[[int], str]) -> Batch:
    """`labels`, where the task has any, and `weights`."""
    if settings.task is None:
        return {"weights": np.ones(len(columns), np.float32)}
    labels = labels_of(columns.labels, settings.task, settings.num_classes, place)
    return {"labels": labels, "weights": row_weights(columns.weights, labels, settings.class_weights)}


def _inputs_of(
    store: RowStore, share: _Share, columns: RowColumns, settings: FeedSettings, shortest: int, longest: int
) -> Batch:
    def place(i: int) -> str:
        return store.place(int(share.rows[i]))

    of_all = longest if share.longest is None else share.longest
    length = padded_length(of_all, settings.length_multiple, settings.max_len, settings.pad_to_max)
    batch = collate(columns, length, settings.pad_id, (shortest, longest))
    _check_ids(batch["token_ids"], settings.vocab_size, "token id", "vocab_size", place)
    if columns.segment_ids is not None:
        _check_ids(batch["segment_ids"], settings.type_vocab_size, "segment id", "type_vocab_size", place)
    if settings.masking is not None and settings.masking.unit != "token":
        batch["word_starts"] = _word_starts(columns, length, place)
    return batch


def _word_starts(columns: RowColumns, length: int, place: Callable[[int], str]) -> npt.NDArray[np.bool_]:
    """Where words begin, bool (rows, length); padding is words too."""
    known = np.zeros(len(columns), bool) if columns.words is None else columns.words.lengths > 0
    if not known.all():
        raise DataError(
            f"{place(int(np.argmin(known)))}: masking whole words needs rows with `words`. Received: a row without "
            "them. Make the data set with `preprocess corpus --whole_words`, or mask single tokens."
        )
    return columns.words.padded(length, 1).astype(bool)


def _check_ids(ids: np.ndarray, size: int | None, what: str, name: str, place: Callable[[int], str]) -> None:
    """On a GPU an id without a row in the table would silently read as zeros."""
    unsigned = ids.view(np.uint32)  # a negative one is a large one
    if size is not None and unsigned.max() >= size:
        row = int(np.flatnonzero((unsigned >= size).any(axis=1))[0])
        raise DataError(
            f"{place(row)}: a {what} must be below the model's {name}, {size}. Received: "
            f"{ids[row][unsigned[row] >= size][0]}. Encode the text with the vocab.txt that belongs to the checkpoint."
        )


_END = object()


class ReadAhead:
    """Runs an iterator in a thread of its own, a bounded number of items ahead; errors come out at their place.

    tf.data does the same for generators, but an iterator of it that is dropped early can block for ever. Use it in a
    `with` block: what is left of the items is then dropped, and the thread ends.

    Args:
        items: made and used in the thread alone.
        ahead: items that may wait, at least 1.
    """

    def __init__(self, items: Iterator[Any], ahead: int):
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1. Received: {ahead}.")
        self._queue: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(ahead)
        self._stopped = threading.Event()
        # the thread does not know this object, so that one which is dropped without `close` is collected, and ends it
        self._thread = threading.Thread(
            target=_fill, args=(items, self._queue, self._stopped), name="read-ahead", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> "ReadAhead":
        return self

    def __next__(self) -> Any:
        if self._stopped.is_set():
            raise StopIteration
        item, error = self._queue.get()
        if error is not None or item is _END:
            self.close()
            raise StopIteration if error is None else error
        return item

    def close(self) -> None:
        """Ends the thread, after the item that it is at; safe to call twice."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # wakes a thread that waits for room
                self._queue.get_nowait()
        self._thread.join()

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_stopped"):
            self._stopped.set()  # and no more: this may run inside the thread, while it holds the queue's lock


def _fill(items: Iterator[Any], waiting: queue.Queue[Any], stopped: threading.Event) -> None:
    try:
        for item in items:
            _put(waiting, (item, None), stopped)
            if stopped.is_set():
                return
        _put(waiting, (_END, None), stopped)
    except BaseException as error:  # noqa: BLE001 - it is raised again where the item is asked for
        _put(waiting, (None, error), stopped)
    finally:
        if isinstance(items, Generator):
            items.close()


def _put(waiting: queue.Queue[Any], entry: tuple[Any, BaseException | None], stopped: threading.Event) -> None:
    while not stopped.is_set():
        with contextlib.suppress(queue.Full):
            waiting.put(entry, timeout=0.5)
            return


def distribute(batches: Iterator[Batch], strategy: "tf.distribute.Strategy") -> ReadAhead:
    """Global batches -> batches cut up for the replicas of `strategy`, read ahead in the background.

    Every batch must have a multiple of the local replicas' number of rows; the r-th of them gets the r-th part.
    """
    return ReadAhead((place(batch, strategy) for batch in batches), PREFETCH_BATCHES)


def place(batch: Batch, strategy: "tf.distribute.Strategy") -> dict[str, Any]:
    """A batch as tensors, a slice a replica: a global one, or this worker's share of it."""
    import tensorflow as tf

    rows = len(batch["weights"])
    devices = strategy.extended.worker_devices
    if rows % len(devices):
        raise ValueError(f"Rows must divide evenly over {len(devices)} replicas. Received: {rows}.")

    def on_replica(context: Any) -> "dict[str, tf.Tensor]":
        replica = context.replica_id_in_sync_group % len(devices)
        part = replica_slice(rows, replica, len(devices))
        with tf.device(devices[replica]):  # copied to the device here, in the background
            return {name: tf.convert_to_tensor(values[part]) for name, values in batch.items()}

    return strategy.experimental_distribute_values_from_function(on_replica)


def plan_batches(
    store: RowStore,
    plan: EpochPlan,
    settings: FeedSettings,
    multiple: int,
    start: int = 0,
    worker: Worker = ALONE,
) -> Iterator[Batch]:
    """The global batches of one epoch from batch `start` on, or a worker's share of each, as `make_batch` does them.

    Rows of small batches are read for several at a time.
    """
    shares = (_share(store, rows, multiple, worker) for rows in plan.batches(start))
    while group := _group(shares):
        done = 0
        try:
            for batch in _batches_of(store, group, settings, plan.epoch):
                yield batch
                done += 1
        except DataError:  # one at a time, so that those before the damage come out
            for share in group[done:]:
                yield from _batches_of(store, [share], settings, plan.epoch)


def _group(shares: Iterator[_Share]) -> list[_Share]:
    """The next shares, of about as many rows as are best read together."""
    group: list[_Share] = []
    rows = 0
    while rows < READ_ROWS and (share := next(shares, None)) is not None:
        group.append(share)
        rows += len(share.rows)
    return group
