"""Several workers share a run: processes on this machine, one of them the chief."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_runs import Run, make_data, read_json_lines, train, write_model
from pretrain_runs import SIZES, exported, exports, fake_time, make_rows, pretrain, same_tensors

from tfbert.training import stages

pytestmark = pytest.mark.usefixtures("logical_cpus")

ROOT = Path(__file__).parents[2]
COMMON = ("--devices", "cpu:1", "--learning_rate", "1e-2", "--head_dropout", "0", "--global_batch_size", "17")
WAIT_S = 120


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data")).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), hidden_dropout_prob=0, attention_probs_dropout_prob=0)


def start(
    data: Path, init: Path, run_dir: Path, workers: Sequence[int], *flags: str, only: Sequence[int] | None = None
) -> list[subprocess.Popen[str]]:
    """`train.py classify` in one process a port of `workers`, or in those of the ranks in `only`."""
    words = ["classify", "--data", str(data), "--init", str(init), "--run_dir", str(run_dir), *COMMON, *flags]
    return start_command(words, workers, only)


def start_command(
    words: Sequence[str], workers: Sequence[int], only: Sequence[int] | None = None
) -> list[subprocess.Popen[str]]:
    addresses = ",".join(f"localhost:{port}" for port in workers)
    return [
        subprocess.Popen(
            [sys.executable, "train.py", *words, "--workers", addresses, "--rank", str(rank)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for rank in (range(len(workers)) if only is None else only)
    ]


def ends(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes and what was written to stderr."""
    try:
        written = [process.communicate(timeout=WAIT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, written, strict=True)]


def distance(a: Run, b: Run) -> float:
    first, second = a.weights, b.weights
    assert first.keys() == second.keys()
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def test_two_workers_equal_one_device(data: Path, small: Path, tmp_path: Path) -> None:
    """Cases 166 to 168, 170, 171 and 176: uneven batches, one log, weights and scores of one device.

    So with what stands beside the weights: their average (EMA), the second pass (FGM), and going back to a state at a
    lower rate, here in the second stage.
    """
    flags = ["--frozen_epochs", "1", "--epochs", "2", "--ema", "0.9", "--fgm", "0.5", "--optimizer", "sgd"]
    flags += ["--frozen_learning_rate", "0.1", "--learning_rate", "1e29", "--nan_retries", "1"]
    flags += ["--nan_rate_factor", "1e-30", "--schedule", "constant", "--warmup", "0"]
    for code, text in ends(start(data, small, tmp_path / "two", free_ports(2), *flags, "--cluster_timeout", "60")):
        assert code == 0, text
    two = Run(tmp_path / "two")
    one = train(data, tmp_path / "one", *COMMON, *flags, init=small)
    assert distance(one, two) < 1e-5
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(two.column(name), one.column(name), atol=1e-5)
    assert [row["epoch"] for row in two.log] == ["1", "2", "3"]
    assert [row["nan_retries"] for row in two.metrics] == [0, 1, 1]
    assert (two.folder / "finished").exists()


class Killed(BaseException):
    """Ends a run where it is, as SIGKILL does: nothing is saved."""


def kill() -> None:
    raise Killed


def killing_at(step: int) -> type:
    class RowLog(stages.RowLog):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.trainer.step == step:
                raise Killed

    return RowLog


def test_two_workers_then_one_then_two_again(
    data: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 172 to 174 and 178: SIGTERM to one of two; one goes on and is killed; then two again, to the same weights.

    The row log has every row once an epoch, but for the steps behind the last state of the one that was killed.
    """
    usual = ["--epochs", "5", "--global_batch_size", "3", "--optimizer", "sgd", "--learning_rate", "0.1", "--row_log"]
    usual += ["--save_steps", "7"]
    run_dir = tmp_path / "run"
    whole = train(data, tmp_path / "whole", *COMMON, *usual, init=small)
    usual += ["--micro_batch_size", "2"]  # one worker takes twice as many as two
    flags = [*usual, "--cluster_timeout", "60"]

    processes = start(data, small, run_dir, free_ports(2), *flags)
    while not (run_dir / "rows.jsonl").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    for code, text in ends(processes):
        assert code == 143, text
    with_two = len(read_json_lines(run_dir / "rows.jsonl"))
    assert 0 < with_two < 150

    with monkeypatch.context() as patch:
        patch.setattr(stages, "RowLog", killing_at(170))
        with pytest.raises(Killed):
            train(data, run_dir, *COMMON, *usual, init=small)

    for code, text in ends(start(data, small, run_dir, free_ports(2), *flags)):
        assert code == 0, text
    run = Run(run_dir)
    assert [row["epoch"] for row in run.log] == [str(epoch) for epoch in range(1, 6)]
    assert distance(run, whole) < 1e-5
    np.testing.assert_allclose(run.column("val_loss"), whole.column("val_loss"), atol=1e-5)

    lines = read_json_lines(run_dir / "rows.jsonl")
    workers = [line["workers"] for line in lines]
    assert [number for number, _ in itertools.groupby(workers)] == [2, 1, 2]
    undisturbed = read_json_lines(whole.folder / "rows.jsonl")
    steps = {line["step"]: line["rows"] for line in lines}
    assert 0 < len(lines) - len(steps) < 7
    assert steps == {line["step"]: line["rows"] for line in undisturbed}
    for epoch in range(1, 6):
        rows = [row for line in undisturbed if line["epoch"] == epoch for row in line["rows"]]
        assert sorted(rows) == list(range(120))


def test_a_lost_worker_ends_the_other_in_bounded_time(data: Path, small: Path, tmp_path: Path) -> None:
    """The state of the last save is there, and the same command goes on from it."""
    flags = ("--epochs", "1000", "--save_steps", "3", "--cluster_timeout", "60")
    processes = start(data, small, tmp_path / "run", free_ports(2), *flags)
    while not (tmp_path / "run/last").is_dir():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    processes[1].kill()
    (code, text), _ = ends(processes)
    assert code == 1, text
    assert "another worker was lost" in text
    assert "Traceback" not in text
    assert [path for path in (tmp_path / "run/last").iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("fault", ["never comes", "port in use", "several devices"])
def test_a_worker_that_cannot_join_says_why(data: Path, small: Path, tmp_path: Path, fault: str) -> None:
    """Case 169."""
    ports = free_ports(2)
    flags = ["--cluster_timeout", "3"]
    taken = socket.socket()
    if fault == "port in use":
        taken.bind(("", ports[0]))
        taken.listen()
    if fault == "several devices":
        flags += ["--devices", "cpu:2"]
    with taken:
        ((code, text),) = ends(start(data, small, tmp_path / "run", ports, *flags, only=[0]))
    error = text.strip().splitlines()[-1]
    assert code == 2, text
    assert error.startswith("error: ")
    assert {"never comes": f"none from localhost:{ports[1]}", "port in use": f"localhost:{ports[0]}"}.get(
        fault, "cpu:2"
    ) in error
    assert not (tmp_path / "run").exists()


PRETRAIN = ("--devices", "cpu:1", "--print_steps", "3", "--validation_epochs", "1", "--lr", "1e-2", *SIZES)
NO_DROPOUT = ("--hidden_dropout_prob", "0", "--attention_probs_dropout_prob", "0")


def start_pretraining(data: Path, run_dir: Path, *flags: str) -> list[subprocess.Popen[str]]:
    return start_command(
        ["pretrain", "--data", str(data), "--run_dir", str(run_dir), *PRETRAIN, *flags, "--cluster_timeout", "60"],
        free_ports(2),
    )


def test_two_workers_pretrain_as_one_device(tmp_path: Path) -> None:
    """Batches that grow and do not divide, micro-batches, validation shared out: weights, log and export of one."""
    data = make_rows(tmp_path, train=40, val=19)
    flags = [
        "--lr_schedule",
        "step",
        "--max_steps",
        "10",
        "--train_batch_size",
        "17",
        *NO_DROPOUT,
        "--optimizer",
        "sgd",
    ]
    flags += ["--train_micro_batch_size_per_gpu", "4", "--warmup_batch_size", "5", "--batch_warmup_rows", "30"]
    flags += ["--validation_micro_batch", "3"]
    for code, text in ends(start_pretraining(data, tmp_path / "two", *flags)):
        assert code == 0, text
    two = Run(tmp_path / "two")
    with fake_time(0.0):
        one = pretrain(data, tmp_path / "one", *PRETRAIN, *flags)
    assert same_tensors(exported(one), exported(two), atol=1e-5)
    assert [row["step"] for row in two.log] == [row["step"] for row in one.log]
    for name in ("loss", "mlm_accuracy", "learning_rate"):
        np.testing.assert_allclose(two.column(name), one.column(name), rtol=1e-5)
    for name in ("val_loss", "val_mlm_accuracy"):
        of_two, of_one = ([float(row[name]) for row in run.log if row[name]] for run in (two, one))
        np.testing.assert_allclose(of_two, of_one, rtol=1e-5)
    assert len(of_two) == 2
    assert (two.folder / "finished").exists()
    assert "advice" in (two.folder / "parallel.json").read_text(encoding="utf-8")


def test_workers_stop_validate_and_export_by_one_clock(tmp_path: Path) -> None:
    """Only the chief knows how long the process before went on behind its last state: five seconds are left.

    Were the other to decide by a clock of its own, the chief would wait for it in vain.
    """
    data = make_rows(tmp_path)
    flags = ["--total_training_time", "1", "--finetune_time_markers", "0.2,1", "--train_batch_size", "16"]
    flags += ["--train_micro_batch_size_per_gpu", "16"]
    flags += ["--use_early_stopping", "--early_stop_time", "59.95", "--early_stop_eval_loss", "99", "--save_steps", "2"]
    with fake_time(1.0) as now:
        now.at = (3, kill)
        with pytest.raises(Killed):
            pretrain(data, tmp_path / "run", *PRETRAIN, *flags)
    (tmp_path / "run/last/clock.json").write_text('{"spent_s": 3595}', encoding="utf-8")
    for code, text in ends(start_pretraining(data, tmp_path / "run", *flags)):
        assert code == 0, text
    run = Run(tmp_path / "run")
    assert exports(run) == ["0.2", "1", "end"]
    last = run.log[-1]
    assert last["val_loss"]
    assert float(last["hours"]) >= 1
    steps = [int(row["step"]) for row in run.log]
    assert steps == sorted(set(steps))
