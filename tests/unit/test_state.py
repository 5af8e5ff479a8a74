"""The state on disk: whole generations, the older one when the newer is damaged."""

import numpy as np
import pytest

from tfbert.errors import CheckpointError
from tfbert.loop.state import read_state, write_state


def arrays(value):
    return {"w": np.full((2, 3), value, np.float32), "step": np.array(value, np.int64)}


def test_what_is_written_is_read_back(tmp_path):
    write_state(tmp_path / "last", arrays(7), {"epoch": 3, "best": None})
    got, values = read_state(tmp_path / "last")
    assert values == {"epoch": 3, "best": None}
    assert got["w"].dtype == np.float32 and (got["w"] == 7).all()
    assert got["step"].shape == () and got["step"] == 7


def test_nothing_written_is_nothing_read(tmp_path):
    assert read_state(tmp_path / "last") is None


def test_two_generations_are_kept(tmp_path):
    for value in range(5):
        write_state(tmp_path, arrays(value), {"value": value})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004", "000005"]
    assert read_state(tmp_path)[1]["value"] == 4


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [cut, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_generation_falls_back_to_the_one_before(tmp_path, name, damage):
    write_state(tmp_path, arrays(1), {"value": 1})
    newest = write_state(tmp_path, arrays(2), {"value": 2})
    damage(newest / name)
    got, values = read_state(tmp_path)
    assert values["value"] == 1 and got["step"] == 1


def test_a_changed_bit_is_seen(tmp_path):
    write_state(tmp_path, arrays(1), {"value": 1})
    flip(write_state(tmp_path, arrays(2), {"value": 2}) / "state.safetensors")
    assert read_state(tmp_path)[1]["value"] == 1


def test_a_changed_value_is_seen(tmp_path):
    write_state(tmp_path, arrays(1), {"value": 1, "loss": 0.1, "best": float("nan")})
    path = write_state(tmp_path, arrays(2), {"value": 2}) / "state.json"
    path.write_bytes(path.read_bytes().replace(b'"value": 2', b'"value": 3'))
    assert read_state(tmp_path)[1] == {"value": 1, "loss": 0.1, "best": None}


def test_all_damaged_is_an_error(tmp_path):
    for value in (1, 2):
        cut(write_state(tmp_path, arrays(value), {}) / "state.safetensors")
    with pytest.raises(CheckpointError, match="2 damaged states"):
        read_state(tmp_path)


def test_leftovers_of_a_killed_save_are_no_state(tmp_path):
    (tmp_path / "writing-000001").mkdir()
    (tmp_path / "writing-000001" / "state.json").write_text("{}")
    assert read_state(tmp_path) is None
    write_state(tmp_path, arrays(1), {"value": 1})
    assert read_state(tmp_path)[1]["value"] == 1


def test_a_failed_save_leaves_the_state_before(tmp_path, monkeypatch):
    write_state(tmp_path, arrays(1), {"value": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tfbert.loop.state.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(tmp_path, arrays(2), {"value": 2})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
    assert read_state(tmp_path)[1]["value"] == 1
