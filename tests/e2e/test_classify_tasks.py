"""Training on a published task by name: its metrics in the log, the first of them decides."""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from classify_runs import make_data, predict, same_weights, texts, train
from encode_runs import InlineExecutor, error_line, write_vocab
from sklearn.metrics import f1_score, matthews_corrcoef

from preprocess.__main__ import main
from tfbert.report import ClassifyScores

pytestmark = pytest.mark.usefixtures("eagerly")


def encode(folder: Path, task: str, files: dict[str, str]) -> Path:
    inputs = folder / "in"
    inputs.mkdir()
    for name, content in files.items():
        (inputs / name).write_text(content, encoding="utf-8")
    command = ["--vocab", str(write_vocab(folder)), "--out", str(folder / "data"), "--workers", "1", "--max_len", "24"]
    assert main(["encode", str(inputs), "--task", task, *command]) == 0
    return folder / "data"


def paraphrases(count: int, seed: int) -> str:
    rows = [f"{int('a' in text)}\t1\t2\t{text}\t{text}\n" for text in texts(count, seed)]
    return "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(rows)


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mrpc")
    return encode(folder, "glue/mrpc", {"train.tsv": paraphrases(48, 0), "dev.tsv": paraphrases(20, 1)})


def test_the_published_metric_decides(mrpc: Path, tmp_path: Path) -> None:
    run = train(mrpc, tmp_path / "run", "--epochs", "3", "--learning_rate", "3e-3")
    assert {"val_loss", "val_accuracy", "val_f1"} <= set(run.log[0])
    scores = json.loads((run.folder / "report" / "scores.json").read_text(encoding="utf-8"))
    assert scores["f1"] == pytest.approx(max(run.column("val_f1")), abs=1e-4)
    assert scores["f1"] == scores["per_class"]["equivalent"]["f1"]


def test_raw_files_are_encoded_first(mrpc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command from files to a run: what `preprocess encode` and a training make; more epochs encode nothing."""
    raw, steps = mrpc.parent / "in", ("--learning_rate", "3e-3")
    flags = ("--task", "glue/mrpc", "--vocab", str(mrpc.parent / "vocab.txt"), "--max_len", "24", *steps)
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        run = train(raw, tmp_path / "run", *flags)
        assert same_weights(run, train(mrpc, tmp_path / "encoded", *steps))
        assert (tmp_path / "run/data/train.jsonl").read_bytes() == (mrpc / "train.jsonl").read_bytes()
        assert run.column("val_f1")
        before = (tmp_path / "run/data/manifest.json").stat().st_mtime_ns
        capsys.readouterr()
        assert train(raw, tmp_path / "run", *flags, "--epochs", "2").column("epoch") == [1, 2]
        assert "is there, made from the same files and settings" in capsys.readouterr().err
        train(raw, tmp_path / "run", *flags, "--max_len", "12", code=2)
        assert "one with other max_len" in error_line(capsys.readouterr().err)
        train(raw, tmp_path / "new", *flags, "--encoded", str(tmp_path / "run/data"), "--epochs", "0", code=2)
        assert "at least one epoch" in error_line(capsys.readouterr().err)
    assert (tmp_path / "run/data/manifest.json").stat().st_mtime_ns == before
    assert predict(tmp_path / "run", raw / "dev.tsv")[0]["label"] in ("equivalent", "not_equivalent")


def test_cola_and_stsb_have_their_own(tmp_path: Path) -> None:
    rows = "".join(f"s\t{i % 2}\t\t{text}\n" for i, text in enumerate(texts(32)))
    cola = encode(tmp_path, "glue/cola", {"train.tsv": rows, "dev.tsv": rows})
    run = train(cola, tmp_path / "cola", "--epochs", "1")
    assert -1 <= run.column("val_mcc")[0] <= 1
    (tmp_path / "s").mkdir()
    header = "sentence1\tsentence2\tscore\n"
    scored = header + "".join(f"{text}\t{text}\t{i % 6}.000\n" for i, text in enumerate(texts(32)))
    stsb = encode(tmp_path / "s", "glue/stsb", {"train.tsv": scored, "dev.tsv": scored})
    run = train(stsb, tmp_path / "stsb", "--epochs", "1")
    assert {"val_pearson", "val_spearman"} <= set(run.log[0])


def test_a_monitor_of_ones_own_wins(mrpc: Path, tmp_path: Path) -> None:
    run = train(mrpc, tmp_path / "run", "--epochs", "1", "--monitor", "val_loss")
    assert run.column("val_f1")


def test_names_that_do_not_fit(mrpc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_data(tmp_path, 30).folder
    for data, task, message in (
        (mrpc, "glue/rte", "that of the data set, glue/mrpc"),
        (other, "glue/mrpc", "has two classes"),
        (other, "glue/stsb", "of the kind regression"),
        (other, "glue/none", "A task by name is one of glue/cola"),
    ):
        train(data, tmp_path / "run", "--task", task, code=2)
        assert message in error_line(capsys.readouterr().err)
    train(mrpc.parent / "in", tmp_path / "run", "--task", "glue/mrpc", code=2)
    assert "a config without one. Give --vocab" in error_line(capsys.readouterr().err)
    for data, flags, has in (
        (mrpc, ("--task", "glue/mrpc"), "holds token ids already"),
        (mrpc / "train.jsonl", ("--task", "glue/mrpc"), "holds token ids already"),
        (other, (), "no --task"),
    ):
        train(data, tmp_path / "run", *flags, "--max_len", "12", code=2)
        error = error_line(capsys.readouterr().err)
        assert "Only raw data of a --task take --max_len" in error
        assert has in error
    assert not (tmp_path / "run").exists()
    run = train(other, tmp_path / "named", "--task", "glue/mnli", "--epochs", "1")
    assert run.column("val_accuracy")


def test_metrics_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500)
    logits = rng.normal(size=(500, 2)) + np.eye(2)[labels]
    scores = ClassifyScores(["no", "yes"], ["f1", "mcc"])
    for part in np.array_split(np.arange(500), 7):
        scores.update(labels[part], logits[part])
    predicted = logits.argmax(1)
    brief = scores.brief()
    assert brief["f1"] == pytest.approx(f1_score(labels, predicted))
    assert brief["mcc"] == pytest.approx(matthews_corrcoef(labels, predicted))
