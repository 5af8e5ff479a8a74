"""Write what an epoch gave: `log.tsv`, `metrics.jsonl` and TensorBoard."""

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

    def on_train_begin(self, logs=None):
        self._writer = tf.summary.create_file_writer(str(self._folder / "events"))
        table = self._folder / "log.tsv"
        if not table.exists():
            table.write_text("\t".join(self._columns) + "\n", encoding="utf-8")

    def on_epoch_end(self, epoch, logs=None):
        self._forget_from(epoch + 1)
        row: dict[str, Any] = {"epoch": epoch + 1, "stage": self._stage} | logs
        with (self._folder / "log.tsv").open("a", encoding="utf-8") as file:
            file.write("\t".join(str(row.get(name, "")) for name in self._columns) + "\n")
        more = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | (self._details() if self._details else {})
        with (self._folder / "metrics.jsonl").open("ab") as lines:
            lines.write(orjson.dumps(row | more, option=orjson.OPT_APPEND_NEWLINE))  # a NaN would become null
        with self._writer.as_default():
            for name, value in logs.items():
                tf.summary.scalar(name, value, step=epoch + 1)
        self._writer.flush()

    def _forget_from(self, epoch: int) -> None:
        """Drops the lines of this and later epochs, which a run that was stopped may have left."""
        table = self._folder / "log.tsv"
        head, *rows = table.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [row for row in rows if int(row.split("\t")[0]) < epoch]
        if len(kept) < len(rows):
            table.write_text("".join([head, *kept]), encoding="utf-8")
        metrics = self._folder / "metrics.jsonl"
        if metrics.exists():
            lines = metrics.read_bytes().splitlines(keepends=True)
            metrics.write_bytes(b"".join(line for line in lines if orjson.loads(line)["epoch"] < epoch))

    def on_train_end(self, logs=None):
        self._writer.close()
