"""What `preprocess corpus` leaves behind when something goes wrong in the middle of its work."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from encode_runs import InlineExecutor, error_line, write_vocab

from preprocess import corpus as corpus_module
from preprocess.__main__ import main
from preprocess.parts import PartFiles, PartStats

ROOT = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = "\n\n".join(f"{LETTERS[i]} one. B two {LETTERS[i]}! C" for i in range(26))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_vocab(tmp_path)
    (tmp_path / "in.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def command(folder: Path, *flags: str, out: str = "data") -> list[str]:
    common = ["--vocab", str(folder / "vocab.txt"), "--out", str(folder / out), "--workers", "1", "--max_len", "16"]
    common += ["--chunk_bytes", "60", "--val_fraction", "0.2", "--pairs", "nsp"]
    return ["corpus", str(folder / "in.txt"), *common, *flags]


def run(folder: Path, *flags: str, out: str = "data") -> int:
    with (
        patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor),
        patch("preprocess.corpus_documents.BUCKET_BYTES", 900),
    ):
        return main(command(folder, *flags, out=out))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def open_outputs(folder: Path) -> list[str]:
    """Data files and pieces of an index that this process holds open in the folder."""
    found: list[Path] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one of the loop itself
            found.append(descriptor.readlink())
    return [str(path) for path in found if path.is_relative_to(folder) and path.name.startswith(("train.", "val."))]


def stage(prefix: str) -> str:
    return Path(prefix).name.split("-")[0]


@contextmanager
def failing_at(name: str, number: int, error: BaseException) -> Iterator[Counter[str]]:
    """The `number`-th part of a stage cannot be saved; counts the parts that are made."""
    made: Counter[str] = Counter()
    save = PartFiles.save

    def patched(self: PartFiles, contents: dict[str, bytes], stats: PartStats) -> PartStats:
        made[stage(self.prefix)] += 1
        if stage(self.prefix) == name and made[name] == number:
            self.path(".jsonl").write_bytes(b"half of")
            raise error
        return save(self, contents, stats)

    with patch.object(PartFiles, "save", patched):
        yield made


@pytest.mark.parametrize("name, number", [("documents", 3), ("packed", 2), ("train", 2), ("val", 1)])
def test_an_interrupted_run_goes_on_from_whole_parts(folder: Path, name: str, number: int) -> None:
    assert run(folder, out="whole") == 0
    with failing_at(name, number, KeyboardInterrupt()):
        assert run(folder) == 130
    assert not (folder / "data").exists()
    work = folder / ".data.encode"
    assert work.is_dir()
    assert not list(work.glob("*.tmp"))
    assert not open_outputs(folder)
    with failing_at("", 0, KeyboardInterrupt()) as made:
        assert run(folder, "--resume") == 0
    order = ["documents", "packed", "train", "val"]
    assert not any(made[done] for done in order[: order.index(name)])
    assert files(folder / "data") == files(folder / "whole")
    assert not work.exists()


def test_other_settings_do_not_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with failing_at("packed", 2, KeyboardInterrupt()):
        assert run(folder) == 130
    for flags in (["--seed", "1"], ["--short_fraction", "0.2"], ["--whole_words", "none"]):
        capsys.readouterr()
        assert run(folder, "--resume", *flags) == 2
        assert "other inputs or settings" in error_line(capsys.readouterr().err)
    with failing_at("packed", 2, KeyboardInterrupt()):
        assert run(folder) == 130
    (folder / "in.txt").write_text(TEXT.replace("two", "six"), encoding="utf-8")
    assert run(folder, "--resume") == 2
    assert run(folder) == 0


@pytest.mark.parametrize("name", ["documents", "packed", "train"])
def test_a_full_disk(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    before = files(folder / "data")
    (folder / "in.txt").write_text(TEXT + "\n\nmore\n", encoding="utf-8")
    with failing_at(name, 1, OSError(28, "No space left on device")):
        assert run(folder) == 2
    assert "No space left on device" in error_line(capsys.readouterr().err)
    assert files(folder / "data") == before
    assert run(folder, "--resume") == 0
    assert files(folder / "data") != before


def test_an_error_in_a_worker_tells_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("preprocess.corpus_read.split_sentences", side_effect=ValueError("boom")):
        assert run(folder) == 1
    error = capsys.readouterr().err
    assert "boom" in error
    assert f"{folder / 'in.txt'}:1: this document was worked on" in error
    assert not (folder / "data").exists()


def test_an_input_that_changes_meanwhile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = corpus_module._read

    def read(*arguments):
        parts = original(*arguments)
        (folder / "in.txt").write_text(TEXT + "!", encoding="utf-8")
        return parts

    with patch.object(corpus_module, "_read", read):
        assert run(folder) == 2
    assert "the file changed while it was read" in error_line(capsys.readouterr().err)
    assert not (folder / "data").exists()


def start(folder: Path, *flags: str, out: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "preprocess", *command(folder, *flags, out=out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_killed_and_gone_on_with_other_workers(folder: Path) -> None:
    """A kill of the process at any time; then the same command, with other workers: the same bytes."""
    (folder / "in.txt").write_text("\n\n".join([TEXT] * 4), encoding="utf-8")
    whole = start(folder, "--workers", "2", out="whole")
    assert whole.wait(120) == 0
    process = start(folder, "--workers", "2", out="data")
    work = folder / ".data.encode"
    deadline = time.monotonic() + 60
    while not any(work.glob("documents-000002.stats")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    resumed = start(folder, "--resume", "--workers", "1", out="data")
    _, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, error
    assert files(folder / "data") == files(folder / "whole")
