"""Which steps are spikes, and what is written of them."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("logical_cpus")


def watch(folder: Path, losses: list[float], deviations: float | None = 6.0, rows: int = 400, first: int = 1) -> Any:
    """A log that saw steps of 4 rows with these losses, 100 an epoch."""
    from tfbert.callbacks.spikes import SpikeLog
    from tfbert.data.plan import EpochPlan
    from tfbert.loop.trainer import StepNumbers

    plans = {epoch: EpochPlan(np.full(rows, 5, np.int32), 4, epoch=epoch) for epoch in range(9)}
    trainer: Any = SimpleNamespace(watchers=[], retries=0)
    log = SpikeLog(folder, "full", trainer, plans, deviations)
    (see,) = trainer.watchers
    for number, loss in enumerate(losses, first):
        epoch, step = divmod(number - 1, 100)
        see(StepNumbers(number, epoch, step + 1, loss, 2 * loss, math.isfinite(loss)))
    return log


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "spikes.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def noise(count: int, level: float = 1.0) -> list[float]:
    return (level + 0.1 * np.random.default_rng(0).standard_normal(count)).tolist()


def test_a_leap_is_written_down_with_its_rows(tmp_path: Path) -> None:
    losses = noise(250)
    losses[170] = 3.0
    log = watch(tmp_path, losses)
    (line,) = lines(tmp_path)
    assert (line["kind"], line["stage"], line["step"], line["epoch"], line["epoch_step"]) == (
        "spike",
        "full",
        171,
        2,
        71,
    )
    assert (line["loss"], line["gradient_norm"]) == (3.0, 6.0)
    assert line["rows"] == list(log.plans[1].batches())[70].tolist()
    assert line["mean"] == pytest.approx(1.0, abs=0.05)
    assert line["deviation"] == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([9.0] + [1.0] * 30 + [9.0] + [1.0] * 30, 0),  # the first steps say nothing
        ([1.0] * 100 + [1.05] * 3, 0),  # a constant loss: a hundredth of it is no leap
        ([1.0] * 100 + [1.07], 1),
        ([-1.0] * 100 + [-0.93], 1),  # the dmi loss may be negative
        (noise(100) + noise(200, 1.5), 0),
        (np.linspace(9, 1, 300).tolist(), 0),
    ],
)
def test_what_is_a_spike(tmp_path: Path, losses: list[float], expected: int) -> None:
    watch(tmp_path, losses)
    assert len(lines(tmp_path)) == expected


def test_a_loss_that_stays_high_is_soon_the_new_mean(tmp_path: Path) -> None:
    watch(tmp_path, noise(200) + noise(400, 5.0))
    assert 0 < len(lines(tmp_path)) < 30


def test_none_but_steps_that_are_not_finite(tmp_path: Path) -> None:
    log = watch(tmp_path, [*noise(100), 50.0, math.nan], None)
    (line,) = lines(tmp_path)
    assert (line["kind"], line["step"], line["loss"], line["gradient_norm"]) == ("not finite", 102, None, None)
    assert line["rows"] == list(log.plans[1].batches())[1].tolist()


def test_the_file_is_bounded_and_survives_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfbert.callbacks.spikes.MOST_LINES", 3)
    monkeypatch.setattr("tfbert.callbacks.spikes.MOST_ROWS", 2)
    losses = noise(60) + [9.0, 1.0] * 2
    before = watch(tmp_path, losses)
    (tmp_path / "spikes.jsonl").write_bytes((tmp_path / "spikes.jsonl").read_bytes() + b'{"kind": "spi')
    first = (tmp_path / "spikes.jsonl").read_bytes().splitlines()[:2]
    after = watch(tmp_path, [])
    for name in before.remembered:
        setattr(after, name, getattr(before, name))
    from tfbert.loop.trainer import StepNumbers

    for number in (61, 63, 65, 67, 69):  # the first two again: they are there already
        after.see(StepNumbers(number, 0, number, 90.0, 1.0, True))
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [61, 63, 65]
    assert (tmp_path / "spikes.jsonl").read_bytes().splitlines()[:2] == first
    assert all(len(line["rows"]) == 2 for line in found)
