"""Ray instead of the pool of one machine: the same bytes, the same errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from encode_runs import write_vocab

from tfbert.errors import DataError, WorkerError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra `ray`)")


def set_factor(factor: int) -> None:
    os.environ["FACTOR"] = str(factor)


def work(task: int) -> int:
    if task == -1:
        raise DataError("file:1: the user's fault")
    if task == -2:
        raise KeyError("ours")
    return task * int(os.environ["FACTOR"])


def place(task: int) -> str:
    return f"task {task}"


@pytest.fixture(scope="module")
def pool() -> Iterator[object]:
    from preprocess.ray_pool import RayPool

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")]
    )
    with RayPool(2, set_factor, (3,)) as made:
        yield made


def test_results_come_in_order_and_errors_keep_their_kind(pool) -> None:
    assert list(pool.map(work, range(30), place)) == [(task, 3 * task) for task in range(30)]
    with pytest.raises(DataError, match="the user's fault"):
        list(pool.map(work, [1, -1], place))
    with pytest.raises(WorkerError, match=r"KeyError(?s:.)*A worker failed on task -2"):
        list(pool.map(work, [1, -2], place))


def test_encode_gives_the_bytes_of_the_pool(tmp_path: Path) -> None:
    rows = "".join(f"row {i}\t{'ab'[i % 2]}\n" for i in range(500)) + "no label\n"
    (tmp_path / "in.tsv").write_text(rows, encoding="utf-8")
    vocab = write_vocab(tmp_path)
    written = []
    for engine in ("local", "ray"):
        words = ["in.tsv", "--out", engine, "--vocab", str(vocab), "--text", "0", "--label", "1", "--engine", engine]
        command = [sys.executable, "-m", "preprocess", "encode", *words, "--val_fraction", "0.1"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        files = sorted((tmp_path / engine).iterdir())
        written.append({path.name: path.read_bytes() for path in files})
    assert written[0] == written[1]


def test_ray_that_is_missing_or_unreachable_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from preprocess.__main__ import main

    (tmp_path / "in.tsv").write_text("a\tx\n", encoding="utf-8")
    words = [
        str(tmp_path / "in.tsv"),
        "--out",
        str(tmp_path / "d"),
        "--vocab",
        str(write_vocab(tmp_path)),
        "--text",
        "0",
    ]
    assert main(["encode", *words, "--ray_address", "auto"]) == 2
    assert "--engine ray" in capsys.readouterr().err
    assert main(["encode", *words, "--engine", "slurm"]) == 2
    assert "local, ray" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfbert.errors import ConfigError
    from tfbert.ray_cluster import import_ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'tfbert\[ray\]'"):
        import_ray()
