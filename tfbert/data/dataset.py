"""A data-set folder, or a bare JSON-lines or Arrow file, as training takes it."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tfbert.data.labels import load_label_map
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import PARTS, Manifest, file_checksum
from tfbert.data.source import printable
from tfbert.data.store import SUFFIXES, RowStore, open_store
from tfbert.errors import DataError
from tfbert.progress import Progress

MAX_BARE_CLASSES = 10_000  # of a file without label names; a larger class id is a mistake


def holds_token_ids(path: Path) -> bool:
    """Whether a folder or file is, or was to be, a data set; a task as TFDS has it also has a train.jsonl."""
    arrow = SUFFIXES["arrow"]
    if path.suffix == arrow or any((path / name).exists() for name in (MANIFEST, "rejects.jsonl", f"train{arrow}")):
        return True
    try:
        with (path if path.is_file() else path / "train.jsonl").open("rb") as file:
            first = orjson.loads(next((line for line in file if line.strip()), b"{}"))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "wordids" in first


@dataclass(frozen=True)
class DataSet:
    """Parts of a data set and what is known about it.

    Attributes:
        path: folder or file.
        parts: data files by name: train, val, test.
        manifest: None for files that were not made by `preprocess encode`.
    """

    path: Path
    parts: dict[str, Path]
    manifest: Manifest | None

    @classmethod
    def open(cls, path: Path | str) -> "DataSet":
        """Opens a folder with a manifest, a folder with train.jsonl or train.arrow, or such a file (train alone).

        Raises:
            DataError: there is no data set, or a file of it is missing or not the one of the manifest.
        """
        path = Path(path)
        if path.is_file():
            if (path.parent / MANIFEST).is_file():
                raise DataError(f"--data names the folder of a data set. Received: {path}. Give {path.parent}.")
            return cls(path, {"train": path}, None)
        if (path / MANIFEST).is_file():
            manifest = Manifest.load(path / MANIFEST)
            parts = {name: path / f"{name}{SUFFIXES[manifest.store]}" for name in manifest.parts}
            for name, file in parts.items():
                if not file.is_file() or file.stat().st_size != manifest.parts[name].bytes:
                    raise DataError(f"{file}: the file is not the one of the manifest. Encode the data again.")
            vocab = path / "vocab.txt"
            if not vocab.is_file() or file_checksum(vocab) != manifest.vocab_checksum:
                raise DataError(f"{vocab}: the file is not the one of the manifest. Encode the data again.")
            _check_label_file(path / "labels.txt", manifest)
            return cls(path, parts, manifest)
        if (path / "rejects.jsonl").exists():  # `preprocess encode` was stopped while it published
            raise DataError(f"{path}: the data set is not complete. Received: no {MANIFEST}. Encode the data again.")
        kinds = [suffix for suffix in SUFFIXES.values() if (path / f"train{suffix}").is_file()]
        if len(kinds) > 1:
            raise DataError(f"{path}: a data set has one kind of files. Received: train{' and train'.join(kinds)}.")
        files = {name: path / f"{name}{suffix}" for suffix in kinds for name in PARTS}
        parts = {name: file for name, file in files.items() if file.is_file()}
        if not parts:
            raise DataError(
                f"--data names a folder made by `preprocess encode`, or a JSON-lines or Arrow file. Received: {path}"
                f"{'' if path.exists() else ', which does not exist'}."
            )
        return cls(path, parts, None)

    @property
    def vocab(self) -> Path | None:
        return self.path / "vocab.txt" if self.manifest is not None else None

    @property
    def task(self) -> str | None:
        return self.manifest.task if self.manifest else "classify"

    def store(self, part: str) -> RowStore:
        """The rows of a part.

        Raises:
            DataError: there is no such part, or its index is not the one of the manifest.
        """
        if part not in self.parts:
            raise DataError(f"{self.path}: there is no part {part!r}. The parts are: {', '.join(self.parts)}.")
        store = open_store(self.parts[part])
        if self.manifest is not None and len(store) != self.manifest.parts[part].rows:
            store.close()
            raise DataError(
                f"{store.path}: the file has the rows of its manifest. Received: {len(store):,} rows, "
                f"{self.manifest.parts[part].rows:,} in the manifest. Encode the data again."
            )
        return store

    def verify(self, remembered: Path | None = None, only: str | None = None) -> None:
        """Compares every byte of the parts with the checksums of the manifest.

        That takes 3 s a gigabyte, so it is done once: files that were found right are known again by size and time.

        Args:
            remembered: what `remember` wrote.
            only: the one part to compare.

        Raises:
            DataError: a file is not the one of the manifest.
        """
        if self.manifest is None or (remembered is not None and self._is_remembered(remembered)):
            return
        parts = {name: part for name, part in self.manifest.parts.items() if only in (None, name)}
        with Progress(sum(part.bytes for part in parts.values()), "B", "check data") as progress:
            for name, part in parts.items():
                if file_checksum(self.parts[name], progress.update) != part.checksum:
                    raise DataError(
                        f"{self.parts[name]}: the file is not the one of the manifest. Encode the data again."
                    )

    def remember(self, path: Path) -> None:
        """Writes down which files were verified."""
        path.write_bytes(orjson.dumps(self._states()))

    def _is_remembered(self, path: Path) -> bool:
        try:
            return bool(orjson.loads(path.read_bytes()) == self._states())
        except (OSError, ValueError):
            return False

    def _states(self) -> dict[str, list[Any]]:
        """Place, size, time and checksum of the parts."""
        stats = {name: file.stat() for name, file in self.parts.items()}
        sums = {name: part.checksum for name, part in self.manifest.parts.items()} if self.manifest else {}
        return {
            name: [printable(self.parts[name].resolve()), stat.st_size, stat.st_mtime_ns, sums.get(name)]
            for name, stat in stats.items()
        }

    def label_names(self, train: RowStore) -> list[str]:
        """Names in id order: of the manifest; for bare files of a labels.txt beside them, else the class ids met.

        Raises:
            DataError: with `file:line`, where a bare file has a row without a class, or with an absurd one.
        """
        if self.manifest is not None:
            return self.manifest.label_names
        names = self.parts["train"].parent / "labels.txt"
        if names.is_file():
            return list(load_label_map(names).names)
        train.check_labels(MAX_BARE_CLASSES)
        return [str(i) for i in range(int(np.max(train.labels, initial=-1)) + 1)]

    def mark(self, stores: Mapping[str, RowStore]) -> dict[str, Any]:
        """What the data are known by: checksums of the parts; of bare files size, and lengths and labels of the rows.

        Args:
            stores: of the parts that count.
        """
        if self.manifest is not None:
            return {name: part.checksum for name, part in self.manifest.parts.items()}
        return {name: _mark(store) for name, store in stores.items()}


def _mark(store: RowStore) -> list[int]:
    return [
        store.path.stat().st_size,
        zlib.crc32(store.lengths.tobytes()),
        zlib.crc32(store.labels.tobytes()),
    ]


def _check_label_file(path: Path, manifest: Manifest) -> None:
    """Names that somebody changed in one place alone must not be taken for those of the classes."""
    wanted = "".join(f"{name}\n" for name in manifest.label_names).encode("utf-8")
    if path.is_file() and path.read_bytes() != wanted:
        raise DataError(
            f"{path}: the file is not the one of the manifest. Encode the data again, with --labels for other names."
        )
