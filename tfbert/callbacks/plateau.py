"""Lower the learning rate when nothing improves."""

import keras

from tfbert.callbacks.best import is_better
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger


class Plateau(keras.callbacks.Callback):
    """Multiplies the learning rate by `factor` after `patience` epochs without a better value.

    Args:
        trainer: whose rate is lowered.
        monitor: name in the logs.
        mode: min or max.
        patience: epochs.
        factor: between 0 and 1.
        min_delta: smaller changes are no improvement.
        least: what the rate is multiplied with in the end, at least.
    """

    remembered = ("best", "wait")  # what a run that goes on needs

    def __init__(
        self,
        trainer: Trainer,
        monitor: str,
        mode: str,
        patience: int,
        factor: float = 0.5,
        min_delta: float = 1e-7,
        least: float = 0.0,
    ):
        super().__init__()
        self.trainer, self.monitor, self.mode = trainer, monitor, mode
        self.patience, self.factor, self.min_delta, self.least = patience, factor, min_delta, least
        self.best: float | None = None
        self.wait = 0

    def on_epoch_end(self, epoch, logs=None):
        value = logs[self.monitor]
        if is_better(value, self.best, self.mode, self.min_delta):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.wait = 0
            lowered = max(self.trainer.rate_factor * self.factor, self.least)
            if lowered < self.trainer.rate_factor:
                change = lowered / self.trainer.rate_factor
                logger.info("epoch %d: %s on a plateau, learning rate times %g", epoch + 1, self.monitor, change)
            self.trainer.rate_factor = min(lowered, self.trainer.rate_factor)
