"""Small corpora and pretrainings through the command lines, by a clock that only steps move."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from classify_runs import SHAPE, Run
from encode_runs import TOKENS, write_vocab
from safetensors.numpy import load_file

from tfbert.data.record import Record, dump

SIZES = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
LETTERS = (5, 31)  # ids of one-letter words


def write_rows(path: Path, count: int, seed: int = 0, **more: Any) -> None:
    """Rows of letters that follow each other in the alphabet, so that a masked one can be told from its neighbours."""
    draw = np.random.default_rng(seed)
    with path.open("wb") as file:
        for i in range(count):
            first, length = int(draw.integers(*LETTERS)), int(draw.integers(3, 12))
            letters = [LETTERS[0] + (first + k) % (LETTERS[1] - LETTERS[0]) for k in range(length)]
            values = {name: give(i, length + 2) for name, give in more.items()}
            file.write(dump(Record([2, *letters, 3], **values)))


def make_rows(folder: Path, train: int = 60, val: int = 20, **more: Any) -> Path:
    """A folder of bare files with their vocabulary."""
    data = folder / "rows"
    data.mkdir()
    write_rows(data / "train.jsonl", train, **more)
    if val:
        write_rows(data / "val.jsonl", val, seed=1, **more)
    write_vocab(data)
    return data


class Time:
    """Seconds of a fake clock; each step takes some."""

    def __init__(self, step_s: float):
        self.seconds, self.step_s = 0.0, step_s
        self.steps = 0
        self.at: tuple[int, Callable[[], None]] | None = None  # step and what happens behind it

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def fake_time(step_s: float) -> Iterator[Time]:
    """Each step takes `step_s` seconds, everything else no time."""
    from tfbert.recipes import pretrain

    now = Time(step_s)

    class Forecast(pretrain.Forecast):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now.seconds += now.step_s
            now.steps += 1
            super().on_train_batch_end(batch, logs)

    class SaveState(pretrain.SaveState):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if now.at is not None and now.steps == now.at[0]:
                act = now.at[1]
                now.at = None
                act()

    def clock(total_s: float, path: Path | None = None) -> Any:
        return Clock(total_s, path, now)

    Clock = pretrain.Clock  # noqa: N806 - the class
    with patch.multiple(pretrain, Forecast=Forecast, SaveState=SaveState, Clock=clock):
        yield now


def pretrain(data: Path, run_dir: Path, *flags: str, hours: float = 0.01, code: int = 0) -> Run:
    """`train.py pretrain` in this process."""
    import train as script

    words = ["--data", str(data), "--run_dir", str(run_dir), *(SIZES if "--init" not in flags else [])]
    speed = ["--lr", "1e-2", "--train_batch_size", "16", "--train_micro_batch_size_per_gpu", "16", "--devices", "cpu:1"]
    usual = ["--total_training_time", str(hours), "--print_steps", "3", "--validation_epochs", "1"]
    assert script.main(["pretrain", *words, *speed, *usual, *flags]) == code
    return Run(run_dir)


def exports(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "exports").iterdir())


def exported(run: Run, name: str = "end") -> dict[str, npt.NDArray[Any]]:
    """Tensors of an export by their names in it."""
    return load_file(run.folder / "exports" / name / "model.safetensors")


def same_tensors(a: dict[str, npt.NDArray[Any]], b: dict[str, npt.NDArray[Any]], atol: float = 0.0) -> bool:
    assert a.keys() == b.keys()
    return all(np.allclose(a[name], b[name], rtol=0, atol=atol) for name in a)


NUM_TOKENS = len(TOKENS)
