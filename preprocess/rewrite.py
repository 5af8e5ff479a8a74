"""Records with other texts in some columns: every other byte of them stays as it was.

For commands whose output has the format of their input. A record is the bytes of one row with its line end.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from tfbert.data.source import Chunk, Row, RowError, Source, read_rows
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError

SUFFIXES = {"tsv": (".tsv",), "csv": (".csv",), "jsonl": (".jsonl", ".json", ".ndjson"), "text": ()}
Place = tuple[int, int, str]  # first character and end of a field in the record, and its text
_CSV_FIELD = re.compile(r'"((?:[^"]|"")*)"([^,]*)|([^,]*)', re.DOTALL)
_JSON = json.JSONDecoder()


@dataclass(frozen=True)
class Record:
    """One record, taken apart at the fields that are to be replaced.

    Attributes:
        texts: what stands in these fields, in the order of the columns asked for.
    """

    texts: tuple[str, ...]
    _format: str
    _pieces: tuple[str, ...]  # what stands around the fields
    _fields: tuple[tuple[int, bool], ...]  # in the order of the record: which text, and whether it is in quotes
    _end: str

    def fill(self, texts: Sequence[str], more: tuple[str, str] | None = None) -> bytes:
        """The record with other texts; `more` is the name and the value of a field behind the others."""
        parts = [self._pieces[0]]
        for (number, quoted), piece in zip(self._fields, self._pieces[1:], strict=True):
            parts += [dump_field(self._format, texts[number], quoted), piece]
        body = "".join(parts)
        return ((append_field(self._format, body, *more) if more else body) + self._end).encode("utf-8")


def records(chunk: Chunk) -> Iterator[tuple[Row, bytes]]:
    """The rows of a chunk, as `read_rows` gives them, and the bytes of each."""
    lines = chunk.read().split(b"\n")  # LF alone ends a line
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    rows = list(read_rows(chunk))
    starts = [number - 1 for number, _, _ in rows]
    for row, start, end in zip(rows, starts, [*starts[1:], len(lines)], strict=True):
        yield row, b"".join(lines[start:end])


def split_end(record: bytes) -> tuple[bytes, bytes]:
    """A line without its end, and the end: LF, CRLF, or what the last line has."""
    body = record.removesuffix(b"\n").removesuffix(b"\r")
    return body, record[len(body) :]


def take_apart(source: Source, record: bytes) -> Record:
    """Finds the wanted fields of a usable record.

    Raises:
        RowError: a field is not a text.
    """
    raw, end = split_end(record)
    body = raw.decode("utf-8")
    places = _FIND[source.format](body, source.wanted)
    order = sorted(range(len(places)), key=lambda i: places[i][0])
    edges = [0, *(edge for i in order for edge in places[i][:2]), len(body)]
    return Record(
        tuple(text for _, _, text in places),
        source.format,
        tuple(body[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)),
        tuple((i, body[places[i][0] : places[i][0] + 1] == '"') for i in order),
        end.decode("ascii"),
    )


def _find_text(body: str, columns: Sequence[int | str]) -> list[Place]:
    return [(0, len(body), body)]


def _find_tsv(body: str, columns: Sequence[int | str]) -> list[Place]:
    fields = body.split("\t")
    ends = []
    at = -1
    for field in fields:
        at += 1 + len(field)
        ends.append(at)
    return [(ends[int(c)] - len(fields[int(c)]), ends[int(c)], fields[int(c)]) for c in columns]


def _find_csv(body: str, columns: Sequence[int | str]) -> list[Place]:
    places: list[Place] = []
    at = 0
    while at <= len(body):
        match = _CSV_FIELD.match(body, at)
        if match is None:  # cannot be: the pattern takes the empty field
            break
        quoted, tail, plain = match.groups()
        text = plain if quoted is None else quoted.replace('""', '"') + tail
        places.append((at, match.end(), text))
        at = match.end() + 1
    return [places[int(c)] for c in columns]


def _find_jsonl(body: str, columns: Sequence[int | str]) -> list[Place]:
    places = []
    for column in columns:
        try:
            start, end = _value_place(body, str(column))
        except RecursionError:
            raise RowError("json", "nested too deeply") from None
        if body[start] != '"':
            raise RowError("not a text", body[start:end][:40])
        places.append((start, end, _JSON.raw_decode(body, start)[0]))
    return places


def _value_place(line: str, key: str) -> tuple[int, int]:
    """First character and end of the value of a key of the outer object; of equal keys the last one counts."""
    place = (0, 0)
    at = _skip_blanks(line, line.index("{") + 1)
    while line[at] != "}":
        name, at = _JSON.raw_decode(line, _skip_blanks(line, at + (line[at] == ",")))
        start = _skip_blanks(line, _skip_blanks(line, at) + 1)
        _, at = _JSON.raw_decode(line, start)
        if name == key:
            place = (start, at)
        at = _skip_blanks(line, at)
    return place


def _skip_blanks(line: str, at: int) -> int:
    while line[at] in " \t\r\n":
        at += 1
    return at


_FIND: dict[str, Callable[[str, Sequence[int | str]], list[Place]]] = {
    "text": _find_text, "tsv": _find_tsv, "csv": _find_csv, "jsonl": _find_jsonl,
}  # fmt: skip


def dump_field(format: str, text: str, quoted: bool = False) -> str:
    """A text as it stands in a record; a CSV field is in quotes where it must be, or where it was."""
    if format == "jsonl":
        return orjson.dumps(text).decode()
    if format == "csv" and (quoted or any(c in text for c in ',"\r\n')):
        return '"' + text.replace('"', '""') + '"'
    return text


def append_field(format: str, body: str, name: str, value: str) -> str:
    """A record, without its line end, with one more field at its end; `name` is for JSON lines."""
    if format == "jsonl":
        inner = body.rstrip().removesuffix("}").rstrip()
        field = f"{orjson.dumps(name).decode()}: {orjson.dumps(value).decode()}"
        return f"{inner}{'' if inner.endswith('{') else ', '}{field}}}"
    return body + {"tsv": "\t", "csv": ","}[format] + dump_field(format, value)


# --------------------------------------------------------------------------------------------------- the output file


def check_suffix(out: Path, source: Source) -> None:
    """Refuses a name that promises another format: it would be misread by whoever reads it next."""
    if out.suffix.lower() == ".zst":
        raise ConfigError(f"The output is plain or .gz. Received: --out {out}.")
    suffix = Path(out.stem if out.suffix.lower() == ".gz" else out.name).suffix.lower()
    for format, suffixes in SUFFIXES.items():
        if suffix in suffixes and format != source.format:
            raise ConfigError(f"The output has the format of the input, {source.format}. Received: --out {out}.")


@contextmanager
def open_output(out: Path) -> Iterator[BinaryIO]:
    """The file to write, compressed where its name ends with .gz; it gets its name when the block ends well."""
    with atomic_file(out) as file:
        if out.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:  # same input, same bytes
            yield compressed  # type: ignore[misc]
