"""Rows as columns, as stores give them and batches take them: no Python object a row where the store can do without."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Ragged(NamedTuple):
    """Rows of different lengths that lie in one flat array: row i is `values[starts[i] : starts[i] + lengths[i]]`.

    Attributes:
        values: integers of any width, (n,); a memory map where the rows lie in a file.
        starts, lengths: int64 (rows,).
    """

    values: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: npt.DTypeLike = np.int32) -> "Ragged":
        """Copies rows into a flat array."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum()))
        return cls.joined(values, lengths)

    @classmethod
    def joined(cls, values: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> "Ragged":
        """Rows that follow each other without gaps."""
        return cls(values, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)

    def cut(self, first: int, last: int) -> "Ragged":
        """Rows first to last - 1."""
        return Ragged(self.values, self.starts[first:last], self.lengths[first:last])

    def select(self, rows: npt.NDArray[np.int64]) -> "Ragged":
        """The rows of these numbers, in this order."""
        return Ragged(self.values, self.starts[rows], self.lengths[rows])

    def padded(self, length: int, fill: int, shortest: int | None = None) -> npt.NDArray[np.int32]:
        """int32 (rows, length), with `fill` behind the end of each row; no row may be longer.

        Args:
            length: of the rows that are made.
            fill: stands behind their ends.
            shortest: `lengths.min()`, where it is known.
        """
        if not len(self.values):
            return np.full((len(self.lengths), length), fill, np.int32)
        padded = self._ahead(length).astype(np.int32, copy=False)
        if (self.lengths.min(initial=length) if shortest is None else shortest) < length:
            padded[np.arange(length) >= self.lengths[:, None]] = fill
        return padded

    def _ahead(self, length: int) -> npt.NDArray[Any]:
        """The values from the start of each row on, (rows, length), whatever stands behind its end."""
        windows = len(self.values) - length + 1
        if windows > 0 and self.starts.max(initial=0) < windows:
            # at every place the values from there on: a row is copied as a whole, twice as fast as value by value
            everywhere = np.ndarray((windows, length), self.values.dtype, self.values, strides=2 * self.values.strides)
            ahead: npt.NDArray[Any] = everywhere[self.starts]
            return ahead
        # a short last row reads beyond the end
        return self.values.take(self.starts[:, None] + np.arange(length), mode="clip")

    def row_numbers(self) -> npt.NDArray[np.int64]:
        """For each value in the order of the rows, the number of its row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def flat(self) -> npt.NDArray[Any]:
        """The values in the order of the rows, without what lies between them."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        return self.values[np.arange(total) + np.repeat(self.starts - ends + self.lengths, self.lengths)]


def segment_ids(first_lengths: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """0 for the first `first_lengths` tokens of each row and 1 for the others, the rows one behind the other."""
    runs = np.stack([first_lengths, lengths - first_lengths], axis=1).ravel()
    return np.repeat(np.tile(np.array([0, 1], np.uint8), len(lengths)), runs)


# One label a row: class ids or numbers, several class ids (multi-label), or whatever stands in the rows (None: nothing)
Labels = npt.NDArray[Any] | Ragged | list[Any]


@dataclass(slots=True)  # not frozen, which would make each batch slower
class RowColumns:
    """Some rows, in an order.

    Attributes:
        token_ids: special tokens included, no padding.
        segment_ids: an empty row means all 0; None means that all rows are so.
        labels: int32 class ids (negative: no class), float64 numbers, class ids a row, or a list of `Record.label`.
        weights: in the loss, float32 (rows,).
        words: 1 where a word begins and 0 where it goes on, uint8, one a token; an empty row means that nobody knows;
            None means that all rows are so.
    """

    token_ids: Ragged
    segment_ids: Ragged | None
    labels: Labels
    weights: npt.NDArray[np.float32]
    words: Ragged | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def cut(self, first: int, last: int) -> "RowColumns":
        """Rows first to last - 1."""
        labels = self.labels.cut(first, last) if isinstance(self.labels, Ragged) else self.labels[first:last]
        segment_ids = None if self.segment_ids is None else self.segment_ids.cut(first, last)
        words = None if self.words is None else self.words.cut(first, last)
        return RowColumns(self.token_ids.cut(first, last), segment_ids, labels, self.weights[first:last], words)
