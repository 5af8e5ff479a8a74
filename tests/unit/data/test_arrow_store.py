"""Rows of Arrow IPC files: the same as those of JSON lines, in every reader, damaged or not."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from tfbert.data import arrow_writer
from tfbert.data.arrow_writer import ArrowWriter, make_table, row_schema
from tfbert.data.batch import collate, labels_of
from tfbert.data.index import index_path, read_index
from tfbert.data.record import Record, dump
from tfbert.data.rows import Ragged
from tfbert.data.store import RowStore, open_store
from tfbert.errors import ConfigError, DataError

LABELS: dict[str | None, Any] = {
    "classify": lambda i: i % 3,
    "multilabel": lambda i: [[], [0], [0, 2]][i % 3],
    "regression": lambda i: i / 4 - 1,
    None: lambda i: None,
}


def make_records(count: int, task: str | None = "classify", *, pair: bool = False, extra: bool = False) -> list[Record]:
    """Rows with 3 to 9 ids."""
    records = []
    for i in range(count):
        length = 3 + i * 5 % 7
        records.append(
            Record(
                [2, *(5 + (i * 7 + k) % 40 for k in range(length - 2)), 3],
                [0] * (length // 2) + [1] * (length - length // 2) if pair else None,
                LABELS[task](i),
                0.5 * (i % 4) if extra else 1.0,
                f"type {i} 人" if extra else None,
                {"id": str(i), "a\tb": "x\u2028\n" * (i % 2)} if extra else None,
            )
        )
    return records


def schema_of(task: str | None, records: list[Record], vocab_size: int = 50) -> Any:
    first = records[0]
    extra = first.type is not None
    keep = tuple(first.keep or ())
    return row_schema(vocab_size, task, pair=first.segment_ids is not None, type=extra, weight=extra, keep=keep)


def table_of(schema: Any, records: list[Record]) -> Any:
    return make_table(
        schema,
        token_ids=np.array([i for r in records for i in r.token_ids], np.int32),
        lengths=np.array([len(r.token_ids) for r in records], np.int64),
        first_lengths=np.array([len(r.token_ids) - sum(r.segment_ids or ()) for r in records], np.int64),
        labels=[r.label for r in records],
        weights=[r.weight for r in records],
        types=[r.type or "" for r in records],
        keep={name: [(r.keep or {})[name] for r in records] for name in records[0].keep or ()} if records else {},
    )


def write(path: Path, task: str | None, records: list[Record], step: int = 5, vocab_size: int = 50) -> Path:
    schema = schema_of(task, records, vocab_size)
    writer = ArrowWriter(path, schema)
    for start in range(0, len(records), step):
        writer.write(table_of(schema, records[start : start + step]))
    writer.close()
    return path


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_writer, "BATCH_ROWS", 8)


def json_store(folder: Path, records: list[Record]) -> RowStore:
    path = folder / "same.jsonl"
    path.write_bytes(b"".join(map(dump, records)))
    return open_store(path)


# ----------------------------------------------------------------------------------------------- the same as JSON lines


@pytest.mark.parametrize("extra", [False, True], ids=["plain", "extra"])
@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
@pytest.mark.parametrize("task", ["classify", "multilabel", "regression", None])
def test_rows_are_those_of_json_lines(tmp_path: Path, task: str | None, pair: bool, extra: bool) -> None:
    records = make_records(30, task, pair=pair, extra=extra)
    ours, other = open_store(write(tmp_path / "rows.arrow", task, records)), json_store(tmp_path, records)
    assert ours.read(range(30)) == other.read(range(30)) == records
    assert ours.lengths.tolist() == other.lengths.tolist()
    assert ours.labels.tolist() == other.labels.tolist()
    for chosen in ([7], [29, 0, 8, 8, 15, 16, 7], list(range(30)), []):
        a, b = ours.columns(chosen), other.columns(chosen)
        assert a.token_ids.lengths.tolist() == b.token_ids.lengths.tolist()
        for name, values in collate(b, 12, 1).items():
            assert collate(a, 12, 1)[name].tolist() == values.tolist()
        assert a.weights.tolist() == b.weights.tolist()
        assert a.weights.dtype == b.weights.dtype
        if task is not None:
            assert labels_of(a.labels, task, 3).tolist() == labels_of(b.labels, task, 3).tolist()
    ours.close()
    other.close()


@pytest.mark.parametrize("vocab_size, kind", [(65536, pa.uint16()), (65537, pa.int32())])
def test_ids_are_as_narrow_as_the_vocabulary_allows(tmp_path: Path, vocab_size: int, kind: Any) -> None:
    records = [Record([0, vocab_size - 1, 5], label=1)]
    store = open_store(write(tmp_path / "rows.arrow", "classify", records, vocab_size=vocab_size))
    assert pa.ipc.open_file(tmp_path / "rows.arrow").schema.field("wordids").type.value_type == kind
    assert store.read([0]) == records
    assert collate(store.columns([0]), 4, 7)["token_ids"].tolist() == [[0, vocab_size - 1, 5, 7]]
    store.close()


def test_any_arrow_reader_maps_it(tmp_path: Path) -> None:
    records = make_records(20, pair=True, extra=True)
    path = write(tmp_path / "rows.arrow", "classify", records)
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        assert pa.total_allocated_bytes() == before  # nothing was copied
        assert table.schema.names == list(orjson.loads(dump(records[1])))
        rows = table.to_pylist()
    assert rows == [
        {"type": r.type, "label": r.label, "weight": r.weight, "wordids": r.token_ids, "segmentids": r.segment_ids,
         "keep": r.keep} for r in records
    ]  # fmt: skip


def test_bytes_do_not_depend_on_how_the_rows_come(tmp_path: Path) -> None:
    records = make_records(50, pair=True, extra=True)
    contents = set()
    for step in (1, 3, 8, 16, 50):
        path = write(tmp_path / f"rows{step}.arrow", "classify", records, step)
        contents.add((path.read_bytes(), index_path(path).read_bytes()))
    assert len(contents) == 1
    sizes = [pa.ipc.open_file(path).get_batch(i).num_rows for i in range(7)]
    assert sizes == [8] * 6 + [2]


def test_a_file_without_rows(tmp_path: Path) -> None:
    schema = row_schema(50, "classify", pair=True, type=True, weight=True, keep=("id",))
    ArrowWriter(tmp_path / "none.arrow", schema).close()
    for _ in range(2):
        store = open_store(tmp_path / "none.arrow")
        assert (len(store), store.read([]), len(store.columns([]))) == (0, [], 0)
        store.check_labels(1)
        store.close()
        index_path(tmp_path / "none.arrow").unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ files of other makers


def write_table(path: Path, table: Any, **options: Any) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def test_a_file_of_another_maker(tmp_path: Path) -> None:
    """Wider types, other columns, slices, no labels or segments in some rows."""
    rows = [[9, 9], [1, 2, 3], [4], [70000, 6], [7, 8, 9], [5], [1, 1]]
    segments = [None, [0, 0, 1], None, [1, 1], [], [0], [1, 0]]
    table = pa.table({
        "text": pa.array(["x"] * 7),
        "wordids": pa.array(rows, pa.large_list(pa.int64())),
        "segmentids": pa.array(segments, pa.list_(pa.int8())),
        "label": pa.array([0, 1, None, 2, 1, 0, 7], pa.int64()),
        "weight": pa.array([1, 2, 0, 3, 1, 1, 1], pa.int8()),
    }).slice(1)  # fmt: skip
    path = write_table(tmp_path / "rows.arrow", table)
    for _ in range(2):
        store = open_store(path)
        assert store.labels.tolist() == [1, -1, 2, 1, 0, 7]
        assert store.lengths.tolist() == [3, 1, 2, 3, 1, 2]
        batch = collate(store.columns([5, 0, 2, 1, 3]), 3, 0)
        assert batch["token_ids"].tolist() == [[1, 1, 0], [1, 2, 3], [70000, 6, 0], [4, 0, 0], [7, 8, 9]]
        assert batch["segment_ids"].tolist() == [[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
        assert store.columns([2, 1]).weights.tolist() == [3, 0]
        with pytest.raises(DataError, match=r"rows.arrow: row 1: a label must be .* Received: no class \(2 such"):
            store.check_labels(3)
        store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.arrow", "rows.idx"]


def test_the_index_is_made_again_when_the_file_changes(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.arrow", pa.table({"wordids": [[1, 2], [3]]}))
    open_store(path).close()
    write_table(path, pa.table({"wordids": [[1], [3, 4, 5], [6]]}))
    store = open_store(path)
    assert store.lengths.tolist() == [1, 3, 1]
    store.close()


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"ids": [[1]]}, r"a row has the column 'wordids'. Received: \['ids'\]"),
        ({"wordids": [1, 2]}, "the column 'wordids' holds lists of integers. Received: int64"),
        ({"wordids": [["a"]]}, "the column 'wordids' holds lists of integers"),
        ({"wordids": [[1, None]]}, "Received: a list with an empty place"),
        ({"wordids": [[1], []]}, "row 1: `wordids` must be a list of one or more ids"),
        ({"wordids": [[1], None]}, "row 1: `wordids` must be a list of one or more ids"),
        ({"wordids": [[1], [2, -1]]}, "row 1: `wordids` must be a list of one or more ids from 0 to 2147483647"),
        ({"wordids": [[1], [2**31]]}, "row 1: `wordids` must be a list of one or more ids"),
        ({"wordids": [[1]], "label": ["good"]}, "the column 'label' holds class ids, numbers, lists of class ids"),
        ({"wordids": [[1], [2]], "label": [0.5, None]}, "'label' holds a number in every row. Received: 1 rows"),
        ({"wordids": [[1]], "weight": ["1"]}, "the column 'weight' holds numbers. Received: string"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write_table(tmp_path / "rows.arrow", pa.table(columns))
    with pytest.raises(DataError, match=message) as caught:
        open_store(path)
    assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.arrow"]


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"segmentids": [[0, 0], [0]]}, r"row 1: `segmentids` must be as many as `wordids`. Received: 1 of 2"),
        ({"weight": [1.0, -1.0]}, "row 1: `weight` must be a number >= 0. Received: -1.0"),
        ({"weight": [1.0, float("nan")]}, "row 1: `weight` must be a number >= 0. Received: nan"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write_table(tmp_path / "rows.arrow", pa.table({"wordids": [[1, 2], [3, 4]]} | columns))
    store = open_store(path)
    assert len(store.columns([0])) == 1
    for read in (store.columns, store.read):
        with pytest.raises(DataError, match=message):
            read([0, 1])
    store.close()


def test_compressed_files_cannot_be_mapped(tmp_path: Path) -> None:
    table = pa.table({"wordids": [list(range(1000))] * 3})
    path = write_table(tmp_path / "rows.arrow", table, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with pytest.raises(DataError, match="rows.arrow: the column 'wordids' holds plain values that can be mapped"):
        open_store(path)


# --------------------------------------------------------------------------------------------------------------- damage


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.arrow: the data cannot be read. Received: no such file"):
        open_store(tmp_path / "none.arrow")
    for content in (b"", b"ARROW1\0\0", b'{"wordids": [1]}\n', b"\0" * 1000):
        (tmp_path / "bad.arrow").write_bytes(content)
        with pytest.raises(DataError, match=r"bad.arrow: an Arrow store is a whole Arrow IPC file. Received: "):
            open_store(tmp_path / "bad.arrow")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.arrow", "classify", make_records(20))
    content = path.read_bytes()
    for size in (*range(0, len(content), 97), len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"rows.arrow: "):
            open_store(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(DataError, match=r"rows.arrow: "):
        open_store(path)


def test_a_file_of_other_rows_is_noticed(tmp_path: Path) -> None:
    """As large as the one of the index."""
    path = write(tmp_path / "rows.arrow", None, [Record([1, 2, 3]), Record([4])])
    other = write(tmp_path / "other.arrow", None, [Record([1]), Record([1, 2, 3])])
    assert len(other.read_bytes()) == len(path.read_bytes())
    path.write_bytes(other.read_bytes())
    store = open_store(path)
    with pytest.raises(DataError, match=r"rows.arrow: row 1: the row is not the one that was indexed. Received: 3"):
        store.columns([1])
    store.close()


def test_no_damage_crashes_or_reaches_beyond_the_file(tmp_path: Path) -> None:
    """Single bits and runs of bytes at random: refused, or rows that are still lists of ids."""
    path = write(tmp_path / "rows.arrow", "multilabel", make_records(20, "multilabel", pair=True, extra=True))
    content = path.read_bytes()
    chance = random.Random(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        at = chance.randrange(len(content))
        damaged[at : at + chance.choice([1, 1, 4, 16])] = chance.randbytes(1) * min(4, len(content) - at)
        damaged = damaged[: len(content)].ljust(len(content), b"\0")
        path.write_bytes(damaged)
        try:
            store = open_store(path)
        except DataError as error:
            assert str(path) in str(error)
            refused += 1
            continue
        try:
            rows = store.columns(range(len(store)))
            collate(rows, 12, 0)
            assert isinstance(rows.labels, Ragged)
            labels_of(rows.labels, "multilabel", 3)
        except DataError:
            refused += 1
        store.close()
    assert refused > 50


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 191."""
    path = write(tmp_path / "rows.arrow", "classify", make_records(3))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"rows.arrow: an Arrow store needs the package pyarrow.*pip install pyarrow"):
        open_store(path)


def test_an_index_of_ours_beside_it(tmp_path: Path) -> None:
    """The index tells where the ids of each row begin."""
    path = write(tmp_path / "rows.arrow", "classify", records := make_records(20))
    index = read_index(path)
    assert index is not None
    content = path.read_bytes()
    for row, record in enumerate(records):
        start = int(index.offsets[row])
        ids = np.frombuffer(content[start : start + 2 * len(record.token_ids)], "<u2")
        assert ids.tolist() == record.token_ids
