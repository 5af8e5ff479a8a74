"""Write what an epoch gave: `log.tsv`, `metrics.jsonl` and TensorBoard."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import orjson
import tensorflow as tf

SPEED = ("learning_rate", "rows_per_s", "tokens_per_s", "padding_share", "wait_share")


class RunLog(keras.callbacks.Callback):
    """One line an epoch in each file; `log.tsv` is always one table with the same columns.

    Each file is replaced whole, without the lines that a run which was stopped left of this and later epochs.

    Args:
        folder: the run folder.
        stage: name of the stage.
        train_names, val_names: names of the numbers of training and validation, in the order of their columns.
        details: gives what goes into `metrics.jsonl` alone (per-class scores), or None.
    """

    def __init__(
        self,
        folder: Path,
        stage: str,
        train_names: Sequence[str],
        val_names: Sequence[str],
        details: Callable[[], dict[str, Any]] | None = None,
    ):
        super().__init__()
        self._folder, self._stage, self._details = folder, stage, details
        self._columns = ["epoch", "stage", *train_names, *SPEED, *val_names]
        self._writer: tf.summary.SummaryWriter | None = None
        self._head = ("\t".join(self._columns) + "\n").encode()

    def on_train_begin(self, logs=None):
        if self._writer is None:  # training begins again where it recovers
            self._writer = tf.summary.create_file_writer(str(self._folder / "events"))
        table = self._folder / "log.tsv"
        if not table.exists():
            _write(table, [self._head])

    def on_epoch_end(self, epoch, logs=None):
        row: dict[str, Any] = {"epoch": epoch + 1, "stage": self._stage} | logs
        line = "\t".join(str(row.get(name, "")) for name in self._columns) + "\n"
        table = self._folder / "log.tsv"
        _write(table, [self._head, *_lines_before(epoch + 1, table, _epoch_of_table), line.encode()])
        more = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | (self._details() if self._details else {})
        metrics = self._folder / "metrics.jsonl"
        added = orjson.dumps(row | more, option=orjson.OPT_APPEND_NEWLINE)  # a NaN would become null
        _write(metrics, [*_lines_before(epoch + 1, metrics, _epoch_of_metrics), added])
        with self._writer.as_default():
            for name, value in logs.items():
                tf.summary.scalar(name, value, step=epoch + 1)
        self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()


def _lines_before(epoch: int, path: Path, epoch_of: Callable[[bytes], int]) -> list[bytes]:
    """The whole lines of the epochs before; anything else is passed over."""
    kept = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the header, or a damaged line
            if line.endswith(b"\n") and epoch_of(line) < epoch:
                kept.append(line)
    return kept


def _epoch_of_table(line: bytes) -> int:
    return int(line.split(b"\t")[0])


def _epoch_of_metrics(line: bytes) -> int:
    return int(orjson.loads(line)["epoch"])


def _write(path: Path, lines: Sequence[bytes]) -> None:
    temporary = path.with_name(f"saving-{path.name}")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(path)
