"""Keep the weights of the best epoch."""

import math
from pathlib import Path

import keras
import numpy as np

from tfbert.errors import TrainingError
from tfbert.model.checkpoint import save_weights
from tfbert.progress import logger


def is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether `value` improves on `best` (None: nothing yet) by more than `min_delta`; NaN and infinity never do."""
    if not math.isfinite(value):
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
        writes: False where another worker of the same run keeps them.

    Raises:
        TrainingError: the weights to save are not finite; those saved before are kept.
    """

    remembered = ("best", "best_epoch")  # what a run that goes on needs

    def __init__(self, path: Path, monitor: str | None, mode: str, writes: bool = True):
        super().__init__()
        self.writes = writes
        self.path, self.monitor, self.mode = path, monitor, mode
        self.best: float | None = None
        self.best_epoch: int | None = None

    def on_epoch_end(self, epoch, logs=None):
        if self.monitor is not None and not is_better(logs[self.monitor], self.best, self.mode):
            return
        bad = next((v.name for v in self.model.variables if not np.isfinite(keras.ops.convert_to_numpy(v)).all()), None)
        if bad is not None:
            raise TrainingError(
                f"Weights must be finite. Received: {bad} after epoch {epoch + 1}. The best weights before this epoch "
                "are kept. Lower the learning rate, or warm up longer."
            )
        if self.writes:
            save_weights(self.model, self.path)
        self.best_epoch = epoch
        if self.monitor is not None:
            self.best = logs[self.monitor]
            logger.info("epoch %d: best %s so far %.5f, saved %s", epoch + 1, self.monitor, self.best, self.path.name)
