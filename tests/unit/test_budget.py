"""What happens when the time comes: the stop, the exports, the validations, the early end. No test waits."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfbert.callbacks.budget import Budget, parse_markers
from tfbert.callbacks.scheduled_validation import EarlyStop, ScheduledValidation, ValidationTimes
from tfbert.errors import ConfigError, TrainingError
from tfbert.loop.clock import Clock

ALWAYS = ValidationTimes(1.0, 1.0, 1.0, 0.0, 0.0)


@dataclass
class World:
    """A trainer and a clock that stand still unless they are moved."""

    steps_per_epoch: int = 10
    seconds: float = 0.0
    trainer: Any = field(default_factory=lambda: SimpleNamespace(step=0, epoch=0, epoch_step=0))
    model: Any = field(default_factory=lambda: SimpleNamespace(stop_training=False))
    losses: list[float] = field(default_factory=list)
    validated_at: list[int] = field(default_factory=list)
    log: Any = field(default_factory=lambda: SimpleNamespace(validated={}))

    def clock(self, total_s: float) -> Clock:
        return Clock(total_s, now=lambda: self.seconds)

    @property
    def steps(self) -> dict[int, int]:
        return dict.fromkeys(range(1000), self.steps_per_epoch)

    def step(self, seconds: float, *callbacks: Any) -> None:
        """One step, and what the callbacks do behind it."""
        self.seconds += seconds
        self.trainer.step += 1
        self.trainer.epoch, self.trainer.epoch_step = divmod(self.trainer.step, self.steps_per_epoch)
        for callback in callbacks:
            callback.set_model(self.model)
            callback.on_train_batch_end(0)

    def validation(
        self,
        clock: Clock,
        times: ValidationTimes = ALWAYS,
        early_stop: EarlyStop | None = None,
        budget: Budget | None = None,
        takes_s: float = 0.0,
    ) -> ScheduledValidation:
        def validate() -> dict[str, float]:
            self.seconds += takes_s
            self.validated_at.append(self.trainer.step)
            return {"loss": self.losses.pop(0) if self.losses else 5.0}

        return ScheduledValidation(
            self.trainer, clock, self.steps, times, validate, self.log, early_stop,
            lambda: budget is not None and budget.is_over,
        )  # fmt: skip


def test_the_run_stops_at_the_first_step_behind_the_limit() -> None:
    """Case 159: budget 10 s, steps of 3 s, validations of 4 s after each: two steps are behind 10 s."""
    world = World(steps_per_epoch=1)
    clock = world.clock(10)
    budget = Budget(world.trainer, clock, 10)
    validation = world.validation(clock, budget=budget, takes_s=4)
    while not world.model.stop_training:
        world.step(3, validation, budget)
    assert (world.trainer.step, world.seconds) == (2, 10)
    assert world.validated_at == [1]  # a validation behind the limit would take more time


def test_validation_counts() -> None:
    world = World(steps_per_epoch=1)
    clock = world.clock(10)
    budget = Budget(world.trainer, clock, 10)
    validation = world.validation(clock, budget=budget, takes_s=8)
    world.step(3, validation, budget)
    assert world.model.stop_training


def test_an_early_exit_leaves_the_schedule_as_it_is() -> None:
    world = World()
    clock = world.clock(10)
    budget = Budget(world.trainer, clock, 5)
    for _ in range(4):
        assert not world.model.stop_training
        world.step(1.25, budget)
    assert world.model.stop_training
    assert clock.progress == 0.5


def test_a_number_of_steps_ends_the_run_as_well() -> None:
    world = World()
    budget = Budget(world.trainer, world.clock(1000), 1000, max_steps=3)
    world.step(1, budget)
    world.step(1, budget)
    assert not world.model.stop_training
    world.step(1, budget)
    assert world.model.stop_training


class Exports:
    """Folders that were written, as `export` writes them."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def __call__(self, folder: Path) -> bool:
        if folder.name in self.written:
            return False
        self.written.append(folder.name)
        return True


def make_budget(world: World, exports: Exports, text: str, total_s: float = 10) -> Budget:
    markers = parse_markers(text)
    folders = [Path(f"{marker:g}") for marker in markers]
    return Budget(world.trainer, world.clock(total_s), total_s, markers, folders, exports)


def test_each_marker_that_is_crossed_has_one_export() -> None:
    """Case 161: unsorted markers; a step of 7 s jumps over two of them."""
    world, exports = World(), Exports()
    budget = make_budget(world, exports, "0.9,0.5,0.6")
    world.step(7, budget)
    assert exports.written == ["0.5", "0.6"]
    world.step(1, budget)
    assert exports.written == ["0.5", "0.6"]
    world.step(1, budget)
    assert exports.written == ["0.5", "0.6", "0.9"]


def test_a_run_that_goes_on_does_not_export_again() -> None:
    """Case 161: the folders tell, whatever the state was when the process ended."""
    world, exports = World(), Exports()
    world.step(7, make_budget(world, exports, "0.5, 0.6,1.0"))
    again = make_budget(world, exports, "0.5, 0.6,1.0")
    again.clock.spent_s = 4.0  # the state is older than the export
    for _ in range(7):
        world.step(1, again)
    assert exports.written == ["0.5", "0.6", "1"]


def test_a_marker_that_was_passed_between_two_processes_is_exported_at_the_end() -> None:
    world, exports = World(), Exports()
    budget = make_budget(world, exports, "0.5,1")
    budget.clock.spent_s = 6.0
    budget.export_passed()
    assert exports.written == ["0.5"]


@pytest.mark.parametrize("text", ["0", "1.5", "-0.5", "0.5,", "", "a", "0.5,0.5", "0.5;0.6", "nan", "0.5,0.50"])
def test_markers_that_are_no_shares_are_refused(text: str) -> None:
    """Case 161."""
    with pytest.raises(ConfigError, match="different shares of the time, above 0 and at most 1"):
        parse_markers(text)


@pytest.mark.parametrize(
    ("minutes", "loss", "stops"), [(179, 6.1, False), (179, 5.9, False), (181, 6.1, True), (181, 5.9, False)]
)
def test_an_early_stop_is_minutes_and_a_loss(minutes: float, loss: float, stops: bool) -> None:
    """Case 164."""
    world = World(losses=[loss])
    clock = world.clock(24 * 3600)
    validation = world.validation(clock, early_stop=EarlyStop(180 * 60, 6.0))
    world.trainer.step = world.steps_per_epoch - 1  # an epoch ends, so it validates
    world.step(minutes * 60, validation)
    assert len(world.validated_at) == 1
    assert (world.model.stop_training, validation.failed) == (stops, stops)


def test_an_early_stop_is_judged_when_its_time_has_come() -> None:
    """Where no validation is due for long, there is one for it; then the usual ones judge too."""
    world = World(losses=[5.0, 7.0])
    clock = world.clock(24 * 3600)
    validation = world.validation(clock, early_stop=EarlyStop(100, 6.0))
    world.step(99, validation)
    assert world.validated_at == []
    world.step(2, validation)
    assert world.validated_at == [2]
    world.step(2, validation)
    assert world.validated_at == [2]
    for _ in range(9):
        world.step(1, validation)
    assert world.validated_at == [2, 12]
    assert world.model.stop_training


def test_validations_are_denser_at_the_ends_of_the_time() -> None:
    """100 steps of 1 s are 10 epochs: every half epoch, every 2 epochs, every tenth of one."""
    world = World()
    clock = world.clock(100)
    budget = Budget(world.trainer, clock, 100)
    validation = world.validation(clock, ValidationTimes(2.0, 0.5, 0.1, 0.205, 0.0401), budget=budget)
    while not world.model.stop_training:
        world.step(1, validation, budget)
    assert world.validated_at == [5, 10, 15, 20, 40, 60, 80, 96, 97, 98, 99]
    validation.on_train_end()
    assert world.validated_at[-1] == 100
    validation.on_train_end()
    assert world.validated_at.count(100) == 1
    assert world.log.validated == {"val_loss": 5.0}


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_validation_loss_that_is_not_finite_ends_the_run(loss: float) -> None:
    world = World(steps_per_epoch=1, losses=[loss])
    with pytest.raises(TrainingError, match=r"validation loss must be finite\. Received: (nan|inf) at step 1"):
        world.step(1, world.validation(world.clock(10)))


def test_a_validation_that_was_interrupted_is_due_again() -> None:
    world = World(steps_per_epoch=1)
    validation = world.validation(world.clock(10))
    given: list[dict[str, float] | None] = [None, {"loss": 4.0}]
    validation._validate = lambda: given.pop(0)
    world.step(1, validation)
    assert (validation.last, world.log.validated) == (0, {})
    world.step(1, validation)
    assert (validation.last, world.log.validated) == (2, {"val_loss": 4.0})
