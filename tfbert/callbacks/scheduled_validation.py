"""Validate every so many epochs or parts of them, more often at the beginning and at the end of the time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import keras

from tfbert.callbacks.step_log import StepLog
from tfbert.errors import TrainingError
from tfbert.loop.clock import Clock
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger


@dataclass(frozen=True)
class ValidationTimes:
    """When it is time to validate.

    Args:
        epochs: between two validations; may be a fraction.
        epochs_begin: the same in the first part of the time.
        epochs_end: the same in the last part.
        begin_proportion: share of the time that is the first part.
        end_proportion: share that is the last.
    """

    epochs: float
    epochs_begin: float
    epochs_end: float
    begin_proportion: float
    end_proportion: float

    def interval(self, progress: float) -> float:
        """Epochs between two validations at a share of the time."""
        if progress < self.begin_proportion:
            return self.epochs_begin
        return self.epochs_end if progress >= 1 - self.end_proportion else self.epochs


@dataclass(frozen=True)
class EarlyStop:
    """A run that has not come below `loss` after `after_s` seconds of the clock has failed."""

    after_s: float
    loss: float


class ScheduledValidation(keras.callbacks.Callback):
    """Validates when it is time, and stops a run that has failed.

    Put it before the log and whatever looks whether the run was stopped.

    Args:
        trainer: for its position.
        clock: of the run.
        steps: epoch number -> steps of the epoch.
        times: when.
        validate: gives the numbers of the val part, or None where it was interrupted.
        log: is told what they are.
        early_stop: or None.
        is_over: whether the run ends at this step anyway; then nothing is validated, which would take time.

    Raises:
        TrainingError: the validation loss is not finite.
    """

    remembered = ("last", "judged", "failed")  # what a run that goes on needs

    def __init__(
        self,
        trainer: Trainer,
        clock: Clock,
        steps: Mapping[int, int],
        times: ValidationTimes,
        validate: Callable[[], dict[str, float] | None],
        log: StepLog,
        early_stop: EarlyStop | None,
        is_over: Callable[[], bool],
    ):
        super().__init__()
        self.trainer, self.clock, self.steps, self.times = trainer, clock, steps, times
        self.log, self.early_stop = log, early_stop
        self._validate, self._is_over = validate, is_over
        self.last = 0.0  # epochs at the last validation
        self.failed = False  # whether the early stop ended the run
        self.judged = False  # whether a validation took place after the time of the early stop

    @property
    def epochs(self) -> float:
        """Epochs of the run so far."""
        return self.trainer.epoch + self.trainer.epoch_step / self.steps[self.trainer.epoch]

    def on_train_batch_end(self, batch, logs=None):
        due = self.epochs - self.last >= self.times.interval(self.clock.progress) - 1e-9
        late = self.early_stop is not None and not self.judged and self.clock.spent_s >= self.early_stop.after_s
        if (due or late) and not self._is_over():
            self.validate()

    def on_train_end(self, logs=None):
        if self.epochs > self.last:
            self.validate()

    def validate(self) -> None:
        """Validates now."""
        numbers = self._validate()
        if numbers is None:
            return
        if not math.isfinite(numbers["loss"]):
            raise TrainingError(
                f"The validation loss must be finite. Received: {numbers['loss']} at step {self.trainer.step}. The "
                "last state and the exports are kept. Lower the learning rate, or warm up longer."
            )
        self.clock.agree(self.trainer.step)  # it took time
        self.last = self.epochs
        self.log.validated = {f"val_{name}": value for name, value in numbers.items()}
        stop = self.early_stop
        if stop is None or self.clock.spent_s < stop.after_s:
            return
        self.judged = True
        if numbers["loss"] > stop.loss:
            logger.warning(
                "stopping early: after %.1f minutes the validation loss is %.4g, above %g",
                self.clock.spent_s / 60,
                numbers["loss"],
                stop.loss,
            )
            self.failed = self.model.stop_training = True
