"""Stop when the time is over, and export the model on the way there."""

from collections.abc import Callable, Sequence
from pathlib import Path

import keras

from tfbert.errors import ConfigError
from tfbert.loop.agreement import Agreement
from tfbert.loop.clock import Clock
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger


def parse_markers(text: str) -> list[float]:
    """`"0.9, 0.5"` -> [0.5, 0.9]: shares of the time, in order.

    Raises:
        ConfigError: one is not a number above 0 and at most 1, or stands twice.
    """
    try:
        markers = sorted(float(word) for word in text.split(","))
    except ValueError:
        markers = [0.0]
    if not all(0 < marker <= 1 for marker in markers) or len(set(markers)) < len(markers):
        raise ConfigError(
            "--finetune_time_markers are different shares of the time, above 0 and at most 1, joined by commas. "
            f"Received: {text!r}."
        )
    return markers


class SharedTime(keras.callbacks.Callback):
    """Has several workers agree on the time; put it before whatever decides by the clock.

    Args:
        trainer: for the number of the step.
        clock: of the run.
        agreement: of the workers.
    """

    def __init__(self, trainer: Trainer, clock: Clock, agreement: Agreement):
        super().__init__()
        self.trainer, self.clock, self.agreement = trainer, clock, agreement

    def on_train_begin(self, logs=None):
        self.clock.agree(self.trainer.step)

    def on_train_batch_end(self, batch, logs=None):
        if self.agreement.is_due(self.trainer.step):
            self.clock.agree(self.trainer.step)


class Budget(keras.callbacks.Callback):
    """Looks at the clock after every step: exports once for each marker that was passed, stops at the limit.

    What was exported is told by the folders, so a marker has one export over any number of processes.

    Args:
        trainer: for the number of steps.
        clock: of the run.
        limit_s: seconds of the clock after which no step begins.
        markers: shares of the clock's whole, in order.
        folders: of the exports; one a marker.
        export: writes the model to a folder, unless it is there; tells whether it wrote.
        max_steps: steps after which the run ends as well; 0 for any number.
    """

    def __init__(
        self,
        trainer: Trainer,
        clock: Clock,
        limit_s: float,
        markers: Sequence[float] = (),
        folders: Sequence[Path] = (),
        export: Callable[[Path], bool] | None = None,
        max_steps: int = 0,
    ):
        super().__init__()
        self.trainer, self.clock, self.limit_s, self.max_steps = trainer, clock, limit_s, max_steps
        self._markers, self._export = list(zip(markers, folders, strict=True)), export

    @property
    def is_over(self) -> bool:
        """Whether no more steps may be taken."""
        return self.clock.spent_s >= self.limit_s or 0 < self.max_steps <= self.trainer.step

    def export_passed(self) -> None:
        """Exports for the markers that the clock has passed."""
        while self._markers and self.clock.progress >= self._markers[0][0]:
            marker, folder = self._markers.pop(0)
            if self._export is not None and self._export(folder):
                logger.info("%.0f %% of the time is over: exported to %s", 100 * marker, folder)

    def on_train_batch_end(self, batch, logs=None):
        self.clock.beat()
        self.export_passed()
        if self.is_over and not self.model.stop_training:
            self.model.stop_training = True
            spent = self.clock.spent_s
            logger.info("stopping at step %d after %s of training time", self.trainer.step, _duration(spent))


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.3f} h" if seconds >= 600 else f"{seconds:.1f} s"
