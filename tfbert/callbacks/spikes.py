"""Write down steps whose loss leaps, with the rows of their batch, so that one can look at them."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import orjson

from tfbert.data.plan import EpochPlan
from tfbert.loop.trainer import StepNumbers, Trainer
from tfbert.progress import logger

NAME = "spikes.jsonl"
MOST_LINES = 200
MOST_ROWS = 1000  # of a line
_MEAN_OVER = 100  # steps that the running mean goes back, about
_LEAST_STEPS = 50  # before a step can be a spike
_LEAST_DEVIATION = 0.01  # share of the mean


class SpikeLog(keras.callbacks.Callback):
    """A line in `spikes.jsonl` for each step whose loss is far above those before it, or not finite.

    A step is a spike when `loss > mean + deviations * max(sd, |mean| / 100)`, mean and standard deviation being
    exponential ones over about the last 100 steps of the stage; the first 50 steps are none. A spike counts in them no
    higher than the bound that it broke, so that a loss that stays high soon is the new mean. At most 200 lines a run.

    Args:
        folder: the run folder.
        stage: name of the stage.
        trainer: whose steps are watched.
        plans: epoch number -> its plan, for the numbers of the rows.
        deviations: above 0; None writes down steps that are not finite alone.
        writes: False for all workers but one.
    """

    remembered = ("mean", "variance", "count")  # what a run that goes on needs

    def __init__(
        self,
        folder: Path,
        stage: str,
        trainer: Trainer,
        plans: Mapping[int, EpochPlan],
        deviations: float | None = 6.0,
        writes: bool = True,
    ):
        super().__init__()
        self.path, self.stage, self.trainer, self.plans = folder / NAME, stage, trainer, plans
        self.deviations, self.writes = deviations, writes
        self.mean = self.variance = 0.0
        self.count = 0
        self._lines = _whole_lines(self.path)
        trainer.watchers.append(self.see)

    def see(self, step: StepNumbers) -> None:
        """Takes note of a step."""
        if not step.finite:
            self.write("not finite", step)
            return
        loss = step.loss
        if self.deviations is not None and self.count >= _LEAST_STEPS:
            deviation = max(math.sqrt(self.variance), abs(self.mean) * _LEAST_DEVIATION)
            bound = self.mean + self.deviations * deviation
            if loss > bound:
                self.write("spike", step, mean=self.mean, deviation=deviation)
                loss = bound
        self.count += 1
        share = max(1.0 / self.count, 1.0 / _MEAN_OVER)
        difference = loss - self.mean
        self.mean += share * difference
        self.variance = (1.0 - share) * (self.variance + share * difference**2)

    def write(self, kind: str, step: StepNumbers, **more: Any) -> None:
        """Adds a line, unless there is the same already, from before the run was stopped."""
        key = {"kind": kind, "stage": self.stage, "step": step.number, "retries": self.trainer.retries}
        if (
            not self.writes
            or len(self._lines) >= MOST_LINES
            or any(key.items() <= line.items() for line in self._lines)
        ):
            return
        rows = next(self.plans[step.epoch].batches(step.epoch_step - step.num_batches))[:MOST_ROWS].tolist()
        numbers = {"loss": step.loss, "gradient_norm": step.gradient_norm} | more
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
        place = {"epoch": step.epoch + 1, "epoch_step": step.epoch_step}
        line = key | place | numbers | {"rows": rows, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        logger.warning("step %d: %s (%s), rows in %s", step.number, kind, shown, self.path.name)
        self._lines.append(line)
        if len(self._lines) == MOST_LINES:
            logger.warning("%s is full: no more than %d lines are written", self.path, MOST_LINES)
        try:
            temporary = self.path.with_name(f"saving-{NAME}")
            temporary.write_bytes(b"".join(orjson.dumps(x, option=orjson.OPT_APPEND_NEWLINE) for x in self._lines))
            temporary.replace(self.path)
        except OSError as error:
            logger.error("%s could not be written (%s); training goes on", self.path, error)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = orjson.loads(text)
        except ValueError:  # cut off by somebody
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
