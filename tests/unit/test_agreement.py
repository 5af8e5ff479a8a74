"""When workers exchange what one of them knows, and that all of them then go by it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfbert.callbacks import save_state
from tfbert.errors import CheckpointError
from tfbert.loop import agreement as module
from tfbert.loop.agreement import MOST_STEPS, Agreement
from tfbert.loop.clock import Clock

pytestmark = pytest.mark.usefixtures("logical_cpus")


class Workers:
    """Two workers in one process: each exchange is given what the other one sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seconds = 0.0
        self.others: list[float] = []
        self.exchanges = 0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(module, "sum_over_workers", self.sum)

    def sum(self, strategy: Any, values: Any) -> Any:
        self.exchanges += 1
        return np.asarray(values, np.float64) + np.array(self.others)

    def make(self, rank: int, monkeypatch: pytest.MonkeyPatch) -> Agreement:
        monkeypatch.setattr(module, "worker_of", lambda strategy: (rank, 2))
        return Agreement(None)  # type: ignore[arg-type]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(monkeypatch)


@pytest.mark.parametrize(("step_s", "between"), [(0.001, MOST_STEPS), (0.25, 4), (0.9, 1), (60.0, 1)])
def test_slow_steps_agree_behind_each_and_fast_ones_once_a_second(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, step_s: float, between: int
) -> None:
    """So a stop comes within a second or a step, and the devices seldom wait."""
    chief = workers.make(0, monkeypatch)
    workers.others = [0.0, 0.0]
    agreed = []
    for step in range(1, 60):
        workers.seconds += step_s
        if chief.is_due(step):
            chief.sum(step, [0.0])
            agreed.append(step)
    assert agreed[:2] == [1, 2]
    assert set(np.diff(agreed[1:])) == {between}


def test_the_chief_says_when_the_next_one_is(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    other = workers.make(1, monkeypatch)
    workers.others = [1.0, 7.0]
    workers.seconds = 100.0
    assert other.sum(3, [1.0]) == [2.0]
    assert [step for step in range(3, 20) if other.is_due(step)] == [3, *range(10, 20)]
    assert other.is_due(2)  # went back to a saved state


def test_a_process_alone_agrees_with_itself_behind_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "worker_of", lambda strategy: (0, 1))
    alone = Agreement(None)  # type: ignore[arg-type]
    for step in range(5):
        assert alone.is_due(step)
        assert alone.sum(step, [1.0, 0.0]) == [1.0, 0.0]


def test_workers_go_by_the_chiefs_clock(workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It stands still between two agreements, and is what the chief goes by as well."""
    time = [1000.0]
    chief, other = (Clock(100.0, now=lambda: time[0]) for _ in range(2))
    chief.share(workers.make(0, monkeypatch))
    other.share(workers.make(1, monkeypatch))
    chief.spent_s, other.spent_s = 40.0, 3.0
    time[0] += 10
    workers.others = [0.0, 0.0]
    chief.agree(1)
    workers.others = [chief.spent_s, 1.0]
    other.agree(1)
    time[0] += 5
    assert (chief.spent_s, other.spent_s) == (50.0, 50.0)
    assert chief.progress == other.progress == 0.5


def test_a_clock_that_is_shared_is_written_as_it_runs(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A killed process loses a second, not the time since the last agreement."""
    time = [0.0]
    clock = Clock(100.0, tmp_path / "clock.json", now=lambda: time[0])
    clock.share(workers.make(0, monkeypatch))
    time[0] = 30.0
    clock.beat()
    assert clock.spent_s == 0
    assert Clock(100.0, tmp_path / "clock.json", now=lambda: time[0]).spent_s == 30


def test_a_clock_alone_needs_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "worker_of", lambda strategy: (0, 1))
    time = [0.0]
    clock = Clock(100.0, now=lambda: time[0])
    clock.share(Agreement(None))  # type: ignore[arg-type]
    time[0] = 30.0
    clock.agree(1)
    time[0] = 31.0
    assert clock.spent_s == 31


class Side:
    """What the saver of a worker looks at before the first step."""

    def __init__(self, rank: int, monkeypatch: pytest.MonkeyPatch):
        import keras

        self.rank, self.sent = rank, np.zeros(2)
        self.weights = keras.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="kernel")
        self.moment = keras.Variable(np.zeros(3, np.float16))
        self.trainer: Any = SimpleNamespace(
            strategy=None, step=7, epoch=1, epoch_step=3, average=None,
            model=SimpleNamespace(variables=[self.weights]), objective=SimpleNamespace(variables=[]),
            optimizer=SimpleNamespace(state=lambda: {"moment": self.moment}),
        )  # fmt: skip
        self.monkeypatch = monkeypatch

    def begin(self, others: Any = 0) -> None:
        def sum_over_workers(strategy: Any, values: Any) -> Any:
            self.sent = np.asarray(values, np.float64)
            return self.sent + others

        self.monkeypatch.setattr(module, "worker_of", lambda strategy: (self.rank, 2))
        self.monkeypatch.setattr(save_state, "worker_of", lambda strategy: (self.rank, 2))
        self.monkeypatch.setattr(save_state, "sum_over_workers", sum_over_workers)
        save_state.SaveState(Path("last"), self.trainer, "full", {}, {1: 9}, save_state.StopSignals()).on_train_begin()


@pytest.mark.parametrize("differs", ["nothing", "weights", "optimizer", "position"])
def test_workers_begin_with_the_same_state(monkeypatch: pytest.MonkeyPatch, differs: str) -> None:
    """Case 174: a worker that joins with other weights, or another optimizer, is found before the first step."""
    chief, joining = Side(0, monkeypatch), Side(1, monkeypatch)
    if differs == "weights":
        joining.weights.assign(np.full((2, 3), 2.0, np.float32))
    if differs == "optimizer":
        joining.moment.assign(np.ones(3, np.float16))
    if differs == "position":
        joining.trainer.epoch_step = 2
    with pytest.raises(CheckpointError):  # each of them sees zeros of the other here
        chief.begin()
    with pytest.raises(CheckpointError):
        joining.begin()
    for side, other in ((chief, joining), (joining, chief)):
        if differs == "nothing":
            side.begin(other.sent)
        else:
            with pytest.raises(CheckpointError, match=r"Received: others than the chief's at worker 1\."):
                side.begin(other.sent)
