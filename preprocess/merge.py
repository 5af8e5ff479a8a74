"""Parts to files: validation split and duplicates by text hash, then one ordered pass over the parts.

Memory is bounded: texts are compared a bucket of hashes at a time, the split keeps a histogram of hashes a label, and
a part is merged on its own. What must be known of every row lies in work files, of which a window is mapped at a time.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tfbert.data.index import IndexWriter
from tfbert.data.manifest import Part
from tfbert.data.source import Source, printable
from tfbert.progress import Progress, logger

ROW = np.dtype(
    [
        ("size", "<u4"),  # bytes of the line
        ("length", "<i4"),  # token ids in the line
        ("full_length", "<i4"),  # before truncation
        ("label", "<i4"),  # class id or -1
        ("label_key", "<u4"),  # equal for equal labels of any task
        ("line", "<u4"),  # line number in the chunk
        ("hash", "<u8"),  # of the text; decides duplicates together with hash2, and the split alone
        ("hash2", "<u8"),
    ]
)
TEXT = np.dtype(
    [
        ("number", "<i8"),  # of the row in its group
        ("hash", "<u8"),
        ("hash2", "<u8"),
        ("label", "<i4"),
        ("label_key", "<u4"),
        ("conflict", "?"),  # the text occurred with another label too
    ]
)
BUCKET_ROWS = 1 << 18
MAX_BUCKET_BITS = 8  # a bucket is an open file
WINDOW_ROWS = 1 << 22
EXACT_LENGTHS = 1024  # lengths above are counted in steps of 256
TRAIN, VAL, DUPLICATE, CONFLICT = 0, 1, 2, 3


@dataclass(frozen=True)
class PartStats:
    """Counts of one part; `source` and `first_line` are filled in by the parent.

    Attributes:
        lines: rows read.
        physical_lines: lines of the file; more than `lines` where a CSV record spans several.
        rows: rows kept.
        rejected: rows rejected, by reason.
        first_bad: the first reject that is the data's fault.
        sizes: bytes of the part's files, by suffix.
        source: number of the input in its group.
        first_line: line number of the part's first row.
    """

    lines: int
    physical_lines: int
    rows: int
    rejected: dict[str, int]
    first_bad: dict[str, Any] | None
    sizes: dict[str, int] = field(default_factory=dict)
    source: int = 0
    first_line: int = 1

    def at(self, source: int, first_line: int) -> "PartStats":
        return replace(self, source=source, first_line=first_line)


@dataclass(frozen=True)
class PartFiles:
    """The files of one part; the statistics come last, and with them the part is whole.

    Suffixes: `.jsonl` the lines, `.rows` the table, `.rejects` unusable rows; where duplicates are dropped, `.texts`
    the cut texts of all rows; where rows have several classes, `.classes` their (row, class) pairs.
    """

    prefix: str

    def path(self, suffix: str) -> Path:
        return Path(self.prefix + suffix)

    def save(self, contents: Mapping[str, bytes], stats: PartStats) -> PartStats:
        for suffix, content in contents.items():
            self.path(suffix).write_bytes(content)
        stats = replace(stats, sizes={suffix: len(content) for suffix, content in contents.items()})
        temporary = self.path(".stats.tmp")
        temporary.write_bytes(orjson.dumps(asdict(stats)))
        temporary.replace(self.path(".stats"))
        return stats

    def load(self) -> PartStats | None:
        """The statistics of a whole part, or None where it is absent or a file of it was cut."""
        try:
            stats = PartStats(**orjson.loads(self.path(".stats").read_bytes()))
            whole = all(self.path(suffix).stat().st_size == size for suffix, size in stats.sizes.items())
        except (OSError, orjson.JSONDecodeError):
            return None
        return stats if whole else None

    def table(self) -> npt.NDArray[np.void]:
        return np.fromfile(self.path(".rows"), ROW)

    def rejects(self) -> Iterator[dict[str, Any]]:
        with self.path(".rejects").open("rb") as file:
            for line in file:
                yield orjson.loads(line)

    def texts(self) -> list[str]:
        texts: list[str] = orjson.loads(self.path(".texts").read_bytes())
        return texts

    def classes(self) -> npt.NDArray[np.int32] | None:
        path = self.path(".classes")
        return np.fromfile(path, "<i4").reshape(-1, 2) if path.exists() else None


class _RowFile:
    """One number a row, in a file; only a window of it is in memory."""

    def __init__(self, path: Path, rows: int, dtype: str):
        self._path, self._dtype = path, np.dtype(dtype)
        with path.open("wb") as file:
            file.truncate(rows * self._dtype.itemsize)

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        return np.fromfile(self._path, self._dtype, count, offset=first * self._dtype.itemsize)

    def write(self, first: int, values: npt.NDArray[Any]) -> None:
        with self._path.open("r+b") as file:
            file.seek(first * self._dtype.itemsize)
            file.write(values.astype(self._dtype, copy=False).tobytes())

    def scatter(self, numbers: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Sets the values of the given rows; `numbers` are in ascending order."""
        a = 0
        while a < len(numbers):
            first = int(numbers[a])
            b = int(np.searchsorted(numbers, first + WINDOW_ROWS))
            offset, shape = first * self._dtype.itemsize, (int(numbers[b - 1]) - first + 1,)
            window = np.memmap(self._path, self._dtype, "r+", offset=offset, shape=shape)
            window[numbers[a:b] - first] = values[a:b]
            a = b


@dataclass
class _Counts:
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
        total = sum(self._rows(group) for group in self._parts)
        with (self._folder / "rejects.jsonl").open("wb") as rejects, Progress(total, " rows", "merge") as progress:
            for group in self._parts:
                destination = self._resolve(group, merged)
                self._merge(group, destination, merged, rejects, progress)
        if self._dedup:
            merged.leaked = self._leaks()
        return merged

    @property
    def _bucket_bits(self) -> int:
        largest = max(self._rows(group) for group in self._parts)
        return min(MAX_BUCKET_BITS, max(0, (largest - 1) // BUCKET_ROWS).bit_length())

    def _rows(self, group: str) -> int:
        return sum(part.rows for part in self._parts[group])

    def _tables(self, group: str) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """(number of the first row, table) of every part."""
        first = 0
        for number in range(len(self._parts[group])):
            table = self._files(group, number).table()
            yield first, table
            first += len(table)

    def _resolve(self, group: str, merged: Merged) -> _RowFile | None:
        """Where every row of a group goes; None: all to the part of the group's name."""
        rows = self._rows(group)
        splits = group == "train" and self._val_fraction > 0
        if not rows or not (splits or self._dedup):
            return None
        destination = _RowFile(self._folder / f"{group}.destination.work", rows, "u1")
        label_of_text = _RowFile(self._folder / f"{group}.labels.work", rows, "<i4")
        self._partition(group)
        for bucket in range(1 << self._bucket_bits):
            merged.conflicts += self._compare_texts(group, bucket, destination if self._dedup else None, label_of_text)
        if splits and not self._split(group, destination, label_of_text):
            logger.warning("no row was set apart for validation: %s rows are too few for the fraction", f"{rows:,}")
        return destination

    def _bucket(self, group: str, bucket: int) -> Path:
        return self._folder / f"{group}.bucket-{bucket}.work"

    def _partition(self, group: str) -> None:
        """Writes the texts of a group to files, a range of hashes each, in the order of the rows."""
        bits = self._bucket_bits
        with ExitStack() as stack:
            files = [stack.enter_context(self._bucket(group, bucket).open("wb")) for bucket in range(1 << bits)]
            for first, table in self._tables(group):
                texts = np.zeros(len(table), TEXT)
                texts["number"] = np.arange(first, first + len(table))
                for name in ("hash", "hash2", "label", "label_key"):
                    texts[name] = table[name]
                bucket = table["hash2"] >> np.uint64(64 - bits) if bits else np.zeros(len(table), np.uint64)
                texts = texts[np.argsort(bucket, kind="stable")]
                ends = np.cumsum(np.bincount(bucket.astype(np.int64), minlength=len(files)))
                for file, a, b in zip(files, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                    file.write(texts[a:b].tobytes())

    def _compare_texts(self, group: str, bucket: int, destination: _RowFile | None, label_of_text: _RowFile) -> int:
        """Gives every row of a bucket the label of its text's first row; marks rows whose text occurred before.

        What is kept in memory is one row a text. Returns the number of texts with several labels.
        """
        known = np.zeros(0, TEXT)
        with self._bucket(group, bucket).open("rb") as file:
            while len(rows := np.fromfile(file, TEXT, BUCKET_ROWS)):
                both = np.concatenate([known, rows])
                order = np.lexsort((both["hash2"], both["hash"]))  # stable: known texts and earlier rows come first
                both = both[order]
                is_first = np.ones(len(both), bool)
                is_first[1:] = (both["hash"][1:] != both["hash"][:-1]) | (both["hash2"][1:] != both["hash2"][:-1])
                known, text = both[is_first], np.cumsum(is_first) - 1
                differs = both["label_key"] != known["label_key"][text]
                known["conflict"] |= np.logical_or.reduceat(differs, np.flatnonzero(is_first))
                new = np.argsort(order)[len(order) - len(rows) :]  # where the rows are in `both`
                label_of_text.scatter(rows["number"], known["label"][text][new])
                if destination is not None:
                    code = np.where(is_first, TRAIN, np.where(differs, CONFLICT, DUPLICATE))
                    destination.scatter(rows["number"], code[new])
        known["hash"].tofile(self._texts(group, bucket))
        return int(np.count_nonzero(known["conflict"]))

    def _texts(self, group: str, bucket: int) -> Path:
        return self._folder / f"{group}.texts-{bucket}.work"

    def _split(self, group: str, destination: _RowFile, label_of_text: _RowFile) -> int:
        """Sends the rows with the smallest hashes of each label to the validation part; returns their number.

        Equal texts have equal hashes and the label of their first row, so they stay together. The sizes come from
        the largest remainders; the last rows of a label stay in the training part.
        """
        labels = max(1, self._num_labels)
        bins = 1 << int(np.clip(22 - (labels - 1).bit_length(), 6, 16))
        shift = np.uint64(64 - (bins - 1).bit_length())
        counts = np.zeros((labels, bins), np.int64)
        for first, table in self._tables(group):
            kept = destination.read(first, len(table)) == TRAIN
            label = np.maximum(label_of_text.read(first, len(table))[kept], 0)
            np.add.at(counts, (label, (table["hash"][kept] >> shift).astype(np.int64)), 1)
        thresholds = _split_thresholds(counts, self._val_fraction)
        chosen_rows = 0
        for first, table in self._tables(group):
            here = destination.read(first, len(table))
            label = np.maximum(label_of_text.read(first, len(table)), 0)
            chosen = ((table["hash"] >> shift).astype(np.int64) < thresholds[label]) & (here == TRAIN)
            here[chosen] = VAL
            destination.write(first, here)
            chosen_rows += int(np.count_nonzero(chosen))
        return chosen_rows

    def _merge(
        self,
        group: str,
        destination: _RowFile | None,
        merged: Merged,
        rejects: Any,
        progress: Progress,
    ) -> None:
        outputs = {TRAIN: _Output(self._folder, group)}
        left_out: Counter[str] = Counter()
        for number, (first, table) in enumerate(self._tables(group)):
            part, files = self._parts[group][number], self._files(group, number)
            goes = destination.read(first, len(table)) if destination is not None else np.zeros(len(table), "u1")
            if VAL not in outputs and np.any(goes == VAL):
                outputs[VAL] = _Output(self._folder, "val")
            data = memoryview(files.path(".jsonl").read_bytes())
            ends = np.cumsum(table["size"], dtype=np.int64)
            for a, b in _runs(goes):
                if (output := outputs.get(int(goes[a]))) is not None:
                    output.write(data[ends[a] - table["size"][a] : ends[b - 1]], table[a:b])
            pairs = files.classes()
            for code, output in outputs.items():
                chosen = goes == code
                classes = table["label"][chosen] if pairs is None else pairs[chosen[pairs[:, 0]], 1]
                output.counts.add(table[chosen], classes)
            dropped = _dropped(goes, table, files)
            left_out.update(row["reason"] for row in dropped)
            path = printable(self._sources[group][part.source].path)
            for row in sorted([*files.rejects(), *dropped], key=lambda row: row["line"]):
                line = {"file": path} | row | {"line": part.first_line + row["line"] - 1}
                rejects.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            progress.update(len(table))
        merged.rejected[group] = left_out
        for code, output in outputs.items():
            merged.parts["val" if code == VAL else group] = output.close()

    def _leaks(self) -> dict[str, int]:
        """Rows kept of the given val and test files whose text also occurs in the training input."""
        leaks = {}
        for group in self._parts:
            if group == "train":
                continue
            leaks[group] = 0
            for bucket in range(1 << self._bucket_bits):
                train, other = (_hashes(self._texts(name, bucket)) for name in ("train", group))
                leaks[group] += int(np.count_nonzero(np.isin(other, train)))
        return leaks


def _hashes(path: Path) -> npt.NDArray[np.uint64]:
    return np.fromfile(path, np.uint64) if path.exists() else np.zeros(0, np.uint64)


def _dropped(goes: npt.NDArray[np.uint8], table: npt.NDArray[np.void], files: PartFiles) -> list[dict[str, Any]]:
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
            "text": texts[i],
        }
        for i in rows
    ]


def _split_thresholds(counts: npt.NDArray[np.int64], fraction: float) -> npt.NDArray[np.int64]:
    """For every label the number of leading hash bins whose rows go to validation.

    Args:
        counts: rows by label and hash bin, shape (labels, bins).
        fraction: wanted share.
    """
    per_label = counts.sum(axis=1)
    wanted = per_label * fraction
    sizes = np.floor(wanted).astype(np.int64)
    missing = round(float(per_label.sum()) * fraction) - int(sizes.sum())
    by_remainder = np.argsort(-(wanted - sizes), kind="stable")
    with_room = by_remainder[(sizes < per_label - 1)[by_remainder]]
    sizes[with_room[: max(0, missing)]] += 1
    before = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
    distance = np.abs(before - sizes[:, None])
    distance[(before > 0) & (before == per_label[:, None])] = np.iinfo(np.int64).max  # never all rows of a label
    thresholds: npt.NDArray[np.int64] = np.argmin(distance, axis=1)
    return thresholds


def _runs(values: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Ranges of equal neighbours."""
    if not len(values):
        return
    cuts = np.flatnonzero(np.diff(values)) + 1
    edges: list[int] = [0, *cuts.tolist(), len(values)]
    yield from zip(edges[:-1], edges[1:], strict=True)
