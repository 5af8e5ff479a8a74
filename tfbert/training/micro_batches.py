"""How many rows of the longest kind a device holds at once: found by trying, before a stage trains.

The global batch stays as it is: each device works through its rows in as few micro-batches as fit. On a GPU the
allocator says no (`ResourceExhaustedError`); on a CPU the system would kill the process instead, so a bound on the
memory of the process is needed there, and no size is tried that is expected to pass it.
"""

import resource
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfbert.data.batch import Batch
from tfbert.data.feed import place
from tfbert.errors import TrainingError
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger

# what the allocator, and libraries that allocate for themselves, say when there is no room
OUT_OF_MEMORY = (tf.errors.ResourceExhaustedError, tf.errors.InternalError, MemoryError)


def largest_micro_batch(rows: int, fits: Callable[[int], bool]) -> int:
    """The most rows of `rows`, by doubling from 1, that fit; 0 where one row does not.

    Args:
        rows: of a device in a batch.
        fits: tries a number of rows.
    """
    fitting, size = 0, 1
    while fitting < rows and fits(size):
        fitting, size = size, min(2 * size, rows)
    return fitting


def longest_batch(example: Batch, rows: int, ragged: Sequence[str]) -> Batch:
    """A batch of `rows` rows of weight 0, as long as the example: what takes the most memory.

    Args:
        example: a batch with the longest row.
        rows: more or fewer than it has.
        ragged: names of the arrays with a second dimension of tokens.
    """
    numbers = np.arange(rows) % len(example["weights"])
    batch = {name: values[numbers] for name, values in example.items()}
    batch["weights"] = np.zeros(rows, np.float32)
    if "padding_mask" in batch and "padding_mask" in ragged:
        batch["padding_mask"] = np.ones_like(batch["padding_mask"])
    return batch


class MemoryBound:
    """Expects what a trial of twice the size will take, from those before.

    Args:
        most: bytes of the process.
        used: gives the most bytes that the process had so far.
    """

    def __init__(self, most: float, used: Callable[[], int] | None = None):
        self.most, self._used = most, used or peak_bytes
        self._start = self._last = self._used()

    def allows_twice(self) -> bool:
        """Whether a trial of twice the size of the last one may be made."""
        return self._last + (self._last - self._start) <= self.most

    def holds(self) -> bool:
        """Whether the trial that was made stayed within the bound."""
        self._last = self._used()
        return self._last <= self.most


def peak_bytes() -> int:
    """Most bytes of physical memory that this process had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def find_micro_batches(trainer: Trainer, example: Batch, rows: int, least: int, most_bytes: float | None) -> int:
    """Fewest micro-batches that fit; the trainer is left with them.

    Weights, optimizer and step are those of before: each trial is a whole step over rows of weight 0 at a learning
    rate of 0.

    Args:
        trainer: of a stage that has not begun.
        example: a batch with the longest row.
        rows: most rows of a batch on one device.
        least: micro-batches at least, at most `rows`.
        most_bytes: of the process, where a CPU trains; None where the allocator of a GPU tells.

    Raises:
        TrainingError: not even one row fits.
    """
    replicas = trainer.strategy.num_replicas_in_sync
    most_rows = -(-rows // least)
    bound = MemoryBound(most_bytes) if most_bytes is not None else None
    errors: list[BaseException] = []

    def fits(size: int) -> bool:
        if bound is not None and size > 1 and not bound.allows_twice():
            return False
        # two micro-batches take what many do: gradients of one, and the sum so far
        pieces = 1 if size == rows else 2
        batch = longest_batch(example, size * pieces * replicas, trainer.objective.ragged)
        try:
            trainer.rehearse(place(batch, trainer.strategy), pieces)
        except OUT_OF_MEMORY as error:
            errors.append(error)
            return False
        return bound is None or bound.holds()

    # where there is no bound to creep up to, first what is hoped for
    size = most_rows if bound is None and fits(most_rows) else largest_micro_batch(most_rows, fits)
    if not size:
        if errors and not isinstance(errors[-1], tf.errors.ResourceExhaustedError | MemoryError):
            raise errors[-1]
        took = f", {peak_bytes() / 1e9:.2f} GB of {bound.most / 1e9:g}" if bound is not None else ""
        raise TrainingError(
            f"The longest row must fit into memory. Received: {replicas} device(s) on which a micro-batch of one row "
            f"does not{took}. Encode with a smaller --max_len, take a smaller model, or allow more (--memory_gb)."
        ) from (errors[-1] if errors else None)
    count = max(least, -(-rows // size))
    trainer.cut_into(count)
    length = example["padding_mask"].shape[1] if "padding_mask" in example else None
    logger.info(
        "%d micro-batch(es) a step: up to %d rows%s fit a device at once",
        count,
        -(-rows // count),
        f" x {length} tokens" if length else "",
    )
    return count
