"""The folder of a run: its lock, and where it lies."""

import fcntl
from pathlib import Path

import pytest

from preprocess.work_folder import WorkFolder
from tfbert.errors import DataError


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with WorkFolder(tmp_path / "data", "a", resume=False) as first:
        (first.folder / "train-000000.jsonl").touch()
        with pytest.raises(DataError, match="another run"), WorkFolder(tmp_path / "data", "a", resume=False):
            pass
        with WorkFolder(tmp_path / "other", "a", resume=False):
            assert (first.folder / "train-000000.jsonl").exists()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_removed_folder_holds_nobody_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that opened the lock just before its owner ended must take the new lock, not the removed one."""
    real = fcntl.flock
    first = WorkFolder(tmp_path / "data", "a", resume=False).__enter__()
    calls = []

    def flock(descriptor: int, how: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            first.__exit__(None, None, None)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with WorkFolder(tmp_path / "data", "b", resume=False) as second:
        assert len(calls) == 2
        assert (second.folder / "lock").exists()
        with pytest.raises(DataError, match="another run"), WorkFolder(tmp_path / "data", "b", resume=False):
            pass


def test_parts_are_dropped_unless_they_are_resumed(tmp_path: Path) -> None:
    for resume, fingerprint, left in ((False, "a", False), (True, "a", True), (False, "a", False), (True, "a", True)):
        with pytest.raises(KeyboardInterrupt), WorkFolder(tmp_path / "data", fingerprint, resume) as work:
            assert (work.folder / "train-000000.jsonl").exists() == left
            (work.folder / "train-000000.jsonl").touch()
            raise KeyboardInterrupt
    with pytest.raises(DataError, match="other inputs or settings"), WorkFolder(tmp_path / "data", "b", resume=True):
        pass
    with WorkFolder(tmp_path / "data", "b", resume=False) as work:
        assert not (work.folder / "train-000000.jsonl").exists()


def test_an_error_of_the_input_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError), WorkFolder(tmp_path / "data", "a", resume=False) as work:
        (work.folder / "train-000000.jsonl").touch()
        raise DataError("f:1: wrong")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_lies_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert WorkFolder.path_of(tmp_path / "new") == tmp_path / ".new.encode"
    assert WorkFolder.path_of(tmp_path / "link") == tmp_path / ".real.encode"
    monkeypatch.chdir(tmp_path / "real")
    assert WorkFolder.path_of(Path()) == tmp_path / ".real.encode"
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "real")
    assert WorkFolder.path_of(tmp_path / "link") == tmp_path / "real" / ".encode"
