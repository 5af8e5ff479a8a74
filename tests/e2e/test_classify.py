"""`train.py classify`, from a data set to a run folder."""

import csv
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import yaml
from classify_runs import NAMES, Run, make_data, same_weights, table, texts, train, write_model
from encode_runs import TOKENS, DataSet, encode, error_line

from tfbert.loop.state import read_state

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), test=60).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of one layer, for what does not depend on depth."""
    return write_model(tmp_path_factory.mktemp("small"), num_hidden_layers=1)


STAGES = [
    *("--frozen_epochs", "1", "--frozen_learning_rate", "1e-2", "--epochs", "3"),
    *("--monitor", "val_accuracy", "--mode", "max", "--devices", "cpu:2"),
]


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A frozen epoch and three full ones on two replicas; nothing may change it."""
    return train(data, tmp_path_factory.mktemp("main") / "run", *STAGES)


def evaluate(run_dir: Path, rows: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    import predict

    capsys.readouterr()
    assert predict.main(["evaluate", "--run_dir", str(run_dir), "--input", rows, "--json", *flags]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


# --------------------------------------------------------------------------------------------------- the run folder


def test_files_of_a_run(run: Run, data: Path):
    assert {path.name for path in run.folder.iterdir()} - {"lock"} == {
        *("config.yaml", "bert_config.json", "model.json", "manifest.json", "vocab.txt", "labels.txt"),
        *("best.weights.h5", "last", "log.tsv", "metrics.jsonl", "events", "report", "finished", "verified.json"),
        "parallel.json",  # the run is on two replicas
    }
    assert {path.name for path in (run.folder / "report").iterdir()} == {
        *("scores.json", "confusion.png", "calibration.png"),
    }
    for name in ("manifest.json", "vocab.txt", "labels.txt"):
        assert (run.folder / name).read_bytes() == (data / name).read_bytes()


def test_it_learns(run: Run):
    assert run.column("val_accuracy")[-1] > 0.9
    assert run.column("loss")[-1] < run.column("loss")[0]


def test_the_log_is_one_table(run: Run):
    with (run.folder / "log.tsv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    assert header == [
        *("epoch", "stage", "loss", "accuracy", "learning_rate", "rows_per_s", "tokens_per_s"),
        *("padding_share", "wait_share", "val_loss", "val_accuracy", "val_macro_f1"),
    ]
    assert [row[:2] for row in rows] == [["1", "frozen"], ["2", "full"], ["3", "full"], ["4", "full"]]
    assert np.isfinite(np.array([row[2:] for row in rows], float)).all()
    assert run.column("learning_rate")[0] <= 1e-2
    assert all(0 <= share < 1 for share in run.column("padding_share"))


def test_metrics_are_strict_json_with_f1_by_class(run: Run):
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3, 4]
    for logged, row in zip(run.log, run.metrics, strict=True):
        assert list(row["val_f1_per_class"]) == NAMES
        assert np.mean(list(row["val_f1_per_class"].values())) == pytest.approx(row["val_macro_f1"])
        assert {name: str(row[name]) for name in logged} == logged


def test_events_for_tensorboard(run: Run):
    from tensorflow.compat.v1.train import summary_iterator

    found = {}
    for file in (run.folder / "events").iterdir():
        for event in summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(np.frombuffer(value.tensor.tensor_content, np.float32)[0])
    assert {step for tag, step in found if tag == "val_loss"} == {1, 2, 3, 4}
    assert [found["val_loss", epoch] for epoch in (1, 2, 3, 4)] == pytest.approx(run.column("val_loss"), rel=1e-6)
    assert {"loss", "learning_rate", "val_accuracy"} <= {tag for tag, _ in found}


def test_the_best_weights_are_those_of_the_best_epoch(run: Run, data: Path, capsys: pytest.CaptureFixture[str]):
    """Case 112: the direction is the one that was asked for."""
    accuracies = run.column("val_accuracy")
    assert min(accuracies) < max(accuracies)
    result = evaluate(run.folder, f"{data}:val", capsys)
    assert result["accuracy"] == max(accuracies)
    report = json.loads((run.folder / "report/scores.json").read_text(encoding="utf-8"))
    assert report["accuracy"] == max(accuracies)
    assert report["confusion"]["labels"] == NAMES


@pytest.mark.parametrize("words", [[], ["--devices", "cpu:1"]])
def test_a_finished_run_says_so(run: Run, capsys: pytest.CaptureFixture[str], words: list[str]):
    """Case 114: nothing changes; the saved settings are enough to name the run."""
    import train as script

    before = run.snapshot()
    config = ["--config", str(run.folder / "config.yaml"), "--run_dir", str(run.folder)]
    assert script.main(["classify", *config, *words]) == 0
    assert "already complete" in capsys.readouterr().err
    assert run.snapshot() == before


def test_a_finished_run_of_other_settings_is_refused(run: Run, data: Path, capsys: pytest.CaptureFixture[str]):
    """Case 107: what was asked for is not what lies there."""
    before = run.snapshot()
    train(data, run.folder, *STAGES, "--epochs", "5", "--seed", "1", code=2)
    assert "a run with other settings (seed 0, now 1)" in error_line(capsys.readouterr().err)
    assert run.snapshot() == before


def test_the_settings_repeat_the_run(run: Run, tmp_path: Path):
    """The same settings give the same numbers."""
    import train as script

    config = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    config |= {"epochs": 0, "run_dir": str(tmp_path / "run")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert script.main(["classify", "--config", str(tmp_path / "config.yaml")]) == 0
    repeated = Run(tmp_path / "run")
    assert repeated.column("loss") == pytest.approx(run.column("loss")[:1], abs=1e-6)
    assert repeated.column("val_loss") == pytest.approx(run.column("val_loss")[:1], abs=1e-6)


# ----------------------------------------------------------------------------------------------- stages and stopping


def test_a_frozen_stage_leaves_the_encoder_alone(run: Run, data: Path, tmp_path: Path):
    """Case 073; the head starts from the run as well, as its classes are the same."""
    frozen = train(data, tmp_path / "run", "--frozen_epochs", "1", "--epochs", "0", init=run.folder)
    before, after = run.weights, frozen.weights
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert changed
    assert not [name for name in changed if "encoder" in name]
    assert frozen.column("loss")[0] < run.column("loss")[1]


@pytest.mark.usefixtures("eagerly")
def test_plateau_and_early_stop(data: Path, small: Path, tmp_path: Path):
    """With a rate that changes nothing, nothing improves: the rate falls, and then the run stops."""
    patience = ["--schedule", "plateau", "--plateau_patience", "1", "--patience", "3", "--warmup", "0"]
    rate = ["--optimizer", "sgd", "--learning_rate", "1e-12", "--weight_decay", "0"]
    stopped = train(data, tmp_path / "run", "--epochs", "9", *patience, *rate, init=small)
    assert len(set(stopped.column("val_loss"))) == 1
    assert stopped.column("learning_rate") == [1e-12, 1e-12, 5e-13, 2.5e-13]


@pytest.mark.usefixtures("eagerly")
def test_mode_max_of_a_falling_number_keeps_the_first_epoch(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Case 112."""
    first = train(data, tmp_path / "run", "--epochs", "3", "--monitor", "val_loss", "--mode", "max", init=small)
    assert first.column("val_loss")[0] == max(first.column("val_loss"))
    assert evaluate(first.folder, f"{data}:val", capsys)["accuracy"] == first.column("val_accuracy")[0]
    assert first.column("val_accuracy")[0] < first.column("val_accuracy")[-1]


@pytest.mark.usefixtures("eagerly")
def test_a_loss_that_is_not_finite_stops_the_run(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Case 115: one line, exit code 2, and the weights of the good epoch stay."""
    blown = ["--frozen_epochs", "1", "--epochs", "2", "--learning_rate", "1e30"]
    run = train(data, tmp_path / "run", *blown, init=small, code=2)
    assert "must be finite" in error_line(capsys.readouterr().err)
    assert [row["stage"] for row in run.log] == ["frozen"]
    assert not (run.folder / "finished").exists()
    result = evaluate(run.folder, f"{data}:val", capsys)
    assert result["accuracy"] == run.column("val_accuracy")[0]


@pytest.mark.usefixtures("eagerly")
def test_sigterm_in_an_epoch(data: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Case 117: exit code 143, no finished run, the thread that reads ahead is gone and the folder is free."""
    from tfbert.recipes import classify
    from tfbert.run_folder import RunFolder
    from tfbert.training import stages as training

    class Stopped(training.StepProgress):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if batch == 2:
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(training, "StepProgress", Stopped)
    run = train(data, tmp_path / "run", "--epochs", "3", init=small, code=143)
    assert not (run.folder / "finished").exists()
    assert "read-ahead" not in {thread.name for thread in threading.enumerate()}
    settings = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    with RunFolder(run.folder).held(classify.ClassifyConfig(**settings)):
        pass


def test_a_run_of_other_settings_that_did_not_finish_is_not_overwritten(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Case 105: the weights of the run before are not replaced by those of another."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("epochs: 3\n", encoding="utf-8")
    (tmp_path / "run/best.weights.h5").write_bytes(b"precious")
    train(data, tmp_path / "run", init=small, code=2)
    assert "a run with other settings (epochs 3, now 1)" in error_line(capsys.readouterr().err)
    assert (tmp_path / "run/best.weights.h5").read_bytes() == b"precious"


def test_a_second_run_in_the_folder_is_refused(data: Path, small: Path, tmp_path: Path):
    """Case 116."""
    from tfbert.recipes.classify import ClassifyConfig
    from tfbert.run_folder import RunFolder

    folder = RunFolder(tmp_path / "run")
    words = ["--data", str(data), "--init", str(small), "--run_dir", str(folder.path)]
    with folder.held(ClassifyConfig(data=str(data), init=str(small), run_dir=str(folder.path))):
        command = [sys.executable, "train.py", "classify", *words]
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout) == (2, "")
    assert "in use by another" in error_line(second.stderr)
    assert [path.name for path in folder.path.iterdir()] == ["lock"]


@pytest.mark.parametrize("target", ["data", "file", "below a file"])
def test_a_run_needs_a_folder_of_its_own(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
):
    """A run in the data set's or the checkpoint's folder would overwrite its files."""
    (tmp_path / "file").touch()
    folder = {"data": data, "file": tmp_path / "file", "below a file": tmp_path / "file/run"}[target]
    before = (data / "manifest.json").read_bytes()
    train(data, folder, init=small, code=2)
    error_line(capsys.readouterr().err)
    assert (data / "manifest.json").read_bytes() == before
    assert not (data / "config.yaml").exists()


@pytest.mark.usefixtures("eagerly")
def test_other_files_in_the_run_folder_do_no_harm(data: Path, small: Path, tmp_path: Path):
    """`train.py ... 2> RUN/stderr.txt` makes one before the run begins."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/stderr.txt").touch()
    train(data, tmp_path / "run", init=small)


# ------------------------------------------------------------------------------------------ what training really sees


@pytest.mark.usefixtures("eagerly")
def test_every_row_once_an_epoch(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch):
    """Cases 051 to 053, 057, 058 and 060: few rows, a large window, more steps than rows a replica."""
    from tfbert.data.feed import place  # noqa: F401 - TensorFlow is there
    from tfbert.recipes import classify
    from tfbert.training import stages as training

    seen: list[tuple[int, list[tuple[int, ...]], list[int]]] = []
    validated: list[list[tuple[int, ...]]] = []

    def rows_of(strategy: Any, batch: dict[str, Any], name: str) -> Any:
        return np.concatenate([part.numpy() for part in strategy.experimental_local_results(batch[name])])

    def real_rows(strategy: Any, batch: dict[str, Any]) -> tuple[list[tuple[int, ...]], list[int]]:
        real = rows_of(strategy, batch, "weights") > 0
        ids = rows_of(strategy, batch, "token_ids")[real]
        return [tuple(row[row > 0].tolist()) for row in ids], rows_of(strategy, batch, "labels")[real].tolist()

    class Recording(training.Trainer):
        def fit(self, epochs: Any, *arguments: Any) -> None:
            def recorded(number: int, batches: Any) -> Iterator[Any]:
                for batch in batches:
                    seen.append((number, *real_rows(self.strategy, batch)))
                    yield batch

            super().fit((replace(e, batches=recorded(e.number, e.batches)) for e in epochs), *arguments)

    class RecordingScorer(classify.Scorer):
        def logits(self, batch: Any) -> Any:
            validated.append(real_rows(self.strategy, batch)[0])
            return super().logits(batch)

    monkeypatch.setattr(training, "Trainer", Recording)
    monkeypatch.setattr(classify, "Scorer", RecordingScorer)
    rows = "".join(f"{'x' * (i % 5)} {i:03}\t{NAMES[i % 3]}\n" for i in range(25))
    words = ["--text", "0", "--label", "1", "--max_len", "16"]
    (tmp_path / "val.tsv").write_text("".join(f"v {i:03}\t{NAMES[i % 3]}\n" for i in range(71)), encoding="utf-8")
    data = encode(tmp_path, rows, *words, "--val", str(tmp_path / "val.tsv"))
    steps = ["--epochs", "3", "--global_batch_size", "8", "--devices", "cpu:2", "--seed", "1"]
    train(data.folder, tmp_path / "run", *steps, init=small)

    label_of = {tuple(row["wordids"]): row["label"] for row in data.rows()}
    epochs = [[entry for entry in seen if entry[0] == number] for number in range(3)]
    for epoch in epochs:
        assert sorted(len(ids) for _, ids, _ in epoch) == [1, 8, 8, 8]  # four steps, the last row alone
        rows_seen = [row for _, ids, _ in epoch for row in ids]
        assert sorted(rows_seen) == sorted(label_of)
        labels_seen = [label for _, _, labels in epoch for label in labels]
        assert labels_seen == [label_of[row] for row in rows_seen]
    orders = [[row for _, ids, _ in epoch for row in ids] for epoch in epochs]
    assert len({tuple(order) for order in orders}) == 3
    assert len(validated) == 4 * 2  # after each epoch, and once for the report: 64 rows and 7
    assert validated[:2] * 4 == validated
    assert sorted(validated[0] + validated[1]) == sorted(tuple(row["wordids"]) for row in data.rows("val"))
    assert json.loads((tmp_path / "run/report/scores.json").read_text(encoding="utf-8"))["rows"] == 71


# ------------------------------------------------------------------------------------------------- losses and tasks


@pytest.mark.usefixtures("eagerly")
def test_class_weights_change_the_result(data: Path, small: Path, tmp_path: Path):
    """Case 101: by name, the others weigh 1; `balanced` is no change where the classes are."""
    plain = train(data, tmp_path / "plain", init=small)
    same = train(data, tmp_path / "same", "--class_weights", "balanced", init=small)
    named = train(data, tmp_path / "named", "--class_weights", "bee=10", init=small)
    assert same_weights(plain, same)
    assert not same_weights(plain, named)
    assert named.metrics[0]["val_f1_per_class"] != plain.metrics[0]["val_f1_per_class"]


@pytest.mark.usefixtures("eagerly")
def test_balanced_weights_of_an_unbalanced_set(small: Path, tmp_path: Path):
    """The weights of each class add up to the same sum: equal to naming rows / (classes x rows of the class)."""
    lines = table(90).split("\n")
    kept = [lines[0]] + [line for i, line in enumerate(lines[1:-1]) if line.endswith("\tant") or i < 30]
    data = make_data(tmp_path, "\n".join(kept) + "\n", "--val_fraction", "0")
    counts = data.manifest["parts"]["train"]["labels"]
    assert counts == {"ant": 30, "bee": 10, "cat": 10}
    weights = ",".join(f"{name}={50 / (3 * count)}" for name, count in counts.items())
    balanced = train(data.folder, tmp_path / "balanced", "--class_weights", "balanced", init=small)
    named = train(data.folder, tmp_path / "named", "--class_weights", weights, init=small)
    assert same_weights(balanced, named)


def test_the_average_of_the_weights_is_validated_and_kept(data: Path, small: Path, tmp_path: Path):
    """The run trains as without it; the state holds both."""
    flags = ["--optimizer", "sgd", "--learning_rate", "0.1", "--epochs", "2", "--schedule", "constant"]
    plain = train(data, tmp_path / "plain", *flags, init=small)
    run = train(data, tmp_path / "run", *flags, "--ema", "0.9", init=small)
    assert run.column("loss") == plain.column("loss")
    assert run.column("val_loss") != plain.column("val_loss")
    arrays, _ = read_state(run.folder / "last") or ({}, {})
    state, _ = read_state(plain.folder / "last") or ({}, {})
    assert all(np.array_equal(arrays[name], value) for name, value in state.items())
    averages = sorted((v.shape, v.tobytes()) for name, v in arrays.items() if name.startswith("average/"))
    best = int(np.argmin(run.column("val_loss")))
    assert best == 1
    assert sorted((v.shape, v.tobytes()) for v in run.weights.values() if v.size) == averages


@pytest.mark.usefixtures("eagerly")
def test_sampling_draws_as_many_rows_of_each_class(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from tfbert.recipes import classify

    lines = ["x a\tant\n" for _ in range(70)] + ["x b\tbee\n"] * 20 + ["x c\tcat\n"] * 10
    data = make_data(tmp_path, "text\tlabel\n" + "".join(lines), "--val_fraction", "0").folder
    seen: list[int] = []
    original = classify.plan_batches

    def watched(*arguments: Any) -> Any:
        for batch in original(*arguments):
            seen.extend(batch["labels"][batch["weights"] > 0].tolist())
            yield batch

    monkeypatch.setattr(classify, "plan_batches", watched)
    train(data, tmp_path / "run", "--sampling", "balanced", "--epochs", "2", init=small)
    assert sorted(np.bincount(seen).tolist()) == [66, 66, 68]
    assert "sampling balanced: draws an epoch of the rows of each class: 34 of 70, 33 of 20, 33 of 10" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("eagerly")
def test_focal_loss(data: Path, small: Path, tmp_path: Path):
    """Case 099: the settings arrive."""
    run = train(data, tmp_path / "run", "--loss", "focal", "--focal_alpha", "bee=0.5", "--epochs", "2", init=small)
    assert run.column("val_loss")[1] < run.column("val_loss")[0] < np.log(3) * 0.5


def test_dmi_goes_on_from_a_run_trained_with_ce(
    run: Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The head comes along: otherwise DMI, which does not care which class is which, would start from nothing."""
    words = ["--loss", "dmi", "--learning_rate", "1e-4", "--global_batch_size", "60"]
    dmi = train(data, tmp_path / "run", *words, init=run.folder)
    log = capsys.readouterr().err
    assert "encoder and head from" in log
    assert "untrained head" not in log
    assert dmi.column("val_accuracy")[0] > 0.9
    assert 3 * np.log(3) <= dmi.column("val_loss")[0] < 6  # from below: a perfect classifier; 17: one that guesses


@pytest.mark.usefixtures("eagerly")
def test_dmi_from_an_untrained_head_warns(data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train(data, tmp_path / "run", "--loss", "dmi", "--devices", "cpu:2", init=small)
    assert "untrained head" in capsys.readouterr().err


@pytest.mark.usefixtures("eagerly")
def test_several_labels_a_row(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = texts(90)
    lines = [
        f"{text}\t{','.join(name for name in NAMES if name[0] in text)}{',odd' * (i % 2)}\n"
        for i, text in enumerate(rows)
    ]
    words = ["--task", "multilabel"]
    data = make_data(tmp_path, "text\tlabel\n" + "".join(lines), *words)
    message = refused(data.folder, small, tmp_path / "no", capsys, "--sampling", "sqrt")
    assert "--sampling needs one class a row. Received: sqrt with the task multilabel" in message
    run = train(data.folder, tmp_path / "run", "--epochs", "3", "--rdrop", "1", init=small)
    assert run.column("val_loss")[-1] < run.column("val_loss")[0]
    assert list(run.log[0])[-4:] == ["val_loss", "val_accuracy", "val_macro_f1", "val_micro_f1"]
    assert list(run.metrics[0]["val_f1_per_class"]) == [*NAMES, "odd"]


@pytest.mark.usefixtures("eagerly")
def test_regression(small: Path, tmp_path: Path):
    """There is no accuracy of a number, so the log has none."""
    lines = [f"{text}\t{text.count('x') / 4}\n" for text in texts(90)]
    data = make_data(tmp_path, "text\tlabel\n" + "".join(lines), "--task", "regression")
    run = train(data.folder, tmp_path / "run", "--epochs", "3", init=small)
    assert run.column("val_loss") == pytest.approx(run.column("val_mse"), rel=1e-5)
    assert run.column("val_pearson")[-1] > 0.8
    assert "accuracy" not in run.log[0]
    assert not {name for row in run.metrics for name in row if "accuracy" in name}


@pytest.mark.usefixtures("eagerly")
def test_pairs(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Segments of both kinds, on three replicas; rows of one segment model are refused."""
    lines = [f"{a}\t{b}\t{NAMES[i % 3]}\n" for i, (a, b) in enumerate(zip(texts(90), texts(90, 1), strict=True))]
    data = make_data(tmp_path, "text\tmore\tlabel\n" + "".join(lines), "--text_b", "more")
    assert any(1 in row["segmentids"] for row in data.rows())
    run = train(data.folder, tmp_path / "run", "--epochs", "2", "--devices", "cpu:3", "--head", "mean", init=small)
    assert run.column("val_loss")[-1] < run.column("val_loss")[0]
    one_segment = write_model(tmp_path, type_vocab_size=1)
    train(data.folder, tmp_path / "other", init=one_segment, code=2)
    assert "type_vocab_size 1" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize(("precision", "devices"), [("float16", "cpu:2"), ("bfloat16", "cpu:1")])
def test_mixed_precision(
    data: Path, small: Path, tmp_path: Path, request: pytest.FixtureRequest, precision: str, devices: str
):
    """Case 086: finite numbers, and it learns; what is saved is single precision."""
    if precision == "float16":  # bfloat16 on CPUs is a rewrite of the compiled graph
        request.getfixturevalue("eagerly")
    words = ["--mixed_precision", precision, "--devices", devices, "--epochs", "3"]
    run = train(data, tmp_path / "run", *words, init=small)
    assert run.column("val_accuracy")[-1] > 0.8
    assert {array.dtype for array in run.weights.values()} == {np.dtype(np.float32)}


# ------------------------------------------------------------------------------------------------------- bare files


def bare_rows(count: int) -> list[dict[str, Any]]:
    return [{"label": i % 3, "wordids": [2, 5 + i % 3, *range(20, 20 + i % 4), 3]} for i in range(count)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


@pytest.mark.usefixtures("eagerly")
def test_a_bare_file_trains(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Rows that someone else encoded, blank lines between them: all of it is train, the last weights are kept."""
    path = write_rows(tmp_path / "rows.jsonl", bare_rows(40))
    path.write_bytes(path.read_bytes().replace(b"}\n", b"}\n\n"))
    run = train(path, tmp_path / "run", "--epochs", "2", init=small)
    assert [name for name in run.log[0] if name.startswith("val")] == []
    assert (run.folder / "labels.txt").read_text(encoding="utf-8") == "0\n1\n2\n"
    assert (tmp_path / "rows.idx").exists()
    assert "predict.py cannot use this run" in capsys.readouterr().err
    import predict

    words = ["--run_dir", str(run.folder), "--input", str(path), "--output", str(tmp_path / "out.jsonl")]
    assert predict.main(["run", *words]) == 2
    assert "bare JSON-lines files" in error_line(capsys.readouterr().err)


@pytest.mark.usefixtures("eagerly")
def test_a_bare_folder_with_names_and_validation(small: Path, tmp_path: Path):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_rows(folder / "train.jsonl", bare_rows(40))
    write_rows(folder / "val.jsonl", bare_rows(9))
    (folder / "labels.txt").write_text("red\ngreen\nblue\nnever\n", encoding="utf-8")
    run = train(folder, tmp_path / "run", "--class_weights", "balanced", init=small)
    assert list(run.metrics[0]["val_f1_per_class"]) == ["red", "green", "blue", "never"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 3}, "from 0 to 2. Received: 3"),
        ({"label": -1}, "Received: no class"),
        ({"label": None}, "Received: no class"),
        ({"label": 2_000_000_000}, "Received: 2000000000"),
        ({"label": "bee"}, "`label` must be a number"),
        ({"wordids": []}, "`wordids` must be a list"),
        ({"wordids": [2, 999, 3]}, f"token id must be below the model's vocab_size, {len(TOKENS)}. Received: 999"),
        ({"segmentids": [0, 2, 0]}, "segment id must be below the model's type_vocab_size, 2. Received: 2"),
    ],
)
@pytest.mark.usefixtures("eagerly")
def test_bad_rows_of_a_bare_file_are_named(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
):
    """Cases 045, 059 and 102: the file and the line, and no traceback."""
    rows = bare_rows(12)
    rows[7] |= {"wordids": [2, 5, 3]} | change
    folder = tmp_path / "rows"
    folder.mkdir()
    path = write_rows(folder / "train.jsonl", rows)
    (folder / "labels.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    train(path, tmp_path / "run", "--epochs", "1", init=small, code=2)
    line = error_line(capsys.readouterr().err)
    assert f"{path}:8: " in line
    assert message in line


def test_a_class_id_that_cannot_be_meant(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Two thousand million classes would not fit anywhere."""
    rows = bare_rows(12)
    rows[7]["label"] = 2_000_000_000
    path = write_rows(tmp_path / "rows.jsonl", rows)
    train(path, tmp_path / "run", init=small, code=2)
    assert f"{path}:8: " in error_line(capsys.readouterr().err)


def test_rows_longer_than_the_model(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 075 for bare rows."""
    path = write_rows(tmp_path / "rows.jsonl", [*bare_rows(5), {"label": 0, "wordids": [5] * 33}])
    train(path, tmp_path / "run", init=small, code=2)
    assert "max_len 33, 32 positions" in error_line(capsys.readouterr().err)


# --------------------------------------------------------------------------------- refused before anything is trained


def refused(data: Path, model: Path, run_dir: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The error of a run that must not even make its folder."""
    capsys.readouterr()
    train(data, run_dir, *flags, init=model, code=2)
    assert not run_dir.exists()
    captured = capsys.readouterr()
    assert captured.out == ""
    return error_line(captured.err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--monitor", "val_acc"], "one of loss, accuracy, val_loss, val_accuracy, val_macro_f1. Received: 'val_acc'"),
        (["--monitor", "val_accuracy"], "--mode min or max says which way val_accuracy gets better"),
        (["--monitor", "val_accuracy", "--mode", "up"], "--mode is one of min, max"),
        (["--schedule", "plateau", "--patience", "1"], "--patience must be above --plateau_patience"),
        (["--patience", "-1"], "--patience must be at least 0. Received: -1"),
        (["--patience", "1.5"], "patience"),
        (["--epochs", "2.5"], "epochs"),
        (["--epochs", "0"], "at least one epoch"),
        (["--learning_rate", "0"], "--learning_rate must be above 0. Received: 0"),
        (["--learning_rate", "nan"], "learning_rate"),
        (["--weight_decay", "inf"], "weight_decay"),
        (["--head_dropout", "1"], "--head_dropout must be at least 0 and below 1. Received: 1"),
        (["--warmup", "1.5"], "--warmup must be at least 0 and at most 1"),
        (["--warmup_steps", "-1"], "--warmup_steps must be at least 0. Received: -1"),
        (["--sampling", "all"], "--sampling is one of none, balanced, sqrt. Received: 'all'"),
        (["--sampling", "sqrt", "--class_weights", "balanced"], "Leave one of the two out"),
        (["--rdrop", "1", "--loss", "dmi"], "R-Drop needs a loss of each row. Received: --rdrop 1.0 with --loss dmi"),
        (["--rdrop", "-1"], "--rdrop must be at least 0"),
        (
            ["--rdrop", "1", "--head_dropout", "0", "--epochs", "0", "--frozen_epochs", "1"],
            "R-Drop needs dropout. Received: --rdrop 1.0, and dropout rates of 0",
        ),
        (["--fgm", "1", "--epochs", "0", "--frozen_epochs", "1"], "--fgm needs epochs that train the embeddings"),
        (["--memory_gb", "8"], "--memory_gb is of --auto_accumulate. Received: 8.0 without it"),
        (["--auto_accumulate"], "--auto_accumulate on a CPU needs --memory_gb"),
        (["--auto_accumulate", "--memory_gb", "0"], "--memory_gb must be above 0"),
        (["--auto_accumulate", "--memory_gb", "8", "--loss", "dmi"], "needs the whole batch at once"),
        (["--nan_rate_factor", "0"], "--nan_rate_factor must be above 0 and at most 1"),
        (["--nan_retries", "-1"], "--nan_retries must be at least 0"),
        (["--layer_decay", "0"], "--layer_decay must be above 0 and at most 1"),
        (["--schedule_power", "2"], "--schedule_power is of the polynomial schedule. Received: 2.0 with linear"),
        (["--schedule", "constant", "--end_learning_rate", "1e-6"], "--end_learning_rate needs a rate that falls"),
        (
            ["--end_learning_rate", "1e-4", "--frozen_epochs", "1", "--frozen_learning_rate", "1e-5"],
            "below the highest rate of every stage. Received: 0.0001 and 1e-05",
        ),
        (["--label_smoothing", "1"], "--label_smoothing"),
        (["--seed", "4294967296"], "--seed must be at most 2147483647"),
        (
            ["--global_batch_size", "1", "--devices", "cpu:2"],
            "at least one row a device and micro-batch. Received: 1 rows, 2 devices",
        ),
        (["--devices", "tpu:8"], "--devices is auto, cpu:N or gpu:N. Received: 'tpu:8'"),
        (["--devices", "cpu:0"], "--devices is auto, cpu:N or gpu:N"),
        (["--devices", "gpu:64"], "needs as many visible GPUs"),
        (["--mixed_precision", "fp16"], "--mixed_precision is one of none, bfloat16, float16"),
        (["--loss", "mse"], "--loss is one of ce, focal, dmi"),
        (["--loss", "dmi", "--class_weights", "ant=2"], "takes no class weights"),
        (["--loss", "dmi", "--accumulate", "2"], "needs the whole batch at once"),
        (["--loss", "dmi", "--label_smoothing", "0.1"], "label_smoothing needs a cross entropy"),
        (["--class_weights", "dog=2"], "names classes as name=number: ant, bee, cat. Received: 'dog=2'"),
        (["--class_weights", "ant"], "names classes as name=number"),
        (["--class_weights", "ant=two"], "takes numbers >= 0. Received: 'two'"),
        (["--class_weights", "ant=-2"], "takes numbers >= 0. Received: '-2'"),
        (["--class_weights", "ant=1,ant=2"], "names a class once. Received: 'ant' twice"),
        (["--class_weights", "ant=0,bee=0,cat=0"], "leaves a class something to weigh"),
        (["--focal_alpha", "nan"], "--focal_alpha takes numbers >= 0. Received: 'nan'"),
        (["--focal_alpha", "dog=1"], "--focal_alpha names classes"),
        (["--head", "crf"], "--head is one of pool, cls, mean"),
        (["--no_such_flag", "1"], "--no_such_flag"),
        (["--data", "missing"], "Received: missing, which does not exist"),
        (["--init", "missing"], "Received: missing, which is none of these (it does not exist)"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_settings_are_refused_at_once(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
):
    """Cases 099, 101, 111, 112, 118 and 119."""
    assert message in refused(data, small, tmp_path / "run", capsys, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--monitor", "val_loss"], "--monitor is one of loss, accuracy. Received: 'val_loss'"),
        (["--patience", "2"], "--patience needs a number to watch. Received: no val part"),
        (["--schedule", "plateau", "--mode", "max"], "--mode and plateau needs a number to watch"),
    ],
)
def test_nothing_to_watch(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
):
    """Case 111."""
    data = make_data(tmp_path, 30, "--val_fraction", "0")
    assert message in refused(data.folder, small, tmp_path / "run", capsys, *flags)


def without_val(folder: Path) -> DataSet:
    return make_data(folder, 30, "--val_fraction", "0")


def without_train_rows(folder: Path) -> DataSet:
    return make_data(folder, "id\ttext\tlabel\n", "--val_fraction", "0")


def without_val_rows(folder: Path) -> DataSet:
    (folder / "val.tsv").write_text("id\ttext\tlabel\n", encoding="utf-8")
    return make_data(folder, 30, "--val", str(folder / "val.tsv"))


def without_labels(folder: Path) -> DataSet:
    return encode(folder, table(30), "--text", "text", "--max_len", "16")


def with_one_class(folder: Path) -> DataSet:
    lines = table(30).split("\n")
    return make_data(folder, "\n".join([lines[0], *lines[1::3]]) + "\n")


def with_a_changed_vocabulary(folder: Path) -> DataSet:
    data = make_data(folder, 30)
    (data.folder / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    return data


def with_a_cut_file(folder: Path) -> DataSet:
    data = make_data(folder, 30)
    path = data.folder / "train.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    return data


def with_a_lost_manifest(folder: Path) -> DataSet:
    data = make_data(folder, 30)
    (data.folder / "manifest.json").unlink()
    return data


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_train_rows, "train.jsonl: there must be rows to train on"),
        (without_val_rows, "val.jsonl: there must be rows to validate on"),
        (without_labels, "a classifier needs labels"),
        (with_one_class, "needs at least two classes"),
        (with_a_changed_vocabulary, "vocab.txt: the file is not the one of the manifest"),
        (with_a_cut_file, "train.jsonl: the file is not the one of the manifest"),
        (with_a_lost_manifest, "the data set is not complete"),
    ],
)
def test_data_that_cannot_train(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], DataSet], message: str
):
    """Case 054, and data sets that are not whole."""
    assert message in refused(make(tmp_path).folder, small, tmp_path / "run", capsys)


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_an_empty_bare_file(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes):
    """Case 054."""
    (tmp_path / "rows.jsonl").write_bytes(content)
    message = refused(tmp_path / "rows.jsonl", small, tmp_path / "run", capsys)
    assert f"{tmp_path / 'rows.jsonl'}: there must be rows to train on" in message


def test_a_file_of_a_data_set_is_not_the_data_set(
    data: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Without its manifest nobody could predict with the run."""
    assert f"Give {data}" in refused(data / "train.jsonl", small, tmp_path / "run", capsys)


def test_a_vocabulary_larger_than_the_models(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 045: both numbers."""
    model = write_model(tmp_path, vocab_size=100)
    message = refused(data, model, tmp_path / "run", capsys)
    assert f"a vocabulary of {len(TOKENS)} tokens" in message
    assert "vocab_size 100" in message


@pytest.mark.usefixtures("eagerly")
def test_a_vocabulary_smaller_than_the_models(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 045: allowed, with a notice."""
    model = write_model(tmp_path, vocab_size=200, num_hidden_layers=1)
    train(data, tmp_path / "run", init=model)
    assert f"the vocabulary has {len(TOKENS)} tokens, the model 200" in capsys.readouterr().err


def test_rows_longer_than_the_positions(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 075: max_len decides, before a long row comes."""
    model = write_model(tmp_path, max_position_embeddings=15)
    assert "max_len 16, 15 positions" in refused(data, model, tmp_path / "run", capsys)


# ------------------------------------------------------------------------------------------------- the command line


@pytest.mark.usefixtures("eagerly")
def test_a_file_of_settings_and_flags_in_any_order(data: Path, small: Path, tmp_path: Path):
    """Case 119: YAML's `1e-5` is a number, `'2'` a whole one; flags win wherever they stand."""
    import train as script

    (tmp_path / "settings.yaml").write_text("learning_rate: 1e-5\npatience: '2'\nepochs: 7\n", encoding="utf-8")
    words = ["--data", str(data), "--init", str(small), "--run_dir", str(tmp_path / "run"), "--devices", "cpu:1"]
    config = ["--config", str(tmp_path / "settings.yaml")]
    assert script.main(["classify", "--epochs", "1", *config, *words]) == 0
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text(encoding="utf-8"))
    assert [saved[name] for name in ("learning_rate", "patience", "epochs")] == [1e-5, 2, 1]
    assert isinstance(saved["learning_rate"], float)


def test_print_config(data: Path, small: Path, capsys: pytest.CaptureFixture[str]):
    import train as script

    with pytest.raises(SystemExit) as stop:
        script.main(["classify", "--data", str(data), "--init", str(small), "--run_dir", "R", "--print_config"])
    assert stop.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["data"], printed["learning_rate"]) == (str(data), 2e-5)


def all_commands() -> dict[str, dict[str, Any]]:
    import predict
    import train as script
    from preprocess.__main__ import COMMANDS

    return {"preprocess": dict(COMMANDS), "train": dict(script.commands()), "predict": dict(predict.commands())}


@pytest.mark.parametrize("program", ["preprocess", "train", "predict"])
def test_help_names_every_flag(capsys: pytest.CaptureFixture[str], program: str):
    import dataclasses

    import predict
    import preprocess.__main__
    import train as script

    main = {"preprocess": preprocess.__main__.main, "train": script.main, "predict": predict.main}[program]
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name, (config_class, _, summary) in all_commands()[program].items():
        assert name in overview
        assert summary in overview
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        for field in dataclasses.fields(config_class):
            flag = field.name if field.metadata.get("positional") else f"--{field.name}"
            assert flag in text


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]):
    import train as script

    assert script.main([]) == 2
    assert script.main(["classfy"]) == 2
    assert "one of classify, distill, pretrain, sweep. Received: 'classfy'" in error_line(capsys.readouterr().err)


def test_validation_inside_of_an_epoch(data: Path, small: Path, tmp_path: Path) -> None:
    """--eval_steps: 8 steps an epoch, so steps 3 and 6, and 9, 12 and 15 of the second; 8 and 16 have their lines."""
    run = train(data, tmp_path / "run", "--epochs", "2", "--eval_steps", "3", init=small)
    header, *lines = (tmp_path / "run/evaluations.tsv").read_text(encoding="utf-8").splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [int(row["step"]) for row in rows] == [3, 6, 9, 12, 15]
    assert [float(row["epoch"]) for row in rows] == pytest.approx([3 / 8, 6 / 8, 9 / 8, 12 / 8, 15 / 8])
    kept = (tmp_path / "run/evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["val_loss"] for line in kept] == [float(row["val_loss"]) for row in rows]
    plain = train(data, tmp_path / "plain", "--epochs", "2", init=small)
    for name in ("loss", "val_loss", "val_accuracy"):
        assert run.column(name) == plain.column(name)
    losses = [*(float(row["val_loss"]) for row in rows), *run.column("val_loss")]
    report = json.loads((tmp_path / "run/report/scores.json").read_text(encoding="utf-8"))
    state = read_state(tmp_path / "run/last")
    assert state is not None
    assert state[1]["callbacks"]["best"]["best"] == min(losses)
    assert report
