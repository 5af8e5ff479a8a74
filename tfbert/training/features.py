"""What a frozen encoder gives its head, computed once for every row and kept on disk, memory mapped.

In the frozen stage the encoder works without dropout, so its pooled output for a row never changes: the first pass pays
for the encoder, later epochs cost a matrix product. The file belongs to one run; it is used again only for the same
rows, weights and head.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbert.data.batch import Batch, fill_up, labels_of, row_weights
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.disk import atomic_file
from tfbert.loop.trainer import Scorer
from tfbert.model.heads import Classifier
from tfbert.objectives.classification import FEATURES
from tfbert.progress import Progress, logger

Features = npt.NDArray[np.float32]
_BATCH_TOKENS = 8192  # padded tokens a batch on each replica
_LARGEST_SHARE = 0.5  # of the free disk


def feature_width(model: Classifier) -> int:
    """Width of what `Classifier.features` gives."""
    return model.encoder.config.hidden_size * (2 if model.head == "pool" else 1)


def fits_on_disk(folder: Path, model: Classifier, num_rows: int) -> bool:
    """Whether the features of so many rows leave half of the free disk to others."""
    wanted = num_rows * feature_width(model) * 4
    free = shutil.disk_usage(folder).free
    if wanted <= _LARGEST_SHARE * free:
        return True
    logger.info("features of %d rows would take %.1f GB of %.1f GB free: not kept", num_rows, wanted / 1e9, free / 1e9)
    return False


def compute_features(
    path: Path, model: Classifier, strategy: tf.distribute.Strategy, store: RowStore, feed: FeedSettings
) -> Features:
    """The features of every row, float32 (rows, width), read from `path` where it holds them already.

    Args:
        path: the file; what it was made from stands beside it in `.json`, written last.
        model: whose encoder is frozen.
        strategy: whose replicas share the work.
        store: the rows.
        feed: how they become arrays.
    """
    shape = (len(store), feature_width(model))
    mark = _mark(model, store, feed)
    beside = path.with_suffix(".json")
    if beside.is_file() and path.is_file() and json.loads(beside.read_text(encoding="utf-8")) == mark:
        return np.memmap(path, np.float32, "r", shape=shape)
    beside.unlink(missing_ok=True)
    with path.open("wb") as file:  # takes the room at once: a mapped file on a full disk would kill the process
        os.posix_fallocate(file.fileno(), 0, shape[0] * shape[1] * 4)
    features = np.memmap(path, np.float32, "r+", shape=shape)
    for rows, values in outputs_of_rows(Scorer(model, strategy).features, strategy, store, feed, "features"):
        features[rows] = values
    features.flush()
    with atomic_file(beside, held=True) as file:
        file.write(json.dumps(mark).encode("utf-8"))
    return np.memmap(path, np.float32, "r", shape=shape)


def outputs_of_rows(
    function: Callable[[Any], npt.NDArray[Any]],
    strategy: tf.distribute.Strategy,
    store: RowStore,
    feed: FeedSettings,
    what: str,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
    """What a function of a batch gives for every row, some rows at a time, with their numbers.

    Args:
        function: of a batch on the replicas -> an array whose first dimension is the row, such as `Scorer.logits`.
        strategy: whose replicas share the work.
        store: the rows.
        feed: how they become arrays.
        what: is being made; for the progress.
    """
    replicas = strategy.num_replicas_in_sync
    plan = EpochPlan(
        store.lengths, 512 * replicas, shuffle=False, length_multiple=1, batch_tokens=_BATCH_TOKENS * replicas
    )
    with (
        Progress(len(store), " rows", what) as progress,
        distribute(plan_batches(store, plan, feed, replicas), strategy) as stream,
    ):
        for rows, batch in zip(plan.batches(), stream, strict=True):
            yield rows, function(batch)[: len(rows)]
            progress.update(len(rows))


def feature_batches(
    store: RowStore, features: Features, plan: EpochPlan, feed: FeedSettings, multiple: int, start: int = 0
) -> Iterator[Batch]:
    """As `plan_batches`, with `features` in place of token ids."""
    for rows in plan.batches(start):
        columns = store.columns(rows)
        labels = labels_of(columns.labels, feed.task or "", feed.num_classes)
        weights = row_weights(columns.weights, labels, feed.class_weights)
        yield fill_up({FEATURES: features[rows], "labels": labels, "weights": weights}, multiple)


def _mark(model: Classifier, store: RowStore, feed: FeedSettings) -> dict[str, Any]:
    """What the features depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for variable in model.encoder.variables:
        digest.update(np.ascontiguousarray(variable.numpy()))
    stat = store.path.stat()
    return {
        "data": [str(store.path.absolute()), stat.st_size, stat.st_mtime_ns],
        "weights": digest.hexdigest(),
        "head": model.head,
        "pad_id": feed.pad_id,
    }
