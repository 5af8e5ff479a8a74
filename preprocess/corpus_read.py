"""First stage of a corpus, in the workers: a chunk of documents to the tokens of their sentences.

A part `documents-N` holds the tokens of all sentences one after the other (`.tokens`), a byte a token that tells
whether it begins a word (`.begins`), the tokens of every sentence (`.lengths`), and a table of the documents
(`.documents`).
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from preprocess.documents import Document, Piece, read_documents
from preprocess.encode import CUT
from preprocess.parts import PartFiles, PartStats
from preprocess.segment import make_cut
from tfbert.data.source import Chunk
from tfbert.text.clean import Cleaner
from tfbert.text.sentences import split_sentences
from tfbert.text.whole_words import PieceWords, SegmentedWords
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

DOCUMENT = np.dtype(
    [
        ("tokens", "<i8"),
        ("sentences", "<i4"),
        ("line", "<u4"),  # line number in the chunk
        ("label", "<i4"),  # always -1
        ("label_key", "<u4"),  # always 0
        ("hash", "<u8"),  # of the text; for a piece that of the first piece
        ("hash2", "<u8"),  # of the text or piece
        ("goes_on", "?"),  # a piece that goes on with the last document of the part before
    ]
)
ENCODED_SENTENCES = 4096  # together, or those of one document
BAD = ("encoding", "json", "columns")  # reasons that are the data's fault


@dataclass(frozen=True)
class ReadSettings:
    """How documents become tokens."""

    vocab: str
    cased: bool
    clean: tuple[str, ...]
    documents: str
    split_lines: bool
    whole_words: str
    user_dict: str | None
    hash_key: bytes
    least_tokens: int
    keep_texts: bool


@dataclass(frozen=True)
class ReadTask:
    """One chunk to one part."""

    source: int
    piece: Piece
    files: PartFiles

    @property
    def chunk(self) -> Chunk:
        return self.piece.chunk


class _Reader:
    def __init__(self, settings: ReadSettings):
        vocabulary = Vocabulary.load(settings.vocab)
        tokenizer = WordPieceTokenizer(vocabulary, settings.cased)
        self.settings = settings
        self.clean = Cleaner(settings.clean)
        self.dtype = token_dtype(len(vocabulary))
        if settings.whole_words in ("none", "pieces"):
            self.encode = PieceWords(tokenizer).encode
        else:
            self.encode = SegmentedWords(tokenizer, make_cut(settings.whole_words, settings.user_dict, True)).encode

    def sentences(self, line: str) -> list[str]:
        text = self.clean(line)
        return split_sentences(text) if self.settings.split_lines else [text]


_reader: _Reader


def start_reader(settings: ReadSettings) -> None:
    global _reader
    _reader = _Reader(settings)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Of the token ids in the parts."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


@dataclass
class _Waiting:
    """A document whose sentences (line number, text) are not encoded yet."""

    document: Document
    hashes: tuple[int, int]
    sentences: list[tuple[int, str]]


class _PartBuilder:
    """The documents of a part as they are collected; sentences are encoded many at a time."""

    def __init__(self, reader: _Reader):
        self._reader, self._settings = reader, reader.settings
        self._tokens, self._begins, self._texts = bytearray(), bytearray(), bytearray()
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._table: list[tuple[Any, ...]] = []
        self._rejects: list[dict[str, Any]] = []
        self._documents: Counter[str] = Counter()
        self._sentence_counts: Counter[str] = Counter()
        self._token_counts: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        self._num_waiting = 0  # sentences
        self._last_hash = 0

    def _reject(self, line: int, raw: str, what: str, reason: str, detail: str) -> None:
        entry = {"line": line, "reason": reason, "detail": detail, "text": raw[:CUT], "what": what}
        self._rejects.append(entry)

    def add(self, document: Document, by_row: bool) -> None:
        self._documents["read"] += not document.goes_on
        if by_row and document.bad:
            number, raw, error = document.bad[0]
            self._drop(document, error.reason, error.detail, raw)
            return
        for number, raw, error in document.bad:
            self._sentence_counts.update(("read", error.reason))
            self._reject(number, raw, "line", error.reason, error.detail)
        hashes = _text_hash(document, self._settings.hash_key)
        if not document.goes_on:
            self._last_hash = hashes[0]
        sentences = [(n, sentence) for n, line in document.lines for sentence in self._reader.sentences(line)]
        self._waiting.append(_Waiting(document, hashes, sentences))
        self._num_waiting += len(sentences)
        if self._num_waiting >= ENCODED_SENTENCES:
            self.encode()

    def encode(self) -> None:
        """Encodes the sentences that wait."""
        texts = [sentence for waiting in self._waiting for _, sentence in waiting.sentences]
        rows, begins = self._reader.encode(texts)
        token = first = 0
        for waiting in self._waiting:
            lengths = rows.lengths[first : first + len(waiting.sentences)]
            size = int(lengths.sum())
            self._add(waiting, lengths, rows.token_ids[token : token + size], begins[token : token + size])
            token, first = token + size, first + len(lengths)
        self._waiting.clear()
        self._num_waiting = 0

    def _add(
        self,
        waiting: _Waiting,
        lengths: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int32],
        begins: npt.NDArray[np.bool_],
    ) -> None:
        document, total = waiting.document, len(token_ids)
        for i in np.flatnonzero(lengths == 0):
            self._sentence_counts["empty"] += 1
            self._reject(*waiting.sentences[i], "sentence", "empty", "no token")
        found = int(np.count_nonzero(lengths))
        self._sentence_counts["read"] += len(lengths)
        self._token_counts["read"] += total
        if total < self._settings.least_tokens and not document.goes_on:
            reason, detail = ("short", f"{total} tokens") if total else ("empty", "no token")
            self._sentence_counts[reason] += found
            self._token_counts[reason] += total
            self._drop(document, reason, detail, document.lines[0][1] if document.lines else "")
            return
        self._tokens += token_ids.astype(self._reader.dtype).tobytes()
        self._begins += begins.tobytes()
        self._lengths.append(lengths[lengths > 0].astype(np.int32))
        self._table.append((total, found, document.line, -1, 0, *waiting.hashes, document.goes_on))
        if self._settings.keep_texts:
            first = document.lines[0][1] if document.lines else ""
            self._texts += orjson.dumps(first[:CUT], option=orjson.OPT_APPEND_NEWLINE)

    def _drop(self, document: Document, reason: str, detail: str, raw: str) -> None:
        self._documents[reason] += 1
        self._reject(document.line, raw, "document", reason, detail)

    def contents(self) -> dict[str, bytes | bytearray]:
        contents: dict[str, bytes | bytearray] = {
            ".tokens": self._tokens,
            ".begins": self._begins,
            ".lengths": b"".join(lengths.tobytes() for lengths in self._lengths),
            ".documents": np.array(self._table, DOCUMENT).tobytes(),
            ".rejects": b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in self._rejects),
        }
        if self._settings.keep_texts:
            contents[".texts"] = self._texts
        return contents

    def stats(self, chunk: Chunk) -> PartStats:
        """`lines` and `rejected` are of documents, `rows` counts documents and pieces."""
        read = self._documents.pop("read", 0)
        return PartStats(
            lines=read,
            physical_lines=chunk.read().count(b"\n"),
            rows=len(self._table),
            rejected=dict(self._documents),
            first_bad=next((reject for reject in self._rejects if reject["reason"] in BAD), None),
            counts={
                "sentences": dict(self._sentence_counts),
                "tokens": dict(self._token_counts),
                "last": {"hash": self._last_hash},
            },
        )


def _text_hash(document: Document, key: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(digest_size=16, key=key)
    for _, line in document.lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return int.from_bytes(digest.digest()[:8], "little"), int.from_bytes(digest.digest()[8:], "little")


def read_chunk(task: ReadTask) -> PartStats:
    """Writes the documents of one chunk, or takes the part that an interrupted run finished."""
    done = task.files.load()
    if done is not None:
        return done
    part = _PartBuilder(_reader)
    for document in read_documents(task.piece, _reader.settings.documents):
        try:
            part.add(document, task.chunk.source.format != "text")
        except Exception as error:
            line = task.chunk.first_line() + document.line - 1
            error.add_note(f"{task.chunk.source.path}:{line}: this document was worked on")
            raise
    part.encode()
    return task.files.save(part.contents(), part.stats(task.chunk))


def read_table(files: PartFiles, inherited: int) -> npt.NDArray[np.void]:
    """The documents of a part; a first piece gets the hash of its document, which began in a part before."""
    table = np.fromfile(files.path(".documents"), DOCUMENT)
    if len(table) and table["goes_on"][0]:
        table["hash"][0] = inherited
    return table
