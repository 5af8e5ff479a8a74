"""The data set of a published task, made where it is missing, and taken where it is there."""

import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from encode_runs import InlineExecutor, write_vocab

from preprocess.encode import Merger
from preprocess.parts import PartFiles
from preprocess.task_data import TaskData
from preprocess.tfds import TfdsConfig
from tfbert.data.manifest import Manifest
from tfbert.errors import ConfigError, DataError

ROWS = "sentence\tlabel\na b\t1\nB c\t0\n"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text(ROWS, encoding="utf-8")
    return folder


def data_of(files: Path, **changes: Any) -> TaskData:
    root = files.parents[1]
    (root / "init").mkdir(exist_ok=True)
    write_vocab(root / "init")
    run_dir, init = root / "run", str(root / "init")
    given = {"task": "glue/sst2", "raw": str(files), "out": run_dir / "data", "run_dir": run_dir, "init": init}
    return TaskData(**given | changes)


def make(data: TaskData, **how: bool) -> Manifest:
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        data.make(**how)
    return Manifest.load(data.out / "manifest.json")


def test_it_is_made_once(raw: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the checkpoint's vocabulary and the task's max_len; again, from wherever the same files lie, it is taken."""
    data = data_of(raw)
    manifest = make(data)
    assert (manifest.task_name, manifest.encoding["max_len"], manifest.encoding["cased"]) == ("glue/sst2", 128, False)
    before = (data.out / "manifest.json").stat().st_mtime_ns
    with caplog.at_level(logging.INFO, "tfbert"):
        make(data_of(raw, raw=str(raw.parent), max_len=128))
        make(data, may_write=False)
    assert caplog.text.count("made from the same files and settings") == 2
    assert (data.out / "manifest.json").stat().st_mtime_ns == before


def test_what_differs_is_told(raw: Path) -> None:
    data = data_of(raw)
    make(data)
    (data.out.parent / "config.yaml").touch()  # of a run
    for changes, what in (({"max_len": 16}, "max_len"), ({"cased": True}, "cased"), ({"task": "glue/wnli"}, None)):
        with pytest.raises(DataError if what is None else ConfigError, match=what):
            make(data_of(raw, **changes))
    with (raw / "dev.tsv").open("a", encoding="utf-8") as file:
        file.write("d\t1\n")
    with pytest.raises(ConfigError, match="one with other files"):
        make(data)
    (data.out.parent / "config.yaml").unlink()
    assert make(data).parts["val"].rows == 3
    with pytest.raises(ConfigError, match="one with other max_len"):
        make(data_of(raw, max_len=16, run_dir=None))


def test_an_interrupted_one_goes_on_and_never_with_other_settings(
    raw: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = data_of(raw)

    def fail(*_: object) -> None:
        raise MemoryError

    def interrupt(data: TaskData) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Merger, "finish", fail)
            with pytest.raises(MemoryError):
                make(data)

    interrupt(data)
    assert "the same command goes on from it" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(PartFiles, "save", fail)  # no part is made again
        make(data)
    interrupt(data_of(raw, max_len=8))
    assert make(data_of(raw, max_len=9)).encoding["max_len"] == 9


def test_case_is_that_of_the_tokenizer(raw: Path) -> None:
    data = data_of(raw)
    (Path(data.init) / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    assert make(data).encoding["cased"] is True
    vocab = data.out / "vocab.txt"  # beside it the manifest, as in a run folder
    assert make(data_of(raw, out=data.out.with_name("other"), vocab=str(vocab))).encoding["cased"] is True


def test_mistakes_leave_nothing(raw: Path) -> None:
    config = raw.parents[1] / "model.json"
    for changes, what in (
        ({"init": str(config)}, "a config without one. Give --vocab"),
        ({"init": str(raw)}, "SST-2 without vocab.txt. Give --vocab"),
        ({"init": "no/where"}, "no/where, which does not exist"),
        ({"raw": str(raw / "train.tsv")}, "is no folder, and no builder in"),
        ({"run_dir": raw / "train.tsv"}, "--run_dir names a folder"),
        ({"out": raw / "no/where", "run_dir": None}, "must lie in an existing folder"),
        ({"raw": "glue/sst2"}, "is no folder, and no builder in"),
        ({"raw": str(raw.parents[1] / "init")}, "needs train.tsv or train.jsonl"),
        ({"max_len": 2}, "at least 3"),
    ):
        with pytest.raises((ConfigError, DataError), match=what):
            make(data_of(raw, **{"tfds_dir": str(raw)} | changes))
    with pytest.raises(ConfigError, match="Raw data are encoded by one process"):
        make(data_of(raw), may_write=False)
    assert not (raw.parents[1] / "run").exists()


def test_a_builder_is_read_once(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the builder or by its folder; another state of it is read again."""
    version = tmp_path / "prepared" / "glue" / "sst2" / "2.0.0"
    version.mkdir(parents=True)
    (version / "dataset_info.json").write_text("{}", encoding="utf-8")
    asked: list[TfdsConfig] = []

    def read(function: object, config: TfdsConfig) -> None:
        asked.append(config)
        Path(config.out).mkdir(exist_ok=True)
        for split in config.splits:
            row = {"sentence": "a b", "label": "positive"}
            (Path(config.out) / f"{split}.jsonl").write_bytes(orjson.dumps(row) + b"\n")

    monkeypatch.setattr("preprocess.task_data.run_apart", read)
    named = data_of(raw, raw="glue/sst2", tfds_dir=str(tmp_path / "prepared"))
    assert make(named).parts["train"].rows == 1
    make(data_of(raw, raw=str(version)))
    assert [(config.name, config.splits) for config in asked] == [(str(version), ("train", "validation"))]
    (version / "dataset_info.json").write_text('{"new": 1}', encoding="utf-8")
    make(named)
    assert len(asked) == 2
    (version.parent / "1.0.0").mkdir()
    (version.parent / "1.0.0/dataset_info.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="one version of a builder. Received: glue/sst2, prepared as 1.0.0, 2.0.0"):
        make(named)
    with pytest.raises(ConfigError, match="has no TensorFlow Datasets builder"):
        make(data_of(raw, raw=str(version), task="chnsenticorp"))
