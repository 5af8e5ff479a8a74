"""Write what the last steps gave: `log.tsv`, `metrics.jsonl` and TensorBoard, a line every few steps."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfbert.callbacks.run_log import SPEED, add_line, start_table
from tfbert.loop.clock import Clock
from tfbert.loop.trainer import StepTotals, Trainer
from tfbert.progress import logger


class StepLog(keras.callbacks.Callback):
    """One line in each file for the steps since the line before.

    Put it behind the callback that validates: the numbers of a validation stand in the line of its step.

    Args:
        folder: the run folder.
        trainer: whose numbers are written.
        clock: of the run.
        steps: epoch number -> steps of the epoch.
        every_steps: steps a line; a step that was validated and the last step have lines too.
        train_names: names of the numbers of training.
        val_names: names of the numbers of validation.
        writes: False where another worker of the same run does it.

    Attributes:
        validated: numbers of a validation at this step, for whoever validates to set; empty where there was none.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        clock: Clock,
        steps: Mapping[int, int],
        every_steps: int,
        train_names: Sequence[str],
        val_names: Sequence[str],
        writes: bool = True,
    ):
        super().__init__()
        self.trainer, self.clock, self.steps, self.every_steps = trainer, clock, steps, every_steps
        self.validated: dict[str, float] = {}  # of this step
        self.writes = writes
        self._folder, self._columns = folder, ["step", "epoch", "hours", *train_names, *SPEED, *val_names]
        self._since = StepTotals()
        self._base = StepTotals()  # of the epoch, before the steps of the line
        self._written = -1

    def on_train_begin(self, logs=None):
        if self.writes:
            self._writer = tf.summary.create_file_writer(str(self._folder / "events"))
            start_table(self._folder / "log.tsv", self._columns)
        self._begin_line()

    def on_epoch_begin(self, epoch, logs=None):
        self._base = StepTotals(**asdict(self.trainer.totals))

    def on_train_batch_end(self, batch, logs=None):
        if not self.model.stop_training and (self.trainer.step % self.every_steps == 0 or self.validated):
            self.write()  # the last line is written when the last validation is over

    def on_epoch_end(self, epoch, logs=None):
        self._carry()
        self._base = StepTotals(**asdict(self.trainer.totals))

    def on_train_end(self, logs=None):
        self.write()
        if self.writes:
            self._writer.close()

    def write(self) -> None:
        """A line for the steps since the last, and for a validation."""
        self.trainer.flush()
        self._carry()
        self._base = StepTotals(**asdict(self.trainer.totals))
        step = self.trainer.step
        if (step == self._written or not self._since.steps) and not self.validated:
            return
        row: dict[str, Any] = {"step": step, "epoch": self._epoch(), "hours": self.clock.spent_s / 3600}
        row |= self._numbers() | self.validated
        if self.writes:
            self._write_row(step, row)
        shown = {name: value for name, value in row.items() if name not in ("step", "wait_share", "padding_share")}
        logger.info("step %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in shown.items()))
        self._written = step
        self._begin_line()

    def _write_row(self, step: int, row: dict[str, Any]) -> None:
        add_line(self._folder / "log.tsv", self._folder / "metrics.jsonl", self._columns, row, {})
        with self._writer.as_default():
            for name, value in row.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()

    def _begin_line(self) -> None:
        self._since, self.validated = StepTotals(), {}
        self._time, self._wait = time.perf_counter(), self.trainer.wait_s

    def _carry(self) -> None:
        """Takes what the epoch gave since the last look."""
        now, base = self.trainer.totals, self._base
        names = ("loss", "weight", "rows", "tokens", "cells")
        numbers = {name: getattr(now, name) - getattr(base, name) for name in names}
        steps = self._since.steps + now.steps - base.steps
        self._since.add(numbers, {name: value - base.sums.get(name, 0.0) for name, value in now.sums.items()})
        self._since.steps = steps

    def _epoch(self) -> float:
        return self.trainer.epoch + self.trainer.epoch_step / self.steps[self.trainer.epoch]

    def _numbers(self) -> dict[str, float]:
        since, trainer = self._since, self.trainer
        if not since.steps:
            return {}
        elapsed = max(time.perf_counter() - self._time, 1e-9)
        totals = dict.fromkeys(trainer.objective.sums, 0.0) | since.sums
        logs = {"loss": since.mean_loss}
        logs |= trainer.objective.logs(totals | {"weight": since.weight, "rows": since.rows})
        speed = {
            "learning_rate": trainer.last_rate,
            "rows_per_s": since.rows / elapsed,
            "tokens_per_s": since.tokens / elapsed,
            "padding_share": since.padding_share,
            "wait_share": (trainer.wait_s - self._wait) / elapsed,
        }
        return logs | speed
