"""Parts to files: one pass over the parts, in order, a part in memory at a time."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from preprocess.outputs import MakeOutput, Output
from preprocess.parts import PartFiles, PartStats
from preprocess.split import DUPLICATE, TRAIN, VAL, TextGroups, bucket_bits
from tfbert.data.manifest import Part
from tfbert.data.source import Source, printable
from tfbert.progress import Progress, logger

EXACT_LENGTHS = 1024  # lengths above are counted in steps of 256


@dataclass
class Counts:
    """What the merge counts of one output file."""

    rows: int = 0
    truncated: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, table: npt.NDArray[np.void], classes: npt.NDArray[np.int32]) -> None:
        self.rows += len(table)
        self.truncated += int(np.count_nonzero(table["full_length"] > table["length"]))
        full = table["full_length"].astype(np.int64)
        full = np.where(full > EXACT_LENGTHS, -(-full // 256) * 256, full)
        for counter, values in ((self.labels, classes), (self.lengths, full)):
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                counter[int(value)] += int(count)


@dataclass
class Merged:
    """Outcome of the merge: parts by name, rows left out here, texts with several labels, validation leaks."""

    parts: dict[str, tuple[Counts, str, int]]
    rejected: dict[str, Counter[str]]
    conflicts: int
    leaked: dict[str, int]

    def named_parts(self, names: Sequence[str]) -> dict[str, Part]:
        return {
            name: Part(
                rows=counts.rows,
                labels={label: counts.labels.get(i, 0) for i, label in enumerate(names)},
                length_histogram={str(length): counts.lengths[length] for length in sorted(counts.lengths)},
                truncated=counts.truncated,
                checksum=checksum,
                bytes=size,
            )
            for name, (counts, checksum, size) in self.parts.items()
        }


class Counted:
    """One data file and what is counted of it."""

    def __init__(self, output: Output):
        self._output = output
        self._counts = Counts()

    def write(self, files: PartFiles, table: npt.NDArray[np.void], chosen: npt.NDArray[np.bool_]) -> None:
        self._output.write(files, table, chosen)
        pairs = files.classes()
        labels = table["label"][chosen] if pairs is None else pairs[chosen[pairs[:, 0]], 1]
        self._counts.add(table[chosen], labels)

    def close(self) -> tuple[Counts, str, int]:
        return self._counts, *self._output.close()

    def discard(self) -> None:
        self._output.discard()


class Merger:
    """Merges the parts of a run into the data files train, val and test, their indexes and `rejects.jsonl`.

    A part is merged as soon as it is there, while others are made, unless it must be known of all rows first whether
    they stay and on which side.

    Args:
        folder: where the files are written.
        make_output: makes a data file in the folder.
        sources: inputs by group, for the names in the rejects.
        files: (group, number) -> files of the part.
        num_labels: number of classes; 0 where there are none.
        val_fraction: share of the train group that becomes the val part.
        dedup: drop rows whose text occurred before in their group.
        grouped: the split keeps the rows of a group together, not only those of a text.
    """

    def __init__(
        self,
        folder: Path,
        make_output: MakeOutput,
        *,
        sources: dict[str, list[Source]],
        files: Callable[[str, int], PartFiles],
        num_labels: int,
        val_fraction: float,
        dedup: bool,
        grouped: bool,
    ):
        self._folder, self._make_output = folder, make_output
        self._sources, self._files = sources, files
        self._num_labels, self._val_fraction, self._dedup = num_labels, val_fraction, dedup
        self._grouped = grouped
        self._parts: dict[str, list[PartStats]] = {name: [] for name in sources}
        self._outputs = {name: {TRAIN: Counted(make_output(name))} for name in sources}
        self._merged = Merged({}, {name: Counter() for name in sources}, 0, {})
        self._rejects = folder / "rejects.jsonl"
        self._rejects.write_bytes(b"")

    def __enter__(self) -> "Merger":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            for outputs in self._outputs.values():
                for output in outputs.values():
                    output.discard()

    def add(self, name: str, part: PartStats) -> None:
        """Takes the next part of a group; the groups come in their order."""
        self._parts[name].append(part)
        if not (self._dedup or self._val_fraction):
            table = self._files(name, len(self._parts[name]) - 1).table()
            self._merge(name, len(self._parts[name]) - 1, table, np.zeros(len(table), "u1"))

    def finish(self) -> Merged:
        """Merges what is not merged yet, when all parts have come."""
        merged = self._merged
        if self._dedup or self._val_fraction:
            self._merge_all()
        for name, outputs in self._outputs.items():
            for code, output in outputs.items():
                merged.parts["val" if code == VAL else name] = output.close()
        return merged

    def _merge_all(self) -> None:
        merged = self._merged
        groups = {name: self._text_group(name) for name in self._parts}
        with Progress(sum(map(self._rows, self._parts)), " rows", "merge") as progress:
            for name, group in groups.items():
                if group is not None:
                    merged.conflicts += group.compare(drop=self._dedup)
                    if self._splits(name) and not self._split(name, group):
                        logger.warning("no row was set apart for validation: there are too few for the fraction")
                first = 0
                for number, table in enumerate(self._tables(name)):
                    count = len(table)
                    goes = np.zeros(count, "u1") if group is None else group.destination.read(first, count)
                    self._merge(name, number, table, goes)
                    progress.update(count)
                    first += count
        if self._dedup:
            train = groups["train"]
            for name, group in groups.items():
                if name != "train":
                    merged.leaked[name] = group.count_shared(train) if group and train else 0

    def _rows(self, name: str) -> int:
        return sum(part.rows for part in self._parts[name])

    def _splits(self, name: str) -> bool:
        return name == "train" and self._val_fraction > 0

    def _split(self, name: str, texts: TextGroups) -> int:
        """Sets the validation rows apart; returns their number."""
        if self._grouped:
            rows, tables = self._rows(name), lambda: self._tables(name, grouped=True)
            texts = TextGroups(self._folder, f"{name}.groups", tables, rows, bucket_bits(rows), texts.destination)
            texts.compare(drop=False)
        return texts.split(self._val_fraction, self._num_labels)

    def _text_group(self, name: str) -> TextGroups | None:
        """For a group whose rows may go elsewhere than to the part of its name."""
        rows = self._rows(name)
        if not rows or not (self._splits(name) or self._dedup):
            return None
        bits = bucket_bits(max(map(self._rows, self._parts)))
        return TextGroups(self._folder, name, lambda: self._tables(name), rows, bits)

    def _tables(self, name: str, grouped: bool = False) -> Iterator[npt.NDArray[np.void]]:
        for number in range(len(self._parts[name])):
            files = self._files(name, number)
            yield files.table_of_groups() if grouped else files.table()

    def _merge(self, name: str, number: int, table: npt.NDArray[np.void], goes: npt.NDArray[np.uint8]) -> None:
        """Copies the rows of a part to where they go."""
        part, files, outputs = self._parts[name][number], self._files(name, number), self._outputs[name]
        if VAL not in outputs and np.any(goes == VAL):
            outputs[VAL] = Counted(self._make_output("val"))
        for code, output in outputs.items():
            output.write(files, table, goes == code)
        dropped = dropped_rows(goes, table, files)
        self._merged.rejected[name].update(row["reason"] for row in dropped)
        if part.rejected or dropped:
            with self._rejects.open("ab") as file:
                write_rejects(file, self._sources[name][part.source], part, [*files.rejects(), *dropped])


def dropped_rows(goes: npt.NDArray[np.uint8], table: npt.NDArray[np.void], files: PartFiles) -> list[dict[str, Any]]:
    """The rows of a part that were dropped as duplicates, as rejects."""
    rows = np.flatnonzero(goes >= DUPLICATE)
    if not len(rows):
        return []
    texts = files.texts()
    return [
        {
            "line": int(table["line"][i]),
            "reason": "duplicate" if goes[i] == DUPLICATE else "conflict",
            "detail": "the text occurred before" + ("" if goes[i] == DUPLICATE else " with another label"),
            "text": orjson.loads(texts[i]),
        }
        for i in rows
    ]


def write_rejects(file: BinaryIO, source: Source, part: PartStats, rejects: list[dict[str, Any]]) -> None:
    """Adds the rejects of a part, in the order of their lines."""
    path = printable(source.path)
    for reject in sorted(rejects, key=lambda reject: reject["line"]):
        line = {"file": path} | reject | {"line": part.first_line + reject["line"] - 1}
        file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
