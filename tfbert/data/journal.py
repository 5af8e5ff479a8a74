"""A file written piece by piece that survives any interruption: how far it is good stands beside it."""

import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from tfbert.disk import atomic_file, sync
from tfbert.progress import logger

_BLOCK = 1 << 20


class JournaledFile:
    """Bytes that are appended; `save` makes them and some values last, and what was written after it is dropped.

    A file that is not as the last `save` left it is begun anew.

    Args:
        path: the file; the folder must be this process' alone. How far it is good stands in `PATH.saved`.
        save_s: seconds between two saves by `save_sometimes`.

    Attributes:
        values: of the last save, or None where nothing was saved.
    """

    def __init__(self, path: Path, save_s: float):
        self.path, self._save_s = path, save_s
        self._described = path.with_name(f"{path.name}.saved")
        self.values: dict[str, Any] | None = None
        self._size = self._checksum = 0
        self._open()
        self._saved_at = time.monotonic()

    def _open(self) -> None:
        found = self._read_description()
        if found is not None and self._is_good(*found[:2]):
            self._size, self._checksum, self.values = found
        elif found is not None:
            logger.warning("%s is not as it was left; it is made again", self.path)
        self.path.touch()
        self._file = self.path.open("r+b")
        self._file.truncate(self._size)
        self._file.seek(self._size)

    def _read_description(self) -> tuple[int, int, dict[str, Any]] | None:
        try:
            described = orjson.loads(self._described.read_bytes())
            return int(described["size"]), int(described["checksum"]), dict(described["values"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            logger.warning("%s is damaged; %s is made again", self._described, self.path.name)
            return None

    def _is_good(self, size: int, checksum: int) -> bool:
        found, left = 0, size
        try:
            with self.path.open("rb") as file:
                while left and (block := file.read(min(left, _BLOCK))):
                    found, left = zlib.crc32(block, found), left - len(block)
        except FileNotFoundError:
            return False
        return not left and found == checksum

    def write(self, data: bytes) -> None:
        """Appends bytes."""
        self._file.write(data)
        self._size += len(data)
        self._checksum = zlib.crc32(data, self._checksum)

    def save_sometimes(self, values: Mapping[str, Any]) -> None:
        """Saves if the last time was long ago."""
        if time.monotonic() - self._saved_at >= self._save_s:
            self.save(values)

    def save(self, values: Mapping[str, Any]) -> None:
        """Makes what was written so far last, together with plain JSON values that describe it."""
        self._file.flush()
        sync(self.path)
        described = {"size": self._size, "checksum": self._checksum, "values": dict(values)}
        with atomic_file(self._described, held=True) as file:
            file.write(orjson.dumps(described))
        self._saved_at = time.monotonic()

    def publish(self, path: Path) -> None:
        """Gives the file its final name, on the same disk."""
        self._file.close()
        sync(self.path)
        self.path.replace(path)
        sync(path.absolute().parent)

    def __enter__(self) -> "JournaledFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.close()
            return
        try:
            self._file.close()
        except OSError:  # a full disk, once more; the error that is under way tells it
            return
