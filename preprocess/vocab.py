"""Raw text to a WordPiece vocabulary that fits our tokenizer exactly.

    inputs --(chunks)--> workers: words of `WordPieceTokenizer.words`, counted --> characters + pieces --> vocab.txt

The words are counted before anything is learned, so memory depends on the number of different words (bounded: the
rarest are dropped) and not on the number of rows. Pieces come from the trainer of the `tokenizers` package. It gives
numbers to characters in the order of a hash map and breaks ties by these numbers; here it is told every character in
a fixed order beforehand, which makes the vocabulary the same on every run.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from preprocess.pool import WorkerPool, check_workers
from tfbert.cli import option
from tfbert.data.columns import split_names
from tfbert.data.output import check_output
from tfbert.data.source import Chunk, RowError, Source, chunks, open_source, read_rows, total_bytes
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger
from tfbert.text.clean import Cleaner, parse_rules
from tfbert.text.wordpiece import MAX_CHARS_PER_WORD, SPECIAL_TOKENS, Vocabulary, WordPieceTokenizer

GOOGLE_LAYOUT = ("[PAD]", *(f"[unused{i}]" for i in range(1, 100)), *SPECIAL_TOKENS[1:])
LEAST_GOOGLE_SIZE = 1000  # smaller vocabularies begin with the five special tokens alone
MAX_WORDS = 2_000_000  # different words in memory, about 300 MB; above it the rarest are dropped
MAX_TRAINED = 50_000_000  # words handed to the trainer; above it all counts are divided
_WORDS_A_LINE = 1000


@dataclass(frozen=True)
class VocabConfig:
    """Make a WordPiece vocabulary (vocab.txt) from raw text files."""

    inputs: tuple[str, ...] = option(positional=True)
    """Input files: text, tsv, csv or jsonl, also .gz and .zst."""
    out: str = option()
    """The vocabulary file to write."""
    size: int = 21128
    """Most tokens in the vocabulary, special ones included."""
    text: str | None = None
    """Column of the text: a name, or a 0-based number, negative from the end; several are joined by commas. Default:
    the whole line of a text file."""
    format: str = "auto"
    """auto (by the file's name), tsv, csv, jsonl or text."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    cased: bool = False
    """Keep case and accents."""
    clean: str = "none"
    """Cleaning rules joined by commas, `standard`, or `none`: the same as for `encode`."""
    min_frequency: int = 2
    """Least number of occurrences of a character or piece."""
    max_bad_rows: float = 0.01
    """Largest share of unusable rows; above it nothing is written."""
    replace_bad_bytes: bool = False
    """Decode bytes that are not UTF-8 as U+FFFD instead of leaving the row out."""
    workers: int | None = None
    """Worker processes. Default: one a core. The output does not depend on it."""
    chunk_bytes: int = 1 << 20
    """Bytes of input a task."""

    def __post_init__(self) -> None:
        if self.size <= len(SPECIAL_TOKENS):
            raise ConfigError(f"--size must be at least {len(SPECIAL_TOKENS) + 1}. Received: {self.size}.")
        if self.min_frequency < 1:
            raise ConfigError(f"--min_frequency must be at least 1. Received: {self.min_frequency}.")
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"--max_bad_rows is a share from 0 to 1. Received: {self.max_bad_rows}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"--chunk_bytes must be at least 1. Received: {self.chunk_bytes}.")
        if self.text is not None and not split_names(self.text):
            raise ConfigError(f"--text names a column. Received: {self.text!r}.")
        parse_rules(self.clean)

    def sources(self) -> list[Source]:
        return [self._source(path) for path in self.inputs]

    def _source(self, path: str) -> Source:
        source = open_source(
            path,
            split_names(self.text) or ("0",),
            format=self.format,
            columns=split_names(self.columns) or None,
            header=self.header,
            replace_bad_bytes=self.replace_bad_bytes,
        )
        if self.text is not None or source.format == "text":
            return source
        raise ConfigError(
            f"{path}: a {source.format} file needs --text, the column of the text. Received: no --text. Give it, or "
            "--format text to take whole lines."
        )


@dataclass
class WordCounts:
    """What was counted of some rows.

    Attributes:
        words: occurrences of every word.
        rows: rows used.
        unusable: rows left out, by reason.
        dropped: occurrences of words that were dropped to bound memory.
        characters: occurrences of every character, and of `##` and a character inside words, of all words but those
            too long for the tokenizer.
    """

    words: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    characters: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.words.total() + self.dropped

    def add(self, other: "WordCounts") -> None:
        for mine, others in (
            (self.words, other.words),
            (self.unusable, other.unusable),
            (self.characters, other.characters),
        ):
            mine.update(others)
        self.rows += other.rows
        least = 1
        target = MAX_WORDS // 2 if len(self.words) > MAX_WORDS else MAX_WORDS
        while len(self.words) > target:
            kept = Counter({word: count for word, count in self.words.items() if count > least})
            self.dropped += self.words.total() - kept.total()
            self.words = kept
            least *= 2


# ------------------------------------------------------------------------------------------------ in the workers


_words: WordPieceTokenizer
_clean: Cleaner


def _start_worker(cased: bool, rules: tuple[str, ...]) -> None:
    global _words, _clean
    _words = WordPieceTokenizer(Vocabulary(SPECIAL_TOKENS), cased)
    _clean = Cleaner(rules)


def count_words(chunk: Chunk) -> WordCounts:
    """Counts the words and characters of the usable rows of a chunk."""
    counts = WordCounts()
    for _, _, fields in read_rows(chunk):
        if isinstance(fields, RowError):
            counts.unusable[fields.reason] += 1
            continue
        counts.rows += 1
        for text in fields:
            counts.words.update(_words.words(_clean(text)))
    for word, count in counts.words.items():
        if len(word) <= MAX_CHARS_PER_WORD:
            for i, char in enumerate(word):
                counts.characters[char] += count
                if i:
                    counts.characters["##" + char] += count
    return counts


# ------------------------------------------------------------------------------------------------- in the parent


def vocab(config: VocabConfig) -> None:
    """Counts, learns, and writes the vocabulary."""
    if find_spec("tokenizers") is None:
        raise ConfigError(
            "Making a vocabulary needs the package tokenizers. Received: it is not installed. "
            "Run `pip install tokenizers`."
        )
    workers = check_workers(config.workers)
    rules = parse_rules(config.clean)
    Cleaner(rules)  # refuses a rule whose package is missing before any worker starts
    out = Path(config.out)
    sources = config.sources()
    check_output(out, config.inputs)
    counts = WordCounts()
    with (
        WorkerPool(workers, _start_worker, (config.cased, rules)) as pool,
        Progress(total_bytes(sources), "B", "words") as progress,
    ):
        tasks = (chunk for source in sources for chunk in chunks(source, config.chunk_bytes))
        for chunk, part in pool.map(count_words, tasks, Chunk.place):
            counts.add(part)
            progress.update(chunk.end - chunk.start, f"{counts.rows:,} rows")
    _check_counts(counts, config)
    special = list(GOOGLE_LAYOUT if config.size >= LEAST_GOOGLE_SIZE else SPECIAL_TOKENS)
    characters, met = choose_characters(counts.characters, config.size - len(special), config.min_frequency)
    logger.info("learning pieces from %s different words", f"{len(counts.words):,}")
    learned = train_pieces(counts.words, characters, config.size - len(special), config.min_frequency)
    tokens = [*special, *learned]
    with atomic_file(out) as file:
        file.write("".join(f"{token}\n" for token in tokens).encode("utf-8"))
    _write_summary(out, config, counts, special, characters, met, tokens)


def _check_counts(counts: WordCounts, config: VocabConfig) -> None:
    bad = Counter({reason: n for reason, n in counts.unusable.items() if reason != "blank"})
    read = counts.rows + counts.unusable.total()
    if bad.total() > config.max_bad_rows * read:
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in bad.most_common())
        raise DataError(
            f"At most {config.max_bad_rows:.2%} of the rows may be unusable (--max_bad_rows). Received: "
            f"{bad.total():,} of {read:,} ({reasons}). Nothing was written."
        )
    if not counts.words:
        raise DataError(f"{config.inputs[0]}: a vocabulary needs text. Received: {read:,} rows without a word.")


def choose_characters(characters: Mapping[str, int], room: int, min_frequency: int) -> tuple[list[str], int]:
    """The single-character tokens, in the order of the vocabulary, and how many occur often enough.

    Every character met `min_frequency` times is a token, and with `##` if it is met so often inside words. Where there
    is no room for all, the most frequent stay; `x` is as frequent as `##x` or more, so it stays where `##x` does.
    """
    often = [token for token, count in characters.items() if count >= min_frequency]
    often.sort(key=lambda token: (-characters[token], len(token), token))
    return sorted(often[:room], key=lambda token: (len(token), token)), len(often)


def train_pieces(words: Mapping[str, int], characters: Sequence[str], room: int, min_frequency: int) -> list[str]:
    """`characters` followed by pieces of several characters, most useful first; at most `room` tokens in all.

    Only words that the characters can spell take part: the tokenizer takes any other word for [UNK] as a whole.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alphabet = set(characters)
    spelled = {
        word: count
        for word, count in words.items()
        if 1 < len(word) <= MAX_CHARS_PER_WORD and word[0] in alphabet and all("##" + c in alphabet for c in word[1:])
    }
    divisor = -(-sum(spelled.values()) // MAX_TRAINED) or 1
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        min_frequency=max(1, min_frequency // divisor),
        special_tokens=list(characters),  # in this order, before the trainer numbers characters by chance
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(spelled, divisor), trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)[:room]


def _lines(words: Mapping[str, int], divisor: int) -> Iterator[str]:
    """Every word as often as it was counted, a thousand to a line: the trainer takes text, not counts."""
    line: list[str] = []
    for word, count in words.items():
        left = (count + divisor // 2) // divisor
        while left > 0:
            here = min(left, _WORDS_A_LINE - len(line))
            line += [word] * here
            left -= here
            if len(line) == _WORDS_A_LINE:
                yield " ".join(line)
                line = []
    yield " ".join(line)


def _write_summary(
    out: Path,
    config: VocabConfig,
    counts: WordCounts,
    special: Sequence[str],
    characters: Sequence[str],
    met: int,
    tokens: Sequence[str],
) -> None:
    pieces = len(tokens) - len(special) - len(characters)
    unusable = counts.unusable.total()
    lines = [
        f"vocabulary {out}: {len(tokens):,} tokens = {len(special):,} special + {len(characters):,} characters + "
        f"{pieces:,} pieces",
        f"  input: {counts.rows + unusable:,} rows read = {counts.rows:,} used + {unusable:,} unusable",
        *(f"    unusable, {reason}: {n:,}" for reason, n in sorted(counts.unusable.items())),
        f"  words: {counts.total:,}, {len(counts.words):,} different; [UNK] with this vocabulary: "
        f"{unknown_share(counts.words, tokens, config.cased):.2%}",
        f"  characters met less than {config.min_frequency} times, left out: {len(counts.characters) - met:,}",
    ]
    if len(tokens) < config.size:
        lines.append(f"  nothing else occurs {config.min_frequency} times, so it has less than {config.size:,} tokens")
    if counts.dropped:
        lines.append(f"  rare words dropped to bound memory: {counts.dropped:,} occurrences")
    if met > len(characters):
        lines.append(f"  characters without room, left out: {met - len(characters):,}; a larger --size takes them")
    sys.stdout.write("\n".join(lines) + "\n")


def unknown_share(words: Mapping[str, int], tokens: Sequence[str], cased: bool) -> float:
    """Share of the word occurrences that the tokenizer would take for [UNK]."""
    vocabulary = Vocabulary(tokens)
    tokenizer = WordPieceTokenizer(vocabulary, cased)
    unknown = sum(count for word, count in words.items() if vocabulary.unk_id in tokenizer.encode(word))
    return unknown / sum(words.values())
