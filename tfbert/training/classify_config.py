"""Settings of `train.py classify`; here, so that they are read, and raw data encoded, before TensorFlow is imported."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tfbert.choices import HEADS, LOSSES
from tfbert.data.dataset import holds_token_ids
from tfbert.data.tasks import find_task
from tfbert.errors import ConfigError
from tfbert.training.settings import EpochSettings, Range

_OF_RAW = ("vocab", "max_len", "cased", "encoded", "tfds_dir")


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(EpochSettings):
    """Train a classifier on a data set made by `preprocess encode`, or on the raw files of a published task."""

    data: str
    """Data-set folder, or a JSON-lines or Arrow file of token ids; or, with --task, the raw files of the task: its
    folder, or a prepared TensorFlow Datasets builder (its folder, or its name in --tfds_dir)."""
    task: str | None = None
    """Published task, such as glue/mrpc, whose metrics are reported; the first one decides the best weights, unless
    --monitor does. Default: that of the data set."""
    vocab: str | None = None
    """vocab.txt that raw --data are encoded with. Default: that of --init."""
    max_len: int | None = None
    """Most token ids a row of raw --data. Default: what is usual for the task."""
    cased: bool | None = None
    """Keep case and accents of raw --data. Default: as tokenizer_config.json beside the vocabulary, or the manifest of
    a run, says; else not."""
    encoded: str | None = None
    """Data-set folder that raw --data are encoded into, and taken from if they are there. Default: data/ in the run
    folder."""
    tfds_dir: str | None = None
    """Where the builder that raw --data name is prepared. Default: that of the package, ~/tensorflow_datasets."""
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
    rdrop: float = 0.0
    """Weight of R-Drop: rows pass twice, with two dropout masks, and the predictions are drawn together; 0 for none."""
    class_weights: str | None = None
    """`balanced`, or `name=number` joined by commas (classes not named weigh 1)."""
    frozen_epochs: int = 0
    """Epochs in which only the head is trained, before the others."""
    frozen_learning_rate: float = 1e-3
    """Learning rate of the frozen epochs."""

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"head": HEADS, "loss": LOSSES}
    least: ClassVar[Mapping[str, float]] = {"frozen_epochs": 0, "head_units": 1}
    ranges: ClassVar[Mapping[str, Range]] = {
        "frozen_learning_rate": (0, False, math.inf, False),
        "head_dropout": (0, True, 1, False),
        "label_smoothing": (0, True, 1, False),
        "focal_gamma": (0, True, math.inf, False),
        "rdrop": (0, True, math.inf, False),
    }

    def check_together(self) -> None:
        """As the base."""
        if self.task is not None:
            find_task(self.task)
        if self.epochs + self.frozen_epochs < 1:
            raise ConfigError("There must be at least one epoch. Received: --epochs 0 --frozen_epochs 0.")
        if self.loss == "dmi" and self.class_weights:
            raise ConfigError("The dmi loss takes no class weights. Received: --class_weights. Leave them out.")
        if self.loss == "dmi" and (self.accumulate > 1 or self.auto_accumulate):
            given = f"--accumulate {self.accumulate}" if self.accumulate > 1 else "--auto_accumulate"
            raise ConfigError(f"The dmi loss needs the whole batch at once. Received: {given}. Leave it out.")
        if self.loss == "dmi" and self.rdrop:
            raise ConfigError(f"R-Drop needs a loss of each row. Received: --rdrop {self.rdrop} with --loss dmi.")
        if self.sampling != "none" and self.class_weights == "balanced":
            raise ConfigError(
                "Rare classes are drawn more often, or weigh more. Received: --sampling "
                f"{self.sampling} with --class_weights balanced. Leave one of the two out."
            )
        super().check_together()

    def highest_rates(self) -> list[float]:
        """As the base."""
        frozen = [self.frozen_learning_rate] if self.frozen_epochs else []
        return [*frozen, *([self.learning_rate] if self.epochs else [])]

    @property
    def raw(self) -> bool:
        """Whether --data are files of the task that must be encoded first."""
        return self.task is not None and not holds_token_ids(Path(self.data))

    @property
    def data_set(self) -> Path:
        """What is trained on: --data, or what they are encoded into."""
        if not self.raw:
            return Path(self.data)
        return Path(self.encoded) if self.encoded else Path(self.run_dir) / "data"

    def check_raw(self) -> None:
        """Refuses settings of raw data where there are none.

        Raises:
            ConfigError: names them.
        """
        given = [f"--{name}" for name in _OF_RAW if getattr(self, name) is not None]
        if given and not self.raw:
            has = f"{self.data}, which holds token ids already" if self.task is not None else "no --task"
            raise ConfigError(f"Only raw data of a --task take {', '.join(given)}. Received: {has}. Leave it out.")
