"""`train.py distill` from data sets and teachers to run folders."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from classify_runs import Run, make_data, predict, same_weights, table, texts, train, write_model
from encode_runs import TOKENS, DataSet, InlineExecutor, error_line

from preprocess.__main__ import main as preprocess
from tfbert.loop.trainer import Trainer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return make_data(tmp_path_factory.mktemp("data"), 150)


@pytest.fixture(scope="module")
def teacher(logical_cpus: int, data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    init = write_model(folder)
    run = train(data.folder, folder / "run", "--head", "mean", "--epochs", "8", init=init)
    assert float(run.log[-1]["val_accuracy"]) > 0.9
    return run.folder


def distill(data: Path, run_dir: Path, teacher: Path | None, *flags: str, code: int = 0) -> Run:
    import train as script

    assert script.main(words_of(data, run_dir, teacher, *flags)) == code
    return Run(run_dir)


def words_of(data: Path, run_dir: Path, teacher: Path | None, *flags: str) -> list[str]:
    words = ["distill", "--data", str(data), "--run_dir", str(run_dir)]
    words += ["--teacher", str(teacher)] if teacher is not None else []
    speed = ["--epochs", "1", "--intermediate_epochs", "1", "--global_batch_size", "16", "--devices", "cpu:1"]
    rates = ["--learning_rate", "1e-2", "--intermediate_learning_rate", "1e-2"]
    return [*words, *speed, *rates, *flags]


def test_a_copy_of_the_teacher_has_nothing_to_learn(data: DataSet, teacher: Path, tmp_path: Path) -> None:
    """Case 142, through the command: losses of the layers are 0 but for rounding, and the report says that they agree.

    Two teachers that are the same are no other teacher.
    """
    small = ["--learning_rate", "1e-12", "--intermediate_learning_rate", "1e-12", "--teacher", str(teacher)]
    run = distill(data.folder, tmp_path / "run", teacher, *small)
    first, second = run.log
    assert [first["stage"], second["stage"]] == ["intermediate", "prediction"]
    assert max(float(first[f"{part}_loss"]) for part in ("attention", "hidden", "embedding")) < 1e-9
    assert first["val_loss"] == first["soft_loss"] == second["hidden_loss"] == ""
    report = json.loads((run.folder / "report/teacher_and_student.json").read_text(encoding="utf-8"))
    assert report["agreement"] == 1.0
    assert report["teacher"]["parameters"] == 2 * report["student"]["parameters"]
    assert set(report["student"]["rows_per_s"]) == {"1", "128"}
    assert "per_class" in str(report["student"]["scores"]) or report["student"]["scores"]["accuracy"] > 0.9
    assert predict(run.folder, _rows(tmp_path))[0]["label"] == "ant"


def _rows(folder: Path) -> Path:
    path = folder / "new.tsv"
    path.write_text(table(6), encoding="utf-8")
    return path


def test_a_smaller_student_learns(data: DataSet, teacher: Path, tmp_path: Path) -> None:
    """Another width, half the layers and heads: projections are trained and are no part of the student (case 141)."""
    config = write_model(tmp_path, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    flags = ["--init", str(config), "--attention_heads", "mean", "--intermediate_epochs", "3", "--epochs", "8"]
    flags += ["--schedule", "constant", "--warmup", "0"]
    run = distill(data.folder, tmp_path / "run", teacher, *flags)
    hidden = [float(row["hidden_loss"]) for row in run.log[:3]]
    assert hidden[2] < hidden[0]
    assert float(run.log[-1]["val_accuracy"]) > 0.8
    assert not [name for name in run.weights if "teacher" in name]
    once = ("--stages", "intermediate", "--intermediate_epochs", "1", "--devices", "cpu:2")
    again = distill(data.folder, tmp_path / "again", teacher, *flags, *once)
    for name in ("hidden_loss", "attention_loss", "embedding_loss"):
        assert float(again.log[0][name]) == pytest.approx(float(run.log[0][name]), rel=2e-3)


def test_the_teacher_is_asked_once(
    data: DataSet, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept logits give what the teacher gives in each step; several epochs, one pass."""
    flags = ["--stages", "prediction", "--epochs", "3", "--num_layers", "1", "--layer_map", "top"]
    kept = distill(data.folder, tmp_path / "kept", teacher, *flags)
    asked = distill(data.folder, tmp_path / "asked", teacher, *flags, "--no_cache_teacher")
    np.testing.assert_allclose(kept.column("loss"), asked.column("loss"), rtol=1e-2)
    assert (kept.folder / "teacher/logits.npy").is_file()
    assert not (asked.folder / "teacher").exists()
    shared = ["--teacher_cache", str(kept.folder / "teacher"), "--teacher_top_k", "2"]
    distill(data.folder, tmp_path / "topped", teacher, *flags, *shared, code=2)


def test_a_stopped_run_goes_on(data: DataSet, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in either stage, with projections: the weights of an uninterrupted run, bit for bit."""
    flags = ["--init", str(write_model(tmp_path, hidden_size=8)), "--save_steps", "1"]
    whole = distill(data.folder, tmp_path / "whole", teacher, *flags)
    position = Trainer.position
    for stop_at in (3, 9):  # saves; a stage has 8 steps
        calls: list[int] = []

        def stop(self: Trainer, calls: list[int] = calls, stop_at: int = stop_at) -> dict[str, Any]:
            calls.append(1)
            if len(calls) == stop_at:
                raise MemoryError
            return position(self)

        monkeypatch.setattr(Trainer, "position", stop)
        with pytest.raises(MemoryError):
            distill(data.folder, tmp_path / "stopped", teacher, *flags)
        monkeypatch.undo()
    stopped = distill(data.folder, tmp_path / "stopped", teacher, *flags)
    assert same_weights(whole, stopped)
    assert [row["loss"] for row in whole.log] == [row["loss"] for row in stopped.log]


def test_layers_of_text_without_labels_start_a_student(
    data: DataSet, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage general on a corpus; its run is where the next student starts."""
    (tmp_path / "in.txt").write_text("\n\n".join(f"{text}. {text}." for text in texts(60)), encoding="utf-8")
    words = ["--vocab", str(data.folder / "vocab.txt"), "--out", str(tmp_path / "corpus"), "--max_len", "16"]
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        assert preprocess(["corpus", str(tmp_path / "in.txt"), *words, "--pairs", "nsp", "--val_fraction", "0.1"]) == 0
    flags = ["--stages", "general", "--general_epochs", "2", "--num_layers", "1"]
    general = distill(tmp_path / "corpus", tmp_path / "general", teacher, *flags)
    assert [row["stage"] for row in general.log] == ["general", "general"]
    assert "done: weights of epoch 2" in capsys.readouterr().err
    run = distill(data.folder, tmp_path / "run", teacher, "--init", str(general.folder), "--epochs", "2")
    assert run.log[-1]["stage"] == "prediction"


def test_two_workers_equal_one_device(data: DataSet, teacher: Path, tmp_path: Path) -> None:
    """Both stages, with projections; one device has the teacher's logits from disk, in half precision."""
    flags = [
        "--init",
        str(write_model(tmp_path, hidden_size=8)),
        "--global_batch_size",
        "17",
        "--cluster_timeout",
        "60",
    ]
    one = distill(data.folder, tmp_path / "one", teacher, *flags)
    ports = []
    for probe in [socket.socket() for _ in range(2)]:
        with probe:
            probe.bind(("", 0))
            ports.append(probe.getsockname()[1])
    addresses = ",".join(f"localhost:{port}" for port in ports)
    words = words_of(data.folder, tmp_path / "two", teacher, *flags, "--workers", addresses)
    workers = [
        subprocess.Popen(
            [sys.executable, "train.py", *words, "--rank", rank], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    for worker in workers:
        _, text = worker.communicate(timeout=120)
        assert worker.returncode == 0, text
    two = Run(tmp_path / "two")
    for name in ("loss", "val_loss", "hidden_loss", "soft_loss"):
        found, wanted = ([float(row[name]) for row in run.log if row[name]] for run in (two, one))
        np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert max(float(np.abs(one.weights[name] - two.weights[name]).max()) for name in one.weights) < 1e-3


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks(tmp_path: Path, task: str) -> None:
    """Case 146."""
    number = {"ant": "0", "bee": "1", "cat": "2"}
    lines = table(90).split("\n")[1:-1]
    content = "id\ttext\tlabel\n" + "".join(
        f"{i}\t{text}\t{number[label] if task == 'regression' else label}\n"
        for i, text, label in (line.split("\t") for line in lines)
    )
    data = make_data(tmp_path, content, "--task", task)
    teacher = train(data.folder, tmp_path / "teacher", "--head", "mean")
    run = distill(data.folder, tmp_path / "run", teacher.folder, "--num_layers", "1", "--stages", "prediction")
    assert run.column("loss")[-1] < 10
    report = json.loads((run.folder / "report/teacher_and_student.json").read_text(encoding="utf-8"))
    assert -1 <= report["agreement"] <= 1


def test_classes_are_taken_by_name(data: DataSet, teacher: Path, tmp_path: Path) -> None:
    """Case 147: the same classes in another order; other classes are refused."""
    (tmp_path / "labels.txt").write_text("cat\nbee\nant\n", encoding="utf-8")
    other = make_data(tmp_path, 150, "--labels", str(tmp_path / "labels.txt"))
    assert other.manifest["label_names"] == ["cat", "bee", "ant"]
    run = distill(other.folder, tmp_path / "run", teacher, "--stages", "prediction", "--learning_rate", "1e-9")
    assert float(run.log[-1]["val_accuracy"]) > 0.9


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stages", "prediction,intermediate"], "--stages is intermediate,prediction, one of the two, or general"),
        (["--num_layers", "3"], "no more than its teacher"),
        (["--temperature", "0"], "--temperature must be above 0"),
        (["--hidden_weight", "0"], "--hidden_weight must be above 0"),
        (["--hard_weight", "1.5"], "--hard_weight must be at least 0 and at most 1"),
        (["--teacher_top_k", "1"], "keeps at least 2 logits"),
        (["--num_layers", "1", "--init", "CONFIG"], "--num_layers is of a student that starts from its teacher"),
        (["--init", "HEADS"], "Attention is compared head by head"),
        (["--init", "DEEP"], "--layer_map|no more than its teacher"),
    ],
)
def test_mistakes(
    data: DataSet, teacher: Path, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases 140 and 141: refused before anything is trained."""
    changes: dict[str, dict[str, int]] = {
        "CONFIG": {},
        "HEADS": {"num_attention_heads": 4},
        "DEEP": {"num_hidden_layers": 3},
    }
    words = [str(write_model(tmp_path, **changes[word])) if word in changes else word for word in flags]
    distill(data.folder, tmp_path / "run", teacher, *words, code=2)
    assert re.search(message, error_line(capsys.readouterr().err))
    assert not (tmp_path / "run").exists()


def test_teachers_that_do_not_go_with_the_data(
    data: DataSet, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases 147 and 148."""
    distill(data.folder, tmp_path / "run", None, code=2)
    assert "A student learns from a teacher" in error_line(capsys.readouterr().err)
    distill(data.folder, tmp_path / "run", write_model(tmp_path), code=2)
    assert "A teacher has weights" in error_line(capsys.readouterr().err)
    (tmp_path / "b").mkdir()
    renamed = make_data(tmp_path / "b", table(60).replace("\tcat", "\tcow"))
    distill(renamed.folder, tmp_path / "run", teacher, code=2)
    assert "Teacher and student have the same classes" in error_line(capsys.readouterr().err)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/vocab.txt").write_text(
        "".join(f"{t}\n" for t in [*TOKENS[:5], "extra", *TOKENS[5:-1]]), encoding="utf-8"
    )
    moved = make_data(tmp_path / "c", 60)
    distill(moved.folder, tmp_path / "run", teacher, code=2)
    assert "Teacher and student read the same token ids" in error_line(capsys.readouterr().err)
