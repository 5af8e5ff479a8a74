"""What `predict.py run` leaves behind when something goes wrong, and that the same command ends well after it."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from classify_runs import make_data, predict, table, train
from encode_runs import error_line

ROOT = Path(__file__).parents[2]
WINDOW_ROWS, CHUNK_BYTES = 16, 300  # a window ends anywhere in a chunk
ROWS = 150

pytestmark = pytest.mark.usefixtures("eagerly")


class Killed(BaseException):
    """Ends the process as far as the product can tell."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, logical_cpus: int) -> Path:
    """A run, and rows to label; nothing may change them."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    folder = tmp_path_factory.mktemp("trained")
    data = make_data(folder, 60)
    train(data.folder, folder / "run")
    tf.config.run_functions_eagerly(False)
    lines = table(ROWS, seed=3).splitlines(keepends=True)
    lines[20] = "broken\n"
    (folder / "rows.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few rows, each saved."""
    from tfbert import predictor

    monkeypatch.setattr(predictor, "WINDOW_ROWS", WINDOW_ROWS)
    monkeypatch.setattr(predictor, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(predictor, "SAVE_S", 0.0)


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes the next jobs die when they write their n-th window; 0 lets them live. Counts the windows they write."""
    from tfbert.data.journal import JournaledFile

    write, at = JournaledFile.write, 0
    windows: list[int] = []

    def patched(self: JournaledFile, data: bytes) -> None:
        windows.append(len(data))
        if at and len(windows) == at:
            write(self, data[: len(data) // 2])
            raise Killed
        write(self, data)

    def set_to(number: int) -> list[int]:
        nonlocal at
        at = number
        windows.clear()
        return windows

    monkeypatch.setattr(JournaledFile, "write", patched)
    yield set_to  # type: ignore[misc]


def label(folder: Path, output: Path, *flags: str, rows: Path | None = None, code: int = 0) -> bytes | None:
    predict(folder / "run", rows or folder / "rows.tsv", "--keep", "id", *flags, output=output, code=code)
    return output.read_bytes() if output.exists() else None


def work_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.predict")


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz", ".csv"])
def test_the_same_command_goes_on_to_the_same_bytes(folder: Path, tmp_path: Path, killed_at, suffix: str) -> None:
    """Case 128: killed once or several times, in the middle of a write; the finished windows are not done again."""
    text = (folder / "rows.tsv").read_text(encoding="utf-8")
    content = (text.replace("\t", ",") if suffix == ".csv" else text).encode()
    rows = tmp_path / f"rows{suffix}"
    rows.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    whole = label(folder, tmp_path / "whole", rows=rows)
    output = tmp_path / "out.jsonl"
    for at in (4, 3):
        killed_at(at)
        with pytest.raises(Killed):
            label(folder, output, rows=rows)
        assert not output.exists()
        assert work_of(output).is_dir()
    windows = killed_at(0)
    assert label(folder, output, rows=rows) == whole
    assert len(windows) == -(-ROWS // WINDOW_ROWS) - 3 - 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", rows.name, "whole"]


@pytest.mark.usefixtures("small_steps")
def test_a_job_killed_before_it_published(folder: Path, tmp_path: Path, killed_at, monkeypatch) -> None:
    from tfbert.data.journal import JournaledFile

    def killed(*_: object) -> None:
        raise Killed

    whole = label(folder, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(JournaledFile, "publish", killed)
        label(folder, tmp_path / "out")
    windows = killed_at(0)
    assert label(folder, tmp_path / "out") == whole
    assert len(windows) <= 1  # what is left behind the last whole window


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("what", ["rows", "rows.saved", "run.json"])
def test_what_is_damaged_is_made_again(folder: Path, tmp_path: Path, killed_at, what: str) -> None:
    whole = label(folder, tmp_path / "whole")
    killed_at(5)
    with pytest.raises(Killed):
        label(folder, tmp_path / "out")
    path = work_of(tmp_path / "out") / what
    if what == "run.json":
        path.unlink()
    else:
        path.write_bytes(b"x" + path.read_bytes()[1:])
    killed_at(0)
    assert label(folder, tmp_path / "out") == whole
    assert not work_of(tmp_path / "out").exists()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("what", ["input", "weights", "columns", "batches"])
def test_a_job_of_something_else_is_refused(
    folder: Path, tmp_path: Path, killed_at, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """And begins again where it is told to."""
    own = tmp_path / "own"
    shutil.copytree(folder / "run", own / "run")
    shutil.copy(folder / "rows.tsv", own)
    output, flags = own / "out", []
    killed_at(3)
    with pytest.raises(Killed):
        label(own, output)
    killed_at(0)
    kept = sorted(path.name for path in work_of(output).iterdir())
    if what == "input":
        text = (own / "rows.tsv").read_text(encoding="utf-8")
        (own / "rows.tsv").write_text(text.replace("r7\t", "r8\t"), encoding="utf-8")
    elif what == "weights":
        import h5py

        with h5py.File(own / "run/best.weights.h5", "r") as file:
            names: list[str] = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            arrays = {name: file[name][()] for name in names}
        with h5py.File(own / "run/best.weights.h5", "w") as file:
            for name, value in arrays.items():
                file[name] = value + 1e-3
    elif what == "columns":
        flags = ["--text", "id"]
    else:
        flags = ["--batch_tokens", "100"]
    label(own, output, *flags, code=2)
    assert "the interrupted run had other inputs or settings. Run with --no_resume" in error_line(
        capsys.readouterr().err
    )
    assert sorted(path.name for path in work_of(output).iterdir()) == kept
    again = label(own, output, *flags, "--no_resume")
    assert again == label(own, own / "fresh", *flags)
    assert not work_of(output).exists()


def test_two_jobs_for_one_output(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tfbert.data.job_folder import JobFolder
    from tfbert.predictor import _OURS

    output = tmp_path / "out"
    with JobFolder(work_of(output), output, "--output", "other", True, _OURS, go_on="", begin_again=""):
        label(folder, output, code=2)
    assert "another run is writing it. Wait for it, or choose another --output" in error_line(capsys.readouterr().err)
    assert label(folder, output) is not None


def test_an_input_that_changes_meanwhile(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    from tfbert.data.journal import JournaledFile

    rows = tmp_path / "rows.tsv"
    shutil.copy(folder / "rows.tsv", rows)
    write = JournaledFile.write

    def changing(self: JournaledFile, data: bytes) -> None:
        with rows.open("ab") as file:
            file.write(b"r\tx\tant\n")
        write(self, data)

    monkeypatch.setattr(JournaledFile, "write", changing)
    label(folder, tmp_path / "out", rows=rows, code=2)
    assert "rows.tsv: the file changed while it was read" in error_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.tsv"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk(folder: Path, tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 024: nothing half is published, and with room the job goes on."""
    whole = label(folder, tmp_path / "whole")
    assert whole is not None
    output = small_disk / "out"
    output.write_bytes(b"before")
    (small_disk / "filler").write_bytes(bytes(40 << 10))
    label(folder, output, code=2)
    assert "No space left on device" in error_line(capsys.readouterr().err)
    assert output.read_bytes() == b"before"
    (small_disk / "filler").unlink()
    assert label(folder, output) == whole
    assert [path.name for path in small_disk.iterdir()] == ["out"]


SCRIPT = f"""
import sys
from tfbert.cli import import_tensorflow
import_tensorflow()
import tensorflow as tf
tf.config.run_functions_eagerly(True)
import predict
from tfbert import predictor
predictor.WINDOW_ROWS, predictor.CHUNK_BYTES, predictor.SAVE_S = {WINDOW_ROWS}, {CHUNK_BYTES}, 0.0
sys.exit(predict.main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal(folder: Path, tmp_path: Path, killed_at, number: signal.Signals) -> None:
    """In a process of its own, at whatever it is doing."""
    rows = tmp_path / "rows.tsv"
    rows.write_text(table(600, seed=4), encoding="utf-8")
    output = tmp_path / "out"
    words = ["run", "--run_dir", str(folder / "run"), "--input", str(rows), "--output", str(output), "--keep", "id"]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words, "--devices", "cpu:1"], cwd=ROOT, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        while process.poll() is None and not (work_of(output) / "rows.saved").exists():
            time.sleep(0.01)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (-9 if number == signal.SIGKILL else 143), error
    assert not output.exists()
    windows = killed_at(0)
    flags = ["--devices", "cpu:1"]
    resumed = label(folder, output, *flags, rows=rows)
    assert 0 < len(windows) < -(-600 // WINDOW_ROWS)
    assert resumed == label(folder, tmp_path / "whole", *flags, rows=rows)
    assert not work_of(output).exists()
