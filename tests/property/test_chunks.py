"""Cutting an input and reading the pieces is reading the input, for any bytes and any size of the pieces."""

import csv
import gzip
import io
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tfbert.data.source import RowError, chunks, count_lines, open_source, read_rows
from tfbert.errors import DataError

PIECES = st.sampled_from(
    [
        b"a",
        b"\t",
        b"\n",
        b"\r",
        b"\r\n",
        b'"',
        b",",
        "标".encode(),
        "\u2028".encode(),
        b"\xff",
        b"\0",
        b"\x0b",
        b"x" * 40,
    ]
)
CONTENT = st.lists(PIECES, max_size=40).map(b"".join)


def rows_of(path: Path, chunk_bytes: int, wanted: list[str], **how: object) -> list[tuple[int, object]]:
    """(line, fields or reason) of every row, or the line at which the file is refused."""
    source = open_source(path, wanted, **how)  # type: ignore[arg-type]
    rows: list[tuple[int, object]] = []
    first = source.header_lines + 1
    try:
        for chunk in chunks(source, chunk_bytes):
            for number, _, fields in read_rows(chunk):
                reason = (fields.reason, fields.detail) if isinstance(fields, RowError) else fields
                rows.append((first + number - 1, reason))
            first += count_lines(chunk.read())
    except DataError as error:
        rows.append((-1, str(error)))
    return rows


@given(CONTENT, st.integers(1, 60), st.sampled_from(["tsv", "csv", "text", "jsonl"]), st.booleans(), st.booleans())
def test_chunks_of_any_size_give_the_same_rows(
    content: bytes, chunk_bytes: int, format: str, packed: bool, replace: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("in.gz" if packed else "in")
        path.write_bytes(gzip.compress(content) if packed else content)
        wanted = ["0"] if format == "text" else ["0", "-1"]
        whole = rows_of(path, 1 << 30, wanted, format=format, replace_bad_bytes=replace)
        cut = rows_of(path, chunk_bytes, wanted, format=format, replace_bad_bytes=replace)
        if whole and whole[-1][0] == -1:  # refused at the same place, perhaps after some rows
            assert cut[-1] == whole[-1]
        else:
            assert cut == whole


@given(CONTENT)
def test_lines_are_what_ends_with_lf(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        path.write_bytes(content)
        lines = content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        rows = rows_of(path, 7, ["0"], format="text")
        assert [line for line, _ in rows] == list(range(1, len(lines) + 1))
        for (_, fields), line in zip(rows, lines, strict=True):
            try:
                assert fields == [line.removesuffix(b"\r").decode()]
            except UnicodeDecodeError:
                assert fields == ("encoding", "not UTF-8")


FIELD = st.text(st.sampled_from('ab,"\n\t 标\u2028;'), max_size=8)


@given(st.lists(st.tuples(FIELD, FIELD), max_size=12), st.integers(1, 30), st.sampled_from(["\n", "\r\n"]))
def test_csv_written_by_others_is_read_back(rows: list[tuple[str, str]], chunk_bytes: int, end: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(text.getvalue().encode())
        read = rows_of(path, chunk_bytes, ["0", "1"])
        assert [fields for _, fields in read] == [list(row) for row in rows]
