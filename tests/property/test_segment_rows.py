"""Rows through `segment`: whatever a text holds, its row stays in its place and the other columns stay as they are."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import segment
from tfbert.data.source import chunks, open_source

HORRIBLE = st.text(
    st.one_of(
        st.sampled_from("\r\n\t\"', \\{}[]:\u2028\u0085\ufeff\0中a\ue000\ue001"),
        st.characters(exclude_categories=["Cs"]),
    )
)
ROWS = st.lists(st.tuples(HORRIBLE, HORRIBLE), min_size=1, max_size=8)


@pytest.fixture(scope="module", autouse=True)
def characters_as_words() -> Iterator[None]:
    """A segmenter of one line, so that what it must give is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_cut", list, raising=False)
        yield


def through(path: Path, content: bytes, column: str, chunk_bytes: int) -> bytes:
    path.write_bytes(content)
    source = open_source(path, [column], header=False if path.suffix == ".csv" else None)
    done = [segment.segment_chunk(chunk) for chunk in chunks(source, chunk_bytes)]
    assert not sum(part.unchanged.total() for part in done)
    return content[: source.data_start] + b"".join(part.data for part in done)


@settings(deadline=None)
@given(rows=ROWS, chunk_bytes=st.sampled_from([1, 30, 10_000]))
def test_jsonl(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], chunk_bytes: int) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    before = b"".join(orjson.dumps({"t\n": a, other: other}) + b"\n" for a, other in rows if other != "t\n")
    after = b"".join(orjson.dumps({"t\n": " ".join(a), other: other}) + b"\n" for a, other in rows if other != "t\n")
    assert through(path, before, "t\n", chunk_bytes) == after


@settings(deadline=None)
@given(rows=ROWS, chunk_bytes=st.sampled_from([1, 30, 10_000]), end=st.sampled_from(["\r\n", "\n"]))
def test_csv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], chunk_bytes: int, end: str) -> None:
    """Every field quoted, as the writers of such rows must."""
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    written = io.StringIO()
    csv.writer(written, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = through(path, written.getvalue().encode(), "1", chunk_bytes)
    read = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert read == [[a, " ".join(b)] for a, b in rows]
    assert data.endswith(end.encode())


@settings(deadline=None)
@given(rows=ROWS, chunk_bytes=st.sampled_from([1, 30, 10_000]), end=st.sampled_from(["\r\n", "\n"]))
def test_tsv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], chunk_bytes: int, end: str) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.tsv"
    fields = [[text.replace("\t", "").replace("\n", "") for text in row] for row in rows]
    before = "".join(f"{a}\t{b}\t{end}" for a, b in fields).encode()
    after = "".join(f"{a}\t{' '.join(b)}\t{end}" for a, b in fields).encode()
    assert through(path, before, "1", chunk_bytes) == after
