"""A run folder and rows to labelled rows: in input order, one line a row, at constant memory.

    rows of the input --(windows)--> sorted by length --> batches on the replicas --> back in order --> output

A window's rows are sorted by length for speed; what has been read ahead is bounded, so files of any size pass through.
"""

import logging
import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tfbert import report
from tfbert.data.batch import Batch, collate, fill_up, padded_length
from tfbert.data.columns import FieldReader, Roles, RowFields, split_names
from tfbert.data.dataset import DataSet
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.labels import LabelReader
from tfbert.data.manifest import Manifest, file_checksum
from tfbert.data.plan import EpochPlan
from tfbert.data.record import Record
from tfbert.data.source import RowError, Source, chunks, open_source, read_rows
from tfbert.errors import ConfigError, DataError
from tfbert.model.checkpoint import load_weights
from tfbert.model.heads import Classifier
from tfbert.progress import Progress
from tfbert.run_folder import RunFolder
from tfbert.strategy import make_strategy, set_precision
from tfbert.text.row_encoder import RowEncoder
from tfbert.text.wordpiece import Vocabulary
from tfbert.trainer import Scorer

logger = logging.getLogger("tfbert")
WINDOW_ROWS = 8192
CHUNK_BYTES = 1 << 20
OWN_KEYS = ("row", "label", "labels", "prob", "probs", "value", "error")


@dataclass(frozen=True)
class Columns:
    """How to read an input; None takes what the data set of the run was read with.

    Attributes:
        text, text_b, label: columns.
        keep: columns to copy into the output.
        format, names, header: as in `preprocess encode`.
    """

    text: str | None = None
    text_b: str | None = None
    label: str | None = None
    keep: tuple[str, ...] = ()
    format: str | None = None
    names: tuple[str, ...] | None = None
    header: bool | None = None


@dataclass
class _Window:
    """Rows under way together: errors and encoded records by place, and their logits as they come."""

    first_row: int
    fields: list[RowFields | RowError] = field(default_factory=list)
    records: list[Record | None] = field(default_factory=list)
    logits: list[np.ndarray | None] = field(default_factory=list)
    open_rows: int = 0


class Predictor:
    """A trained classifier, ready for rows.

    Args:
        run_dir: folder of `train.py classify`.
        devices: auto, cpu:N or gpu:N.
        mixed_precision: none, bfloat16 or float16.
        batch_tokens: padded tokens a batch on each device.

    Raises:
        TfbertError: the folder is not a finished or running run, or its weights are damaged.
    """

    def __init__(
        self, run_dir: Path | str, devices: str = "auto", mixed_precision: str = "none", batch_tokens: int = 8192
    ):
        self.run = RunFolder(Path(run_dir))
        bert_config, model_settings = self.run.model_settings()
        self.manifest: Manifest = self.run.manifest()
        self.names = self.run.label_names()
        if self.manifest.task is None:
            raise DataError(f"{run_dir}: the run's data set has no labels.")
        self.task = self.manifest.task
        vocabulary = Vocabulary.load(self.run.path / "vocab.txt")
        if file_checksum(self.run.path / "vocab.txt") != self.manifest.vocab_checksum:
            raise DataError(f"{self.run.path / 'vocab.txt'}: this is not the vocabulary that the run was trained with.")
        self.encoder = RowEncoder(vocabulary, self.manifest.encoding_settings())
        self.strategy = make_strategy(devices)
        policy = set_precision(mixed_precision, self.strategy)
        with self.strategy.scope():
            self.model = Classifier(bert_config, **model_settings, dtype=policy)
            load_weights(self.model, self.run.weights)
        self._scorer = Scorer(self.model, self.strategy)
        replicas = self.strategy.num_replicas_in_sync
        self._batch_tokens = batch_tokens * replicas
        self._batch_rows = 512 * replicas
        self._feed = FeedSettings(pad_id=vocabulary.pad_id, max_len=self.encoder.settings.max_len, length_multiple=4)

    # -------------------------------------------------------------------------------------------------- raw files

    def open(self, path: Path | str, columns: Columns, with_label: bool = False) -> tuple[Source, Roles]:
        """Opens an input by the run's column settings, as far as `columns` does not say otherwise."""
        known = self.manifest.columns
        trained = Roles.from_dict(known["roles"])
        roles = Roles(
            columns.text or trained.text,
            columns.text_b or trained.text_b,
            (columns.label or trained.label) if with_label else None,
            keep=columns.keep,
        )
        if roles.text_b is not None and trained.text_b is None:
            raise ConfigError("The run was trained on single texts. Received: --text_b. Leave it out.")
        if roles.text_b is None and trained.text_b is not None:
            raise ConfigError("The run was trained on pairs. Received: no --text_b.")
        trained_names = split_names(known["columns"]) or None
        source = open_source(
            path,
            roles.wanted,
            format=columns.format or ("auto" if known["format"] == "auto" else _format_for(path, known["format"])),
            columns=columns.names or trained_names,
            header=known["header"] if columns.header is None and columns.text is None else columns.header,
            replace_bad_bytes=known["replace_bad_bytes"],
        )
        if columns.names is None and trained_names is not None:  # the file may lack columns behind the text
            source = replace(source, num_fields=None)
        return source, roles

    def rows(self, source: Source, roles: Roles) -> Iterator[tuple[int, RowFields | RowError, np.ndarray | None]]:
        """(row number, fields or what is wrong, logits or None) of every row, in order."""
        waiting: deque[_Window] = deque()
        # what each batch under way is: its window and the places of its rows there
        batches_under_way: deque[tuple[_Window, np.ndarray]] = deque()

        def global_batches() -> Iterator[Batch]:
            for window in self._windows(source, roles):
                waiting.append(window)
                yield from self._window_batches(window, batches_under_way)

        stream = distribute(global_batches(), self.strategy)
        for batch in stream:
            logits = self._scorer.logits(batch)
            window, places = batches_under_way.popleft()
            for place, row in zip(places.tolist(), logits, strict=False):
                window.logits[place] = row
            window.open_rows -= len(places)
            while waiting and waiting[0].open_rows == 0:
                yield from self._finished(waiting.popleft())
        while waiting:
            yield from self._finished(waiting.popleft())

    @staticmethod
    def _finished(window: _Window) -> Iterator[tuple[int, RowFields | RowError, np.ndarray | None]]:
        for i, (fields, logits) in enumerate(zip(window.fields, window.logits, strict=True)):
            yield window.first_row + i, fields, logits

    def _windows(self, source: Source, roles: Roles) -> Iterator[_Window]:
        read_fields = FieldReader(roles)
        window = _Window(0)
        for chunk in chunks(source, CHUNK_BYTES):
            for _, _, fields in read_rows(chunk):
                self._add(window, fields, read_fields)
                if len(window.fields) == WINDOW_ROWS:
                    yield window
                    window = _Window(window.first_row + WINDOW_ROWS)
        if window.fields:
            yield window

    def _add(self, window: _Window, fields: list[str] | RowError, read_fields: FieldReader) -> None:
        record = None
        row: RowFields | RowError
        if isinstance(fields, RowError):
            row = fields
        else:
            row = read_fields(fields)
            token_ids, segment_ids, _ = self.encoder.encode(row.text, row.text_b)
            record = Record(token_ids, segment_ids)
            window.open_rows += 1
        window.fields.append(row)
        window.records.append(record)
        window.logits.append(None)

    def _window_batches(self, window: _Window, under_way: deque[tuple[_Window, np.ndarray]]) -> Iterator[Batch]:
        places = np.array([i for i, record in enumerate(window.records) if record is not None], np.int64)
        lengths = np.array([len(window.records[i].token_ids) for i in places], np.int32)  # type: ignore[union-attr]
        plan = EpochPlan(
            lengths,
            self._batch_rows,
            window=len(places) or 1,
            shuffle=False,
            length_multiple=self._feed.length_multiple,
            batch_tokens=self._batch_tokens,
        )
        for rows in plan.batches():
            records = [window.records[i] for i in places[rows]]
            length = padded_length(int(lengths[rows].max()), self._feed.length_multiple, self._feed.max_len)
            batch = collate(records, length, self._feed.pad_id)  # type: ignore[arg-type]
            batch["weights"] = np.ones(len(rows), np.float32)
            under_way.append((window, places[rows]))
            yield fill_up(batch, self.strategy.num_replicas_in_sync)
        for place in places:
            window.records[place] = None

    def output_row(self, number: int, fields: RowFields | RowError, logits: np.ndarray | None) -> dict[str, Any]:
        """The line of a row, as plain values."""
        if isinstance(fields, RowError):
            return {"row": number, "error": str(fields)}
        kept = {(f"input_{name}" if name in OWN_KEYS else name): value for name, value in fields.keep.items()}
        if logits is None or not np.isfinite(logits).all():
            return {"row": number, "error": "the model's output is not finite"} | kept
        if self.task == "regression":
            return {"row": number, "value": float(logits[0])} | kept
        if self.task == "multilabel":
            shares = report.sigmoid(logits)
            chosen = [name for name, share in zip(self.names, shares, strict=True) if share > 0.5]
            return {"row": number, "labels": chosen, "probs": _named(self.names, shares)} | kept
        shares = report.softmax(logits)
        best = int(shares.argmax())
        return {
            "row": number,
            "label": self.names[best],
            "prob": float(shares[best]),
            "probs": _named(self.names, shares),
        } | kept

    def predict_file(self, path: Path | str, output: Path | str, columns: Columns = Columns()) -> dict[str, int]:  # noqa: B008
        """Labels a file; the output appears under its name only when it is complete.

        Returns:
            Number of rows, and of rows that could not be used.
        """
        output = Path(output)
        if not output.absolute().parent.is_dir():
            raise DataError(f"--output must lie in an existing folder. Received: {output}.")
        if output.is_dir():
            raise DataError(f"--output names a file. Received: {output}, a folder.")
        source, roles = self.open(path, columns)
        temporary = output.with_name(output.name + ".part")
        counts = {"rows": 0, "errors": 0}
        try:
            with temporary.open("wb") as file, Progress(None, " rows", "predict") as progress:
                for number, fields, logits in self.rows(source, roles):
                    row = self.output_row(number, fields, logits)
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                    counts["rows"] += 1
                    counts["errors"] += "error" in row
                    progress.update(1)
            temporary.replace(output)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return counts

    # --------------------------------------------------------------------------------------------------- evaluation

    def evaluate_file(self, path: Path | str, columns: Columns = Columns()) -> dict[str, Any]:  # noqa: B008
        """Scores of a labelled raw file; rows that cannot be used are counted by reason."""
        source, roles = self.open(path, columns, with_label=True)
        if roles.label is None:
            raise ConfigError("Evaluation needs labels. Received: no label column. Give --label.")
        read_label = LabelReader(self.task, self.manifest.label_map, self.manifest.label_separator)
        scores = report.make_scores(self.task, self.names)
        rejected: dict[str, int] = {}
        labels, outputs = [], []
        for _, fields, logits in self.rows(source, roles):
            try:
                if isinstance(fields, RowError):
                    raise fields
                labels.append(read_label(fields.label or ""))
                outputs.append(logits)
            except RowError as error:
                rejected[error.reason] = rejected.get(error.reason, 0) + 1
            if len(labels) == WINDOW_ROWS:
                self._score(scores, labels, outputs)
        self._score(scores, labels, outputs)
        return scores.result() | {"rejected": rejected}

    def _score(self, scores: report.Scores, labels: list[Any], outputs: list[Any]) -> None:
        if labels:
            array = np.array(labels) if self.task != "multilabel" else np.zeros((len(labels), len(self.names)))
            if self.task == "multilabel":
                for i, ids in enumerate(labels):
                    array[i, ids] = 1
            scores.update(array, np.stack(outputs))
            labels.clear()
            outputs.clear()

    def evaluate_part(self, data: DataSet, part: str) -> dict[str, Any]:
        """Scores of a part of a data set that was encoded like the run's own.

        Raises:
            DataError: vocabulary, encoding or labels are not those of the run.
        """
        self._check_same(data)
        store = data.store(part)
        feed = FeedSettings(
            self._feed.pad_id,
            self._feed.max_len,
            self._feed.length_multiple,
            task=self.task,
            num_classes=len(self.names),
        )
        if self.task == "classify":
            store.check_labels(len(self.names))
        plan = EpochPlan(
            store.lengths,
            self._batch_rows,
            window=WINDOW_ROWS,
            shuffle=False,
            length_multiple=feed.length_multiple,
            batch_tokens=self._batch_tokens,
        )
        scores = report.make_scores(self.task, self.names)
        stream = distribute(plan_batches(store, plan, feed, self.strategy.num_replicas_in_sync), self.strategy)
        with Progress(plan.num_batches, " batches", "evaluate") as progress:
            for rows in plan.batches():
                batch = next(stream)
                logits = self._scorer.logits(batch)[: len(rows)]
                parts = self.strategy.experimental_local_results(batch["labels"])
                scores.update(np.concatenate([p.numpy() for p in parts])[: len(rows)], logits)
                progress.update(1)
        return scores.result() | {"rejected": {}}

    def _check_same(self, data: DataSet) -> None:
        other, own = data.manifest, self.manifest
        if other is None:
            raise DataError(
                f"{data.path}: evaluation needs a data set with a manifest. Encode it, or give the raw file."
            )
        for what, received, wanted in (
            ("vocabulary", other.vocab_checksum, own.vocab_checksum),
            ("encoding", other.encoding, own.encoding),
            ("task", other.task, own.task),
            ("labels", other.label_names, own.label_names),
        ):
            if received != wanted:
                raise DataError(
                    f"{data.path}: the data set must be encoded like the run's own. Received: another {what} "
                    f"({_short(received)}, not {_short(wanted)})."
                )


def _short(value: Any, limit: int = 150) -> str:
    text = f"{len(value)} labels {value}" if isinstance(value, list) else str(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _format_for(path: Path | str, format: str) -> str:
    """The run's format, unless the file's own name tells of another."""
    return "auto" if Path(path).suffix in (".tsv", ".csv", ".jsonl", ".json") else format


def _named(names: Sequence[str], shares: np.ndarray) -> dict[str, float]:
    return dict(zip(names, shares.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------ the commands


@dataclass(frozen=True)
class RunConfig:
    """Label the rows of a file."""

    run_dir: str
    """Folder of `train.py classify`."""
    input: str
    """File of rows: tsv, csv, jsonl or text, also .gz. Needs no labels."""
    output: str
    """JSON-lines file to write: one line a row, in input order."""
    text: str | None = None
    """Column of the text. Default: as the run's data set was read."""
    text_b: str | None = None
    """Column of the second text of a pair. Default: as the run's data set was read."""
    keep: str | None = None
    """Columns to copy into the output, joined by commas."""
    format: str | None = None
    """auto, tsv, csv, jsonl or text. Default: as the run's data set was read."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N or gpu:N."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    batch_tokens: int = 8192
    """Padded tokens a batch on each device."""

    def chosen_columns(self, label: str | None = None) -> Columns:
        return Columns(
            self.text,
            self.text_b,
            label,
            split_names(self.keep),
            self.format,
            split_names(self.columns) or None,
            self.header,
        )

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ConfigError(f"--batch_tokens must be at least 1. Received: {self.batch_tokens}.")


def run(config: RunConfig) -> None:
    """Labels a file."""
    predictor = Predictor(config.run_dir, config.devices, config.mixed_precision, config.batch_tokens)
    counts = predictor.predict_file(config.input, config.output, config.chosen_columns())
    logger.info("%d rows labelled, %d of them with an error, in %s", counts["rows"], counts["errors"], config.output)


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a run on labelled rows."""

    run_dir: str
    """Folder of `train.py classify`."""
    input: str
    """Labelled raw file, or a part of a data set as DATA:test."""
    text: str | None = None
    """Column of the text. Default: as the run's data set was read."""
    text_b: str | None = None
    """Column of the second text of a pair. Default: as the run's data set was read."""
    label: str | None = None
    """Column of the label. Default: as the run's data set was read."""
    format: str | None = None
    """auto, tsv, csv, jsonl or text. Default: as the run's data set was read."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: exactly when a column is named and --columns is not given."""
    json: bool = False
    """Write one JSON object to standard output."""
    report: str | None = None
    """Folder to write scores.json, confusion.png and calibration.png to."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N or gpu:N."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    batch_tokens: int = 8192
    """Padded tokens a batch on each device."""


def evaluate(config: EvaluateConfig) -> None:
    """Scores a run and writes the scores to standard output."""
    predictor = Predictor(config.run_dir, config.devices, config.mixed_precision, config.batch_tokens)
    folder, colon, part = config.input.rpartition(":")
    if colon and Path(folder).is_dir():
        result = predictor.evaluate_part(DataSet.open(folder), part)
    else:
        columns = Columns(
            config.text,
            config.text_b,
            config.label,
            (),
            config.format,
            split_names(config.columns) or None,
            config.header,
        )
        result = predictor.evaluate_file(config.input, columns)
    if config.report:
        report.write_report(Path(config.report), result)
    rejected = sum(result["rejected"].values())
    if rejected:
        logger.info("%d rows could not be used: %s", rejected, result["rejected"])
    if config.json:
        sys.stdout.write(orjson.dumps(_finite(result)).decode() + "\n")
    else:
        sys.stdout.write(report.text_report(result) + "\n")


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
