"""Train a classifier: a frozen stage for the head, then everything."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbert import report
from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.save_state import StopSignals
from tfbert.data.dataset import DataSet
from tfbert.data.feed import ALONE, FeedSettings, plan_batches
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.store import RowStore
from tfbert.data.tasks import find_task
from tfbert.errors import ConfigError, DataError
from tfbert.loop.trainer import Scorer
from tfbert.losses import Loss, make_loss
from tfbert.model.checkpoint import Init, find_init, load_encoder, load_weights
from tfbert.model.heads import Classifier
from tfbert.objectives.classification import Classification
from tfbert.progress import logger
from tfbert.run_folder import RunFolder
from tfbert.strategy import log_devices, make_strategy, on_cpu, set_precision, worker_of
from tfbert.training import class_values
from tfbert.training.checks import (
    check_batch,
    check_encoding,
    check_labels,
    check_memory_bound,
    check_positions,
    choose_monitor,
    longest,
    open_stores,
)
from tfbert.training.classify_config import ClassifyConfig
from tfbert.training.features import compute_features, feature_batches, fits_on_disk
from tfbert.training.stages import BatchesOfEpoch, Session, Stage, State, run_in_folder, train_stage, train_stages
from tfbert.training.validation import Validation


@dataclass(frozen=True)
class _Job:
    """A run whose settings, data and checkpoint were found to go together."""

    config: ClassifyConfig
    folder: RunFolder
    data: DataSet
    task: str
    names: list[str]
    train: RowStore
    val: RowStore | None
    loss: Loss
    class_weights: dict[int, float] | None
    metrics: Sequence[str]
    monitor: str | None
    mode: str
    init: Init
    max_len: int
    strategy: tf.distribute.Strategy

    @property
    def stores(self) -> dict[str, RowStore]:
        return {"train": self.train} | ({"val": self.val} if self.val is not None else {})

    @property
    def model_settings(self) -> dict[str, Any]:
        return {
            "num_outputs": 1 if self.task == "regression" else len(self.names),
            "head": self.config.head,
            "head_units": self.config.head_units,
            "head_dropout": self.config.head_dropout,
        }

    @property
    def feed(self) -> FeedSettings:
        return FeedSettings(
            pad_id=self.data.manifest.pad_id if self.data.manifest else 0,
            max_len=self.max_len,
            length_multiple=self.config.length_multiple,
            pad_to_max=self.config.pad_to_max,
            task=self.task,
            num_classes=self.model_settings["num_outputs"],
            class_weights=self.class_weights,
            vocab_size=self.init.config.vocab_size,
            type_vocab_size=self.init.config.type_vocab_size,
        )


def run(config: ClassifyConfig) -> None:
    """Trains, and leaves the run folder.

    Raises:
        TfbertError: settings, data or weights are wrong, or the loss is not finite.
    """
    run_in_folder(config, _prepare, _train)


def _prepare(settings: ClassifyConfig, folder: RunFolder) -> _Job:
    """Everything that can be refused is refused here: what costs nothing first, what reads all rows last."""
    data = _open(settings)
    task = data.task or _no_labels(data)
    metrics = _metrics(settings, data)
    val_names = _val_names(task, metrics) if "val" in data.parts else []
    monitor, mode = choose_monitor(settings, _train_names(task), val_names, metrics)
    # refuses a loss that the task has not, before the names of the classes are known
    make_loss(settings.loss, task, focal_gamma=settings.focal_gamma, label_smoothing=settings.label_smoothing)
    if settings.class_weights and task != "classify":
        raise ConfigError(f"--class_weights needs one class a row. Received: the task {task}.")
    if settings.sampling != "none" and task != "classify":
        raise ConfigError(f"--sampling needs one class a row. Received: {settings.sampling} with the task {task}.")
    if settings.loss != "focal" and (settings.focal_gamma, settings.focal_alpha) != (2.0, "0.25"):
        logger.warning("--focal_gamma and --focal_alpha belong to --loss focal; the loss is %s", settings.loss)
    init = find_init(settings.init, data.manifest.vocab_size if data.manifest else None)
    _check_dropout(settings, init)
    if data.manifest is not None:
        check_encoding(init, data.manifest, data.path)
    strategy = make_strategy(settings.devices, settings.deterministic, settings.cluster, settings.cluster_timeout)
    check_batch(settings, strategy.num_replicas_in_sync, worker_of(strategy)[1])
    check_memory_bound(settings, on_cpu(strategy))
    train, val = open_stores(data)
    names = data.label_names(train)
    loss = make_loss(
        settings.loss,
        task,
        focal_gamma=settings.focal_gamma,
        focal_alpha=class_values.focal_alpha(settings.focal_alpha, names),
        label_smoothing=settings.label_smoothing,
    )
    check_labels(task, names, train, val)
    class_weights = class_values.class_weights(settings.class_weights, names, train.labels)
    max_len = longest(data, [store for store in (train, val) if store is not None])
    check_positions(init.config, max_len)
    data.verify(folder.verified)
    return _Job(
        settings,
        folder,
        data,
        task,
        names,
        train,
        val,
        loss,
        class_weights,
        metrics,
        monitor,
        mode,
        init,
        max_len,
        strategy,
    )


def _check_dropout(settings: ClassifyConfig, init: Init) -> None:
    """R-Drop compares dropout masks."""
    rates = [settings.head_dropout]
    if settings.epochs:
        rates += [init.config.hidden_dropout_prob, init.config.attention_probs_dropout_prob]
    if settings.rdrop and not any(rates):
        raise ConfigError(f"R-Drop needs dropout. Received: --rdrop {settings.rdrop}, and dropout rates of 0.")


def _train(job: _Job, stop: StopSignals) -> None:
    config, folder, data, strategy = job.config, job.folder, job.data, job.strategy
    policy = set_precision(config.mixed_precision, strategy)
    log_devices(strategy, config.global_batch_size * config.step_batches(worker_of(strategy)[1]))
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = Classifier(job.init.config, **job.model_settings, dtype=policy)
        _load_start(job, model)
    rank, _ = worker_of(strategy)
    if not rank:
        folder.write_description(
            config, job.init.config, job.model_settings, data.manifest, data.vocab or job.init.vocab, job.names
        )
        data.remember(folder.verified)
    if data.manifest is None:
        shown = f"{', '.join(job.names[:10])}{' ...' if len(job.names) > 10 else ''}"
        logger.warning(
            "%d classes (%s); how the texts of %s were encoded is not known, so predict.py cannot use this run",
            len(job.names),
            shown,
            data.path,
        )
    validation = None
    if job.val is not None:
        scorer = Scorer(model, strategy)
        validation = Validation(job.val, job.feed, scorer, job.loss, job.names, config.global_batch_size, job.metrics)
    best = BestWeights(folder.weights, job.monitor, job.mode, writes=not rank)
    best.set_model(model)
    session = Session(
        config,
        folder,
        strategy,
        stop,
        data.mark(job.stores),
        config.frozen_epochs + config.epochs,
        best,
        validation,
        _train_names(job.task),
        _val_names(job.task, job.metrics) if validation else [],
    )

    def train(stage: Stage, state: State | None) -> None:
        model.encoder.trainable = not stage.frozen
        objective = Classification(model, job.loss, job.task, frozen_encoder=stage.frozen, rdrop=config.rdrop)
        open_batches = _batches(job, stage, model, validation)
        train_stage(session, stage, objective, model.trainable_variables, job.train, open_batches, state)

    stages = [
        Stage("frozen", 0, config.frozen_epochs, config.frozen_learning_rate, frozen=True),
        Stage("full", config.frozen_epochs, config.epochs, config.learning_rate),
    ]
    train_stages(session, stages, train)


def _load_start(job: _Job, model: Classifier) -> None:
    """The encoder from `--init`; the head too, where that is a run with the same classes and head."""
    init = job.init
    if init.kind == "run" and _same_head(job, RunFolder(init.path.parent)):
        load_weights(model, init.path)
        logger.info("encoder and head from %s: %d tensors loaded", init.path, len(model.weights))
        return
    loaded = load_encoder(model.encoder, init)
    logger.info("encoder from %s (%s): %d tensors loaded", init.path, init.kind, loaded)
    if job.loss.rows is None:
        logger.warning(
            "dmi starts from an untrained head, so it may take one class for another: start from a run with the same "
            "labels and head that was trained with ce (--init RUN)"
        )


def _same_head(job: _Job, run: RunFolder) -> bool:
    if job.data.manifest is None or not (run.path / MANIFEST).is_file():
        return False
    before = run.manifest()
    if (before.task, before.label_names) != (job.task, job.names):
        return False
    _, settings = run.model_settings()
    return all(settings.get(name) == job.model_settings[name] for name in ("num_outputs", "head", "head_units"))


def _batches(
    job: _Job, stage: Stage, model: Classifier, validation: Validation | None
) -> Callable[[], AbstractContextManager[BatchesOfEpoch]]:
    """Rows, or what the frozen encoder gives for them, where more than one epoch uses it and the disk has room."""
    multiple = job.strategy.num_replicas_in_sync * job.config.accumulate
    worker = worker_of(job.strategy)

    @contextmanager
    def opened() -> Iterator[BatchesOfEpoch]:
        folder = job.folder.path / "features"
        rows = sum(len(store) for store in job.stores.values())
        kept = stage.frozen and stage.num_epochs > 1 and worker == ALONE
        if not kept or not fits_on_disk(job.folder.path, model, rows):
            yield lambda plan, start: plan_batches(job.train, plan, job.feed, multiple, start, worker)
            return
        folder.mkdir(exist_ok=True)
        features = {
            name: compute_features(folder / f"{name}.f32", model, job.strategy, store, job.feed)
            for name, store in job.stores.items()
        }
        if validation is not None:
            validation.features = features["val"]
        yield lambda plan, start: feature_batches(job.train, features["train"], plan, job.feed, multiple, start)
        if validation is not None:
            validation.features = None
        shutil.rmtree(folder)

    return opened


def _open(settings: ClassifyConfig) -> DataSet:
    settings.check_raw()
    if settings.raw and not settings.data_set.is_dir():
        raise DataError(
            f"{settings.data}: raw data are encoded before a run begins, as `train.py classify` does it. Received: no "
            f"data set in {settings.data_set}."
        )
    return DataSet.open(settings.data_set)


def _no_labels(data: DataSet) -> str:
    if data.manifest is not None and data.manifest.corpus is not None:
        raise DataError(f"{data.path}: a classifier needs labels. Received: a data set for `train.py pretrain`.")
    raise DataError(f"{data.path}: a classifier needs labels. Received: a data set without them. Encode with --label.")


def _train_names(task: str) -> list[str]:
    """Numbers of the log that training itself gives."""
    return ["loss"] if task == "regression" else ["loss", "accuracy"]


def _metrics(settings: ClassifyConfig, data: DataSet) -> Sequence[str]:
    """What results of the task are published by; empty where it has no name."""
    of_data = data.manifest.task_name if data.manifest is not None else None
    name = settings.task or of_data
    if name is None:
        return ()
    task = find_task(name)
    if of_data not in (None, name):
        raise ConfigError(f"--task is that of the data set, {of_data}. Received: {name}. Leave it out.")
    if task.kind != data.task:
        raise ConfigError(f"--task {name} is of the kind {task.kind}. Received: a data set for {data.task}.")
    classes = len(data.manifest.label_names) if data.manifest is not None else 0
    if "f1" in task.metrics and classes != 2:
        raise ConfigError(f"--task {name} has two classes. Received: a data set of {classes or 'unknown'} classes.")
    return task.metrics


def _val_names(task: str, metrics: Sequence[str]) -> list[str]:
    return [f"val_{name}" for name in ("loss", *report.reported_names(task, metrics))]
