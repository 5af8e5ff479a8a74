"""Rows of an Arrow IPC file, memory mapped: a batch is gathered by NumPy straight from the file.

Any uncompressed file is read whose column `wordids` holds lists of integers; `arrow_writer` tells which columns a row
may have.
"""

from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from tfbert.data.index import NO_LABEL, IndexWriter, RowIndex, index_path, read_index
from tfbert.data.record import MAX_ID, Record
from tfbert.data.rows import Ragged, RowColumns
from tfbert.data.source import import_pyarrow
from tfbert.data.store import RowNumbers, RowStore
from tfbert.errors import DataError
from tfbert.progress import Progress, logger

Numbers = npt.NDArray[np.int64]
_LABEL_KINDS = {"i": "class ids", "f": "numbers", "l": "lists of class ids"}


class _Fixed(NamedTuple):
    """A column of numbers: the whole file as such numbers, and which of them is the first of each record batch."""

    values: npt.NDArray[Any]
    first: Numbers

    def take(self, batches: Numbers, rows: Numbers) -> npt.NDArray[Any]:
        """The values of the rows of these numbers in these record batches."""
        values: npt.NDArray[Any] = self.values[self.first[batches] + rows]
        return values


class _Lists(NamedTuple):
    """A column of lists of integers: where the offsets of each record batch begin in the file, and its values."""

    path: Path
    offsets: npt.NDArray[Any]
    first_offset: Numbers
    values: npt.NDArray[Any]
    first_value: Numbers
    num_values: Numbers

    def take(self, batches: Numbers, rows: Numbers) -> Ragged:
        """The lists of the rows of these numbers in these record batches.

        Raises:
            DataError: a list reaches beyond its record batch.
        """
        at = self.first_offset[batches] + rows
        low, high = self.offsets[at], self.offsets[at + 1]
        if ((low < 0) | (high < low) | (high > self.num_values[batches])).any():
            raise DataError(
                f"{self.path}: the file is damaged. Received: a list that reaches beyond its record batch. Encode the "
                "data again."
            )
        return Ragged(self.values, self.first_value[batches] + low, (high - low).astype(np.int64, copy=False))


class _ArrowFile:
    """The columns of a file, as places in its memory map.

    Raises:
        DataError: the file cannot be read, is no Arrow file or damaged, or has other columns.
    """

    def __init__(self, path: Path):
        pa = import_pyarrow(f"{path}: an Arrow store")
        self.path, self._pa = path, pa
        try:
            with pa.memory_map(str(path)) as source:
                whole = source.read_buffer(path.stat().st_size)
            self._reader = pa.ipc.open_file(whole)
            batches = [self._reader.get_batch(i) for i in range(self._reader.num_record_batches)]
            for batch in batches:
                batch.validate()
            self._types = {field.name: field.type for field in self._reader.schema}
        except FileNotFoundError as error:
            raise DataError(f"{path}: the data cannot be read. Received: no such file.") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: an Arrow store is a whole Arrow IPC file. Received: {' '.join(str(error).split())[:200]}. "
                "Encode the data again."
            ) from error
        self._numbers = [i for i, batch in enumerate(batches) if batch.num_rows]
        batches = [batch for batch in batches if batch.num_rows]
        self._whole, self._address = np.frombuffer(whole, np.uint8), whole.address
        self.starts = np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]
        self._rows: int = sum(batch.num_rows for batch in batches)
        self.token_ids = self._lists("wordids", batches)
        self.segment_ids = self._lists("segmentids", batches) if "segmentids" in self._types else None
        self.words = self._lists("words", batches) if self._has_flags("words") else None
        self.weights = self._fixed("weight", batches) if "weight" in self._types else None
        self.label_kind = self._label_kind()
        self.labels: _Fixed | _Lists | None = None
        if self.label_kind == "l":
            self.labels = self._lists("label", batches)
        elif self.label_kind == "f":
            self.labels = self._fixed("label", batches)

    def __len__(self) -> int:
        return self._rows

    def batch(self, number: int) -> Any:
        """The pyarrow record batch."""
        return self._reader.get_batch(self._numbers[number])

    def row(self, batch: int, number: int) -> dict[str, Any]:
        """All that stands in a row; raises ValueError where it is damaged."""
        row = self.batch(batch).slice(number, 1)
        row.validate(full=True)
        return dict(row.to_pylist()[0])

    def place(self, row: int) -> str:
        return f"{self.path}: row {row}"

    def locate(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Record batch of each row, and its number there."""
        batches: Numbers = np.searchsorted(self.starts, rows, "right") - 1
        return batches, rows - self.starts[batches]

    def class_ids(self, number: int) -> npt.NDArray[np.int32]:
        """The labels of a record batch where they are class ids; else `NO_LABEL`."""
        batch = self.batch(number)
        if self.label_kind != "i":
            return np.full(batch.num_rows, NO_LABEL, np.int32)
        labels = batch.column("label").fill_null(NO_LABEL).to_numpy()
        ids: npt.NDArray[np.int32] = np.clip(labels, -MAX_ID, MAX_ID).astype(np.int32)
        return ids

    def _has_flags(self, name: str) -> bool:
        """Whether a column is lists of bytes; one of another kind is of someone else."""
        types = self._pa.types
        return name in self._types and types.is_list(kind := self._types[name]) and types.is_uint8(kind.value_type)

    def _label_kind(self) -> str | None:
        """A letter of `_LABEL_KINDS`; None where there are no labels."""
        types = self._pa.types
        if "label" not in self._types:
            return None
        kind = self._types["label"]
        if types.is_integer(kind):
            return "i"
        if types.is_floating(kind):
            return "f"
        if types.is_list(kind) or types.is_large_list(kind):
            return "l"
        self._refuse("label", ", ".join(_LABEL_KINDS.values()), kind)

    def _refuse(self, name: str, wanted: str, received: Any) -> NoReturn:
        raise DataError(f"{self.path}: the column {name!r} holds {wanted}. Received: {received}.")

    def _view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The whole file as numbers of one kind."""
        size = np.dtype(dtype).itemsize
        return self._whole[: len(self._whole) // size * size].view(dtype)

    def _number(self, name: str, buffer: Any, offset: int, size: int) -> int:
        """Number in `_view` of an element of a buffer."""
        if buffer is None or not buffer.size:
            return 0
        place: int = buffer.address - self._address + offset * size
        if not 0 <= place < len(self._whole) or place % size:
            self._refuse(name, "plain values that can be mapped", "compressed or unaligned ones")
        return place // size

    def _fixed(self, name: str, batches: list[Any]) -> _Fixed:
        kind = self._types[name]
        if not self._pa.types.is_floating(kind) and not self._pa.types.is_integer(kind):
            self._refuse(name, "numbers", kind)
        dtype = np.dtype(kind.to_pandas_dtype())
        first = []
        for batch in batches:
            column = batch.column(name)
            if column.null_count:
                self._refuse(name, "a number in every row", f"{column.null_count} rows without one")
            first.append(self._number(name, column.buffers()[1], column.offset, dtype.itemsize))
        return _Fixed(self._view(dtype), np.array(first, np.int64))

    def _lists(self, name: str, batches: list[Any]) -> _Lists:
        types = self._pa.types
        if name not in self._types:
            raise DataError(f"{self.path}: a row has the column {name!r}. Received: {list(self._types)}.")
        kind = self._types[name]
        if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_integer(kind.value_type):
            self._refuse(name, "lists of integers", kind)
        offset_type = np.dtype(np.int32 if types.is_list(kind) else np.int64)
        value_type = np.dtype(kind.value_type.to_pandas_dtype())
        table = []
        for batch in batches:
            column = batch.column(name)
            values = column.values
            if values.null_count:
                self._refuse(name, "lists of integers", "a list with an empty place")
            table.append((
                self._number(name, column.buffers()[1], column.offset, offset_type.itemsize),
                self._number(name, values.buffers()[1], values.offset, value_type.itemsize),
                len(values),
            ))  # fmt: skip
        first_offset, first_value, num_values = np.array(table, np.int64).reshape(-1, 3).T
        return _Lists(self.path, self._view(offset_type), first_offset, self._view(value_type), first_value, num_values)


class ArrowStore(RowStore):
    """The rows of a file, by its index, which is built and kept beside it where it is missing or older."""

    def __init__(self, path: Path):
        self.path = path
        self._file = _ArrowFile(path)
        index = read_index(path) or _build_index(path)
        if index.num_rows != len(self._file):
            raise DataError(
                f"{path}: the file is not as its index describes it. Received: {len(self._file):,} rows, "
                f"{index.num_rows:,} in the index. Encode the data again; for a file changed on purpose, delete "
                f"{index_path(path).name}."
            )
        self.lengths = np.asarray(index.lengths)
        self.labels = np.asarray(index.labels)

    def close(self) -> None:
        del self._file  # the map ends with its last view

    def columns(self, rows: RowNumbers) -> RowColumns:
        rows = np.asarray(rows, np.int64)
        file = self._file
        batches, numbers = file.locate(rows)
        token_ids = file.token_ids.take(batches, numbers)
        segment_ids = file.segment_ids.take(batches, numbers) if file.segment_ids is not None else None
        labels = file.labels.take(batches, numbers) if file.labels is not None else self.labels[rows]
        wrong = np.flatnonzero(token_ids.lengths != self.lengths[rows])
        if len(wrong):
            row = int(rows[wrong[0]])
            raise DataError(
                f"{self.place(row)}: the row is not the one that was indexed. Received: "
                f"{token_ids.lengths[wrong[0]]} tokens, {self.lengths[row]} in the index. Encode the data again."
            )
        if segment_ids is not None:
            self._check_segments(rows, token_ids, segment_ids)
        words = None
        if file.words is not None:
            words = file.words.take(batches, numbers)
            words = words._replace(lengths=np.where(words.lengths == token_ids.lengths, words.lengths, 0))
        return RowColumns(token_ids, segment_ids, labels, self._weights(rows, batches, numbers), words)

    def _check_segments(self, rows: Numbers, token_ids: Ragged, segment_ids: Ragged) -> None:
        wrong = np.flatnonzero((segment_ids.lengths != token_ids.lengths) & (segment_ids.lengths > 0))
        if len(wrong):
            raise DataError(
                f"{self.place(int(rows[wrong[0]]))}: `segmentids` must be as many as `wordids`. Received: "
                f"{segment_ids.lengths[wrong[0]]} of {token_ids.lengths[wrong[0]]}."
            )

    def _weights(self, rows: Numbers, batches: Numbers, numbers: Numbers) -> npt.NDArray[np.float32]:
        if self._file.weights is None:
            return np.ones(len(rows), np.float32)
        weights = self._file.weights.take(batches, numbers)
        wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
        if len(wrong):
            raise DataError(
                f"{self.place(int(rows[wrong[0]]))}: `weight` must be a number >= 0. Received: {weights[wrong[0]]}."
            )
        return weights.astype(np.float32)

    def read(self, rows: RowNumbers) -> list[Record]:
        rows = np.asarray(rows, np.int64)
        self.columns(rows)  # checks them
        records = []
        for batch, number in zip(*(values.tolist() for values in self._file.locate(rows)), strict=True):
            try:
                row = self._file.row(batch, number)
            except ValueError as error:  # of pyarrow, or a text that is not UTF-8
                place = self.place(int(self._file.starts[batch]) + number)
                raise DataError(f"{place}: the row is damaged. Received: {error}. Encode the data again.") from error
            weight = row.get("weight", 1.0)
            records.append(
                Record(
                    row["wordids"], row.get("segmentids") or None, row.get("label"), weight, row.get("type"),
                    row.get("keep"), self._words_of(row),
                )
            )  # fmt: skip
        return records

    def _words_of(self, row: dict[str, Any]) -> str | None:
        words = row.get("words") if self._file.words is not None else None
        return "".join(map(str, words)) if words is not None and len(words) == len(row["wordids"]) else None

    def place(self, row: int) -> str:
        """`file: row N`, counted from 0."""
        return self._file.place(row)


def write_index(path: Path, modified_ns: int = 0, check: bool = False) -> None:
    """Writes the index beside a file.

    Args:
        path: the file.
        modified_ns: as in `IndexWriter`.
        check: read and check every value first.

    Raises:
        DataError: the file is damaged, or has a row without ids.
    """
    file = _ArrowFile(path)
    writer = IndexWriter(index_path(path), modified_ns)
    position = 0
    try:
        with Progress(len(file), " rows", f"index {path.name}") as progress:
            for number in range(len(file.starts)):
                rows = np.arange(len(file.batch(number)))
                token_ids = file.token_ids.take(np.full(len(rows), number), rows)
                if check:
                    _check_ids(file, number, token_ids)
                size = token_ids.values.itemsize
                start = int(token_ids.starts[0]) * size
                sizes = token_ids.lengths * size
                writer.append(sizes, token_ids.lengths.astype(np.int32), file.class_ids(number), start - position)
                position = start + int(sizes.sum())
                progress.update(len(rows))
        writer.close(path.stat().st_size)
    except BaseException:
        writer.discard()
        raise


def _check_ids(file: "_ArrowFile", number: int, token_ids: Ragged) -> None:
    """Refuses rows without ids, and with ids that are none."""
    ids = token_ids.flat()
    wrong = [*np.flatnonzero(token_ids.lengths == 0), *token_ids.row_numbers()[(ids < 0) | (ids > MAX_ID)]]
    if wrong:
        place = file.place(int(file.starts[number] + wrong[0]))
        raise DataError(f"{place}: `wordids` must be a list of one or more ids from 0 to {MAX_ID}. Received: others.")


def _build_index(path: Path) -> RowIndex:
    """Reads and checks a whole file that has no index of ours, and keeps its index beside it."""
    logger.info("indexing %s (once; kept beside it)", path)
    try:
        write_index(path, path.stat().st_mtime_ns, check=True)
    except OSError as error:
        raise DataError(
            f"{path}: the file cannot be indexed. Received: {error.strerror}. Its index is kept beside it, so it must "
            "lie in a folder that can be written."
        ) from error
    index = read_index(path)
    if index is None:
        raise DataError(f"{path}: the file changed while it was indexed. Run again when it is complete.")
    return index
