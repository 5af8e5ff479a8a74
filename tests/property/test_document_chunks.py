"""Documents are the same whatever the size of the chunks, but for those that are larger than a chunk."""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess import documents
from preprocess.documents import document_chunks, read_documents
from tfbert.data.source import open_source

LINE = st.sampled_from(["a", "bb", "ccc。", "字字字", "", " ", "\t\r", "\u3000", "\u2028x", "long " * 4])
CONTENT = st.lists(LINE, max_size=25).map("\n".join)


def pieces(path: Path, ends: str, chunk_bytes: int, reach: int) -> Iterator[tuple[bool, list[tuple[int, str]]]]:
    """(goes on with the document before, lines with their numbers in the file) of every document or piece of one."""
    source = open_source(path, ["0"], format="text")
    with patch.object(documents, "_REACH", reach):
        position, line = 0, 1
        for piece in document_chunks(source, ends, chunk_bytes):
            chunk, data = piece.chunk, piece.chunk.read()
            assert chunk.start == position
            assert data
            assert len(data) <= max(chunk_bytes, 1) + reach + 40
            position = chunk.end
            for document in read_documents(piece, ends):
                yield document.goes_on, [(line + number - 1, text) for number, text in document.lines]
            line += data.count(b"\n")
        content = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        assert position == len(content)


def expected(content: str, ends: str) -> list[list[tuple[int, str]]]:
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(content.split("\n"), 1)]
    found: list[list[tuple[int, str]]] = [[]]
    for number, line in lines:
        if line.strip():
            found[-1].append((number, line))
        if ends == "line" or (ends == "blank" and not line.strip(" \t\r")):
            found.append([])
    return [document for document in found if document]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@given(
    content=CONTENT,
    ends=st.sampled_from(["blank", "line", "file"]),
    chunk_bytes=st.integers(1, 60),
    reach=st.integers(16, 60),
)
def test_pieces_join_to_the_documents(suffix: str, content: str, ends: str, chunk_bytes: int, reach: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"in{suffix}"
        data = content.encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
        joined: list[list[tuple[int, str]]] = []
        for goes_on, lines in pieces(path, ends, chunk_bytes, reach):
            if goes_on and joined:
                if joined[-1] and lines and joined[-1][-1][0] == lines[0][0]:  # a line that was cut
                    lines = [(lines[0][0], joined[-1].pop()[1] + lines[0][1]), *lines[1:]]
                joined[-1] += lines
            else:
                joined.append(lines)
    joined = [lines for lines in joined if lines]
    # white space aside: a line that is cut may lose some where it is cut
    assert [[(n, "".join(t.split())) for n, t in lines] for lines in joined] == [
        [(n, "".join(t.split())) for n, t in lines] for lines in expected(content, ends)
    ]


def test_a_document_is_cut_only_where_it_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\na\n\nb\nb\nb\nb\n\nc\n", encoding="utf-8")
    assert [goes_on for goes_on, _ in pieces(path, "blank", 2, 8)] == [False, False, False]
    assert [goes_on for goes_on, _ in pieces(path, "blank", 2, 3)] == [False, False, True, True, False]
    assert [lines for _, lines in pieces(path, "blank", 100, 3)] == expected(path.read_text(encoding="utf-8"), "blank")


def test_a_line_without_end_is_cut_between_characters(tmp_path: Path) -> None:
    """Memory stays bounded for a book in one line; no character of UTF-8 is torn."""
    path = tmp_path / "in.txt"
    text = "字" * 50 + "。" + "word " * 20
    path.write_text(text, encoding="utf-8")
    for chunk_bytes in range(1, 12):
        found = list(pieces(path, "blank", chunk_bytes, 16))
        assert "".join(line for _, lines in found for _, line in lines) == text
        assert [goes_on for goes_on, _ in found] == [False] + [True] * (len(found) - 1)
        assert len(found) > 5
