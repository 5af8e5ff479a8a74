"""`manifest.json`: what a data set is and how it was made. Written last; no manifest, no data set."""

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tfbert.errors import DataError
from tfbert.text.row_encoder import EncodingSettings

FORMAT_VERSION = 1
NAME = "manifest.json"
TASKS = ("classify", "multilabel", "regression")


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
            values["parts"] = {name: Part(**part) for name, part in values["parts"].items()}
            return cls(**values)
        except OSError as error:
            raise DataError(f"{path}: there is no data set here. Received: {error.strerror}.") from error
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: the manifest is damaged. Received: {error}. Encode the data again.") from error


def file_checksum(path: Path | str) -> str:
    """BLAKE2b-128 of a file, hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
