"""Stop when nothing improves any more."""

import keras

from tfbert.callbacks.best import is_better
from tfbert.progress import logger


class EarlyStop(keras.callbacks.Callback):
    """Stops after `patience` epochs without a better value.

    Args:
        monitor: name in the logs.
        mode: min or max.
        patience: epochs.
    """

    remembered = ("best", "wait")  # what a run that goes on needs

    def __init__(self, monitor: str, mode: str, patience: int):
        super().__init__()
        self.monitor, self.mode, self.patience = monitor, mode, patience
        self.best: float | None = None
        self.wait = 0

    def on_epoch_end(self, epoch, logs=None):
        value = logs[self.monitor]
        if is_better(value, self.best, self.mode):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            logger.info("epoch %d: %s has not improved for %d epochs, stopping", epoch + 1, self.monitor, self.wait)
            self.model.stop_training = True
