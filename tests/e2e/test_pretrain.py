"""`train.py pretrain`: a budget that holds over kills, exports that others start from, the same numbers everywhere."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_runs import make_data, train
from encode_runs import error_line
from pretrain_runs import NUM_TOKENS, SIZES, exported, exports, fake_time, make_rows, pretrain, same_tensors, write_rows

from tfbert.errors import CheckpointError
from tfbert.loop.state import read_state
from tfbert.model.checkpoint import find_init

pytestmark = pytest.mark.usefixtures("eagerly")
NO_DROPOUT = ["--hidden_dropout_prob", "0", "--attention_probs_dropout_prob", "0"]
STEPS = ["--lr_schedule", "step", "--max_steps", "10", "--mask_unit", "token"]


class Killed(BaseException):
    """Ends a run where it is, as SIGKILL does: nothing is saved."""


def kill() -> None:
    raise Killed


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def finished(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of 36 s with steps of 1 s, 4 steps an epoch."""
    with fake_time(1.0):
        markers = ["--finetune_time_markers", "0.9, 0.5,0.6"]
        return pretrain(rows, tmp_path_factory.mktemp("run") / "run", *markers, *NO_DROPOUT)


def test_a_run_leaves_its_log_and_its_exports(finished: Any) -> None:
    assert exports(finished) == ["0.5", "0.6", "0.9", "end"]
    log = finished.log
    assert [int(row["step"]) for row in log][-1] == 36
    assert float(log[-1]["hours"]) == pytest.approx(0.01)
    assert float(log[-1]["epoch"]) == 9
    first, last = (float(row["val_loss"]) for row in (log[1], log[-1]))
    assert last < first
    assert {"mlm_loss", "mlm_accuracy", "val_mlm_accuracy", "tokens_per_s"} <= log[0].keys()
    assert [row["step"] for row in finished.metrics] == [int(row["step"]) for row in log]
    rates = {int(row["step"]): float(row["learning_rate"]) for row in log}
    assert rates[18] == pytest.approx(1e-2 * (1 - (0.5 - 0.06) / 0.94), rel=1e-6)  # by the time, not by the steps
    assert rates[36] == 0
    assert (finished.folder / "finished").exists()
    assert find_init(finished.folder).path == finished.folder / "exports/end/model.safetensors"


def test_a_complete_run_is_left_alone(finished: Any, rows: Path) -> None:
    before = finished.snapshot()
    with fake_time(1.0):
        pretrain(rows, finished.folder, "--finetune_time_markers", "0.9, 0.5,0.6", *NO_DROPOUT)
    assert finished.snapshot() == before


def test_the_budget_holds_over_kills(rows: Path, tmp_path: Path, finished: Any) -> None:
    """Killed without a chance to save, then by SIGTERM: 36 seconds in all, and each marker once (cases 159, 161)."""
    flags = ["--finetune_time_markers", "0.9, 0.5,0.6", *NO_DROPOUT, "--save_steps", "5"]
    with fake_time(1.0) as now:
        now.at = (19, kill)
        with pytest.raises(Killed):
            pretrain(rows, tmp_path / "run", *flags)
    written = (tmp_path / "run/exports/0.5/model.safetensors").stat().st_mtime_ns
    with pytest.raises(CheckpointError, match=r"its exports so far: 0\.5\. Name one of them"):
        find_init(tmp_path / "run")
    with fake_time(1.0) as now:
        now.at = (4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        pretrain(rows, tmp_path / "run", *flags, code=143)
        assert now.steps == 5  # the step behind the signal saves and ends
    with fake_time(1.0) as now:
        run = pretrain(rows, tmp_path / "run", *flags)
        assert 12 <= now.steps <= 13  # at most a second was lost
    assert exports(run) == exports(finished)
    assert (tmp_path / "run/exports/0.5/model.safetensors").stat().st_mtime_ns == written
    assert float(run.log[-1]["hours"]) == pytest.approx(0.01, rel=0.03)
    steps = [int(row["step"]) for row in run.log]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    ("act", "code", "flags"),
    [(kill, None, []), (lambda: os.kill(os.getpid(), signal.SIGTERM), 143, ["--optimizer_type", "lamb"])],
    ids=["killed, adamw", "SIGTERM, lamb"],
)
def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(
    tmp_path: Path, act: Any, code: int | None, flags: list[str]
) -> None:
    """By steps, with dropout, n-grams, growing batches and micro-batches: the same weights to the bit."""
    data = make_rows(tmp_path, words=lambda i, n: "1" + "".join("10"[(i + k) % 2] for k in range(n - 1)))
    more = ["--warmup_batch_size", "5", "--batch_warmup_rows", "80", "--train_micro_batch_size_per_gpu", "6"]
    settings = [*STEPS, "--mask_unit", "ngram", *more, *flags, "--save_steps", "2"]
    with fake_time(0.0):
        whole = pretrain(data, tmp_path / "whole", *settings)
    with fake_time(0.0) as now:
        now.at = (7, act)
        if code is None:
            with pytest.raises(Killed):
                pretrain(data, tmp_path / "run", *settings)
        else:
            pretrain(data, tmp_path / "run", *settings, code=code)
    with fake_time(0.0):
        run = pretrain(data, tmp_path / "run", *settings)
    assert same_tensors(exported(run), exported(whole))
    assert [row["val_loss"] for row in run.log if row["val_loss"]][-1] == whole.log[-1]["val_loss"]


def test_replicas_and_micro_batches_give_the_numbers_of_one_device(rows: Path, tmp_path: Path) -> None:
    """Case 177: 17 rows a step over 2 replicas in micro-batches of 2: neither divides, so one of them has 1 row."""
    flags = [*STEPS, *NO_DROPOUT, "--train_batch_size", "17"]
    results = []
    for i, (devices, micro) in enumerate([("cpu:1", "17"), ("cpu:2", "2")]):
        with fake_time(0.0):
            more = ["--devices", devices, "--train_micro_batch_size_per_gpu", micro]
            run = pretrain(rows, tmp_path / f"run{i}", *flags, *more, "--optimizer", "sgd")
        results.append(run)
    assert same_tensors(exported(results[0]), exported(results[1]), atol=2e-6)
    numbers = [[float(row["loss"]) for row in run.log] for run in results]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)
    assert float(results[0].log[-1]["val_loss"]) == pytest.approx(float(results[1].log[-1]["val_loss"]), rel=1e-5)


def test_a_run_goes_on_with_fewer_devices_and_more_micro_batches(rows: Path, tmp_path: Path) -> None:
    """Each device takes 8 rows at a time: one micro-batch on two devices, two on one. No row is left out."""
    flags = [*STEPS, *NO_DROPOUT, "--optimizer", "sgd", "--train_micro_batch_size_per_gpu", "8", "--save_steps", "5"]
    with fake_time(0.0) as now:
        now.at = (5, kill)
        with pytest.raises(Killed):
            pretrain(rows, tmp_path / "run", *flags, "--devices", "cpu:2")
    with fake_time(0.0):
        run = pretrain(rows, tmp_path / "run", *flags)
        whole = pretrain(rows, tmp_path / "whole", *flags)
    assert same_tensors(exported(run), exported(whole), atol=2e-6)


def test_a_mark_that_is_set_later_lets_the_run_go_on(rows: Path, tmp_path: Path) -> None:
    """--early_exit_time_marker: half of the time today, the rest tomorrow, on one schedule."""
    with fake_time(1.0) as now:
        run = pretrain(rows, tmp_path / "run", "--early_exit_time_marker", "0.005")
        assert now.steps == 18
    assert float(run.log[-1]["learning_rate"]) > 4e-3
    with fake_time(1.0) as now:
        pretrain(rows, tmp_path / "run", "--early_exit_time_marker", "0.005")
        assert now.steps == 0
    with fake_time(1.0) as now:
        run = pretrain(rows, tmp_path / "run")
        assert now.steps == 18
    assert int(run.log[-1]["step"]) == 36
    state = read_state(tmp_path / "run/last")
    assert state is not None
    assert state[1]["position"]["epoch"] == 9


def test_a_run_that_failed_is_stopped_early_and_stays_so(rows: Path, tmp_path: Path) -> None:
    """Case 164, through the command: 0.3 minutes, a loss that no model of this size has."""
    early = ["--use_early_stopping", "--early_stop_time", "0.3", "--early_stop_eval_loss", "0.01"]
    with fake_time(1.0) as now:
        run = pretrain(rows, tmp_path / "run", *early)
        assert now.steps == 18  # in the middle of an epoch, where no validation was due
    assert exports(run) == ["end"]
    (tmp_path / "run/finished").unlink()  # killed as it ended
    with fake_time(1.0) as now:
        pretrain(rows, tmp_path / "run", *early)
        assert now.steps == 0


def test_pretraining_goes_on_from_an_export(finished: Any, rows: Path, tmp_path: Path) -> None:
    flags = [*STEPS, *NO_DROPOUT, "--optimizer", "sgd", "--lr", "1e-9"]
    with fake_time(0.0):
        run = pretrain(rows, tmp_path / "run", "--init", str(finished.folder), *flags)
    assert same_tensors(exported(run), exported(finished), atol=1e-6)
    assert float(run.log[-1]["val_loss"]) == pytest.approx(float(finished.log[-1]["val_loss"]), rel=1e-4)


def test_a_classifier_starts_from_a_pretrained_run(finished: Any, tmp_path: Path) -> None:
    """Its run folder, an export of it, and the Google checkpoint there give the same start, pooler included."""
    data = make_data(tmp_path, 60).folder
    losses = set()
    for i, name in enumerate(["", "exports/0.9", "exports/end/bert_model.ckpt"]):
        init = finished.folder / name
        run = train(data, tmp_path / f"run{i}", "--head", "cls", "--learning_rate", "1e-9", init=init)
        losses.add((name == "exports/0.9", run.log[0]["val_loss"]))
    assert len(losses) == 2


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
def test_pairs_are_learned_from_a_corpus(tmp_path: Path, pairs: str) -> None:
    """From `preprocess corpus`: labels, whole words and the vocabulary come with the data set."""
    from encode_runs import write_vocab

    from preprocess.__main__ import main

    documents = [[f"{'abcdefgh'[i % 8]}{'xyz'[k % 3]} {k}." for k in range(9)] for i in range(24)]
    text = "\n\n".join("\n".join(lines) for lines in documents) + "\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    words = ["--out", str(tmp_path / "data"), "--vocab", str(write_vocab(tmp_path)), "--val_fraction", "0.2"]
    more = ["--max_len", "24", "--pairs", pairs, "--whole_words", "pieces"]
    assert main(["corpus", str(tmp_path / "text.txt"), *words, *more, "--workers", "1"]) == 0
    with fake_time(1.0):
        run = pretrain(tmp_path / "data", tmp_path / "run", "--mask_unit", "word", hours=0.002)
    row = run.log[-1]
    assert float(row["val_loss"]) == pytest.approx(
        float(row["val_mlm_loss"]) + float(row[f"val_{pairs}_loss"]), rel=1e-5
    )
    assert 0 <= float(row[f"val_{pairs}_accuracy"]) <= 1
    config = json.loads((run.folder / "exports/end/config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]
    assert (run.folder / "exports/end/vocab.txt").read_bytes() == (tmp_path / "data/vocab.txt").read_bytes()
    other = "sop" if pairs == "nsp" else "nsp"
    with fake_time(1.0):
        pretrain(tmp_path / "data", tmp_path / "other", "--sentence_pairs", other, code=2)


def test_a_part_that_is_missing_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Case 151: what is there and what is wanted; validation is off only where that is asked for."""
    data = make_rows(tmp_path, val=0)
    write_rows(data / "test.jsonl", 5)
    pretrain(data, tmp_path / "run", code=2)
    line = error_line(capfd.readouterr().err)
    assert "validation needs a val part. Received: train, test (train.jsonl, test.jsonl)" in line
    assert "--no_do_validation" in line
    assert not (tmp_path / "run").exists()
    with fake_time(1.0):
        run = pretrain(data, tmp_path / "run", "--no_do_validation", hours=0.002)
    assert not any(name.startswith("val_") for name in run.log[0])
    assert exports(run) == ["end"]


def test_short_rows_have_a_finite_loss(tmp_path: Path) -> None:
    """Case 156: rows without a token that may be masked, a row of one, and a rate that gives none."""
    data = make_rows(tmp_path, train=0, val=0)
    for name in ("train", "val"):
        (data / f"{name}.jsonl").write_bytes(b'{"wordids":[2,3]}\n' * 20 + b'{"wordids":[2,7,3]}\n')
    with fake_time(1.0):
        run = pretrain(data, tmp_path / "run", "--masked_lm_prob", "0.01", "--train_batch_size", "4", hours=0.003)
    assert all(np.isfinite(float(row["loss"])) for row in run.log)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--finetune_time_markers", "0.5,1.5"], "--finetune_time_markers are different shares of the time"),
        (["--early_exit_time_marker", "1"], "is at most --total_training_time"),
        (["--lr_schedule", "step"], "--lr_schedule step needs --max_steps"),
        (["--num_warmup_steps", "3"], "--lr_schedule time warms up for --warmup_proportion"),
        (["--use_early_stopping"], r"--early_stop_time \(minutes\) must be below --total_training_time \(hours\)"),
        (["--use_early_stopping", "--no_do_validation"], "--use_early_stopping needs a validation loss"),
        (["--fp16", "--mixed_precision", "bfloat16"], "--fp16 is --mixed_precision float16"),
        (["--warmup_batch_size", "4"], "--warmup_batch_size and --batch_warmup_rows go together"),
        (["--warmup_batch_size", "99", "--batch_warmup_rows", "9"], "is at most --train_batch_size"),
        (["--mask_share", "0.8", "--random_share", "0.3"], "are at most 1 together"),
        (["--total_training_time", "0"], "--total_training_time must be above 0"),
        (["--encoder_ln_mode", "preln"], "--encoder_ln_mode is one of post-ln, pre-ln"),
        (["--devices", "cpu:4", "--train_batch_size", "3"], "at least one row a device. Received: 3 rows, 4 devices"),
        (["--mask_unit", "word"], "masking whole words needs rows with `words`"),
        (["--vocab", "none.txt"], r"vocabulary that the token ids belong to. Received: no none\.txt"),
        (["--max_position_embeddings", "8"], "at most max_position_embeddings tokens long"),
        (["--sentence_pairs", "nsp"], r"train\.jsonl:1: a label must be a class id from 0 to 1"),
        (["--hidden_size", "15"], "num_attention_heads must divide hidden_size"),
    ],
)
def test_what_cannot_work_is_refused(
    rows: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    pretrain(rows, tmp_path / "run", *flags, code=2)
    assert re.search(message, error_line(capfd.readouterr().err))


def test_a_checkpoint_brings_its_sizes(finished: Any, rows: Path, tmp_path: Path, capfd: Any) -> None:
    flags = ["--init", str(finished.folder), *STEPS]
    pretrain(rows, tmp_path / "run", *flags, "--hidden_size", "32", code=2)
    assert "The sizes of a checkpoint hold. Received: --hidden_size 32, 16 there" in error_line(capfd.readouterr().err)
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"vocab_size": NUM_TOKENS, "hidden_size": 8, "num_attention_heads": 2}), encoding="utf-8"
    )
    small = ["--num_hidden_layers", "1", "--intermediate_size", "8", "--encoder_ln_mode", "pre-ln", "--max_steps", "2"]
    with fake_time(0.0):
        run = pretrain(rows, tmp_path / "small", *STEPS, *small, "--init", str(config))
    made = find_init(run.folder).config
    assert (made.hidden_size, made.num_hidden_layers, made.intermediate_size) == (8, 1, 8)
    assert made.encoder_ln_mode == "pre-ln"


def test_names_of_the_flags_are_those_of_the_older_system(rows: Path, tmp_path: Path) -> None:
    """Document E's command line, as far as it says something about the run."""
    import train as script

    words = ["--dataset_path", str(rows), "--output_dir", str(tmp_path / "run"), *SIZES]
    words += ["--optimizer_type", "adamw", "--gradient_clipping", "0.0", "--fp16", "--seed", "42", "--max_steps", "2"]
    words += ["--train_batch_size", "16", "--print_steps", "1", "--num_epochs_between_checkpoints", "-1"]
    with fake_time(0.0):
        assert script.main(["pretrain", *words, "--devices", "cpu:1"]) == 0
