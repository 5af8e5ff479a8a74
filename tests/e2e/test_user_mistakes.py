"""Slips at the command line: nothing is lost, and one line says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from classify_runs import make_data, predict, table, train, write_model
from encode_runs import TOKENS, encode, error_line

import preprocess.__main__ as preprocess_script
from preprocess.encode import EncodeConfig
from tfbert.cli import parse
from tfbert.training import class_values

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 60).folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory, logical_cpus: int) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return train(data, folder / "run").folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text(table(5), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["pipe", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_outputs_that_a_file_must_not_replace(run, rows, tmp_path, capsys, name):
    os.mkfifo(tmp_path / "pipe")
    predict(run, rows, output=tmp_path / name, code=2)
    assert "--output" in error_line(capsys.readouterr().err)
    assert (tmp_path / "pipe").is_fifo()


def test_encoding_a_data_set_into_itself(data, tmp_path, capsys):
    before = (data / "train.jsonl").read_bytes()
    words = ["--text", "wordids", "--vocab", str(data / "vocab.txt"), "--out", str(data)]
    assert preprocess_script.main(["encode", str(data / "train.jsonl"), *words]) == 2
    assert "another folder than that of the input" in error_line(capsys.readouterr().err)
    assert (data / "train.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "filters"),
    [("filter: a!=b\n", ("a!=b",)), ("filter: [a!=b, 0!=1]\n", ("a!=b", "0!=1")), ("filter: null\n", ())],
)
def test_one_value_of_a_setting_that_may_have_several(tmp_path, text, filters):
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    words = ["in.tsv", "--config", str(tmp_path / "c.yaml"), "--vocab", "v", "--out", "d", "--text", "0"]
    assert parse(EncodeConfig, "encode", words).filter == filters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text: [a, b]\n", "one value is wanted"),
        ("text: {a: b}\n", "one value is wanted"),
        ("val: dev.tsv\n", "a list"),
        ("val: 7\n", "a list"),
    ],
)
def test_wrong_kinds_in_a_yaml_file(rows, tmp_path, capsys, text, message):
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    words = [str(rows), "--config", str(tmp_path / "c.yaml"), "--vocab", "v", "--out", str(tmp_path / "d")]
    words += [] if text.startswith("text") else ["--text", "text"]
    assert preprocess_script.main(["encode", *words]) == 2
    assert message in error_line(capsys.readouterr().err)


def test_rows_that_cannot_be_used_are_counted_by_reason(run, tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"other": "b"}\nnot json\n', encoding="utf-8")
    with caplog.at_level("INFO", logger="tfbert"):
        from tfbert.data.input import Columns
        from tfbert.predictor import Predictor

        counts = Predictor(run, "cpu:1").predict_file(path, tmp_path / "out.jsonl", Columns())
    assert counts == {"labelled": 1, "columns": 1, "json": 1}


def test_the_same_run_from_another_folder(data, run, monkeypatch, capsys):
    monkeypatch.chdir(data)
    finished = (run / "finished").stat().st_mtime_ns
    train(Path("../data"), run, init=write_model(run.parent))
    assert (run / "finished").stat().st_mtime_ns == finished


def test_a_reader_that_has_had_enough(data):
    command = [sys.executable, "-m", "preprocess", "inspect", str(data), "--no_charts"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 0
        assert b"error" not in process.stderr.read()


def test_class_names_with_commas():
    names = ["a,b", "c", "d=e"]
    weights = class_values.class_weights("a,b=2,c=3,d=e=4", names, [0, 1, 2])
    assert weights == {0: 2.0, 1: 3.0, 2: 4.0}


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.json", b"[]"), ("model.json", b"{}"), ("labels.txt", b"\xff\xfe\n"), ("model.json", b"")],
)
def test_a_damaged_run_folder(run, rows, tmp_path, capsys, name, content):
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / name).write_bytes(content)
    predict(damaged, rows, code=2)
    assert name in error_line(capsys.readouterr().err)


def test_a_class_without_training_rows_is_named(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("a\tx\nb\ty\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("c\tx\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS), encoding="utf-8")
    words = [str(tmp_path / "train.tsv"), "--test", str(tmp_path / "test.tsv"), "--out", str(tmp_path / "data")]
    words += ["--text", "1", "--label", "0", "--vocab", str(tmp_path / "vocab.txt"), "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "preprocess", "encode", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "no row of the train part has the label 'c'" in done.stderr


def test_another_column_taken_for_the_labels(tmp_path, capsys):
    content = "id\ttext\tlabel\n" + "".join(f"r{i}\ta b\t{i % 2}\n" for i in range(30))
    encode(tmp_path, content, "--text", "text", "--label", "id")
    assert "30 labels in 30 rows: is 'id' the label column?" in capsys.readouterr().err
    encode(tmp_path, content, "--text", "text", "--label", "label")
    assert "is 'label' the label column?" not in capsys.readouterr().err


def test_more_micro_batches_than_rows(data, tmp_path, capsys):
    train(data, tmp_path / "run", "--accumulate", "17", init=write_model(tmp_path), code=2)
    assert "--accumulate 17" in error_line(capsys.readouterr().err)


def test_an_empty_file_is_no_rows(run, tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert predict(run, path) == []


@pytest.mark.usefixtures("eagerly")
def test_features_go_when_a_run_was_stopped_at_the_end_of_the_frozen_stage(data, tmp_path, monkeypatch):
    from tfbert.callbacks.save_state import SaveState

    ends = SaveState.on_epoch_end

    def stopped(self, epoch, logs=None):
        ends(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    flags = ["--frozen_epochs", "2", "--epochs", "1"]
    init = write_model(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SaveState, "on_epoch_end", stopped)
        train(data, tmp_path / "run", *flags, init=init, code=130)
    assert (tmp_path / "run/features").is_dir()
    train(data, tmp_path / "run", *flags, init=init)
    assert not (tmp_path / "run/features").exists()


@pytest.mark.usefixtures("eagerly")
def test_float16_that_overflows_for_ever_stops(data, tmp_path, monkeypatch, capsys):
    import tensorflow as tf

    from tfbert.loop import trainer

    monkeypatch.setattr(trainer, "MOST_SKIPPED", 3)
    monkeypatch.setattr(trainer.tf.linalg, "global_norm", lambda _: tf.constant(float("nan")))
    flags = ["--mixed_precision", "float16", "--epochs", "3"]
    train(data, tmp_path / "run", *flags, init=write_model(tmp_path), code=2)
    assert "must be finite" in error_line(capsys.readouterr().err)
