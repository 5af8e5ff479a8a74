"""Train a small model to do as larger ones do: their layers first, then their predictions (TinyBERT)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfbert import report
from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.save_state import StopSignals
from tfbert.choices import HEADS
from tfbert.cli import option
from tfbert.data.dataset import DataSet
from tfbert.data.feed import ALONE, FeedSettings, plan_batches
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, DataError
from tfbert.loop.trainer import Scorer
from tfbert.losses import Loss, make_loss
from tfbert.model.checkpoint import Init, find_init, load_encoder
from tfbert.model.config import BertConfig
from tfbert.model.distiller import HEADS as ATTENTION_HEADS
from tfbert.model.distiller import PARTS, LayerMatcher, check_heads, copy_layers, layer_map
from tfbert.model.heads import Classifier
from tfbert.objectives.base import Objective
from tfbert.objectives.distillation import LayerDistillation, PredictionDistillation
from tfbert.progress import logger
from tfbert.run_folder import RunFolder
from tfbert.strategy import log_devices, make_strategy, on_cpu, set_precision, worker_of
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
from tfbert.training.comparison import compare
from tfbert.training.settings import EpochSettings, Range
from tfbert.training.stages import BatchesOfEpoch, Session, Stage, State, run_in_folder, train_stage, train_stages
from tfbert.training.teachers import (
    LoadedTeachers,
    Teacher,
    batches_with_logits,
    compute_logits,
    find_teacher,
    load_teachers,
)
from tfbert.training.validation import Validation

STAGES = ("general", "intermediate", "prediction")


@dataclass(frozen=True, kw_only=True)
class DistillConfig(EpochSettings):
    """Train a student from one or several teachers on a data set made by `preprocess encode` or `corpus`."""

    teacher: tuple[str, ...] = option((), repeat=True)
    """Run folder of a classifier, or a checkpoint for the layers alone. Several are averaged: give it several times."""
    init: str | None = None  # type: ignore[assignment]
    """Where the student starts: config .json (random weights), checkpoint, or run folder, such as that of the stage
    general. Default: layers of the first teacher."""
    num_layers: int | None = None
    """Layers of a student that starts from its teacher's, chosen by --layer_map. Default: all."""
    stages: str = "intermediate,prediction"
    """Stages joined by commas: intermediate (layers), prediction (soft targets); or general alone (layers, on text
    without labels)."""
    layer_map: str = "uniform"
    """The teacher's layer for each of the student's: uniform, top, bottom, or layers from 1 joined by commas."""
    attention_weight: float = 1.0
    """Factor of the error of unnormalised attention scores; 0 for none."""
    hidden_weight: float = 1.0
    """Factor of the error of hidden states."""
    embedding_weight: float = 1.0
    """Factor of the error of the embeddings' output; 0 for none."""
    attention_heads: str = "same"
    """Attention is compared head by head (same), or as the mean over the heads (mean)."""
    general_epochs: int = 3
    """Epochs of the stage general."""
    intermediate_epochs: int = 20
    """Epochs of the stage intermediate."""
    intermediate_learning_rate: float = 5e-5
    """Highest learning rate of the stages general and intermediate."""
    temperature: float = 1.0
    """Temperature of the soft targets; their loss is multiplied with its square."""
    hard_weight: float = 0.0
    """Share of the labels' own loss in the stage prediction; the rest is that of the soft targets."""
    student_dropout: bool = False
    """Dropout of the student while it learns."""
    head: str | None = None
    """Head of the student: pool, cls or mean. Default: that of the first teacher."""
    head_units: int | None = None
    """Width of the dense layer of the pool head. Default: that of the first teacher."""
    cache_teacher: bool = True
    """Compute the teachers' logits once, before the stage prediction, and keep them on disk."""
    teacher_cache: str | None = None
    """Folder of these logits. Default: teacher/ in the run folder."""
    teacher_top_k: int = 0
    """Keep the largest logits of a row alone, as many; 0 keeps all."""

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"head": HEADS, "attention_heads": ATTENTION_HEADS}
    least: ClassVar[Mapping[str, float]] = {
        "num_layers": 1,
        "general_epochs": 1,
        "intermediate_epochs": 1,
        "head_units": 1,
        "teacher_top_k": 0,
    }
    ranges: ClassVar[Mapping[str, Range]] = {
        "attention_weight": (0, True, math.inf, False),
        "hidden_weight": (0, False, math.inf, False),
        "embedding_weight": (0, True, math.inf, False),
        "intermediate_learning_rate": (0, False, math.inf, False),
        "temperature": (0, False, math.inf, False),
        "hard_weight": (0, True, 1, True),
    }

    def check_together(self) -> None:
        """As the base."""
        if not self.teacher:
            raise ConfigError("A student learns from a teacher. Received: no --teacher.")
        if self.stage_names not in (("general",), ("intermediate",), ("prediction",), ("intermediate", "prediction")):
            raise ConfigError(
                f"--stages is intermediate,prediction, one of the two, or general. Received: {self.stages!r}."
            )
        if "prediction" in self.stage_names and self.epochs < 1:
            raise ConfigError(f"The stage prediction has at least one epoch. Received: --epochs {self.epochs}.")
        if self.num_layers is not None and self.init is not None:
            raise ConfigError(
                f"--num_layers is of a student that starts from its teacher. Received: --init {self.init} as well."
            )
        if self.teacher_top_k == 1:
            raise ConfigError("--teacher_top_k keeps at least 2 logits, or 0 for all. Received: 1.")
        super().check_together()

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.stages.split(","))

    @property
    def predicts(self) -> bool:
        return "prediction" in self.stage_names

    @property
    def matches_layers(self) -> bool:
        return self.stage_names != ("prediction",)

    def highest_rates(self) -> list[float]:
        """As the base."""
        layers = [self.intermediate_learning_rate] if self.matches_layers else []
        return [*layers, *([self.learning_rate] if self.predicts else [])]

    def plan(self) -> list[Stage]:
        """The stages, in order."""
        epochs = {
            "general": self.general_epochs,
            "intermediate": self.intermediate_epochs,
            "prediction": self.epochs,
        }
        stages: list[Stage] = []
        for name in self.stage_names:
            first = stages[-1].epochs.stop if stages else 0
            rate = self.learning_rate if name == "prediction" else self.intermediate_learning_rate
            stages.append(Stage(name, first, epochs[name], rate))
        return stages


@dataclass(frozen=True)
class _Job:
    """A run whose settings, data, student and teachers were found to go together."""

    config: DistillConfig
    folder: RunFolder
    data: DataSet
    task: str | None
    names: list[str]
    train: RowStore
    val: RowStore | None
    loss: Loss | None
    monitor: str | None
    mode: str
    teachers: list[Teacher]
    maps: list[tuple[int, ...]]
    init: Init | None
    student: BertConfig
    max_len: int
    strategy: tf.distribute.Strategy

    @property
    def model_settings(self) -> dict[str, Any]:
        """Of the student; where nothing predicts, the head is not trained."""
        theirs = self.teachers[0].model or {"head": "mean", "head_units": 256, "head_dropout": 0.1}
        return {
            "num_outputs": 1 if self.task in (None, "regression") else len(self.names),
            "head": self.config.head or theirs["head"],
            "head_units": self.config.head_units or theirs["head_units"],
            "head_dropout": theirs["head_dropout"],
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
            vocab_size=min(self.student.vocab_size, *(t.init.config.vocab_size for t in self.teachers)),
            type_vocab_size=min(self.student.type_vocab_size, *(t.init.config.type_vocab_size for t in self.teachers)),
        )


def run(config: DistillConfig) -> None:
    """Trains, and leaves the run folder of the student.

    Raises:
        TfbertError: settings, data or weights are wrong, or the loss is not finite.
    """
    run_in_folder(config, _prepare, _train)


def _prepare(settings: DistillConfig, folder: RunFolder) -> _Job:
    """Everything that can be refused is refused here."""
    data = DataSet.open(settings.data)
    task = data.task if settings.predicts else None
    if settings.predicts and task is None:
        raise DataError(
            f"{data.path}: the stage prediction needs labels to validate with. Received: a data set without them. "
            "Encode with --label, or give --stages general."
        )
    watched = settings.predicts and "val" in data.parts
    monitor, mode = choose_monitor(settings, _train_names(settings, task), _val_names(task) if watched else [])
    loss = make_loss("ce", task) if task is not None else None
    if settings.sampling != "none" and task != "classify":
        raise ConfigError(f"--sampling needs one class a row. Received: {settings.sampling}.")
    train, val = open_stores(data)
    names = data.label_names(train) if task is not None else []
    if task is not None:
        check_labels(task, names, train, val)
    teachers = [find_teacher(path, data, task or "", names, settings.predicts) for path in settings.teacher]
    first = teachers[0].init.config
    init = None
    if settings.init is not None:
        init = find_init(settings.init, data.manifest.vocab_size if data.manifest else first.vocab_size)
        student = init.config
        if data.manifest is not None:
            check_encoding(init, data.manifest, data.path)
    else:
        student = replace(first, num_hidden_layers=settings.num_layers or first.num_hidden_layers)
    depths = [teacher.init.config.num_hidden_layers for teacher in teachers]
    maps = []
    if settings.matches_layers or init is None:
        maps = [layer_map(settings.layer_map, student.num_hidden_layers, depth) for depth in depths]
    if settings.matches_layers and settings.attention_weight:
        for teacher in teachers:
            check_heads(student, teacher.init.config, settings.attention_heads)
    max_len = longest(data, [store for store in (train, val) if store is not None])
    for each in [*(teacher.init for teacher in teachers), *([init] if init is not None else [])]:
        check_positions(each.config, max_len)
    strategy = make_strategy(settings.devices, settings.deterministic, settings.cluster, settings.cluster_timeout)
    check_memory_bound(settings, on_cpu(strategy))
    check_batch(settings, strategy.num_replicas_in_sync, worker_of(strategy)[1])
    val = val if settings.predicts else None
    data.verify(folder.verified)
    return _Job(
        settings, folder, data, task, names, train, val, loss, monitor, mode, teachers, maps, init, student, max_len,
        strategy,
    )  # fmt: skip


def _train(job: _Job, stop: StopSignals) -> None:
    config, folder, data, strategy = job.config, job.folder, job.data, job.strategy
    policy = set_precision(config.mixed_precision, strategy)
    log_devices(strategy, config.global_batch_size * config.step_batches(worker_of(strategy)[1]))
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = Classifier(job.student, **job.model_settings, dtype=policy)
        matchers = [
            LayerMatcher(job.student, teacher.init.config, layers, config.attention_heads, number)
            for number, (teacher, layers) in enumerate(zip(job.teachers, job.maps, strict=False))
        ]
        teachers = load_teachers(job.teachers, policy)
        _load_start(job, model, teachers)
    rank, _ = worker_of(strategy)
    if not rank:
        vocab = data.vocab or (job.init.vocab if job.init else None) or job.teachers[0].init.vocab
        folder.write_description(config, job.student, job.model_settings, data.manifest, vocab, job.names)
        data.remember(folder.verified)
    validation = None
    if job.val is not None and job.loss is not None:
        scorer = Scorer(model, strategy)
        validation = Validation(job.val, job.feed, scorer, job.loss, job.names, config.global_batch_size)
    best = BestWeights(folder.weights, job.monitor, job.mode, writes=not rank)
    best.set_model(model)
    stages = config.plan()
    stores = {"train": job.train} | ({"val": job.val} if job.val is not None else {})
    session = Session(
        config, folder, strategy, stop, data.mark(stores), stages[-1].epochs.stop, best, validation,
        _train_names(config, job.task), _val_names(job.task) if validation else [],
    )  # fmt: skip
    # layers say nothing of the labels: the last epoch of these stages is kept
    kept = BestWeights(folder.weights, None, "min", writes=not rank) if config.predicts else best
    of_layers = replace(session, best=kept, validation=None)

    def train(stage: Stage, state: State | None) -> None:
        objective: Objective
        if stage.name == "prediction":
            on_the_fly = teachers.logits if not _caches(job) else None
            objective = PredictionDistillation(
                model, job.loss, job.task or "", temperature=config.temperature, hard_weight=config.hard_weight,
                teachers=on_the_fly, dropout=config.student_dropout,
            )  # fmt: skip
            train_stage(
                session, stage, objective, model.trainable_variables, job.train, _soft_batches(job, teachers), state
            )
            return
        factors = {part: getattr(config, f"{part}_weight") for part in PARTS}
        objective = LayerDistillation(model, teachers.encoders, matchers, factors, config.student_dropout)
        trained = [v for v in model.encoder.trainable_variables if "NSP-Dense" not in v.path]
        train_stage(
            of_layers, stage, objective, [*trained, *objective.variables], job.train, _plain_batches(job), state
        )

    train_stages(session, stages, train)
    if job.val is not None and teachers.logits is not None and worker_of(strategy) == ALONE:
        path = folder.path / "report" / "teacher_and_student.json"
        compare(path, model, teachers.logits, strategy, job.val, job.feed, job.names)


def _load_start(job: _Job, model: Classifier, teachers: LoadedTeachers) -> None:
    """The student's weights: from `--init`, or layers of the first teacher and its head."""
    if job.init is not None:
        loaded = load_encoder(model.encoder, job.init)
        logger.info("student from %s (%s): %d tensors loaded", job.init.path, job.init.kind, loaded)
        return
    count = copy_layers(model, teachers.encoders[0], job.maps[0])
    theirs = teachers.classifiers[0] if teachers.classifiers and job.teachers[0].model is not None else None
    same = theirs is not None and theirs.get_config() | {"config": 0, "name": 0} == (
        model.get_config() | {"config": 0, "name": 0}
    )
    if theirs is not None and same and job.config.predicts:
        for name in ("dense", "output_dense"):
            if hasattr(model, name):
                weights = getattr(theirs, name).get_weights()
                order = job.teachers[0].order
                if name == "output_dense" and order is not None:
                    weights = [w[..., list(order)] for w in weights]
                getattr(model, name).set_weights(weights)
                count += len(weights)
    logger.info("student from layers %s of its teacher: %d tensors copied", ", ".join(map(str, job.maps[0])), count)


def _caches(job: _Job) -> bool:
    return job.config.cache_teacher and worker_of(job.strategy) == ALONE


def _plain_batches(job: _Job) -> Callable[[], AbstractContextManager[BatchesOfEpoch]]:
    multiple = job.strategy.num_replicas_in_sync * job.config.accumulate
    worker = worker_of(job.strategy)

    @contextmanager
    def opened() -> Iterator[BatchesOfEpoch]:
        yield lambda plan, start: plan_batches(job.train, plan, job.feed, multiple, start, worker)

    return opened


def _soft_batches(job: _Job, teachers: LoadedTeachers) -> Callable[[], AbstractContextManager[BatchesOfEpoch]]:
    """Rows with what the teachers said of them, which is computed once."""
    if not _caches(job):
        return _plain_batches(job)
    multiple = job.strategy.num_replicas_in_sync * job.config.accumulate

    @contextmanager
    def opened() -> Iterator[BatchesOfEpoch]:
        folder = Path(job.config.teacher_cache) if job.config.teacher_cache else job.folder.path / "teacher"
        marks = [job.data.mark({"train": job.train})["train"], [teacher.mark for teacher in job.teachers], job.names]
        cache = compute_logits(
            folder, teachers.logits, job.strategy, job.train, job.feed, marks, job.config.teacher_top_k
        )
        yield lambda plan, start: batches_with_logits(job.train, cache, plan, job.feed, multiple, start)

    return opened


def _train_names(config: DistillConfig, task: str | None) -> list[str]:
    """Numbers of the log that training gives; those of other stages are left empty."""
    names = ["loss"]
    if config.matches_layers:
        names += [f"{part}_loss" for part in PARTS]
    if config.predicts:
        names += ["soft_loss"] + ([] if task == "regression" else ["accuracy"])
    return names


def _val_names(task: str | None) -> list[str]:
    return [f"val_{name}" for name in ("loss", *report.reported_names(task or ""))]
