"""What an output may be."""

from collections.abc import Iterable
from pathlib import Path

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
