"""The folder in which an output is made: parts that survive an interruption, one run at a time, one publication."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from preprocess.parts import PartFiles
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import PARTS, Manifest, file_checksum
from tfbert.data.output import sync
from tfbert.data.store import SUFFIXES
from tfbert.errors import ConfigError, DataError
from tfbert.progress import logger

STAGES = ("documents", "packed")  # of a corpus, before its parts
NAMES = (*PARTS, *STAGES, "rows")  # what parts are parts of; rows are those of an augmented file
PUBLISHED = (
    *(f"{part}{suffix}" for part in PARTS for suffix in (*SUFFIXES.values(), ".idx")),
    "labels.txt", "rejects.jsonl", "vocab.txt",
)  # fmt: skip
_OURS = re.compile(
    rf"run\.json|publishing|{re.escape(MANIFEST)}|(labels|vocab)\.txt|rejects\.jsonl|({'|'.join(NAMES)})[-.].*"
)


class WorkFolder:
    """The parts of a run, beside its output, under a lock; kept for `--resume` when a run is interrupted.

    The output is a data-set folder, or a file. The work folder lies inside the data-set folder where that is a mount
    of its own or its parent cannot be written, so that files get their final names by renaming.

    Raises:
        DataError: another run is writing the same output; the folder is not ours; or `--resume` finds parts of other
            inputs or settings.
    """

    def __init__(self, out: Path, fingerprint: str, resume: bool, kind: str = "encode"):
        self.folder = self.path_of(out, kind)
        self._out, self._fingerprint, self._resume = out, fingerprint, resume
        self._lock: int | None = None

    @staticmethod
    def path_of(out: Path, kind: str = "encode") -> Path:
        out = out.resolve()
        if out.is_dir() and (out.is_mount() or not os.access(out.parent, os.W_OK)):
            return out / f".{kind}"
        return out.parent / f".{out.name}.{kind}"

    @classmethod
    def check_target(cls, out: Path, inputs: Iterable[str] = ()) -> None:
        """Refuses a target that is no folder, that holds files of someone else's under names of ours, or an input."""
        if out.exists() and not out.is_dir():
            raise DataError(f"--out names the data-set folder. Received: {out}, a file.")
        if not out.resolve().parent.is_dir():
            raise DataError(f"--out must lie in an existing folder. Received: {out}; {out.parent} does not exist.")
        for path in inputs:
            if any((out / name).exists() and (out / name).samefile(path) for name in PUBLISHED):
                raise DataError(f"--out must be another folder than that of the input. Received: {path} in {out}.")
        if out.is_dir() and not (out / MANIFEST).exists() and not (cls.path_of(out) / "publishing").exists():
            foreign = [name for name in PUBLISHED if (out / name).exists()]
            if foreign:
                raise DataError(
                    f"{out}: the folder holds {', '.join(foreign)} but no {MANIFEST}, so it is not a data set of ours. "
                    "Choose another --out, or remove these files."
                )

    def __enter__(self) -> "WorkFolder":
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
            logger.warning(
                "finished parts are kept in %s; the same command with --resume goes on from them", self.folder
            )
        if self._lock is not None:
            os.close(self._lock)

    def _take_lock(self) -> int:
        path = self.folder / "lock"
        while True:
            self.folder.mkdir(exist_ok=True)
            try:
                if not path.exists() and any(self.folder.iterdir()):
                    raise DataError(
                        f"{self.folder}: this folder is needed to make {self._out}, and holds files of someone else. "
                        "Remove it, or choose another --out."
                    )
                lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            except FileNotFoundError:  # the run that held the lock removed the folder just now
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
                    f"{self._out}: another run is writing it. Wait for it, or choose another --out."
                ) from None
            os.close(lock)  # a lock that the other run removed when it ended holds nobody back

    def _prepare(self) -> None:
        described = self.folder / "run.json"
        found = described.read_text(encoding="utf-8") if described.exists() else None
        if self._resume and found is not None and found != self._fingerprint:
            raise DataError(
                f"{self._out}: the interrupted run had other inputs or settings. Run without --resume to start again."
            )
        if not self._resume or found is None:
            self._clear()
            described.write_text(self._fingerprint, encoding="utf-8")

    def _clear(self) -> None:
        (self.folder / "run.json").unlink(missing_ok=True)  # first: parts without it are never taken for whole
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink()

    def _remove(self) -> None:
        self._clear()
        if [path.name for path in self.folder.iterdir()] != ["lock"]:
            logger.warning("%s is left, because it holds files that are not of this run", self.folder)
            return
        (self.folder / "lock").unlink()
        with suppress(OSError):  # the next run is in it already
            self.folder.rmdir()

    def files(self, group: str, number: int) -> PartFiles:
        return PartFiles(str(self.folder / f"{group}-{number:06d}"))

    def publish(self, manifest: Manifest, vocab: Path, names: tuple[str, ...] | None) -> None:
        """Gives the merged files their final names; the old manifest goes first and the new one comes last."""
        out = self._out
        shutil.copyfile(vocab, self.folder / "vocab.txt")
        if file_checksum(self.folder / "vocab.txt") != manifest.vocab_checksum:
            raise DataError(f"{vocab}: the vocabulary changed while it was used. Run again when it is complete.")
        if names is not None:
            (self.folder / "labels.txt").write_bytes("".join(f"{name}\n" for name in names).encode("utf-8"))
        (self.folder / MANIFEST).write_bytes(manifest.dump())
        made = {f"{part}{suffix}" for part in manifest.parts for suffix in (SUFFIXES[manifest.store], ".idx")}
        made |= {"vocab.txt", "rejects.jsonl"} | ({"labels.txt"} if names is not None else set())
        for name in [*made, MANIFEST]:
            sync(self.folder / name)
        (self.folder / "publishing").touch()
        out.mkdir(exist_ok=True)
        (out / MANIFEST).unlink(missing_ok=True)
        for name in PUBLISHED:
            if name in made:
                (self.folder / name).replace(out / name)
            else:
                (out / name).unlink(missing_ok=True)
        sync(out)
        (self.folder / MANIFEST).replace(out / MANIFEST)
        sync(out)
