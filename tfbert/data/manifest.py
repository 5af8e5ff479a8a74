"""`manifest.json`: what a data set is and how it was made. Written last; no manifest, no data set."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tfbert.data.source import printable
from tfbert.data.store import SUFFIXES
from tfbert.errors import ConfigError, DataError
from tfbert.text.row_encoder import EncodingSettings

FORMAT_VERSION = 1
NAME = "manifest.json"
PARTS = ("train", "val", "test")
TASKS = ("classify", "multilabel", "regression")

# What values of a manifest are: a type, {str: ...} for any names, [...] for any number, (..., ...) for a choice.
_ROLES = {
    **dict.fromkeys(("text", "text_b", "label", "type", "weight"), (str, None)), "keep": [str], "filters": [[str]],
}  # fmt: skip
_SHAPE = {
    "inputs": {str: [{"name": str, "bytes": int, "checksum": str, "lines": int}]},
    "read": {str: {"lines": int, "kept": int, "rejected": {str: int}}},
    "columns": {
        "format": str, "columns": (str, None), "header": (bool, None), "replace_bad_bytes": bool, "roles": _ROLES,
    },
    "encoding": {"max_len": int, "cased": bool, "clean": [str], "pair": bool},
    "vocab_checksum": str,
    "vocab_size": int,
    "pad_id": int,
    "task": (*TASKS, None),
    "label_names": [str],
    "label_map": {str: int},
    "label_separator": str,
    "split": ({"fraction": (int, float), "seed": int, "rule": str}, None),
    "store": tuple(SUFFIXES),
    "dedup": bool,
    "conflicts": int,
    "leaked": {str: int},
    "parts": {
        str: {
            "rows": int, "labels": {str: int}, "length_histogram": {str: int}, "truncated": int, "checksum": str,
            "bytes": int,
        }
    },
    "task_name": (str, None),
    "corpus": (
        {
            "documents": str, "sentences": str, "pairs": str, "whole_words": str, "user_dict": (str, None),
            "short_fraction": (int, float), "seed": int, "borrowed_tokens": int,
            "read": {str: {"read": int, "kept": int, "dropped": {str: int}}},
        },
        None,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One of train, val, test.

    Attributes:
        rows: rows in the part.
        labels: rows by label name.
        length_histogram: rows by tokens before truncation, special tokens included; above 1024 in steps of 256.
        truncated: rows that lost tokens to max_len.
        checksum: BLAKE2b of the data file.
        bytes: size of the data file.
    """

    rows: int
    labels: dict[str, int]
    length_histogram: dict[str, int]
    truncated: int
    checksum: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a data set is.

    Attributes:
        inputs: name, size, lines and checksum of every input, by group (train, val, test).
        read: lines read, rows kept and rows rejected by reason, by group; lines = kept + rejected.
        columns: how the inputs were read: format, header, names, and which column is text, text_b, label ...
        encoding: settings that decide the ids (`EncodingSettings`).
        vocab_checksum: BLAKE2b of vocab.txt.
        vocab_size: lines of vocab.txt.
        pad_id: id of [PAD].
        task: classify, multilabel or regression; None where there are no labels.
        label_names: names in id order.
        label_map: raw label -> id.
        label_separator: between the labels of a multi-label field.
        split: rule, fraction and seed of the validation part, or None.
        dedup: rows with a text that occurred before were dropped.
        conflicts: texts that occurred with several labels (known where a split or dedup looked for them).
        leaked: rows of val and test whose text also occurs in train (known with dedup).
        parts: train, val, test.
        store: of the data files: jsonl or arrow.
        task_name: of a published task (`tasks.TASKS`), or None.
        corpus: of a data set for pretraining: how its rows were made, and documents, sentences and tokens read, kept
            and dropped by reason; else None.
    """

    inputs: dict[str, list[dict[str, Any]]]
    read: dict[str, dict[str, Any]]
    columns: dict[str, Any]
    encoding: dict[str, Any]
    vocab_checksum: str
    vocab_size: int
    pad_id: int
    task: str | None
    label_names: list[str]
    label_map: dict[str, int]
    label_separator: str
    split: dict[str, Any] | None
    dedup: bool
    conflicts: int
    leaked: dict[str, int]
    parts: dict[str, Part]
    store: str = "jsonl"
    task_name: str | None = None
    corpus: dict[str, Any] | None = None
    version: int = field(default=FORMAT_VERSION)

    def encoding_settings(self) -> EncodingSettings:
        e = self.encoding
        return EncodingSettings(e["max_len"], e["cased"], tuple(e["clean"]), e["pair"])

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Reads a manifest file.

        Raises:
            DataError: it is absent, damaged or of a newer format.
        """
        try:
            values = orjson.loads(path.read_bytes())
            version = values.get("version")
            if version != FORMAT_VERSION:
                raise DataError(
                    f"{path}: this version reads format {FORMAT_VERSION}. Received: {version}. Encode the data again."
                )
            values.setdefault("store", "jsonl")
            for name in ("task_name", "corpus"):  # of a manifest that was written before there were any
                values.setdefault(name, None)
            _check(values, _SHAPE, "it")
            values["parts"] = {name: Part(**part) for name, part in values["parts"].items()}
            manifest = cls(**values)
            _check_numbers(manifest)
        except OSError as error:
            raise DataError(f"{path}: there is no data set here. Received: {error.strerror}.") from error
        except (ValueError, AttributeError, TypeError, ConfigError) as error:
            raise DataError(f"{path}: the manifest is damaged. Received: {error}. Encode the data again.") from error
        return manifest


def _check(value: Any, shape: Any, place: str) -> None:
    """Raises ValueError where a value read from JSON has not the shape that `_SHAPE` gives it."""
    if isinstance(shape, tuple):
        for choice in shape:
            with suppress(ValueError):
                return _check(value, choice, place)
    elif isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            shape = dict.fromkeys(value, shape[str])
        for name, inner in shape.items():
            if name not in value:
                raise ValueError(f"{place} without {name!r}")
            _check(value[name], inner, repr(name))
        return None
    elif isinstance(shape, list) and isinstance(value, list):
        for item in value:
            _check(item, shape[0], place)
        return None
    elif value == shape or (isinstance(shape, type) and type(value) is shape):
        return None
    raise ValueError(f"{place} is {type(value).__name__} {str(value)[:40]!r}")


def _check_numbers(manifest: "Manifest") -> None:
    """Raises ValueError where numbers cannot be those of a data set."""
    classes = len(manifest.label_names)
    if len(set(manifest.label_names)) != classes or not all(0 <= i < classes for i in manifest.label_map.values()):
        raise ValueError("names or numbers of classes that do not go together")
    if not 0 <= manifest.pad_id < manifest.vocab_size:
        raise ValueError(f"pad_id {manifest.pad_id} in a vocabulary of {manifest.vocab_size}")
    if not set(manifest.parts) <= set(PARTS) or "train" not in manifest.parts:
        raise ValueError(f"the parts {', '.join(map(repr, manifest.parts))}")
    for name, part in manifest.parts.items():
        if min(part.rows, part.bytes, part.truncated) < 0:
            raise ValueError(f"a negative number for {name}")
    manifest.encoding_settings()


@dataclass(frozen=True)
class Input:
    """An input file as it was when the run began."""

    path: str
    bytes: int
    modified_ns: int
    checksum: str

    @classmethod
    def of(cls, path: str) -> "Input":
        stat = Path(path).stat()
        return cls(path, stat.st_size, stat.st_mtime_ns, file_checksum(path))

    def to_dict(self) -> dict[str, Any]:
        return {"name": printable(self.path), "bytes": self.bytes, "checksum": self.checksum}

    def check(self) -> None:
        """Raises DataError where the file is another one now."""
        stat = Path(self.path).stat()
        if (stat.st_size, stat.st_mtime_ns) != (self.bytes, self.modified_ns):
            raise DataError(f"{self.path}: the file changed while it was read. Run again when it is complete.")


def file_checksum(path: Path | str, progress: Callable[[int], object] = int) -> str:
    """BLAKE2b-128 of a file, hexadecimal; `progress` is told of the bytes as they are read."""
    digest = hashlib.blake2b(digest_size=16)
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()
