"""A file that goes on where it was saved, whatever happened to it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tfbert.data.journal import JournaledFile


def begin(path: Path) -> None:
    """Ten bytes saved, five more written, and no end."""
    with pytest.raises(KeyboardInterrupt), JournaledFile(path, 3600) as file:
        assert file.values is None
        file.write(b"0123")
        file.save_sometimes({"rows": 1})  # too early
        file.write(b"456789")
        file.save({"rows": 2})
        file.write(b"abcde")
        raise KeyboardInterrupt


def test_it_goes_on_behind_the_last_save(tmp_path: Path) -> None:
    begin(tmp_path / "rows")
    with JournaledFile(tmp_path / "rows", 0) as file:
        assert file.values == {"rows": 2}
        file.write(b"xyz")
        file.save_sometimes({"rows": 3})
        file.write(b"!")
        file.publish(tmp_path / "final")
    assert (tmp_path / "final").read_bytes() == b"0123456789xyz!"
    assert not (tmp_path / "rows").exists()


def test_it_goes_on_several_times(tmp_path: Path) -> None:
    for i in range(5):
        with JournaledFile(tmp_path / "rows", 0) as file:
            assert (file.values or {"next": 0})["next"] == i
            file.write(b"%d" % i)
            file.save({"next": i + 1})
            file.write(b"lost")
    with JournaledFile(tmp_path / "rows", 0) as file:
        file.publish(tmp_path / "final")
    assert (tmp_path / "final").read_bytes() == b"01234"


def test_a_file_without_a_save_is_begun_anew(tmp_path: Path) -> None:
    with JournaledFile(tmp_path / "rows", 3600) as file:
        file.write(b"lost")
    with JournaledFile(tmp_path / "rows", 3600) as file:
        assert file.values is None
        file.publish(tmp_path / "final")
    assert (tmp_path / "final").read_bytes() == b""


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "rows").write_bytes(b"012345678"),
        lambda folder: (folder / "rows").write_bytes(b"0123456X89abcde"),
        lambda folder: (folder / "rows").unlink(),
        lambda folder: (folder / "rows.saved").write_bytes(b""),
        lambda folder: (folder / "rows.saved").write_bytes(b'{"size": 10}'),
        lambda folder: (folder / "rows.saved").write_bytes(b'{"size": 11, "checksum": 1, "values": {}}'),
        lambda folder: (folder / "rows.saved").write_bytes(b"[]"),
        lambda folder: (folder / "rows.saved").unlink(),
    ],
)
def test_a_damaged_file_is_begun_anew(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    begin(tmp_path / "rows")
    damage(tmp_path)
    with JournaledFile(tmp_path / "rows", 0) as file:
        assert file.values is None
        file.write(b"new")
        file.publish(tmp_path / "final")
    assert (tmp_path / "final").read_bytes() == b"new"
