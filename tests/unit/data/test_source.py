"""Sources: which format, where the columns are, and what the rows of a chunk are."""

import gzip
from pathlib import Path

import pytest

from tfbert.data.source import RowError, Source, chunks, open_source, printable, read_rows, total_bytes
from tfbert.errors import ConfigError, DataError


def read(source: Source, chunk_bytes: int = 1 << 20) -> list[tuple[str, list[str] | str]]:
    """(place, fields or reason) of every row; the place is the chunk's and the row's number in it."""
    rows = []
    for i, chunk in enumerate(chunks(source, chunk_bytes)):
        for number, _, fields in read_rows(chunk):
            rows.append((f"{i}:{number}", fields.reason if isinstance(fields, RowError) else fields))
    return rows


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix.lower() == ".gz" else content)
    return path


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.tsv", b"x", "tsv"), ("a.TSV", b"x", "tsv"), ("a.csv", b"x", "csv"), ("a.json", b"x", "jsonl"),
        ("a.ndjson", b"x", "jsonl"), ("a.csv.gz", b"x", "csv"), ("a.tsv.GZ", b"x", "tsv"), ("a.txt", b"x\ty", "tsv"),
        ("a.txt", b"x\n\ty", "text"), ("a", b"x", "text"), ("a.gz", b"x\ty", "tsv"), ("a.txt", b"", "tsv"),
    ],
)  # fmt: skip
def test_the_format_is_that_of_the_name_else_of_the_first_line(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    assert open_source(write(tmp_path / name, content), ["0"]).format == expected


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_chunks_hold_whole_lines_and_know_their_place(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"\xef\xbb\xbft\tu\n" + b"".join(b"%d\tx\n" % i for i in range(12)))
    source = open_source(path, ["t"])
    cut = list(chunks(source, 9))
    assert [fields for _, fields in read(source, 9)] == [[str(i)] for i in range(12)]
    assert len(cut) > 3
    assert cut[0].place() == f"{path}:2-4"
    assert cut[1].place() == f"{path}:5-7"
    assert cut[-1].place().endswith("-13")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_chunks_end_between_records(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b'"a\n1",x\n"b\n2",x\n"c\n3",x\n')
    cut = list(chunks(open_source(path, ["0"]), 1))
    assert [chunk.place() for chunk in cut] == [f"{path}:1-2", f"{path}:3-4", f"{path}:5-6"]
    assert read(open_source(path, ["0"])) == [("0:1", ["a\n1"]), ("0:3", ["b\n2"]), ("0:5", ["c\n3"])]


def test_csv_has_its_own_quoting(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'"a ""b"" c",1\nd"e,2\n"",3\n "f",4\n')
    assert [fields for _, fields in read(open_source(path, ["0", "1"]))] == [
        ['a "b" c', "1"], ['d"e', "2"], ["", "3"], [' "f"', "4"]
    ]  # fmt: skip


def test_a_csv_header_is_read_as_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'\xef\xbb\xbf"first, ""x""","second\r\nline"\r\n1,2\r\n')
    source = open_source(path, ['first, "x"', "second\nline"])
    assert (source.header_lines, read(source)) == (2, [("0:1", ["1", "2"])])


@pytest.mark.parametrize(
    "line, expected",
    [
        (b"", "blank"), (b"  ", "blank"), (b"\r", "blank"), (b"a", "columns"), (b"a\tb\tc", ["a", "c"]),
        (b"\t\t", ["", ""]), (b"a\t", ["a", ""]), (b"\xff\tb", "encoding"),
    ],
)  # fmt: skip
def test_tsv_rows(tmp_path: Path, line: bytes, expected: list[str] | str) -> None:
    path = write(tmp_path / "a.tsv", b"x\ty\n" + line + b"\nx\ty\n")
    assert read(open_source(path, ["0", "-1"])) == [("0:1", ["x", "y"]), ("0:2", expected), ("0:3", ["x", "y"])]


def test_an_empty_line_of_a_single_column_is_an_empty_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"a\n\n \nb\n")
    assert [fields for _, fields in read(open_source(path, ["0"]))] == [["a"], [""], [" "], ["b"]]
    assert [fields for _, fields in read(open_source(path, ["t"], columns=["t"]))] == [["a"], [""], [" "], ["b"]]
    assert [fields for _, fields in read(open_source(path, ["1"]))] == ["columns", "blank", "blank", "columns"]


def test_json_values_keep_their_spelling(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"a": "x\\ty", "b": 1.50, "c": [1, "z"]}\n')
    assert read(open_source(path, ["a", "b", "c"])) == [("0:1", ["x\ty", "1.5", '[1,"z"]'])]


@pytest.mark.parametrize("wanted", ["--1", "1-", "-", "1_0", "²", "٣", "0x1", " 1"])
def test_what_only_looks_like_a_number_is_a_name(tmp_path: Path, wanted: str) -> None:
    path = write(tmp_path / "a.tsv", f"x\t{wanted}\n1\t2\n".encode())
    assert read(open_source(path, [wanted])) == [("0:1", ["2"])]


def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.tsv:1: the header is not UTF-8"):
        open_source(write(tmp_path / "a.tsv", b"\xff\tb\n"), ["b"])


def test_an_unclosed_quote_in_a_csv_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'"a,b\n1,2\n')
    with pytest.raises(DataError, match="there is no column 'b'"):
        open_source(path, ["b"])


def test_one_named_column_of_plain_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"x y\n")
    assert read(open_source(path, ["line"], columns=["line"])) == [("0:1", ["x y"])]
    with pytest.raises(ConfigError, match="a plain text file has one column"):
        open_source(path, ["line"])


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"a\n" * 100)
    (chunk,) = chunks(open_source(path, ["0"]), 1 << 20)
    path.write_bytes(b"a\n")
    with pytest.raises(DataError, match="became shorter"):
        list(read_rows(chunk))


def test_the_size_is_known_unless_something_is_compressed(tmp_path: Path) -> None:
    plain, packed = write(tmp_path / "a.tsv", b"abc"), write(tmp_path / "b.tsv.gz", b"abc")
    assert total_bytes([open_source(plain, ["0"])] * 2) == 6
    assert total_bytes(open_source(path, ["0"]) for path in (plain, packed)) is None


def test_names_that_are_not_utf8_are_escaped() -> None:
    assert printable("/a/标题") == "/a/标题"
    assert printable("/a/\udcff") == "/a/\\xff"
