"""Corpus files to documents: chunks that end where a document does, and the lines of the documents in a chunk.

A document of a text file ends at a blank line, at every line end, or at the end of the file (`ENDS`); in the other
formats every row is one. A document larger than a chunk is cut at a line end, or, where a single line is as large, at
a blank; the pieces are known to belong together.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tfbert.data.source import Chunk, RowError, Source, chunks, read_rows, stream

ENDS = ("blank", "line", "file")
_REACH = 4 << 20  # bytes behind the wanted end of a chunk in which a better place for it is looked for
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
_FULL_STOP = "。".encode()


@dataclass
class Document:
    """One document of a chunk, or a piece of one.

    Attributes:
        line: number of its first line in the chunk, from 1.
        lines: (line number, text) of every line.
        bad: (line number, raw text, what is wrong) of the lines that cannot be used.
    """

    line: int
    lines: list[tuple[int, str]] = field(default_factory=list)
    bad: list[tuple[int, str, RowError]] = field(default_factory=list)


def document_chunks(source: Source, ends: str, chunk_bytes: int) -> Iterator[tuple[Chunk, bool]]:
    """Cuts a source into chunks of about `chunk_bytes`; tells for each whether it goes on with the document before."""
    if source.format != "text":
        yield from ((chunk, False) for chunk in chunks(source, chunk_bytes))
        return
    position, goes_on = source.data_start, False
    pending = bytearray()
    for block in stream(source, chunk_bytes):
        pending += block
        while len(pending) >= chunk_bytes + _REACH:
            size, whole = _cut(pending, ends, chunk_bytes)
            yield _chunk(source, position, pending[:size]), goes_on
            position, goes_on = position + size, not whole
            del pending[:size]
    while pending:
        size, whole = _cut(pending, ends, chunk_bytes)
        yield _chunk(source, position, pending[:size]), goes_on
        position, goes_on = position + size, not whole
        del pending[:size]


def _chunk(source: Source, start: int, data: bytearray) -> Chunk:
    return Chunk(source, start, start + len(data), bytes(data) if source.compressed else None)


def _cut(data: bytearray, ends: str, wanted: int) -> tuple[int, bool]:
    """Where a chunk of at least `wanted` bytes ends, and whether a document ends there."""
    if ends == "blank" and (blank := _BLANK_LINE.search(data, wanted - 1)):
        return blank.end(), True
    at_end = len(data) < wanted + _REACH
    line_end = data.find(b"\n", wanted - 1) if ends == "line" or not at_end else -1
    if line_end >= 0:
        return line_end + 1, ends == "line"
    if at_end:
        return len(data), True
    last = max(data.rfind(b" ", wanted) + 1, data.rfind(_FULL_STOP, wanted) + len(_FULL_STOP))
    return (last if last > wanted else _character_border(data)), False


def _character_border(data: bytearray) -> int:
    """A place near the end where no character of UTF-8 is cut."""
    for size in range(len(data) - 1, len(data) - 5, -1):
        if data[size] & 0xC0 != 0x80:
            return size
    return len(data)


def read_documents(chunk: Chunk, ends: str) -> Iterator[Document]:
    """The documents of a chunk; blank lines are none of their lines. A row that cannot be used is a document too."""
    document: Document | None = None
    by_row = chunk.source.format != "text"
    for number, raw, fields in read_rows(chunk):
        if isinstance(fields, RowError):
            document = document or Document(number)
            document.bad.append((number, raw, fields))
        elif by_row:
            document = Document(number, [(number, line) for line in fields[0].split("\n") if line.strip()])
        elif fields[0].strip():
            document = document or Document(number)
            document.lines.append((number, fields[0]))
        elif ends == "blank" and document is not None:
            yield document
            document = None
        if document is not None and (by_row or ends == "line"):
            yield document
            document = None
    if document is not None:
        yield document
