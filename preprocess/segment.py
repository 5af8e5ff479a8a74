"""Word segmentation of one column: words joined by blanks, one output row for every input row, in order.

    input --(chunks of whole rows)--> workers: cut each text on its own, put it back in its place --> output

Texts are never joined for cutting, so a line end inside a text cannot shift rows. Each worker is a process of its own
that loads the dictionaries before its first text; jieba's own parallel mode is not used.
"""

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from preprocess.pool import WorkerPool, check_workers
from preprocess.rewrite import check_suffix, open_output, records, take_apart
from tfbert.cli import option
from tfbert.data.columns import split_names
from tfbert.data.output import check_output
from tfbert.data.source import Chunk, RowError, Source, chunks, open_source, total_bytes
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger

SEGMENTERS = ("jieba", "rjieba")
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


def load_jieba(user_dict: str | None = None) -> Any:
    """A `jieba.Tokenizer` with its dictionaries loaded."""
    with _quiet_import():
        import jieba
    jieba.setLogLevel(logging.CRITICAL)  # it would tell every worker's start, and a cache that it cannot write
    tokenizer = jieba.Tokenizer()
    tokenizer.initialize()
    if user_dict is not None:
        tokenizer.load_userdict(user_dict)
    return tokenizer


def make_cut(segmenter: str, user_dict: str | None, hmm: bool) -> Cut:
    """The function from a text to its words, with its dictionaries loaded."""
    if segmenter == "rjieba":
        with _quiet_import():
            import rjieba
        return lambda text: rjieba.cut(text, hmm)  # type: ignore[no-any-return]
    tokenizer = load_jieba(user_dict)
    return lambda text: tokenizer.cut(text, HMM=hmm)  # type: ignore[no-any-return]


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Without warnings about the packaging of jieba, which are for its authors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
    result = Segmented(b"")
    pieces = []
    for (_, _, fields), record in records(chunk):
        try:
            if isinstance(fields, RowError):
                raise fields
            apart = take_apart(chunk.source, record)
        except RowError as error:
            result.unchanged[error.reason] += 1
            pieces.append(record)
            continue
        words = list(_cut(apart.texts[0]))
        result.rows += 1
        result.words += len(words)
        pieces.append(apart.fill([" ".join(words)]))
    result.data = b"".join(pieces)
    return result


# ------------------------------------------------------------------------------------------------- in the parent


def segment(config: SegmentConfig) -> None:
    """Cuts the column and publishes the file."""
    workers = check_workers(config.workers)
    check_segmenter(config.segmenter, config.user_dict)
    source = config.source()
    out = Path(config.out)
    check_output(out, [config.input], plain=False)
    check_suffix(out, source)
    total = Segmented(b"")
    with (
        open_output(out) as file,
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
