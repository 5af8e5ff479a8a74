"""Keep the weights of the best epoch."""

import math
from pathlib import Path

import keras

from tfbert.model.checkpoint import save_weights
from tfbert.progress import logger


def is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether `value` improves on `best` (None: nothing yet) by more than `min_delta`; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


class BestWeights(keras.callbacks.Callback):
    """Saves the weights whenever the monitored value improves; without a monitor, after every epoch.

    The file is replaced whole, so a kill while saving leaves the one before.

    Args:
        path: ends in `.weights.h5`.
        monitor: name in the logs, or None.
        mode: min or max.
    """

    def __init__(self, path: Path, monitor: str | None, mode: str):
        super().__init__()
        self.path, self.monitor, self.mode = path, monitor, mode
        self.best: float | None = None
        self.best_epoch: int | None = None

    def on_epoch_end(self, epoch, logs=None):
        if self.monitor is not None:
            value = logs[self.monitor]
            if not is_better(value, self.best, self.mode):
                return
            self.best = value
            logger.info("epoch %d: best %s so far %.5f, saved %s", epoch + 1, self.monitor, value, self.path.name)
        self.best_epoch = epoch
        save_weights(self.model, self.path)
