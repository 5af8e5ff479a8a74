"""Rows by number: a data file with its index, read by offset, so memory does not depend on the number of rows."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbert.data import record
from tfbert.data.index import NO_LABEL, RowIndex, build_index, read_index
from tfbert.data.record import Record
from tfbert.errors import DataError

_CHECK_ROWS = 1 << 20  # rows looked at together


class RowStore:
    """Random access to the rows of a JSON-lines file.

    Args:
        path: the file. Its index is built and kept beside it where it is missing or older.

    Attributes:
        lengths: tokens of every row, int32 (num_rows,).
        labels: class of every row or -1, int32 (num_rows,).
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        try:
            self._fd = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{self.path}: the data cannot be read. Received: {error.strerror}.") from error
        self._index: RowIndex = read_index(self.path) or build_index(self.path)
        self.lengths = self._index.lengths
        self.labels = self._index.labels

    def __len__(self) -> int:
        return self._index.num_rows

    def close(self) -> None:
        os.close(self._fd)

    def read(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[Record]:
        """The given rows, in the given order.

        Raises:
            DataError: with `file:line`, where a row is damaged or not the one that was indexed.
        """
        offsets = self._index.offsets
        records = []
        for row in rows:
            start, end = int(offsets[row]), int(offsets[row + 1])
            line = os.pread(self._fd, end - start, start)
            try:
                parsed = record.parse(line)
            except DataError as error:
                raise DataError(f"{self.place(row)}: {error}") from None
            if len(parsed.token_ids) != self.lengths[row]:
                raise DataError(
                    f"{self.place(row)}: the row is not the one that was indexed. Received: {len(parsed.token_ids)} "
                    f"tokens, {self.lengths[row]} in the index. Delete {self.path.with_suffix('.idx').name} to make "
                    "the index again."
                )
            records.append(parsed)
        return records

    def place(self, row: int) -> str:
        """`file:line` of a row, for messages; counts lines up to it."""
        line, left = 1, int(self._index.offsets[row])
        with self.path.open("rb") as file:
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                line += block.count(b"\n")
                left -= len(block)
        return f"{self.path}:{line}"

    def check_labels(self, num_classes: int) -> None:
        """Refuses the first row whose class is missing or not in [0, num_classes)."""
        first, count = -1, 0
        for start in range(0, len(self), _CHECK_ROWS):
            labels = self.labels[start : start + _CHECK_ROWS]
            bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
            if len(bad) and not count:
                first = start + int(bad[0])
            count += len(bad)
        if count:
            received = "no class" if self.labels[first] == NO_LABEL else str(self.labels[first])
            raise DataError(
                f"{self.place(first)}: a label must be a class id from 0 to {num_classes - 1}. Received: {received} "
                f"({count} such rows)."
            )
