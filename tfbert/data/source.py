"""Raw input files: which format, where the columns are, and the fields of each row.

TSV, CSV, JSON lines and plain text, each also as `.gz` or `.zst`. A record is found by bytes, never by Python's idea of
a line: only LF ends a line (CRLF counts as one line end), so U+2028 and its kin stay inside their field. TSV knows no
quoting; CSV does, and may hold line ends inside quotes. Everything here is a small picklable value or a pure
function, so the same code reads in worker processes, in `predict.py` and in tests.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from tfbert.errors import ConfigError, DataError

FORMATS = ("auto", "tsv", "csv", "jsonl", "text")
BOM = b"\xef\xbb\xbf"
MAX_CSV_FIELD = 64 * 1024 * 1024  # characters; a longer one is an unclosed quote
_BLOCK = 1 << 20
_NO_MARKS = bytes(code for code in range(256) if code not in b"\t\n")
_END = "\0end of file\0"  # follows the last line of a CSV file: part of a field exactly if a quote is open
_FORMAT_OF_SUFFIX = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip


class RowError(Exception):
    """A row cannot be used. `reason` is a short fixed word, `detail` tells more."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Source:
    """One input file, opened as far as its header.

    Attributes:
        path: the file.
        format: tsv, csv, jsonl or text.
        compressed: read through gzip or zstandard, by the name.
        data_start: first byte (uncompressed) after byte-order mark and header.
        header_lines: lines before the first row.
        num_fields: fields that every row must have, known where columns were named; else None.
        wanted: the columns to deliver, in order: field numbers, or keys for JSON lines.
        replace_bad_bytes: decode with U+FFFD instead of rejecting the row.
        nullable: places in `wanted` that may be null in JSON lines; they are delivered as None.
    """

    path: str
    format: str
    compressed: bool
    data_start: int
    header_lines: int
    num_fields: int | None
    wanted: tuple[int | str, ...]
    replace_bad_bytes: bool = False
    nullable: frozenset[int] = frozenset()

    @cached_property
    def ambiguous(self) -> frozenset[int]:
        """Numbers of fields at which a column counted from the start and one counted from the end are the same."""
        numbers = [column for column in self.wanted if isinstance(column, int)]
        return frozenset(a - b for a in numbers if a >= 0 for b in numbers if b < 0)

    @cached_property
    def one_column(self) -> bool:
        """Whether an empty line is a row with an empty text, and not a blank line."""
        return set(self.wanted) in ({0}, {-1}) and self.num_fields in (None, 1)

    def read_head(self) -> bytes:
        """The bytes before the first row: byte-order mark and header."""
        with _open_bytes(self.path, self.compressed) as file:
            return file.read(self.data_start)


@dataclass(frozen=True)
class Chunk:
    """Consecutive whole records of one source: a byte range of the file, or the bytes themselves."""

    source: Source
    start: int
    end: int
    data: bytes | None = None

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        with Path(self.source.path).open("rb") as file:
            file.seek(self.start)
            data = file.read(self.end - self.start)
        if len(data) != self.end - self.start:
            raise DataError(f"{self.source.path}: the file became shorter while it was read.")
        return data

    def first_line(self) -> int:
        """Line number of the first row, for messages: counted only when something went wrong."""
        left, line = self.start, 1
        with _open_bytes(self.source.path, self.source.compressed) as file:
            while left > 0 and (block := file.read(min(left, _BLOCK))):
                line += block.count(b"\n")
                left -= len(block)
        return line

    def place(self) -> str:
        """`file:first-last line`, for messages."""
        first = self.first_line()
        return f"{self.source.path}:{first}-{first + count_lines(self.read()) - 1}"


def open_source(
    path: Path | str,
    wanted: Sequence[str],
    *,
    format: str = "auto",
    columns: Sequence[str] | None = None,
    header: bool | None = None,
    replace_bad_bytes: bool = False,
    nullable: Iterable[int] = (),
) -> Source:
    """Finds format, header and columns of a file.

    Args:
        path: the file.
        wanted: columns to deliver: names, or 0-based numbers (negative: from the end).
        format: one of `FORMATS`; auto goes by the name, and for other names than .tsv, .csv, .jsonl, .json by the
            first line: with a tab it is tsv, else text.
        columns: names of the columns, for files without a header.
        header: whether the first line is a header; None: exactly when a column is named and `columns` is None.
        replace_bad_bytes: as in `Source`.
        nullable: as in `Source`.

    Raises:
        ConfigError: the format is unknown.
        DataError: the file cannot be read, or has no such column.
    """
    if format not in FORMATS:
        raise ConfigError(f"A format is one of {', '.join(FORMATS)}. Received: {format!r}.")
    path = Path(path)
    compressed = path.suffix.lower() in (".gz", ".zst")
    first_line = _first_line(path, compressed)
    if format == "auto":
        suffix = Path(path.stem).suffix if compressed else path.suffix
        fields = b"\t" in first_line or first_line in (b"", BOM)  # an empty file has whatever columns are asked for
        format = _FORMAT_OF_SUFFIX.get(suffix.lower(), "tsv" if fields else "text")
    bom = len(BOM) if first_line.startswith(BOM) else 0
    named = any(not _is_number(name) for name in wanted)
    if format in ("jsonl", "text"):
        if header:
            raise ConfigError(f"A header belongs to tsv and csv files. Received: --header for {path} ({format}).")
        has_header = False
    else:
        has_header = (named and columns is None) if header is None else header
    names: list[str] | None = list(columns) if columns is not None else None
    data_start, header_lines = bom, 0
    is_empty = len(first_line) == bom
    if has_header and not is_empty:
        found, data_start, header_lines = _read_header(path, compressed, format, bom)
        names = found if names is None else names
    if format == "jsonl":
        resolved: tuple[int | str, ...] = tuple(wanted)
    elif format == "text":
        resolved = tuple(_text_column(path, name, names) for name in wanted)
    elif has_header and is_empty:
        resolved = ()  # there is nothing to read: neither a header nor rows
    elif named:
        resolved = tuple(_column_number(path, name, names) for name in wanted)
    else:
        resolved = tuple(int(name) for name in wanted)
    return Source(
        path=str(path),
        format=format,
        compressed=compressed,
        data_start=data_start,
        header_lines=header_lines,
        num_fields=len(names) if names is not None and named and format in ("tsv", "csv") else None,
        wanted=resolved,
        replace_bad_bytes=replace_bad_bytes,
        nullable=frozenset(nullable),
    )


def _first_line(path: Path, compressed: bool) -> bytes:
    """The first line, or as much of it as tells the format."""
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "a pipe or device"
            raise DataError(f"{path}: an input is a file, because it is read more than once. Received: {kind}.")
        with _open_bytes(path, compressed) as file:
            return file.readline(_BLOCK)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the file cannot be read. Received: {_reason(error)}.") from error


def _open_bytes(path: Path | str, compressed: bool) -> io.BufferedIOBase:
    if not compressed:
        return Path(path).open("rb")
    if Path(path).suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    pyarrow = import_pyarrow(f"{path}: reading .zst")
    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(Path(path).open("rb")), "zstd"), _BLOCK)


def import_pyarrow(purpose: str) -> Any:
    """The package, loaded where it is used: it takes a while.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs the package pyarrow. Received: it is not installed. Run `pip install pyarrow`."
        ) from error
    return pyarrow


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", name) is not None


def _read_header(path: Path, compressed: bool, format: str, bom: int) -> tuple[list[str], int, int]:
    """Names of the columns, first byte after the header, lines of the header (a CSV name may hold line ends)."""
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in file:
            text = line[0 if size else bom :].decode("utf-8").removesuffix("\n").removesuffix("\r")
            size += len(line)
            yield text.replace("\r", " ") + "\n" if format == "csv" else text

    csv.field_size_limit(MAX_CSV_FIELD)
    with _open_bytes(path, compressed) as file:
        try:
            if format == "csv":
                reader = csv.reader(lines())
                return next(reader), size, reader.line_num
            return next(lines()).split("\t"), size, 1
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:1: the header is not UTF-8. Received: {error}.") from error
        except (OSError, EOFError, zlib.error, csv.Error) as error:
            raise DataError(f"{path}:1: the header cannot be read. Received: {_reason(error)}.") from error


def _column_number(path: Path, name: str, names: list[str] | None) -> int:
    if names is not None and name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: the column {name!r} occurs {names.count(name)} times. Give its number.")
        return names.index(name)
    if _is_number(name):
        return int(name)
    if names is None:
        raise ConfigError(
            f"{path}: a column can be named only where a header or --columns names it. Received: {name!r} with "
            "--no_header. Give its number, or --columns."
        )
    raise DataError(f"{path}: there is no column {name!r}. The columns are: {', '.join(map(repr, names))}.")


def _text_column(path: Path, name: str, names: list[str] | None) -> int:
    if name not in ("0", "-1", "text") and names != [name]:
        raise ConfigError(
            f"{path}: a plain text file has one column, 0 or `text`. Received: {name!r}. Give --format tsv if its "
            "fields are separated by tabs."
        )
    return 0


def printable(path: Path | str) -> str:
    """A path as JSON can hold it: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def total_bytes(sources: Iterable[Source]) -> int | None:
    """Size of all files together; None where one is compressed, so that nobody knows."""
    sources = list(sources)
    return None if any(s.compressed for s in sources) else sum(Path(s.path).stat().st_size for s in sources)


def chunks(source: Source, chunk_bytes: int) -> Iterator[Chunk]:
    """Cuts a source into consecutive runs of whole records of about `chunk_bytes` each.

    Plain files are cut by offsets and not copied; compressed ones are decompressed here and handed over as bytes.
    """
    if source.format == "csv":
        yield from _csv_chunks(source, chunk_bytes)
    elif source.compressed:
        yield from _stream_chunks(source, chunk_bytes)
    else:
        yield from _range_chunks(source, chunk_bytes)


def _range_chunks(source: Source, chunk_bytes: int) -> Iterator[Chunk]:
    with Path(source.path).open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start = source.data_start
        while start < size:
            end = min(start + chunk_bytes, size)
            if end < size:
                file.seek(end - 1)
                while block := file.readline(_BLOCK):
                    if block.endswith(b"\n"):
                        break
                end = file.tell()
            yield Chunk(source, start, end)
            start = end


def _stream_chunks(source: Source, chunk_bytes: int) -> Iterator[Chunk]:
    position = source.data_start
    with _open_bytes(source.path, True) as file:
        try:
            _skip(file, position)
            while data := file.read(chunk_bytes):
                data += file.readline() if not data.endswith(b"\n") else b""
                yield Chunk(source, position, position + len(data), data)
                position += len(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source.path}: the compressed file is damaged. Received: {_reason(error)}.") from error


def stream(source: Source, block_bytes: int) -> Iterator[bytes]:
    """What stands behind the header of a source, uncompressed, in blocks."""
    with _open_bytes(source.path, source.compressed) as file:
        try:
            _skip(file, source.data_start)
            while data := file.read(block_bytes):
                yield data
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source.path}: the file is damaged. Received: {_reason(error)}.") from error


def _skip(file: io.BufferedIOBase, count: int) -> None:
    while count > 0:
        block = file.read(min(count, _BLOCK))
        if not block:
            return
        count -= len(block)


def _csv_chunks(source: Source, chunk_bytes: int) -> Iterator[Chunk]:
    """Ends a chunk only where the CSV reader ends a record; a record may span lines."""
    start = position = source.data_start
    number = source.header_lines + 1
    pending = bytearray()

    def lines(file: io.BufferedIOBase) -> Iterator[str]:
        nonlocal position
        for line in file:
            position += len(line)
            if source.compressed:
                pending.extend(line)
            yield line.decode("latin-1").removesuffix("\n").replace("\r", " ") + "\n"
        yield _END

    def chunk() -> Chunk:
        return Chunk(source, start, position, bytes(pending) if source.compressed else None)

    csv.field_size_limit(MAX_CSV_FIELD)
    with _open_bytes(source.path, source.compressed) as file:
        try:
            _skip(file, start)
            reader = csv.reader(lines(file))
            for fields in reader:
                if fields == [_END]:
                    break
                if fields and fields[-1].endswith(_END):
                    raise csv.Error("a quote is not closed before the end of the file")
                number = source.header_lines + reader.line_num + 1
                if position - start >= chunk_bytes:
                    yield chunk()
                    pending.clear()
                    start = position
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source.path}: the file is damaged. Received: {_reason(error)}.") from error
        except csv.Error as error:
            raise DataError(
                f"{source.path}:{number}: not a CSV record. Received: {error}. A file without quoting is --format tsv."
            ) from error
        if position > start:
            yield chunk()


# What a row of a chunk is: its line number within the chunk (from 1), its raw text, and its fields or what is wrong.
Row = tuple[int, str, list[str] | RowError]
Reject = tuple[int, str, RowError]


def read_rows(chunk: Chunk) -> Iterator[Row]:
    """The rows of a chunk, in order, with the wanted fields of each.

    A row that cannot be used is delivered with its RowError: `encoding`, `columns` (too few, or not as many as the
    header has), `json`, `blank` (an empty line where fields are expected).
    """
    source = chunk.source
    data = chunk.read()
    if source.format == "csv":
        yield from _read_csv(source, data)
        return
    parse = {"tsv": _parse_tsv, "jsonl": _parse_jsonl, "text": _parse_text}[source.format]
    for number, line in enumerate(_decoded_lines(data, source.replace_bad_bytes), 1):
        if isinstance(line, bytes):
            yield number, line.decode("utf-8", "replace"), RowError("encoding", "not UTF-8")
            continue
        try:
            yield number, line, parse(source, line)
        except RowError as error:
            yield number, line, error


@dataclass(frozen=True)
class ChunkColumns:
    """The rows of a chunk, one wanted field of all rows at a time.

    Attributes:
        numbers: line number in the chunk, from 1, of every row that can be used.
        columns: the wanted fields of these rows, in order.
        rejects: line number, raw text and error of every other row.
        raws: gives the raw texts of the rows that can be used.
    """

    numbers: Sequence[int]
    columns: Sequence[Sequence[str]]
    rejects: list[Reject]
    raws: Callable[[], Sequence[str]]


def read_columns(chunk: Chunk) -> ChunkColumns:
    """What `read_rows` delivers, by columns; fast where the lines are of one kind."""
    if chunk.source.format == "tsv" and (found := _tsv_columns(chunk.source, chunk.read())) is not None:
        return found
    rows: list[Row] = list(read_rows(chunk))
    rejects = [(number, raw, fields) for number, raw, fields in rows if isinstance(fields, RowError)]
    used = [(number, raw, fields) for number, raw, fields in rows if not isinstance(fields, RowError)]
    columns = list(zip(*(fields for _, _, fields in used), strict=True)) or [()] * len(chunk.source.wanted)
    return ChunkColumns([number for number, _, _ in used], columns, rejects, lambda: [raw for _, raw, _ in used])


def _tsv_columns(source: Source, data: bytes) -> ChunkColumns | None:
    """The columns where every line can be used and has as many fields as the first; else None."""
    try:
        text = data.decode("utf-8", "replace" if source.replace_bad_bytes else "strict").removesuffix("\n")
    except UnicodeDecodeError:
        return None
    marks = data.translate(None, _NO_MARKS)
    marks += b"" if data.endswith(b"\n") else b"\n"
    width = marks.index(b"\n") + 1
    count = len(marks) // width
    try:
        _pick(source, [""] * width)
    except RowError:
        return None
    if (width == 1 and not source.one_column) or marks != (b"\t" * (width - 1) + b"\n") * count:
        return None
    fields = text.replace("\n", "\t").split("\t")
    columns = []
    for i in source.wanted:
        first = int(i) % width
        column = fields[first::width]
        if first == width - 1 and "\r" in text:
            column = [field.removesuffix("\r") for field in column]
        columns.append(column)
    return ChunkColumns(
        range(1, count + 1), columns, [], lambda: [line.removesuffix("\r") for line in text.split("\n")]
    )


def count_lines(data: bytes) -> int:
    """Lines in a run of whole lines, the last of which may lack its LF."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def _decoded_lines(data: bytes, replace: bool) -> list[str] | list[str | bytes]:
    """Lines without their ends; one that is not UTF-8 stays bytes."""
    if data.endswith(b"\n"):
        data = data[:-1]
    elif not data:
        return []
    try:
        text = data.decode("utf-8", "replace" if replace else "strict")
    except UnicodeDecodeError:
        return [_decoded_line(line) for line in data.split(b"\n")]
    if "\r" not in text:
        return text.split("\n")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _decoded_line(line: bytes) -> str | bytes:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return line


def _pick(source: Source, fields: list[str]) -> list[str]:
    if source.num_fields is not None:
        if len(fields) != source.num_fields:
            raise RowError("columns", f"{len(fields)} fields, {source.num_fields} are named")
    elif len(fields) in source.ambiguous:
        raise RowError("columns", f"{len(fields)} fields: two columns would be the same one")
    try:
        return [fields[i] for i in source.wanted]  # type: ignore[index]
    except IndexError:
        raise RowError("columns", f"{len(fields)} fields") from None


def _parse_tsv(source: Source, line: str) -> list[str]:
    if not source.one_column and "\t" not in line and not line.strip():
        raise RowError("blank")
    return _pick(source, line.split("\t"))


def _parse_text(source: Source, line: str) -> list[str]:
    return [line] * len(source.wanted)


def _parse_jsonl(source: Source, line: str) -> list[str]:
    if not line.strip():
        raise RowError("blank")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RowError("json", str(error)) from None
    if not isinstance(row, dict):
        raise RowError("json", "not an object")
    fields: list[Any] = []
    for place, key in enumerate(source.wanted):
        value = row.get(key)
        if value is None and not (key in row and place in source.nullable):
            raise RowError("columns", f"no {key!r}")
        fields.append(value if value is None or isinstance(value, str) else orjson.dumps(value).decode())
    return fields


def _read_csv(source: Source, data: bytes) -> Iterator[Row]:
    csv.field_size_limit(MAX_CSV_FIELD)
    bad = False  # a line of the record being read is not UTF-8

    def lines() -> Iterator[str]:
        nonlocal bad
        for line in _decoded_lines(data, source.replace_bad_bytes):
            if isinstance(line, bytes):
                bad = True
                line = line.decode("utf-8", "replace")
            yield line.replace("\r", " ") + "\n"

    reader = csv.reader(lines())
    number = 1
    for fields in reader:
        raw = ",".join(fields)
        if bad:
            yield number, raw, RowError("encoding", "not UTF-8")
        elif not fields:
            yield number, raw, RowError("blank")
        else:
            try:
                yield number, raw, _pick(source, fields)
            except RowError as error:
                yield number, raw, error
        number, bad = reader.line_num + 1, False
