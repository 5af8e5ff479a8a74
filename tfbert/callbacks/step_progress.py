"""Show how training goes: rows and tokens a second, loss, learning rate, padding, waiting for data."""

import time

import keras

from tfbert.loop.trainer import Trainer
from tfbert.progress import Progress, logger


class StepProgress(keras.callbacks.Callback):
    """A progress bar an epoch, and a line with the epoch's numbers behind it.

    Adds `rows_per_s`, `tokens_per_s`, `padding_share` and `wait_share` to the logs of an epoch.

    Args:
        trainer: whose totals are shown.
        steps: epoch number -> steps of the epoch.
        num_epochs: in all.
    """

    def __init__(self, trainer: Trainer, steps: dict[int, int], num_epochs: int):
        super().__init__()
        self.trainer, self.steps, self.num_epochs = trainer, steps, num_epochs
        self._bar: Progress | None = None

    def on_epoch_begin(self, epoch, logs=None):
        if self._bar is not None:  # of an epoch that was broken off
            self._bar.__exit__(None, None, None)
        self._bar = Progress(self.steps[epoch], " steps", f"epoch {epoch + 1}/{self.num_epochs}")
        self._start, self._wait = time.perf_counter(), self.trainer.wait_s
        self._elapsed, self._shown = 0.0, self.trainer.epoch_step
        # of an epoch that is taken up, the first part took place in another process
        self._rows, self._tokens = self.trainer.totals.rows, self.trainer.totals.tokens

    def on_train_batch_end(self, batch, logs=None):
        totals = self.trainer.totals
        self._elapsed = max(time.perf_counter() - self._start, 1e-9)
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in logs.items())
        note = (
            f"{numbers}, lr {self.trainer.current_rate:.2e}, {(totals.rows - self._rows) / self._elapsed:.0f} rows/s, "
            f"padding {totals.padding_share:.1%}"
        )
        self._bar.update(self.trainer.epoch_step - self._shown, note)
        self._shown = self.trainer.epoch_step

    def on_epoch_end(self, epoch, logs=None):
        self._bar.__exit__(None, None, None)
        totals, elapsed = self.trainer.totals, max(self._elapsed, 1e-9)
        logs["rows_per_s"] = (totals.rows - self._rows) / elapsed
        logs["tokens_per_s"] = (totals.tokens - self._tokens) / elapsed
        logs["padding_share"] = totals.padding_share
        logs["wait_share"] = (self.trainer.wait_s - self._wait) / elapsed
        shown = ", ".join(f"{name} {value:.4g}" for name, value in logs.items() if isinstance(value, float))
        logger.info("epoch %d/%d: %d steps, %s", epoch + 1, self.num_epochs, totals.steps, shown)
