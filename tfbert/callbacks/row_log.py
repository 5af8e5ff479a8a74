"""Write down which rows each step used: `rows.jsonl`, a line a step."""

from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import orjson

from tfbert.data.plan import EpochPlan, Rows
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger
from tfbert.strategy import worker_of

NAME = "rows.jsonl"
_LONGEST_LINE = 1 << 26  # bytes; millions of rows


class RowLog(keras.callbacks.Callback):
    """A line behind every step: `{"stage", "epoch", "step", "workers", "rows"}`.

    Epochs count from 1, steps from 1 in the stage, rows from 0 in the train part; `rows` are those of all workers. A
    run that was killed goes on from its last state, so steps behind that have a second line with the same number. Put
    it before whatever saves the state.

    Args:
        folder: the run folder.
        stage: name of the stage.
        trainer: whose steps they are.
        plan_of: number of an epoch, from 0 -> its plan.
    """

    def __init__(self, folder: Path, stage: str, trainer: Trainer, plan_of: Callable[[int], EpochPlan]):
        super().__init__()
        self.path, self.stage, self.trainer, self._plan_of = folder / NAME, stage, trainer, plan_of
        self._workers = worker_of(trainer.strategy)[1]
        self._steps: Iterator[Rows] = iter(())
        self._failed = False

    def on_train_begin(self, logs=None):
        if self.path.exists():
            start = max(0, self.path.stat().st_size - _LONGEST_LINE)
            with self.path.open("rb+") as file:  # it may end in half a line, of a process that was killed
                file.seek(start)
                file.truncate(start + file.read().rfind(b"\n") + 1)

    def on_epoch_begin(self, epoch, logs=None):
        self._steps = self._plan_of(epoch).batches(self.trainer.epoch_step)

    def on_train_batch_end(self, batch, logs=None):
        trainer = self.trainer
        line = {"stage": self.stage, "epoch": trainer.epoch + 1, "step": trainer.step, "workers": self._workers}
        line["rows"] = next(self._steps).tolist()
        try:
            with self.path.open("ab") as file:
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            if not self._failed:
                logger.error("%s could not be written (%s); training goes on", self.path, error)
            self._failed = True
