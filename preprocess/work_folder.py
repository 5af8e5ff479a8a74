"""The folder in which an output is made: parts that survive an interruption, one run at a time, one publication."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from preprocess.parts import PartFiles
from tfbert.data.job_folder import JobFolder
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import PARTS, Manifest, file_checksum
from tfbert.data.store import SUFFIXES
from tfbert.disk import sync
from tfbert.errors import DataError

STAGES = ("documents", "packed")  # of a corpus, before its parts
NAMES = (*PARTS, *STAGES, "rows")  # what parts are parts of; rows are those of an augmented file
PUBLISHED = (
    *(f"{part}{suffix}" for part in PARTS for suffix in (*SUFFIXES.values(), ".idx")),
    "labels.txt", "rejects.jsonl", "vocab.txt",
)  # fmt: skip
_OURS = re.compile(
    rf"run\.json|publishing|{re.escape(MANIFEST)}|(labels|vocab)\.txt|rejects\.jsonl|({'|'.join(NAMES)})[-.].*"
)


class WorkFolder(JobFolder):
    """The parts of a run, beside its output, under a lock; kept for `--resume` when a run is interrupted.

    The output is a data-set folder, or a file. The work folder lies inside the data-set folder where that is a mount
    of its own or its parent cannot be written, so that files get their final names by renaming.

    Raises:
        DataError: as `JobFolder`.
    """

    def __init__(self, out: Path, fingerprint: str, resume: bool, kind: str = "encode"):
        super().__init__(
            self.path_of(out, kind), out, "--out", fingerprint, resume, _OURS,
            go_on=f"the same command {'' if resume else 'with --resume '}goes on from it",
            begin_again="Run without --resume",
        )  # fmt: skip
        self._out = out

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
