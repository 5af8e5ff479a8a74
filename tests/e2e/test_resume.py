"""A run that was stopped and goes on is the run that was not: same rows, same weights, same numbers."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from classify_runs import Run, make_data, same_weights, train, write_model
from encode_runs import error_line

from tfbert.loop.state import read_state

pytestmark = pytest.mark.usefixtures("eagerly")

SPEED = ("rows_per_s", "tokens_per_s", "wait_share")
STAGES = ["--frozen_epochs", "1", "--frozen_learning_rate", "1e-2", "--epochs", "2"]
STEPS = 12  # of STAGES: 60 rows, 16 a batch
SETTINGS = {
    "adamw, dropout": [*STAGES, "--learning_rate", "1e-3"],
    "sgd, accumulate": [*STAGES, "--optimizer", "sgd", "--accumulate", "2", "--schedule", "constant"],
    "batches by tokens": [*STAGES, "--batch_tokens", "90", "--shuffle_window", "20"],
    "float16": [*STAGES, "--mixed_precision", "float16"],
    "cosine, layers": [*STAGES, "--schedule", "cosine", "--warmup_steps", "2", "--layer_decay", "0.8"],
    "ema, float16": [*STAGES, "--ema", "0.9", "--mixed_precision", "float16", "--schedule", "constant"],
    "rdrop, fgm": [*STAGES, "--rdrop", "1", "--fgm", "0.5", "--accumulate", "2", "--learning_rate", "1e-3"],
    "sampling": ["--epochs", "3", "--sampling", "sqrt", "--batch_tokens", "90", "--optimizer", "sgd"],
}
# with a rate that changes nothing, nothing improves: the rate falls every two epochs, and after five the run stops
STUCK = [
    *("--epochs", "9", "--schedule", "plateau", "--plateau_patience", "2", "--patience", "5", "--warmup", "0"),
    *("--optimizer", "sgd", "--learning_rate", "1e-12", "--weight_decay", "0"),
]


class Killed(BaseException):
    """Ends a run where it is, as SIGKILL does: nothing is saved."""


def kill() -> None:
    raise Killed


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def twice() -> None:
    sigterm()
    sigterm()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 75).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small"), num_hidden_layers=1)


@dataclass
class Watch:
    """What training did, and what is to happen at its moments; a moment is (name, number of times it came)."""

    rows: list[Any] = field(default_factory=list)
    at: tuple[str, int] | None = None
    act: Callable[[], None] = sigterm
    count: int = 0

    def stop(self, name: str, number: int, act: Callable[[], None] = sigterm) -> None:
        self.at, self.act, self.count = (name, number), act, 0

    def came(self, name: str) -> None:
        if self.at is not None and self.at[0] == name:
            self.count += 1
            if self.count == self.at[1]:
                self.at = None
                self.act()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    from tfbert.recipes import classify
    from tfbert.training import stages as training

    seen = Watch()

    class Progress(training.StepProgress):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            seen.came("step")

    class Log(training.RunLog):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            seen.came("logged")

    class Best(classify.BestWeights):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            seen.came("best")

    class Scorer(classify.Scorer):
        def logits(self, batch: Any) -> Any:
            seen.came("validation")
            return super().logits(batch)

    class Trainer(training.Trainer):
        def fit(self, epochs: Any, *arguments: Any) -> None:
            def recorded(batches: Any) -> Iterator[Any]:
                for batch in batches:
                    name = "token_ids" if "token_ids" in batch else "labels"  # a frozen stage may see features instead
                    seen.rows.append(self.strategy.experimental_local_results(batch[name])[0].numpy().tolist())
                    seen.came("batch")
                    yield batch

            super().fit(
                (training.Epoch(e.number, recorded(e.batches), e.num_steps, e.first_step) for e in epochs), *arguments
            )

    for name, one in {"RunLog": Log, "Trainer": Trainer, "StepProgress": Progress}.items():
        monkeypatch.setattr(training, name, one)
    for name, other in {"BestWeights": Best, "Scorer": Scorer}.items():
        monkeypatch.setattr(classify, name, other)
    return seen


def state_of(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    state = read_state(run.folder / "last")
    assert state is not None
    return state


def assert_same_run(run: Run, straight: Run) -> None:
    assert same_weights(run, straight)
    arrays, values = state_of(run)
    wanted_arrays, wanted_values = state_of(straight)
    assert arrays.keys() == wanted_arrays.keys()
    assert [name for name in arrays if not np.array_equal(arrays[name], wanted_arrays[name])] == []
    assert values == wanted_values

    def numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name not in (*SPEED, "time")} for row in rows]

    assert numbers(run.log) == numbers(straight.log)
    assert numbers(run.metrics) == numbers(straight.metrics)
    scores = "report/scores.json"
    assert (run.folder / scores).read_bytes() == (straight.folder / scores).read_bytes()
    assert (run.folder / "finished").exists()


@pytest.fixture(scope="module")
def straight_runs(data: Path, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Uninterrupted runs by their settings; nothing may change them."""
    made: dict[tuple[str, ...], Run] = {}

    def get(*flags: str) -> Run:
        if flags not in made:
            made[flags] = train(data, tmp_path_factory.mktemp("straight") / "run", *flags, init=small)
        return made[flags]

    return get


# ------------------------------------------------------------------------------------------------ stopped by a signal


@pytest.mark.parametrize(("settings", "every"), [("adamw, dropout", 2), *((name, 3) for name in SETTINGS)])
def test_stopped_again_and_again(data: Path, small: Path, tmp_path: Path, watch: Watch, settings: str, every: int):
    """Cases 065, 106 and 117: each process takes a few steps, across the ends of epochs and stages."""
    flags = SETTINGS[settings]
    watch.rows.clear()
    straight = train(data, tmp_path / "straight", *flags, init=small)
    wanted, watch.rows = watch.rows, []
    assert len(wanted) >= STEPS
    for _ in range(len(wanted) // every):
        watch.stop("step", every)
        run = train(data, tmp_path / "run", *flags, init=small, code=143)
    watch.at = None
    train(data, run.folder, *flags, init=small)
    assert watch.rows == wanted
    assert_same_run(run, straight)


@pytest.mark.parametrize("moment", ["validation", "logged", "best", "batch"])
@pytest.mark.parametrize("act", [sigterm, kill])
def test_stopped_between_steps(
    data: Path,
    small: Path,
    tmp_path: Path,
    watch: Watch,
    straight_runs: Callable[..., Run],
    moment: str,
    act: Callable[[], None],
):
    """In and behind validation, before the first step; the log of an epoch that is repeated has one line of it."""
    flags = SETTINGS["adamw, dropout"]
    straight = straight_runs(*flags)
    watch.stop(moment, 2, act)
    if act is kill:
        with pytest.raises(Killed):
            train(data, tmp_path / "run", *flags, init=small)
    else:
        train(data, tmp_path / "run", *flags, init=small, code=143)
    assert not (tmp_path / "run/finished").exists()
    assert_same_run(train(data, tmp_path / "run", *flags, init=small), straight)


def test_stopped_in_the_report(data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any):
    """The fourth validation is that of the best weights, behind the last epoch: a signal acts there too."""
    flags = SETTINGS["adamw, dropout"]
    straight = straight_runs(*flags)
    watch.stop("validation", 4)
    train(data, tmp_path / "run", *flags, init=small, code=143)
    watch.rows.clear()
    assert_same_run(train(data, tmp_path / "run", *flags, init=small), straight)
    assert watch.rows == []


def test_sigint(data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any):
    flags = SETTINGS["adamw, dropout"]
    watch.stop("step", 6, lambda: os.kill(os.getpid(), signal.SIGINT))
    run = train(data, tmp_path / "run", *flags, init=small, code=130)
    position = state_of(run)[1]["position"]
    assert (position["epoch"], position["epoch_step"], position["totals"]["rows"]) == (1, 2, 32)
    assert_same_run(train(data, run.folder, *flags, init=small), straight_runs(*flags))


def test_two_signals_at_once_are_one(data: Path, small: Path, tmp_path: Path, watch: Watch):
    """`timeout` sends two: the state is saved all the same."""

    watch.stop("step", 2, twice)
    run = train(data, tmp_path / "run", *STAGES, init=small, code=143)
    assert state_of(run)[1]["position"]["epoch_step"] == 2


def test_a_later_signal_acts_at_once(data: Path, small: Path, tmp_path: Path, watch: Watch, monkeypatch: Any):
    from tfbert.callbacks import save_state

    monkeypatch.setattr(save_state, "IMPATIENT_AFTER_S", 1e-9)
    watch.stop("step", 2, twice)
    train(data, tmp_path / "run", *STAGES, init=small, code=143)
    assert not (tmp_path / "run/last").exists()


def test_the_handlers_of_the_caller_come_back(data: Path, small: Path, tmp_path: Path, watch: Watch):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    watch.stop("step", 1)
    train(data, tmp_path / "run", *STAGES, init=small, code=143)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# ------------------------------------------------------------------------------------------------- killed at any step


@pytest.mark.parametrize(("step", "save_steps"), [(3, 0), (10, 0), (3, 1), (10, 1), (5, 3), (8, 3)])
def test_killed_in_an_epoch(
    data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any, step: int, save_steps: int
):
    """Goes on from the last save; before the first one it starts again."""
    flags = SETTINGS["adamw, dropout"]
    watch.stop("step", step, kill)
    words = [*flags, "--save_steps", str(save_steps), "--save_minutes", "0"]
    with pytest.raises(Killed):
        train(data, tmp_path / "run", *words, init=small)
    watch.rows.clear()
    run = train(data, tmp_path / "run", *words, init=small)
    taken = step - 1  # the one that was killed had not ended
    in_epoch = taken % 4
    kept = taken - (in_epoch % save_steps if save_steps else in_epoch)
    assert len(watch.rows) == STEPS - kept
    assert_same_run(run, straight_runs(*flags))


def test_saves_by_the_clock(data: Path, small: Path, tmp_path: Path, watch: Watch):
    watch.stop("step", 3, kill)
    with pytest.raises(Killed):
        train(data, tmp_path / "run", *STAGES, "--save_minutes", "1e-9", init=small)
    assert state_of(Run(tmp_path / "run"))[1]["position"]["epoch_step"] == 2


def test_leftovers_of_a_kill_do_no_harm(data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any):
    """Half a state, half a line of each log."""
    flags = SETTINGS["adamw, dropout"]
    watch.stop("step", 6, kill)
    with pytest.raises(Killed):
        train(data, tmp_path / "run", *flags, init=small)
    folder = tmp_path / "run"
    (folder / "last/writing-000002").mkdir()
    (folder / "last/writing-000002/state.json").write_bytes(b"{")
    (folder / "saving-best.weights.h5").write_bytes(b"half")
    for name, half in (("log.tsv", b"2\tfull\t0.3"), ("metrics.jsonl", b'{"epoch": 2, "st')):
        with (folder / name).open("ab") as file:
            file.write(half)
    assert_same_run(train(data, folder, *flags, init=small), straight_runs(*flags))


@pytest.mark.parametrize("content", [b"", b"1\tfro"])
def test_a_lost_log_does_not_stop_the_run(
    data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any, content: bytes
):
    flags = SETTINGS["adamw, dropout"]
    watch.stop("step", 6)
    train(data, tmp_path / "run", *flags, init=small, code=143)
    (tmp_path / "run/log.tsv").write_bytes(content)
    (tmp_path / "run/metrics.jsonl").write_bytes(b"\n[]\n")
    run = train(data, tmp_path / "run", *flags, init=small)
    assert [row["epoch"] for row in run.log] == ["2", "3"]
    assert [row["epoch"] for row in run.metrics] == [2, 3]
    assert same_weights(run, straight_runs(*flags))


def test_an_unfinished_run_without_a_state_starts_again(data: Path, small: Path, tmp_path: Path, straight_runs: Any):
    """Its saves had failed; what its log and best weights say is not carried over."""
    flags = SETTINGS["adamw, dropout"]
    shutil.copytree(straight_runs(*flags).folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/last")
    (tmp_path / "run/finished").unlink()
    assert_same_run(train(data, tmp_path / "run", *flags, init=small), straight_runs(*flags))


def test_a_full_disk_costs_the_state_alone(
    data: Path,
    small: Path,
    tmp_path: Path,
    watch: Watch,
    straight_runs: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    from tfbert.callbacks import save_state

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    flags = SETTINGS["adamw, dropout"]
    with monkeypatch.context() as patch:
        patch.setattr(save_state, "write_state", full)
        watch.stop("step", 10)
        train(data, tmp_path / "run", *flags, init=small, code=143)
    shown = capsys.readouterr().err
    assert "could not be saved" in shown
    assert "the state is saved" not in shown
    assert_same_run(train(data, tmp_path / "run", *flags, init=small), straight_runs(*flags))


# --------------------------------------------------------------------------------------- what callbacks have to know


@pytest.mark.parametrize(("step", "act"), [(5, kill), (8, sigterm), (9, kill), (16, sigterm)])
def test_patience_and_plateau_go_on_counting(
    data: Path,
    small: Path,
    tmp_path: Path,
    watch: Watch,
    straight_runs: Any,
    step: int,
    act: Callable[[], None],
):
    """Case 110."""
    straight = straight_runs(*STUCK)
    assert straight.column("learning_rate") == [1e-12, 1e-12, 1e-12, 5e-13, 5e-13, 2.5e-13]
    watch.stop("step", step, act)
    if act is kill:
        with pytest.raises(Killed):
            train(data, tmp_path / "run", *STUCK, init=small)
    else:
        train(data, tmp_path / "run", *STUCK, init=small, code=143)
    assert_same_run(train(data, tmp_path / "run", *STUCK, init=small), straight)


def test_a_worse_epoch_after_going_on_is_not_the_best(
    data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any
):
    """Cases 105 and 109: val_loss falls, so the first epoch is the highest; the file stays that of it."""
    flags = ["--epochs", "3", "--learning_rate", "1e-3", "--monitor", "val_loss", "--mode", "max"]
    straight = straight_runs(*flags)
    assert straight.column("val_loss")[0] == max(straight.column("val_loss"))
    watch.stop("step", 6)
    run = train(data, tmp_path / "run", *flags, init=small, code=143)
    first = run.weights
    train(data, run.folder, *flags, init=small)
    assert all(np.array_equal(first[name], array) for name, array in run.weights.items())
    assert_same_run(run, straight)


def test_speed_counts_the_rows_of_this_process(data: Path, small: Path, tmp_path: Path, watch: Watch):
    """Stopped behind the last step of an epoch: nothing is left to train in it, so there is no rate of it."""
    watch.stop("step", 4)
    run = train(data, tmp_path / "run", *STAGES, init=small, code=143)
    train(data, run.folder, *STAGES, init=small)
    assert run.column("rows_per_s")[0] == run.column("tokens_per_s")[0] == 0
    assert 0 < min(run.column("rows_per_s")[1:]) < 1e6


# ------------------------------------------------------------------------------------------------------- more epochs


def test_more_epochs_for_a_finished_run(data: Path, small: Path, tmp_path: Path, straight_runs: Any, watch: Watch):
    """Case 114; with a constant rate the run is the longer one, also when it is stopped in the added epoch."""
    flags = ["--schedule", "constant", "--warmup", "0", "--learning_rate", "1e-3"]
    straight = straight_runs("--epochs", "3", *flags)
    run = train(data, tmp_path / "run", "--epochs", "2", *flags, init=small)
    watch.rows.clear()
    watch.stop("step", 2)
    train(data, run.folder, "--epochs", "3", *flags, init=small, code=143)
    assert not (run.folder / "finished").exists()
    train(data, run.folder, "--epochs", "3", *flags, init=small)
    assert len(watch.rows) == 4
    assert_same_run(run, straight)
    before = run.snapshot()
    train(data, run.folder, "--epochs", "3", *flags, init=small)
    assert run.snapshot() == before


def test_more_epochs_behind_an_early_stop(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], straight_runs: Any
):
    """As the longer run would have stopped there as well, nothing is trained, and it says so."""
    shutil.copytree(straight_runs(*STUCK).folder, tmp_path / "run")
    run = train(data, tmp_path / "run", *STUCK, "--epochs", "12", init=small)
    assert "--patience had stopped it after epoch 6" in capsys.readouterr().err
    assert_same_run(run, straight_runs(*STUCK))


def test_more_epochs_without_a_state_are_refused(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], straight_runs: Any
):
    """Case 105: starting again would replace the best weights."""
    flags = SETTINGS["adamw, dropout"]
    shutil.copytree(straight_runs(*flags).folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/last")
    before = Run(tmp_path / "run").snapshot()
    train(data, tmp_path / "run", *flags, "--epochs", "5", init=small, code=2)
    assert "without last/" in error_line(capsys.readouterr().err)
    assert Run(tmp_path / "run").snapshot() == before


# ---------------------------------------------------------------------------------------------- what does not go on


@pytest.fixture
def stopped(data: Path, small: Path, tmp_path: Path, watch: Watch) -> Run:
    watch.stop("step", 6)
    return train(data, tmp_path / "run", *SETTINGS["adamw, dropout"], init=small, code=143)


@pytest.mark.parametrize(
    "change", [["--seed", "1"], ["--epochs", "1"], ["--learning_rate", "1e-4"], ["--frozen_epochs", "2"]]
)
def test_other_settings_are_refused(
    data: Path, small: Path, stopped: Run, capsys: pytest.CaptureFixture[str], change: list[str]
):
    """Case 107."""
    before = stopped.snapshot()
    train(data, stopped.folder, *SETTINGS["adamw, dropout"], *change, init=small, code=2)
    assert f"{change[0][2:]} " in error_line(capsys.readouterr().err)
    assert stopped.snapshot() == before


def test_changed_data_are_refused(
    data: Path, small: Path, tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
):
    """Case 107: the same place, other rows."""
    own = tmp_path / "own"
    own.mkdir()
    make_data(own, 75)
    watch.stop("step", 6)
    run = train(own / "data", tmp_path / "run", *STAGES, init=small, code=143)
    shutil.rmtree(own / "data")
    make_data(own, 78)
    best = (run.folder / "best.weights.h5").read_bytes()
    train(own / "data", run.folder, *STAGES, init=small, code=2)
    assert "changed since" in error_line(capsys.readouterr().err)
    assert (run.folder / "best.weights.h5").read_bytes() == best


def test_changed_bare_files_are_refused(small: Path, tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]):
    """As many rows as before, but others."""
    rows = [{"label": i % 3, "wordids": [2, 5 + i % 7, 6, 3]} for i in range(60)]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    watch.stop("step", 2)
    run = train(path, tmp_path / "run", *STAGES, init=small, code=143)
    path.write_bytes(b"".join(orjson.dumps(row | {"label": 0}) + b"\n" for row in rows))
    (tmp_path / "rows.idx").unlink()
    path.with_name("labels.txt").write_text("a\nb\nc\n", encoding="utf-8")
    train(path, run.folder, *STAGES, init=small, code=2)
    assert "changed since" in error_line(capsys.readouterr().err)


def test_a_state_of_another_model_is_refused(
    data: Path, tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
):
    """The config file that --init names was changed."""
    model = write_model(tmp_path, num_hidden_layers=1)
    watch.stop("step", 6)
    run = train(data, tmp_path / "run", *STAGES, init=model, code=143)
    write_model(tmp_path, num_hidden_layers=1, hidden_size=8)
    train(data, run.folder, *STAGES, init=model, code=2)
    assert "the state is of another model" in error_line(capsys.readouterr().err)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def test_a_damaged_state_falls_back(data: Path, small: Path, stopped: Run, straight_runs: Any):
    """Case 107: the newest is passed over, the one before is the end of the frozen epoch."""
    cut(max(stopped.folder.glob("last/*/state.safetensors")))
    flags = SETTINGS["adamw, dropout"]
    assert_same_run(train(data, stopped.folder, *flags, init=small), straight_runs(*flags))


def test_nothing_but_damaged_states(data: Path, small: Path, stopped: Run, capsys: pytest.CaptureFixture[str]):
    """Case 107: a message, and the best weights stay; without the folder the run starts again."""
    for path in stopped.folder.glob("last/*/state.json"):
        cut(path)
    best = (stopped.folder / "best.weights.h5").read_bytes()
    flags = SETTINGS["adamw, dropout"]
    train(data, stopped.folder, *flags, init=small, code=2)
    assert "2 damaged states. Delete the folder" in error_line(capsys.readouterr().err)
    assert (stopped.folder / "best.weights.h5").read_bytes() == best
    shutil.rmtree(stopped.folder / "last")
    train(data, stopped.folder, *flags, init=small)


def test_a_loss_that_is_not_finite_is_not_saved(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Case 115: the state is from before it, and the same command finds it again."""
    flags = [*STAGES, "--learning_rate", "1e30", "--save_steps", "1"]
    for _ in range(2):
        run = train(data, tmp_path / "run", *flags, init=small, code=2)
        assert "must be finite" in error_line(capsys.readouterr().err)
        arrays, values = state_of(run)
        assert all(np.isfinite(array).all() for array in arrays.values())
        assert values["stage"] == "full"
        assert [row["stage"] for row in run.log] == ["frozen"]


# ------------------------------------------------------------------------------------------------------ other devices


@pytest.mark.parametrize("devices", [("cpu:1", "cpu:2"), ("cpu:2", "cpu:1"), ("cpu:2", "cpu:2")])
def test_other_devices(
    data: Path, small: Path, tmp_path: Path, watch: Watch, straight_runs: Any, devices: tuple[str, str]
):
    """Dropout aside, the devices do not decide the result."""
    model = write_model(tmp_path, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    flags = [*SETTINGS["adamw, dropout"], "--head_dropout", "0"]
    straight = train(data, tmp_path / "straight", *flags, init=model)
    watch.stop("step", 6)
    run = train(data, tmp_path / "run", *flags, "--devices", devices[0], init=model, code=143)
    train(data, run.folder, *flags, "--devices", devices[1], init=model)
    wanted = straight.weights
    assert all(np.allclose(array, wanted[name], atol=1e-5) for name, array in run.weights.items())
    assert run.column("val_loss") == pytest.approx(straight.column("val_loss"), abs=1e-5)
