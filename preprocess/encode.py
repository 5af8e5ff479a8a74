"""Raw files to a data-set folder, with all cores, in bounded memory, every row accounted for.

    inputs --(chunks of whole rows)--> workers: part files --> split and dedup by hashes --> merge in order --> publish

A part is a chunk's rows as finished JSON lines, a table with one entry a row (`ROW`), and its rejects. Parts live in a
work folder beside the data set until the merged files have their final names; an interrupted run leaves them there
for `--resume`. All that the parent holds is counts.
"""

import fcntl
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from preprocess.merge import ROW, Merger, PartFiles, PartStats
from preprocess.pool import WorkerPool, check_workers
from preprocess.summary import write_summary
from tfbert.cli import option
from tfbert.data.columns import FieldReader, Roles, parse_filters, split_names
from tfbert.data.labels import LabelMap, LabelReader, load_label_map, raw_labels, sorted_names
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import TASKS, Manifest, file_checksum
from tfbert.data.record import Record, dump
from tfbert.data.source import Chunk, RowError, Source, chunks, count_lines, open_source, read_rows, total_bytes
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger
from tfbert.text.clean import parse_rules
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary

INTENDED = ("filtered", "blank", "duplicate", "conflict")  # reasons that are not the data's fault
MAX_LABELS = 10_000
CUT = 80  # characters of a rejected row that are kept


@dataclass(frozen=True)
class EncodeConfig:
    """Encode raw text files into a data-set folder of JSON-lines token ids."""

    inputs: tuple[str, ...] = option(positional=True)
    """Input files of the training part, in order: tsv, csv, jsonl or text, also .gz."""
    out: str = option()
    """The data-set folder to write."""
    vocab: str = option()
    """vocab.txt of the checkpoint, or one made by `preprocess vocab`."""
    text: str = option()
    """Column of the text: a name, or a 0-based number, negative from the end."""
    text_b: str | None = None
    """Column of the second text of a pair."""
    label: str | None = None
    """Column of the label."""
    labels: str | None = None
    """Label file: a name a line in id order, `raw TAB name` lines, or JSON. Default: the labels met, sorted."""
    task: str = "classify"
    """What a label is: classify (one class), multilabel (classes joined by --label_separator), regression."""
    label_separator: str = ","
    """Between the classes of a multi-label field."""
    type: str | None = None
    """Column that is copied to `type` of every row."""
    weight: str | None = None
    """Column with the weight of the row in the loss, a number >= 0."""
    keep: str | None = None
    """Columns to copy into every row under `keep`, joined by commas."""
    filter: tuple[str, ...] = option((), repeat=True)
    """COLUMN!=VALUE: leave out rows whose column equals the value. May be given several times."""
    val: tuple[str, ...] = option((), many=True)
    """Input files of the validation part; without them --val_fraction of the training rows is set apart."""
    test: tuple[str, ...] = option((), many=True)
    """Input files of the test part."""
    format: str = "auto"
    """auto (by the file's name), tsv, csv, jsonl or text."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    max_len: int = 256
    """Most token ids a row, special tokens included."""
    cased: bool = False
    """Keep case and accents (for cased checkpoints)."""
    clean: str = "none"
    """Cleaning rules joined by commas, `standard`, or `none`; docs/data.md lists them."""
    val_fraction: float = 0.01
    """Share of the training rows set apart for validation where --val is not given."""
    dedup: bool = False
    """Drop rows whose text occurred before; conflicting labels are reported."""
    workers: int | None = None
    """Worker processes. Default: one a core. The output does not depend on it."""
    max_bad_rows: float = 0.01
    """Largest share of unusable rows; above it nothing is published."""
    strict: bool = False
    """Make the first unusable row an error."""
    replace_bad_bytes: bool = False
    """Decode bytes that are not UTF-8 as U+FFFD instead of rejecting the row."""
    resume: bool = False
    """Go on from the finished parts of an interrupted run with the same inputs and settings."""
    seed: int = 0
    """Seed of the validation split."""
    chunk_bytes: int = 2 << 20
    """Bytes of input a task."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ConfigError(f"--task is one of {', '.join(TASKS)}. Received: {self.task!r}.")
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"--val_fraction must be in [0, 1). Received: {self.val_fraction}.")
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"--max_bad_rows is a share from 0 to 1. Received: {self.max_bad_rows}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"--chunk_bytes must be at least 1. Received: {self.chunk_bytes}.")
        if self.labels and self.label is None:
            raise ConfigError("--labels needs --label. Received: a label file, but no label column.")
        if self.task != "classify" and self.label is None:
            raise ConfigError(f"--task {self.task} needs --label. Received: no label column.")

    @property
    def roles(self) -> Roles:
        return Roles(
            self.text,
            self.text_b,
            self.label,
            self.type,
            self.weight,
            split_names(self.keep),
            parse_filters(self.filter),
        )

    @property
    def encoding(self) -> EncodingSettings:
        return EncodingSettings(self.max_len, self.cased, parse_rules(self.clean), self.text_b is not None)

    def sources(self) -> dict[str, list[Source]]:
        """The inputs of every part, opened as far as their headers."""
        columns = split_names(self.columns) or None
        groups = {"train": self.inputs, "val": self.val, "test": self.test}
        return {
            group: [
                open_source(
                    path,
                    self.roles.wanted,
                    format=self.format,
                    columns=columns,
                    header=self.header,
                    replace_bad_bytes=self.replace_bad_bytes,
                )
                for path in paths
            ]
            for group, paths in groups.items()
            if paths
        }


# ------------------------------------------------------------------------------------------------ in the workers


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs to build its state."""

    vocab: str
    encoding: EncodingSettings
    roles: Roles
    task: str
    label_separator: str
    hash_key: bytes | None


@dataclass(frozen=True)
class EncodeTask:
    """One chunk to one part."""

    group: str
    number: int
    chunk: Chunk
    files: PartFiles
    label_ids: dict[str, int] | None


@dataclass(frozen=True)
class _State:
    settings: WorkerSettings
    encoder: RowEncoder
    fields: FieldReader


_state: _State


def _start_worker(settings: WorkerSettings) -> None:
    global _state
    encoder = RowEncoder(Vocabulary.load(settings.vocab), settings.encoding)
    _state = _State(settings, encoder, FieldReader(settings.roles))


def scan_labels(chunk: Chunk) -> set[str]:
    """The raw labels of the usable rows of a chunk."""
    settings = _state.settings
    labels: set[str] = set()
    for _, _, fields in read_rows(chunk):
        try:
            if not isinstance(fields, RowError):
                raw = _state.fields(fields).label
                labels.update(raw_labels(settings.task, raw or "", settings.label_separator))
        except RowError:
            continue
    return labels


def encode_chunk(task: EncodeTask) -> PartStats:
    """Writes one part; the table is renamed last, so a part with its table is whole."""
    settings, encoder = _state.settings, _state.encoder
    read_label = LabelReader(settings.task, task.label_ids or {}, settings.label_separator)
    lines: list[bytes] = []
    table: list[tuple[Any, ...]] = []
    rejects: list[dict[str, Any]] = []
    for number, raw, fields in read_rows(task.chunk):
        try:
            if isinstance(fields, RowError):
                raise fields
            row = _state.fields(fields)
            label = read_label(row.label) if row.label is not None else None
        except RowError as error:
            rejects.append({"line": number, "reason": error.reason, "detail": error.detail, "text": raw[:CUT]})
            continue
        token_ids, segment_ids, full_length = encoder.encode(row.text, row.text_b)
        line = dump(Record(token_ids, segment_ids, label, row.weight, row.type, row.keep or None))
        lines.append(line)
        hashes = _text_hash(row.text, row.text_b, settings.hash_key)
        class_id = label if type(label) is int else -1
        table.append((len(line), len(token_ids), full_length, class_id, number, *hashes))
    entries = np.array(table, ROW)
    task.files.write(b"".join(lines), entries, rejects)
    data = task.chunk.read()
    return PartStats(
        lines=count_lines(data) if task.chunk.source.format != "csv" else len(lines) + len(rejects),
        physical_lines=count_lines(data),
        rows=len(lines),
        rejected=dict(Counter(reject["reason"] for reject in rejects)),
        first_reject=rejects[0] if rejects else None,
    )


def _text_hash(text: str, text_b: str | None, key: bytes | None) -> tuple[int, int]:
    if key is None:
        return 0, 0
    content = text if text_b is None else f"{text}\0{text_b}"
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16, key=key).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


# ------------------------------------------------------------------------------------------------- in the parent


def encode(config: EncodeConfig) -> None:
    """Runs the whole job and publishes the data set."""
    workers = check_workers(config.workers)
    vocabulary = Vocabulary.load(config.vocab)
    encoding = config.encoding
    sources = config.sources()
    label_map = load_label_map(config.labels) if config.labels else None
    out = Path(config.out)
    _check_target(out)
    inputs = {group: [_describe(s.path) for s in group_sources] for group, group_sources in sources.items()}
    fingerprint = _fingerprint(config, inputs)
    splits = not config.val and config.val_fraction > 0
    settings = WorkerSettings(
        config.vocab,
        encoding,
        config.roles,
        config.task,
        config.label_separator,
        config.seed.to_bytes(8, "little", signed=True) if splits or config.dedup else None,
    )
    with WorkFolder(out, fingerprint, config.resume) as work:
        with WorkerPool(workers, _start_worker, (settings,)) as pool:
            if config.label is not None and config.task != "regression" and label_map is None:
                label_map = _scan(pool, sources, config)
            stats = _encode_parts(pool, sources, config, work, label_map)
        _check_inputs(inputs)
        totals = {group: _sum_stats(parts) for group, parts in stats.items()}
        _check_rejects(totals, config.max_bad_rows)
        merger = Merger(
            work.folder,
            sources=sources,
            parts=stats,
            files=work.files,
            num_labels=len(label_map.names) if label_map else 0,
            val_fraction=config.val_fraction if splits else 0.0,
            dedup=config.dedup,
        )
        merged = merger.run()
        for group, extra in merged.rejected.items():
            totals[group].rejected.update(extra)
        manifest = Manifest(
            inputs={
                group: [
                    entry | {"lines": sum(p.lines for p in stats[group] if p.source == i)} for i, entry in enumerate(e)
                ]
                for group, e in inputs.items()
            },
            read={
                group: {"lines": t.lines, "kept": t.lines - sum(t.rejected.values()), "rejected": _sorted(t.rejected)}
                for group, t in totals.items()
            },
            columns={
                "format": config.format,
                "columns": config.columns,
                "header": config.header,
                "replace_bad_bytes": config.replace_bad_bytes,
                "roles": config.roles.to_dict(),
            },
            encoding=encoding.to_dict(),
            vocab_checksum=file_checksum(config.vocab),
            vocab_size=len(vocabulary),
            pad_id=vocabulary.pad_id,
            task=config.task if config.label is not None else None,
            label_names=list(label_map.names) if label_map else [],
            label_map=label_map.ids if label_map else {},
            label_separator=config.label_separator,
            split={
                "fraction": config.val_fraction,
                "seed": config.seed,
                "rule": "hash of the text, stratified by label",
            }
            if splits
            else None,
            dedup=config.dedup,
            conflicts=merged.conflicts,
            leaked=merged.leaked,
            parts=merged.named_parts(label_map.names if label_map else ()),
        )
        work.publish(out, manifest, config.vocab, label_map.names if label_map else None)
    write_summary(out, manifest)


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _check_target(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise DataError(f"--out names the data-set folder. Received: {out}, a file.")
    if not out.parent.is_dir():
        raise DataError(f"--out must lie in an existing folder. Received: {out}; {out.parent} does not exist.")
    if out.is_dir() and not (out / MANIFEST).exists():
        foreign = [name for name in ("train.jsonl", "val.jsonl", "test.jsonl", "vocab.txt") if (out / name).exists()]
        if foreign and not WorkFolder.path_of(out).exists():
            raise DataError(
                f"{out}: the folder holds {', '.join(foreign)} but no {MANIFEST}, so it is not a data set of ours. "
                "Choose another --out, or remove these files."
            )


def _describe(path: str) -> dict[str, Any]:
    stat = Path(path).stat()
    return {"name": path, "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns, "checksum": file_checksum(path)}


def _check_inputs(inputs: dict[str, list[dict[str, Any]]]) -> None:
    for entries in inputs.values():
        for entry in entries:
            stat = Path(entry["name"]).stat()
            if (stat.st_size, stat.st_mtime_ns) != (entry["bytes"], entry.pop("modified_ns")):
                raise DataError(f"{entry['name']}: the file changed while it was read. Run again when it is complete.")


def _fingerprint(config: EncodeConfig, inputs: dict[str, list[dict[str, Any]]]) -> str:
    """What decides the parts: contents of the inputs and every setting but those of the run itself."""
    run_only = ("out", "workers", "resume", "strict", "max_bad_rows")
    settings = {name: value for name, value in asdict(config).items() if name not in run_only}
    settings["vocab"] = file_checksum(config.vocab)
    settings["labels"] = file_checksum(config.labels) if config.labels else None
    contents = {group: [(e["name"], e["bytes"], e["checksum"]) for e in entries] for group, entries in inputs.items()}
    return hashlib.blake2b(orjson.dumps([1, settings, contents]), digest_size=16).hexdigest()


def _scan(pool: WorkerPool, sources: dict[str, list[Source]], config: EncodeConfig) -> LabelMap:
    met: set[str] = set()
    with _bar(sources, "labels") as progress:
        tasks = (
            chunk for group in sources.values() for source in group for chunk in chunks(source, config.chunk_bytes)
        )
        for chunk, labels in pool.map(scan_labels, tasks, Chunk.place):
            met |= labels
            progress.update(chunk.end - chunk.start)
            if len(met) > MAX_LABELS:
                raise DataError(
                    f"A label column has at most {MAX_LABELS} different values. Received: more, such as "
                    f"{sorted(met)[:3]}. Is {config.label!r} the label column? Numbers to predict are --task regression."
                )
    return sorted_names(met)


def _encode_parts(
    pool: WorkerPool,
    sources: dict[str, list[Source]],
    config: EncodeConfig,
    work: "WorkFolder",
    label_map: LabelMap | None,
) -> dict[str, list[PartStats]]:
    stats: dict[str, list[PartStats]] = {group: [] for group in sources}
    lines = 0

    def tasks() -> Iterator[EncodeTask]:
        for group, group_sources in sources.items():
            number = 0
            for source in group_sources:
                for chunk in chunks(source, config.chunk_bytes):
                    yield EncodeTask(
                        group, number, chunk, work.files(group, number), label_map.ids if label_map else None
                    )
                    number += 1

    with _bar(sources, "encode") as progress:
        for task, part in pool.map(work.cached(encode_chunk), tasks(), lambda task: task.chunk.place()):
            source = sources[task.group].index(task.chunk.source)
            part = part.at(source, _next_line(stats[task.group], source, task.chunk.source))
            stats[task.group].append(part)
            lines += part.lines
            if config.strict and part.first_reject:
                reject = part.first_reject
                raise DataError(
                    f"{task.chunk.source.path}:{part.first_line + reject['line'] - 1}: --strict allows no unusable row. "
                    f"Received: {reject['reason']} {reject['detail']}: {reject['text']!r}."
                )
            progress.update(task.chunk.end - task.chunk.start, f"{lines:,} rows")
    return stats


def _next_line(parts: list[PartStats], source: int, opened: Source) -> int:
    """Line number at which the next part of a source begins."""
    if parts and parts[-1].source == source:
        return parts[-1].first_line + parts[-1].physical_lines
    return opened.header_lines + 1


def _bar(sources: dict[str, list[Source]], what: str) -> Progress:
    return Progress(total_bytes(source for group in sources.values() for source in group), "B", what)


@dataclass
class _Totals:
    lines: int
    rejected: Counter[str]


def _sum_stats(parts: list[PartStats]) -> _Totals:
    rejected: Counter[str] = Counter()
    for part in parts:
        rejected.update(part.rejected)
    return _Totals(sum(part.lines for part in parts), rejected)


def _check_rejects(totals: dict[str, _Totals], max_bad_rows: float) -> None:
    for group, total in totals.items():
        bad = Counter({reason: n for reason, n in total.rejected.items() if reason not in INTENDED})
        if bad.total() > max_bad_rows * total.lines:
            raise DataError(
                f"At most {max_bad_rows:.2%} of the rows may be unusable (--max_bad_rows). Received: {bad.total():,} of "
                f"{total.lines:,} {group} rows ({', '.join(f'{reason}: {n:,}' for reason, n in bad.most_common())}). "
                "Nothing was published; --strict shows the first such row."
            )
        if total.lines and total.rejected.total() == total.lines:
            raise DataError(
                f"There are no usable rows in the {group} part. Received: {total.lines:,} rows, all rejected "
                f"({', '.join(f'{reason}: {n:,}' for reason, n in total.rejected.most_common())})."
            )
        if not total.lines:
            logger.warning("the %s part is empty: its input has no rows", group)


class WorkFolder:
    """The parts of a run, beside the data set, under a lock; kept for `--resume` when a run is interrupted.

    Raises:
        DataError: another run is writing the same data set; or `--resume` finds parts of other inputs or settings.
    """

    def __init__(self, out: Path, fingerprint: str, resume: bool):
        self.folder = self.path_of(out)
        self._out, self._fingerprint, self._resume = out, fingerprint, resume
        self._lock: int | None = None

    @staticmethod
    def path_of(out: Path) -> Path:
        return out.absolute().parent / f".{out.absolute().name}.encode"

    def __enter__(self) -> "WorkFolder":
        self.folder.mkdir(exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DataError(
                f"{self._out}: another run is writing this data set. Wait for it, or choose --out."
            ) from None
        described = self.folder / "run.json"
        found = described.read_text(encoding="utf-8") if described.exists() else None
        if self._resume and found is not None and found != self._fingerprint:
            os.close(self._lock)
            raise DataError(
                f"{self._out}: the interrupted run had other inputs or settings. Run without --resume to start again."
            )
        if not self._resume or found is None:
            self._clear()
            described.write_text(self._fingerprint, encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, DataError):
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            logger.warning(
                "finished parts are kept in %s; the same command with --resume goes on from them", self.folder
            )
        if self._lock is not None:
            os.close(self._lock)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.name != "lock":
                path.unlink()

    def files(self, group: str, number: int) -> PartFiles:
        return PartFiles(str(self.folder / f"{group}-{number:06d}"))

    def cached(self, function: Callable[[EncodeTask], PartStats]) -> Callable[[EncodeTask], PartStats]:
        """The function for the workers: returns the part at once where an earlier run finished it."""
        return _CachedPart(function)

    def publish(self, out: Path, manifest: Manifest, vocab: str, names: tuple[str, ...] | None) -> None:
        """Gives the merged files their final names; the manifest goes first and comes last."""
        shutil.copyfile(vocab, self.folder / "vocab.txt")
        if names is not None:
            (self.folder / "labels.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        (self.folder / MANIFEST).write_bytes(manifest.dump())
        wanted = ["vocab.txt", "rejects.jsonl"] + (["labels.txt"] if names is not None else [])
        wanted += [name for part in manifest.parts for name in (f"{part}.jsonl", f"{part}.idx")]
        out.mkdir(exist_ok=True)
        (out / MANIFEST).unlink(missing_ok=True)
        for part in ("train", "val", "test"):
            for name in (f"{part}.jsonl", f"{part}.idx"):
                if name not in wanted:
                    (out / name).unlink(missing_ok=True)
        for name in [*wanted, MANIFEST]:
            _sync(self.folder / name)
            (self.folder / name).replace(out / name)


@dataclass(frozen=True)
class _CachedPart:
    function: Callable[[EncodeTask], PartStats]

    def __call__(self, task: EncodeTask) -> PartStats:
        done = task.files.read_stats()
        if done is None:
            done = self.function(task)
            task.files.write_stats(done)
        return done


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
