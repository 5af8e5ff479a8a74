"""Reading manifests that are not as they should be."""

from pathlib import Path

import orjson
import pytest
from encode_runs import encode

from tfbert.data.manifest import Manifest
from tfbert.errors import DataError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return encode(tmp_path, "a\t1\nb\t0\n", "--text", "0", "--label", "1", "--cased").folder / "manifest.json"


def test_a_manifest_is_read_as_it_was_written(path: Path) -> None:
    manifest = Manifest.load(path)
    assert manifest.dump() == path.read_bytes()
    assert manifest.parts["train"].rows == 2
    assert manifest.encoding_settings().cased


def test_absent_damaged_and_newer_manifests_are_refused(path: Path) -> None:
    values = orjson.loads(path.read_bytes())
    for content, message in (
        (b"", "damaged"),
        (path.read_bytes()[:-20], "damaged"),
        (b"[]", "damaged"),
        (orjson.dumps(values | {"version": 99}), "reads format 1. Received: 99"),
        (orjson.dumps(values | {"more": 1}), "damaged"),
        (orjson.dumps({key: values[key] for key in values if key != "parts"}), "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            Manifest.load(path)
    path.unlink()
    with pytest.raises(DataError, match="there is no data set here"):
        Manifest.load(path)
