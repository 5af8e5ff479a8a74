"""Rows of a JSON-lines file, read by offset."""

import os
from pathlib import Path

import numpy as np

from tfbert.data import record
from tfbert.data.index import RowIndex, build_index, read_index
from tfbert.data.record import Record
from tfbert.data.rows import RowColumns
from tfbert.data.store import RowNumbers, RowStore
from tfbert.errors import DataError


class JsonStore(RowStore):
    """The lines of a file, by its index, which is built and kept beside it where it is missing or older."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{path}: the data cannot be read. Received: {error.strerror}.") from error
        try:
            self._index: RowIndex = read_index(path) or build_index(path)
        except BaseException:
            os.close(self._fd)
            raise
        self.lengths = self._index.lengths
        self.labels = self._index.labels

    def close(self) -> None:
        os.close(self._fd)

    def _lines(self, rows: RowNumbers) -> list[bytes]:
        numbers = np.asarray(rows, np.int64)
        starts = self._index.offsets[numbers]
        sizes = self._index.offsets[numbers + 1] - starts
        return [os.pread(self._fd, size, start) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]

    def columns(self, rows: RowNumbers) -> RowColumns:
        columns = record.parse_columns(self._lines(rows))
        if columns is None or not np.array_equal(columns.token_ids.lengths, self.lengths[np.asarray(rows, np.int64)]):
            return record.columns_of(self.read(rows))  # which names the row and what is wrong with it
        return columns

    def read(self, rows: RowNumbers) -> list[Record]:
        records = []
        for row, line in zip(rows, self._lines(rows), strict=True):
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
        """`file:line` of a row; counts lines up to it."""
        line, left = 1, int(self._index.offsets[row])
        with self.path.open("rb") as file:
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                line += block.count(b"\n")
                left -= len(block)
        return f"{self.path}:{line}"
