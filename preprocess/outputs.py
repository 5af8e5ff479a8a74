"""The data files of a data set, written from the rows of its parts: JSON lines, or Arrow."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from preprocess.parts import PartFiles
from tfbert.data.arrow_writer import ArrowWriter, load_table
from tfbert.data.index import IndexWriter
from tfbert.data.manifest import file_checksum
from tfbert.data.store import SUFFIXES


class Output(Protocol):
    """One data file and its index."""

    def write(self, files: PartFiles, table: npt.NDArray[np.void], chosen: npt.NDArray[np.bool_]) -> None:
        """Adds the chosen rows of a part, whose table is `table`."""

    def close(self) -> tuple[str, int]:
        """Checksum and size of the data file."""

    def discard(self) -> None:
        """Lets go of the file where the run failed."""


MakeOutput = Callable[[str], Output]  # by the name: train, val, test


def chosen_lines(files: PartFiles, table: npt.NDArray[np.void], chosen: npt.NDArray[np.bool_]) -> Iterator[memoryview]:
    """The lines of the chosen rows of a part, runs of neighbours together."""
    data = memoryview(files.path(SUFFIXES["jsonl"]).read_bytes())
    ends = np.cumsum(table["size"], dtype=np.int64)
    for a, b in _runs(chosen):
        yield data[ends[a] - table["size"][a] : ends[b - 1]]


class JsonOutput:
    """A file of JSON lines: the lines of the parts, copied."""

    def __init__(self, folder: Path, name: str):
        self._path = folder / f"{name}{SUFFIXES['jsonl']}"
        self._file = self._path.open("wb")
        self._index = IndexWriter(folder / f"{name}.idx")
        self._digest = hashlib.blake2b(digest_size=16)
        self._thread = ThreadPoolExecutor(1)  # for the checksum, which takes longer than writing

    def write(self, files: PartFiles, table: npt.NDArray[np.void], chosen: npt.NDArray[np.bool_]) -> None:
        if not chosen.any():
            return
        pieces = list(chosen_lines(files, table, chosen))
        hashed = self._thread.submit(self._hash, pieces)
        self._file.writelines(pieces)
        hashed.result()
        rows = table[chosen]
        self._index.append(rows["size"].astype(np.int64), rows["length"], rows["label"])

    def _hash(self, pieces: list[memoryview]) -> None:
        for piece in pieces:
            self._digest.update(piece)

    def close(self) -> tuple[str, int]:
        self._thread.shutdown()
        size = self._file.tell()
        self._file.close()
        self._index.close(size)
        return self._digest.hexdigest(), size

    def discard(self) -> None:
        self._thread.shutdown()
        self._index.discard()
        with suppress(OSError):  # a full disk, as it is known by now
            self._file.close()


class ArrowOutput:
    """An Arrow file: the rows of the parts, in record batches of their own size."""

    def __init__(self, folder: Path, schema: Any, name: str):
        self._path = folder / f"{name}{SUFFIXES['arrow']}"
        self._writer = ArrowWriter(self._path, schema)

    def write(self, files: PartFiles, table: npt.NDArray[np.void], chosen: npt.NDArray[np.bool_]) -> None:
        if chosen.any():
            rows = load_table(files.path(SUFFIXES["arrow"]))
            self._writer.write(rows if chosen.all() else rows.filter(chosen))

    def close(self) -> tuple[str, int]:
        self._writer.close()
        return file_checksum(self._path), self._path.stat().st_size

    def discard(self) -> None:
        self._writer.discard()


def _runs(chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Ranges of chosen neighbours."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)
