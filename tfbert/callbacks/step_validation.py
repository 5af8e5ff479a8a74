"""Validate every so many steps, inside of an epoch as well."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras

from tfbert.callbacks.best import BestWeights
from tfbert.callbacks.run_log import add_line, start_table
from tfbert.errors import TrainingError
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger

TABLE = "evaluations.tsv"


class StepValidation(keras.callbacks.Callback):
    """A line in `evaluations.tsv` and `evaluations.jsonl` every so many steps; the best weights may come from there.

    The end of an epoch is validated anyway, so a step there has no line. Put it behind the log and before whatever
    saves the state.

    Args:
        folder: the run folder.
        trainer: of the stage.
        steps: epoch number -> steps of the epoch.
        every_steps: steps of the stage between two validations.
        validate: gives the numbers of the val part.
        val_names: their names, with `val_`.
        best: keeps the best weights, by one of these numbers.
        writes: False where another worker of the same run does it.

    Raises:
        TrainingError: the validation loss is not finite.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        steps: Mapping[int, int],
        every_steps: int,
        validate: Callable[[], dict[str, float]],
        val_names: Sequence[str],
        best: BestWeights,
        writes: bool = True,
    ):
        super().__init__()
        self.folder, self.trainer, self.steps, self.every_steps = folder, trainer, steps, every_steps
        self.best, self.writes = best, writes
        self._validate = validate
        self._columns = ["step", "epoch", "loss", "learning_rate", *val_names]

    def on_train_begin(self, logs=None):
        if self.writes:
            start_table(self.folder / TABLE, self._columns)

    def on_train_batch_end(self, batch, logs=None):
        trainer = self.trainer
        num_steps = self.steps[trainer.epoch]
        if trainer.step % self.every_steps or trainer.epoch_step == num_steps:
            return
        trainer.flush()
        if trainer.average is not None:
            trainer.average.put_into_model()
        numbers = {f"val_{name}": value for name, value in self._validate().items()}
        if not math.isfinite(numbers["val_loss"]):
            raise TrainingError(
                f"The validation loss must be finite. Received: {numbers['val_loss']} at step {trainer.step}. The best "
                "weights so far are kept. Lower the learning rate, or warm up longer."
            )
        epoch = trainer.epoch + trainer.epoch_step / num_steps
        row = {"step": trainer.step, "epoch": epoch, "loss": trainer.totals.mean_loss}
        row |= {"learning_rate": trainer.last_rate} | numbers
        if self.writes:
            add_line(self.folder / TABLE, (self.folder / TABLE).with_suffix(".jsonl"), self._columns, row, {})
        logger.info("step %d: %s", trainer.step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
        if self.best.monitor in numbers:
            self.best.on_epoch_end(trainer.epoch, numbers)
        if trainer.average is not None:
            trainer.average.take_out_of_model()
