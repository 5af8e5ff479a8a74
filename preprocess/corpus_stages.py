"""What workers do to make a corpus data set: read documents, pack rows, shuffle buckets.

    chunk --read--> documents-N: tokens of the sentences of whole documents
          --pack--> packed-N: the rows of these documents, sorted by the bucket that each is thrown into at random
          --shuffle--> train-K, val-K: the rows of bucket K of all packed parts, in random order

Joined, the buckets are a uniformly random permutation of all rows, though only one bucket at a time is in memory. Every
stage leaves whole parts (`PartFiles`), so an interrupted run goes on from those.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from preprocess.documents import Document, Piece, read_documents
from preprocess.encode import CUT
from preprocess.packing import PackedRow, Packing, Side, Text, pack_document
from preprocess.parts import ROW, PartFiles, PartStats
from preprocess.segment import make_cut
from preprocess.split import TRAIN, VAL
from tfbert.data.arrow_writer import dump_table, make_table, row_schema
from tfbert.data.record import dump_rows, parse_columns
from tfbert.data.source import Chunk
from tfbert.data.store import SUFFIXES
from tfbert.text.batch import TokenRows
from tfbert.text.clean import Cleaner
from tfbert.text.pair import pack_rows
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
PLACE = np.dtype(  # where a document lies, for texts to lend
    [
        ("part", "<i4"),
        ("first_token", "<i8"),
        ("first_sentence", "<i8"),
        ("sentences", "<i4"),
        ("hash", "<u8"),
    ]
)
ENCODED_SENTENCES = 4096  # together, or those of one document
GROUPS = {TRAIN: "train", VAL: "val"}
_PACK, _SHUFFLE = 1, 2  # what random numbers are for


# ------------------------------------------------------------------------------------------------ read documents


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


BAD = ("encoding", "json", "columns")  # reasons that are the data's fault


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


# ------------------------------------------------------------------------------------------------------ pack rows


@dataclass(frozen=True)
class PackSettings:
    """How documents become rows and rows are shuffled.

    Attributes:
        folder: of the parts.
        vocab: the vocabulary file.
        packing: how rows are made.
        seed: of all random numbers.
        words: rows tell where words begin.
        buckets: number of buckets by group.
        places: file of the places (`PLACE`) of all documents, for texts to lend.
        lenders: group -> file of the numbers of its documents (int64).
        store: of the rows that come out: jsonl or arrow.
    """

    folder: str
    vocab: str
    packing: Packing
    seed: int
    words: bool
    buckets: dict[str, int]
    places: str | None
    lenders: dict[str, str]
    store: str

    def schema(self, vocab_size: int) -> Any:
        """Of an Arrow store."""
        pairs = self.packing.pairs != "none"
        task = "classify" if pairs else None
        return row_schema(vocab_size, task, pair=pairs, type=False, weight=False, words=self.words)


@dataclass(frozen=True)
class PackTask:
    """The documents of one part.

    Attributes:
        number: of the part.
        first: number of its first document in the corpus.
        destination: where each goes.
        inherited: hash of the document that the part before ends with.
    """

    number: int
    first: int
    destination: npt.NDArray[np.uint8]
    inherited: int
    files: PartFiles


@dataclass(frozen=True)
class ShuffleTask:
    """One bucket of a group, out of so many packed parts."""

    group: str
    number: int
    parts: int
    files: PartFiles


class _Packer:
    def __init__(self, settings: PackSettings):
        vocabulary = Vocabulary.load(settings.vocab)
        self.settings = settings
        self.schema = settings.schema(len(vocabulary)) if settings.store == "arrow" else None
        self.cls_id, self.sep_id = vocabulary.cls_id, vocabulary.sep_id
        self.dtype = token_dtype(len(vocabulary))
        self.first_bucket = {"train": 0, "val": settings.buckets["train"]}
        self.places = np.memmap(settings.places, PLACE, "r") if settings.places else None
        self.lenders = {group: np.memmap(path, "<i8", "r") for group, path in settings.lenders.items()}

    def part(self, stage: str, number: int) -> PartFiles:
        return PartFiles(str(Path(self.settings.folder) / f"{stage}-{number:06d}"))

    def rng(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed % 2**64, *what])

    def read(self, files: PartFiles, token: int, sentence: int, sentences: int) -> Text:
        """Consecutive sentences of a part of documents."""
        lengths = np.fromfile(files.path(".lengths"), "<i4", sentences, offset=4 * sentence).astype(np.int64)
        tokens = int(lengths.sum())
        size = self.dtype.itemsize
        token_ids = np.fromfile(files.path(".tokens"), self.dtype, tokens, offset=size * token)
        begins = np.fromfile(files.path(".begins"), np.bool_, tokens, offset=token)
        return Text(token_ids, begins, lengths)

    @staticmethod
    def _other(own: int, numbers: npt.NDArray[np.int64], places: npt.NDArray[np.void], first: int) -> int:
        """Number of the first document that is not the own one, from place `first` of the list on, round and round."""
        step = 1
        while True:
            some = numbers[first : first + step]
            different = np.flatnonzero(places["hash"][some] != np.uint64(own))
            if len(different):
                return int(some[different[0]])
            first = first + step if first + step < len(numbers) else 0
            step = min(2 * step, 1 << 16)

    def lend(self, group: str, own: int, rng: np.random.Generator, room: int) -> Side:
        """Sentences of another document of the group, from a random one on, as many as fit; at least a piece of one."""
        numbers, places = self.lenders[group], self.places
        if places is None:
            raise ValueError("Texts are lent where their places are known. Received: no places.")
        place = places[self._other(own, numbers, places, int(rng.integers(len(numbers))))]
        files = self.part("documents", int(place["part"]))
        first = int(rng.integers(place["sentences"]))
        skipped = np.fromfile(files.path(".lengths"), "<i4", first, offset=4 * int(place["first_sentence"]))
        count = min(int(place["sentences"]) - first, room)
        token = int(place["first_token"]) + int(skipped.sum())
        text = self.read(files, token, int(place["first_sentence"]) + first, count)
        fitting = int(np.searchsorted(np.cumsum(text.lengths), room, "right"))
        size = int(text.lengths[:fitting].sum()) or room
        return Side(text.token_ids[:size], text.begins[:size])


_packer: _Packer


def start_packer(settings: PackSettings) -> None:
    global _packer
    _packer = _Packer(settings)


def pack_part(task: PackTask) -> PartStats:
    """Makes and sorts the rows of one part of documents, or takes what an interrupted run finished."""
    done = task.files.load()
    if done is not None:
        return done
    packer, settings = _packer, _packer.settings
    files = packer.part("documents", task.number)
    table = read_table(files, task.inherited)
    everything = packer.read(files, 0, 0, int(table["sentences"].sum()))
    rows: list[PackedRow] = []
    buckets: list[npt.NDArray[np.int64]] = []
    hashes: list[tuple[int, int, int]] = []  # rows of a document, and its hashes
    counts = {name: Counter[str]() for name in ("rows", "tokens", "sentences")}
    token = sentence = 0
    for number, (document, goes) in enumerate(zip(table, task.destination.tolist(), strict=True), task.first):
        next_token, next_sentence = token + int(document["tokens"]), sentence + int(document["sentences"])
        text = Text(
            everything.token_ids[token:next_token],
            everything.begins[token:next_token],
            everything.lengths[sentence:next_sentence],
        )
        token, sentence = next_token, next_sentence
        group = GROUPS.get(goes)
        if group is None:
            continue
        own = int(document["hash"])
        rng = packer.rng(_PACK, number)
        packed, dropped = pack_document(text, settings.packing, rng, partial(packer.lend, group, own))
        rows += packed
        buckets.append(packer.first_bucket[group] + rng.integers(settings.buckets[group], size=len(packed)))
        hashes.append((len(packed), own, int(document["hash2"])))
        counts["rows"][group] += len(packed)
        counts["tokens"]["no pair"] += dropped
        counts["sentences"]["no pair"] += dropped and text.lengths[-1] == dropped
    counts["tokens"]["borrowed"] = sum(row.borrowed for row in rows)
    total = settings.buckets["train"] + settings.buckets["val"]
    lines, row_table = _dump(rows, np.array(hashes, np.uint64).reshape(-1, 3), packer)
    contents = _sorted_by_bucket(lines, row_table, np.concatenate([np.zeros(0, np.int64), *buckets]), total)
    stats = PartStats(
        len(lines), 0, len(lines), {}, None, {name: {k: int(v) for k, v in c.items()} for name, c in counts.items()}
    )
    return task.files.save(contents, stats)


def _dump(
    rows: Sequence[PackedRow], hashes: npt.NDArray[np.uint64], packer: _Packer
) -> tuple[list[bytes], npt.NDArray[np.void]]:
    """The lines of rows, and their table."""
    settings = packer.settings
    pairs = settings.packing.pairs != "none"
    sides = [[row.first for row in rows]]
    if pairs:
        sides.append([row.second for row in rows if row.second is not None])
    max_len = settings.packing.max_len
    ids = [_joined([side.token_ids for side in each]) for each in sides]
    packed = pack_rows(ids[0], ids[1] if pairs else None, max_len, packer.cls_id, packer.sep_id)
    words = None
    if settings.words:
        flags = [_joined([_flags(side) for side in each]) for each in sides]
        begins = pack_rows(flags[0], flags[1] if pairs else None, max_len, ord("1"), ord("1"))
        text, ends = begins.token_ids.astype(np.uint8).tobytes(), np.cumsum(begins.lengths).tolist()
        words = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    labels = [-1 if row.label is None else row.label for row in rows]
    lines = dump_rows(
        packed.token_ids,
        packed.lengths,
        packed.first_lengths if pairs else None,
        labels=labels if pairs else None,
        words=words,
    )
    table = np.zeros(len(rows), ROW)
    table["size"] = np.fromiter(map(len, lines), np.int64, len(lines))
    table["length"] = table["full_length"] = packed.lengths
    table["label"] = labels
    table["label_key"] = table["label"] + 1
    table["hash"], table["hash2"] = (np.repeat(hashes[:, i], hashes[:, 0].astype(np.int64)) for i in (1, 2))
    return lines, table


def _joined(sides: Sequence[npt.NDArray[Any]]) -> TokenRows:
    lengths = np.fromiter(map(len, sides), np.int64, len(sides))
    return TokenRows(np.concatenate([np.zeros(0, np.int32), *sides]).astype(np.int32), lengths)


def _flags(side: Side) -> npt.NDArray[np.uint8]:
    flags = side.begins + np.uint8(ord("0"))
    flags[0] = ord("1")  # a word that was cut begins here
    return flags


def _sorted_by_bucket(
    lines: Sequence[bytes], rows: npt.NDArray[np.void], bucket: npt.NDArray[np.int64], num_buckets: int
) -> dict[str, bytes | bytearray]:
    """Files of a packed part; `.buckets` says how many rows and bytes lie before each bucket."""
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=num_buckets))
    before = np.zeros((num_buckets + 1, 2), "<i8")
    before[1:, 0] = ends
    sizes = np.concatenate([[0], np.cumsum(rows["size"][order], dtype=np.int64)])
    before[:, 1] = sizes[before[:, 0]]
    return {
        ".jsonl": b"".join([lines[i] for i in order]),
        ".rows": rows[order].tobytes(),
        ".buckets": before.tobytes(),
    }


# ------------------------------------------------------------------------------------------------ shuffle buckets


def shuffle_bucket(task: ShuffleTask) -> PartStats:
    """Joins the rows of one bucket of all packed parts in random order, or takes what an interrupted run finished."""
    done = task.files.load()
    if done is not None:
        return done
    bucket = _packer.first_bucket[task.group] + task.number
    data, tables = [], []
    for number in range(task.parts):
        files = _packer.part("packed", number)
        (row, byte), (row_end, byte_end) = np.fromfile(files.path(".buckets"), "<i8", 4, offset=16 * bucket).reshape(
            2, 2
        )
        if row_end > row:
            tables.append(np.fromfile(files.path(".rows"), ROW, row_end - row, offset=ROW.itemsize * row))
            data.append(np.fromfile(files.path(".jsonl"), np.uint8, byte_end - byte, offset=byte).tobytes())
    table = np.concatenate(tables) if tables else np.zeros(0, ROW)
    joined = b"".join(data)
    ends = np.cumsum(table["size"], dtype=np.int64)
    order = _packer.rng(_SHUFFLE, bucket).permutation(len(table))
    starts, stops = (ends - table["size"])[order].tolist(), ends[order].tolist()
    lines = [joined[a:b] for a, b in zip(starts, stops, strict=True)]
    rows = b"".join(lines) if _packer.schema is None else dump_table(_as_table(lines, _packer.schema))
    contents: dict[str, bytes | bytearray] = {SUFFIXES[_packer.settings.store]: rows, ".rows": table[order].tobytes()}
    return task.files.save(contents, PartStats(len(table), 0, len(table), {}, None))


def _as_table(lines: Sequence[bytes], schema: Any) -> Any:
    rows = parse_columns(lines)
    if rows is None:
        raise ValueError("Lines of our own are read. Received: others.")
    lengths, segments = rows.token_ids.lengths, rows.segment_ids
    first_lengths = None
    if segments is not None:
        seconds = np.bincount(segments.row_numbers(), segments.flat(), len(lines)).astype(np.int64)
        first_lengths = lengths - seconds
    words = np.zeros(0, np.uint8) if rows.words is None else rows.words.flat()  # no words: no rows, or no such column
    return make_table(schema, rows.token_ids.flat(), lengths, first_lengths, labels=list(rows.labels), words=words)
