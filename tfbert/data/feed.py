"""Plan to batches on the devices: rows are read, padded and cut into one slice a replica.

Every batch is a dict: `token_ids`, `segment_ids`, `padding_mask` (rows, L), `labels`, `weights` (rows,). The slices of
one global batch share one padded length; rows of weight 0 fill it up so that each replica has the same number of rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
        batch["labels"] = labels_of(records, settings.task, settings.num_classes)
        batch["weights"] = row_weights(records, settings.class_weights)
    else:
        batch["weights"] = np.ones(len(records), np.float32)
    return fill_up(batch, multiple)


def distribute(batches: Iterator[Batch], settings: FeedSettings, strategy: tf.distribute.Strategy) -> Iterator:
    """Global batches -> batches on the replicas of `strategy`, read ahead in the background.

    Every batch must have a multiple of `num_replicas_in_sync` rows.
    """
    replicas = strategy.num_replicas_in_sync

    def slices() -> Iterator[Batch]:
        for batch in batches:
            rows = len(batch["weights"])
            for replica in range(replicas):
                part = replica_slice(rows, replica, replicas)
                yield {name: values[part] for name, values in batch.items()}

    def dataset(context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        made = tf.data.Dataset.from_generator(slices, output_signature=_signature(settings))
        return made.prefetch(PREFETCH_BATCHES * replicas)

    if replicas == 1:
        return iter(dataset())
    return iter(strategy.distribute_datasets_from_function(dataset))


def _signature(settings: FeedSettings) -> dict[str, tf.TensorSpec]:
    ids = tf.TensorSpec((None, None), tf.int32)
    signature = {
        "token_ids": ids,
        "segment_ids": ids,
        "padding_mask": ids,
        "weights": tf.TensorSpec((None,), tf.float32),
    }
    if settings.task == "classify":
        signature["labels"] = tf.TensorSpec((None,), tf.int32)
    elif settings.task == "multilabel":
        signature["labels"] = tf.TensorSpec((None, settings.num_classes), tf.float32)
    elif settings.task == "regression":
        signature["labels"] = tf.TensorSpec((None,), tf.float32)
    return signature


def plan_batches(
    store: RowStore, plan: EpochPlan, settings: FeedSettings, multiple: int, start: int = 0
) -> Iterator[Batch]:
    """The global batches of one epoch from batch `start` on."""
    for rows in plan.batches(start):
        yield make_batch(store, rows, settings, multiple)
