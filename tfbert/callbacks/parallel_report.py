"""Where the time of a step goes where several replicas share it, and one line of advice."""

import json
import statistics
import time
from pathlib import Path

import keras
import tensorflow as tf

from tfbert.disk import atomic_file
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger
from tfbert.strategy import all_sum, worker_of

NAME = "parallel.json"
_PROBES = 3
_MUCH_WAITING, _MUCH_EXCHANGE = 0.05, 0.3  # shares of a step


class ParallelReport(keras.callbacks.Callback):
    """Writes `parallel.json` and a log line at the end of a stage that ran on several replicas.

    The exchange is timed apart, on zeros of the gradients' shapes, at the end of the stage's first epoch; in a step it
    may run beside other work, so its share is an upper bound.

    Args:
        folder: the run folder.
        trainer: of the stage.
        writes: False where another worker does it.
    """

    def __init__(self, folder: Path, trainer: Trainer, writes: bool = True):
        super().__init__()
        self.folder, self.trainer, self.writes = folder, trainer, writes
        self._exchange_s: float | None = None
        self._train_s = self._wait_s = self._rows = 0.0
        self._steps = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._waited = self.trainer.wait_s
        self._start_rows = self.trainer.totals.rows
        self._counted, self._epoch_s = 0, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._counted += 1
        self._epoch_s += time.perf_counter() - self._begin  # without what other callbacks do behind the step

    def on_epoch_end(self, epoch, logs=None):
        if self._exchange_s is None:
            self._exchange_s = self._probe()  # the first epoch compiles: it does not count
            return
        self._train_s += self._epoch_s
        self._wait_s += self.trainer.wait_s - self._waited
        self._rows += self.trainer.totals.rows - self._start_rows
        self._steps += self._counted

    def on_train_end(self, logs=None):
        if not self.writes or not self._steps or self._exchange_s is None:
            return
        strategy = self.trainer.strategy
        _, workers = worker_of(strategy)
        step_s = self._train_s / self._steps
        found = {
            "workers": workers,
            "replicas": strategy.num_replicas_in_sync,
            "steps": self._steps,
            "step_s": step_s,
            "wait_share": self._wait_s / self._train_s,
            "exchange_s": self._exchange_s,
            "exchange_share": min(1.0, self._exchange_s / step_s),
            "gradient_bytes": self._bytes(),
            "rows_per_s": self._rows / self._train_s,
            "rows_per_s_of_a_worker": self._rows / self._train_s / workers,
        }
        found["advice"] = advice(found["wait_share"], found["exchange_share"])
        with atomic_file(self.folder / NAME) as file:
            file.write((json.dumps(found, indent=2) + "\n").encode())
        logger.info(
            "%d workers, %d replicas: step %.3g s, waiting for data %.1f %%, exchange of %.1f MB at most %.1f %%, "
            "%.0f rows/s, %.0f a worker; %s",
            workers,
            found["replicas"],
            step_s,
            100 * found["wait_share"],
            found["gradient_bytes"] / 1e6,
            100 * found["exchange_share"],
            found["rows_per_s"],
            found["rows_per_s_of_a_worker"],
            found["advice"],
        )

    def _bytes(self) -> int:
        size = tf.as_dtype(self.trainer.gradient_dtype).size
        return sum(variable.shape.num_elements() for variable in self.trainer.optimizer.trained) * size

    def _probe(self) -> float:
        """Seconds of one exchange of gradients, median."""
        trainer = self.trainer

        def exchange():
            zeros = [tf.zeros(v.shape) for v in trainer.optimizer.trained]
            return tf.add_n([tf.reduce_sum(g[..., :1]) for g in all_sum(zeros, trainer.gradient_dtype)])

        function = tf.function(lambda: trainer.strategy.run(exchange), autograph=False)
        taken = []
        for _ in range(_PROBES + 1):
            start = time.perf_counter()
            for part in trainer.strategy.experimental_local_results(function()):
                part.numpy()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:])


def advice(wait_share: float, exchange_share: float) -> str:
    """What would make such steps faster."""
    if wait_share > _MUCH_WAITING:
        return "reading is the limit: encode with --store arrow, or give each worker more cores"
    if exchange_share > _MUCH_EXCHANGE:
        return "the exchange is the limit: a larger --global_batch_size, or --gradient_dtype bfloat16"
    return "computing is the limit: more replicas will help"
