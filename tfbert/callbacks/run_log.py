"""Write what an epoch gave: `log.tsv`, `metrics.jsonl` and TensorBoard."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import orjson
import tensorflow as tf

from tfbert.disk import atomic_file

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

    def on_train_begin(self, logs=None):
        if self._writer is None:  # training begins again where it recovers
            self._writer = tf.summary.create_file_writer(str(self._folder / "events"))
        start_table(self._folder / "log.tsv", self._columns)

    def on_epoch_end(self, epoch, logs=None):
        row: dict[str, Any] = {"epoch": epoch + 1, "stage": self._stage} | logs
        more = self._details() if self._details else {}
        add_line(self._folder / "log.tsv", self._folder / "metrics.jsonl", self._columns, row, more)
        with self._writer.as_default():
            for name, value in logs.items():
                tf.summary.scalar(name, value, step=epoch + 1)
        self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()


def start_table(table: Path, columns: Sequence[str]) -> None:
    """Writes the head of a table that is not there."""
    if not table.exists():
        _write(table, [_head(columns)])


def add_line(
    table: Path, metrics: Path, columns: Sequence[str], row: Mapping[str, Any], more: Mapping[str, Any]
) -> None:
    """Adds a line to a table and to a file of JSON lines, without those of this and later epochs or steps.

    Args:
        table: with a head and tabs.
        metrics: of JSON lines.
        columns: of the table; the first is the whole number that the lines are in order of.
        row: by column; may lack some.
        more: goes to the JSON line alone.
    """
    key = columns[0]
    line = "\t".join(str(row.get(name, "")) for name in columns) + "\n"
    before = _lines_before(row[key], table, lambda line: int(line.split(b"\t")[0]))
    _write(table, [_head(columns), *before, line.encode()])
    timed = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | dict(more)
    added = orjson.dumps(dict(row) | timed, option=orjson.OPT_APPEND_NEWLINE)  # a NaN would become null
    _write(metrics, [*_lines_before(row[key], metrics, lambda line: int(orjson.loads(line)[key])), added])


def _head(columns: Sequence[str]) -> bytes:
    return ("\t".join(columns) + "\n").encode()


def _lines_before(number: int, path: Path, number_of: Callable[[bytes], int]) -> list[bytes]:
    """The whole lines of the epochs or steps before; anything else is passed over."""
    kept = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the header, or a damaged line
            if line.endswith(b"\n") and number_of(line) < number:
                kept.append(line)
    return kept


def _write(path: Path, lines: Sequence[bytes]) -> None:
    with atomic_file(path, held=True) as file:
        file.writelines(lines)
