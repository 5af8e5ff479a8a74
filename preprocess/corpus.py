"""Plain text to a data set for pretraining: rows packed from sentences, shuffled over the whole corpus.

    files --(chunks of whole documents)--> documents: tokens of sentences
          --> split and duplicates by hashes of documents
          --> rows, thrown into buckets --> buckets shuffled --> published

Work, parts and publication are those of `encode`; the workers' side is `corpus_read` and `corpus_pack`. All that this
process holds is counts, and a number a part.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from preprocess.corpus_documents import Documents
from preprocess.corpus_pack import (
    PackTask,
    ShuffleTask,
    pack_part,
    shuffle_bucket,
    start_packer,
)
from preprocess.corpus_read import BAD, ReadSettings, ReadTask, read_chunk, start_reader
from preprocess.documents import ENDS, document_chunks
from preprocess.merge import Counted, Merged, dropped_rows, write_rejects
from preprocess.outputs import ArrowOutput, JsonOutput, MakeOutput
from preprocess.packing import PAIRS, Packing
from preprocess.parts import PartStats
from preprocess.pool import WorkerPool, check_workers
from preprocess.segment import check_segmenter
from preprocess.split import DUPLICATE, TextGroups
from preprocess.summary import write_summary
from preprocess.work_folder import WorkFolder
from tfbert import __version__
from tfbert.cli import option
from tfbert.data.columns import Roles, split_names
from tfbert.data.manifest import Input, Manifest, file_checksum
from tfbert.data.source import Source, import_pyarrow, open_source, total_bytes
from tfbert.data.store import SUFFIXES
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger
from tfbert.text.clean import Cleaner, parse_rules
from tfbert.text.row_encoder import EncodingSettings
from tfbert.text.wordpiece import Vocabulary

WHOLE_WORDS = ("none", "pieces", "jieba", "rjieba")
SENTENCES = ("signs", "lines")
UNDIVIDED_LINES = 100  # of one document that may be many


@dataclass(frozen=True)
class CorpusConfig:
    """Make a data-set folder for pretraining from plain text: rows of whole sentences."""

    inputs: tuple[str, ...] = option(positional=True)
    """Input files: text or JSON lines, also tsv and csv, also .gz and .zst."""
    out: str = option()
    """The data-set folder to write."""
    vocab: str = option()
    """vocab.txt of the checkpoint, or one made by `preprocess vocab`."""
    text: str = "text"
    """Column of the text in JSON lines, tsv and csv files; every row is a document there."""
    format: str = "auto"
    """auto (by the file's name), text, jsonl, tsv or csv."""
    columns: str | None = None
    """Names of the columns, joined by commas, for tsv and csv files without a header line."""
    header: bool | None = None
    """Whether the first line of a tsv or csv file is a header. Default: exactly when a column is named and --columns
    is not given."""
    documents: str = "blank"
    """Where a document of a text file ends: blank (at a blank line), line (every line is one), file."""
    sentences: str = "signs"
    """Where a sentence ends: signs (at 。！？ . ! ? and line ends), or lines (at line ends alone)."""
    max_len: int = 128
    """Most token ids a row, special tokens included."""
    pairs: str = "none"
    """Rows of two texts: none, nsp (is the second the next one, or random?) or sop (are the two in order?)."""
    short_fraction: float = 0.1
    """Share of the rows that are filled up to a random length only."""
    whole_words: str = "pieces"
    """Store where words begin: none; pieces (a `##` piece goes on with a word); jieba or rjieba (Chinese words)."""
    user_dict: str | None = None
    """jieba user dictionary: `word`, `word frequency` or `word frequency tag` a line, UTF-8."""
    cased: bool = False
    """Keep case and accents (for cased checkpoints)."""
    clean: str = "none"
    """Cleaning rules joined by commas, `standard`, or `none`; they are applied to every line."""
    val_fraction: float = 0.01
    """Share of the documents set apart for validation."""
    dedup: bool = False
    """Drop documents whose text occurred before."""
    workers: int | None = None
    """Worker processes. Default: one a core. The output does not depend on it."""
    max_bad_rows: float = 0.01
    """Largest share of unusable documents or lines; above it nothing is published."""
    replace_bad_bytes: bool = False
    """Decode bytes that are not UTF-8 as U+FFFD instead of rejecting the line."""
    resume: bool = False
    """Go on from the finished parts of an interrupted run with the same inputs and settings."""
    store: str = "jsonl"
    """Files of the data set: jsonl (JSON lines), or arrow (Arrow IPC, read several times faster)."""
    seed: int = 0
    """Seed of the validation split, the rows and their order."""
    chunk_bytes: int = 4 << 20
    """Bytes of input a task; a larger document is cut."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("documents", ENDS),
            ("sentences", SENTENCES),
            ("whole_words", WHOLE_WORDS),
            ("store", tuple(SUFFIXES)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"--{name} is one of {', '.join(allowed)}. Received: {getattr(self, name)!r}.")
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"--val_fraction must be in [0, 1). Received: {self.val_fraction}.")
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"--max_bad_rows is a share from 0 to 1. Received: {self.max_bad_rows}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"--chunk_bytes must be at least 1. Received: {self.chunk_bytes}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"--seed is a whole number of 64 bits. Received: {self.seed}.")
        if self.user_dict is not None and self.whole_words != "jieba":
            raise ConfigError(
                f"--user_dict is a dictionary of jieba. Received: --whole_words {self.whole_words}. Use --whole_words "
                "jieba."
            )
        self.packing  # noqa: B018 - refuses what it refuses

    @property
    def packing(self) -> Packing:
        return Packing(self.max_len, self.pairs, self.short_fraction)

    @property
    def encoding(self) -> EncodingSettings:
        return EncodingSettings(self.max_len, self.cased, parse_rules(self.clean), self.pairs != "none")

    def sources(self) -> list[Source]:
        """The inputs, opened as far as their headers."""
        return [self._source(path) for path in self.inputs]

    def _source(self, path: str) -> Source:
        def open_as(wanted: str, format: str) -> Source:
            return open_source(
                path,
                [wanted],
                format=format,
                columns=split_names(self.columns) or None,
                header=self.header,
                replace_bad_bytes=self.replace_bad_bytes,
            )

        source = open_as("0", self.format)  # which needs no header: to learn the format
        if self.format == "auto" and source.format == "tsv" and not _is_named(path, ".tsv"):
            source = open_as("0", "text")  # prose may have a tab in its first line
        return source if source.format == "text" else open_as(self.text, source.format)


def _is_named(path: str, suffix: str) -> bool:
    return suffix in [each.lower() for each in Path(path).suffixes[-2:]]


def corpus(config: CorpusConfig) -> None:
    """Runs the whole job and publishes the data set."""
    workers = check_workers(config.workers)
    if config.store == "arrow":
        import_pyarrow("--store arrow")
    vocabulary = Vocabulary.load(config.vocab)
    if vocabulary.mask_id is None:
        raise DataError(f"{config.vocab}: pretraining needs [MASK] in the vocabulary. Received: a file without it.")
    if config.whole_words in ("jieba", "rjieba"):
        check_segmenter(config.whole_words, config.user_dict)
    Cleaner(config.encoding.clean)  # refuses a rule whose package is missing before any worker starts
    sources = config.sources()
    out = Path(config.out)
    WorkFolder.check_target(out, [source.path for source in sources])
    job = _Job(config, sources)
    with WorkFolder(out, job.fingerprint, config.resume) as work:
        with WorkerPool(workers, start_reader, (job.read_settings(),)) as pool:
            parts = _read(pool, job, work)
        for entry in job.inputs:
            entry.check()
        _check_documents(parts, config)
        if config.documents == "blank":
            _tell_of_undivided(parts, sources)
        documents = Documents(work, parts)
        destination = documents.split(config)
        settings = documents.pack_settings(config, destination)
        make_output: MakeOutput = partial(JsonOutput, work.folder)
        if config.store == "arrow":
            make_output = partial(ArrowOutput, work.folder, settings.schema(len(vocabulary)))
        with WorkerPool(workers, start_packer, (settings,)) as pool:
            packed, rows = _pack(pool, documents, destination, work)
            buckets = (
                ShuffleTask(group, number, len(packed), work.files(group, number))
                for group, count in settings.buckets.items()
                if rows[group]
                for number in range(count)
            )
            merged = _shuffle(pool, buckets, rows, work, make_output)
        dropped = _write_rejects(work, sources, documents, destination)
        manifest = job.manifest(vocabulary, parts, packed, merged, dropped)
        work.publish(manifest, Path(config.vocab), None)
    write_summary(out, manifest)


class _Job:
    """What a run is known by: its settings and the state of its inputs when it began."""

    def __init__(self, config: CorpusConfig, sources: list[Source]):
        self.config, self.sources = config, sources
        self.inputs = [Input.of(source.path) for source in sources]
        self.vocab_checksum = file_checksum(config.vocab)
        self.user_dict_checksum = file_checksum(config.user_dict) if config.user_dict else None

    @property
    def fingerprint(self) -> str:
        """Of what decides the parts: contents of the inputs and every setting but those of the run itself."""
        run_only = ("inputs", "out", "workers", "resume", "max_bad_rows")
        settings = {name: value for name, value in asdict(self.config).items() if name not in run_only}
        settings |= {"vocab": self.vocab_checksum, "user_dict": self.user_dict_checksum}
        inputs = [entry.to_dict() for entry in self.inputs]
        return hashlib.blake2b(orjson.dumps(["corpus", __version__, settings, inputs]), digest_size=16).hexdigest()

    def read_settings(self) -> ReadSettings:
        config = self.config
        return ReadSettings(
            vocab=config.vocab,
            cased=config.cased,
            clean=config.encoding.clean,
            documents=config.documents,
            split_lines=config.sentences == "signs",
            whole_words=config.whole_words,
            user_dict=config.user_dict,
            hash_key=config.seed.to_bytes(8, "little", signed=True),
            least_tokens=2 if config.pairs == "sop" else 1,
            keep_texts=config.dedup,
        )

    def manifest(
        self,
        vocabulary: Vocabulary,
        parts: list[PartStats],
        packed: list[PartStats],
        merged: Merged,
        dropped: dict[str, Counter[str]],
    ) -> Manifest:
        config = self.config
        lines = Counter[int]()
        for part in parts:
            lines[part.source] += part.physical_lines
        names = PAIRS[config.pairs]
        return Manifest(
            inputs={"train": [entry.to_dict() | {"lines": lines[i]} for i, entry in enumerate(self.inputs)]},
            read={},
            columns={
                "format": config.format,
                "columns": config.columns,
                "header": config.header,
                "replace_bad_bytes": config.replace_bad_bytes,
                "roles": Roles(config.text).to_dict(),
            },
            encoding=config.encoding.to_dict(),
            vocab_checksum=self.vocab_checksum,
            vocab_size=len(vocabulary),
            pad_id=vocabulary.pad_id,
            task=None,
            label_names=list(names),
            label_map={},
            label_separator=",",
            split={"fraction": config.val_fraction, "seed": config.seed, "rule": "hash of the document"}
            if config.val_fraction
            else None,
            dedup=config.dedup,
            conflicts=0,
            leaked={},
            parts=merged.named_parts(names),
            store=config.store,
            corpus={
                "documents": config.documents,
                "sentences": config.sentences,
                "pairs": config.pairs,
                "whole_words": config.whole_words,
                "user_dict": self.user_dict_checksum,
                "short_fraction": config.short_fraction,
                "seed": config.seed,
                "read": _counts(parts, packed, dropped),
                "borrowed_tokens": sum(part.counts["tokens"]["borrowed"] for part in packed),
            },
        )


def _read(pool: WorkerPool, job: _Job, work: WorkFolder) -> list[PartStats]:
    """Statistics of the parts of documents, in order."""
    config = job.config
    parts: list[PartStats] = []

    def tasks() -> Iterator[ReadTask]:
        cut = (
            (i, piece)
            for i, source in enumerate(job.sources)
            for piece in document_chunks(source, config.documents, config.chunk_bytes)
        )
        for number, (i, piece) in enumerate(cut):
            yield ReadTask(i, piece, work.files("documents", number))

    documents = 0
    with Progress(total_bytes(job.sources), "B", "read") as progress:
        for task, part in pool.map(read_chunk, tasks(), lambda task: task.chunk.place()):
            first = task.chunk.source.header_lines + 1
            if parts and parts[-1].source == task.source:
                first = parts[-1].first_line + parts[-1].physical_lines
            parts.append(part.at(task.source, first))
            documents += part.lines
            progress.update(task.chunk.end - task.chunk.start, f"{documents:,} documents")
    return parts


def _check_documents(parts: list[PartStats], config: CorpusConfig) -> None:
    documents, lines = Counter[str](), Counter[str]()
    for part in parts:
        documents.update({"read": part.lines} | part.rejected)
        lines.update(part.counts["sentences"])
    first = next((part for part in parts if part.first_bad), None)
    hint = ""
    if first is not None and (bad := first.first_bad):
        detail = f" ({bad['detail']})" if bad["detail"] else ""
        place = f"{config.inputs[first.source]}:{first.first_line + bad['line'] - 1}"
        hint = f" The first is {place}: {bad['reason']}{detail}."
    if not any(part.rows for part in parts):
        rejected = ", ".join(f"{reason}: {n:,}" for reason, n in documents.most_common() if reason != "read")
        raise DataError(
            f"{config.inputs[0]}: a corpus needs documents with text. Received: {documents['read']:,} documents"
            f"{f', all dropped ({rejected})' if rejected else ''}.{hint}"
        )
    for what, counts in (("documents", documents), ("sentences", lines)):
        unusable = sum(counts[reason] for reason in BAD)
        if unusable > config.max_bad_rows * counts["read"]:
            raise DataError(
                f"At most {config.max_bad_rows:.2%} of the {what} may be unusable (--max_bad_rows). Received: "
                f"{unusable:,} of {counts['read']:,}. Nothing was published.{hint}"
            )


def _tell_of_undivided(parts: list[PartStats], sources: list[Source]) -> None:
    """A file without blank lines is more often a document a line than a single one."""
    documents, lines = Counter[int](), Counter[int]()
    for part in parts:
        documents[part.source] += part.lines
        lines[part.source] += part.physical_lines
    for i, source in enumerate(sources):
        if source.format == "text" and documents[i] == 1 and lines[i] >= UNDIVIDED_LINES:
            logger.warning(
                "%s is one document of %s lines, because no blank line parts it; --documents line makes each line one",
                source.path,
                f"{lines[i]:,}",
            )


def _pack(
    pool: WorkerPool, documents: Documents, destination: TextGroups, work: WorkFolder
) -> tuple[list[PartStats], Counter[str]]:
    """Statistics of the packed parts, and the number of rows by group."""

    def tasks() -> Iterator[PackTask]:
        for number, part in enumerate(documents.parts):
            first = documents.first[number]
            goes = destination.destination.read(first, part.rows)
            yield PackTask(number, first, goes, documents.inherited[number], work.files("packed", number))

    packed: list[PartStats] = []
    rows = Counter[str]()
    with Progress(documents.total, " documents", "pack") as progress:
        for task, part in pool.map(pack_part, tasks(), lambda task: f"part {task.number} of the documents"):
            packed.append(part)
            rows.update(part.counts["rows"])
            progress.update(len(task.destination), f"{rows.total():,} rows")
    if not rows["train"]:
        raise DataError("The train part of a corpus needs rows. Received: none. Use a smaller --val_fraction.")
    return packed, rows


def _shuffle(
    pool: WorkerPool, tasks: Iterator[ShuffleTask], rows: Counter[str], work: WorkFolder, make_output: MakeOutput
) -> Merged:
    """Writes the data files, bucket by bucket, while the next ones are shuffled."""
    merged = Merged({}, {}, 0, {})
    outputs: dict[str, Counted] = {}
    try:
        for group in ("train", "val"):
            if rows[group]:
                outputs[group] = Counted(make_output(group))
        with Progress(rows.total(), " rows", "shuffle") as progress:
            for task, part in pool.map(shuffle_bucket, tasks, lambda task: f"bucket {task.number} of {task.group}"):
                table = task.files.table()
                outputs[task.group].write(task.files, table, np.ones(len(table), bool))
                progress.update(part.rows)
        merged.parts = {group: output.close() for group, output in outputs.items()}
    except BaseException:
        for output in outputs.values():
            output.discard()
        raise
    return merged


def _write_rejects(
    work: WorkFolder, sources: list[Source], documents: Documents, destination: TextGroups
) -> dict[str, Counter[str]]:
    """Writes rejects.jsonl; returns what was dropped as duplicate: documents, sentences, tokens."""
    dropped = {name: Counter[str]() for name in ("documents", "sentences", "tokens")}
    with (work.folder / "rejects.jsonl").open("wb") as file:
        for number, (part, table) in enumerate(zip(documents.parts, documents.tables(), strict=True)):
            files = documents.files(number)
            goes = destination.destination.read(documents.first[number], part.rows)
            repeated = [row | {"what": "document"} for row in dropped_rows(goes, table, files)]
            write_rejects(file, sources[part.source], part, [*files.rejects(), *repeated])
            gone = goes >= DUPLICATE
            dropped["documents"]["duplicate"] += int(np.count_nonzero(gone & ~table["goes_on"]))
            for name in ("sentences", "tokens"):
                dropped[name]["duplicate"] += int(table[name][gone].sum())
    return dropped


def _counts(
    parts: list[PartStats], packed: list[PartStats], dropped: dict[str, Counter[str]]
) -> dict[str, dict[str, Any]]:
    """Documents, sentences and tokens: read = kept + dropped, for each reason."""
    found = {name: Counter(counts) for name, counts in dropped.items()}
    for part in parts:
        found["documents"].update({"read": part.lines} | part.rejected)
        for name in ("sentences", "tokens"):
            found[name].update(part.counts[name])
    for part in packed:
        for name in ("sentences", "tokens"):
            found[name]["no pair"] += part.counts[name]["no pair"]
    counts = {}
    for name, counter in found.items():
        read = counter.pop("read", 0)
        reasons = {reason: n for reason, n in sorted(counter.items()) if n}
        counts[name] = {"read": read, "kept": read - sum(reasons.values()), "dropped": reasons}
    return counts
