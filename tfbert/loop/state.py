"""The state of a run on disk: two generations, each written whole or not at all, checked when read.

    last/000041/state.safetensors   every array
    last/000041/state.json          everything else, and the checksums of both

A generation is written beside the others under a temporary name, flushed to the disk and renamed. The older of the two
stays until a newer one is complete, so there is always one to go on from; a damaged one is passed over, with a warning.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tfbert.data.manifest import file_checksum
from tfbert.disk import new_folder
from tfbert.errors import CheckpointError
from tfbert.progress import logger

ARRAYS, VALUES = "state.safetensors", "state.json"
GENERATIONS = 2
Arrays = dict[str, npt.NDArray[Any]]


def write_state(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> Path:
    """Writes a new generation and removes all but the newest two.

    Args:
        folder: `last/` of a run; made if missing.
        arrays: by name.
        values: plain JSON values.

    Returns:
        The folder of the generation.

    Raises:
        OSError: it could not be written; the generations before are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in _generations(folder)), default=0) + 1
    final = folder / f"{number:06d}"
    with new_folder(final) as temporary:
        _write_arrays(temporary / ARRAYS, arrays)
        described = {
            "values": dict(values),
            "checksum": file_checksum(temporary / ARRAYS),
            "checksum_of_values": _values_checksum(values),
        }
        (temporary / VALUES).write_bytes(orjson.dumps(described, option=orjson.OPT_INDENT_2))
    for old in _generations(folder)[:-GENERATIONS]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def read_state(folder: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """The newest whole generation, or None where none was ever written.

    Raises:
        CheckpointError: there are generations, and all are damaged.
    """
    generations = _generations(folder)
    for path in reversed(generations):
        try:
            described = orjson.loads((path / VALUES).read_bytes())
            if file_checksum(path / ARRAYS) != described["checksum"]:
                raise ValueError("the checksum does not fit")
            if _values_checksum(described["values"]) != described["checksum_of_values"]:
                raise ValueError("the checksum of the values does not fit")
            return load_file(path / ARRAYS), described["values"]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            logger.warning("%s is damaged (%s); going back to the state before", path, error)
    if generations:
        raise CheckpointError(
            f"{folder}: a run goes on from its last state. Received: {len(generations)} damaged states. Delete the "
            "folder to start again, or start another run from the best weights of this one (--init RUN)."
        )
    return None


def _values_checksum(values: Mapping[str, Any]) -> str:
    return hashlib.blake2b(orjson.dumps(dict(values), option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def _generations(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def _write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Straight from where they lie: a copy would take as much memory again."""
    try:
        # safetensors wants contiguous arrays, and a scalar to stay one
        save_file({name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
