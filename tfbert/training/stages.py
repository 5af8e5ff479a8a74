"""What every recipe does alike: take a run folder, go through the stages, save, resume."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfbert import report
from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.early_stop import EarlyStop
from tfbert.callbacks.parallel_report import ParallelReport
from tfbert.callbacks.plateau import Plateau
from tfbert.callbacks.row_log import RowLog
from tfbert.callbacks.run_log import RunLog
from tfbert.callbacks.save_state import SaveState, StopSignals
from tfbert.callbacks.spikes import SpikeLog
from tfbert.callbacks.step_progress import StepProgress
from tfbert.callbacks.step_validation import StepValidation
from tfbert.cluster import Cluster
from tfbert.data.batch import Batch, fill_up
from tfbert.data.feed import distribute
from tfbert.data.plan import EpochPlan
from tfbert.data.sampling import ClassSampler
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, LossNotFinite, WorkerError
from tfbert.loop.adversarial import FastGradient
from tfbert.loop.ema import WeightAverage
from tfbert.loop.state import Arrays, read_state
from tfbert.loop.trainer import Epoch, Trainer
from tfbert.model.checkpoint import load_weights
from tfbert.objectives.base import Objective
from tfbert.optim import Schedule, layer_factors, make_optimizer, schedule
from tfbert.progress import logger
from tfbert.run_folder import RunFolder
from tfbert.strategy import sum_over_workers, worker_of
from tfbert.training.micro_batches import find_micro_batches
from tfbert.training.recovery import lower_the_rate, out_of_memory, shrink_micro_batches
from tfbert.training.settings import EpochSettings, RunSettings
from tfbert.training.validation import Validation

_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
State = tuple[Arrays, dict[str, Any]]
BatchesOfEpoch = Callable[[EpochPlan, int], Iterator[Batch]]  # global batches of an epoch, from a batch on
S = TypeVar("S", bound=RunSettings)
J = TypeVar("J")


@dataclass(frozen=True)
class Stage:
    """A run of epochs with one set of trained variables."""

    name: str
    first_epoch: int
    num_epochs: int
    learning_rate: float
    frozen: bool = False

    @property
    def epochs(self) -> range:
        return range(self.first_epoch, self.first_epoch + self.num_epochs)


@dataclass(frozen=True)
class Session:
    """What the stages of one run share.

    Args:
        settings: of the run.
        folder: where it is kept.
        strategy: whose replicas share the work.
        stop: the signals.
        data: what the data are known by; a run goes on with the same alone.
        num_epochs: of all stages.
        best: keeps the best weights.
        validation: scores the val part, or None.
        train_names, val_names: numbers of the log.
    """

    settings: EpochSettings
    folder: RunFolder
    strategy: tf.distribute.Strategy
    stop: StopSignals
    data: Mapping[str, Any]
    num_epochs: int
    best: BestWeights
    validation: Validation | None
    train_names: Sequence[str]
    val_names: Sequence[str]


def run_in_folder(settings: S, prepare: Callable[[S, RunFolder], J], train: Callable[[J, StopSignals], None]) -> None:
    """Trains what is left to train in the folder of the settings, while no other process may.

    Args:
        settings: of the run.
        prepare: makes the job, before the folder is touched.
        train: does it.

    Raises:
        ConfigError: the folder is in use, or holds something else.
    """
    folder = RunFolder(Path(settings.run_dir))
    if folder.finished:
        folder.check_same(settings)
        if not folder.is_extended_by(settings):
            logger.info("%s is already complete; nothing to do. Choose another --run_dir to train again.", folder.path)
            return
        if not folder.state.is_dir():
            raise ConfigError(
                f"A complete run goes on from its last state. Received: {folder.path} without {folder.state.name}/. "
                "Start another run from its best weights (--init RUN)."
            )
        logger.info("%s is complete; going on with more epochs", folder.path)
    cluster = settings.cluster
    if cluster is not None and not cluster.is_chief:  # reads what the chief writes
        logger.setLevel(logging.WARNING)
        job = prepare(settings, folder)
        with StopSignals() as stop, _losing_no_worker(cluster):
            train(job, stop)
        return
    folder.check_free(settings)
    job = prepare(settings, folder)
    with folder.held(settings), StopSignals() as stop, _losing_no_worker(cluster):
        train(job, stop)


@contextmanager
def _losing_no_worker(cluster: Cluster | None) -> Iterator[None]:
    """What TensorFlow says when another worker is gone, as an error that tells what to do."""
    try:
        yield
    except _LOST as error:
        if cluster is None:
            raise
        raise WorkerError(
            f"worker {cluster.rank} of {len(cluster.workers)}: another worker was lost "
            f"({type(error).__name__}). The last state is kept: the same command, with the workers that "
            "are there, goes on from it."
        ) from error


def last_state(folder: RunFolder, data: Mapping[str, Any], settings: RunSettings) -> State | None:
    """The state that a run goes on from, or None where there is none.

    Args:
        folder: of the run.
        data: what the data are known by.
        settings: of the run.

    Raises:
        ConfigError: the data are not those that the run began with.
    """
    state = read_state(folder.state)
    if state is not None and state[1]["data"] != data:
        raise ConfigError(
            f"A run goes on with the data that it began with. Received: {settings.data}, changed since. "
            "Choose another --run_dir."
        )
    return state


def train_epochs(
    trainer: Trainer,
    epochs: range,
    plan_of: Callable[[int], EpochPlan],
    batches_of: BatchesOfEpoch,
    num_epochs: int,
    callbacks: Sequence[keras.callbacks.Callback],
    validate: Callable[[], dict[str, float]] | None = None,
) -> None:
    """Trains epochs, of which the trainer may be in the middle of the first.

    Args:
        trainer: at its position.
        epochs: their numbers.
        plan_of: number of an epoch -> its plan.
        batches_of: makes its global batches, or this worker's share of them.
        num_epochs: of the run, for callbacks that show it.
        callbacks: as `Trainer.fit` takes them.
        validate: as `Trainer.fit` takes it.
    """
    first_epoch, first_step = trainer.epoch, trainer.epoch_step

    def plans() -> Iterator[tuple[EpochPlan, int]]:
        for epoch in epochs:
            yield plan_of(epoch), first_step if epoch == first_epoch else 0

    with distribute((b for plan, start in plans() for b in batches_of(plan, start)), trainer.strategy) as batches:
        work = (Epoch(plan.epoch, batches, plan.num_batches, start, plan.per_step) for plan, start in plans())
        trainer.fit(work, num_epochs, callbacks, validate)


def train_stages(session: Session, stages: Sequence[Stage], train: Callable[[Stage, State | None], None]) -> None:
    """Runs the stages that are left, then puts the best weights into the model and writes the report.

    Args:
        session: of the run.
        stages: in order; those without epochs are passed over.
        train: a stage, with the state to take up or None.

    Raises:
        ConfigError: the data are not those that the run began with.
    """
    state = last_state(session.folder, session.data, session.settings)
    left = [stage for stage in stages if stage.num_epochs]
    if state is not None:
        left = left[[stage.name for stage in left].index(state[1]["stage"]) :]
    for stage in left:
        train(stage, state)
        state = None
    best = session.best
    rank, _ = worker_of(session.strategy)
    sum_over_workers(session.strategy, np.zeros(1))  # all wait until the chief has written the best weights
    load_weights(best.model, session.folder.weights)
    if session.validation is not None:
        session.validation()
    if rank:
        return
    if session.validation is not None:
        report.write_report(session.folder.path / "report", session.validation.scores.result())
    # a run stopped as a frozen stage ended left them
    shutil.rmtree(session.folder.path / "features", ignore_errors=True)
    session.folder.finish()
    chosen = f"epoch {best.best_epoch + 1}" if best.best_epoch is not None else "no epoch"
    logger.info("done: weights of %s in %s", chosen, session.folder.weights)


def train_stage(
    session: Session,
    stage: Stage,
    objective: Objective,
    trained: Sequence[Any],
    rows: RowStore,
    open_batches: Callable[[], AbstractContextManager[BatchesOfEpoch]],
    state: State | None,
) -> None:
    """Trains a stage, from its beginning or from a state.

    Args:
        session: of the run.
        stage: which epochs, at which rate.
        objective: what is minimised.
        trained: Keras variables that are updated.
        rows: to train on.
        open_batches: gives what makes the global batches of an epoch; entered once, if anything is left to train.
        state: to take up, or None.
    """
    settings, strategy = session.settings, session.strategy
    sampler = _sampler(settings, rows)
    workers = worker_of(strategy)[1]
    per_step = settings.step_batches(workers)
    plans = [_plan(settings, rows, epoch, sampler, per_step) for epoch in stage.epochs]
    total_batches = sum(plan.num_batches for plan in plans)
    logger.info(
        "stage %s: %d epochs, %d %s, %s of %s weights trained",
        stage.name,
        stage.num_epochs,
        total_batches,
        "steps" if per_step == 1 else f"batches, {per_step} a step, learning rate x {settings.rate_scale(workers):.4g}",
        f"{_count(trained):,}",
        f"{_count(objective.model.variables):,}",
    )
    with strategy.scope():
        optimizer = make_optimizer(
            settings.optimizer,
            trained,
            weight_decay=settings.weight_decay,
            clip_norm=settings.clip_norm or None,
            loss_scaling=settings.mixed_precision == "float16",
            rate_factors=layer_factors([v.path for v in trained], settings.layer_decay),
        )
        tables = [v for v in trained if "Embedding-Token/" in v.path]  # none where the encoder is frozen
        adversary = FastGradient(tables[0], settings.fgm) if settings.fgm and tables else None
        average = WeightAverage(trained, settings.ema, strategy) if settings.ema else None
    micro_rows = settings.micro_batch_size
    trainer = Trainer(
        objective,
        optimizer,
        strategy,
        _rate(settings, stage, total_batches, settings.rate_scale(workers)),
        accumulate=-(-_replica_rows(session) // micro_rows) if micro_rows is not None else settings.accumulate,
        micro_rows=micro_rows,
        seed=settings.seed,
        adversary=adversary,
        average=average,
        gradient_dtype=settings.gradient_dtype,
    )
    trainer.epoch = stage.first_epoch
    saver, callbacks = _callbacks(session, stage, trainer, {plan.epoch: plan for plan in plans})
    if state is not None:
        if _take_up(state, stage, saver, strategy):
            return
    with open_batches() as batches_of:
        if state is None:
            if settings.auto_accumulate:
                _find_micro_batches(session, trainer, plans[0], batches_of)
            if settings.auto_accumulate or settings.nan_retries:
                saver.save(trainer.position())  # to go back to
        while True:
            try:
                _fit(session, trainer, plans, batches_of, callbacks)
                return
            except LossNotFinite as error:
                tries, factor = settings.nan_retries, settings.nan_rate_factor
                lower_the_rate(session.folder.state, saver, strategy, error, tries, factor)
            except tf.errors.ResourceExhaustedError as error:
                if not settings.auto_accumulate:
                    raise out_of_memory(error, trainer.accumulate) from error
                shrink_micro_batches(session.folder.state, saver, strategy, error, _replica_rows(session))


def _replica_rows(session: Session) -> int:
    """Most rows of a batch on one device."""
    rows = session.settings.global_batch_size * session.settings.step_batches(worker_of(session.strategy)[1])
    return -(-rows // session.strategy.num_replicas_in_sync)


def _find_micro_batches(session: Session, trainer: Trainer, plan: EpochPlan, batches_of: BatchesOfEpoch) -> None:
    """The fewest that fit, for the longest rows of the stage."""
    settings = session.settings
    ordered = replace(plan, shuffle=False, sampler=None)
    example = next(iter(batches_of(ordered, ordered.longest_batch())))
    rows = _replica_rows(session)
    if settings.batch_tokens is not None and "padding_mask" in example:
        of_tokens = settings.batch_tokens // example["padding_mask"].shape[1]
        rows = max(1, min(rows, -(-of_tokens // session.strategy.num_replicas_in_sync)))
    most_bytes = settings.memory_gb * 1e9 if settings.memory_gb is not None else None
    find_micro_batches(trainer, example, rows, min(settings.accumulate, rows), most_bytes)


def _fit(
    session: Session,
    trainer: Trainer,
    plans: Sequence[EpochPlan],
    batches_of: BatchesOfEpoch,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Trains from where the trainer is to the end of the stage."""
    settings, replicas = session.settings, session.strategy.num_replicas_in_sync
    if (settings.auto_accumulate or trainer.micro_rows is not None) and session.validation is not None:
        session.validation.limit_rows(replicas * -(-_replica_rows(session) // trainer.accumulate))

    def global_batches(plan: EpochPlan, start: int) -> Iterator[Batch]:
        for batch in batches_of(plan, start):
            yield fill_up(batch, replicas * trainer.accumulate) if settings.auto_accumulate else batch

    epochs = range(trainer.epoch, plans[-1].epoch + 1)
    of_epoch = {plan.epoch: plan for plan in plans}.__getitem__
    train_epochs(trainer, epochs, of_epoch, global_batches, session.num_epochs, callbacks, session.validation)


def _rate(settings: EpochSettings, stage: Stage, total_steps: int, scale: float) -> Schedule:
    """Learning rate by the number of batches that were taken: so it goes by the epochs, however many a step takes."""
    kind = "constant" if settings.schedule == "plateau" else settings.schedule
    warmup_steps = settings.warmup_steps
    if warmup_steps is None:
        warmup_steps = int(settings.warmup * total_steps)
    elif warmup_steps > total_steps:
        logger.warning(
            "stage %s: the learning rate rises for %d steps, but there are %d: it never reaches its peak",
            stage.name,
            warmup_steps,
            total_steps,
        )
    of_batch = schedule(
        kind,
        stage.learning_rate,
        warmup_steps,
        total_steps,
        end_learning_rate=settings.end_learning_rate if kind != "constant" else 0.0,
        power=settings.schedule_power,
    )
    return lambda batches: scale * of_batch(batches)


def _sampler(settings: EpochSettings, store: RowStore) -> ClassSampler | None:
    if settings.sampling == "none":
        return None
    sampler = ClassSampler(store.labels, settings.sampling, settings.seed)
    shown = [f"{draws:,} of {count:,}" for draws, count in zip(sampler.quotas, sampler.counts, strict=True)]
    more = " ..." if len(shown) > 20 else ""
    logger.info(
        "sampling %s: draws an epoch of the rows of each class: %s%s", settings.sampling, ", ".join(shown[:20]), more
    )
    return sampler


def _plan(
    settings: EpochSettings, store: RowStore, epoch: int, sampler: ClassSampler | None, per_step: int
) -> EpochPlan:
    return EpochPlan(
        store.lengths,
        settings.global_batch_size,
        window=settings.shuffle_window,
        seed=settings.seed,
        epoch=epoch,
        length_multiple=settings.length_multiple,
        batch_tokens=settings.batch_tokens,
        sampler=sampler,
        per_step=per_step,
    )


def _take_up(state: State, stage: Stage, saver: SaveState, strategy: tf.distribute.Strategy) -> bool:
    """Restores a saved state; tells whether the stage was already over."""
    arrays, values = state
    with strategy.scope():
        saver.restore(arrays, values)
    position = values["position"]
    if values["stopped"]:
        logger.info("stage %s: --patience had stopped it after epoch %d", stage.name, position["epoch"])
        return True
    if position["epoch"] not in stage.epochs:
        logger.info("stage %s was complete", stage.name)
        return True
    epoch, step = position["epoch"] + 1, position["epoch_step"]
    logger.info("going on with stage %s at epoch %d, step %d", stage.name, epoch, step)
    return False


def _callbacks(
    session: Session, stage: Stage, trainer: Trainer, plans: dict[int, EpochPlan]
) -> tuple[SaveState, list[keras.callbacks.Callback]]:
    settings, best = session.settings, session.best
    steps = {epoch: plan.num_batches for epoch, plan in plans.items()}
    chief = not worker_of(session.strategy)[0]

    def details() -> dict[str, Any]:
        retries = {"nan_retries": trainer.retries} if settings.nan_retries else {}
        return (session.validation.details() if session.validation else {}) | retries

    callbacks: list[keras.callbacks.Callback] = [StepProgress(trainer, steps, session.num_epochs)]
    if chief:
        callbacks.append(RunLog(session.folder.path, stage.name, session.train_names, session.val_names, details))
        if settings.row_log:
            callbacks.append(RowLog(session.folder.path, stage.name, trainer, plans.__getitem__))
    if session.strategy.num_replicas_in_sync > 1:
        callbacks.append(ParallelReport(session.folder.path, trainer, writes=chief))
    deviations = settings.spike_deviations or None
    spikes = SpikeLog(session.folder.path, stage.name, trainer, plans, deviations, writes=chief)
    if settings.eval_steps and session.validation is not None:
        validate, names = session.validation, session.val_names
        callbacks.append(
            StepValidation(
                session.folder.path, trainer, steps, settings.eval_steps, validate, names, best, writes=chief
            )
        )
    remembering: dict[str, keras.callbacks.Callback] = {"best": best, "spikes": spikes}
    if settings.schedule == "plateau" and best.monitor:
        remembering["plateau"] = Plateau(
            trainer,
            best.monitor,
            best.mode,
            settings.plateau_patience,
            settings.plateau_factor,
            least=settings.end_learning_rate / stage.learning_rate,
        )
    if settings.patience and best.monitor:
        remembering["early_stop"] = EarlyStop(best.monitor, best.mode, settings.patience)
    saver = SaveState(
        session.folder.state,
        trainer,
        stage.name,
        remembering,
        steps,
        session.stop,
        every_minutes=settings.save_minutes,
        every_steps=settings.save_steps,
        data=dict(session.data),
    )
    return saver, [*callbacks, *remembering.values(), saver]


def _count(variables: Sequence[Any]) -> int:
    return int(sum(np.prod(v.shape) for v in variables))
