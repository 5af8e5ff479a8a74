"""Rows to an Arrow IPC file that any Arrow reader opens memory mapped.

Columns are named like the fields of the JSON row, and in the same order: `type` string, `label` int32, float64 or
list<int32>, `weight` float64, `wordids` list<uint16> (list<int32> where the vocabulary is larger), `segmentids`
list<uint8>, `words` list<uint8> (1 where a word begins, else 0), `keep` struct of strings. Those that no row needs are
absent. Record batches have `BATCH_ROWS` rows, the last one what is left.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbert.data.arrow_store import write_index
from tfbert.data.rows import segment_ids
from tfbert.data.source import import_pyarrow

BATCH_ROWS = 8192
_PURPOSE = "An Arrow store"


def row_schema(
    vocab_size: int,
    task: str | None,
    *,
    pair: bool,
    type: bool,
    weight: bool,
    keep: Sequence[str] = (),
    words: bool = False,
) -> Any:
    """The pyarrow schema of rows.

    Args:
        vocab_size: all token ids are below it.
        task: classify, multilabel, regression, or None for rows without labels.
        pair: rows are pairs of texts.
        type: rows have one.
        weight: rows have one.
        keep: names of the columns that are kept.
        words: rows tell where words begin.
    """
    pa = import_pyarrow(_PURPOSE)
    label = {"classify": pa.int32(), "multilabel": pa.list_(pa.int32()), "regression": pa.float64()}
    fields = [
        ("type", pa.string() if type else None),
        ("label", label[task] if task is not None else None),
        ("weight", pa.float64() if weight else None),
        ("wordids", pa.list_(pa.uint16() if vocab_size <= 1 << 16 else pa.int32())),
        ("segmentids", pa.list_(pa.uint8()) if pair else None),
        ("words", pa.list_(pa.uint8()) if words else None),
        ("keep", pa.struct([(name, pa.string()) for name in keep]) if keep else None),
    ]
    return pa.schema([(name, kind) for name, kind in fields if kind is not None])


def make_table(
    schema: Any,
    token_ids: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    first_lengths: npt.NDArray[np.int64] | None = None,
    *,
    labels: Sequence[Any] | None = None,
    weights: Sequence[float] | None = None,
    types: Sequence[str] | None = None,
    words: npt.NDArray[np.uint8] | None = None,
    keep: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Rows as a pyarrow table; None where the schema has no such column.

    Args:
        schema: of `row_schema`.
        token_ids: one row behind the other.
        lengths: tokens of each row.
        first_lengths: tokens with segment id 0, before those with 1.
        labels: one a row.
        weights: one a row.
        types: one a row.
        words: one a token: 1 where a word begins, else 0.
        keep: kept columns by name.
    """
    pa = import_pyarrow(_PURPOSE)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    columns = []
    for field in schema:
        if field.name in ("wordids", "segmentids", "words"):
            segments = segment_ids(lengths if first_lengths is None else first_lengths, lengths)
            values = {"wordids": token_ids, "segmentids": segments, "words": words}[field.name]
            column = pa.ListArray.from_arrays(offsets, pa.array(values).cast(field.type.value_type))
        elif field.name == "keep":
            kept = [pa.array((keep or {})[member.name], pa.string()) for member in field.type]
            column = pa.StructArray.from_arrays(kept, [member.name for member in field.type])
        else:
            column = pa.array({"type": types, "label": labels, "weight": weights}[field.name], field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


def dump_table(table: Any) -> bytes:
    """Rows on their way from one process to another; `load_table` reads them from a file."""
    pa = import_pyarrow(_PURPOSE)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def load_table(path: Path) -> Any:
    """The rows that `dump_table` made."""
    pa = import_pyarrow(_PURPOSE)
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


class ArrowWriter:
    """Writes a file and its index; the bytes depend on the rows alone, not on the tables that they come in.

    Args:
        path: the file.
        schema: of `row_schema`.
    """

    def __init__(self, path: Path, schema: Any):
        self._pa = pa = import_pyarrow(_PURPOSE)
        self._path, self._schema = path, schema
        self._file = path.open("wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._waiting = schema.empty_table()

    def write(self, table: Any) -> None:
        """Adds rows."""
        self._waiting = self._pa.concat_tables([self._waiting, table])
        while self._waiting.num_rows >= BATCH_ROWS:
            self._write_batch(self._waiting.slice(0, BATCH_ROWS))
            self._waiting = self._waiting.slice(BATCH_ROWS)

    def _write_batch(self, table: Any) -> None:
        # beside an empty batch, so that it is copied: a slice would be written with a few bytes of its neighbours
        none = self._pa.RecordBatch.from_pylist([], self._schema)
        (batch,) = self._pa.Table.from_batches([none, *table.to_batches()]).combine_chunks().to_batches()
        self._writer.write_batch(batch)

    def discard(self) -> None:
        """Lets go of a file that stays unfinished."""
        with suppress(OSError):  # a full disk, as it is known by now
            self._file.close()

    def close(self) -> None:
        """Writes what is left, the footer and the index."""
        if self._waiting.num_rows:
            self._write_batch(self._waiting)
        self._writer.close()
        self._file.close()
        write_index(self._path)
