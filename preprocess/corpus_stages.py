"""What workers do to make a corpus data set: read documents, pack rows, shuffle buckets.

    chunk --read--> documents-N: tokens of the sentences of whole documents
          --pack--> packed-N: the rows of these documents, sorted by the bucket that each is thrown into at random
          --shuffle--> train-K, val-K: the rows of bucket K of all packed parts, in random order

Joined, the buckets are a uniformly random permutation of all rows, though only one bucket at a time is in memory. Every
stage leaves whole parts (`PartFiles`), so an interrupted run goes on from those.
"""

import hashlib
from array import array
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
from preprocess.parts import ROW, PartFiles, PartStats, pack_row
from preprocess.segment import make_cut
from preprocess.split import TRAIN, VAL
from tfbert.data.record import Record, dump
from tfbert.data.source import Chunk
from tfbert.text.clean import Cleaner
from tfbert.text.pair import pack
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


class _PartBuilder:
    """The documents of a part as they are collected."""

    def __init__(self, reader: _Reader):
        self._reader, self._settings = reader, reader.settings
        self._tokens, self._begins, self._texts = bytearray(), bytearray(), bytearray()
        self._lengths = array("i")
        self._table: list[tuple[Any, ...]] = []
        self._rejects: list[dict[str, Any]] = []
        self._documents: Counter[str] = Counter()
        self._counts = {"sentences": Counter[str](), "tokens": Counter[str]()}
        self._last_hash = 0

    def _reject(self, line: int, raw: str, what: str, reason: str, detail: str) -> None:
        entry = {"line": line, "reason": reason, "detail": detail, "text": raw[:CUT], "what": what}
        self._rejects.append(entry)

    def add(self, document: Document, by_row: bool) -> None:
        goes_on = document.goes_on
        self._documents["read"] += not goes_on
        sentences, tokens = self._counts["sentences"], self._counts["tokens"]
        if by_row and document.bad:
            self._drop(document, document.bad[0][2].reason, document.bad[0][2].detail, document.bad[0][1])
            return
        for number, raw, error in document.bad:
            sentences["read"] += 1
            sentences[error.reason] += 1
            self._reject(number, raw, "line", error.reason, error.detail)
        text_hash, text_hash2 = _text_hash(document, self._settings.hash_key)
        if not goes_on:
            self._last_hash = text_hash
        found = []
        for number, line in document.lines:
            for sentence in self._reader.sentences(line):
                token_ids, begins = self._reader.encode(sentence)
                sentences["read"] += 1
                if len(token_ids):
                    found.append((token_ids, begins))
                else:
                    sentences["empty"] += 1
                    self._reject(number, sentence, "sentence", "empty", "no token")
        total = sum(len(token_ids) for token_ids, _ in found)
        tokens["read"] += total
        if total < self._settings.least_tokens and not goes_on:
            reason, detail = ("short", f"{total} tokens") if total else ("empty", "no token")
            sentences[reason] += len(found)
            tokens[reason] += total
            self._drop(document, reason, detail, document.lines[0][1] if document.lines else "")
            return
        for token_ids, begins in found:
            self._tokens += token_ids.astype(self._reader.dtype).tobytes()
            self._begins += begins.tobytes()
            self._lengths.append(len(token_ids))
        self._table.append((total, len(found), document.line, -1, 0, text_hash, text_hash2, goes_on))
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
            ".lengths": self._lengths.tobytes(),
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
            counts={name: dict(counts) for name, counts in self._counts.items()} | {"last": {"hash": self._last_hash}},
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
    """

    folder: str
    vocab: str
    packing: Packing
    seed: int
    words: bool
    buckets: dict[str, int]
    places: str | None
    lenders: dict[str, str]


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
    lines: list[bytes] = []
    rows, buckets = bytearray(), array("i")
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
        own, own2 = int(document["hash"]), int(document["hash2"])
        rng = packer.rng(_PACK, number)
        packed, dropped = pack_document(text, settings.packing, rng, partial(packer.lend, group, own))
        counts["tokens"]["no pair"] += dropped
        counts["sentences"]["no pair"] += dropped and text.lengths[-1] == dropped
        first_bucket, num_buckets = packer.first_bucket[group], settings.buckets[group]
        for row in packed:
            record = _record(row, packer)
            line = dump(record)
            label = -1 if row.label is None else row.label
            length = len(record.token_ids)
            lines.append(line)
            rows += pack_row(len(line), length, length, label, label + 1, 0, own, own2)
            buckets.append(first_bucket + int(rng.integers(num_buckets)))
            counts["tokens"]["borrowed"] += row.borrowed
        counts["rows"][group] += len(packed)
    total = settings.buckets["train"] + settings.buckets["val"]
    contents = _sorted_by_bucket(lines, np.frombuffer(rows, ROW), np.frombuffer(buckets, np.int32), total)
    stats = PartStats(len(lines), 0, len(lines), {}, None, {name: dict(c) for name, c in counts.items()})
    return task.files.save(contents, stats)


def _record(row: PackedRow, packer: _Packer) -> Record:
    first, second = row.first, row.second
    token_ids, segment_ids = pack(
        first.token_ids.tolist(),
        None if second is None else second.token_ids.tolist(),
        packer.settings.packing.max_len,
        packer.cls_id,
        packer.sep_id,
    )
    words = None
    if packer.settings.words:
        words = "".join(f"1{_flags(side)}" for side in (first, second) if side is not None) + "1"
    return Record(token_ids, segment_ids, row.label, words=words)


def _flags(side: Side) -> str:
    flags = (side.begins + np.uint8(ord("0"))).tobytes().decode("ascii")
    return "1" + flags[1:]  # a word that was cut begins here


def _sorted_by_bucket(
    lines: Sequence[bytes], rows: npt.NDArray[np.void], bucket: npt.NDArray[np.int32], num_buckets: int
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
    contents: dict[str, bytes | bytearray] = {
        ".jsonl": b"".join([joined[a:b] for a, b in zip(starts, stops, strict=True)]),
        ".rows": table[order].tobytes(),
    }
    return task.files.save(contents, PartStats(len(table), 0, len(table), {}, None))
