"""Plan to batches on the devices: rows are read, padded and cut into one slice a replica.

Every batch is a dict: `token_ids`, `segment_ids`, `padding_mask` (rows, L), `labels`, `weights` (rows,). The slices of
one global batch share one padded length; rows of weight 0 fill it up so that each replica has the same number of rows.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfbert.data.batch import Batch, collate, fill_up, labels_of, padded_length, row_weights
from tfbert.data.plan import EpochPlan, Rows, replica_slice
from tfbert.data.store import RowStore

PREFETCH_BATCHES = 8


@dataclass(frozen=True)
class FeedSettings:
    """How records become arrays.

    Args:
        pad_id: id of [PAD].
        max_len: longest row.
        length_multiple: batches are padded to multiples of this.
        pad_to_max: pad every batch to `max_len`.
        task: classify, multilabel or regression; None delivers no labels.
        num_classes: width of multi-hot labels.
        class_weights: class id -> weight, or None.
    """

    pad_id: int
    max_len: int
    length_multiple: int = 8
    pad_to_max: bool = False
    task: str | None = None
    num_classes: int = 0
    class_weights: Mapping[int, float] | None = None


def make_batch(store: RowStore, rows: Rows, settings: FeedSettings, multiple: int) -> Batch:
    """Reads rows into one global batch whose row count is a multiple of `multiple`."""
    records = store.read(rows)
    longest = max(len(record.token_ids) for record in records)
    length = padded_length(longest, settings.length_multiple, settings.max_len, settings.pad_to_max)
    batch = collate(records, length, settings.pad_id)
    if settings.task is not None:
        batch["labels"] = labels_of(
            records, settings.task, settings.num_classes, lambda i: store.place(int(rows[i]))
        )
        batch["weights"] = row_weights(records, settings.class_weights)
    else:
        batch["weights"] = np.ones(len(records), np.float32)
    return fill_up(batch, multiple)


class ReadAhead:
    """Runs an iterator in a thread of its own, a bounded number of items ahead; errors come out at their place.

    tf.data does the same for generators, but an iterator of it that is dropped early can block for ever.
    """

    def __init__(self, items: Iterator[Any], ahead: int):
        self._items = items
        self._queue: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read-ahead", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._put(item, None):
                    return
            self._put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the item is asked for
            self._put(None, error)

    def _put(self, item: Any, error: BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> "ReadAhead":
        return self

    def __next__(self) -> Any:
        if self._stopped.is_set():
            raise StopIteration
        item, error = self._queue.get()
        if error is not None:
            self.close()
            raise error
        return item

    def close(self) -> None:
        """Ends the thread; safe to call twice."""
        self._stopped.set()

    def __del__(self) -> None:
        self.close()


def distribute(batches: Iterator[Batch], strategy: tf.distribute.Strategy) -> ReadAhead:
    """Global batches -> batches on the replicas of `strategy`, read and copied ahead in the background.

    Every batch must have a multiple of `num_replicas_in_sync` rows; replica r gets the r-th part of them.
    """
    return ReadAhead((place(batch, strategy) for batch in batches), PREFETCH_BATCHES)


def place(batch: Batch, strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """A global batch as tensors on the replicas."""
    rows = len(batch["weights"])

    def on_replica(context: Any) -> dict[str, tf.Tensor]:
        part = replica_slice(rows, context.replica_id_in_sync_group, context.num_replicas_in_sync)
        return {name: tf.convert_to_tensor(values[part]) for name, values in batch.items()}

    return strategy.experimental_distribute_values_from_function(on_replica)


def plan_batches(
    store: RowStore, plan: EpochPlan, settings: FeedSettings, multiple: int, start: int = 0
) -> Iterator[Batch]:
    """The global batches of one epoch from batch `start` on."""
    for rows in plan.batches(start):
        yield make_batch(store, rows, settings, multiple)
