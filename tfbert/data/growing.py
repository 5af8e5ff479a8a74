"""Batches that grow: a run begins with small ones, and takes steps of the full size after some rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tfbert.data.plan import EpochPlan, Rows


@dataclass(frozen=True)
class GrowingPlan(EpochPlan):
    """An epoch whose batches are cut into smaller ones as long as the run is young.

    The batch doubles from `start_rows` up to `global_batch_size`; each size holds for the same number of rows. Where a
    batch is cut follows from its number alone, so any position can be reached without reading.

    Args:
        start_rows: rows of the first batches.
        growing_rows: rows, over all epochs, after which the batches have their full size.
    """

    start_rows: int = 1
    growing_rows: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_rows < 1 or self.growing_rows < 0:
            raise ValueError(
                "start_rows must be at least 1 and growing_rows at least 0. "
                f"Received: {self.start_rows} and {self.growing_rows}."
            )

    @cached_property
    def _whole(self) -> EpochPlan:
        """The epoch in batches of the full size."""
        return EpochPlan(**{field.name: getattr(self, field.name) for field in fields(EpochPlan)})

    @property
    def _is_grown(self) -> bool:
        return self.epoch * self.num_rows >= self.growing_rows or self.start_rows >= self.global_batch_size

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Number of the first step of every whole batch, and the number of steps."""
        whole = self._whole
        rows = np.full(whole.num_batches, self.global_batch_size, np.int64)
        last = [len(batch) for batch in whole.window_batches(whole.num_windows - 1)]
        rows[len(rows) - len(last) :] = last  # the one short batch is somewhere in the last window
        before = self.epoch * self.num_rows + np.cumsum(rows) - rows
        doublings = math.ceil(math.log2(self.global_batch_size / self.start_rows))
        doubled = np.minimum(before * doublings // self.growing_rows, doublings)
        sizes = np.minimum(self.start_rows * 2**doubled, self.global_batch_size)
        return np.concatenate([[0], np.cumsum(-(-rows // sizes))]).astype(np.int64)

    @cached_property
    def num_batches(self) -> int:
        """Steps of the epoch."""
        return self._whole.num_batches if self._is_grown else int(self._starts[-1])

    def batches(self, start: int = 0) -> Iterator[Rows]:
        """Row numbers of every step from number `start` on."""
        if self._is_grown:
            yield from self._whole.batches(start)
            return
        if start >= self.num_batches:
            return
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        skip = start - int(self._starts[first])
        for number, rows in enumerate(self._whole.batches(first), first):
            pieces = int(self._starts[number + 1] - self._starts[number])
            yield from (rows[len(rows) * k // pieces : len(rows) * (k + 1) // pieces] for k in range(skip, pieces))
            skip = 0
