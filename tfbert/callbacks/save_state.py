"""Keep the whole state of a run on disk, so that the same command goes on where it stopped."""

import signal
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbert.cli import Terminated
from tfbert.errors import CheckpointError, LossNotFinite
from tfbert.loop.agreement import Agreement
from tfbert.loop.state import Arrays, write_state
from tfbert.loop.trainer import Trainer
from tfbert.progress import logger
from tfbert.strategy import sum_over_workers, worker_of

IMPATIENT_AFTER_S = 1.0


class StopSignals:
    """Notes SIGTERM and SIGINT instead of acting on them, so that a run can save its state between two steps.

    While `state_is_saved` there is nothing to save, and a signal acts at once. So it does up to the end of the first
    step, which includes tracing and may take longer than a machine that goes away waits. So does one that comes a
    second or more after another: somebody is in a hurry (`timeout` sends two, but at the same time). Workers that share
    a run stop together, so there the first signal always waits for the next agreement.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.state_is_saved = True
        self.together = False
        self._first_time: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: the caller keeps its own handling
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # no log from here: it may be what the signal interrupted
        now = time.monotonic()
        if self._first_time is None:
            self._first_time = now
        self.received = number
        if (self.state_is_saved and not self.together) or now - self._first_time >= IMPATIENT_AFTER_S:
            self.act()

    def act(self) -> None:
        """Raises what the signal that was received means, if there was one."""
        if self.received == signal.SIGTERM:
            raise Terminated
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt


class SaveState(keras.callbacks.Callback):
    """Saves variables, optimizer, position and callbacks: on a schedule, at the end of an epoch, on a signal.

    Put it behind the other callbacks. A disk that is full costs a warning: training goes on, the state before stays.

    Args:
        folder: `last/` of the run.
        trainer: of the stage.
        stage: name of the stage.
        remembering: callbacks by name; what their `remembered` attributes name is saved.
        steps: epoch number -> steps of the epoch.
        stop: the signals.
        every_minutes: time between two saves; 0 for none.
        every_steps: steps between two saves; 0 for none.
        data: what the data are known by; saved with the state.
        every_epochs: epochs between two saves, may be a fraction, or 0 for none; None saves at the end of each epoch.
        agreement: of several workers, where something else uses it too: they save at the same step, and stop together
            when one of them is told to. The chief alone writes.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        stage: str,
        remembering: Mapping[str, keras.callbacks.Callback],
        steps: Mapping[int, int],
        stop: StopSignals,
        every_minutes: float = 10.0,
        every_steps: int = 0,
        data: dict[str, Any] | None = None,
        every_epochs: float | None = None,
        agreement: Agreement | None = None,
    ):
        super().__init__()
        self.folder, self.trainer, self.stage, self.steps, self.stop = folder, trainer, stage, steps, stop
        self.remembering = dict(remembering)
        self.data = data
        self.every_s, self.every_steps, self.every_epochs = every_minutes * 60, every_steps, every_epochs
        self._note_save()
        self._stepped = False
        self._agreement = agreement or Agreement(trainer.strategy)
        stop.together = not self._agreement.alone

    def variables(self) -> dict[str, tf.Variable]:
        """Every variable that is saved, by name."""
        named = {f"model/{v.path}": v for v in self.trainer.model.variables}
        named |= {f"objective/{v.path}": v for v in self.trainer.objective.variables}
        named |= {f"optimizer/{name}": v for name, v in self.trainer.optimizer.state().items()}
        if self.trainer.average is not None:
            named |= {f"average/{path}": v for path, v in self.trainer.average.shadows.items()}
        return named

    def restore(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Takes up a saved state of this stage.

        Args:
            arrays: of `read_state`.
            values: of `read_state`.

        Raises:
            CheckpointError: the state is one of another model.
        """
        if self.trainer.average is not None:
            self.trainer.average.take_out_of_model()
        wanted = self.variables()
        wrong = [n for n, v in wanted.items() if n not in arrays or tuple(arrays[n].shape) != tuple(v.shape)]
        if wrong:
            raise CheckpointError(f"{self.folder}: the state is of another model. Received: no fitting {wrong[:3]}.")
        for name, variable in wanted.items():
            variable.assign(arrays[name])
        for name, callback in self.remembering.items():
            for attribute, value in values["callbacks"].get(name, {}).items():
                setattr(callback, attribute, value)
        self.trainer.go_to(values["position"])
        self._note_save()

    def _note_save(self) -> None:
        self._last_time, self._last_step = time.monotonic(), self.trainer.step
        self._last_epochs = self._epochs if self.every_epochs else 0.0

    @property
    def _epochs(self) -> float:
        return self.trainer.epoch + self.trainer.epoch_step / self.steps[self.trainer.epoch]

    def on_train_begin(self, logs=None):
        """Workers that read different files, or one of them an older state, would train different models.

        Raises:
            CheckpointError: they do not begin with the same.
        """
        if self._agreement.alone:
            return
        trainer = self.trainer
        digest = zlib.crc32(repr((self.stage, trainer.step, trainer.epoch, trainer.epoch_step)).encode())
        for variable in self.variables().values():
            digest = zlib.crc32(np.ascontiguousarray(variable.numpy()).reshape(-1).view(np.uint8), digest)
        strategy = trainer.strategy
        rank, workers = worker_of(strategy)
        digests = sum_over_workers(strategy, np.where(np.arange(workers) == rank, digest, 0))
        others = [str(i) for i in range(1, workers) if digests[i] != digests[0]]
        if others:
            raise CheckpointError(
                "Workers begin with the same weights, optimizer and position. Received: others than the chief's at "
                f"worker {', '.join(others)}. All read the same --run_dir, --data and --init, on storage that shows "
                "every worker the same files."
            )

    def on_train_end(self, logs=None):
        self.stop.together = False

    def on_train_batch_begin(self, batch, logs=None):
        if self._stepped:
            self.stop.state_is_saved = False

    def on_train_batch_end(self, batch, logs=None):
        if self.every_epochs is None:  # at an epoch's end: validation may take long
            ends_epoch = self.trainer.epoch_step == self.steps[self.trainer.epoch]
        else:
            ends_epoch = self.every_epochs > 0 and self._epochs - self._last_epochs >= self.every_epochs - 1e-9
        due = self.every_steps and self.trainer.step - self._last_step >= self.every_steps
        late = bool(self.every_s) and time.monotonic() - self._last_time >= self.every_s
        self._stepped = True
        self.stop.state_is_saved = False
        late, stop = self._decided(late, at_once=ends_epoch)
        if ends_epoch or due or late or stop:
            self._save_and_act(self.trainer.position(), stop)

    def on_epoch_end(self, epoch, logs=None):
        if self.every_epochs is not None and not self.model.stop_training:
            return
        self.stop.state_is_saved = False
        _, stop = self._decided(False, at_once=True)
        position = self.trainer.position()
        if position["epoch_step"] == self.steps[epoch]:  # else a callback ended it early, and it may go on
            position |= {"epoch": position["epoch"] + 1, "epoch_step": 0}
        self._save_and_act(position, stop)

    def _decided(self, late: bool, at_once: bool) -> tuple[bool, bool]:
        """Whether it is time to save and whether to stop: for this process alone, or for all workers together."""
        if not (at_once or self._agreement.is_due(self.trainer.step)):
            return False, False
        late_ones, stopped = self._agreement.sum(self.trainer.step, [late, self.stop.received is not None])
        if stopped and self.stop.received is None:
            self.stop.received = signal.SIGTERM  # another worker got it
        return late_ones > 0, stopped > 0

    def _save_and_act(self, position: dict[str, Any], stop: bool) -> None:
        saved = self.save(position)
        if saved and stop:
            logger.info("signal %d: the state is saved; the same command goes on from here", self.stop.received)
        self.stop.state_is_saved = True  # from here on signals act themselves
        if stop or self._agreement.alone:  # alone: one may have come while it was saved
            self.stop.act()

    def save(self, position: dict[str, Any]) -> bool:
        """Writes a generation of the state at `position`; tells whether it could. The chief alone does.

        Raises:
            LossNotFinite: a variable is not finite; the states before are kept.
        """
        if self.trainer.average is not None:
            self.trainer.average.take_out_of_model()
        arrays = {name: variable.numpy() for name, variable in self.variables().items()}
        bad = next((n for n, a in arrays.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None)
        if bad is not None:
            raise LossNotFinite(
                f"What is saved must be finite. Received: {bad} at step {self.trainer.step}. The state before is kept. "
                "Lower the learning rate, or warm up longer."
            )
        if self._agreement.rank:
            self._note_save()
            return True
        values = {
            "stage": self.stage,
            "data": self.data,
            "position": position,
            "stopped": bool(self.trainer.model.stop_training),
            "callbacks": {
                name: {attribute: getattr(callback, attribute) for attribute in callback.remembered}
                for name, callback in self.remembering.items()
            },
        }
        self._note_save()
        try:
            write_state(self.folder, arrays, values)
        except OSError as error:
            logger.error("the state could not be saved (%s); the one before stays", error)
            return False
        return True
