"""A loss that is not finite, and going on from the last good state."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from classify_runs import Run, make_data, read_json_lines, train, write_model
from encode_runs import error_line

from tfbert.data.plan import EpochPlan
from tfbert.loop.state import read_state

pytestmark = pytest.mark.usefixtures("eagerly")

# 4 steps an epoch. A rate of 1e30 spoils the weights in the first step; times 1e-32 it is a good one
TOO_HIGH = ["--optimizer", "sgd", "--schedule", "constant", "--epochs", "2", "--learning_rate", "1e30", "--warmup", "0"]
RESCUED = ["--nan_retries", "2", "--nan_rate_factor", "1e-32"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 75).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small"), num_hidden_layers=1)


def state_of(run: Run) -> Any:
    state = read_state(run.folder / "last")
    assert state is not None
    return state


@pytest.mark.parametrize(
    "more", [[], ["--ema", "0.9", "--devices", "cpu:2"], ["--mixed_precision", "float16"]], ids=str
)
def test_a_lower_rate_rescues_the_run(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
):
    """From the first weights: the result is that of a run at the lower rate."""
    run = train(data, tmp_path / "run", *TOO_HIGH, *RESCUED, *more, init=small)
    shown = capsys.readouterr().err
    assert "Going back to step 0 with the learning rate times 1e-32 (try 1 of 2)" in shown
    good = train(data, tmp_path / "good", *TOO_HIGH, "--learning_rate", "1e-2", *more, init=small)
    for name, weight in good.weights.items():
        np.testing.assert_allclose(run.weights[name], weight, rtol=0, atol=1e-5)
    assert [row["nan_retries"] for row in run.metrics] == [1, 1]
    assert run.column("learning_rate") == pytest.approx([1e-2] * 2)
    assert [row["epoch"] for row in run.log] == ["1", "2"]
    assert state_of(run)[1]["position"]["retries"] == 1
    spikes = read_json_lines(run.folder / "spikes.jsonl")
    assert [(line["kind"], line["step"] <= 4, line["retries"]) for line in spikes] == [("not finite", True, 0)]
    assert len(spikes[0]["rows"]) in (12, 16)
    assert "nan_retries" not in good.metrics[0]


def test_the_tries_are_bounded(data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The last good state stays, and the run may be given more tries."""
    run_dir = tmp_path / "run"
    train(data, run_dir, *TOO_HIGH, "--nan_retries", "2", init=small, code=2)
    shown = capsys.readouterr().err
    assert "(try 1 of 2)" in shown
    assert "with the learning rate times 0.25 (try 2 of 2)" in shown
    assert "must be finite" in error_line(shown)
    position = state_of(Run(run_dir))[1]["position"]
    assert (position["step"], position["retries"], position["rate_factor"]) == (0, 2, 0.25)
    assert [line["retries"] for line in read_json_lines(run_dir / "spikes.jsonl")] == [0, 1, 2]
    run = train(data, run_dir, *TOO_HIGH, "--nan_retries", "3", "--nan_rate_factor", "1e-32", init=small)
    assert [row["nan_retries"] for row in run.metrics] == [3, 3]


def test_without_tries_nothing_is_reloaded_and_the_step_is_written_down(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Case 115."""
    train(data, tmp_path / "run", *TOO_HIGH, "--save_steps", "1", init=small, code=2)
    assert "must be finite" in error_line(capsys.readouterr().err)
    (line,) = read_json_lines(tmp_path / "run/spikes.jsonl")
    assert (line["kind"], line["epoch"]) == ("not finite", 1)
    state = read_state(tmp_path / "run/last")
    assert state is None or all(np.isfinite(array).all() for array in state[0].values())


def test_weights_that_are_not_finite_are_never_saved(data: Path, small: Path, tmp_path: Path, monkeypatch):
    """The loss is finite, the update is not, and the state is saved before the next loss could tell."""
    from tfbert.callbacks import best

    class Spoil(best.BestWeights):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if len(self.spoilt) < 1 and batch == 1:
                self.spoilt.append(batch)
                self.model.output_dense.bias.assign([np.inf, 0, 0])

        spoilt: list[int] = []

    monkeypatch.setattr("tfbert.recipes.classify.BestWeights", Spoil)
    flags = ["--optimizer", "sgd", "--save_steps", "1", "--nan_retries", "1", "--nan_rate_factor", "1"]
    run = train(data, tmp_path / "run", *flags, init=small)
    plain = train(data, tmp_path / "plain", *flags, init=small)
    assert [row["nan_retries"] for row in run.metrics] == [1]
    assert all(np.array_equal(run.weights[name], weight) for name, weight in plain.weights.items())


def test_stopped_after_a_rescue(data: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The lowered rate and the number of tries are in the state; the result is that of the run without a break."""
    from tfbert.training import stages as training

    straight = train(data, tmp_path / "straight", *TOO_HIGH, *RESCUED, init=small)

    class Stop(training.StepProgress):
        at = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.trainer.retries and self.trainer.step == self.at:
                os.kill(os.getpid(), signal.SIGTERM)

    for steps in (2, 5):
        Stop.at = steps
        with monkeypatch.context() as patch:
            patch.setattr(training, "StepProgress", Stop)
            train(data, tmp_path / "run", *TOO_HIGH, *RESCUED, init=small, code=143)
    run = train(data, tmp_path / "run", *TOO_HIGH, *RESCUED, init=small)
    (arrays, values), (wanted_arrays, wanted_values) = state_of(run), state_of(straight)
    assert values == wanted_values
    assert all(np.array_equal(arrays[name], array) for name, array in wanted_arrays.items())
    assert all(np.array_equal(run.weights[name], weight) for name, weight in straight.weights.items())


def test_the_batch_of_a_spike_is_named_by_its_rows(data: Path, small: Path, tmp_path: Path, monkeypatch: Any):
    """The head is turned round in the third epoch, between its second and its third step."""
    from tfbert.callbacks import best, spikes

    class Turn(best.BestWeights):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if (self.epoch, batch) == (2, 1):
                self.model.output_dense.kernel.assign(self.model.output_dense.kernel * -9)

    monkeypatch.setattr(spikes, "_LEAST_STEPS", 5)
    monkeypatch.setattr("tfbert.recipes.classify.BestWeights", Turn)
    run = train(data, tmp_path / "run", "--epochs", "3", init=small)
    none = train(data, tmp_path / "none", "--epochs", "3", "--spike_deviations", "0", init=small)
    line = read_json_lines(run.folder / "spikes.jsonl")[0]
    assert (line["kind"], line["stage"], line["step"]) == ("spike", "full", 11)
    assert (line["epoch"], line["epoch_step"]) == (3, 3)
    lengths = np.array([len(row["wordids"]) for row in read_json_lines(data / "train.jsonl")], np.int32)
    assert line["rows"] == list(EpochPlan(lengths, 16, epoch=2, length_multiple=1).batches())[2].tolist()
    assert not (none.folder / "spikes.jsonl").exists()


# ------------------------------------------------------------------------------------------------------- memory

AUTO = ["--auto_accumulate", "--memory_gb", "1000", "--epochs", "2", "--learning_rate", "1e-3"]


class Memory:
    """A device that holds so many rows at once, from a step of the training on fewer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int, later: int | None = None, step: int = 0):
        from tfbert.loop.trainer import Trainer

        original, self.tried, self.steps = Trainer._take_step, 0, 0

        def take_step(trainer: Trainer, batch: Any, rate: float) -> Any:
            self.tried += rate == 0
            self.steps += rate > 0
            room = rows if later is None or self.steps < step else later
            parts = trainer.strategy.experimental_local_results(batch["weights"])
            if -(-parts[0].shape[0] // trainer.accumulate) > room:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9]\nmore")
            return original(trainer, batch, rate)

        monkeypatch.setattr(Trainer, "_take_step", take_step)


def test_micro_batches_are_found_and_kept(data: Path, small: Path, tmp_path: Path, monkeypatch: Any, capsys: Any):
    """The run is the one with as many micro-batches given by hand, and goes on with them without trying again."""
    with monkeypatch.context() as patch:
        memory = Memory(patch, 4)
        run = train(data, tmp_path / "run", *AUTO, "--nan_retries", "1", init=small)
        assert "4 micro-batch(es) a step: up to 4 rows x" in capsys.readouterr().err
        tried = memory.tried
        assert tried == 4  # 1, 2, 4 and 8 rows
        more = train(data, tmp_path / "run", *AUTO, "--nan_retries", "1", "--epochs", "3", init=small)
        assert memory.tried == tried
    assert state_of(more)[1]["position"]["accumulate"] == 4
    plain = train(data, tmp_path / "plain", "--accumulate", "4", *AUTO[3:], init=small)
    assert run.column("loss")[:2] == plain.column("loss")
    assert run.column("val_loss")[:2] == pytest.approx(plain.column("val_loss"), rel=1e-6)


def test_memory_that_runs_out_in_the_middle_does_not_end_the_run(
    data: Path, small: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    Memory(monkeypatch, 8, later=3, step=6)
    run = train(data, tmp_path / "run", *AUTO, "--save_steps", "1", init=small)
    shown = capsys.readouterr().err
    assert "Going back to step 5 with 4 micro-batches a step in place of 2" in shown
    assert "Going back to step 5 with 8 micro-batches a step in place of 4" in shown
    assert [row["epoch"] for row in run.log] == ["1", "2"]
    position = state_of(run)[1]["position"]
    assert (position["step"], position["accumulate"]) == (8, 8)


def test_memory_that_runs_out_is_one_line_without_the_finder(
    data: Path, small: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    Memory(monkeypatch, 8)
    train(data, tmp_path / "run", init=small, code=2)
    line = error_line(capsys.readouterr().err)
    assert "1 micro-batch(es) a step, and OOM when allocating tensor with shape[9,9]. The last state is kept" in line


def test_not_even_one_row_fits(data: Path, small: Path, tmp_path: Path, monkeypatch: Any, capsys: Any):
    Memory(monkeypatch, 0)
    train(data, tmp_path / "run", *AUTO, init=small, code=2)
    assert "The longest row must fit into memory. Received: 1 device(s)" in error_line(capsys.readouterr().err)


def test_a_bound_on_a_real_run(data: Path, small: Path, tmp_path: Path, capsys: Any):
    """A compiled run over batches cut by tokens, in both stages, under two replicas."""
    flags = ["--frozen_epochs", "1", "--batch_tokens", "90", "--devices", "cpu:2"]
    run = train(data, tmp_path / "run", *AUTO, *flags, init=small)
    assert capsys.readouterr().err.count("1 micro-batch(es) a step: up to") == 2
    assert len(run.log) == 3
