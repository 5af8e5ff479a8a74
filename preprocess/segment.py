"""Word segmentation of one column: words joined by blanks, one output row for every input row, in order.

    input --(chunks of whole rows)--> workers: cut each text on its own, put it back in its place --> output

Texts are never joined for cutting, so a line end inside a text cannot shift rows. Each worker is a process of its own
that loads the dictionaries before its first text; jieba's own parallel mode is not used.
"""

import csv
import gzip
import importlib
import io
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import orjson

from preprocess.pool import WorkerPool, check_workers
from tfbert.cli import option
from tfbert.data.columns import split_names
from tfbert.data.output import atomic_file, check_output
from tfbert.data.source import Chunk, RowError, Source, chunks, open_source, read_rows, total_bytes
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger

SEGMENTERS = ("jieba", "rjieba")
SUFFIXES = {"tsv": (".tsv",), "csv": (".csv",), "jsonl": (".jsonl", ".json", ".ndjson"), "text": ()}
Cut = Callable[[str], Iterable[str]]


@dataclass(frozen=True)
class SegmentConfig:
    """Cut one column of a file into words joined by blanks."""

    input: str = option(positional=True)
    """Input file: tsv, csv, jsonl or text, also .gz and .zst."""
    out: str = option()
    """The file to write, in the format of the input; compressed if its name ends with .gz."""
    text: str = option()
    """Column of the text: a name, or a 0-based number, negative from the end; `text` or 0 for a plain text file."""
    segmenter: str = "jieba"
    """jieba, or rjieba: in Rust, without user dictionary; its words can differ."""
    user_dict: str | None = None
    """jieba user dictionary: `word`, `word frequency` or `word frequency tag` a line, UTF-8."""
    hmm: bool = True
    """Find words that are not in the dictionary with the hidden Markov model."""
    format: str = "auto"
    """auto (by the file's name), tsv, csv, jsonl or text."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    workers: int | None = None
    """Worker processes. Default: one a core. The output does not depend on it."""
    chunk_bytes: int = 1 << 18
    """Bytes of input a task."""

    def __post_init__(self) -> None:
        if self.segmenter not in SEGMENTERS:
            raise ConfigError(f"--segmenter is one of {', '.join(SEGMENTERS)}. Received: {self.segmenter!r}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"--chunk_bytes must be at least 1. Received: {self.chunk_bytes}.")
        if self.segmenter == "rjieba" and self.user_dict is not None:
            raise ConfigError("rjieba takes no user dictionary. Received: --user_dict. Use --segmenter jieba.")

    def source(self) -> Source:
        columns = split_names(self.columns) or None
        return open_source(self.input, [self.text], format=self.format, columns=columns, header=self.header)


# ------------------------------------------------------------------------------------------------ in the workers


def make_cut(segmenter: str, user_dict: str | None, hmm: bool) -> Cut:
    """The function from a text to its words, with its dictionaries loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the packaging of jieba, for its authors
        module = importlib.import_module(segmenter)
    if segmenter == "rjieba":
        return lambda text: module.cut(text, hmm)  # type: ignore[no-any-return]
    module.setLogLevel(logging.CRITICAL)  # it would tell every worker's start, and a cache that it cannot write
    tokenizer = module.Tokenizer()
    tokenizer.initialize()
    if user_dict is not None:
        tokenizer.load_userdict(user_dict)
    return lambda text: tokenizer.cut(text, HMM=hmm)  # type: ignore[no-any-return]


@dataclass
class Segmented:
    """The rows of a chunk as they go to the output, and counts: rows cut, rows passed through by reason."""

    data: bytes
    rows: int = 0
    words: int = 0
    unchanged: Counter[str] = field(default_factory=Counter)


_cut: Cut


def _start_worker(segmenter: str, user_dict: str | None, hmm: bool) -> None:
    global _cut
    _cut = make_cut(segmenter, user_dict, hmm)


def segment_chunk(chunk: Chunk) -> Segmented:
    """Cuts every usable row of a chunk; the others keep their bytes."""
    lines = io.BytesIO(chunk.read()).readlines()  # of bytes: LF alone ends a line
    rows = list(read_rows(chunk))
    starts = [number - 1 for number, _, _ in rows]
    result = Segmented(b"")
    records = []
    for (_, _, fields), start, end in zip(rows, starts, [*starts[1:], len(lines)], strict=True):
        record = b"".join(lines[start:end])
        try:
            if isinstance(fields, RowError):
                raise fields
            record, words = _REPLACE[chunk.source.format](record, chunk.source.wanted[0], _cut)
        except RowError as error:
            result.unchanged[error.reason] += 1
        else:
            result.rows += 1
            result.words += words
        records.append(record)
    result.data = b"".join(records)
    return result


def _joined(text: str, cut: Cut) -> tuple[str, int]:
    words = list(cut(text))
    return " ".join(words), len(words)


def _split_end(record: bytes) -> tuple[bytes, bytes]:
    """A line without its end, and the end: LF, CRLF, or what the last line has."""
    body = record.removesuffix(b"\n").removesuffix(b"\r")
    return body, record[len(body) :]


def _replace_text(record: bytes, column: int | str, cut: Cut) -> tuple[bytes, int]:
    body, end = _split_end(record)
    text, words = _joined(body.decode("utf-8"), cut)
    return text.encode("utf-8") + end, words


def _replace_tsv(record: bytes, column: int | str, cut: Cut) -> tuple[bytes, int]:
    body, end = _split_end(record)
    fields = body.split(b"\t")
    text, words = _joined(fields[int(column)].decode("utf-8"), cut)
    fields[int(column)] = text.encode("utf-8")
    return b"\t".join(fields) + end, words


def _replace_csv(record: bytes, column: int | str, cut: Cut) -> tuple[bytes, int]:
    """CR inside quotes is a character like others; Python's reader takes it for a line end, so it goes in disguise."""
    body, end = _split_end(record)
    text = body.decode("utf-8")
    disguise = next(c for c in map(chr, range(0xE000, 0x110000)) if c not in text)
    lines = [line + "\n" for line in text.replace("\r", disguise).split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    fields = [field.replace(disguise, "\r") for field in next(csv.reader(lines))]
    fields[int(column)], words = _joined(fields[int(column)], cut)
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(fields)  # with this line end it quotes both CR and LF
    return out.getvalue().removesuffix("\r\n").encode("utf-8") + end, words


_JSON = json.JSONDecoder()


def _replace_jsonl(record: bytes, column: int | str, cut: Cut) -> tuple[bytes, int]:
    """Puts the words in the place of the value; every other byte of the line stays."""
    line = record.decode("utf-8")
    try:
        start, end = _value_place(line, str(column))
    except RecursionError:
        raise RowError("json", "nested too deeply") from None
    text = _JSON.raw_decode(line, start)[0]
    if line[start] != '"':
        raise RowError("not a text", line[start:end][:40])
    joined, words = _joined(text, cut)
    return line[:start].encode("utf-8") + orjson.dumps(joined) + line[end:].encode("utf-8"), words


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


_REPLACE: dict[str, Callable[[bytes, int | str, Cut], tuple[bytes, int]]] = {
    "text": _replace_text, "tsv": _replace_tsv, "csv": _replace_csv, "jsonl": _replace_jsonl,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- in the parent


def segment(config: SegmentConfig) -> None:
    """Cuts the column and publishes the file."""
    workers = check_workers(config.workers)
    check_segmenter(config.segmenter, config.user_dict)
    source = config.source()
    out = Path(config.out)
    check_output(out, [config.input], plain=False)
    _check_suffix(out, source)
    total = Segmented(b"")
    with (
        _output(out) as file,
        WorkerPool(workers, _start_worker, (config.segmenter, config.user_dict, config.hmm)) as pool,
        Progress(total_bytes([source]), "B", "segment") as progress,
    ):
        file.write(source.read_head())
        for chunk, part in pool.map(segment_chunk, chunks(source, config.chunk_bytes), Chunk.place):
            file.write(part.data)
            total.rows += part.rows
            total.words += part.words
            total.unchanged.update(part.unchanged)
            progress.update(chunk.end - chunk.start, f"{total.rows:,} rows")
        _check_rows(total, config)
    _write_summary(config, total)


def check_segmenter(segmenter: str, user_dict: str | None) -> None:
    """Refuses a segmenter that is not installed, and a user dictionary that cannot be read."""
    if find_spec(segmenter) is None:
        raise ConfigError(
            f"Cutting into words needs the package {segmenter}. Received: it is not installed. "
            f"Run `pip install {segmenter}`."
        )
    if user_dict is not None:
        try:
            Path(user_dict).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{user_dict}: a user dictionary is a UTF-8 file. Received: {error}.") from error


def _check_suffix(out: Path, source: Source) -> None:
    """A name that promises another format would be misread by whoever reads it next."""
    if out.suffix.lower() == ".zst":
        raise ConfigError(f"The output is plain or .gz. Received: --out {out}.")
    suffix = Path(out.stem if out.suffix.lower() == ".gz" else out.name).suffix.lower()
    for format, suffixes in SUFFIXES.items():
        if suffix in suffixes and format != source.format:
            raise ConfigError(f"The output has the format of the input, {source.format}. Received: --out {out}.")


@contextmanager
def _output(out: Path) -> Iterator[BinaryIO]:
    with atomic_file(out) as file:
        if out.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:  # same input, same bytes
            yield compressed  # type: ignore[misc]


def _check_rows(total: Segmented, config: SegmentConfig) -> None:
    bad = Counter({reason: n for reason, n in total.unchanged.items() if reason != "blank"})
    if bad and not total.rows:
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in bad.most_common())
        raise DataError(
            f"{config.input}: no row has a text in column {config.text!r}. Received: {bad.total():,} rows ({reasons}). "
            "Nothing was written."
        )
    if not total.rows:
        logger.warning("%s has no text to cut", config.input)


def _write_summary(config: SegmentConfig, total: Segmented) -> None:
    unchanged = total.unchanged.total()
    lines = [
        f"segmented {config.input} -> {config.out}",
        f"  {total.rows + unchanged:,} rows = {total.rows:,} cut into {total.words:,} words + "
        f"{unchanged:,} passed through unchanged",
        *(f"    unchanged, {reason}: {n:,}" for reason, n in sorted(total.unchanged.items())),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
