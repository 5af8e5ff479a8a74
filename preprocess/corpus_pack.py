"""Second and third stage of a corpus, in the workers: rows from the tokens of sentences, in random order.

    documents-N --pack--> packed-N: the rows of these documents, sorted by the bucket that each is thrown into at random
                --shuffle--> train-K, val-K: the rows of bucket K of all packed parts, in random order

Joined, the buckets are a uniformly random permutation of all rows, though only one bucket at a time is in memory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.corpus_read import read_table, token_dtype
from preprocess.packing import PackedRow, Packing, Side, Text, pack_document
from preprocess.parts import ROW, PartFiles, PartStats
from preprocess.split import TRAIN, VAL
from tfbert.data.arrow_writer import dump_table, make_table, row_schema
from tfbert.data.record import dump_rows, parse_columns
from tfbert.data.store import SUFFIXES
from tfbert.text.batch import TokenRows
from tfbert.text.pair import pack_rows
from tfbert.text.wordpiece import Vocabulary

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
    places, tables = [], [np.zeros(0, ROW)]
    for number in range(task.parts):
        files = _packer.part("packed", number)
        (row, byte), (row_end, byte_end) = np.fromfile(files.path(".buckets"), "<i8", 4, offset=16 * bucket).reshape(
            2, 2
        )
        if row_end > row:
            tables.append(np.fromfile(files.path(".rows"), ROW, row_end - row, offset=ROW.itemsize * row))
            places.append((files.path(".jsonl"), int(byte), int(byte_end - byte)))
    table = np.concatenate(tables)
    joined = _read_all(places)
    ends = np.cumsum(table["size"], dtype=np.int64)
    order = _packer.rng(_SHUFFLE, bucket).permutation(len(table))
    starts, stops = (ends - table["size"])[order].tolist(), ends[order].tolist()
    lines = [joined[a:b] for a, b in zip(starts, stops, strict=True)]  # no copies: the bucket is large
    rows = b"".join(lines) if _packer.schema is None else dump_table(_as_table(list(map(bytes, lines)), _packer.schema))
    contents: dict[str, bytes | bytearray] = {SUFFIXES[_packer.settings.store]: rows, ".rows": table[order].tobytes()}
    return task.files.save(contents, PartStats(len(table), 0, len(table), {}, None))


def _read_all(places: Sequence[tuple[Path, int, int]]) -> memoryview:
    """Pieces of files, (file, first byte, bytes), behind each other."""
    joined = memoryview(bytearray(sum(count for *_, count in places)))
    at = 0
    for path, first, count in places:
        with path.open("rb", buffering=0) as file:
            file.seek(first)
            if file.readinto(joined[at : at + count]) != count:
                raise OSError(f"{path} was cut while it was read")
        at += count
    return joined


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
