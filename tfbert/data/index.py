"""The row index of a JSON-lines file: where every row starts, how many tokens it has, its class.

Layout of `NAME.idx`, little endian: 8 bytes magic, int64 CRC-32 of all that follows, int64 rows, int64 size of the data
file, int64 modification time of a file that we did not write (0: written together with its data set); then int64
offsets [rows + 1], int32 lengths [rows], int32 labels [rows] (-1: none, or not a class). Opened memory mapped, so its
size costs no memory; the checksum, read at 1 GB/s, keeps a damaged index from sending readers to wrong places.
"""

import os
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tfbert.data import record
from tfbert.data.source import BOM
from tfbert.errors import DataError
from tfbert.progress import Progress, logger

MAGIC = b"tfbidx2\n"
_CHECKED_AT = 16  # what the checksum covers begins here
_HEADER = 40
_BLOCK = 1 << 20
NO_LABEL = -1
_STEP = 1 << 16  # rows a write


@dataclass(frozen=True)
class RowIndex:
    """Offsets (bytes, `num_rows + 1`), lengths (tokens) and class ids of the rows of a file."""

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        return len(self.lengths)


def index_path(data_path: Path) -> Path:
    return data_path.with_suffix(".idx")


class IndexWriter:
    """Writes an index in pieces; `lengths` and `labels` wait in files of their own until `close`.

    Args:
        path: final name; until `close` the names are of this writer alone, so two at once do not mix.
        modified_ns: modification time of the data file, or 0 where the data set has a manifest.
    """

    def __init__(self, path: Path, modified_ns: int = 0):
        self._path = path
        self._modified_ns = modified_ns
        run = secrets.token_hex(4)
        self._temporary = path.with_name(f"{path.name}.{run}.tmp")
        self._parts = [path.with_name(f"{path.name}.{name}.{run}.tmp") for name in ("offsets", "lengths", "labels")]
        self._files = [part.open("wb") for part in self._parts]
        self._position = 0
        self._rows = 0

    def append(
        self, sizes: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], labels: npt.NDArray[np.int32], skip: int = 0
    ) -> None:
        """Adds rows of `sizes` bytes that follow each other, `skip` bytes after the row before."""
        if not len(sizes):
            return
        self._position += skip
        ends = self._position + np.cumsum(sizes, dtype=np.int64)
        starts = ends - sizes
        for file, values, dtype in zip(self._files, (starts, lengths, labels), ("<i8", "<i4", "<i4"), strict=True):
            file.write(values.astype(dtype, copy=False).tobytes())
        self._position = int(ends[-1])
        self._rows += len(sizes)

    def close(self, data_size: int) -> None:
        """Joins the pieces under the final name."""
        for file in self._files:
            file.close()
        described = np.array([self._rows, data_size, self._modified_ns], "<i8").tobytes()
        checksum = zlib.crc32(described)
        with self._temporary.open("wb") as out:
            out.write(MAGIC + bytes(8) + described)
            for block in self._blocks():
                checksum = zlib.crc32(block, checksum)
                out.write(block)
            out.seek(len(MAGIC))
            out.write(np.array([checksum], "<i8").tobytes())
        self._temporary.replace(self._path)
        self.discard()

    def _blocks(self) -> Iterator[bytes]:
        for i, part in enumerate(self._parts):
            with part.open("rb") as piece:
                while block := piece.read(_BLOCK):
                    yield block
            if i == 0:
                yield np.array([self._position], "<i8").tobytes()

    def discard(self) -> None:
        """Removes what was written; an index under its final name stays."""
        for part in [*self._parts, self._temporary]:
            part.unlink(missing_ok=True)
        for file in self._files:
            file.close()


def read_index(data_path: Path) -> RowIndex | None:
    """The index beside a file, or None where it is absent, damaged or of another state of the file.

    Raises:
        DataError: the index was written together with the file, and the file has another size now: it was cut or
            changed, and what is left of it is not the data set.
    """
    path = index_path(data_path)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
            size = os.fstat(file.fileno()).st_size
            if len(header) < _HEADER or header[:8] != MAGIC:
                return None
            checksum, rows, data_size, modified_ns = (int(value) for value in np.frombuffer(header[8:], "<i8"))
            if rows < 0 or size != _HEADER + 8 * (rows + 1) + 8 * rows or checksum != _checksum(header, file):
                return None
        data = data_path.stat()
    except OSError:
        return None
    if modified_ns == 0 and data_size != data.st_size:
        raise DataError(
            f"{data_path}: the file is not as its index describes it. Received: {data.st_size:,} bytes, "
            f"{data_size:,} were written. Encode the data again; for a file changed on purpose, delete {path.name}."
        )
    if data_size != data.st_size or modified_ns not in (0, data.st_mtime_ns):
        return None
    if rows == 0:
        empty = np.zeros(0, np.int32)
        return RowIndex(np.zeros(1, np.int64), empty, empty)
    lengths_at = _HEADER + 8 * (rows + 1)
    return RowIndex(
        _mapped(path, "<i8", _HEADER, rows + 1),
        _mapped(path, "<i4", lengths_at, rows),
        _mapped(path, "<i4", lengths_at + 4 * rows, rows),
    )


def _mapped(path: Path, dtype: str, offset: int, count: int) -> npt.NDArray[Any]:
    """Part of a file as a plain array, since `np.memmap` makes every access dearer; it stays mapped while in use."""
    return np.memmap(path, dtype, "r", offset, (count,)).view(np.ndarray)


def _checksum(header: bytes, rest: BinaryIO) -> int:
    checksum = zlib.crc32(header[_CHECKED_AT:])
    while block := rest.read(_BLOCK):
        checksum = zlib.crc32(block, checksum)
    return checksum


def build_index(data_path: Path) -> RowIndex:
    """Reads a whole file once, checks every row, and keeps the index beside the file.

    Blank lines are skipped. Raises DataError with `file:line` at the first damaged row.
    """
    logger.info("indexing %s (once; kept beside it)", data_path)
    try:
        stat = data_path.stat()
        writer = IndexWriter(index_path(data_path), stat.st_mtime_ns)
    except OSError as error:
        raise DataError(
            f"{data_path}: the file cannot be indexed. Received: {error.strerror}. Its index is kept beside it, so it "
            "must lie in a folder that can be written."
        ) from error
    try:
        skip = 0
        sizes: list[int] = []
        lengths: list[int] = []
        labels: list[int] = []
        with Progress(stat.st_size, "B", f"index {data_path.name}") as progress:
            for line_number, line in _lines(data_path):
                progress.update(len(line))
                if line_number == 1 and line.startswith(BOM):
                    skip, line = len(BOM), line[len(BOM) :]
                if not line.strip():
                    if sizes:
                        _flush(writer, sizes, lengths, labels, skip)
                        skip = 0
                    skip += len(line)
                    continue
                try:
                    row = record.parse(line)
                except DataError as error:
                    raise DataError(f"{data_path}:{line_number}: {error}") from None
                sizes.append(len(line))
                lengths.append(len(row.token_ids))
                labels.append(row.label if type(row.label) is int else NO_LABEL)
                if len(sizes) >= _STEP:
                    _flush(writer, sizes, lengths, labels, skip)
                    skip = 0
            _flush(writer, sizes, lengths, labels, skip)
        writer.close(stat.st_size)
    except BaseException:
        writer.discard()
        raise
    index = read_index(data_path)
    if index is None:
        raise DataError(f"{data_path}: the file changed while it was indexed. Run again when it is complete.")
    return index


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _flush(writer: IndexWriter, sizes: list[int], lengths: list[int], labels: list[int], skip: int) -> None:
    writer.append(np.array(sizes, np.int64), np.array(lengths, np.int32), np.array(labels, np.int32), skip)
    sizes.clear()
    lengths.clear()
    labels.clear()
