"""Parts to files: validation split and duplicates by text hash, then one ordered pass over the parts.

Memory is bounded: hashes are looked at a bucket at a time, the split keeps a histogram of hashes a label, and a part
is merged on its own. What must be known of every row lies in memory-mapped work files.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tfbert.data.index import IndexWriter
from tfbert.data.manifest import Part
from tfbert.data.source import Source
from tfbert.progress import Progress

ROW = np.dtype(
    [
        ("size", "<u4"),  # bytes of the line
        ("length", "<i4"),  # token ids in the line
        ("full_length", "<i4"),  # before truncation
        ("label", "<i4"),  # class id or -1
        ("line", "<u4"),  # line number in the chunk
        ("hash", "<u8"),  # of the text; decides duplicates together with hash2, and the split alone
        ("hash2", "<u8"),
    ]
)
BUCKET_ROWS = 1 << 20
EXACT_LENGTHS = 1024  # lengths above are counted in steps of 256
TRAIN, VAL, DUPLICATE, CONFLICT = 0, 1, 2, 3


@dataclass(frozen=True)
class PartStats:
    """Counts of one part; `source` and `first_line` are filled in by the parent."""

    lines: int
    physical_lines: int
    rows: int
    rejected: dict[str, int]
    first_reject: dict[str, Any] | None
    source: int = 0
    first_line: int = 1

    def at(self, source: int, first_line: int) -> "PartStats":
        return replace(self, source=source, first_line=first_line)


@dataclass(frozen=True)
class PartFiles:
    """The files of one part; the statistics come last, and with them the part is whole."""

    prefix: str

    def path(self, suffix: str) -> Path:
        return Path(self.prefix + suffix)

    def write(self, lines: bytes, table: npt.NDArray[np.void], rejects: Sequence[dict[str, Any]]) -> None:
        self.path(".jsonl").write_bytes(lines)
        self.path(".rows").write_bytes(table.tobytes())
        self.path(".rejects").write_bytes(b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in rejects))

    def write_stats(self, stats: PartStats) -> None:
        temporary = self.path(".stats.tmp")
        temporary.write_bytes(orjson.dumps(asdict(stats)))
        temporary.replace(self.path(".stats"))

    def read_stats(self) -> PartStats | None:
        try:
            return PartStats(**orjson.loads(self.path(".stats").read_bytes()))
        except (OSError, orjson.JSONDecodeError):
            return None

    def table(self) -> npt.NDArray[np.void]:
        return np.fromfile(self.path(".rows"), ROW)

    def rejects(self) -> Iterator[dict[str, Any]]:
        with self.path(".rejects").open("rb") as file:
            for line in file:
                yield orjson.loads(line)


@dataclass
class _Counts:
    """What the merge counts of one output file."""

    rows: int = 0
    truncated: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, table: npt.NDArray[np.void]) -> None:
        self.rows += len(table)
        self.truncated += int(np.count_nonzero(table["full_length"] > table["length"]))
        full = table["full_length"].astype(np.int64)
        full = np.where(full > EXACT_LENGTHS, -(-full // 256) * 256, full)
        for counter, values in ((self.labels, table["label"]), (self.lengths, full)):
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                counter[int(value)] += int(count)


@dataclass
class Merged:
    """Outcome of the merge: parts by name, rows left out here, texts with several labels, validation leaks."""

    parts: dict[str, tuple[_Counts, str, int]]
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


class _Output:
    """One data file with index and checksum, written in pieces."""

    def __init__(self, folder: Path, name: str):
        self._path = folder / f"{name}.jsonl"
        self._file = self._path.open("wb")
        self._index = IndexWriter(folder / f"{name}.idx")
        self._digest = hashlib.blake2b(digest_size=16)
        self.counts = _Counts()

    def write(self, data: memoryview, table: npt.NDArray[np.void]) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._index.append(table["size"].astype(np.int64), table["length"], table["label"])

    def close(self) -> tuple[_Counts, str, int]:
        size = self._file.tell()
        self._file.close()
        self._index.close(size)
        return self.counts, self._digest.hexdigest(), size


class Merger:
    """Merges the parts of a run into `train.jsonl`, `val.jsonl`, `test.jsonl`, their indexes and `rejects.jsonl`.

    Args:
        folder: where the files are written.
        sources: inputs by group, for the names in the rejects.
        parts: statistics of the parts by group, in order.
        files: (group, number) -> files of the part.
        num_labels: number of classes; 0 where there are none.
        val_fraction: share of the train group that becomes the val part.
        dedup: drop rows whose text occurred before in their group.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sources: dict[str, list[Source]],
        parts: dict[str, list[PartStats]],
        files: Callable[[str, int], PartFiles],
        num_labels: int,
        val_fraction: float,
        dedup: bool,
    ):
        self._folder, self._sources, self._parts, self._files = folder, sources, parts, files
        self._num_labels, self._val_fraction, self._dedup = num_labels, val_fraction, dedup

    def run(self) -> Merged:
        merged = Merged({}, {}, 0, {})
        total = sum(part.rows for parts in self._parts.values() for part in parts)
        with (self._folder / "rejects.jsonl").open("wb") as rejects, Progress(total, " rows", "merge") as progress:
            for group in self._parts:
                destination = self._resolve(group, merged)
                self._merge(group, destination, merged, rejects, progress)
        if self._dedup:
            merged.leaked = self._leaks()
        return merged

    def _tables(self, group: str) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """(number of the first row, table) of every part."""
        first = 0
        for number in range(len(self._parts[group])):
            table = self._files(group, number).table()
            yield first, table
            first += len(table)

    def _work_array(self, name: str, rows: int, dtype: str) -> npt.NDArray[Any]:
        return np.memmap(self._folder / f"{name}.work", dtype, "w+", shape=(rows,))

    def _resolve(self, group: str, merged: Merged) -> npt.NDArray[np.uint8] | None:
        """Where every row of a group goes; None: all to the part of the group's name."""
        rows = sum(part.rows for part in self._parts[group])
        splits = group == "train" and self._val_fraction > 0
        if not rows or not (splits or self._dedup):
            return None
        destination = self._work_array(f"{group}.destination", rows, "u1")
        label_of_text = self._work_array(f"{group}.labels", rows, "<i4")
        merged.conflicts += self._find_duplicates(group, rows, destination, label_of_text)
        if not self._dedup:
            destination[:] = TRAIN
        if splits:
            self._split(group, destination, label_of_text)
        return destination

    def _find_duplicates(
        self, group: str, rows: int, destination: npt.NDArray[np.uint8], label_of_text: npt.NDArray[np.int32]
    ) -> int:
        """Marks rows whose text occurred before; gives every row the label of its text's first row.

        Returns the number of texts with several labels.
        """
        bits = max(0, (rows - 1) // BUCKET_ROWS).bit_length()
        conflicts = 0
        for bucket in range(1 << bits):
            numbers, hashes, hashes2, labels = [], [], [], []
            for first, table in self._tables(group):
                if bits:
                    chosen = np.flatnonzero(table["hash2"] >> np.uint64(64 - bits) == bucket)
                else:
                    chosen = np.arange(len(table))
                numbers.append(first + chosen)
                hashes.append(table["hash"][chosen])
                hashes2.append(table["hash2"][chosen])
                labels.append(table["label"][chosen])
            number, label = np.concatenate(numbers), np.concatenate(labels)
            h, h2 = np.concatenate(hashes), np.concatenate(hashes2)
            order = np.lexsort((number, h2, h))
            number, label, h, h2 = number[order], label[order], h[order], h2[order]
            is_first = np.ones(len(h), bool)
            is_first[1:] = (h[1:] != h[:-1]) | (h2[1:] != h2[:-1])
            text = np.cumsum(is_first) - 1
            first_label = label[is_first][text] if len(label) else label
            label_of_text[number] = first_label
            differs = label != first_label
            destination[number] = np.where(is_first, TRAIN, np.where(differs, CONFLICT, DUPLICATE))
            conflicts += len(np.unique(text[differs]))
        return conflicts

    def _split(self, group: str, destination: npt.NDArray[np.uint8], label_of_text: npt.NDArray[np.int32]) -> None:
        """Sends the rows with the smallest hashes of each label to the validation part.

        Equal texts have equal hashes and the label of their first row, so they stay together. The sizes come from
        the largest remainders; the only row of a label stays in the training part.
        """
        labels = max(1, self._num_labels)
        bins = 1 << int(np.clip(22 - (labels - 1).bit_length(), 6, 16))
        shift = np.uint64(64 - (bins - 1).bit_length())
        counts = np.zeros((labels, bins), np.int64)
        for first, table in self._tables(group):
            kept = destination[first : first + len(table)] == TRAIN
            label = np.maximum(label_of_text[first : first + len(table)][kept], 0)
            cell = label.astype(np.int64) * bins + (table["hash"][kept] >> shift).astype(np.int64)
            counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)
        thresholds = _split_thresholds(counts, self._val_fraction)
        for first, table in self._tables(group):
            here = destination[first : first + len(table)]
            label = np.maximum(label_of_text[first : first + len(table)], 0)
            chosen = (table["hash"] >> shift).astype(np.int64) < thresholds[label]
            here[chosen & (here == TRAIN)] = VAL

    def _merge(
        self,
        group: str,
        destination: npt.NDArray[np.uint8] | None,
        merged: Merged,
        rejects: Any,
        progress: Progress,
    ) -> None:
        names = {TRAIN: group}
        if destination is not None and np.any(destination == VAL):
            names[VAL] = "val"
        outputs = {code: _Output(self._folder, name) for code, name in names.items()}
        left_out: Counter[str] = Counter()
        for number, (first, table) in enumerate(self._tables(group)):
            part, files = self._parts[group][number], self._files(group, number)
            goes = destination[first : first + len(table)] if destination is not None else np.zeros(len(table), "u1")
            data = memoryview(files.path(".jsonl").read_bytes())
            ends = np.cumsum(table["size"], dtype=np.int64)
            for a, b in _runs(goes):
                if (output := outputs.get(int(goes[a]))) is not None:
                    output.write(data[ends[a] - table["size"][a] : ends[b - 1]], table[a:b])
            for code, output in outputs.items():
                output.counts.add(table[goes == code])
            dropped = [
                {"line": int(table["line"][i]), "reason": "duplicate" if goes[i] == DUPLICATE else "conflict"}
                for i in np.flatnonzero(goes >= DUPLICATE)
            ]
            left_out.update(row["reason"] for row in dropped)
            path = self._sources[group][part.source].path
            for row in sorted([*files.rejects(), *dropped], key=lambda row: row["line"]):
                line = {"file": path} | row | {"line": part.first_line + row["line"] - 1}
                rejects.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            progress.update(len(table))
        merged.rejected[group] = left_out
        for code, output in outputs.items():
            merged.parts[names[code]] = output.close()

    def _leaks(self) -> dict[str, int]:
        """Rows of the given val and test files whose text also occurs in the training input."""
        leaks = {}
        rows = sum(part.rows for part in self._parts["train"])
        bits = max(0, (rows - 1) // BUCKET_ROWS).bit_length()
        for group in self._parts:
            if group == "train":
                continue
            leaks[group] = 0
            for bucket in range(1 << bits):
                train = _bucket_hashes(self._tables("train"), bits, bucket)
                other = _bucket_hashes(self._tables(group), bits, bucket)
                leaks[group] += int(np.count_nonzero(np.isin(other, train)))
        return leaks


def _bucket_hashes(
    tables: Iterator[tuple[int, npt.NDArray[np.void]]], bits: int, bucket: int
) -> npt.NDArray[np.uint64]:
    found = [np.zeros(0, np.uint64)]
    for _, table in tables:
        hashes = table["hash"]
        found.append(hashes[table["hash2"] >> np.uint64(64 - bits) == bucket] if bits else hashes)
    return np.concatenate(found)


def _split_thresholds(counts: npt.NDArray[np.int64], fraction: float) -> npt.NDArray[np.int64]:
    """For every label the number of leading hash bins whose rows go to validation.

    Args:
        counts: rows by label and hash bin, shape (labels, bins).
        fraction: wanted share.
    """
    per_label = counts.sum(axis=1)
    wanted = per_label * fraction
    sizes = np.floor(wanted).astype(np.int64)
    missing = int(round(float(per_label.sum()) * fraction)) - int(sizes.sum())
    by_remainder = np.argsort(-(wanted - sizes), kind="stable")
    for label in by_remainder[: max(0, missing)]:
        sizes[label] += 1
    sizes = np.minimum(sizes, np.maximum(per_label - 1, 0))
    before = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
    return np.argmin(np.abs(before - sizes[:, None]), axis=1)


def _runs(values: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Ranges of equal neighbours."""
    if not len(values):
        return
    cuts = np.flatnonzero(np.diff(values)) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(values)], strict=True)
