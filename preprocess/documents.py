"""Corpus files to documents: chunks that end where a document does, and the lines of the documents in a chunk.

A document of a text file ends at a blank line, at every line end, or at the end of the file (`ENDS`); in the other
formats every row is one. A document larger than a chunk is cut at a line end, or, where a single line is as large, at
a blank; the pieces are known to belong together.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tfbert.data.source import Chunk, RowError, Source, chunks, read_rows, stream

ENDS = ("blank", "line", "file")
_REACH = 4 << 20  # bytes behind the wanted end of a chunk in which a better place for it is looked for
_BLANKS = b" \t\r"  # of which a blank line may consist
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
_FULL_STOP = "。".encode()


class Piece(NamedTuple):
    """A chunk, and how it begins.

    Attributes:
        chunk: of whole lines, as far as no line is too long.
        goes_on: with the last document of the chunk before.
        in_line: with its last line, even.
    """

    chunk: Chunk
    goes_on: bool = False
    in_line: bool = False


@dataclass
class Document:
    """One document of a chunk, or a piece of one.

    Attributes:
        line: number of its first line in the chunk, from 1.
        lines: (line number, text) of every line.
        bad: (line number, raw text, what is wrong) of the lines that cannot be used.
        goes_on: a piece, which goes on with the last document of the chunk before.
    """

    line: int
    lines: list[tuple[int, str]] = field(default_factory=list)
    bad: list[tuple[int, str, RowError]] = field(default_factory=list)
    goes_on: bool = False

    def add(self, number: int, raw: str, fields: list[str] | RowError) -> None:
        if isinstance(fields, RowError):
            self.bad.append((number, raw, fields))
        else:
            self.lines += [(number, line) for line in fields[0].split("\n") if line.strip()]


def document_chunks(source: Source, ends: str, chunk_bytes: int) -> Iterator[Piece]:
    """Cuts a source into chunks of about `chunk_bytes`."""
    if source.format != "text":
        yield from map(Piece, chunks(source, chunk_bytes))
        return
    position, goes_on, in_line = source.data_start, False, False
    pending = bytearray()
    for block in itertools.chain(stream(source, chunk_bytes), [b""]):
        pending += block
        while len(pending) >= chunk_bytes + _REACH or (pending and not block):
            size, whole = _cut(pending, ends, chunk_bytes, in_line)
            chunk = Chunk(source, position, position + size, bytes(pending[:size]) if source.compressed else None)
            yield Piece(chunk, goes_on, in_line)
            position, goes_on, in_line = position + size, not whole, pending[size - 1] != ord("\n")
            del pending[:size]


def _cut(data: bytearray, ends: str, wanted: int, in_line: bool) -> tuple[int, bool]:
    """Where a chunk of at least `wanted` bytes ends, and whether a document ends there."""
    if ends == "blank" and (blank := _BLANK_LINE.search(data, wanted - 1)):
        return blank.end(), True
    at_end = len(data) < wanted + _REACH
    line_end = data.find(b"\n", wanted - 1) if ends == "line" or not at_end else -1
    if line_end >= 0:
        line_start = data.rfind(b"\n", 0, line_end) + 1
        is_blank = not data[line_start:line_end].strip(_BLANKS) and not (in_line and line_start == 0)
        return line_end + 1, ends == "line" or (ends == "blank" and is_blank)
    if at_end:
        return len(data), True
    places = [data.rfind(sign, wanted) + len(sign) for sign in (b" ", _FULL_STOP) if sign in data[wanted:]]
    return max(places, default=_character_border(data)), False


def _character_border(data: bytearray) -> int:
    """A place near the end where no character of UTF-8 is cut."""
    for size in range(len(data) - 1, len(data) - 5, -1):
        if data[size] & 0xC0 != 0x80:
            return size
    return len(data)


def read_documents(piece: Piece, ends: str) -> Iterator[Document]:
    """The documents of a chunk; blank lines are none of their lines. A row that cannot be used is a document too.

    Args:
        piece: of `document_chunks`.
        ends: one of `ENDS`.
    """
    by_row = piece.chunk.source.format != "text"
    goes_on, in_line = piece.goes_on, piece.in_line
    document: Document | None = None
    for number, raw, fields in read_rows(piece.chunk):
        is_blank = not isinstance(fields, RowError) and not fields[0].strip(_BLANKS.decode())
        if by_row or not is_blank:
            document = document or Document(number, goes_on=goes_on)
            document.add(number, raw, fields)
        if by_row or ends == "line" or (ends == "blank" and is_blank and not in_line):
            goes_on = False
            if document is not None:
                yield document
                document = None
        in_line = False
    if document is not None:
        yield document
