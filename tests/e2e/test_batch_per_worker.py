"""A batch that grows with the workers: the learning rate goes with it, and no row is lost when their number changes.

One process computes the whole batch here and is told how many workers there are: that several compute one batch as one
device does is shown in test_workers.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_runs import Run, make_data, read_json_lines, train, write_model
from encode_runs import error_line

from tfbert.training import stages

pytestmark = pytest.mark.usefixtures("eagerly")

# 60 rows to train on, 12 batches of 5 an epoch; nothing that is not linear in a small step
USUAL = ["--global_batch_size", "5", "--batch_per_worker", "--optimizer", "sgd", "--clip_norm", "0"]
USUAL += ["--head_dropout", "0", "--weight_decay", "0"]


class Killed(BaseException):
    """Ends a run where it is, as SIGKILL does: nothing is saved."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 75).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "num_hidden_layers": 1}
    return write_model(tmp_path_factory.mktemp("small"), **none)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda count: monkeypatch.setattr(stages, "worker_of", lambda strategy: (0, count))


def test_the_rate_grows_as_the_rule_says(data: Path, small: Path, tmp_path: Path, workers: Any) -> None:
    """Small steps add up: half as many, of twice the rate, go as far; with the other rules a half or a root of it."""
    flags = [*USUAL, "--schedule", "constant", "--warmup", "0"]

    def trained(name: str, count: int, rate: float, *more: str) -> np.ndarray:
        workers(count)
        run = train(data, tmp_path / name, *flags, "--learning_rate", str(rate), *more, init=small)
        return np.concatenate([weight.ravel() for _, weight in sorted(run.weights.items())]).astype(np.float64)

    start = trained("start", 1, 1e-30)
    one = trained("one", 1, 1e-3) - start
    for rule, expected in (("linear", 1.0), ("sqrt", 0.5**0.5), ("none", 0.5)):
        two = trained(rule, 2, 1e-3, "--scale_rate", rule) - start
        assert np.linalg.norm(two) / np.linalg.norm(one) == pytest.approx(expected, rel=0.02)
        assert two @ one / np.linalg.norm(two) / np.linalg.norm(one) > 0.99
    assert [row["rows_per_s"] != "" for row in Run(tmp_path / "linear").log] == [True]


def test_no_row_is_lost_and_the_schedule_goes_on_when_their_number_changes(
    data: Path, small: Path, tmp_path: Path, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is killed in its eighth step, the last state is behind five; then three, who do not divide what is
    left of the epoch, then two: rows, steps, warm-up and rate follow the batches that were taken."""
    flags = [*USUAL, "--epochs", "2", "--scale_rate", "linear", "--learning_rate", "1e-2", "--row_log"]
    flags += ["--save_steps", "5", "--warmup_steps", "10", "--eval_steps", "1"]

    class RowLog(stages.RowLog):
        at = 8

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            if self.trainer.step == self.at:
                raise Killed

    for count, at in ((1, 8), (3, 10), (2, 99)):
        workers(count)
        monkeypatch.setattr(RowLog, "at", at)
        monkeypatch.setattr(stages, "RowLog", RowLog)
        if at < 99:
            with pytest.raises(Killed):
                train(data, tmp_path / "run", *flags, init=small)
        else:
            run = train(data, tmp_path / "run", *flags, init=small)

    lines = read_json_lines(run.folder / "rows.jsonl")
    # the states are behind the batches 5 (step 5), 12 (step 8, the end of the epoch)
    assert [line["step"] for line in lines] == [*range(1, 9), 6, 7, 8, 9, 10, *range(9, 15)]
    assert [len(line["rows"]) for line in lines] == [5] * 8 + [15, 15, 5, 15, 15] + [10] * 6
    kept = {line["step"]: line for line in lines}.values()
    for epoch in (1, 2):
        rows = [row for line in kept if line["epoch"] == epoch for row in line["rows"]]
        assert sorted(rows) == list(range(60))

    head, *table = [
        line.split("\t") for line in (run.folder / "evaluations.tsv").read_text(encoding="utf-8").splitlines()
    ]
    rates = {int(row[0]): float(row[head.index("learning_rate")]) for row in table}
    counts = {step: (step - 1, 1) for step in range(1, 6)} | {6: (5, 3), 7: (8, 3)}
    counts |= {step: (12 + 2 * (step - 9), 2) for step in range(9, 14)}
    peak, rise, total = 1e-2, 10, 24
    for step, (before, n) in counts.items():
        expected = (before + 1) / rise if before < rise else (total - before) / (total - rise)
        assert rates[step] == pytest.approx(n * peak * expected), step
    assert [row["epoch"] for row in run.log] == ["1", "2"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scale_rate", "linear"], "with --batch_per_worker. Received: --scale_rate linear without it"),
        (["--batch_per_worker", "--batch_tokens", "99"], "Received: --batch_tokens 99 and --batch_per_worker"),
        (["--micro_batch_size", "2", "--accumulate", "2"], "Received: --micro_batch_size 2 and --accumulate 2"),
        (["--micro_batch_size", "2", "--auto_accumulate"], "Received: --micro_batch_size 2 and --auto_accumulate"),
        (["--batch_per_worker", "--scale_rate", "cubic"], "--scale_rate is one of none, linear, sqrt"),
    ],
)
def test_what_cannot_work_together_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    train(data, tmp_path / "run", *flags, code=2)
    assert message in error_line(capfd.readouterr().err)
