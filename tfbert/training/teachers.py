"""Teachers of a student: which models they are, whether they go with its data, and what they say of its rows.

Their logits for the rows of a data set are computed once and kept on disk, half precision, by row number: later epochs
cost no teacher. They are used again only for the same data and the same teachers.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbert.data.batch import Batch
from tfbert.data.dataset import DataSet
from tfbert.data.feed import FeedSettings, plan_batches
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import file_checksum
from tfbert.data.plan import EpochPlan, Rows
from tfbert.data.store import RowStore
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError
from tfbert.loop.trainer import Scorer
from tfbert.model.checkpoint import Init, find_init, load_encoder, load_weights
from tfbert.model.encoder import BertEncoder
from tfbert.model.heads import Classifier
from tfbert.objectives.distillation import TEACHER_LOGITS, TeacherLogits
from tfbert.progress import logger
from tfbert.run_folder import RunFolder
from tfbert.training.checks import check_encoding
from tfbert.training.features import outputs_of_rows

_LARGEST = 6e4  # what half precision holds
_LOWEST = -1e9  # logit of a class that was not kept


@dataclass(frozen=True)
class Teacher:
    """A model that a student learns from, found to go with the student's data.

    Attributes:
        init: its weights.
        model: arguments of the classifier; None for an encoder without a head.
        order: number of its class for every class of the data; None where the orders are the same.
    """

    init: Init
    model: dict[str, Any] | None
    order: tuple[int, ...] | None

    @property
    def mark(self) -> list[Any]:
        """What its logits depend on."""
        return [file_checksum(self.init.path), self.model, self.order]


def find_teacher(path: str, data: DataSet, task: str, names: Sequence[str], predicts: bool) -> Teacher:
    """Tells what `--teacher` names.

    Args:
        path: run folder of a classifier, or a checkpoint.
        data: that the student learns from.
        task: of the data.
        names: classes of the data in id order.
        predicts: its predictions are wanted, so it must be a classifier of the same classes.

    Raises:
        TfbertError: it does not go with the data.
    """
    init = find_init(path)
    if init.kind == "config":
        raise ConfigError(f"A teacher has weights. Received: --teacher {path}, a bare config.")
    run = RunFolder(init.path.parent)
    if data.manifest is not None:
        has_manifest = init.kind == "run" and (run.path / MANIFEST).is_file()
        checksum = run.manifest().vocab_checksum if has_manifest else init.vocab and file_checksum(init.vocab)
        if checksum is not None and checksum != data.manifest.vocab_checksum:
            raise ConfigError(
                f"Teacher and student read the same token ids. Received: {path} with another vocabulary than "
                f"{data.path}. Encode the data with the teacher's vocab.txt."
            )
        check_encoding(init, data.manifest, data.path)
    if init.kind != "run":
        if predicts:
            raise ConfigError(
                f"The stage prediction needs a teacher that is a classifier. Received: {path}, an encoder without a "
                "head. Train it first (train.py classify), or give --stages intermediate."
            )
        return Teacher(init, None, None)
    _, model = run.model_settings()
    return Teacher(init, model, _order(run, path, task, names) if predicts else None)


def _order(run: RunFolder, path: str, task: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """How the teacher's classes are put in the order of the data's, by name."""
    theirs = run.label_names()
    their_task = run.manifest().task if (run.path / MANIFEST).is_file() else "classify"
    if their_task != task:
        raise ConfigError(f"Teacher and student have one task. Received: {path} for {their_task}, the data for {task}.")
    if task == "regression":
        return None
    if sorted(theirs) != sorted(names):
        raise ConfigError(
            f"Teacher and student have the same classes. Received: {path} with {theirs[:10]}, the data with "
            f"{list(names)[:10]}. Encode the data with --labels {path}/labels.txt."
        )
    if list(theirs) == list(names):
        return None
    logger.info("the classes of %s stand in another order; they are taken by name", path)
    return tuple(theirs.index(name) for name in names)


@dataclass(frozen=True)
class LoadedTeachers:
    """The models.

    Attributes:
        encoders: one a teacher.
        classifiers: the same, where they are classifiers.
        logits: mean of the classifiers', or None without them.
    """

    encoders: list[BertEncoder]
    classifiers: list[Classifier]
    logits: TeacherLogits | None


def load_teachers(teachers: Sequence[Teacher], policy: Any) -> LoadedTeachers:
    """Makes the models and fills them; in the strategy's scope. None of their weights is trainable.

    Raises:
        CheckpointError: the weights are damaged.
    """
    encoders, classifiers = [], []
    for teacher in teachers:
        if teacher.model is None:
            encoder = BertEncoder(teacher.init.config, dtype=policy)
            load_encoder(encoder, teacher.init)
        else:
            classifier = Classifier(teacher.init.config.blank(), **teacher.model, dtype=policy)
            load_weights(classifier, teacher.init.path)
            classifier.trainable = False
            classifiers.append(classifier)
            encoder = classifier.encoder
        encoder.trainable = False
        encoders.append(encoder)
        logger.info("teacher %s: %d layers, width %d", teacher.init.path, *_sizes(teacher.init))
    logits = None
    if len(classifiers) == len(teachers):
        logits = TeacherLogits(classifiers, [teacher.order for teacher in teachers])
    return LoadedTeachers(encoders, classifiers, logits)


def _sizes(init: Init) -> tuple[int, int]:
    return init.config.num_hidden_layers, init.config.hidden_size


@dataclass(frozen=True)
class LogitCache:
    """Logits of the teachers for every row, on disk.

    Attributes:
        values: float16 (rows, K).
        classes: int32 (rows, K), whose logits these are; None where they are those of all classes, in order.
        num_classes: C.
    """

    values: npt.NDArray[np.float16]
    classes: npt.NDArray[np.int32] | None
    num_classes: int

    def read(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Logits of some rows, (len(rows), C); of classes that were not kept -1e9, so that they have no share."""
        values = self.values[rows].astype(np.float32)
        if self.classes is None:
            return values
        logits = np.full((len(rows), self.num_classes), _LOWEST, np.float32)
        np.put_along_axis(logits, self.classes[rows], values, axis=1)
        return logits


def compute_logits(
    folder: Path,
    logits: TeacherLogits,
    strategy: tf.distribute.Strategy,
    store: RowStore,
    feed: FeedSettings,
    mark: Any,
    top_k: int = 0,
) -> LogitCache:
    """The teachers' logits for every row, read from `folder` where they are there already.

    Args:
        folder: of the cache; what it was made from stands in `made_from.json`, written last.
        logits: of the teachers.
        strategy: whose replicas share the work.
        store: the rows.
        feed: how they become arrays.
        mark: what data and teachers are known by.
        top_k: keep the largest logits alone, as many; 0 keeps all.

    Raises:
        ConfigError: the folder holds those of other data or other teachers.
    """
    count = top_k if 0 < top_k < feed.num_classes else feed.num_classes
    digest = hashlib.blake2b(json.dumps(mark, sort_keys=True).encode(), digest_size=16).hexdigest()
    made_from = {"rows": len(store), "classes": feed.num_classes, "kept": count, "data_and_teachers": digest}
    shape = (len(store), count)
    described = folder / "made_from.json"
    if described.is_file():
        if json.loads(described.read_text(encoding="utf-8")) != made_from:
            raise ConfigError(
                f"{folder}: the logits kept there are of other data, other teachers or another --teacher_top_k. "
                f"Received: {made_from}. Remove the folder, or choose another --teacher_cache."
            )
        return _open(folder, shape, feed.num_classes, "r")
    folder.mkdir(parents=True, exist_ok=True)
    _make(folder / "logits.npy", np.float16, shape)
    if count < feed.num_classes:
        _make(folder / "classes.npy", np.int32, shape)
    cache = _open(folder, shape, feed.num_classes, "r+")
    scorer = Scorer(logits, strategy)
    for rows, found in outputs_of_rows(scorer.logits, strategy, store, feed, "teacher"):
        if cache.classes is not None:
            best = np.argsort(-found, axis=1, kind="stable")[:, :count]
            cache.classes[rows] = best
            found = np.take_along_axis(found, best, axis=1)
        cache.values[rows] = np.clip(found, -_LARGEST, _LARGEST)
    with atomic_file(described, held=True) as file:
        file.write(f"{json.dumps(made_from, indent=2)}\n".encode())
    return cache


def _make(path: Path, dtype: Any, shape: tuple[int, int]) -> None:
    """An empty array on disk. It takes its room at once: a mapped file on a full disk would kill the process."""
    np.lib.format.open_memmap(path, "w+", dtype, shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _open(folder: Path, shape: tuple[int, int], num_classes: int, mode: Any) -> LogitCache:
    try:
        values = np.load(folder / "logits.npy", mmap_mode=mode)
        classes = np.load(folder / "classes.npy", mmap_mode=mode) if shape[1] < num_classes else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: the logits cannot be read. Received: {error}. Remove the folder.") from error
    return LogitCache(values, classes, num_classes)


def batches_with_logits(
    store: RowStore, cache: LogitCache, plan: EpochPlan, feed: FeedSettings, multiple: int, start: int = 0
) -> Iterator[Batch]:
    """As `plan_batches`, with the teachers' logits of each row; rows that fill a batch up have those of its first."""
    for rows, batch in zip(plan.batches(start), plan_batches(store, plan, feed, multiple, start), strict=True):
        numbers = np.concatenate([rows, np.repeat(rows[:1], len(batch["weights"]) - len(rows))])
        yield batch | {TEACHER_LOGITS: cache.read(numbers)}
