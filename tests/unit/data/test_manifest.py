"""Reading manifests that are not as they should be."""

import os
from pathlib import Path

import orjson
import pytest
from encode_runs import encode

from tfbert.data.dataset import DataSet
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", []),
        ("inputs", {"train": [{"name": 1, "bytes": 1, "checksum": "", "lines": 1}]}),
        ("columns", {"format": "auto"}),
        ("encoding", {"max_len": "16", "cased": False, "clean": [], "pair": False}),
        ("encoding", {"max_len": 1, "cased": False, "clean": [], "pair": False}),
        ("encoding", {"max_len": 16, "cased": False, "clean": ["../x"], "pair": False}),
        ("task", "guess"),
        ("label_names", ["0", "0"]),
        ("label_map", {"0": 7}),
        ("pad_id", -1),
        ("vocab_size", True),
        ("parts", {}),
        ("parts", {"../train": None}),
        ("label_separator", None),
    ],
)
def test_values_that_no_data_set_has_are_refused(path: Path, field: str, value: object) -> None:
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {field: value}))
    with pytest.raises(DataError, match=r"manifest.json: the manifest is damaged. Received: "):
        Manifest.load(path)


@pytest.mark.parametrize("name", ["labels.txt", "vocab.txt", "train.jsonl", "train.idx"])
def test_files_that_are_not_those_of_the_manifest_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    other = encode(tmp_path, "a\tx\nb\ty\nc\ty\n", "--text", "0", "--label", "1", "--cased", out="other").folder
    changed = path.parent / name
    changed.write_bytes((other / name).read_bytes() + (b"more\n" if name == "vocab.txt" else b""))
    with pytest.raises(DataError, match=rf"train.jsonl|{name}"):
        DataSet.open(path.parent).store("train")


def test_a_changed_byte_of_the_data_is_seen_until_the_files_are_known(path: Path, tmp_path: Path) -> None:
    """Whatever the byte does to the row; files that were found right before are not read again."""
    data, known = DataSet.open(path.parent), tmp_path / "known.json"
    data.verify(known)
    data.remember(known)
    file = path.parent / "train.jsonl"
    stat = file.stat()
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"label":0', b'"label":1'))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    data.verify(known)
    for remembered in (None, tmp_path / "none.json"):
        with pytest.raises(DataError, match=r"train\.jsonl: the file is not the one of the manifest"):
            data.verify(remembered)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(DataError, match=r"train\.jsonl: the file is not the one of the manifest"):
        data.verify(known)
    file.write_bytes(content)
    data.verify(known)
    known.write_bytes(b"{")
    data.verify(known)
