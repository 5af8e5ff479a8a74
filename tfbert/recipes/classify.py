"""Train a classifier: a frozen stage for the head, then everything."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbert import losses, report
from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.early_stop import EarlyStop
from tfbert.callbacks.plateau import Plateau
from tfbert.callbacks.run_log import RunLog
from tfbert.callbacks.step_progress import StepProgress
from tfbert.data.batch import Batch
from tfbert.data.dataset import DataSet
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, DataError
from tfbert.losses import Loss, make_loss
from tfbert.model.checkpoint import Init, check_vocabulary, find_init, load_encoder, load_weights
from tfbert.model.heads import HEADS, Classifier
from tfbert.optim import OPTIMIZERS, make_optimizer, schedule
from tfbert.run_folder import RunFolder
from tfbert.strategy import Devices, log_devices, make_strategy, set_precision
from tfbert.trainer import Epoch, Scorer, Trainer

logger = logging.getLogger("tfbert")
SCHEDULES = ("linear", "constant", "plateau")
_LEAST = {
    "seed": 0,
    "epochs": 0,
    "frozen_epochs": 0,
    "patience": 0,
    "plateau_patience": 1,
    "global_batch_size": 1,
    "accumulate": 1,
    "shuffle_window": 1,
    "length_multiple": 1,
    "head_units": 1,
    "weight_decay": 0,
    "clip_norm": 0,
}
_RANGES = {"learning_rate": (0, math.inf), "frozen_learning_rate": (0, math.inf), "plateau_factor": (0, 1)}


@dataclass(frozen=True)
class ClassifyConfig:
    """Train a classifier on a data set made by `preprocess encode`."""

    data: str
    """Data-set folder, or a JSON-lines file of token ids."""
    init: str
    """Where the encoder starts: Google checkpoint, Hugging Face folder, run folder, or a config .json (random)."""
    run_dir: str
    """Folder to write the run to."""
    head: str = "pool"
    """pool (masked maximum beside masked mean, dense, dropout), cls (pooler behind [CLS]), mean (masked mean)."""
    head_units: int = 256
    """Width of the dense layer of the pool head."""
    head_dropout: float = 0.1
    """Dropout before the last layer."""
    loss: str = "ce"
    """ce (cross entropy), focal, dmi (for noisy labels, after some epochs of ce)."""
    focal_gamma: float = 2.0
    """How much focal loss plays down easy rows."""
    focal_alpha: str = "0.25"
    """Factor of focal loss: one number, or `name=number` a class joined by commas (missing ones count 0.25)."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    class_weights: str | None = None
    """`balanced`, or `name=number` joined by commas (classes not named weigh 1)."""
    frozen_epochs: int = 0
    """Epochs in which only the head is trained, before the others."""
    frozen_learning_rate: float = 1e-3
    """Learning rate of the frozen epochs."""
    epochs: int = 3
    """Epochs in which everything is trained."""
    learning_rate: float = 2e-5
    """Highest learning rate of the other epochs."""
    schedule: str = "linear"
    """linear (rise, then fall to 0), constant, plateau (constant, lowered when --monitor does not improve)."""
    warmup: float = 0.06
    """Share of a stage's steps in which the learning rate rises."""
    plateau_factor: float = 0.5
    """What the plateau schedule multiplies the learning rate with."""
    plateau_patience: int = 1
    """Epochs without improvement before it does."""
    optimizer: str = "adamw"
    """adamw or sgd."""
    weight_decay: float = 0.01
    """Decoupled decay of kernels and embeddings (not of biases and norms)."""
    clip_norm: float = 1.0
    """Largest norm of the global gradient; 0 for no clipping."""
    global_batch_size: int = 32
    """Rows a step over all devices."""
    batch_tokens: int | None = None
    """Cut batches so that rows x padded length is at most this; --global_batch_size is then the most rows."""
    accumulate: int = 1
    """Micro-batches a step; the global batch stays the same."""
    shuffle_window: int = 300_000
    """Rows that are shuffled and sorted by length together."""
    length_multiple: int = 1
    """Batches are padded to multiples of this."""
    pad_to_max: bool = False
    """Pad every batch to max_len (fixed shapes)."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N (N logical devices) or gpu:N."""
    monitor: str | None = None
    """Number that decides which weights are best and when to stop. Default: val_loss where there is a val part."""
    mode: str | None = None
    """min or max; needed where --monitor is not a loss."""
    patience: int = 0
    """Stop after this many epochs without improvement; 0 never stops early."""
    seed: int = 0
    """Seed of weights, order and dropout."""

    def __post_init__(self) -> None:
        _check_choice("head", self.head, HEADS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name, minimum in _LEAST.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"--{name} must be at least {minimum}. Received: {getattr(self, name)}.")
        for name, (low, high) in _RANGES.items():
            if not low < getattr(self, name) < high:
                raise ConfigError(f"--{name} must be between {low:g} and {high:g}. Received: {getattr(self, name)}.")
        for name in ("warmup", "head_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name} is a share from 0 to 1. Received: {getattr(self, name)}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ConfigError(f"--batch_tokens must be at least 1. Received: {self.batch_tokens}.")
        if self.mode is not None:
            _check_choice("mode", self.mode, ("min", "max"))
        Devices.parse(self.devices)
        self._check_together()

    def _check_together(self) -> None:
        """Refuses settings that cannot work with each other."""
        if self.epochs + self.frozen_epochs < 1:
            raise ConfigError("There must be at least one epoch. Received: --epochs 0 --frozen_epochs 0.")
        if self.loss == "dmi" and self.class_weights:
            raise ConfigError("The dmi loss takes no class weights. Received: --class_weights. Leave them out.")
        if self.loss == "dmi" and self.accumulate > 1:
            raise ConfigError(
                f"The dmi loss needs the whole batch at once. Received: --accumulate {self.accumulate}. Use 1."
            )
        if self.schedule == "plateau" and 0 < self.patience <= self.plateau_patience:
            raise ConfigError(
                "--patience must be above --plateau_patience, or the rate is never lowered. "
                f"Received: {self.patience} and {self.plateau_patience}."
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"--{name} is one of {', '.join(choices)}. Received: {value!r}.")


@dataclass(frozen=True)
class _Stage:
    """A run of epochs with one set of trained variables."""

    name: str
    frozen: bool
    first_epoch: int
    num_epochs: int
    learning_rate: float


def run(config: ClassifyConfig) -> None:
    """Trains, and leaves the run folder.

    Raises:
        TfbertError: settings, data or weights are wrong, or the loss is not finite.
    """
    folder = RunFolder(Path(config.run_dir))
    if folder.finished:
        logger.info("%s is already complete; nothing to do. Choose another --run_dir to train again.", folder.path)
        return
    data = DataSet.open(config.data)
    train, val = _stores(data)
    task = data.task or _no_labels(data)
    names = data.label_names(train)
    num_outputs = 1 if task == "regression" else len(names)
    loss = make_loss(
        config.loss,
        task,
        focal_gamma=config.focal_gamma,
        focal_alpha=_focal_alpha(config.focal_alpha, names),
        label_smoothing=config.label_smoothing,
    )
    _check_labels(task, names, train, val)
    monitor, mode = _monitor(config, task, val is not None)
    num_tokens = data.manifest.vocab_size if data.manifest else None
    init = find_init(config.init, num_tokens)
    max_len = _check_model(init, data, train)
    strategy = make_strategy(config.devices)
    policy = set_precision(config.mixed_precision, strategy)
    if config.global_batch_size < strategy.num_replicas_in_sync:
        raise ConfigError(
            f"--global_batch_size is at least one row a device. Received: {config.global_batch_size} rows, "
            f"{strategy.num_replicas_in_sync} devices."
        )
    folder.lock()
    log_devices(strategy, config.global_batch_size)
    model_settings = {
        "num_outputs": num_outputs,
        "head": config.head,
        "head_units": config.head_units,
        "head_dropout": config.head_dropout,
    }
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = Classifier(init.config, **model_settings, dtype=policy)
        loaded = load_encoder(model.encoder, init)
    logger.info("encoder from %s (%s): %d tensors loaded", init.path, init.kind, loaded)
    folder.write_description(config, init.config, model_settings, data.manifest, data.vocab or init.vocab, names)
    feed = FeedSettings(
        pad_id=data.manifest.pad_id if data.manifest else 0,
        max_len=max_len,
        length_multiple=config.length_multiple,
        pad_to_max=config.pad_to_max,
        task=task,
        num_classes=num_outputs,
        class_weights=_class_weights(config.class_weights, task, names, train),
    )
    best = BestWeights(folder.weights, monitor, mode)
    validation = _Validation(val, feed, config, Scorer(model, strategy), loss, task, names) if val is not None else None
    for stage in _stages(config):
        _train_stage(
            stage,
            config=config,
            folder=folder,
            model=model,
            loss=loss,
            strategy=strategy,
            train=train,
            feed=feed,
            best=best,
            validation=validation,
            monitor=monitor,
            mode=mode,
        )
    load_weights(model, folder.weights)
    if validation is not None:
        validation()
        report.write_report(folder.path / "report", validation.scores.result())
    folder.finish()
    chosen = f"epoch {best.best_epoch + 1}" if best.best_epoch is not None else "no epoch"
    logger.info("done: weights of %s in %s", chosen, folder.weights)


def _stages(config: ClassifyConfig) -> list[_Stage]:
    stages = [
        _Stage("frozen", True, 0, config.frozen_epochs, config.frozen_learning_rate),
        _Stage("full", False, config.frozen_epochs, config.epochs, config.learning_rate),
    ]
    return [stage for stage in stages if stage.num_epochs]


def _train_stage(
    stage: _Stage,
    *,
    config: ClassifyConfig,
    folder: RunFolder,
    model: Classifier,
    loss: Loss,
    strategy: tf.distribute.Strategy,
    train: RowStore,
    feed: FeedSettings,
    best: BestWeights,
    validation: "_Validation | None",
    monitor: str | None,
    mode: str,
) -> None:
    model.encoder.trainable = not stage.frozen
    plans = [_plan(config, train, epoch) for epoch in range(stage.first_epoch, stage.first_epoch + stage.num_epochs)]
    total_steps = sum(plan.num_batches for plan in plans)
    kind = "constant" if config.schedule == "plateau" else config.schedule
    rate = schedule(kind, stage.learning_rate, int(config.warmup * total_steps), total_steps)
    trained = model.trainable_variables
    logger.info(
        "stage %s: %d epochs, %d steps, %s of %s weights trained",
        stage.name,
        stage.num_epochs,
        total_steps,
        f"{_count(trained):,}",
        f"{_count(model.variables):,}",
    )
    with strategy.scope():
        optimizer = make_optimizer(
            config.optimizer,
            trained,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm or None,
            loss_scaling=config.mixed_precision == "float16",
        )
    trainer = Trainer(
        model,
        loss,
        optimizer,
        strategy,
        rate,
        accumulate=config.accumulate,
        seed=config.seed,
        frozen_encoder=stage.frozen,
        task=feed.task or "classify",
    )
    steps = {plan.epoch: plan.num_batches for plan in plans}
    val_names = [f"val_{name}" for name in ("loss", *report.reported_names(feed.task or ""))] if validation else []
    callbacks = [
        StepProgress(trainer, steps, config.frozen_epochs + config.epochs),
        RunLog(folder.path, stage.name, val_names, validation.details if validation else None),
        best,
    ]
    if config.schedule == "plateau" and monitor:
        callbacks.append(Plateau(trainer, monitor, mode, config.plateau_patience, config.plateau_factor))
    if config.patience and monitor:
        callbacks.append(EarlyStop(monitor, mode, config.patience))
    multiple = strategy.num_replicas_in_sync * config.accumulate

    def global_batches() -> Iterator[Batch]:
        for plan in plans:
            yield from plan_batches(train, plan, feed, multiple)

    batches = distribute(global_batches(), strategy)
    epochs = (Epoch(plan.epoch, batches, plan.num_batches) for plan in plans)
    trainer.fit(epochs, config.frozen_epochs + config.epochs, callbacks, validation)


def _plan(config: ClassifyConfig, store: RowStore, epoch: int) -> EpochPlan:
    return EpochPlan(
        store.lengths,
        config.global_batch_size,
        window=config.shuffle_window,
        seed=config.seed,
        epoch=epoch,
        length_multiple=config.length_multiple,
        batch_tokens=config.batch_tokens,
    )


def _count(variables: list[Any]) -> int:
    return int(sum(np.prod(v.shape) for v in variables))


class _Validation:
    """Scores the validation rows, each exactly once, in the same batches every time."""

    def __init__(
        self,
        store: RowStore,
        feed: FeedSettings,
        config: ClassifyConfig,
        scorer: Scorer,
        loss: Loss,
        task: str,
        names: list[str],
    ):
        self._store, self._feed, self._scorer, self._loss = store, feed, scorer, loss
        self._task, self._names = task, names
        self._plan = EpochPlan(
            store.lengths,
            max(config.global_batch_size, 64),
            window=config.shuffle_window,
            shuffle=False,
            length_multiple=config.length_multiple,
        )
        self.scores = report.make_scores(task, names)

    def __call__(self) -> dict[str, float]:
        self.scores = report.make_scores(self._task, self._names)
        strategy = self._scorer.strategy
        batches = plan_batches(self._store, self._plan, self._feed, strategy.num_replicas_in_sync)
        loss_sum = weight_sum = 0.0
        joint: Any = 0.0
        stream = distribute(batches, strategy)
        for _ in range(self._plan.num_batches):
            batch = next(stream)
            logits = self._scorer.logits(batch)
            labels, weights = (_gathered(strategy, batch[name]) for name in ("labels", "weights"))
            if self._loss.rows is None:
                joint = joint + losses.joint_matrix(labels, logits, weights).numpy().astype(np.float64)
            else:
                loss_sum += float(np.sum(weights * self._loss.rows(labels, logits).numpy(), dtype=np.float64))
            weight_sum += float(weights.sum(dtype=np.float64))
            real = weights > 0
            self.scores.update(labels[real], logits[real])
        if self._loss.rows is None:
            loss_sum = float(losses.dmi_of_joint(tf.constant(joint, tf.float32), weight_sum)) * weight_sum
        return {"loss": loss_sum / max(weight_sum, 1e-9)} | self.scores.brief()

    def details(self) -> dict[str, Any]:
        return {"val_f1_per_class": self.scores.per_class_f1()}


def _gathered(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return np.concatenate([part.numpy() for part in strategy.experimental_local_results(value)])


# --------------------------------------------------------------------------------- checks before anything is trained


def _stores(data: DataSet) -> tuple[RowStore, RowStore | None]:
    train = data.store("train")
    if not len(train):
        raise DataError(f"{data.parts['train']}: there are no rows to train on. Received: an empty file.")
    if "val" not in data.parts:
        logger.info("there is no val part: the last weights are kept")
        return train, None
    val = data.store("val")
    if not len(val):
        raise DataError(
            f"{data.parts['val']}: the validation part has no rows. Encode again with --val_fraction, or without --val."
        )
    return train, val


def _no_labels(data: DataSet) -> str:
    raise DataError(f"{data.path}: a classifier needs labels. Received: a data set without them. Encode with --label.")


def _check_labels(task: str, names: list[str], train: RowStore, val: RowStore | None) -> None:
    if task == "regression":
        return
    if len(names) < (2 if task == "classify" else 1):
        raise DataError(f"A classifier needs at least two classes. Received: {names}. Give --labels when encoding.")
    if task == "classify":
        train.check_labels(len(names))
        if val is not None:
            val.check_labels(len(names))


def _monitor(config: ClassifyConfig, task: str, validates: bool) -> tuple[str | None, str]:
    """What decides the best epoch, and its direction."""
    available = ["loss", "accuracy"]
    if validates:
        available += ["val_loss", *(f"val_{name}" for name in report.reported_names(task))]
    monitor = config.monitor
    if monitor is None:
        if config.patience and not validates or config.schedule == "plateau" and not validates:
            raise ConfigError(
                "Early stopping and plateau need a number to watch. Received: no val part. Give --monitor."
            )
        return ("val_loss", "min") if validates else (None, "min")
    if monitor not in available:
        raise ConfigError(f"--monitor is one of {', '.join(available)}. Received: {monitor!r}.")
    if config.mode is None:
        if not monitor.endswith("loss"):
            raise ConfigError(f"--mode min or max says which way {monitor} gets better. Received: none.")
        return monitor, "min"
    return monitor, config.mode


def _check_model(init: Init, data: DataSet, train: RowStore) -> int:
    """Longest row, after checking that vocabulary and lengths fit the model."""
    if data.manifest is not None:
        notice = check_vocabulary(init.config, data.manifest.vocab_size, f"{data.path}/vocab.txt")
        if notice:
            logger.info("%s", notice)
        max_len = int(data.manifest.encoding["max_len"])
    else:
        max_len = int(np.max(train.lengths))
    if max_len > init.config.max_position_embeddings:
        raise ConfigError(
            f"Rows are at most max_position_embeddings tokens long. Received: max_len {max_len}, "
            f"{init.config.max_position_embeddings} positions. Encode again with a smaller --max_len."
        )
    return max_len


def _pairs(option: str, text: str, names: list[str]) -> dict[int, float]:
    """`name=number,...` -> class id -> number."""
    values = {}
    for pair in text.split(","):
        name, sign, number = pair.rpartition("=")
        name = name.strip()
        if name not in names or not sign:
            raise ConfigError(f"--{option} names classes as name=number: {', '.join(names[:20])}. Received: {pair!r}.")
        try:
            values[names.index(name)] = float(number)
        except ValueError:
            raise ConfigError(f"--{option} gives each class a number. Received: {pair!r}.") from None
    if any(not 0 <= value < math.inf for value in values.values()):
        raise ConfigError(f"--{option} takes numbers >= 0. Received: {text!r}.")
    return values


def _focal_alpha(text: str, names: list[str]) -> float | list[float]:
    if "=" not in text:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"--focal_alpha is a number, or name=number a class. Received: {text!r}.") from None
    values = _pairs("focal_alpha", text, names)
    return [values.get(i, 0.25) for i in range(len(names))]


def _class_weights(text: str | None, task: str, names: list[str], train: RowStore) -> dict[int, float] | None:
    if text is None:
        return None
    if task != "classify":
        raise ConfigError(f"--class_weights needs one class a row. Received: the task {task}.")
    if text == "balanced":
        counts = np.bincount(train.labels, minlength=len(names))
        return {i: len(train) / (len(names) * int(count)) if count else 1.0 for i, count in enumerate(counts)}
    return _pairs("class_weights", text, names)
