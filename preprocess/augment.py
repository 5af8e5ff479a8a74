"""More training rows: variants of each row with some of its words replaced, deleted or exchanged.

    inputs --(chunks)--> workers: words, passes for the model --> one process with the model: best tokens, neighbours
           --> workers: candidates, variants, part files --> repeated variants out --> merge in order --> output

The model sees the words of many rows in one call. All that is drawn for a row comes from the seed and its texts, and
the model's calls have fixed shapes, so the output does not depend on the number of workers or on what was computed
together. Parts live in a work folder until the output is whole; `--resume` goes on from them.
"""

import csv
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from preprocess.outputs import chosen_lines
from preprocess.parts import ROW, PartFiles, PartStats
from preprocess.pool import WorkerPool, check_workers
from preprocess.replacement import PassBuilder, PassSettings, masked_candidates, tokenize
from preprocess.rewrite import Record, append_field, check_suffix, open_output, records, split_end, take_apart
from preprocess.segment import check_segmenter, load_jieba
from preprocess.split import TRAIN, TextGroups, bucket_bits
from preprocess.variants import OPERATIONS, Column, Texts, distinct, operations, replacements
from preprocess.vectors import Neighbours, load_vectors
from preprocess.words import Word, candidate_tokens, find_words, is_replaceable, like
from preprocess.work_folder import WorkFolder
from tfbert import __version__
from tfbert.cli import import_tensorflow, option
from tfbert.data.columns import split_names
from tfbert.data.manifest import Input, file_checksum
from tfbert.data.masked_rows import MaskedRows, TopTokens
from tfbert.data.output import check_output
from tfbert.data.source import Chunk, RowError, Source, chunks, open_source, total_bytes
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

METHODS = ("replace", "eda")
TASK_VARIANTS = {
    "cola": 30, "mnli": 10, "mrpc": 30, "sst-2": 20, "sts-b": 30, "qqp": 10, "qnli": 20, "rte": 30,
}  # fmt: skip
"""N of every GLUE task, as in the code of TinyBERT."""

DEFAULT_VARIANTS = {"replace": 20, "eda": 9}
COUNTED = "augmented"  # key of the counts of a part
CHINESE_TOP = 50  # characters a position that Chinese words are made of
WINDOW_TOKENS = 1 << 19  # tokens that wait for the model together


@dataclass(frozen=True)
class AugmentConfig:
    """Write every row and variants of it, for a larger training set."""

    inputs: tuple[str, ...] = option(positional=True)
    """Input files, all of one form: tsv, csv, jsonl or text, also .gz and .zst."""
    text: str = option()
    """Column of the text: a name, or a 0-based number, negative from the end."""
    out: str | None = None
    """The file to write, in the format of the input; compressed if its name ends with .gz."""
    text_b: str | None = None
    """Column of the second text of a pair: both are varied together, each from the original row."""
    method: str = "replace"
    """replace (words by candidates, as TinyBERT) or eda (words deleted, exchanged, replaced by synonyms)."""
    model: str | None = None
    """Masked language model for words of one piece: a Google checkpoint or a Hugging Face folder with its MLM head."""
    vocab: str | None = None
    """vocab.txt of the model. Default: the one beside it."""
    cased: bool = False
    """The model is cased."""
    vectors: str | None = None
    """Word vectors, GloVe or word2vec text, for words of several pieces; without --model for all words."""
    vectors_limit: int = 100_000
    """Most vectors to take from the start of the file; 0 takes all."""
    task: str | None = None
    """GLUE task whose number of variants to take: cola, mnli, mrpc, sst-2, sts-b, qqp, qnli, rte."""
    num_variants: int | None = None
    """N: most variants a row. Default: that of --task; else 20, with --method eda 9."""
    p_t: float = 0.4
    """Probability with which a variant replaces a word that has candidates."""
    num_candidates: int = 15
    """K: candidates a word."""
    masked_share: float = 0.15
    """Largest share of a text's tokens masked together in one pass of the model; 0 masks one word a pass."""
    original: bool = True
    """Show the model the text itself behind the masked one."""
    operations: str = "delete,swap,synonym"
    """Operations of --method eda, joined by commas; variants take turns."""
    rate: float = 0.1
    """Share of the words that an operation of --method eda changes."""
    user_dict: str | None = None
    """jieba user dictionary for Chinese words."""
    id_column: str = "source_id"
    """Name of a column put behind the others, equal for a row and its variants (for `encode --group`); none: no
    column."""
    preview: int = 0
    """Print the variants of so many rows and write nothing."""
    format: str = "auto"
    """auto (by the file's name), tsv, csv, jsonl or text."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    workers: int | None = None
    """Worker processes beside the model's. Default: one a core. The output does not depend on it."""
    resume: bool = False
    """Go on from the finished parts of an interrupted run with the same inputs and settings."""
    seed: int = 0
    """Seed of everything that is drawn."""
    chunk_bytes: int = 1 << 16
    """Bytes of input a task."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.method not in METHODS:
            raise ConfigError(f"--method is one of {', '.join(METHODS)}. Received: {self.method!r}.")
        if self.task is not None and self.task.lower() not in TASK_VARIANTS:
            raise ConfigError(f"--task is one of {', '.join(TASK_VARIANTS)}. Received: {self.task!r}.")
        unknown = [name for name in self.operation_names if name not in OPERATIONS]
        if unknown or not self.operation_names:
            raise ConfigError(f"--operations are some of {', '.join(OPERATIONS)}. Received: {self.operations!r}.")
        if self.out is None and not self.preview:
            raise ConfigError("The command writes a file. Received: no --out. Give it, or --preview N to see variants.")
        if self.text_b is not None and self.text_b == self.text:
            raise ConfigError(f"--text and --text_b are two columns. Received: {self.text!r} for both.")
        if self.method == "replace" and self.model is None and self.vectors is None:
            raise ConfigError(
                "Words are replaced by what a masked language model or word vectors say. Received: neither --model nor "
                "--vectors. Give one of them or both, or --method eda --operations delete,swap, which needs none."
            )
        if self.method == "eda" and self.model is not None:
            raise ConfigError("--method eda takes no masked language model. Received: --model. Leave it out.")
        if self.method == "eda" and "synonym" in self.operation_names and self.vectors is None:
            raise ConfigError(
                "Synonyms are neighbours of word vectors. Received: no --vectors. Give them, or "
                "--operations delete,swap."
            )

    def _check_numbers(self) -> None:
        for name, least in (("num_variants", 1), ("num_candidates", 1), ("chunk_bytes", 1), ("preview", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} must be at least {least}. Received: {value}.")
        if self.vectors_limit < 0:
            raise ConfigError(f"--vectors_limit is 0 or more. Received: {self.vectors_limit}.")
        if not 0 < self.p_t <= 1:
            raise ConfigError(f"--p_t is a probability above 0. Received: {self.p_t}.")
        if not 0 <= self.masked_share < 1:
            raise ConfigError(f"--masked_share must be in [0, 1). Received: {self.masked_share}.")
        if not 0 < self.rate < 1:
            raise ConfigError(f"--rate must be between 0 and 1. Received: {self.rate}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"--seed is a whole number of 64 bits. Received: {self.seed}.")

    @property
    def operation_names(self) -> tuple[str, ...]:
        return split_names(self.operations)

    @property
    def count(self) -> int:
        """N."""
        default = TASK_VARIANTS[self.task.lower()] if self.task else DEFAULT_VARIANTS[self.method]
        return self.num_variants or default

    @property
    def id_name(self) -> str | None:
        return None if self.id_column in ("", "none") else self.id_column

    def sources(self) -> list[Source]:
        """The inputs, opened as far as their headers.

        Raises:
            DataError: they are not of one form.
        """
        wanted = [self.text] + ([self.text_b] if self.text_b is not None else [])
        columns = split_names(self.columns) or None
        sources = [
            open_source(path, wanted, format=self.format, columns=columns, header=self.header) for path in self.inputs
        ]
        first = sources[0]
        for source in sources[1:]:
            if source.format != first.format or source.read_head() != first.read_head():
                raise DataError(
                    f"{source.path}: the inputs go to one file and need one format and one header. Received: those of "
                    f"{first.path} and others."
                )
        if self.id_name is not None and first.format == "text":
            raise ConfigError(
                f"{first.path}: a plain text file has no room for the column {self.id_name!r}, which tells which rows "
                "are variants of each other. Give --id_column none, or --format tsv and a name that ends with .tsv."
            )
        return sources


# ------------------------------------------------------------------------------------------------ in the workers


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs to build its state."""

    vocab: str | None
    cased: bool
    passes: PassSettings | None
    synonyms: bool
    method: tuple[str, float, tuple[str, ...], float]
    count: int
    num_candidates: int
    user_dict: str | None
    id_name: str | None
    seed: bytes


@dataclass(frozen=True)
class AugmentTask:
    """One chunk to one part; `rows` cuts a preview short."""

    chunk: Chunk
    files: PartFiles | None
    rows: int | None = None


@dataclass
class FoundWords:
    """A text, its words, and what is asked about them: positions of a model, or neighbours."""

    text: str
    words: list[Word]
    positions: dict[Word, tuple[int, ...]]
    neighbours: list[Word]


@dataclass
class PreparedRow:
    """A record of the input; `apart` and `columns` are None where it passes through unchanged."""

    line: int
    raw: bytes
    apart: Record | None
    columns: list[FoundWords]
    reason: str | None


@dataclass
class Prepared:
    """A chunk whose words are found; or the statistics of a part that is there already."""

    done: PartStats | None
    rows: list[PreparedRow] = field(default_factory=list)
    masked: MaskedRows | None = None
    neighbours: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Answers:
    """What the model and the vectors say."""

    tokens: TopTokens | None
    neighbours: Mapping[str, Sequence[str]]


class _State:
    """Of a worker."""

    def __init__(self, settings: WorkerSettings):
        self.settings = settings
        vocabulary = Vocabulary.load(settings.vocab) if settings.vocab is not None else None
        self.tokenizer = WordPieceTokenizer(vocabulary, settings.cased) if vocabulary is not None else None
        method, p_t, names, rate = settings.method
        self.draw = replacements(p_t) if method == "replace" else operations(names, rate)

    @cached_property
    def jieba(self) -> Any:
        """Loaded at the first Chinese character."""
        check_segmenter("jieba", self.settings.user_dict)
        return load_jieba(self.settings.user_dict)

    def cut(self, text: str) -> Iterable[str]:
        return self.jieba.cut(text)  # type: ignore[no-any-return]

    def frequencies(self, word: Word) -> Mapping[str, int]:
        return self.jieba.FREQ if word.chinese else {}


_state: _State


def _start_worker(settings: WorkerSettings) -> None:
    global _state
    _state = _State(settings)


def prepare(task: AugmentTask) -> Prepared:
    """Finds the words of a chunk and what is to be asked about them."""
    done = task.files.load() if task.files is not None else None
    if done is not None:
        return Prepared(done)
    settings = _state.settings
    builder = None
    if settings.passes is not None and _state.tokenizer is not None:
        builder = PassBuilder(settings.passes, _state.tokenizer.vocabulary)
    prepared = Prepared(None)
    for (number, _, fields), raw in records(task.chunk):
        row = PreparedRow(number, raw, None, [], None)
        try:
            if isinstance(fields, RowError):
                raise fields
            row.apart = take_apart(task.chunk.source, raw)
            row.columns = [_find(text, builder) for text in row.apart.texts]
            prepared.neighbours.update(word.text for column in row.columns for word in column.neighbours)
        except RowError as error:
            row.reason = error.reason
        prepared.rows.append(row)
        if len(prepared.rows) == task.rows:
            break
    prepared.masked = builder.rows() if builder is not None else None
    return prepared


def _find(text: str, builder: PassBuilder | None) -> FoundWords:
    words = find_words(text, _state.cut)
    wanted = [word for word in words if is_replaceable(word)]
    found = FoundWords(text, words, {}, [])
    if builder is not None and _state.tokenizer is not None:
        found.positions = builder.add(*tokenize(text, words, wanted, _state.tokenizer))
    if _state.settings.synonyms:
        found.neighbours = [word for word in wanted if word not in found.positions]
    return found


def vary(row: PreparedRow, answers: Answers) -> tuple[list[Column], list[Texts]]:
    """The candidates of a row and its variants."""
    columns = [_with_candidates(found, answers) for found in row.columns]
    key = _digest([column.text for column in columns], _state.settings.seed)
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    return columns, distinct(_state.draw, rng, columns, _state.settings.count)


def _with_candidates(found: FoundWords, answers: Answers) -> Column:
    settings, tokenizer = _state.settings, _state.tokenizer
    nearest = set(found.neighbours)
    candidates: dict[Word, list[str]] = {}
    for word in found.words:  # in the order of the text
        best: Sequence[str] = ()
        if word in found.positions and answers.tokens is not None and tokenizer is not None:
            frequencies = _state.frequencies(word)
            best = masked_candidates(
                word, found.positions[word], answers.tokens, tokenizer, frequencies, settings.num_candidates
            )
        elif word in nearest:
            best = answers.neighbours[word.text]
        if best:
            candidates[word] = [like(candidate, word.text) for candidate in best]
    return Column(found.text, found.words, candidates)


def _digest(texts: Sequence[str], key: bytes = b"") -> bytes:
    content = orjson.dumps(list(texts))
    return hashlib.blake2b(content, digest_size=16, key=key).digest()


@dataclass(frozen=True)
class FinishTask:
    """A chunk with all that is known of its words."""

    task: AugmentTask
    prepared: Prepared
    answers: Answers


def finish(job: FinishTask) -> PartStats:
    """Draws the variants of a chunk and writes its part: every row, and behind it its variants."""
    if job.prepared.done is not None:
        return job.prepared.done
    part = _PartBuilder(job.task.chunk)
    for row in job.prepared.rows:
        part.add(row, job.answers)
    if job.task.files is None:
        raise ValueError("A part needs files. Received: none.")
    return job.task.files.save(part.contents(), part.stats())


class _PartBuilder:
    """Rows of a part as they are collected."""

    def __init__(self, chunk: Chunk):
        self._chunk = chunk
        self._name = _state.settings.id_name
        self._lines = bytearray()
        self._table: list[tuple[int, ...]] = []
        self._counts: Counter[str] = Counter()
        self._unchanged: Counter[str] = Counter()

    def add(self, row: PreparedRow, answers: Answers) -> None:
        self._counts["rows"] += 1
        if row.apart is None:
            self._unchanged[str(row.reason)] += 1
            self._write(row.line, _with_id(row.raw, self._chunk.source.format, self._name, ""), b"\0" * 16, False)
            return
        if self._name is not None and self._chunk.source.format == "jsonl":
            self._check_key(row, self._name)
        columns, variants = vary(row, answers)
        originals = _digest(row.apart.texts)
        more = (self._name, originals[:8].hex()) if self._name is not None else None
        self._count(row, columns, variants)
        for i, texts in enumerate([row.apart.texts, *variants]):
            self._write(row.line, row.apart.fill(texts, more), _digest(texts), i > 0)

    def _check_key(self, row: PreparedRow, name: str) -> None:
        if name.encode("utf-8") in row.raw and name in orjson.loads(row.raw):
            raise DataError(f"{self._chunk.source.path}:{self._chunk.first_line() + row.line - 1}: {_taken(name)}")

    def _write(self, line: int, record: bytes, digest: bytes, is_variant: bool) -> None:
        record = record if record.endswith(b"\n") else record + b"\n"
        hashes = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))
        self._table.append((len(record), 0, 0, int(is_variant), 0, line, *hashes))  # the fields of ROW
        self._lines += record

    def _count(self, row: PreparedRow, columns: Sequence[Column], variants: Sequence[Texts]) -> None:
        counts = self._counts
        counts["variants"] += len(variants)
        counts["without variants"] += not variants
        for found, column in zip(row.columns, columns, strict=True):
            counts["words"] += len(found.words)
            counts["asked of the model"] += len(found.positions)
            counts["looked up"] += len(found.neighbours)
            counts["with candidates"] += len(column.candidates)

    def contents(self) -> dict[str, bytes]:
        return {".jsonl": bytes(self._lines), ".rows": np.array(self._table, ROW).tobytes()}

    def stats(self) -> PartStats:
        lines = self._counts["rows"]
        counts = {COUNTED: dict(self._counts)}
        return PartStats(lines, lines, self._counts["variants"] + lines, dict(self._unchanged), None, counts=counts)


def _with_id(raw: bytes, format: str, name: str | None, value: str) -> bytes:
    """An unusable record with an empty id where it has fields, so that it is as unusable as it was."""
    body, end = split_end(raw)
    if name is None or not body or format not in ("tsv", "csv"):
        return raw
    return body + append_field(format, "", name, value).encode("utf-8") + end


# ------------------------------------------------------------------------------------- in the process with the model


class Predictor(Protocol):
    """What tells the best tokens at masked positions; see `tfbert.masked_tokens.MaskedPredictor`."""

    def __call__(self, rows: MaskedRows, progress: Callable[[int], None] = ...) -> TopTokens: ...


@dataclass
class Answerer:
    """Asks the model and the vectors about the words of several chunks together."""

    predictor: Predictor | None
    neighbours: Neighbours | None

    def answer(self, prepared: Sequence[Prepared], progress: Callable[[float], None]) -> list[Answers]:
        """The answers for each chunk; `progress` is told the share of the work done, bit by bit."""
        found: dict[str, tuple[str, ...]] = {}
        if self.neighbours is not None:
            found = self.neighbours({word for chunk in prepared for word in chunk.neighbours})
        masked = [chunk.masked for chunk in prepared if chunk.masked is not None]
        total = sum(len(rows.position_row) for rows in masked)
        top = None
        if self.predictor is not None and total:
            top = self.predictor(MaskedRows.join(masked), lambda count: progress(count / total))
        else:
            progress(1.0)
        answers = []
        at = 0
        for chunk in prepared:
            count = len(chunk.masked.position_row) if chunk.masked is not None else 0
            mine = TopTokens(top.ids[at : at + count], top.scores[at : at + count]) if top is not None else None
            answers.append(Answers(mine, {word: found[word] for word in chunk.neighbours} if found else {}))
            at += count
        return answers

    def answered(
        self, prepared: Iterator[tuple[AugmentTask, Prepared]], progress: Callable[[float], None]
    ) -> Iterator[FinishTask]:
        """Chunks in order, each with its answers; so many together as make full calls of the model."""
        waiting: list[tuple[AugmentTask, Prepared]] = []
        tokens = 0
        for task, chunk in prepared:
            waiting.append((task, chunk))
            tokens += len(chunk.masked.token_ids) if chunk.masked is not None else WINDOW_TOKENS
            if tokens >= WINDOW_TOKENS:
                yield from self._flush(waiting, progress)
                waiting, tokens = [], 0
        if waiting:
            yield from self._flush(waiting, progress)

    def _flush(
        self, waiting: Sequence[tuple[AugmentTask, Prepared]], progress: Callable[[float], None]
    ) -> Iterator[FinishTask]:
        size = sum(task.chunk.end - task.chunk.start for task, _ in waiting)
        answers = self.answer([chunk for _, chunk in waiting], lambda share: progress(share * size))
        for (task, chunk), answer in zip(waiting, answers, strict=True):
            chunk.masked = None  # the workers need it no more
            yield FinishTask(task, chunk, answer)


@dataclass(frozen=True)
class _Setup:
    """What the settings name, loaded."""

    answerer: Answerer
    worker: WorkerSettings
    files: dict[str, str]  # checksums of what decides the answers


def _set_up(config: AugmentConfig) -> _Setup:
    files: dict[str, str] = {}
    neighbours = None
    if config.vectors is not None and (config.method == "replace" or "synonym" in config.operation_names):
        vectors = load_vectors(Path(config.vectors), config.vectors_limit)
        neighbours = Neighbours(vectors, config.num_candidates)
        files["vectors"] = file_checksum(config.vectors)
    if config.user_dict is not None:
        check_segmenter("jieba", config.user_dict)
        files["user_dict"] = file_checksum(config.user_dict)
    predictor, passes, vocab = None, None, None
    if config.model is not None:
        predictor, passes, vocab = _load_model(config, config.model, files)
    worker = WorkerSettings(
        vocab=vocab,
        cased=config.cased,
        passes=passes,
        synonyms=neighbours is not None,
        method=(config.method, config.p_t, config.operation_names, config.rate),
        count=config.count,
        num_candidates=config.num_candidates,
        user_dict=config.user_dict,
        id_name=config.id_name,
        seed=config.seed.to_bytes(8, "little", signed=True),
    )
    return _Setup(Answerer(predictor, neighbours), worker, files)


def _load_model(config: AugmentConfig, model: str, files: dict[str, str]) -> tuple[Predictor, PassSettings, str]:
    import_tensorflow()
    from tfbert.masked_tokens import MaskedPredictor, find_model

    init, model_files = find_model(model)
    vocab = Path(config.vocab) if config.vocab is not None else init.vocab
    if vocab is None:
        raise ConfigError(f"{model}: a model needs its vocabulary. Received: no vocab.txt beside it, and no --vocab.")
    vocabulary = Vocabulary.load(vocab)
    if vocabulary.mask_id is None:
        raise DataError(f"{vocab}: a masked language model needs the token [MASK]. Received: a vocabulary without it.")
    passes = PassSettings(init.config.max_position_embeddings, config.masked_share, config.original)
    passes.check()
    if config.original and init.config.type_vocab_size < 2:
        raise ConfigError("--original needs a model of two segments. Received: one of one. Give --no_original.")
    files["vocab"] = file_checksum(vocab)
    for path in model_files:
        files[path.name] = file_checksum(path)
    top = max(config.num_candidates + 1, CHINESE_TOP)
    return MaskedPredictor(init, len(vocabulary), candidate_tokens(vocabulary), top), passes, str(vocab)


# ------------------------------------------------------------------------------------------------- in the parent


def augment(config: AugmentConfig) -> None:
    """Writes the rows and their variants, or prints some."""
    workers = check_workers(config.workers)
    sources = config.sources()
    if config.preview:
        _preview(config, sources)
        return
    out = Path(str(config.out))
    check_output(out, config.inputs, plain=False)
    check_suffix(out, sources[0])
    head = _head(config, sources[0])
    inputs = [Input.of(path) for path in config.inputs]
    setup = _set_up(config)
    with WorkFolder(out, _fingerprint(config, inputs, setup.files), config.resume, "augment") as work:
        parts = _make_parts(config, sources, setup, workers, work)
        for entry in inputs:
            entry.check()
        _check_rows(parts, config)
        repeated = _publish(out, head, parts, work)
    _write_summary(config, parts, repeated)


def _fingerprint(config: AugmentConfig, inputs: Sequence[Input], files: Mapping[str, str]) -> str:
    """Of what decides the parts: contents of all files and every setting but those of the run itself."""
    run_only = ("inputs", "out", "workers", "resume", "preview", "model", "vocab", "vectors", "user_dict")
    settings = {name: value for name, value in asdict(config).items() if name not in run_only}
    described = [__version__, settings, [entry.to_dict() for entry in inputs], files]
    return hashlib.blake2b(orjson.dumps(described, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def _head(config: AugmentConfig, source: Source) -> bytes:
    """The header of the output."""
    head, name = source.read_head(), config.id_name
    if name is None or not source.header_lines:
        return head
    raw, end = split_end(head)
    body = raw.decode("utf-8")
    names = body.split("\t") if source.format == "tsv" else next(csv.reader(body.splitlines(keepends=True)))
    if name in names:
        raise DataError(f"{source.path}: {_taken(name)}")
    return append_field(source.format, body, name, name).encode("utf-8") + (end or b"\n")


def _taken(name: str) -> str:
    return (
        f"the column for the id is a new one. Received: {name!r}, which is there already. Give another --id_column, or "
        "none if the rows have an id."
    )


def _make_parts(
    config: AugmentConfig, sources: Sequence[Source], setup: _Setup, workers: int, work: WorkFolder
) -> list[PartStats]:
    parts: list[PartStats] = []
    cut = (chunk for source in sources for chunk in chunks(source, config.chunk_bytes))
    tasks = (AugmentTask(chunk, work.files("rows", number)) for number, chunk in enumerate(cut))
    done = 0.0
    variants = 0
    with (
        WorkerPool(workers, _start_worker, (setup.worker,)) as pool,
        Progress(total_bytes(sources), "B", "augment") as progress,
    ):

        def advance(count: float) -> None:
            nonlocal done
            before, done = int(done), done + count
            progress.update(int(done) - before, f"{variants:,} variants")

        prepared = pool.map(prepare, tasks, lambda task: task.chunk.place())
        jobs = setup.answerer.answered(prepared, advance)
        for _, part in pool.map(finish, jobs, lambda job: job.task.chunk.place()):
            parts.append(part)
            variants += part.counts[COUNTED].get("variants", 0)
    return parts


def _check_rows(parts: Sequence[PartStats], config: AugmentConfig) -> None:
    bad: Counter[str] = Counter()
    for part in parts:
        bad.update({reason: n for reason, n in part.rejected.items() if reason != "blank"})
    rows = sum(part.lines - sum(part.rejected.values()) for part in parts)
    if bad and not rows:
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in bad.most_common())
        raise DataError(
            f"{config.inputs[0]}: no row has a text in column {config.text!r}. Received: {bad.total():,} rows "
            f"({reasons}). Nothing was written."
        )
    if not rows:
        logger.warning("%s has no row to vary", config.inputs[0])


def _publish(out: Path, head: bytes, parts: Sequence[PartStats], work: WorkFolder) -> int:
    """Writes the rows of all parts in order, without variants that equal another row; tells their number."""
    numbers = range(len(parts))

    def tables(wanted: Iterable[bool] = (False, True)) -> Iterator[np.ndarray[Any, Any]]:
        """Rows of the input first, then the variants: what equals an earlier one goes."""
        for is_variant in wanted:
            for number in numbers:
                table = work.files("rows", number).table()
                yield table[(table["label"] == 1) == is_variant]

    total, originals = sum(part.rows for part in parts), sum(part.lines for part in parts)
    groups = None
    if total > originals:
        groups = TextGroups(work.folder, "rows", tables, total, bucket_bits(total))
        groups.compare(drop=True)
    repeated, first = 0, originals
    with open_output(out) as file, Progress(total, " rows", "write") as progress:
        file.write(head)
        for number in numbers:
            files = work.files("rows", number)
            table = files.table()
            keep = np.ones(len(table), bool)
            variants = table["label"] == 1
            count = int(np.count_nonzero(variants))
            if groups is not None and count:
                keep[variants] = groups.destination.read(first, count) == TRAIN
                first += count
            repeated += len(table) - int(np.count_nonzero(keep))
            for written in chosen_lines(files, table, keep):
                file.write(written)
            progress.update(len(table))
    return repeated


def _write_summary(config: AugmentConfig, parts: Sequence[PartStats], repeated: int) -> None:
    counts: Counter[str] = Counter()
    unchanged: Counter[str] = Counter()
    for part in parts:
        counts.update(part.counts[COUNTED])
        unchanged.update(part.rejected)
    written = counts["variants"] - repeated
    rows = counts["rows"]
    lines = [
        f"augmented {', '.join(config.inputs)} -> {config.out}",
        f"  {rows + written:,} rows = {rows:,} of the input + {written:,} variants",
        f"    of the input, without a variant: {counts['without variants']:,}; with no text, as they were: "
        f"{unchanged.total():,}",
        *(f"    as it was, {reason}: {n:,}" for reason, n in sorted(unchanged.items())),
        f"    variants left out because they equal another row: {repeated:,}",
        f"  {counts['words']:,} words: {counts['asked of the model']:,} asked of the model, "
        f"{counts['looked up']:,} looked up in the vectors; {counts['with candidates']:,} have candidates",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _preview(config: AugmentConfig, sources: Sequence[Source]) -> None:
    """Prints variants of the first rows, made in this process."""
    setup = _set_up(config)
    _start_worker(setup.worker)
    left = config.preview
    for source in sources:
        for chunk in chunks(source, config.chunk_bytes):
            prepared = prepare(AugmentTask(chunk, None, left))
            (answers,) = setup.answerer.answer([prepared], lambda share: None)
            for row in prepared.rows:
                sys.stdout.write(_preview_row(row, chunk, answers))
            left -= len(prepared.rows)
            if not left:
                return


def _preview_row(row: PreparedRow, chunk: Chunk, answers: Answers) -> str:
    place = f"{chunk.source.path}:{chunk.first_line() + row.line - 1}"
    if row.apart is None:
        return f"{place}: as it was ({row.reason})\n"
    columns, variants = vary(row, answers)
    lines = [f"{place}: {len(variants)} variants"]
    for i, texts in enumerate([row.apart.texts, *variants]):
        lines += [f"  {i or '='}  {' | '.join(texts)}"]
    for column in columns:
        for word, candidates in column.candidates.items():
            lines.append(f"     {word.text}: {', '.join(candidates)}")
    return "\n".join(lines) + "\n"
