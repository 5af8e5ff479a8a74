"""`predict.py export`: other runtimes give the probabilities of `predict.py run`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_runs import NAMES, make_data, predict, table, train
from encode_runs import error_line

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, logical_cpus: int) -> Path:
    """A run and rows."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    folder = tmp_path_factory.mktemp("trained")
    train(make_data(folder, 60).folder, folder / "run")
    tf.config.run_functions_eagerly(False)
    (folder / "rows.tsv").write_text(table(12, seed=2), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    return np.array([[row["probs"][name] for name in NAMES] for row in predict(folder / "run", folder / "rows.tsv")])


@pytest.fixture(scope="module")
def batches(folder: Path) -> list[dict[str, np.ndarray]]:
    """The rows in batches of different shapes."""
    from tfbert.data.batch import collate
    from tfbert.data.record import Record, columns_of
    from tfbert.predictor import Predictor

    encoder = Predictor(folder / "run").encoder
    lines = (folder / "rows.tsv").read_text(encoding="utf-8").splitlines()[1:]
    records = [Record(*encoder.encode(line.split("\t")[1])[:2]) for line in lines]
    return [collate(columns_of(records[a:b]), length, 0) for a, b, length in ((0, 1, 16), (1, 6, 12), (6, 12, 14))]


def export(folder: Path, output: Path, *flags: str, code: int = 0) -> Path:
    import predict as script

    assert script.main(["export", "--run_dir", str(folder / "run"), "--output", str(output), *flags]) == code
    return output


def test_savedmodel(folder: Path, tmp_path: Path, expected: np.ndarray, batches: list[dict[str, Any]]):
    import tensorflow as tf

    output = export(folder, tmp_path / "served", "--format", "savedmodel")
    assert (output / "labels.txt").read_bytes() == (folder / "run/labels.txt").read_bytes()
    assert (output / "vocab.txt").read_bytes() == (folder / "run/vocab.txt").read_bytes()
    assert (output / "bert_config.json").exists()
    signatures = tf.saved_model.load(str(output)).signatures
    rows = [signatures["serving_default"](**{k: tf.constant(v) for k, v in b.items()})["probs"] for b in batches]
    assert np.allclose(np.concatenate(rows), expected, rtol=0, atol=1e-5)
    single = [signatures["single_texts"](token_ids=tf.constant(b["token_ids"]))["probs"] for b in batches]
    assert np.allclose(np.concatenate(single), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("flags, tolerance", [([], 1e-5), (["--int8"], 0.05)])
def test_onnx(folder: Path, tmp_path: Path, expected: np.ndarray, batches, flags: list[str], tolerance: float):
    pytest.importorskip("tf2onnx", reason="an optional package")
    runtime = pytest.importorskip("onnxruntime", reason="an optional package")
    output = export(folder, tmp_path / "onnx", "--format", "onnx", *flags)
    session = runtime.InferenceSession(str(output / "model.onnx"))
    rows = np.concatenate([session.run(["probs"], batch)[0] for batch in batches])
    assert np.allclose(rows, expected, rtol=0, atol=tolerance)


def test_what_cannot_be_exported(folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    """Case 191: a package that is missing is named; nothing half is left."""
    (tmp_path / "there").mkdir()
    export(folder, tmp_path / "there", code=2)
    assert "there, which exists" in error_line(capsys.readouterr().err)
    export(folder, tmp_path / "x", "--format", "pickle", code=2)
    assert "--format is one of savedmodel, onnx" in error_line(capsys.readouterr().err)
    export(folder, tmp_path / "x", "--int8", code=2)
    assert "--int8 is for onnx" in error_line(capsys.readouterr().err)
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx.convert", None)
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    export(folder, tmp_path / "x", "--format", "onnx", code=2)
    assert "pip install tf2onnx onnx" in error_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
