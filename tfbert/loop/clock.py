"""The time that a run has taken, and what follows from it: how far it is, and how high the learning rate.

The clock is a monotonic one: nothing that is done to the time of day moves it. It runs while the process does, through
validation and saving as well, and goes on where the process before it was, however that ended.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from tfbert.loop.agreement import Agreement

CURVES = ("linear", "exp", "cosine")
EXP_END = 0.01  # what `exp` has fallen to when the time is over, before it drops to 0
BEAT_S = 1.0  # at most so much time is lost when a process is killed


class Clock:
    """Seconds of a run, over all its processes.

    Where several workers share the run, all of them go by the chief's clock, and it stands still between two
    agreements: so whatever is decided by the time is decided alike everywhere.

    Args:
        total_s: what counts as the whole.
        path: file that the time is written to again and again, for a process that is killed; None for none.
        now: seconds of a monotonic clock.
    """

    remembered = ("spent_s",)  # what a run that goes on needs

    def __init__(self, total_s: float, path: Path | None = None, now: Callable[[], float] = time.monotonic):
        self.total_s, self._path, self._now = total_s, path, now
        self._start = self._last_beat = now()
        self._before = _read(path)
        self._agreement: Agreement | None = None
        self._agreed = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds up to now, or up to the last agreement."""
        return self._own if self._agreement is None else self._agreed

    @property
    def _own(self) -> float:
        return self._before + self._now() - self._start

    @spent_s.setter
    def spent_s(self, seconds: float) -> None:
        """Takes up a saved time, unless the file knows of a later one."""
        self._before = max(self._before, seconds)

    def share(self, agreement: Agreement) -> None:
        """Goes by the chief's time from here on, where there are several workers."""
        if not agreement.alone:
            self._agreement = agreement

    def agree(self, step: int) -> None:
        """Takes the chief's time, where several workers share the run: all of them must call it behind the same step.

        Args:
            step: its number.
        """
        if self._agreement is not None:
            (self._agreed,) = self._agreement.sum(step, [0.0 if self._agreement.rank else self._own])

    @property
    def progress(self) -> float:
        """Share of the whole, 0 at the beginning; may exceed 1."""
        return self.spent_s / self.total_s

    def beat(self) -> None:
        """Writes the time down, about once a second however often it is called."""
        now = self._now()
        if self._path is None or now - self._last_beat < BEAT_S:
            return
        self._last_beat = now
        temporary = self._path.with_name(f"writing-{self._path.name}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(orjson.dumps({"spent_s": self._own}))
            temporary.replace(self._path)
        except OSError:  # a full disk must not end the run; the saved state has the time too
            return


def _read(path: Path | None) -> float:
    try:
        seconds = orjson.loads(path.read_bytes())["spent_s"] if path is not None else 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return float(seconds) if isinstance(seconds, int | float) and seconds >= 0 else 0.0


def rate_factor(progress: float, warmup: float, curve: str) -> float:
    """What the highest learning rate is multiplied with: 0 to 1 in the warm-up, then down to 0 at the end.

    Args:
        progress: p, share of the time or of the steps that is over; any number.
        warmup: w, share in which the rate rises, from 0 to 1.
        curve: for x = (p - w) / (1 - w), `linear` 1 - x; `cosine` (1 + cos(pi x)) / 2; `exp` 0.01^x, with (p / w)^2 in
            the warm-up. From p = 1 on each is 0.

    Source: Izsak et al. 2021, arXiv 2104.07705 (rates by time); `exp` as in their code, but by the share of the budget.
    """
    progress = max(0.0, progress)
    if progress >= 1:
        return 0.0
    if progress < warmup:
        rising = progress / warmup
        return rising**2 if curve == "exp" else rising
    x = (progress - warmup) / (1 - warmup)
    if curve == "exp":
        return float(EXP_END**x)
    return (1 + math.cos(math.pi * x)) / 2 if curve == "cosine" else 1 - x
