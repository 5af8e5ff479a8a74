"""Settings that several recipes share, and the checks of their values; nothing here imports TensorFlow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tfbert.choices import OPTIMIZERS
from tfbert.choices import SCHEDULES as RATE_SCHEDULES
from tfbert.cluster import Cluster, find_cluster
from tfbert.data.sampling import SAMPLINGS
from tfbert.devices import check_devices
from tfbert.errors import ConfigError

SCHEDULES = (*RATE_SCHEDULES, "plateau")
RATE_SCALES = ("none", "linear", "sqrt")
_MAX_SEED = 2**31 - 1
Range = tuple[float, bool, float, bool]  # lowest and highest number, each with whether it is allowed


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuses a word that is not among `choices`."""
    if value not in choices:
        raise ConfigError(f"--{name} is one of {', '.join(choices)}. Received: {value!r}.")


def check_least(name: str, value: float, minimum: float) -> None:
    """Refuses a number below `minimum`."""
    if value < minimum:
        raise ConfigError(f"--{name} must be at least {minimum}. Received: {value}.")


def check_range(name: str, value: float, low: float, with_low: bool, high: float, with_high: bool) -> None:
    """Refuses a number that is not between `low` and `high`, or not finite."""
    if not (low < value < high or (with_low and value == low) or (with_high and value == high)):  # NaN is neither
        words = f"{'at least' if with_low else 'above'} {low:g}"
        words += f" and {'at most' if with_high else 'below'} {high:g}" if high < math.inf else ""
        raise ConfigError(f"--{name} must be {words}. Received: {value}.")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every training run has. A recipe adds its own settings, and their limits to the class variables."""

    data: str
    """Data-set folder, or a JSON-lines or Arrow file of token ids."""
    run_dir: str
    """Folder to write the run to."""
    optimizer: str = "adamw"
    """adamw, lamb (for batches of thousands of rows) or sgd."""
    weight_decay: float = 0.01
    """Decoupled decay of kernels and embeddings (not of biases and norms)."""
    clip_norm: float = 1.0
    """Largest norm of the global gradient; 0 for no clipping."""
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
    row_log: bool = False
    """Write the rows of every step to rows.jsonl (about 8 bytes a row and epoch)."""
    workers: str | None = None
    """host:port of every worker, joined by commas, where several machines share the run; else TF_CONFIG tells."""
    rank: int | None = None
    """Place of this process among --workers, from 0; rank 0 writes the run folder."""
    cluster_timeout: float = 300.0
    """Seconds in which all workers must come, and the longest wait for one of them later on."""
    gradient_dtype: str = "float32"
    """What replicas send each other: float32, or bfloat16 or float16 for half the traffic."""
    seed: int = 0
    """Seed of weights, order and dropout."""
    deterministic: bool = False
    """The same bits from the same command on GPUs as well, at some cost; a CPU gives them without."""

    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "optimizer": OPTIMIZERS,
        "gradient_dtype": ("float32", "bfloat16", "float16"),
    }
    least: ClassVar[Mapping[str, float]] = {"seed": 0, "shuffle_window": 1, "length_multiple": 1, "save_steps": 0}
    ranges: ClassVar[Mapping[str, Range]] = {
        "weight_decay": (0, True, math.inf, False),
        "clip_norm": (0, True, math.inf, False),
        "save_minutes": (0, True, math.inf, False),
        "cluster_timeout": (0, False, math.inf, False),
    }

    def __post_init__(self) -> None:
        for name, choices in self._limits("choices").items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        for name, minimum in self._limits("least").items():
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name), minimum)
        for name, limits in self._limits("ranges").items():
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), *limits)
        if self.seed > _MAX_SEED:
            raise ConfigError(f"--seed must be at most {_MAX_SEED}. Received: {self.seed}.")
        check_devices(self.devices, self.mixed_precision)
        self.check_together()

    @property
    def cluster(self) -> Cluster | None:
        """The workers that share the run, or None for this process alone."""
        return find_cluster(self.workers, self.rank)

    def _limits(self, kind: str) -> dict[str, Any]:
        """Those of the class and of the ones that it builds on."""
        limits: dict[str, Any] = {}
        for owner in reversed(type(self).__mro__):
            limits |= vars(owner).get(kind, {})
        return limits

    def check_together(self) -> None:
        """Refuses settings that cannot work with each other."""


@dataclass(frozen=True, kw_only=True)
class EpochSettings(RunSettings):
    """Training for a number of epochs from given weights, with validation after each."""

    init: str
    """Where training starts: Google checkpoint, Hugging Face folder, run folder, or a config .json (random weights)."""
    epochs: int = 3
    """Epochs in which everything is trained."""
    learning_rate: float = 2e-5
    """Highest learning rate of these epochs."""
    schedule: str = "linear"
    """Behind the rise: linear, cosine, polynomial (they fall), constant, plateau (falls when --monitor stalls)."""
    schedule_power: float = 1.0
    """Power of the polynomial fall; above 1 it falls faster at first."""
    end_learning_rate: float = 0.0
    """Where a fall ends, and below which plateau does not go."""
    warmup: float = 0.06
    """Share of a stage's steps in which the learning rate rises."""
    warmup_steps: int | None = None
    """Steps of a stage in which it rises, in place of --warmup."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer of the encoder to the one below; the head has the full rate."""
    plateau_factor: float = 0.5
    """What the plateau schedule multiplies the learning rate with."""
    plateau_patience: int = 1
    """Epochs without improvement before it does."""
    ema: float = 0.0
    """Decay of a moving average of the weights, such as 0.999, that is validated and kept instead; 0 for none."""
    fgm: float = 0.0
    """How far a second, adversarial pass moves the word embeddings (FGM), such as 1; 0 for no such pass."""
    nan_retries: int = 0
    """Times that a stage whose loss is not finite goes back to its last state, at a lower rate; 0 ends the run."""
    nan_rate_factor: float = 0.5
    """What the learning rate is then multiplied with."""
    spike_deviations: float = 6.0
    """A loss so many standard deviations above its running mean goes to spikes.jsonl, with the rows; 0 for none."""
    global_batch_size: int = 32
    """Rows a step over all devices."""
    batch_per_worker: bool = False
    """--global_batch_size is that of one worker: a step has as many rows more as there are workers, and takes as many
    batches of the schedule at once."""
    scale_rate: str = "none"
    """With --batch_per_worker, what n workers multiply the learning rate with: none (1), linear (n) or sqrt (root of
    n)."""
    batch_tokens: int | None = None
    """Cut batches so that rows x padded length is at most this; --global_batch_size is then the most rows."""
    accumulate: int = 1
    """Micro-batches a step; the global batch stays the same."""
    micro_batch_size: int | None = None
    """Most rows that a device computes at a time, in place of --accumulate: fewer workers take more micro-batches."""
    auto_accumulate: bool = False
    """Find the fewest micro-batches that fit into memory, by trying; --accumulate is then the least."""
    memory_gb: float | None = None
    """What the process may take where a CPU trains with --auto_accumulate, in GB of 10^9 bytes."""
    sampling: str = "none"
    """Rows of an epoch: none (each once), balanced (as many of every class) or sqrt (between the two)."""
    monitor: str | None = None
    """Number that decides which weights are best and when to stop. Default: val_loss where there is a val part, or what
    results of a published task are published by."""
    mode: str | None = None
    """Which way --monitor gets better: min or max; needed where it is not a loss."""
    eval_steps: int = 0
    """Steps between two validations inside of an epoch, beside those at its end (evaluations.tsv); 0 for none."""
    patience: int = 0
    """Stop after this many epochs without improvement; 0 never stops early."""

    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "schedule": SCHEDULES,
        "scale_rate": RATE_SCALES,
        "mode": ("min", "max"),
        "sampling": SAMPLINGS,
    }
    least: ClassVar[Mapping[str, float]] = {
        "epochs": 0,
        "patience": 0,
        "eval_steps": 0,
        "plateau_patience": 1,
        "global_batch_size": 1,
        "accumulate": 1,
        "micro_batch_size": 1,
        "batch_tokens": 1,
        "warmup_steps": 0,
        "nan_retries": 0,
    }
    ranges: ClassVar[Mapping[str, Range]] = {
        "learning_rate": (0, False, math.inf, False),
        "plateau_factor": (0, False, 1, False),
        "warmup": (0, True, 1, True),
        "memory_gb": (0, False, math.inf, False),
        "nan_rate_factor": (0, False, 1, True),
        "spike_deviations": (0, True, math.inf, False),
        "fgm": (0, True, math.inf, False),
        "ema": (0, True, 1, False),
        "schedule_power": (0, False, math.inf, False),
        "end_learning_rate": (0, True, math.inf, False),
        "layer_decay": (0, False, 1, True),
    }

    def check_together(self) -> None:
        """As the base."""
        super().check_together()
        if self.schedule == "plateau" and 0 < self.patience <= self.plateau_patience:
            raise ConfigError(
                "--patience must be above --plateau_patience, or the rate is never lowered. "
                f"Received: {self.patience} and {self.plateau_patience}."
            )
        if self.schedule_power != 1.0 and self.schedule != "polynomial":
            raise ConfigError(
                f"--schedule_power is of the polynomial schedule. Received: {self.schedule_power} with {self.schedule}."
            )
        if self.end_learning_rate and self.schedule == "constant":
            raise ConfigError(
                f"--end_learning_rate needs a rate that falls. Received: {self.end_learning_rate} with constant."
            )
        lowest = min(self.highest_rates())
        if self.end_learning_rate >= lowest:
            raise ConfigError(
                "--end_learning_rate must be below the highest rate of every stage. "
                f"Received: {self.end_learning_rate} and {lowest}."
            )

        if self.scale_rate != "none" and not self.batch_per_worker:
            raise ConfigError(
                "The learning rate is scaled where the batch is, with --batch_per_worker. "
                f"Received: --scale_rate {self.scale_rate} without it."
            )
        if self.batch_per_worker and self.batch_tokens is not None:
            raise ConfigError(
                "Batches that are cut by tokens cannot be joined within them. Received: --batch_tokens "
                f"{self.batch_tokens} and --batch_per_worker. Leave one of the two out."
            )
        if self.micro_batch_size is not None and (self.accumulate > 1 or self.auto_accumulate):
            other = "--auto_accumulate" if self.auto_accumulate else f"--accumulate {self.accumulate}"
            raise ConfigError(
                "A step is cut into a number of micro-batches, or into ones of a size. Received: --micro_batch_size "
                f"{self.micro_batch_size} and {other}. Leave one of the two out."
            )
        if self.memory_gb is not None and not self.auto_accumulate:
            raise ConfigError(f"--memory_gb is of --auto_accumulate. Received: {self.memory_gb} without it.")
        if self.auto_accumulate and self.cluster is not None:
            raise ConfigError("--auto_accumulate tries on one machine. Received: several workers. Use --accumulate.")
        if self.fgm and not self.epochs:
            raise ConfigError(f"--fgm needs epochs that train the embeddings. Received: {self.fgm} with --epochs 0.")

    def step_batches(self, workers: int) -> int:
        """Batches of the plan that a step takes."""
        return workers if self.batch_per_worker else 1

    def rate_scale(self, workers: int) -> float:
        """What the learning rate is multiplied with.

        Source: linear, Goyal et al. 2017, arXiv 1706.02677; sqrt, Krizhevsky 2014, arXiv 1404.5997.
        """
        n = self.step_batches(workers)
        return {"none": 1.0, "linear": float(n), "sqrt": math.sqrt(n)}[self.scale_rate]

    def highest_rates(self) -> list[float]:
        """The highest learning rate of every stage."""
        return [self.learning_rate]
