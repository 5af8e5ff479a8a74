"""The clock of a run and the learning rate by time, at their edges."""

import time
from pathlib import Path

import pytest

from tfbert.loop.clock import CURVES, Clock, rate_factor


class Fake:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0  # a monotonic clock begins anywhere

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Fake:
    return Fake()


def test_time_is_that_of_the_process_and_of_those_before(now: Fake) -> None:
    clock = Clock(100.0, now=now)
    assert (clock.spent_s, clock.progress) == (0, 0)
    now.seconds += 30
    assert (clock.spent_s, clock.progress) == (30, 0.3)
    later = Clock(100.0, now=now)
    later.spent_s = clock.spent_s
    now.seconds += 80
    assert (later.spent_s, later.progress) == (110, 1.1)


def test_the_time_of_day_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 159: clocks that are set forward and back."""
    clock = Clock(3600.0)
    for jump in (-3600.0, 3600.0, 86400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1e9 + jump)
        assert 0 <= clock.spent_s < 600


def test_a_killed_process_loses_a_second_at_most(tmp_path: Path, now: Fake) -> None:
    """What the last state knows is older: the time up to the kill is spent as well."""
    path = tmp_path / "last/clock.json"
    clock = Clock(100.0, path, now=now)
    for _ in range(50):
        now.seconds += 0.5
        clock.beat()
    again = Clock(100.0, path, now=now)
    assert 24 <= again.spent_s <= 25
    again.spent_s = 10.0  # of the state
    assert 24 <= again.spent_s <= 25
    again.spent_s = 40.0
    assert again.spent_s == 40


def test_a_second_has_one_beat(tmp_path: Path, now: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: written.append(data))
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    clock = Clock(100.0, tmp_path / "clock.json", now=now)
    for _ in range(1000):
        now.seconds += 0.01
        clock.beat()
    assert 8 <= len(written) <= 11


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"spent_s": "a"}', b'{"spent_s": -1}', b'{"spent_s": null}', b"3"]
)
def test_a_damaged_file_is_passed_over(tmp_path: Path, now: Fake, data: bytes) -> None:
    (tmp_path / "clock.json").write_bytes(data)
    assert Clock(100.0, tmp_path / "clock.json", now=now).spent_s == 0


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, now: Fake) -> None:
    (tmp_path / "file").write_bytes(b"")
    clock = Clock(100.0, tmp_path / "file/clock.json", now=now)
    now.seconds += 5
    clock.beat()
    assert clock.spent_s == 5


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("warmup", [0.0, 0.06, 0.5, 1.0])
@pytest.mark.parametrize("progress", [-0.1, 0.0, 0.03, 0.06, 0.5, 0.999999, 1.0, 1.2, 1e9])
def test_the_rate_stays_between_nothing_and_the_peak(curve: str, warmup: float, progress: float) -> None:
    """Case 162: warm-up of nothing and of all, progress beyond the end."""
    factor = rate_factor(progress, warmup, curve)
    assert 0 <= factor <= 1
    assert progress < 1 or factor == 0


def test_linear_is_a_triangle() -> None:
    """Case 162."""
    points = {0.0: 0, 0.03: 0.5, 0.06: 1, 0.53: 0.5, 0.765: 0.25, 1.0: 0}
    assert {p: rate_factor(p, 0.06, "linear") for p in points} == pytest.approx(points)
    assert [rate_factor(p, 0.0, "linear") for p in (0.0, 0.5)] == [1, 0.5]
    assert [rate_factor(p, 1.0, "linear") for p in (0.0, 0.5, 0.99)] == [0, 0.5, 0.99]


def test_other_curves() -> None:
    assert [rate_factor(p, 0.2, "cosine") for p in (0.1, 0.2, 0.6, 0.8)] == pytest.approx([0.5, 1, 0.5, 0.146447], 1e-5)
    assert [rate_factor(p, 0.2, "exp") for p in (0.1, 0.2, 0.6, 0.8)] == pytest.approx([0.25, 1, 0.1, 0.0316228], 1e-5)


@pytest.mark.parametrize("curve", CURVES)
def test_the_rate_falls_without_jumps(curve: str) -> None:
    factors = [rate_factor(p / 1000, 0.1, curve) for p in range(100, 1000)]
    assert all(0 <= a - b < 0.01 for a, b in zip(factors[:-1], factors[1:], strict=True))
