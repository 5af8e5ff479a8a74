"""Progress of long work: a tqdm bar on a terminal, a log line every ten seconds elsewhere. And the one logger."""

import logging
import sys
import time
from types import TracebackType

logger = logging.getLogger("tfbert")
LOG_EVERY_S = 10.0


def setup_logging(verbose: bool = True) -> None:
    """Sends the log to stderr; called by scripts alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False


class Progress:
    """Counts work with rate and remaining time.

    Args:
        total: units in all, or None where nobody knows.
        unit: name of the unit, "B" for bytes.
        what: what is being done.
    """

    def __init__(self, total: int | None, unit: str, what: str):
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm  # where there is no bar, its import is a fifth of the start of a worker

            self._bar = tqdm(total=total, unit=unit, desc=what, unit_scale=True, dynamic_ncols=True)
        self._total, self._unit, self._what = total, unit, what
        self._done = 0
        self._start = self._last = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int, note: str = "") -> None:
        """Adds `count` units; `note` is shown behind the rate."""
        self._done += count
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._last >= LOG_EVERY_S:
            self._last = now
            logger.info("%s", self._line(now - self._start, note))

    def _line(self, elapsed: float, note: str) -> str:
        from tqdm import tqdm

        rate = self._done / elapsed
        parts = [f"{self._what}: {tqdm.format_sizeof(self._done)}{self._unit}"]
        if self._total:
            left = max(self._total - self._done, 0) / rate if rate else 0.0
            parts[0] += f" of {tqdm.format_sizeof(self._total)}{self._unit} ({self._done / self._total:.0%})"
            parts.append(f"{tqdm.format_interval(left)} left")
        parts.insert(1, f"{tqdm.format_sizeof(rate)}{self._unit}/s")
        return ", ".join([*parts, note] if note else parts)
