"""Where every row goes: train, val, or nowhere because its text occurred before.

Texts are compared by 128-bit hashes, a range of hashes (bucket) at a time, of which one row a text is in memory. The
validation split takes the smallest hashes of each label. What must be known of every row lies in files, of which a
window is mapped at a time. So memory depends neither on the number of rows nor on how often one text occurs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
BORDER = np.dtype([("label", "<i8"), ("hash", "<u8"), ("rows", "<i8")])
BUCKET_ROWS = 1 << 18
MAX_BUCKET_BITS = 8  # a bucket is an open file
WINDOW_ROWS = 1 << 22
TRAIN, VAL, DUPLICATE, CONFLICT = 0, 1, 2, 3

Tables = Callable[[], Iterator[npt.NDArray[np.void]]]  # the tables of the parts of a group, in order


class RowFile:
    """One number a row, in a file; only a window of it is in memory."""

    def __init__(self, path: Path, rows: int, dtype: str):
        self._path, self._dtype = path, np.dtype(dtype)
        with path.open("wb") as file:  # all zero; the space is taken now, as a mapped file cannot report a full disk
            os.posix_fallocate(file.fileno(), 0, rows * self._dtype.itemsize)

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


def bucket_bits(rows: int) -> int:
    """How many leading bits of a hash name its bucket, for so many rows."""
    return min(MAX_BUCKET_BITS, max(0, (rows - 1) // BUCKET_ROWS).bit_length())


class TextGroups:
    """The rows of a group (train, val, test) by their texts.

    Args:
        folder: for the files of the work; their names begin with `name`.
        name: of the group.
        tables: makes an iterator over the tables of the parts.
        rows: rows in all.
        bits: of `bucket_bits`; the same for groups whose texts are compared.
        destination: of the rows, where it is known already.

    Attributes:
        destination: where every row goes; all to `TRAIN` until something else is found out.
    """

    def __init__(
        self, folder: Path, name: str, tables: Tables, rows: int, bits: int, destination: RowFile | None = None
    ):
        self._folder, self._name, self._tables, self._bits = folder, name, tables, bits
        self.destination = destination or RowFile(folder / f"{name}.destination.work", rows, "u1")
        self._label_of_text = RowFile(folder / f"{name}.labels.work", rows, "<i4")

    def _numbered(self) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        first = 0
        for table in self._tables():
            yield first, table
            first += len(table)

    def _path(self, kind: str, bucket: int) -> Path:
        return self._folder / f"{self._name}.{kind}-{bucket}.work"

    def compare(self, drop: bool) -> int:
        """Finds rows with equal texts; `drop` sends all but the first of them to `DUPLICATE` or `CONFLICT`.

        Returns the number of texts with several labels.
        """
        self._partition()
        return sum(self._compare_bucket(bucket, drop) for bucket in range(1 << self._bits))

    def _partition(self) -> None:
        """Writes the texts to the files of their buckets, in the order of the rows."""
        with ExitStack() as stack:
            files = [stack.enter_context(self._path("bucket", i).open("wb")) for i in range(1 << self._bits)]
            for first, table in self._numbered():
                texts = np.zeros(len(table), TEXT)
                texts["number"] = np.arange(first, first + len(table))
                for name in ("hash", "hash2", "label", "label_key"):
                    texts[name] = table[name]
                bucket = table["hash2"] >> np.uint64(64 - self._bits) if self._bits else np.zeros(len(table), "<u8")
                texts = texts[np.argsort(bucket, kind="stable")]
                ends = np.cumsum(np.bincount(bucket.astype(np.int64), minlength=len(files))).tolist()
                for file, a, b in zip(files, [0, *ends[:-1]], ends, strict=True):
                    file.write(texts[a:b].tobytes())

    def _compare_bucket(self, bucket: int, drop: bool) -> int:
        known = np.zeros(0, TEXT)
        with self._path("bucket", bucket).open("rb") as file:
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
                self._label_of_text.scatter(rows["number"], known["label"][text][new])
                if drop:
                    code = np.where(is_first, TRAIN, np.where(differs, CONFLICT, DUPLICATE))
                    self.destination.scatter(rows["number"], code[new])
        known["hash"].tofile(self._path("texts", bucket))
        return int(np.count_nonzero(known["conflict"]))

    def count_shared(self, other: "TextGroups") -> int:
        """Number of different texts that another group has too; both have been compared."""
        shared = 0
        for bucket in range(1 << self._bits):
            mine, others = (np.fromfile(group._path("texts", bucket), "<u8") for group in (self, other))
            shared += int(np.count_nonzero(np.isin(mine, others)))
        return shared

    def split(self, fraction: float, num_labels: int) -> int:
        """Sends the rows with the smallest hashes of each label to `VAL`; returns their number.

        The rows have been compared. Those of one text stay together, under the label of the first of them. The sizes
        are those of the largest remainders, as near as texts that occur several times allow; a label keeps at least
        one row in `TRAIN`.
        """
        labels = max(1, num_labels)
        bins = 1 << int(np.clip(22 - (labels - 1).bit_length(), 6, 16))
        shift = np.uint64(64 - (bins - 1).bit_length())
        before = np.zeros((labels, bins), np.int64)
        for label, hashes in self._kept():
            np.add.at(before.reshape(-1), label * bins + (hashes >> shift).astype(np.int64), 1)
        per_label = before.sum(axis=1)
        before = np.cumsum(before, axis=1) - before
        sizes = split_sizes(per_label, fraction)
        border = np.count_nonzero(before <= sizes[:, None], axis=1) - 1  # the bin in which the cut lies
        before = before[np.arange(labels), border]
        found = [np.zeros(0, BORDER)]
        for label, hashes in self._kept():
            chosen = (hashes >> shift).astype(np.int64) == border[label]
            found.append(_border_texts(label[chosen], hashes[chosen]))
        texts = _add_up(np.concatenate(found))
        ends = np.searchsorted(texts["label"], np.arange(labels + 1))
        limits = np.zeros(labels, np.uint64)
        for i in np.flatnonzero(sizes):
            limits[i] = _limit(texts[ends[i] : ends[i + 1]], sizes[i] - before[i], per_label[i] - before[i])
        return self._send_to_val(limits)

    def _send_to_val(self, limits: npt.NDArray[np.uint64]) -> int:
        chosen_rows = 0
        for first, table in self._numbered():
            here = self.destination.read(first, len(table))
            label = np.maximum(self._label_of_text.read(first, len(table)), 0)
            chosen = (here == TRAIN) & (table["hash"] < limits[label])
            here[chosen] = VAL
            self.destination.write(first, here)
            chosen_rows += int(np.count_nonzero(chosen))
        return chosen_rows

    def _kept(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
        """Label (of the text; 0 where there are no classes) and hash of the rows that are in `TRAIN`, by part."""
        for first, table in self._numbered():
            kept = self.destination.read(first, len(table)) == TRAIN
            label = self._label_of_text.read(first, len(table))
            yield np.maximum(label[kept], 0).astype(np.int64), table["hash"][kept]


def split_sizes(per_label: npt.NDArray[np.int64], fraction: float) -> npt.NDArray[np.int64]:
    """Rows of every label that go to validation: largest remainders, and at least one row of a label stays."""
    wanted = per_label * fraction
    sizes: npt.NDArray[np.int64] = np.floor(wanted).astype(np.int64)
    missing = round(float(per_label.sum()) * fraction) - int(sizes.sum())
    by_remainder = np.argsort(-(wanted - sizes), kind="stable")
    with_room = by_remainder[(sizes < per_label - 1)[by_remainder]]
    sizes[with_room[: max(0, missing)]] += 1
    return sizes


def _border_texts(label: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    texts = np.zeros(len(label), BORDER)
    texts["label"], texts["hash"], texts["rows"] = label, hashes, 1
    return _add_up(texts)


def _add_up(texts: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Sorted by label and hash, one entry a text."""
    texts = texts[np.lexsort((texts["hash"], texts["label"]))]
    is_first = np.ones(len(texts), bool)
    is_first[1:] = (texts["hash"][1:] != texts["hash"][:-1]) | (texts["label"][1:] != texts["label"][:-1])
    added = texts[is_first]
    if len(texts):
        added["rows"] = np.add.reduceat(texts["rows"], np.flatnonzero(is_first))
    return added


def _limit(texts: npt.NDArray[np.void], wanted: int, rows: int) -> int:
    """The hash below which lie `wanted` rows, as nearly as whole texts allow, and fewer than `rows`."""
    below = np.concatenate([[0], np.cumsum(texts["rows"])])
    cut = int(np.argmin(np.where(below < rows, np.abs(below - wanted), np.iinfo(np.int64).max)))
    return int(texts["hash"][cut]) if cut < len(texts) else int(texts["hash"][-1]) + 1
