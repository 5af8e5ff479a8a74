"""Rows of a JSON-lines file, read by offset."""

import mmap
import os
from pathlib import Path

import numpy as np

from tfbert.data import record
from tfbert.data.index import RowIndex, build_index, read_index
from tfbert.data.record import Record
from tfbert.data.rows import RowColumns
from tfbert.data.store import RowNumbers, RowStore
from tfbert.errors import DataError

_RELEASE_BYTES = 8 << 20  # read before the pages of the map are given back


class JsonStore(RowStore):
    """The lines of a file, by its index, which is built and kept beside it where it is missing or older.

    The file is memory mapped; its pages are given back as it is read, so that they do not add up in the process.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{path}: the data cannot be read. Received: {error.strerror}.") from error
        try:
            self._index: RowIndex = read_index(path) or build_index(path)
            # an empty file has no map
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) if os.fstat(self._fd).st_size else None
        except BaseException:
            os.close(self._fd)
            raise
        self._read_bytes = 0
        self.lengths = self._index.lengths
        self.labels = self._index.labels

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._fd)

    def _lines(self, rows: RowNumbers) -> list[bytes]:
        numbers = np.asarray(rows, np.int64)
        if self._map is None or not len(numbers):
            return []
        starts, ends = self._index.offsets[numbers], self._index.offsets[numbers + 1]
        size = os.fstat(self._fd).st_size
        if ends.max() > size:  # to touch the map behind the end of the file would end the process
            raise DataError(
                f"{self.path}: the file is not as its index describes it. Received: {size:,} bytes, rows up to byte "
                f"{ends.max():,} in the index. It has become shorter; encode the data again."
            )
        text = self._map
        lines = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._read_bytes += int((ends - starts).sum())
        if self._read_bytes >= _RELEASE_BYTES:
            text.madvise(mmap.MADV_DONTNEED)
            self._read_bytes = 0
        return lines

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
