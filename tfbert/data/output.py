"""Output files that appear under their final name only when they are complete."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tfbert.errors import DataError


def check_output(out: Path, inputs: Iterable[str] = (), flag: str = "--out", plain: bool = True) -> None:
    """Raises DataError where `out`, given by `flag`, cannot be written, or is one of the inputs.

    With `plain` a name that promises compression is refused: whoever reads the file goes by the name.
    """
    if out.is_dir():
        raise DataError(f"{flag} names a file. Received: {out}, a folder.")
    if out.exists() and not out.is_file():
        raise DataError(f"{flag} names a regular file, which is replaced whole. Received: {out}, a pipe or device.")
    if plain and out.suffix.lower() in (".gz", ".zst"):
        raise DataError(f"{flag} is written without compression. Received: {out}. Leave {out.suffix} out of the name.")
    if not out.absolute().parent.is_dir():
        raise DataError(f"{flag} must lie in an existing folder. Received: {out}; {out.parent} does not exist.")
    for path in inputs:
        if out.exists() and out.samefile(path):
            raise DataError(f"{flag} must be another file than the input. Received: {out} for both.")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it gets its name when the block ends well, and is removed when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Waits until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
