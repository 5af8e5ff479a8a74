"""Files and folders that are whole under their final name."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from tfbert.disk import atomic_file, new_folder, replaced
from tfbert.loop.state import write_state


@pytest.mark.parametrize("held", [False, True])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, held: bool) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with atomic_file(path, held) as file:
        file.write(b"a" * 100_000)
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"a" * 100_000
    with pytest.raises(KeyboardInterrupt), replaced(path, held) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"a" * 100_000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_in_a_held_folder_goes(tmp_path: Path) -> None:
    (tmp_path / "saving-out").write_bytes(b"a long half of a file")
    with atomic_file(tmp_path / "out", held=True) as file:
        file.write(b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the renaming must not leave an empty file under the final name."""
    done: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()) + f" {(tmp_path / 'out').exists()}")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_file(tmp_path / "out", held=True) as file:
        file.write(b"x")
    assert done == [f"{tmp_path}/saving-out False", f"{tmp_path} True"]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "writing-a").mkdir()
    (tmp_path / "writing-a/old").touch()
    with pytest.raises(OSError, match="full"), new_folder(tmp_path / "a") as folder:
        (folder / "x").write_bytes(b"1")
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a") as folder:
        (folder / "sub").mkdir()
        (folder / "sub/x").write_bytes(b"1")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a/sub/x").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_state_on_a_full_disk_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors tells it in an error of its own."""

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("tfbert.loop.state.save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_state(tmp_path, {"a": np.zeros(10)}, {})
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []
