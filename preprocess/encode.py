"""Raw files to a data-set folder, with all cores, in bounded memory, every row accounted for.

    inputs --(chunks of whole rows)--> workers: part files --> split and dedup by hashes --> merge in order --> publish

A part is a chunk's rows as finished JSON lines, a table with one entry a row (`ROW`), and its rejects. Parts live in a
work folder beside the data set until the merged files have their final names; an interrupted run leaves them there
for `--resume`. All that the parent holds is counts.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from preprocess.merge import Merged, Merger
from preprocess.named_task import check_flags, describe
from preprocess.outputs import ArrowOutput, JsonOutput, MakeOutput
from preprocess.parts import ROW, PartFiles, PartStats
from preprocess.pool import WorkerPool, check_workers
from preprocess.ray_pool import RayPool
from preprocess.summary import write_summary
from preprocess.work_folder import WorkFolder
from tfbert import __version__
from tfbert.cli import option
from tfbert.data.arrow_writer import dump_table, make_table, row_schema
from tfbert.data.columns import FieldColumns, FieldReader, Roles, parse_filters, split_names
from tfbert.data.job_folder import DESCRIPTION
from tfbert.data.labels import LabelMap, LabelReader, load_label_map, raw_labels, sorted_names
from tfbert.data.manifest import TASKS, Input, Manifest, file_checksum
from tfbert.data.record import dump_rows
from tfbert.data.source import (
    Chunk,
    Reject,
    RowError,
    Source,
    chunks,
    count_lines,
    import_pyarrow,
    open_source,
    read_columns,
    total_bytes,
)
from tfbert.data.store import SUFFIXES
from tfbert.data.tasks import TASKS as NAMED_TASKS
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger
from tfbert.ray_cluster import import_ray
from tfbert.text.clean import parse_rules
from tfbert.text.pair import PackedRows
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary

ENGINES = ("local", "ray")
INTENDED = ("filtered", "blank", "duplicate", "conflict")  # reasons that are not the data's fault
MAX_LABELS = 10_000
MANY_LABELS = 20  # that may well be so in a file of a few rows
CUT = 80  # characters of a rejected row that are kept


@dataclass(frozen=True)
class EncodeConfig:
    """Encode raw text files into a data-set folder of JSON-lines token ids."""

    inputs: tuple[str, ...] = option(positional=True)
    """Input files of the training part, in order: tsv, csv, jsonl or text, also .gz and .zst; or, with the name of a
    published task, its folder."""
    out: str = option()
    """The data-set folder to write."""
    vocab: str = option()
    """vocab.txt of the checkpoint, or one made by `preprocess vocab`."""
    text: str | None = None
    """Column of the text: a name, or a 0-based number, negative from the end. Needed but with a task's name."""
    text_b: str | None = None
    """Column of the second text of a pair."""
    label: str | None = None
    """Column of the label."""
    labels: str | None = None
    """Label file: a name a line in id order, `raw TAB name` lines, or JSON. Default: the labels met, sorted."""
    task: str = "classify"
    """What a label is: classify (one class), multilabel (classes joined by --label_separator), regression; or the name
    of a published task such as glue/mrpc, which brings files, columns, labels and --max_len (see docs/data.md)."""
    label_separator: str = ","
    """Between the classes of a multi-label field."""
    type: str | None = None
    """Column that is copied to `type` of every row."""
    weight: str | None = None
    """Column with the weight of the row in the loss, a number >= 0."""
    group: str | None = None
    """Column whose value several rows share that belong together, such as the variants of one text: they stay on one
    side of the split by --val_fraction. A row with an empty value goes by its text."""
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
    max_len: int | None = None
    """Most token ids a row, special tokens included. Default: 256, or what is usual for the task."""
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
    engine: str = "local"
    """Where the workers run: local, or ray (a cluster; inputs, vocabulary and --out on storage that all of it sees)."""
    ray_address: str | None = None
    """Ray cluster to use with --engine ray, such as auto. Default: one of this machine alone."""
    max_bad_rows: float = 0.01
    """Largest share of unusable rows; above it nothing is published."""
    strict: bool = False
    """Make the first unusable row an error."""
    replace_bad_bytes: bool = False
    """Decode bytes that are not UTF-8 as U+FFFD instead of rejecting the row."""
    resume: bool = False
    """Go on from the finished parts of an interrupted run with the same inputs and settings."""
    store: str = "jsonl"
    """Files of the data set: jsonl (JSON lines), or arrow (Arrow IPC, read several times faster)."""
    seed: int = 0
    """Seed of the validation split."""
    chunk_bytes: int = 1 << 20
    """Bytes of input a task."""

    def __post_init__(self) -> None:
        if self.task in NAMED_TASKS:
            check_flags(self)
        elif self.task not in TASKS:
            raise ConfigError(
                f"--task is one of {', '.join(TASKS)}, or a name: {', '.join(NAMED_TASKS)}. Received: {self.task!r}."
            )
        elif self.text is None:
            raise ConfigError("--text names the column of the text. Received: none.")
        self._check_engines()
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"--val_fraction must be in [0, 1). Received: {self.val_fraction}.")
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"--max_bad_rows is a share from 0 to 1. Received: {self.max_bad_rows}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"--chunk_bytes must be at least 1. Received: {self.chunk_bytes}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"--seed is a whole number of 64 bits. Received: {self.seed}.")
        if not self.label_separator:
            raise ConfigError("--label_separator needs at least one character. Received: ''.")
        if self.labels and self.label is None:
            raise ConfigError("--labels needs --label. Received: a label file, but no label column.")
        if self.task in TASKS and self.task != "classify" and self.label is None:
            raise ConfigError(f"--task {self.task} needs --label. Received: no label column.")

    def _check_engines(self) -> None:
        if self.store not in SUFFIXES:
            raise ConfigError(f"--store is one of {', '.join(SUFFIXES)}. Received: {self.store!r}.")
        if self.engine not in ENGINES:
            raise ConfigError(f"--engine is one of {', '.join(ENGINES)}. Received: {self.engine!r}.")
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError(f"--ray_address goes with --engine ray. Received: --engine {self.engine}.")

    @property
    def roles(self) -> Roles:
        return Roles(
            self.text or "",
            self.text_b,
            self.label,
            self.type,
            self.weight,
            split_names(self.keep),
            parse_filters(self.filter),
            self.group,
        )

    @property
    def encoding(self) -> EncodingSettings:
        max_len = 256 if self.max_len is None else self.max_len
        return EncodingSettings(max_len, self.cased, parse_rules(self.clean), self.text_b is not None)

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
                    nullable=self.roles.nullable,
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
    keep_texts: bool
    store: str


@dataclass(frozen=True)
class EncodeTask:
    """One chunk to one part."""

    group: str
    source: int
    chunk: Chunk
    files: PartFiles
    label_ids: dict[str, int] | None


@dataclass(frozen=True)
class _State:
    settings: WorkerSettings
    encoder: RowEncoder
    fields: FieldReader
    schema: Any  # of the rows in an Arrow store, else None


_state: _State


def _start_worker(settings: WorkerSettings) -> None:
    global _state
    vocabulary = Vocabulary.load(settings.vocab)
    schema = _schema(len(vocabulary), settings.roles, settings.task) if settings.store == "arrow" else None
    _state = _State(settings, RowEncoder(vocabulary, settings.encoding), FieldReader(settings.roles), schema)


def _schema(vocab_size: int, roles: Roles, task: str) -> Any:
    """Columns of an Arrow store."""
    return row_schema(
        vocab_size,
        task if roles.label is not None else None,
        pair=roles.text_b is not None,
        type=roles.type is not None,
        weight=roles.weight is not None,
        keep=tuple(dict.fromkeys(roles.keep)),
    )


def scan_labels(chunk: Chunk) -> set[str]:
    """The raw labels of the usable rows of a chunk."""
    settings = _state.settings
    fields, errors = _state.fields.columns(read_columns(chunk).columns)
    raws = fields.label or ()
    met = {raw for row, raw in enumerate(raws) if row not in errors} if errors else set(raws)
    labels: set[str] = set()
    for raw in met:
        try:
            labels.update(raw_labels(settings.task, raw, settings.label_separator))
        except RowError:
            continue
    return labels


def encode_chunk(task: EncodeTask) -> PartStats:
    """Writes one part, or takes the one that an interrupted run finished."""
    done = task.files.load()
    if done is not None:
        return done
    settings = _state.settings
    rows = read_columns(task.chunk)
    fields, errors = _state.fields.columns(rows.columns)
    labels = None
    if fields.label is not None:
        read_label = LabelReader(settings.task, task.label_ids or {}, settings.label_separator)
        labels, bad_labels = read_label.column(fields.label)
        errors = bad_labels | errors  # of two errors of a row the one of its fields is told
    rejects, numbers = rows.rejects, rows.numbers
    raws = rows.raws() if errors or settings.keep_texts else []
    if errors:
        rejects = sorted([*rejects, *((numbers[row], raws[row], error) for row, error in errors.items())], key=_line)
        chosen = [row not in errors for row in range(len(numbers))]
        fields = fields.select(chosen)
        numbers, raws = list(compress(numbers, chosen)), list(compress(raws, chosen))
        labels = None if labels is None else list(compress(labels, chosen))
    packed = _encode_rows(task.chunk, numbers, fields)
    content, sizes = _row_file(packed, labels, fields)
    table = _table(sizes, packed, labels, numbers, fields, settings)
    contents = {
        SUFFIXES[settings.store]: content,
        ".rows": table.tobytes(),
        ".rejects": _json_lines(map(_reject_line, rejects)),
    }
    if settings.keep_texts:
        contents[".texts"] = _json_lines(raw[:CUT] for raw in raws)
    if settings.task == "multilabel":
        contents[".classes"] = _classes(labels or []).tobytes()
    if fields.group is not None:
        contents[".groups"] = _group_hashes(fields.group, table, settings.hash_key).tobytes()
    return task.files.save(contents, _stats(task.chunk, len(table), rejects))


def _line(reject: Reject) -> int:
    return reject[0]


def _reject_line(reject: Reject) -> dict[str, Any]:
    number, raw, error = reject
    return {"line": number, "reason": error.reason, "detail": error.detail, "text": raw[:CUT]}


def _json_lines(values: Iterable[Any]) -> bytes:
    return b"".join(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE) for value in values)


def _encode_rows(chunk: Chunk, numbers: Sequence[int], fields: FieldColumns) -> PackedRows:
    """The ids of the rows; an error is told with the row that causes it."""
    encoder = _state.encoder
    try:
        return encoder.encode_rows(fields.text, fields.text_b)
    except Exception:
        texts_b = [None] * len(numbers) if fields.text_b is None else fields.text_b
        for number, text, text_b in zip(numbers, fields.text, texts_b, strict=True):
            try:
                encoder.encode(text, text_b)
            except Exception as error:
                error.add_note(f"{chunk.source.path}:{chunk.first_line() + number - 1}: this row was worked on")
                raise
        raise


def _row_file(
    packed: PackedRows, labels: list[Any] | None, fields: FieldColumns
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The rows as their store has them, and the bytes of each; in an Arrow file a row has no place of its own: 0."""
    first_lengths = packed.first_lengths if fields.text_b is not None else None
    ids = (packed.token_ids, packed.lengths, first_lengths)
    others: dict[str, Any] = {
        "labels": labels, "weights": fields.weight, "types": fields.type, "keep": fields.keep or None,
    }  # fmt: skip
    if _state.schema is not None:
        return dump_table(make_table(_state.schema, *ids, **others)), np.zeros(len(packed.lengths), np.int64)
    lines = dump_rows(*ids, **others)
    return b"".join(lines), np.fromiter(map(len, lines), np.int64, len(lines))


def _table(
    sizes: npt.NDArray[np.int64],
    packed: PackedRows,
    labels: list[Any] | None,
    numbers: Sequence[int],
    fields: FieldColumns,
    settings: WorkerSettings,
) -> npt.NDArray[np.void]:
    table = np.zeros(len(sizes), ROW)
    table["size"] = sizes
    table["length"], table["full_length"], table["line"] = packed.lengths, packed.full_lengths, numbers
    if settings.task == "classify" and labels is not None:
        table["label"] = table["label_key"] = labels
    else:
        table["label"] = -1
        table["label_key"] = [zlib.crc32(orjson.dumps(label)) for label in labels or [None] * len(sizes)]
    hashes = _text_hashes(fields.text, fields.text_b, settings.hash_key)
    table["hash"], table["hash2"] = hashes[:, 0], hashes[:, 1]
    return table


def _group_hashes(groups: Sequence[str], table: npt.NDArray[np.void], key: bytes | None) -> npt.NDArray[np.uint64]:
    """Two numbers a row, (rows, 2), of its group; a row without one is a group of its own text."""
    hashes = _text_hashes(groups, [""] * len(groups), key)
    of_text = np.array([not group for group in groups], bool)
    hashes[of_text, 0], hashes[of_text, 1] = table["hash"][of_text], table["hash2"][of_text]
    return hashes


def _classes(labels: Sequence[list[int]]) -> npt.NDArray[np.int32]:
    """(row, class) pairs of rows with several classes."""
    rows = np.repeat(np.arange(len(labels)), [len(classes) for classes in labels])
    return np.stack([rows, np.fromiter(chain.from_iterable(labels), np.int64, len(rows))], axis=1).astype("<i4")


def _stats(chunk: Chunk, rows: int, rejects: list[Reject]) -> PartStats:
    lines = rows + len(rejects)
    first_bad = next((reject for reject in rejects if reject[2].reason not in INTENDED), None)
    return PartStats(
        lines=lines,
        physical_lines=count_lines(chunk.read()) if chunk.source.format == "csv" else lines,
        rows=rows,
        rejected=dict(Counter(error.reason for _, _, error in rejects)),
        first_bad=None if first_bad is None else _reject_line(first_bad),
    )


def _text_hashes(texts: Sequence[str], texts_b: Sequence[str] | None, key: bytes | None) -> npt.NDArray[np.uint64]:
    """Two numbers a row, (rows, 2): the 128 bits of BLAKE2b of its text; 0 where there is no key."""
    if key is None:
        return np.zeros((len(texts), 2), "<u8")
    if texts_b is not None:
        texts = [f"{len(a)}\0{a}{b}" for a, b in zip(texts, texts_b, strict=True)]
    keyed = hashlib.blake2b(digest_size=16, key=key)
    digests = []
    for text in texts:
        digest = keyed.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        digests.append(digest.digest())
    return np.frombuffer(bytearray(b"").join(digests), "<u8").reshape(-1, 2)


# ------------------------------------------------------------------------------------------------- in the parent


def _pool(config: EncodeConfig) -> Callable[..., WorkerPool | RayPool]:
    """What makes the pool of the engine that was chosen."""
    workers = check_workers(config.workers)
    if config.engine == "ray":
        import_ray()
        return partial(RayPool, config.workers, address=config.ray_address)
    return partial(WorkerPool, workers)


def encode(config: EncodeConfig) -> None:
    """Runs the whole job and publishes the data set."""
    pool_of = _pool(config)
    if config.store == "arrow":
        import_pyarrow("--store arrow")
    vocabulary = Vocabulary.load(config.vocab)
    job = _Job.begin(config)
    config, encoding, sources, label_map = job.config, job.encoding, job.sources, job.label_map
    out = Path(config.out)
    settings = WorkerSettings(
        config.vocab,
        encoding,
        config.roles,
        config.task,
        config.label_separator,
        config.seed.to_bytes(8, "little", signed=True) if job.splits or config.dedup else None,
        keep_texts=config.dedup,
        store=config.store,
    )
    with (
        WorkFolder(out, job.fingerprint, config.resume) as work,
        pool_of(_start_worker, (settings,)) as pool,
    ):
        if config.label is not None and config.task != "regression" and label_map is None:
            label_map = _scan(pool, sources, config)
        make_output: MakeOutput = partial(JsonOutput, work.folder)
        if config.store == "arrow":
            make_output = partial(ArrowOutput, work.folder, _schema(len(vocabulary), config.roles, config.task))
        merger = Merger(
            work.folder,
            make_output,
            sources=sources,
            files=work.files,
            num_labels=len(label_map.names) if label_map else 0,
            val_fraction=config.val_fraction if job.splits else 0.0,
            dedup=config.dedup,
            grouped=config.group is not None,
        )
        with merger:
            stats = _encode_parts(pool, sources, config, work, label_map, merger)
            pool.close()
            for entries in job.inputs.values():
                for entry in entries:
                    entry.check()
            totals = {group: _sum_stats(parts) for group, parts in stats.items()}
            _check_rejects(totals, sources, config.max_bad_rows)
            merged = merger.finish()
        manifest = job.manifest(vocabulary, label_map or LabelMap((), {}), stats, totals, merged)
        work.publish(manifest, Path(config.vocab), label_map.names if label_map else None)
    write_summary(out, manifest)
    _tell_of_labels(manifest, given=job.label_map is not None)


def _tell_of_labels(manifest: Manifest, given: bool) -> None:
    """Classes without rows, and a column that looks like another one's."""
    train, names = manifest.parts["train"], manifest.label_names
    if not given and manifest.task == "classify" and len(names) > max(train.rows / 2, MANY_LABELS):
        column = manifest.columns["roles"]["label"]
        logger.warning("%d labels in %d rows: is %r the label column?", len(names), train.rows, column)
    unseen = [name for name, count in train.labels.items() if not count]
    if unseen:
        logger.warning("no row of the train part has the label %s", ", ".join(map(repr, unseen[:10])))


def differences(config: EncodeConfig, manifest: Manifest) -> list[str]:
    """What a data set was made from otherwise than these settings would make it; names and places of files aside."""
    wanted, found = _Job.begin(config).made_from(), _made_from(manifest)
    return [what for what, value in wanted.items() if value != found.get(what)]


def goes_on(config: EncodeConfig) -> bool:
    """Whether a run of these settings may begin with --resume: nothing is left of a run of others."""
    described = WorkFolder.path_of(Path(config.out)) / DESCRIPTION
    return not described.exists() or described.read_text(encoding="utf-8") == _Job.begin(config).fingerprint


def _made_from(manifest: Manifest) -> dict[str, Any]:
    inputs = {group: [(e["bytes"], e["checksum"]) for e in entries] for group, entries in manifest.inputs.items()}
    return {
        "files": inputs,
        "vocabulary": manifest.vocab_checksum,
        "task": manifest.task_name,
        "columns": manifest.columns["roles"],
        **manifest.encoding,
    }


@dataclass(frozen=True)
class _Job:
    """What a run is known by: its settings and the state of its inputs when it began."""

    config: EncodeConfig
    encoding: EncodingSettings
    sources: dict[str, list[Source]]
    inputs: dict[str, list[Input]]
    label_map: LabelMap | None
    task_name: str | None
    vocab_checksum: str

    @classmethod
    def begin(cls, config: EncodeConfig) -> "_Job":
        """Opens the inputs.

        Raises:
            TfbertError: they, or the target, cannot be used.
        """
        task_name = config.task if config.task in NAMED_TASKS else None
        label_map = load_label_map(config.labels) if config.labels else None
        if task_name is not None:
            config, label_map = describe(config)
        encoding, sources = config.encoding, config.sources()
        WorkFolder.check_target(Path(config.out), [source.path for each in sources.values() for source in each])
        inputs = {group: [Input.of(source.path) for source in each] for group, each in sources.items()}
        return cls(config, encoding, sources, inputs, label_map, task_name, file_checksum(config.vocab))

    @property
    def splits(self) -> bool:
        """Whether part of the training rows is set apart."""
        return not self.config.val and self.config.val_fraction > 0

    def made_from(self) -> dict[str, Any]:
        """As `_made_from` tells it of a data set."""
        return {
            "files": {group: [(e.bytes, e.checksum) for e in entries] for group, entries in self.inputs.items()},
            "vocabulary": self.vocab_checksum,
            "task": self.task_name,
            "columns": orjson.loads(orjson.dumps(self.config.roles.to_dict())),
            **orjson.loads(orjson.dumps(self.encoding.to_dict())),
        }

    @property
    def fingerprint(self) -> str:
        """Of what decides the parts: contents of the inputs and every setting but those of the run itself."""
        run_only = (
            "inputs",
            "val",
            "test",
            "out",
            "workers",
            "engine",
            "ray_address",
            "resume",
            "strict",
            "max_bad_rows",
        )
        settings = {name: value for name, value in asdict(self.config).items() if name not in run_only}
        settings |= {"vocab": self.vocab_checksum, "task_name": self.task_name, "max_len": self.encoding.max_len}
        settings["labels"] = file_checksum(self.config.labels) if self.config.labels else None
        inputs = {group: [entry.to_dict() for entry in entries] for group, entries in self.inputs.items()}
        return hashlib.blake2b(orjson.dumps([__version__, settings, inputs]), digest_size=16).hexdigest()

    def manifest(
        self,
        vocabulary: Vocabulary,
        label_map: LabelMap,
        stats: dict[str, list[PartStats]],
        totals: dict[str, "_Totals"],
        merged: Merged,
    ) -> Manifest:
        config = self.config
        inputs = {}
        for group, entries in self.inputs.items():
            lines = Counter[int]()
            for part in stats[group]:
                lines[part.source] += part.lines
            inputs[group] = [entry.to_dict() | {"lines": lines[i]} for i, entry in enumerate(entries)]
        read = {}
        for group, total in totals.items():
            rejected = total.rejected + merged.rejected[group]
            read[group] = {
                "lines": total.lines,
                "kept": total.lines - rejected.total(),
                "rejected": dict(sorted(rejected.items())),
            }
        split = {
            "fraction": config.val_fraction,
            "seed": config.seed,
            "rule": f"hash of the {'text' if config.group is None else 'group'}, stratified by label",
        }
        return Manifest(
            inputs=inputs,
            read=read,
            columns={
                "format": config.format,
                "columns": config.columns,
                "header": config.header,
                "replace_bad_bytes": config.replace_bad_bytes,
                "roles": config.roles.to_dict(),
            },
            encoding=self.encoding.to_dict(),
            vocab_checksum=self.vocab_checksum,
            vocab_size=len(vocabulary),
            pad_id=vocabulary.pad_id,
            task=config.task if config.label is not None else None,
            label_names=list(label_map.names),
            label_map=label_map.ids,
            label_separator=config.label_separator,
            split=split if self.splits else None,
            dedup=config.dedup,
            conflicts=merged.conflicts,
            leaked=merged.leaked,
            parts=merged.named_parts(label_map.names),
            store=config.store,
            task_name=self.task_name,
        )


def _scan(pool: WorkerPool | RayPool, sources: dict[str, list[Source]], config: EncodeConfig) -> LabelMap:
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
                    f"{sorted(met)[:3]}. Is {config.label!r} the label column? Numbers to predict are "
                    "--task regression."
                )
    return sorted_names(met)


def _encode_parts(
    pool: WorkerPool | RayPool,
    sources: dict[str, list[Source]],
    config: EncodeConfig,
    work: "WorkFolder",
    label_map: LabelMap | None,
    merger: Merger,
) -> dict[str, list[PartStats]]:
    stats: dict[str, list[PartStats]] = {group: [] for group in sources}
    label_ids = label_map.ids if label_map else None
    lines = 0

    def tasks() -> Iterator[EncodeTask]:
        for group, group_sources in sources.items():
            cut = ((i, chunk) for i, source in enumerate(group_sources) for chunk in chunks(source, config.chunk_bytes))
            for number, (i, chunk) in enumerate(cut):
                yield EncodeTask(group, i, chunk, work.files(group, number), label_ids)

    with _bar(sources, "encode") as progress:
        for task, part in pool.map(encode_chunk, tasks(), lambda task: task.chunk.place()):
            part = part.at(task.source, _next_line(stats[task.group], task.source, task.chunk.source))
            stats[task.group].append(part)
            lines += part.lines
            if config.strict and part.first_bad:
                raise DataError(f"{_first_bad(part, task.chunk.source)} --strict allows no unusable row.")
            merger.add(task.group, part)
            progress.update(task.chunk.end - task.chunk.start, f"{lines:,} rows")
    return stats


def _first_bad(part: PartStats, source: Source) -> str:
    bad = part.first_bad or {}
    detail = f" ({bad['detail']})" if bad["detail"] else ""
    return f"{source.path}:{part.first_line + bad['line'] - 1}: {bad['reason']}{detail}. Received: {bad['text']!r}."


def _next_line(parts: list[PartStats], source: int, opened: Source) -> int:
    """Line number at which the next part of a source begins."""
    if parts and parts[-1].source == source:
        return parts[-1].first_line + parts[-1].physical_lines
    return opened.header_lines + 1


def _bar(sources: dict[str, list[Source]], what: str) -> Progress:
    return Progress(total_bytes(source for group in sources.values() for source in group), "B", what)


@dataclass(frozen=True)
class _Totals:
    lines: int
    rejected: Counter[str]
    first_bad: PartStats | None


def _sum_stats(parts: list[PartStats]) -> _Totals:
    rejected: Counter[str] = Counter()
    for part in parts:
        rejected.update(part.rejected)
    return _Totals(sum(part.lines for part in parts), rejected, next((part for part in parts if part.first_bad), None))


def _check_rejects(totals: dict[str, _Totals], sources: dict[str, list[Source]], max_bad_rows: float) -> None:
    for group, total in totals.items():
        names = ", ".join(source.path for source in sources[group])
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in total.rejected.most_common())
        first = total.first_bad
        hint = f" The first is {_first_bad(first, sources[group][first.source])}" if first else ""
        if not total.lines:
            logger.warning("the %s part is empty: there are no rows in %s", group, names)
        elif total.rejected.total() == total.lines:
            raise DataError(
                f"There are no usable rows for the {group} part in {names}. Received: {total.lines:,} rows, all "
                f"rejected ({reasons}).{hint}"
            )
        bad = sum(n for reason, n in total.rejected.items() if reason not in INTENDED)
        if bad > max_bad_rows * total.lines:
            raise DataError(
                f"At most {max_bad_rows:.2%} of the rows may be unusable (--max_bad_rows). Received: {bad:,} of "
                f"{total.lines:,} {group} rows ({reasons}). Nothing was published.{hint}"
            )
