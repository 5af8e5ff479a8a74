"""Train a classifier: a frozen stage for the head, then everything."""

import logging
import math
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbert import class_values, report
from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.early_stop import EarlyStop
from tfbert.callbacks.plateau import Plateau
from tfbert.callbacks.run_log import RunLog
from tfbert.callbacks.save_state import SaveState, StopSignals
from tfbert.callbacks.step_progress import StepProgress
from tfbert.data.batch import Batch
from tfbert.data.dataset import DataSet
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import Manifest, file_checksum
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, DataError
from tfbert.features import Features, compute_features, feature_batches, fits_on_disk
from tfbert.losses import LOSSES, Loss, make_loss
from tfbert.model.checkpoint import Init, check_vocabulary, find_init, load_encoder, load_weights
from tfbert.model.heads import HEADS, Classifier
from tfbert.optim import OPTIMIZERS, make_optimizer, schedule
from tfbert.run_folder import RunFolder
from tfbert.state import Arrays, read_state
from tfbert.strategy import PRECISIONS, Devices, log_devices, make_strategy, set_precision
from tfbert.trainer import Epoch, Scorer, Trainer
from tfbert.validation import Validation

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
    "save_steps": 0,
}
_MAX_SEED = 2**31 - 1
# lowest and highest number, and whether each is allowed
_RANGES = {
    "learning_rate": (0, False, math.inf, False),
    "frozen_learning_rate": (0, False, math.inf, False),
    "plateau_factor": (0, False, 1, False),
    "warmup": (0, True, 1, True),
    "head_dropout": (0, True, 1, False),
    "label_smoothing": (0, True, 1, False),
    "weight_decay": (0, True, math.inf, False),
    "clip_norm": (0, True, math.inf, False),
    "focal_gamma": (0, True, math.inf, False),
    "save_minutes": (0, True, math.inf, False),
}


@dataclass(frozen=True)
class ClassifyConfig:
    """Train a classifier on a data set made by `preprocess encode`."""

    data: str
    """Data-set folder, or a JSON-lines file of token ids."""
    init: str
    """Where training starts: Google checkpoint, Hugging Face folder, run folder, or a config .json (random weights)."""
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
    save_minutes: float = 10.0
    """Minutes between two saves of the whole state; 0 saves at the ends of epochs and on signals alone."""
    save_steps: int = 0
    """Steps between two saves of the whole state; 0 for none."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N (N logical devices) or gpu:N."""
    monitor: str | None = None
    """Number that decides which weights are best and when to stop. Default: val_loss where there is a val part."""
    mode: str | None = None
    """Which way --monitor gets better: min or max; needed where it is not a loss."""
    patience: int = 0
    """Stop after this many epochs without improvement; 0 never stops early."""
    seed: int = 0
    """Seed of weights, order and dropout."""

    def __post_init__(self) -> None:
        _check_choice("head", self.head, HEADS)
        _check_choice("loss", self.loss, LOSSES)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("mixed_precision", self.mixed_precision, PRECISIONS)
        if self.mode is not None:
            _check_choice("mode", self.mode, ("min", "max"))
        for name, minimum in _LEAST.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"--{name} must be at least {minimum}. Received: {getattr(self, name)}.")
        for name, limits in _RANGES.items():
            _check_range(name, getattr(self, name), *limits)
        if self.seed > _MAX_SEED:
            raise ConfigError(f"--seed must be at most {_MAX_SEED}. Received: {self.seed}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ConfigError(f"--batch_tokens must be at least 1. Received: {self.batch_tokens}.")
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


def _check_range(name: str, value: float, low: float, with_low: bool, high: float, with_high: bool) -> None:
    if not (low < value < high or (with_low and value == low) or (with_high and value == high)):  # NaN is neither
        words = f"{'at least' if with_low else 'above'} {low:g}"
        words += f" and {'at most' if with_high else 'below'} {high:g}" if high < math.inf else ""
        raise ConfigError(f"--{name} must be {words}. Received: {value}.")


@dataclass(frozen=True)
class _Stage:
    """A run of epochs with one set of trained variables."""

    name: str
    frozen: bool
    first_epoch: int
    num_epochs: int
    learning_rate: float


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
    monitor: str | None
    mode: str
    init: Init
    max_len: int
    strategy: tf.distribute.Strategy

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
    folder = RunFolder(Path(config.run_dir))
    if folder.finished:
        folder.check_same(config)
        if not folder.is_extended_by(config):
            logger.info("%s is already complete; nothing to do. Choose another --run_dir to train again.", folder.path)
            return
        if not folder.state.is_dir():
            raise ConfigError(
                f"A complete run goes on from its last state. Received: {folder.path} without {folder.state.name}/. "
                "Start another run from its best weights (--init RUN)."
            )
        logger.info("%s is complete; going on to %d epochs", folder.path, config.epochs)
    folder.check_free(config)
    job = _prepare(config, folder)
    with folder.held(config), StopSignals() as stop:
        _train(job, stop)


def _prepare(config: ClassifyConfig, folder: RunFolder) -> _Job:
    """Everything that can be refused is refused here: what costs nothing first, what reads all rows last."""
    data = DataSet.open(config.data)
    task = data.task or _no_labels(data)
    monitor, mode = _monitor(config, task, "val" in data.parts)
    # refuses a loss that the task has not, before the names of the classes are known
    make_loss(config.loss, task, focal_gamma=config.focal_gamma, label_smoothing=config.label_smoothing)
    if config.class_weights and task != "classify":
        raise ConfigError(f"--class_weights needs one class a row. Received: the task {task}.")
    init = find_init(config.init, data.manifest.vocab_size if data.manifest else None)
    if data.manifest is not None:
        _check_encoding(init, data.manifest, data.path)
    strategy = make_strategy(config.devices)
    if config.global_batch_size < strategy.num_replicas_in_sync * config.accumulate:
        raise ConfigError(
            f"--global_batch_size is at least one row a device and micro-batch. Received: {config.global_batch_size} "
            f"rows, {strategy.num_replicas_in_sync} devices, --accumulate {config.accumulate}."
        )
    train, val = _stores(data)
    names = data.label_names(train)
    loss = make_loss(
        config.loss,
        task,
        focal_gamma=config.focal_gamma,
        focal_alpha=class_values.focal_alpha(config.focal_alpha, names),
        label_smoothing=config.label_smoothing,
    )
    _check_labels(task, names, train, val)
    class_weights = class_values.class_weights(config.class_weights, names, train.labels)
    max_len = _longest(data, [store for store in (train, val) if store is not None])
    _check_positions(init, max_len)
    return _Job(
        config, folder, data, task, names, train, val, loss, class_weights, monitor, mode, init, max_len, strategy
    )


def _train(job: _Job, stop: StopSignals) -> None:
    config, folder, data, strategy = job.config, job.folder, job.data, job.strategy
    policy = set_precision(config.mixed_precision, strategy)
    log_devices(strategy, config.global_batch_size)
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = Classifier(job.init.config, **job.model_settings, dtype=policy)
        _load_start(job, model)
    folder.write_description(
        config, job.init.config, job.model_settings, data.manifest, data.vocab or job.init.vocab, job.names
    )
    if data.manifest is None:
        shown = f"{', '.join(job.names[:10])}{' ...' if len(job.names) > 10 else ''}"
        logger.warning(
            "%d classes (%s); how the texts of %s were encoded is not known, so predict.py cannot use this run",
            len(job.names),
            shown,
            data.path,
        )
    best = BestWeights(folder.weights, job.monitor, job.mode)
    validation = None
    if job.val is not None:
        scorer = Scorer(model, strategy)
        validation = Validation(job.val, job.feed, scorer, job.loss, job.names, config.global_batch_size)
    state = read_state(folder.state)
    stages = _stages(config)
    if state is not None:
        _check_state(job, state[1])
        names = [stage.name for stage in stages]
        stages = stages[names.index(state[1]["stage"]) :]
    for stage in stages:
        _train_stage(stage, job, model, best, validation, stop, state)
        state = None
    load_weights(model, folder.weights)
    if validation is not None:
        validation()
        report.write_report(folder.path / "report", validation.scores.result())
    shutil.rmtree(folder.path / "features", ignore_errors=True)  # a run stopped as the frozen stage ended left them
    folder.finish()
    chosen = f"epoch {best.best_epoch + 1}" if best.best_epoch is not None else "no epoch"
    logger.info("done: weights of %s in %s", chosen, folder.weights)


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


def _stages(config: ClassifyConfig) -> list[_Stage]:
    stages = [
        _Stage("frozen", True, 0, config.frozen_epochs, config.frozen_learning_rate),
        _Stage("full", False, config.frozen_epochs, config.epochs, config.learning_rate),
    ]
    return [stage for stage in stages if stage.num_epochs]


def _check_state(job: _Job, values: dict[str, Any]) -> None:
    """Refuses to go on with other data than the run began with."""
    if values["data"] != _data_mark(job):
        raise ConfigError(
            f"A run goes on with the data that it began with. Received: {job.data.path}, changed since. Choose another "
            "--run_dir."
        )


def _data_mark(job: _Job) -> dict[str, Any]:
    """What the data are known by: checksums of the parts; of bare files size, and lengths and labels of the rows."""
    manifest = job.data.manifest
    if manifest is not None:
        return {name: part.checksum for name, part in manifest.parts.items()}
    parts = {"train": job.train, "val": job.val}
    return {name: _mark(store) for name, store in parts.items() if store is not None}


def _mark(store: RowStore) -> list[int]:
    return [
        store.path.stat().st_size,
        zlib.crc32(np.ascontiguousarray(store.lengths)),
        zlib.crc32(np.ascontiguousarray(store.labels)),
    ]


def _train_stage(
    stage: _Stage,
    job: _Job,
    model: Classifier,
    best: BestWeights,
    validation: Validation | None,
    stop: StopSignals,
    state: tuple[Arrays, dict[str, Any]] | None,
) -> None:
    config, strategy = job.config, job.strategy
    model.encoder.trainable = not stage.frozen
    plans = [
        _plan(config, job.train, epoch) for epoch in range(stage.first_epoch, stage.first_epoch + stage.num_epochs)
    ]
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
        job.loss,
        optimizer,
        strategy,
        rate,
        accumulate=config.accumulate,
        seed=config.seed,
        frozen_encoder=stage.frozen,
        task=job.task,
    )
    callbacks = _callbacks(
        stage, job, trainer, {plan.epoch: plan.num_batches for plan in plans}, best, validation, stop
    )
    starts = dict.fromkeys((plan.epoch for plan in plans), 0)  # first step of every epoch that is left
    if state is not None:
        if _take_up(state, stage, callbacks[-1], strategy):
            return
        starts = {epoch: 0 for epoch in starts if epoch >= trainer.epoch}
        starts[trainer.epoch] = trainer.epoch_step
    left = [plan for plan in plans if plan.epoch in starts]
    feed, multiple = job.feed, strategy.num_replicas_in_sync * config.accumulate

    with _frozen_features(stage, job, model, validation) as features:

        def global_batches() -> Iterator[Batch]:
            for plan in left:
                if features is None:
                    yield from plan_batches(job.train, plan, feed, multiple, starts[plan.epoch])
                else:
                    yield from feature_batches(job.train, features, plan, feed, multiple, starts[plan.epoch])

        with distribute(global_batches(), strategy) as batches:
            epochs = (Epoch(plan.epoch, batches, plan.num_batches, starts[plan.epoch]) for plan in left)
            trainer.fit(epochs, config.frozen_epochs + config.epochs, callbacks, validation)


@contextmanager
def _frozen_features(
    stage: _Stage, job: _Job, model: Classifier, validation: Validation | None
) -> Iterator[Features | None]:
    """What the frozen encoder gives for every row, where more than one epoch uses it and the disk has room."""
    folder = job.folder.path / "features"
    stores = {"train": job.train} | ({"val": job.val} if job.val is not None else {})
    rows = sum(len(store) for store in stores.values())
    if not stage.frozen or stage.num_epochs < 2 or not fits_on_disk(job.folder.path, model, rows):
        yield None
        return
    folder.mkdir(exist_ok=True)
    features = {
        name: compute_features(folder / f"{name}.f32", model, job.strategy, store, job.feed)
        for name, store in stores.items()
    }
    if validation is not None:
        validation.features = features["val"]
    yield features["train"]
    if validation is not None:
        validation.features = None
    shutil.rmtree(folder)


def _take_up(
    state: tuple[Arrays, dict[str, Any]], stage: _Stage, saver: SaveState, strategy: tf.distribute.Strategy
) -> bool:
    """Restores a saved state; tells whether the stage was already over."""
    arrays, values = state
    with strategy.scope():
        saver.restore(arrays, values)
    position = values["position"]
    if values["stopped"]:
        logger.info("stage %s: --patience had stopped it after epoch %d", stage.name, position["epoch"])
        return True
    if position["epoch"] >= stage.first_epoch + stage.num_epochs:
        logger.info("stage %s was complete", stage.name)
        return True
    epoch, step = position["epoch"] + 1, position["epoch_step"]
    logger.info("going on with stage %s at epoch %d, step %d", stage.name, epoch, step)
    return False


def _callbacks(
    stage: _Stage,
    job: _Job,
    trainer: Trainer,
    steps: dict[int, int],
    best: BestWeights,
    validation: Validation | None,
    stop: StopSignals,
) -> list[keras.callbacks.Callback]:
    config = job.config
    val_names = _val_names(job.task) if validation else []
    callbacks: list[keras.callbacks.Callback] = [
        StepProgress(trainer, steps, config.frozen_epochs + config.epochs),
        RunLog(
            job.folder.path, stage.name, _train_names(job.task), val_names, validation.details if validation else None
        ),
    ]
    remembering: dict[str, keras.callbacks.Callback] = {"best": best}
    if config.schedule == "plateau" and job.monitor:
        remembering["plateau"] = Plateau(trainer, job.monitor, job.mode, config.plateau_patience, config.plateau_factor)
    if config.patience and job.monitor:
        remembering["early_stop"] = EarlyStop(job.monitor, job.mode, config.patience)
    saver = SaveState(
        job.folder.state,
        trainer,
        stage.name,
        remembering,
        steps,
        stop,
        every_minutes=config.save_minutes,
        every_steps=config.save_steps,
        data=_data_mark(job),
    )
    return [*callbacks, *remembering.values(), saver]


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


# --------------------------------------------------------------------------------- checks before anything is trained


def _stores(data: DataSet) -> tuple[RowStore, RowStore | None]:
    train = data.store("train")
    if not len(train):
        raise DataError(f"{train.path}: there must be rows to train on. Received: a file without rows.")
    if "val" not in data.parts:
        logger.info("there is no val part: the last weights are kept")
        return train, None
    val = data.store("val")
    if not len(val):
        raise DataError(
            f"{val.path}: there must be rows to validate on. Received: a file without rows. Encode again with a larger "
            "--val_fraction, with rows in --val, or with --val_fraction 0 for no validation."
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
    available = [*_train_names(task), *(_val_names(task) if validates else [])]
    monitor = config.monitor
    if monitor is None:
        watching = {"--patience": config.patience, "--mode": config.mode, "plateau": config.schedule == "plateau"}
        if not validates and any(watching.values()):
            raise ConfigError(
                f"{' and '.join(name for name, given in watching.items() if given)} needs a number to watch. Received: "
                "no val part and no --monitor."
            )
        return ("val_loss", config.mode or "min") if validates else (None, "min")
    if monitor not in available:
        raise ConfigError(f"--monitor is one of {', '.join(available)}. Received: {monitor!r}.")
    if config.mode is None:
        if not monitor.endswith("loss"):
            raise ConfigError(f"--mode min or max says which way {monitor} gets better. Received: none.")
        return monitor, "min"
    return monitor, config.mode


def _train_names(task: str) -> list[str]:
    """Numbers of the log that training itself gives."""
    return ["loss"] if task == "regression" else ["loss", "accuracy"]


def _val_names(task: str) -> list[str]:
    return [f"val_{name}" for name in ("loss", *report.reported_names(task))]


def _check_encoding(init: Init, manifest: Manifest, path: Path) -> None:
    """Refuses a data set whose ids or lengths the model has no rows for."""
    notice = check_vocabulary(init.config, manifest.vocab_size, f"{path}/vocab.txt")
    if notice:
        logger.info("%s", notice)
    if init.vocab is not None and file_checksum(init.vocab) != manifest.vocab_checksum:
        logger.warning("the data were not encoded with %s: are the token ids those of the model?", init.vocab)
    encoding = manifest.encoding_settings()
    _check_positions(init, encoding.max_len)
    if encoding.pair and init.config.type_vocab_size < 2:
        raise ConfigError(
            f"Pairs need a model with two segments. Received: type_vocab_size {init.config.type_vocab_size} in "
            f"{init.path}."
        )


def _check_positions(init: Init, max_len: int) -> None:
    if max_len > init.config.max_position_embeddings:
        raise ConfigError(
            f"Rows are at most max_position_embeddings tokens long. Received: max_len {max_len}, "
            f"{init.config.max_position_embeddings} positions. Encode again with a smaller --max_len."
        )


def _longest(data: DataSet, stores: list[RowStore]) -> int:
    """Length that no row exceeds: max_len of the data set, or the longest row of bare files."""
    if data.manifest is not None:
        return int(data.manifest.encoding["max_len"])
    return max(int(np.max(store.lengths)) for store in stores)
