"""Files that appear under their final name only when they are complete, and are on the disk then."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Waits until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: Path, held: bool = False) -> Iterator[Path]:
    """A path beside `path` for a file to write; it gets its name when the block ends well, else it is removed.

    Args:
        path: the final name.
        held: nobody else writes to the folder; then a file that a killed process left is overwritten by the next one.
    """
    temporary = path.with_name(f"saving-{path.name}" if held else f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a full disk does not say where
        raise


@contextmanager
def atomic_file(path: Path, held: bool = False) -> Iterator[BinaryIO]:
    """As `replaced`, opened for writing."""
    with replaced(path, held) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to fill with files; it gets its name when the block ends well, else it is removed.

    Args:
        folder: the final name, which nothing has; nobody else writes to the folder that it is in.
    """
    temporary = folder.with_name(f"writing-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            sync(path)
        temporary.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
