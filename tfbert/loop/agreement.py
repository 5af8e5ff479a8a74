"""When the workers of a run tell each other what only one of them knows: the time, a signal."""

import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfbert.strategy import sum_over_workers, worker_of

EVERY_S = 1.0
MOST_STEPS = 10


class Agreement:
    """Sums of a few numbers over the workers, behind steps that all of them know beforehand.

    An exchange keeps a device waiting, so there is not one a step: the next is as many steps ahead as the chief takes
    in `EVERY_S`, at least 1 and at most `MOST_STEPS`. A process alone agrees with itself behind every step.

    Args:
        strategy: of the run.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.rank, workers = worker_of(strategy)
        self.alone = workers == 1
        self._last, self._next = -1, 0  # steps
        self._time = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether the workers exchange behind a step; so also where a run went back to an earlier one."""
        return self.alone or not self._last < step < self._next

    def sum(self, step: int, values: Sequence[float]) -> list[float]:
        """Sums over the workers; each must call it behind the same step, as often as the others.

        Args:
            step: number of the step.
            values: as many at every worker.
        """
        if self.alone:
            return list(values)
        now = time.monotonic()
        ahead = 0 if self.rank else self._ahead(step, now)
        *sums, ahead = sum_over_workers(self.strategy, np.array([*values, ahead])).tolist()
        if step != self._last:
            self._last, self._next, self._time = step, step + int(ahead), now
        return sums

    def _ahead(self, step: int, now: float) -> int:
        steps = step - self._last
        if steps <= 0 or self._last < 0:  # a run that begins or went back
            return 1
        return int(np.clip(EVERY_S * steps / max(now - self._time, 1e-9), 1, MOST_STEPS))
