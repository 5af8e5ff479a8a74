"""The row index, and rows by number through it."""

import os
from pathlib import Path

import numpy as np
import pytest

from tfbert.data.index import IndexWriter, build_index, index_path, read_index
from tfbert.data.store import open_store
from tfbert.errors import DataError

ROWS = [
    b'{"label": 1, "wordids": [2, 5, 3]}\n',
    b'{"wordids": [2, 3], "label": [0]}\n',
    b'{"label": 0, "wordids": [2, 5, 5, 3]}\n',
]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A file written by someone else: blank lines, CRLF, no end."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + ROWS[0] + b"\n \r\n" + ROWS[1].replace(b"\n", b"\r\n") + b"\n" + ROWS[2].rstrip())
    return path


def test_a_bare_file_is_indexed_once(bare: Path) -> None:
    store = open_store(bare)
    assert store.lengths.tolist() == [3, 2, 4]
    assert store.labels.tolist() == [1, -1, 0]
    assert [record.token_ids for record in store.read([2, 0, 1, 2])] == [[2, 5, 5, 3], [2, 5, 3], [2, 3], [2, 5, 5, 3]]
    assert [store.place(row) for row in range(3)] == [f"{bare}:{line}" for line in (2, 5, 7)]
    store.close()
    made = index_path(bare).stat()
    again = open_store(bare)
    assert index_path(bare).stat() == made
    assert again.lengths.tolist() == [3, 2, 4]
    again.close()
    assert sorted(path.name for path in bare.parent.iterdir()) == ["rows.idx", "rows.jsonl"]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(ROWS))
    store = open_store(path)
    assert [record.token_ids for record in store.read([0, 1, 2])] == [[2, 5, 3], [2, 3], [2, 5, 5, 3]]
    store.close()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_files_without_rows_have_no_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    for _ in range(2):
        store = open_store(path)
        assert (len(store), store.read([])) == (0, [])
        store.check_labels(1)
        store.close()


def test_more_rows_than_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfbert.data.index._STEP", 4)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(ROWS[i % 3] + b"\n" * (i % 4 == 1) for i in range(30)))
    index = build_index(path)
    assert index.lengths.tolist() == [3, 2, 4] * 10
    store = open_store(path)
    assert [len(record.token_ids) for record in store.read(range(30))] == [3, 2, 4] * 10
    store.close()


def test_a_changed_file_is_indexed_again(bare: Path) -> None:
    open_store(bare).close()
    stat = bare.stat()
    bare.write_bytes(bare.read_bytes() + b"\n" + ROWS[1])
    store = open_store(bare)
    assert store.lengths.tolist() == [3, 2, 4, 2]
    store.close()
    content = bare.read_bytes().replace(b"[2, 5, 3]", b"[2,3    ]")  # as long as before
    bare.write_bytes(content)
    os.utime(bare, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    store = open_store(bare)
    assert store.lengths.tolist() == [2, 2, 4, 2]
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-3],
        lambda b: b[:10],
        lambda b: b"",
        lambda b: b"x" + b[1:],
        lambda b: b[:45] + b"\x7f" + b[46:],  # an offset
        lambda b: b[:-1] + bytes([b[-1] ^ 1]),  # a label
        lambda b: b[:16] + b"\xff" * 8 + b[24:],  # a number of rows that nothing could hold
    ],
)
def test_a_damaged_index_is_made_again(bare: Path, damage) -> None:
    open_store(bare).close()
    index_path(bare).write_bytes(damage(index_path(bare).read_bytes()))
    assert read_index(bare) is None
    store = open_store(bare)
    assert store.lengths.tolist() == [3, 2, 4]
    store.close()


def own(tmp_path: Path) -> Path:
    """A file with an index that was written together with it."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(ROWS))
    writer = IndexWriter(index_path(path))
    writer.append(np.array([len(row) for row in ROWS]), np.array([3, 2, 4], np.int32), np.array([1, -1, 0], np.int32))
    writer.close(path.stat().st_size)
    return path


def test_an_index_of_ours_needs_no_times(tmp_path: Path) -> None:
    path = own(tmp_path)
    os.utime(path, (1, 1))
    index = read_index(path)
    assert index is not None
    assert index.offsets.tolist() == [0, *np.cumsum([len(row) for row in ROWS]).tolist()]


@pytest.mark.parametrize("cut", [1, len(ROWS[2])])
def test_a_cut_data_set_is_refused(tmp_path: Path, cut: int) -> None:
    """Also where it is cut between two rows, so that each of the rest is whole."""
    path = own(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"train.jsonl: the file is not as its index describes it"):
        open_store(path)


def test_a_damaged_row_is_named_when_the_index_is_made(bare: Path) -> None:
    content = bare.read_bytes()
    bare.write_bytes(content + b'\n\n{"wordids": [}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:9: a row must be JSON"):
        open_store(bare)
    assert [path.name for path in bare.parent.iterdir()] == ["rows.jsonl"]


def test_a_row_damaged_later_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = own(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"wordids": [2, 3]', b'"wordids": [2, x]'))
    store = open_store(path)
    assert len(store.read([0, 2])) == 2
    with pytest.raises(DataError, match=r"train.jsonl:2: a row must be JSON"):
        store.read([0, 1])
    store.close()
    path.write_bytes(content.replace(b"[2, 5, 5, 3]", b"[2, 5, 5   ]"))
    store = open_store(path)
    with pytest.raises(DataError, match=r"train.jsonl:3: the row is not the one that was indexed"):
        store.read([2])
    store.close()


def test_labels_are_checked_over_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfbert.data.store._CHECK_ROWS", 2)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(b'{"label": %d, "wordids": [1]}' % label for label in (0, 2, 1, 3, -1, 3)))
    store = open_store(path)
    store.close()
    with pytest.raises(DataError, match=r"rows.jsonl:4: a label must be a class id from 0 to 2. Received: 3 \(3 such"):
        store.check_labels(3)
    with pytest.raises(DataError, match=r"rows.jsonl:5: .* Received: no class \(1 such"):
        store.check_labels(4)


def test_missing_files_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl: the data cannot be read"):
        open_store(tmp_path / "none.jsonl")


def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(ROWS))
    first, second = IndexWriter(index_path(path)), IndexWriter(index_path(path))
    rows = (np.array([len(row) for row in ROWS]), np.array([3, 2, 4], np.int32), np.array([1, -1, 0], np.int32))
    first.append(*rows)
    second.append(*(values[:1] for values in rows))
    first.close(path.stat().st_size)
    second.discard()
    index = read_index(path)
    assert index is not None
    assert index.lengths.tolist() == [3, 2, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.idx", "rows.jsonl"]
