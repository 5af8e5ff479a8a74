"""Training in a process of its own: killed, told to stop, started twice, its state damaged."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from classify_runs import Run, make_data, same_weights, write_model
from encode_runs import error_line

from tfbert.loop.state import read_state

ROOT = Path(__file__).parents[2]
BOUND_S = 60.0  # for what takes a second; only a run that hangs comes near it
FLAGS = [
    *("--epochs", "3", "--learning_rate", "1e-3", "--global_batch_size", "8", "--devices", "cpu:1"),
    *("--save_steps", "1", "--head_units", "8"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 150).folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def command(data: Path, model: Path) -> Callable[..., list[str]]:
    def words(run_dir: Path, *flags: str) -> list[str]:
        given = ["--data", str(data), "--init", str(model), "--run_dir", str(run_dir)]
        return [sys.executable, "train.py", "classify", *given, *FLAGS, *flags]

    return words


def finish(words: list[str]) -> Run:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * BOUND_S)
    assert done.returncode == 0, done.stderr
    return Run(Path(words[words.index("--run_dir") + 1]))


@pytest.fixture(scope="module")
def straight(command: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """45 steps without a break."""
    return finish(command(tmp_path_factory.mktemp("straight") / "run"))


@contextmanager
def training(words: list[str], step: int) -> Iterator[subprocess.Popen[str]]:
    """A run that has saved its state `step` times, and trains on."""
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        last = Path(words[words.index("--run_dir") + 1]) / "last"
        end = time.monotonic() + 2 * BOUND_S
        while max((int(p.name) for p in last.glob("[0-9]*")), default=0) < step:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "no state was saved"
            time.sleep(0.002)
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_same(run: Run, straight: Run) -> None:
    assert same_weights(run, straight)
    for name in ("loss", "accuracy", "learning_rate", "val_loss", "val_accuracy"):
        assert run.column(name) == straight.column(name)
    state, wanted = read_state(run.folder / "last"), read_state(straight.folder / "last")
    assert state is not None
    assert wanted is not None
    assert state[1] == wanted[1]
    assert all(np.array_equal(state[0][name], array) for name, array in wanted[0].items())


UNTOUCHED = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config
from tfbert import strategy
from tfbert.recipes import classify

def watched(*arguments):
    print("untouched", context.context()._context_handle is None)
    made = strategy.make_strategy(*arguments)
    print("deterministic", config.is_op_determinism_enabled())
    return made

classify.make_strategy = watched
import train
sys.exit(train.main(sys.argv[1:]))
"""


def test_a_deterministic_run(command: Callable[..., list[str]], tmp_path: Path, straight: Run):
    """Case 087: no device is touched before memory growth is set; on one CPU the bits are those without the mode."""
    words = command(tmp_path / "run", "--deterministic")
    done = subprocess.run(
        [sys.executable, "-c", UNTOUCHED, *words[2:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["untouched True", "deterministic True"]
    assert_same(Run(tmp_path / "run"), straight)


def test_killed_at_any_moment(command: Callable[..., list[str]], tmp_path: Path, straight: Run):
    """Cases 065 and 107: in steps, saves and validations; a second job is refused while the first one runs (116)."""
    draw = random.Random(0)
    words = command(tmp_path / "run")
    saved = 0
    for attempt in range(3):
        with training(words, saved + draw.randint(3, 14)) as process:
            if attempt == 1:
                os.kill(process.pid, signal.SIGSTOP)  # so that it does not end meanwhile
                second = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND_S)
                assert second.returncode == 2, second.stderr
                assert "in use by another" in error_line(second.stderr)
                os.kill(process.pid, signal.SIGCONT)
            time.sleep(draw.random() * 0.02)
            process.kill()
            process.wait(BOUND_S)
        saved = max(int(p.name) for p in (tmp_path / "run/last").glob("[0-9]*"))
    assert_same(finish(words), straight)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_told_to_stop(
    command: Callable[..., list[str]], tmp_path: Path, straight: Run, number: signal.Signals, code: int
):
    """Case 117: ends soon, with the state saved; then the newest state is damaged, and the one before serves."""
    words = command(tmp_path / "run")
    with training(words, 7) as process:
        os.kill(process.pid, number)
        _, shown = process.communicate(timeout=BOUND_S)
    assert process.returncode == code, shown
    assert "Traceback" not in shown
    assert f"stopped by {number.name}" in shown
    newest, before = sorted((tmp_path / "run/last").iterdir(), reverse=True)[:2]
    assert int(newest.name) >= 7
    if number == signal.SIGTERM:
        (newest / "state.safetensors").write_bytes((newest / "state.safetensors").read_bytes()[:100])
    run = finish(words)
    assert_same(run, straight)
