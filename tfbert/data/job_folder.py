"""The folder in which a long job works: what is finished survives an interruption, one job at a time."""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Self

from tfbert.disk import atomic_file
from tfbert.errors import ConfigError, DataError
from tfbert.progress import logger

LOCK, DESCRIPTION = "lock", "run.json"


class JobFolder:
    """A folder beside what the job makes, under a lock; kept, for a job that goes on, when this one is interrupted.

    It is removed when the job is done, and when the input or the settings are wrong. Files of others are never taken
    for the job's own, and never deleted.

    Args:
        folder: the folder; its parent must exist.
        target: what the job makes, for messages.
        flag: that names the target.
        fingerprint: of all that decides the result.
        resume: go on with what an interrupted job left; else begin again.
        ours: the names of the files of the job.
        go_on: what to do to go on with an interrupted job.
        begin_again: what to do to begin again.

    Raises:
        DataError: another job is making the same; the folder is not ours; or it holds what a job of another
            fingerprint left, and `resume` is given.
    """

    def __init__(
        self,
        folder: Path,
        target: Path,
        flag: str,
        fingerprint: str,
        resume: bool,
        ours: re.Pattern[str],
        *,
        go_on: str,
        begin_again: str,
    ):
        self.folder = folder
        self._target, self._flag, self._fingerprint, self._resume, self._ours = target, flag, fingerprint, resume, ours
        self._go_on, self._begin_again = go_on, begin_again
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self._lock = self._take_lock()
        try:
            self._prepare()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self.folder)  # a full disk does not say where
        if kind is None or issubclass(kind, DataError | ConfigError):
            self._remove()
        else:
            logger.warning("what is finished is kept in %s; %s", self.folder, self._go_on)
        if self._lock is not None:
            os.close(self._lock)

    def _take_lock(self) -> int:
        path = self.folder / LOCK
        while True:
            self.folder.mkdir(exist_ok=True)
            try:
                if not path.exists() and any(self.folder.iterdir()):
                    raise DataError(
                        f"{self.folder}: this folder is needed to make {self._target}, and holds files of someone "
                        f"else. Remove it, or choose another {self._flag}."
                    )
                lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            except FileNotFoundError:  # the job that held the lock removed the folder just now
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
            except FileNotFoundError:
                pass
            except BlockingIOError:
                os.close(lock)
                raise DataError(
                    f"{self._target}: another run is writing it. Wait for it, or choose another {self._flag}."
                ) from None
            os.close(lock)  # a lock that the other job removed when it ended holds nobody back

    def _prepare(self) -> None:
        described = self.folder / DESCRIPTION
        found = described.read_text(encoding="utf-8") if described.exists() else None
        if self._resume and found is not None and found != self._fingerprint:
            raise DataError(
                f"{self._target}: the interrupted run had other inputs or settings. {self._begin_again} to start again."
            )
        if not self._resume or found is None:
            self._clear()
            with atomic_file(described, held=True) as file:
                file.write(self._fingerprint.encode("utf-8"))

    def _clear(self) -> None:
        (self.folder / DESCRIPTION).unlink(missing_ok=True)  # first: without it nothing is taken for finished
        for path in self.folder.iterdir():
            if self._ours.fullmatch(path.name) or path.name == f"saving-{DESCRIPTION}":
                path.unlink()

    def _remove(self) -> None:
        self._clear()
        if [path.name for path in self.folder.iterdir()] != [LOCK]:
            logger.warning("%s is left, because it holds files that are not of this run", self.folder)
            return
        (self.folder / LOCK).unlink()
        with suppress(OSError):  # the next job is in it already
            self.folder.rmdir()
