"""A run folder and rows to labelled rows: in input order, one line a row, at constant memory.

    rows of the input --(windows)--> sorted by length --> batches on the replicas --> back in order --> output

A window's rows are sorted by length for speed; what has been read ahead is bounded, so files of any size pass through.
Windows are cut by row numbers alone. So a job that was interrupted goes on behind any of them, and ends with the bytes
of one that was not: it works on a file in a folder beside the output, which notes after which window it is good.
"""

import hashlib
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tfbert import __version__, report, serving
from tfbert.data.batch import Batch, collate, fill_up, padded_length
from tfbert.data.columns import FieldReader, Roles, split_names
from tfbert.data.dataset import DataSet
from tfbert.data.feed import PREFETCH_BATCHES, FeedSettings, ReadAhead, distribute, place, plan_batches
from tfbert.data.input import Columns, open_input
from tfbert.data.job_folder import JobFolder
from tfbert.data.journal import JournaledFile
from tfbert.data.labels import LabelReader
from tfbert.data.manifest import Input, file_checksum
from tfbert.data.output import check_output
from tfbert.data.plan import EpochPlan
from tfbert.data.rows import Ragged, RowColumns, segment_ids
from tfbert.data.source import RowError, Source, chunks, read_rows
from tfbert.devices import check_devices
from tfbert.errors import ConfigError, DataError
from tfbert.loop.trainer import Scorer
from tfbert.model.checkpoint import load_weights
from tfbert.model.heads import Classifier
from tfbert.progress import Progress
from tfbert.run_folder import RunFolder
from tfbert.strategy import make_strategy, on_cpu, set_precision
from tfbert.text.row_encoder import RowEncoder
from tfbert.text.wordpiece import Vocabulary

logger = logging.getLogger("tfbert")
LABELLED = "labelled"
WINDOW_ROWS = 8192
CHUNK_BYTES = 1 << 20
MAX_BATCH_ROWS = 512  # a device
BATCH_TOKENS = {"CPU": 1024, "GPU": 8192}  # on a CPU, what a layer gives stays in the cache with few
OWN_KEYS = ("row", "label", "labels", "prob", "probs", "value", "error")
NOT_FINITE = "output not finite"
SAVE_S = 5.0
_OURS = re.compile(r"rows(\.saved)?|saving-rows\.saved")


@dataclass(frozen=True, slots=True)
class Row:
    """What is kept of an input row until its line is written: the texts are not."""

    keep: dict[str, str | None]
    label: str | None


@dataclass(frozen=True)
class Position:
    """A place in an input.

    Attributes:
        rows: rows before it.
        chunk: number of the chunk that it is in.
        chunk_rows: rows of that chunk before it.
    """

    rows: int = 0
    chunk: int = 0
    chunk_rows: int = 0


@dataclass
class _Window:
    """Rows under way together: what is known of each, texts until they are encoded, logits as they come.

    Attributes:
        first_row: number of the first row.
        rows: what is kept of each row, or what is wrong with it.
        texts: (text, second text) of the usable rows.
        logits: of each row.
        end: where the next window begins.
    """

    first_row: int
    rows: list[Row | RowError] = field(default_factory=list)
    texts: list[tuple[str, str | None]] = field(default_factory=list)
    logits: list[np.ndarray | None] = field(default_factory=list)
    end: Position = Position()

    def add(self, row: Row | RowError, texts: tuple[str, str | None] | None) -> None:
        self.rows.append(row)
        self.logits.append(None)
        if texts is not None:
            self.texts.append(texts)

    def results(self) -> Iterator[tuple[int, Row | RowError, np.ndarray | None]]:
        """(row number, what is kept of the row or what is wrong with it, logits or None) of every row, in order."""
        for i, (row, logits) in enumerate(zip(self.rows, self.logits, strict=True)):
            yield self.first_row + i, row, logits


class Predictor:
    """A trained classifier, ready for rows; the model is loaded when the first rows come.

    Args:
        run_dir: folder of `train.py classify`.
        devices: auto, cpu:N or gpu:N.
        mixed_precision: none, bfloat16 or float16.
        batch_tokens: padded tokens a batch on each device; by default those of `BATCH_TOKENS`.

    Raises:
        TfbertError: a setting is wrong, or the folder is not one of a run, or was changed.
    """

    def __init__(
        self,
        run_dir: Path | str,
        devices: str = "auto",
        mixed_precision: str = "none",
        batch_tokens: int | None = None,
    ):
        check_settings(devices, mixed_precision, batch_tokens)
        self.run = RunFolder(Path(run_dir))
        self._bert_config, self._model_settings = self.run.model_settings()
        self.manifest = self.run.manifest()
        if self.manifest.task is None:
            raise DataError(f"{run_dir}: the run's data set has no labels.")
        self.task = self.manifest.task
        self.names = self._checked_names()
        vocabulary = Vocabulary.load(self.run.path / "vocab.txt")
        if file_checksum(self.run.path / "vocab.txt") != self.manifest.vocab_checksum:
            raise DataError(f"{self.run.path / 'vocab.txt'}: this is not the vocabulary that the run was trained with.")
        if not self.run.weights.is_file():
            raise DataError(f"{self.run.weights}: there are no weights yet. Received: a run without a finished epoch.")
        self.encoder = RowEncoder(vocabulary, self.manifest.encoding_settings())
        self._devices, self._mixed_precision, self._batch_tokens = devices, mixed_precision, batch_tokens
        self._feed = FeedSettings(pad_id=vocabulary.pad_id, max_len=self.encoder.settings.max_len, length_multiple=4)

    def _checked_names(self) -> list[str]:
        """Label names in the order of the model's outputs."""
        names = self.manifest.label_names
        outputs = 1 if self.task == "regression" else len(names)
        if outputs != self._model_settings["num_outputs"] or self.run.label_names() != names:
            raise DataError(
                f"{self.run.path}: labels.txt, manifest.json and model.json must have the labels that the run was "
                f"trained with. Received: {_short(self.run.label_names())}, {_short(names)}, "
                f"{self._model_settings['num_outputs']} outputs."
            )
        return names

    @cached_property
    def scorer(self) -> Scorer:
        """The model on its devices.

        Raises:
            TfbertError: there are no such devices, or the weights are damaged.
        """
        strategy = make_strategy(self._devices)
        policy = set_precision(self._mixed_precision, strategy)
        with strategy.scope():
            model = Classifier(self._bert_config.blank(), **self._model_settings, dtype=policy)
            load_weights(model, self.run.weights)
        return Scorer(model, strategy)

    def _plan(self, lengths: np.ndarray, window: int) -> EpochPlan:
        strategy = self.scorer.strategy
        replicas, kind = strategy.num_replicas_in_sync, "CPU" if on_cpu(strategy) else "GPU"
        return EpochPlan(
            lengths,
            MAX_BATCH_ROWS * replicas,
            window=window,
            shuffle=False,
            length_multiple=self._feed.length_multiple,
            batch_tokens=(self._batch_tokens or BATCH_TOKENS[kind]) * replicas,
        )

    # -------------------------------------------------------------------------------------------------- raw files

    def windows(self, source: Source, roles: Roles, start: Position = Position()) -> Iterator[_Window]:  # noqa: B008
        """The rows from `start` on with their logits, in order, in windows of `WINDOW_ROWS`."""
        scorer = self.scorer
        with ReadAhead(self._work(source, roles, start), PREFETCH_BATCHES) as work:
            for window, places, batch in work:
                if batch is None:
                    yield window
                    continue
                for i, logits in zip(places.tolist(), scorer.logits(batch), strict=False):  # rows that fill up are last
                    window.logits[i] = logits

    def _work(self, source: Source, roles: Roles, start: Position) -> Iterator[tuple[_Window, np.ndarray, Any]]:
        """(window, places in it, batch on the replicas); behind the batches of a window, one that is None."""
        strategy = self.scorer.strategy
        for window in self._read(source, roles, start):
            for places, batch in self._window_batches(window):
                yield window, places, place(fill_up(batch, strategy.num_replicas_in_sync), strategy)
            yield window, np.zeros(0, np.int64), None

    def _read(self, source: Source, roles: Roles, start: Position) -> Iterator[_Window]:
        read_fields = FieldReader(roles)
        window = _Window(start.rows)
        for number, chunk in enumerate(chunks(source, CHUNK_BYTES)):
            if number < start.chunk:
                continue
            skip = start.chunk_rows if number == start.chunk else 0
            for i, (_, _, fields) in enumerate(islice(read_rows(chunk), skip, None), skip + 1):
                try:
                    if isinstance(fields, RowError):
                        raise fields
                    row = read_fields(fields)
                    window.add(Row(row.keep, row.label), (row.text, row.text_b))
                except RowError as error:
                    window.add(error.with_traceback(None), None)
                if len(window.rows) == WINDOW_ROWS:
                    window.end = Position(window.first_row + WINDOW_ROWS, number, i)
                    yield window
                    window = _Window(window.end.rows)
        if window.rows:
            yield window

    def _window_batches(self, window: _Window) -> Iterator[tuple[np.ndarray, Batch]]:
        places = np.flatnonzero([isinstance(row, Row) for row in window.rows])
        token_ids, segments = self._encoded(window.texts)
        window.texts.clear()
        lengths = token_ids.lengths.astype(np.int32)
        for rows in self._plan(lengths, len(places) or 1).batches():
            length = padded_length(int(lengths[rows].max()), self._feed.length_multiple, self._feed.max_len)
            weights = np.ones(len(rows), np.float32)
            chosen = RowColumns(
                token_ids.select(rows), None if segments is None else segments.select(rows), [], weights
            )
            yield places[rows], collate(chosen, length, self._feed.pad_id) | {"weights": weights}

    def _encoded(self, texts: list[tuple[str, str | None]]) -> tuple[Ragged, Ragged | None]:
        """Token ids and, for pairs, segment ids."""
        pair = self.encoder.settings.pair
        packed = self.encoder.encode_rows([a for a, _ in texts], [b or "" for _, b in texts] if pair else None)
        token_ids = Ragged.joined(packed.token_ids, packed.lengths)
        if not pair:
            return token_ids, None
        return token_ids, Ragged.joined(segment_ids(packed.first_lengths, packed.lengths), packed.lengths)

    def output_row(self, number: int, row: Row | RowError, logits: np.ndarray | None) -> dict[str, Any]:
        """The line of a row, as plain values."""
        if isinstance(row, RowError):
            return {"row": number, "error": str(row)}
        kept = {(f"input_{name}" if name in OWN_KEYS else name): value for name, value in row.keep.items()}
        if logits is None or not np.isfinite(logits).all():
            return {"row": number, "error": NOT_FINITE} | kept
        if self.task == "regression":
            return {"row": number, "value": float(logits[0])} | kept
        if self.task == "multilabel":
            shares = report.sigmoid(logits)
            chosen = [name for name, logit in zip(self.names, logits, strict=True) if logit > 0]
            return {"row": number, "labels": chosen, "probs": _named(self.names, shares)} | kept
        shares = report.softmax(logits)
        best = int(logits.argmax())
        return {
            "row": number,
            "label": self.names[best],
            "prob": float(shares[best]),
            "probs": _named(self.names, shares),
        } | kept

    def predict_file(
        self,
        path: Path | str,
        output: Path | str,
        columns: Columns = Columns(),  # noqa: B008
        resume: bool = True,
    ) -> dict[str, int]:
        """Labels a file; the output appears under its name only when it is complete.

        Args:
            path: the file.
            output: where the lines go.
            columns: how to read the file.
            resume: go on with an interrupted job of the same file, run and settings; False begins again.

        Returns:
            Rows by outcome: `labelled`, or the reason why a row could not be used.

        Raises:
            DataError: an interrupted job was of something else, or another job is writing the same output.
        """
        output = Path(output)
        source, roles = open_input(self.manifest, path, columns)
        check_output(output, [source.path], "--output")
        entry = Input.of(source.path)
        job = JobFolder(
            output.with_name(f".{output.name}.predict"), output, "--output", self._fingerprint(entry, columns), resume,
            _OURS, go_on="the same command goes on from it", begin_again="Run with --no_resume",
        )  # fmt: skip
        with job, JournaledFile(job.folder / "rows", SAVE_S) as file, Progress(None, " rows", "predict") as progress:
            saved = file.values or {"position": {}, "counts": {}}
            start, counts = Position(**saved["position"]), Counter(saved["counts"])
            if start.rows:
                logger.info("going on behind row %d of %s", start.rows, source.path)
                progress.update(start.rows)
            for window in self.windows(source, roles, start):
                file.write(b"".join(self._output_line(*result, counts) for result in window.results()))
                if window.end.rows:
                    file.save_sometimes({"position": asdict(window.end), "counts": counts})
                progress.update(len(window.rows))
            entry.check()
            file.publish(output)
        return dict(counts)

    def _output_line(self, number: int, row: Row | RowError, logits: np.ndarray | None, counts: Counter[str]) -> bytes:
        values = self.output_row(number, row, logits)
        if isinstance(row, RowError):
            counts[row.reason] += 1
        else:
            counts["not finite" if "error" in values else LABELLED] += 1
        return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)

    def _fingerprint(self, entry: Input, columns: Columns) -> str:
        """Of all that decides the bytes of an output."""
        names = ("manifest.json", "model.json", "bert_config.json", "vocab.txt", self.run.weights.name)
        files = {name: file_checksum(self.run.path / name) for name in names}
        settings = [asdict(columns), self._mixed_precision, self._batch_tokens, WINDOW_ROWS, CHUNK_BYTES]
        devices = list(self.scorer.strategy.extended.worker_devices)
        described = [__version__, entry.bytes, entry.checksum, files, settings, devices]
        return hashlib.blake2b(orjson.dumps(described), digest_size=16).hexdigest()

    # --------------------------------------------------------------------------------------------------- evaluation

    def evaluate_file(self, path: Path | str, columns: Columns = Columns()) -> dict[str, Any]:  # noqa: B008
        """Scores of a labelled raw file; rows that cannot be used are counted by reason.

        Raises:
            DataError: no row can be used.
        """
        source, roles = open_input(self.manifest, path, columns, with_label=True)
        if roles.label is None:
            raise ConfigError("Evaluation needs labels. Received: no label column. Give --label.")
        read_label = LabelReader(self.task, self.manifest.label_map, self.manifest.label_separator)
        scores = report.make_scores(self.task, self.names)
        rejected: dict[str, int] = {}
        labels: list[Any] = []
        outputs: list[Any] = []
        with Progress(None, " rows", "evaluate") as progress:
            results = (result for window in self.windows(source, roles) for result in window.results())
            for _, row, logits in results:
                try:
                    if isinstance(row, RowError):
                        raise row
                    labels.append(read_label(row.label or ""))
                    outputs.append(logits)
                except RowError as error:
                    rejected[error.reason] = rejected.get(error.reason, 0) + 1
                if len(labels) == WINDOW_ROWS:
                    self._score(scores, labels, outputs, rejected)
                progress.update(1)
        self._score(scores, labels, outputs, rejected)
        return _checked(scores.result() | {"rejected": rejected}, path)

    def _score(self, scores: report.Scores, labels: list[Any], outputs: list[Any], rejected: dict[str, int]) -> None:
        if labels:
            array = np.array(labels) if self.task != "multilabel" else np.zeros((len(labels), len(self.names)))
            if self.task == "multilabel":
                for i, ids in enumerate(labels):
                    array[i, ids] = 1
            _update(scores, array, np.stack(outputs), rejected)
            labels.clear()
            outputs.clear()

    def evaluate_part(self, data: DataSet, part: str) -> dict[str, Any]:
        """Scores of a part of a data set that was encoded like the run's own.

        Raises:
            DataError: vocabulary, encoding or labels are not those of the run, or there are no rows.
        """
        self._check_same(data)
        store = data.store(part)
        data.verify(only=part)
        if self.task == "classify":
            store.check_labels(len(self.names))
        feed = replace(
            self._feed,
            task=self.task,
            num_classes=len(self.names),
            vocab_size=self._bert_config.vocab_size,
            type_vocab_size=self._bert_config.type_vocab_size,
        )
        scores = report.make_scores(self.task, self.names)
        rejected: dict[str, int] = {}
        plan, strategy = self._plan(store.lengths, WINDOW_ROWS), self.scorer.strategy
        batches = plan_batches(store, plan, feed, strategy.num_replicas_in_sync)
        with distribute(batches, strategy) as stream, Progress(plan.num_batches, " batches", "evaluate") as progress:
            for rows, batch in zip(plan.batches(), stream, strict=True):
                logits = self.scorer.logits(batch)[: len(rows)]
                parts = strategy.experimental_local_results(batch["labels"])
                _update(scores, np.concatenate([p.numpy() for p in parts])[: len(rows)], logits, rejected)
                progress.update(1)
        return _checked(scores.result() | {"rejected": rejected}, store.path)

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
                    f"{data.path}: the data set must be encoded like the run's own. Received: {what} "
                    f"{_short(received)}, not {_short(wanted)}."
                )


def _short(value: Any, limit: int = 150) -> str:
    text = f"{len(value)} labels {value}" if isinstance(value, list) else str(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _update(scores: report.Scores, labels: np.ndarray, logits: np.ndarray, rejected: dict[str, int]) -> None:
    """Adds rows to the scores; those without a usable output are counted as rejected."""
    finite = np.isfinite(logits).all(axis=1)
    scores.update(labels[finite], logits[finite])
    if not finite.all():
        rejected[NOT_FINITE] = rejected.get(NOT_FINITE, 0) + int((~finite).sum())


def _checked(result: dict[str, Any], path: Path | str) -> dict[str, Any]:
    if not result["rows"]:
        raise DataError(f"{path}: there must be labelled rows to score. Received: none, rejected {result['rejected']}.")
    return result


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
    resume: bool = True
    """Go on with an interrupted job of the same input, run and settings; --no_resume begins again."""
    format: str | None = None
    """auto, tsv, csv, jsonl or text. Default: as the run's data set was read."""
    columns: str | None = None
    """Names of the columns, joined by commas, for files without a header line."""
    header: bool | None = None
    """Whether the first line is a header. Default: as the run's data set was read; where --text or --columns is given,
    exactly when a column is named and --columns is not given."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N or gpu:N."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    batch_tokens: int | None = None
    """Padded tokens a batch on each device. Default: 1024 on CPUs, 8192 on GPUs."""

    def __post_init__(self) -> None:
        check_settings(self.devices, self.mixed_precision, self.batch_tokens)


def check_settings(devices: str, mixed_precision: str, batch_tokens: int | None) -> None:
    """Refuses settings before anything is read.

    Raises:
        ConfigError: names the setting.
    """
    check_devices(devices, mixed_precision)
    if batch_tokens is not None and batch_tokens < 1:
        raise ConfigError(f"--batch_tokens must be at least 1. Received: {batch_tokens}.")


def _columns(config: "RunConfig | EvaluateConfig", label: str | None = None, keep: tuple[str, ...] = ()) -> Columns:
    names = split_names(config.columns) or None
    return Columns(config.text, config.text_b, label, keep, config.format, names, config.header)


def run(config: RunConfig) -> None:
    """Labels a file."""
    predictor = Predictor(config.run_dir, config.devices, config.mixed_precision, config.batch_tokens)
    columns = _columns(config, keep=split_names(config.keep))
    counts = predictor.predict_file(config.input, config.output, columns, config.resume)
    labelled = counts.pop(LABELLED, 0)
    logger.info("%d rows labelled in %s", labelled, config.output)
    if counts:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
        logger.warning("%d rows could not be used (%s); their lines hold an error", sum(counts.values()), reasons)


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
    """Whether the first line is a header. Default: as the run's data set was read; where --text or --columns is given,
    exactly when a column is named and --columns is not given."""
    json: bool = False
    """Write one JSON object to standard output."""
    report: str | None = None
    """Folder to write scores.json, confusion.png and calibration.png to."""
    devices: str = "auto"
    """auto (all GPUs, else the CPU), cpu:N or gpu:N."""
    mixed_precision: str = "none"
    """none, bfloat16 or float16."""
    batch_tokens: int | None = None
    """Padded tokens a batch on each device. Default: 1024 on CPUs, 8192 on GPUs."""

    def __post_init__(self) -> None:
        check_settings(self.devices, self.mixed_precision, self.batch_tokens)


def evaluate(config: EvaluateConfig) -> None:
    """Scores a run and writes the scores to standard output."""
    predictor = Predictor(config.run_dir, config.devices, config.mixed_precision, config.batch_tokens)
    if config.report:
        Path(config.report).mkdir(parents=True, exist_ok=True)  # now, and not when all rows are scored
    folder, colon, part = config.input.rpartition(":")
    if colon and Path(folder).is_dir():
        result = predictor.evaluate_part(DataSet.open(folder), part)
    elif Path(config.input).is_dir():
        parts = ", ".join(f"{config.input}:{name}" for name in DataSet.open(config.input).parts)
        raise ConfigError(f"A data set is scored a part at a time. Received: {config.input}. Give one of {parts}.")
    else:
        result = predictor.evaluate_file(config.input, _columns(config, label=config.label))
    if config.report:
        report.write_report(Path(config.report), result)
    rejected = sum(result["rejected"].values())
    if rejected:
        logger.info("%d rows could not be used: %s", rejected, result["rejected"])
    if config.json:
        sys.stdout.write(orjson.dumps(result).decode() + "\n")
    else:
        sys.stdout.write(report.text_report(result) + "\n")


@dataclass(frozen=True)
class ExportConfig:
    """Write a run's classifier as a file that others serve."""

    run_dir: str
    """Folder of `train.py classify`."""
    output: str
    """Folder to make: the model, labels.txt, vocab.txt and the configs."""
    format: str = "savedmodel"
    """savedmodel (TensorFlow Serving), or onnx (needs `pip install tf2onnx onnx`)."""
    int8: bool = False
    """Weights of the products as 8-bit integers, for onnx (needs onnxruntime): smaller, and less exact."""

    def __post_init__(self) -> None:
        if self.format not in serving.FORMATS:
            raise ConfigError(f"--format is one of {', '.join(serving.FORMATS)}. Received: {self.format!r}.")
        if self.int8 and self.format == "savedmodel":
            raise ConfigError("--int8 is for onnx. Received: savedmodel. Leave it out.")


def export(config: ExportConfig) -> None:
    """Writes the model of a run."""
    predictor = Predictor(config.run_dir, "cpu:1")
    model, pad_id = predictor.scorer.model, predictor.manifest.pad_id
    serving.export(predictor.run, model, predictor.task, pad_id, config.format, Path(config.output), config.int8)
    logger.info("%s written to %s", config.format, config.output)
