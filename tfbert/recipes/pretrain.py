"""Pretrain a masked language model until the time is over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfbert.callbacks.budget import Budget, SharedTime, parse_markers
from tfbert.callbacks.forecast import Forecast
from tfbert.callbacks.parallel_report import ParallelReport
from tfbert.callbacks.row_log import RowLog
from tfbert.callbacks.save_state import SaveState, StopSignals
from tfbert.callbacks.scheduled_validation import EarlyStop, ScheduledValidation, ValidationTimes
from tfbert.callbacks.step_log import StepLog
from tfbert.cli import option
from tfbert.data.batch import Batch
from tfbert.data.dataset import DataSet
from tfbert.data.feed import FeedSettings, plan_batches
from tfbert.data.growing import GrowingPlan
from tfbert.data.masking import UNITS, Masking
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, DataError
from tfbert.loop.agreement import Agreement
from tfbert.loop.clock import CURVES, Clock, rate_factor
from tfbert.loop.trainer import Trainer
from tfbert.model.checkpoint import EXPORTS, LAST_EXPORT, Init, check_vocabulary, find_init, load_masked_lm
from tfbert.model.config import LN_MODES, BertConfig
from tfbert.model.mlm import MaskedLM
from tfbert.objectives.mlm import MaskedLanguageModel
from tfbert.optim import Schedule, make_optimizer
from tfbert.progress import logger
from tfbert.run_folder import RunFolder
from tfbert.strategy import log_devices, make_strategy, set_precision, sum_over_workers, worker_of
from tfbert.text.wordpiece import Vocabulary
from tfbert.training.checks import check_positions, longest
from tfbert.training.exports import export
from tfbert.training.masked_validation import MaskedValidation
from tfbert.training.settings import Range, RunSettings
from tfbert.training.stages import last_state, run_in_folder, train_epochs

LR_SCHEDULES = ("time", "step", "constant_step")
PAIR_KINDS = ("none", "nsp", "sop")
_STAGE = "pretrain"
_SIZES = tuple(field.name for field in fields(BertConfig) if field.name != "vocab_size")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunSettings):
    """Pretrain a masked language model, on a data set made by `preprocess corpus`, until the time is over."""

    data: str = option(also=("dataset_path",))
    """Data-set folder, or a JSON-lines or Arrow file of token ids."""
    run_dir: str = option(also=("output_dir",))
    """Folder to write the run to; its exports stand in RUN/exports."""
    optimizer: str = option("adamw", also=("optimizer_type",))
    """adamw, lamb (for batches of thousands of rows) or sgd."""
    clip_norm: float = option(1.0, also=("gradient_clipping",))
    """Largest norm of the global gradient; 0 for no clipping."""
    init: str | None = None
    """Checkpoint to go on from (Google, Hugging Face, a pretraining run) or a config .json. Default: random weights."""
    vocab: str | None = None
    """vocab.txt of a bare file of token ids; data sets bring their own."""
    hidden_size: int | None = None
    """Width of the encoder. Default of all sizes: those of the config or checkpoint, else of BERT-base."""
    num_hidden_layers: int | None = None
    """Transformer layers."""
    num_attention_heads: int | None = None
    """Heads a layer."""
    intermediate_size: int | None = None
    """Width of the feed-forward layers."""
    hidden_act: str | None = None
    """gelu, gelu_new, gelu_tanh, relu, silu or tanh."""
    hidden_dropout_prob: float | None = None
    """Dropout after embeddings and dense layers."""
    attention_probs_dropout_prob: float | None = None
    """Dropout on attention probabilities."""
    max_position_embeddings: int | None = None
    """Longest row that the model can take."""
    type_vocab_size: int | None = None
    """Number of segments."""
    initializer_range: float | None = None
    """Standard deviation of new weights."""
    layer_norm_eps: float | None = None
    """What is added to the variance in norms."""
    encoder_ln_mode: str | None = None
    """post-ln (BERT) or pre-ln (trains at higher rates)."""
    sentence_pairs: str | None = None
    """Also tell pairs apart: nsp (next sentence), sop (sentence order) or none. Default: what the data set was made
    with."""
    masked_lm_prob: float = 0.15
    """Share of the tokens of a row that are masked, anew in each epoch."""
    mask_unit: str = "token"
    """What is masked together: token, word (whole words) or ngram (runs of words); the last two need a data set made
    with --whole_words."""
    mask_share: float = 0.8
    """Share of the masked tokens that read [MASK]."""
    random_share: float = 0.1
    """Share of the masked tokens that read a random token; the rest stay as they are."""
    max_ngram: int = 10
    """Most words of a masked n-gram."""
    train_batch_size: int = 4096
    """Rows a step over all devices."""
    train_micro_batch_size_per_gpu: int = 32
    """Rows that a device computes at a time; gradients are added up to --train_batch_size."""
    warmup_batch_size: int | None = None
    """Rows a step at the beginning; doubles up to --train_batch_size over the first --batch_warmup_rows rows."""
    batch_warmup_rows: int = 0
    """Rows after which steps have their full size; with --warmup_batch_size."""
    lr: float = 1e-3
    """Highest learning rate."""
    lr_schedule: str = "time"
    """What the rate follows: time (of --total_training_time), step (of --max_steps) or constant_step (stays after the
    warm-up)."""
    curve: str = "linear"
    """How it falls after the warm-up: linear, exp or cosine."""
    warmup_proportion: float = 0.06
    """Share of the time (or of --max_steps) in which it rises."""
    num_warmup_steps: int | None = None
    """Steps in which it rises, for step and constant_step, in place of --warmup_proportion of --max_steps."""
    adam_beta1: float = 0.9
    """Decay of the first moment, for adamw and lamb."""
    adam_beta2: float = 0.98
    """Decay of the second moment."""
    adam_eps: float = 1e-6
    """What is added to its root."""
    fp16: bool = False
    """The same as --mixed_precision float16."""
    total_training_time: float = 24.0
    """Hours of the whole run, over all its processes; validation and saving count."""
    early_exit_time_marker: float | None = None
    """Hours after which to stop, on the schedule of --total_training_time; a later mark lets the run go on."""
    max_steps: int = 0
    """Steps after which to stop; 0 for any number."""
    num_epochs: int = 1_000_000
    """Epochs after which to stop."""
    finetune_time_markers: str | None = None
    """Shares of the time at which to export the model, such as 0.5,0.6,0.9; RUN/exports/end is written in any case."""
    num_epochs_between_checkpoints: float = 0.0
    """Epochs between two saves of the whole state, may be a fraction, as well as --save_minutes; 0 or less for none."""
    print_steps: int = 100
    """Steps a line of the log."""
    do_validation: bool = True
    """Validate on the val part, on the same rows with the same masks each time."""
    validation_epochs: float = 3.0
    """Epochs between two validations; may be a fraction."""
    validation_epochs_begin: float = 1.0
    """The same in the first part of the time."""
    validation_epochs_end: float = 1.0
    """The same in the last part."""
    validation_begin_proportion: float = 0.05
    """Share of the time that is the first part."""
    validation_end_proportion: float = 0.01
    """Share of the time that is the last part."""
    validation_micro_batch: int = 16
    """Rows that a device validates at a time."""
    validation_rows: int = 10_000
    """Rows of the val part that are looked at, from its beginning; 0 for all."""
    use_early_stopping: bool = False
    """Stop a run that has not come below --early_stop_eval_loss after --early_stop_time."""
    early_stop_time: float = 180.0
    """Minutes of training time."""
    early_stop_eval_loss: float = 6.0
    """Validation loss, nats."""

    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "encoder_ln_mode": LN_MODES,
        "sentence_pairs": PAIR_KINDS,
        "mask_unit": UNITS,
        "lr_schedule": LR_SCHEDULES,
        "curve": CURVES,
    }
    least: ClassVar[Mapping[str, float]] = {
        "max_ngram": 1,
        "train_batch_size": 1,
        "train_micro_batch_size_per_gpu": 1,
        "warmup_batch_size": 1,
        "batch_warmup_rows": 0,
        "num_warmup_steps": 0,
        "max_steps": 0,
        "num_epochs": 1,
        "print_steps": 1,
        "validation_micro_batch": 1,
        "validation_rows": 0,
    }
    ranges: ClassVar[Mapping[str, Range]] = {
        "masked_lm_prob": (0, False, 1, True),
        "mask_share": (0, True, 1, True),
        "random_share": (0, True, 1, True),
        "lr": (0, False, math.inf, False),
        "warmup_proportion": (0, True, 1, True),
        "adam_beta1": (0, True, 1, False),
        "adam_beta2": (0, True, 1, False),
        "adam_eps": (0, False, math.inf, False),
        "total_training_time": (0, False, math.inf, False),
        "early_exit_time_marker": (0, False, math.inf, False),
        "num_epochs_between_checkpoints": (-math.inf, False, math.inf, False),
        "validation_epochs": (0, False, math.inf, False),
        "validation_epochs_begin": (0, False, math.inf, False),
        "validation_epochs_end": (0, False, math.inf, False),
        "validation_begin_proportion": (0, True, 1, True),
        "validation_end_proportion": (0, True, 1, True),
        "early_stop_time": (0, True, math.inf, False),
        "early_stop_eval_loss": (0, False, math.inf, False),
    }

    def check_together(self) -> None:
        """As the base."""
        super().check_together()
        if self.finetune_time_markers is not None:
            parse_markers(self.finetune_time_markers)
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"--mask_share and --random_share are at most 1 together. Received: {self.mask_share} and "
                f"{self.random_share}."
            )
        if (self.early_exit_time_marker or 0) > self.total_training_time:
            raise ConfigError(
                "--early_exit_time_marker is at most --total_training_time, hours both. Received: "
                f"{self.early_exit_time_marker} and {self.total_training_time}."
            )
        if self.use_early_stopping and not self.do_validation:
            raise ConfigError("--use_early_stopping needs a validation loss. Received: --no_do_validation.")
        if self.use_early_stopping and self.early_stop_time >= 60 * self.total_training_time:
            raise ConfigError(
                "--early_stop_time (minutes) must be below --total_training_time (hours). Received: "
                f"{self.early_stop_time} minutes and {self.total_training_time} hours."
            )
        if self.fp16 and self.mixed_precision not in ("none", "float16"):
            raise ConfigError(
                f"--fp16 is --mixed_precision float16. Received: {self.mixed_precision}. Give one of them."
            )
        if self.lr_schedule == "step" and not self.max_steps:
            raise ConfigError("--lr_schedule step needs --max_steps. Received: none.")
        if self.lr_schedule == "time" and self.num_warmup_steps is not None:
            raise ConfigError(
                "--lr_schedule time warms up for --warmup_proportion of the time. Received: --num_warmup_steps."
            )
        if (self.warmup_batch_size is None) != (not self.batch_warmup_rows):
            raise ConfigError(
                "--warmup_batch_size and --batch_warmup_rows go together. Received: "
                f"{self.warmup_batch_size} and {self.batch_warmup_rows}."
            )
        if (self.warmup_batch_size or 0) > self.train_batch_size:
            raise ConfigError(
                "--warmup_batch_size is at most --train_batch_size. Received: "
                f"{self.warmup_batch_size} and {self.train_batch_size}."
            )

    @property
    def precision(self) -> str:
        return "float16" if self.fp16 else self.mixed_precision

    @property
    def limit_s(self) -> float:
        """Seconds of training time at which the run ends."""
        hours = self.early_exit_time_marker
        return 3600 * (self.total_training_time if hours is None else hours)

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that were given."""
        return {name: getattr(self, name) for name in _SIZES if getattr(self, name) is not None}


@dataclass(frozen=True)
class _Job:
    """A run whose settings, data and checkpoint were found to go together."""

    config: PretrainConfig
    folder: RunFolder
    data: DataSet
    train: RowStore
    val: RowStore | None
    pairs: str
    vocab: Path
    bert: BertConfig
    init: Init | None
    feed: FeedSettings
    strategy: tf.distribute.Strategy

    @property
    def stores(self) -> dict[str, RowStore]:
        return {"train": self.train} | ({"val": self.val} if self.val is not None else {})

    @property
    def cased(self) -> bool | None:
        """Whether the texts kept their case; None where nobody knows."""
        return self.data.manifest.encoding_settings().cased if self.data.manifest else None

    def plan(self, epoch: int) -> GrowingPlan:
        config = self.config
        return GrowingPlan(
            self.train.lengths,
            config.train_batch_size,
            window=config.shuffle_window,
            seed=config.seed,
            epoch=epoch,
            length_multiple=config.length_multiple,
            start_rows=config.warmup_batch_size or config.train_batch_size,
            growing_rows=config.batch_warmup_rows,
        )


def run(config: PretrainConfig) -> None:
    """Trains, and leaves the run folder with its exports.

    Raises:
        TfbertError: settings, data or weights are wrong, or the loss is not finite.
    """
    run_in_folder(config, _prepare, _train)


def _prepare(settings: PretrainConfig, folder: RunFolder) -> _Job:
    """Everything that can be refused is refused here: what costs nothing first, what reads all rows last."""
    data = DataSet.open(settings.data)
    if settings.do_validation and "val" not in data.parts:
        raise DataError(
            f"{data.path}: validation needs a val part. Received: {', '.join(data.parts)} ("
            f"{', '.join(path.name for path in data.parts.values())}). Make the data set with a larger --val_fraction, "
            "or give --no_do_validation."
        )
    pairs = _pairs(settings, data)
    init = find_init(settings.init, data.manifest.vocab_size if data.manifest else None) if settings.init else None
    vocab = _vocabulary(settings, data, init)
    vocabulary = Vocabulary.load(vocab)
    bert = _sizes(settings, init, len(vocabulary))
    notice = check_vocabulary(bert, len(vocabulary), str(vocab))
    if notice:
        logger.info("%s", notice)
    masking = Masking.of(
        vocabulary,
        rate=settings.masked_lm_prob,
        unit=settings.mask_unit,
        mask_share=settings.mask_share,
        random_share=settings.random_share,
        max_ngram=settings.max_ngram,
        seed=settings.seed,
    )
    strategy = make_strategy(settings.devices, settings.deterministic, settings.cluster, settings.cluster_timeout)
    _check_batch(settings, strategy.num_replicas_in_sync)
    train = _store(data, "train")
    val = _store(data, "val") if settings.do_validation else None
    max_len = longest(data, [store for store in (train, val) if store is not None])
    check_positions(bert, max_len)
    if pairs != "none":
        for store in (train, val):
            if store is not None:
                store.check_labels(2)
    data.verify(folder.verified)
    feed = FeedSettings(
        pad_id=vocabulary.pad_id,
        max_len=max_len,
        length_multiple=settings.length_multiple,
        pad_to_max=settings.pad_to_max,
        task="classify" if pairs != "none" else None,
        num_classes=2,
        vocab_size=bert.vocab_size,
        type_vocab_size=bert.type_vocab_size,
        masking=masking,
    )
    return _Job(settings, folder, data, train, val, pairs, vocab, bert, init, feed, strategy)


def _check_batch(settings: PretrainConfig, replicas: int) -> None:
    smallest = settings.warmup_batch_size or settings.train_batch_size
    if smallest < replicas:
        raise ConfigError(f"A step has at least one row a device. Received: {smallest} rows, {replicas} devices.")


def _store(data: DataSet, part: str) -> RowStore:
    store = data.store(part)
    if not len(store):
        raise DataError(f"{store.path}: there must be rows in a part. Received: a file without rows.")
    return store


def _pairs(settings: PretrainConfig, data: DataSet) -> str:
    """Which pairs there are to learn from."""
    corpus = data.manifest.corpus if data.manifest is not None else None
    there = str(corpus["pairs"]) if corpus else None
    wanted = settings.sentence_pairs
    if wanted is None:
        return there or "none"
    if wanted != "none" and data.manifest is not None and wanted != there:
        raise ConfigError(
            f"--sentence_pairs {wanted} needs rows that were made so. Received: {data.path}, with "
            f"{there or 'none'}. Make the data set with `preprocess corpus --pairs {wanted}`."
        )
    return wanted


def _vocabulary(settings: PretrainConfig, data: DataSet, init: Init | None) -> Path:
    if data.vocab is not None:
        if settings.vocab is not None:
            raise ConfigError(f"--vocab is for bare files of token ids. Received: {data.path}, which brings its own.")
        return data.vocab
    beside = (data.path if data.path.is_dir() else data.path.parent) / "vocab.txt"
    found = [Path(settings.vocab)] if settings.vocab else [beside, *([init.vocab] if init and init.vocab else [])]
    for path in found:
        if path.is_file():
            return path
    raise ConfigError(
        f"Masking needs the vocabulary that the token ids belong to. Received: no {found[0]}. Give it by --vocab."
    )


def _sizes(settings: PretrainConfig, init: Init | None, num_tokens: int) -> BertConfig:
    """Sizes of the model: of the flags, on top of those of a config; those of a checkpoint hold."""
    if init is None:
        return BertConfig(num_tokens, **settings.sizes)
    if init.kind == "run":
        raise ConfigError(
            f"--init names a model that knows masked tokens. Received: {settings.init}, a run of `train.py classify`."
        )
    if init.kind == "config":
        return replace(init.config, **settings.sizes)
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    wrong = [
        f"--{name} {value}, {getattr(init.config, name)} there"
        for name, value in settings.sizes.items()
        if name not in dropouts and value != getattr(init.config, name)
    ]
    if wrong:
        raise ConfigError(f"The sizes of a checkpoint hold. Received: {'; '.join(wrong)}. Leave them out.")
    return replace(init.config, **{name: value for name, value in settings.sizes.items() if name in dropouts})


class _StepsOfEpochs(dict[int, int]):
    """Epoch number -> steps; counted when they are asked for, for there is no telling how many there will be."""

    def __init__(self, job: _Job):
        super().__init__()
        self._job = job

    def __missing__(self, epoch: int) -> int:
        self[epoch] = steps = self._job.plan(epoch).num_batches
        return steps


def _train(job: _Job, stop: StopSignals) -> None:
    config, folder, strategy = job.config, job.folder, job.strategy
    agreement = Agreement(strategy)
    is_chief = not agreement.rank
    clock = Clock(3600 * config.total_training_time, folder.state / "clock.json" if is_chief else None)
    clock.share(agreement)
    policy = set_precision(config.precision, strategy)
    log_devices(strategy, config.train_batch_size)
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = MaskedLM(job.bert, pooler=True, pair_head=job.pairs != "none", dtype=policy)
        if job.init is not None:
            loaded = load_masked_lm(model, job.init)
            logger.info("weights from %s (%s): %d tensors loaded", job.init.path, job.init.kind, loaded)
        trained = model.trainable_variables
        if (
            job.pairs == "none"
        ):  # nothing looks at [CLS]; the pooler is kept as it is, for the heads that begin with one
            trained = [
                v for v in trained if all(v is not unused for unused in model.encoder.pooler.trainable_variables)
            ]
        optimizer = _optimizer(config, trained)
    names = job.data.manifest.label_names if job.data.manifest else []
    shape = {"pooler": True, "pair_head": model.has_pair_head}
    if is_chief:
        folder.write_description(config, job.bert, shape, job.data.manifest, job.vocab, names)
        job.data.remember(folder.verified)
    replica_rows = -(-config.train_batch_size // strategy.num_replicas_in_sync)
    objective = MaskedLanguageModel(model, job.pairs)
    trainer = Trainer(
        objective,
        optimizer,
        strategy,
        _rate(config, clock),
        accumulate=-(-replica_rows // config.train_micro_batch_size_per_gpu),
        seed=config.seed,
        micro_rows=config.train_micro_batch_size_per_gpu,
        gradient_dtype=config.gradient_dtype,
    )
    num_weights = sum(int(np.prod(v.shape)) for v in trained)
    run = _Run(job, trainer, clock, agreement, stop, num_weights)
    run.take_up()
    run.go_on()
    run.finish()


def _optimizer(config: PretrainConfig, trained: Sequence[Any]) -> Any:
    adam = {"beta_1": config.adam_beta1, "beta_2": config.adam_beta2, "epsilon": config.adam_eps}
    return make_optimizer(
        config.optimizer,
        trained,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm or None,
        loss_scaling=config.precision == "float16",
        **({} if config.optimizer == "sgd" else adam),
    )


def _rate(config: PretrainConfig, clock: Clock) -> Schedule:
    if config.lr_schedule == "time":
        return lambda step: config.lr * rate_factor(clock.progress, config.warmup_proportion, config.curve)
    steps, rising = config.max_steps, config.num_warmup_steps
    if config.lr_schedule == "step":
        warmup = config.warmup_proportion if rising is None else min(1.0, rising / steps)
        # between the steps, so that neither the first nor the last has a rate of 0
        return lambda step: config.lr * rate_factor((step + 0.5) / steps, warmup, config.curve)
    least = max(1, round(config.warmup_proportion * steps) if rising is None else rising)
    return lambda step: config.lr * min(1.0, (step + 1) / least)


class _Run:
    """A run under way: its callbacks, its state and its end."""

    def __init__(
        self,
        job: _Job,
        trainer: Trainer,
        clock: Clock,
        agreement: Agreement,
        stop: StopSignals,
        num_weights: int,
    ):
        config, folder = job.config, job.folder
        self.is_chief = not agreement.rank
        self.job, self.trainer, self.clock = job, trainer, clock
        self.steps = _StepsOfEpochs(job)
        markers = parse_markers(config.finetune_time_markers) if config.finetune_time_markers else []
        self.exports = folder.path / EXPORTS
        folders = [self.exports / f"{marker:g}" for marker in markers]
        self.budget = Budget(trainer, clock, config.limit_s, markers, folders, self._export, config.max_steps)
        self.forecast = Forecast(trainer, clock, config.limit_s, self.steps, len(job.train), num_weights)
        train_names = ["loss", *trainer.objective.logs(dict.fromkeys(trainer.objective.sums, 0.0))]
        val_names = [f"val_{name}" for name in train_names] if job.val is not None else []
        log = StepLog(
            folder.path, trainer, clock, self.steps, config.print_steps, train_names, val_names, self.is_chief
        )
        self.validation = self._validation(log, stop)
        remembering: dict[str, Any] = {"clock": clock, "forecast": self.forecast}
        if self.validation is not None:
            remembering["validation"] = self.validation
        self.saver = SaveState(
            folder.state,
            trainer,
            _STAGE,
            remembering,
            self.steps,
            stop,
            every_minutes=config.save_minutes,
            every_steps=config.save_steps,
            data=job.data.mark(job.stores),
            every_epochs=max(0.0, config.num_epochs_between_checkpoints),
            agreement=agreement,
        )
        before: list[keras.callbacks.Callback] = []
        if config.row_log and self.is_chief:
            before.append(RowLog(folder.path, _STAGE, trainer, job.plan))
        if job.strategy.num_replicas_in_sync > 1:
            before.append(ParallelReport(folder.path, trainer, writes=self.is_chief))
        before += [SharedTime(trainer, clock, agreement), self.forecast]
        before += [self.validation] if self.validation is not None else []
        self.callbacks = [*before, self.budget, log, self.saver]
        self.is_done = False

    def _validation(self, log: StepLog, stop: StopSignals) -> ScheduledValidation | None:
        job, config = self.job, self.job.config
        if job.val is None:
            return None
        objective = self.trainer.objective
        validate = MaskedValidation(
            job.val,
            job.feed,
            objective,
            job.strategy,
            config.validation_micro_batch,
            config.validation_rows,
            interrupted=lambda: stop.received is not None,
        )
        rows = validate.plan.num_rows
        logger.info("validation on %s of %s rows, the same each time", f"{rows:,}", f"{len(job.val):,}")
        times = ValidationTimes(
            config.validation_epochs,
            config.validation_epochs_begin,
            config.validation_epochs_end,
            config.validation_begin_proportion,
            config.validation_end_proportion,
        )
        early = EarlyStop(60 * config.early_stop_time, config.early_stop_eval_loss)
        return ScheduledValidation(
            self.trainer,
            self.clock,
            self.steps,
            times,
            validate,
            log,
            early if config.use_early_stopping else None,
            lambda: self.budget.is_over,
        )

    def _export(self, folder: Path) -> bool:
        return self.is_chief and export(folder, self.trainer.model, self.job.folder.path / "vocab.txt", self.job.cased)

    def take_up(self) -> None:
        """The state that an earlier process saved, if there is one."""
        state = last_state(self.job.folder, self.saver.data, self.job.config)
        if state is None:
            return
        with self.job.strategy.scope():
            self.saver.restore(*state)
        self.clock.agree(self.trainer.step)
        self.is_done = self.validation is not None and self.validation.failed
        logger.info(
            "going on at step %d, epoch %.3g, after %.3f h of training time",
            self.trainer.step,
            self.trainer.epoch + self.trainer.epoch_step / self.steps[self.trainer.epoch],
            self.clock.spent_s / 3600,
        )

    def go_on(self) -> None:
        """Trains until the time is over; validates and writes the last line of the log."""
        job, trainer = self.job, self.trainer
        self.clock.agree(trainer.step)
        is_over = self.is_done or self.budget.is_over
        epochs = range(trainer.epoch, trainer.epoch if is_over else job.config.num_epochs)
        replicas, worker = job.strategy.num_replicas_in_sync, worker_of(job.strategy)

        def batches_of(plan: EpochPlan, start: int) -> Iterator[Batch]:
            return plan_batches(job.train, plan, job.feed, replicas, start, worker)

        train_epochs(trainer, epochs, job.plan, batches_of, job.config.num_epochs, self.callbacks)

    def finish(self) -> None:
        """The exports that are due, and the last; the other workers wait for the chief."""
        if self.is_chief:
            self.budget.export_passed()
            self._export(self.exports / LAST_EXPORT)
            self.job.folder.finish()
        sum_over_workers(self.job.strategy, np.zeros(1))
        logger.info(
            "done: %s steps, %s rows, %s tokens, %.3g tokens a parameter in %.3f h of training time; model in %s",
            f"{self.trainer.step:,}",
            f"{self.forecast.rows:,.0f}",
            f"{self.forecast.tokens:,.0f}",
            self.forecast.tokens / self.forecast.num_weights,
            self.clock.spent_s / 3600,
            self.exports / LAST_EXPORT,
        )
