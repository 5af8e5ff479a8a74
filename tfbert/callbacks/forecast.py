"""Tell, from the first steps, what will have been done when the time is over."""

import time
from collections.abc import Mapping

import keras

from tfbert.loop.clock import Clock
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger

_STEPS, _SECONDS = 50, 20.0  # of measuring, whichever is over first


class Forecast(keras.callbacks.Callback):
    """Measures the first steps of a process behind the very first, which is compiled, and says once what will come.

    Args:
        trainer: whose rows and tokens count.
        clock: of the run.
        limit_s: seconds of the clock at which the run ends.
        steps: epoch number -> steps of the epoch.
        num_rows: rows of an epoch.
        num_weights: trained parameters.
    """

    remembered = ("rows_before", "tokens_before")  # what a run that goes on needs

    def __init__(
        self, trainer: Trainer, clock: Clock, limit_s: float, steps: Mapping[int, int], num_rows: int, num_weights: int
    ):
        super().__init__()
        self.trainer, self.clock, self.limit_s, self.steps = trainer, clock, limit_s, steps
        self.num_rows, self.num_weights = num_rows, num_weights
        self.rows_before = self.tokens_before = 0.0  # of the epochs before this one
        self._first: tuple[float, float, float, float, int] | None = None  # clock, time, rows, tokens, step
        self._said = False
        self._is_counted = False  # the totals of the trainer are those of an epoch before

    @property
    def rows(self) -> float:
        """Rows of the run so far."""
        return self.rows_before + (0.0 if self._is_counted else self.trainer.totals.rows)

    @property
    def tokens(self) -> float:
        """Tokens of the run so far, special ones included, padding not."""
        return self.tokens_before + (0.0 if self._is_counted else self.trainer.totals.tokens)

    def on_train_batch_end(self, batch, logs=None):
        if self._said:
            return
        if self._first is None:
            self.trainer.flush()  # waits for the step
            self._first = (self.clock.spent_s, time.perf_counter(), self.rows, self.tokens, self.trainer.step)
            return
        begun, started, rows, tokens, step = self._first
        if self.trainer.step - step < _STEPS and self.clock.spent_s - begun < _SECONDS:
            return
        self.trainer.flush()
        elapsed = time.perf_counter() - started
        self._said = True
        self.say((self.rows - rows) / elapsed, (self.tokens - tokens) / elapsed, (self.trainer.step - step) / elapsed)

    def on_epoch_begin(self, epoch, logs=None):
        self._is_counted = False

    def on_epoch_end(self, epoch, logs=None):
        if self.trainer.epoch_step == self.steps[epoch]:  # else it may go on in another process
            self.rows_before, self.tokens_before = self.rows, self.tokens
            self._is_counted = True

    def say(self, rows_per_s: float, tokens_per_s: float, steps_per_s: float) -> None:
        """Logs what will be finished at the limit, at this speed."""
        left = max(0.0, self.limit_s - self.clock.spent_s)
        rows, tokens = self.rows + rows_per_s * left, self.tokens + tokens_per_s * left
        logger.info(
            "%.0f rows/s, %.0f tokens/s, %.3g s a step. By the end in %s, without validation and saving: %s more steps "
            "of this size; in all %s rows, %s tokens, %.3g epochs, %.3g tokens a parameter",
            rows_per_s,
            tokens_per_s,
            1 / steps_per_s,
            f"{left / 3600:.2f} h" if left >= 3600 else f"{left / 60:.1f} min",
            f"{steps_per_s * left:,.0f}",
            f"{rows:,.0f}",
            f"{tokens:,.0f}",
            rows / self.num_rows,
            tokens / self.num_weights,
        )
