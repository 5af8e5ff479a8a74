"""Rows of a TensorFlow Datasets builder, by way of JSON lines, to a data set (cases 179 to 185)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from classify_runs import train
from encode_runs import InlineExecutor, encode, error_line, write_vocab

from preprocess.__main__ import main

ROWS = {
    "train": [
        {"sentence1": "a b", "sentence2": "c", "label": 1, "idx": 7, "score": 0.5},
        {"sentence1": "a b", "sentence2": "c", "label": 1, "idx": 7, "score": 0.5},  # the same once more
        {"sentence1": "d\u2028e", "sentence2": "", "label": 0, "idx": 2, "score": -1.0},
    ],
    "validation": [
        {"sentence1": "f\ng", "sentence2": "h", "label": 0, "idx": 0, "score": 0.0},
        {"sentence1": "i", "sentence2": "j", "label": 1, "idx": 1, "score": 2.5},
    ],
    "test": [{"sentence1": f"row {i}", "sentence2": "x", "label": -1, "idx": i, "score": 1.0} for i in range(100)],
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, logical_cpus: int) -> Path:
    """Folder in which a small builder of our own is prepared, every split in two files."""
    import numpy as np
    import tensorflow_datasets as tfds

    class TinyPairs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {
                "sentence1": tfds.features.Text(),
                "sentence2": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["not_equivalent", "equivalent"]),
                "idx": np.int32,
                "score": np.float32,
                "many": tfds.features.Sequence(np.int32),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {split: self._generate_examples(split) for split in ROWS}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            yield from ((i, row | {"many": [1, 2]}) for i, row in enumerate(ROWS[split]))

    folder = tmp_path_factory.mktemp("tfds")
    builder = TinyPairs(data_dir=folder)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    return folder


@pytest.fixture(scope="module")
def written(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "pairs"
    assert main(["tfds", "tiny_pairs", "--data_dir", str(prepared), "--out", str(out)]) == 0
    return out


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def by_content(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["idx"], row["sentence1"]))


def test_rows_are_those_of_the_builder(written: Path) -> None:
    """Cases 179, 184: whatever is in the texts; a row that occurs twice is there twice."""
    names = ["not_equivalent", "equivalent"]
    for split in ("train", "validation"):
        expected = [row | {"label": names[row["label"]]} for row in ROWS[split]]
        assert by_content(rows_of(written / f"{split}.jsonl")) == by_content(expected)
    assert (written / "labels.txt").read_text(encoding="utf-8") == "not_equivalent\nequivalent\n"
    assert sorted(path.name for path in written.iterdir()) == [
        "labels.txt", "test.jsonl", "train.jsonl", "validation.jsonl"
    ]  # fmt: skip


def test_a_row_without_a_label_has_none(written: Path) -> None:
    """case 180: the -1 of an unlabelled split is no class."""
    assert all("label" not in row for row in rows_of(written / "test.jsonl"))


def test_the_order_is_always_the_same(prepared: Path, written: Path, tmp_path: Path) -> None:
    """case 185: a split in several files; also by the folder of a version."""
    version = prepared / "tiny_pairs" / "1.0.0"
    assert len(list(version.glob("*test*tfrecord*"))) == 2
    assert main(["tfds", str(version), "--out", str(tmp_path / "again"), "--splits", "test"]) == 0
    again = rows_of(tmp_path / "again" / "test.jsonl")
    assert again == rows_of(written / "test.jsonl")
    assert sorted(row["idx"] for row in again) == list(range(100))
    assert not (tmp_path / "again" / "train.jsonl").exists()


def test_a_task_by_name_takes_them(written: Path, tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path)
    out = tmp_path / "data"
    flags = ["--vocab", str(vocab), "--out", str(out), "--workers", "1"]
    assert main(["encode", str(written), "--task", "glue/mrpc", *flags]) == 0
    manifest = orjson.loads((out / "manifest.json").read_bytes())
    assert manifest["task_name"] == "glue/mrpc"
    assert manifest["label_names"] == ["not_equivalent", "equivalent"]
    assert {name: part["rows"] for name, part in manifest["parts"].items()} == {"train": 3, "val": 2}


@pytest.mark.usefixtures("eagerly")
def test_training_takes_the_builder_itself(
    prepared: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.py classify --task` reads it, in a process of its own, and encodes what it read."""
    monkeypatch.setattr("preprocess.task_data.run_apart", lambda function, config: function(config))
    monkeypatch.setattr("preprocess.pool.ProcessPoolExecutor", InlineExecutor)
    flags = ["--task", "glue/mrpc", "--vocab", str(write_vocab(tmp_path)), "--max_len", "16"]
    run = train(Path("tiny_pairs"), tmp_path / "run", *flags, "--tfds_dir", str(prepared))
    assert run.column("val_f1")
    read = tmp_path / "run" / "data.tfds"
    assert sorted(path.name for path in read.iterdir()) == [
        "labels.txt", "source.json", "train.jsonl", "validation.jsonl"
    ]  # fmt: skip
    assert rows_of(read / "validation.jsonl") == rows_of(written / "validation.jsonl")


def test_rows_without_a_label_are_rejected_by_line(written: Path, tmp_path: Path) -> None:
    data = encode(tmp_path, [written / "test.jsonl"], "--text", "sentence1", "--label", "label", code=2)
    assert not data.folder.exists()


def test_what_is_not_prepared(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """case 181: a builder whose preparation was cut, or that is not there, is refused; nothing is downloaded."""
    incomplete = tmp_path / "cut"
    (incomplete / "glue" / "mrpc" / "incomplete.2AB_2.0.0").mkdir(parents=True)
    for name, data_dir in (("glue/mrpc", incomplete), ("no_such_set", tmp_path), ("glue/nothing", tmp_path)):
        out = tmp_path / "out"
        assert main(["tfds", name, "--data_dir", str(data_dir), "--out", str(out)]) == 2
        assert name in error_line(capsys.readouterr().err)
        assert not out.exists()
    command = ["tfds", "tiny_pairs", "--data_dir", str(prepared), "--out", str(tmp_path / "out"), "--splits", "dev"]
    assert main(command) == 2
    assert "--splits are of train, validation, test. Received: dev" in error_line(capsys.readouterr().err)
