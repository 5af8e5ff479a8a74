"""The data set of a published task: taken where it is, made from the raw files of the task where it is not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from preprocess.encode import EncodeConfig, differences, encode, goes_on
from preprocess.pool import run_apart
from preprocess.tfds import TfdsConfig, tfds
from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import Manifest
from tfbert.data.source import printable
from tfbert.data.tasks import tfds_splits
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError, DataError
from tfbert.progress import logger

_BUILDER = "dataset_info.json"  # in the folder of a prepared version
_SOURCE = "source.json"  # beside the JSON lines of a builder, written last: which one it was


@dataclass(frozen=True)
class TaskData:
    """Raw data of a published task, and the data set that they become.

    Attributes:
        task: its name.
        raw: its folder; or a prepared TensorFlow Datasets builder, by its folder or its name.
        out: folder of the data set.
        run_dir: folder of the run that the data set is part of, or None where it is for several.
        init: checkpoint whose vocabulary is used unless `vocab` is given.
        vocab: vocab.txt.
        max_len: most tokens a row; None for what is usual.
        cased: keep case and accents; None goes by what lies beside the vocabulary.
        tfds_dir: where builders are prepared.
    """

    task: str
    raw: str
    out: Path
    run_dir: Path | None
    init: str
    vocab: str | None = None
    max_len: int | None = None
    cased: bool | None = None
    tfds_dir: str | None = None

    def make(self, may_write: bool = True) -> None:
        """Makes the data set, unless it is there, made from the same files and settings.

        One that is not is made anew where its run has not begun.

        Args:
            may_write: no other process writes the same.

        Raises:
            TfbertError: raw data or settings are wrong, or the data set that is there is another.
        """
        vocab = self._find_vocab()
        there = (self.out / MANIFEST).is_file()
        if not there and not may_write:
            raise ConfigError(
                f"Raw data are encoded by one process. Received: several workers, and no data set in {self.out}. Make "
                f"it first, with {vocab}, as `python -m preprocess encode --task {self.task} --out {self.out}` does it."
            )
        with _made(self.run_dir):
            cased = _is_cased(vocab) if self.cased is None else self.cased
            config = EncodeConfig(
                (str(self._folder(may_write)),), str(self.out), str(vocab), task=self.task, max_len=self.max_len,
                cased=cased,
            )  # fmt: skip
            others = differences(config, Manifest.load(self.out / MANIFEST)) if there else []
            if there and not others:
                logger.info("%s is there, made from the same files and settings", self.out)
                return
            begun = self.run_dir is None or (self.run_dir / "config.yaml").exists()
            if others and (begun or not may_write):
                raise ConfigError(
                    f"{self.out}: the data set must be made from --data with the same settings. Received: one with "
                    f"other {', '.join(others)}. Choose another folder for it."
                )
            encode(replace(config, resume=goes_on(config)))

    def _find_vocab(self) -> Path:
        init = Path(self.init)
        beside = (init if init.is_dir() else init.parent) / "vocab.txt"
        if self.vocab is not None:
            return Path(self.vocab)
        if init.suffix != ".json" and beside.is_file():
            return beside
        what = "a config without one" if init.suffix == ".json" else f"{init} without vocab.txt"
        if not init.exists() and not beside.parent.is_dir():
            what = f"{init}, which does not exist"
        raise ConfigError(f"Raw data are encoded with the vocabulary of --init. Received: {what}. Give --vocab.")

    def _folder(self, may_write: bool) -> Path:
        """The folder of raw files, in one of the task's layouts."""
        folder = Path(self.raw)
        if folder.is_dir() and not _versions(folder):
            return folder
        builder, splits = self._builder(), tfds_splits(self.task)
        lines = self.out.with_name(f"{self.out.name}.tfds")
        files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in builder.iterdir())
        source = orjson.dumps([printable(builder.resolve()), splits, files])
        if not (lines / _SOURCE).is_file() or (lines / _SOURCE).read_bytes() != source:
            if not may_write:
                raise ConfigError(f"A builder is read by one process. Received: {builder} and several workers.")
            (lines / _SOURCE).unlink(missing_ok=True)
            run_apart(tfds, TfdsConfig(str(builder), str(lines), splits=splits))
            with atomic_file(lines / _SOURCE) as file:
                file.write(source)
        return lines

    def _builder(self) -> Path:
        """The folder of a prepared version."""
        root = Path(self.tfds_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
        found = _versions(Path(self.raw)) or _versions(root / self.raw)
        if len(found) > 1:
            raise ConfigError(
                f"--data names one version of a builder. Received: {self.raw}, prepared as "
                f"{', '.join(path.name for path in found)}. Give the folder of one."
            )
        if not found:
            raise DataError(
                f"--data is a data set, the folder of a task, or a prepared TensorFlow Datasets builder. Received: "
                f"{self.raw}, which is no folder, and no builder in {root}."
            )
        return found[0]


@contextmanager
def _made(run_dir: Path | None) -> Iterator[None]:
    """The folder of a run, made where it is not there, and left only where something came into it."""
    if run_dir is None or run_dir.is_dir():
        yield
        return
    if run_dir.exists():
        raise ConfigError(f"--run_dir names a folder. Received: {run_dir}, a file.")
    run_dir.mkdir(parents=True)
    try:
        yield
    finally:
        with suppress(OSError):
            run_dir.rmdir()


def _versions(folder: Path) -> list[Path]:
    """Folders of prepared versions: the folder itself, or those in it."""
    return [path.parent for path in (folder / _BUILDER, *sorted(folder.glob(f"*/{_BUILDER}"))) if path.is_file()]


def _is_cased(vocab: Path) -> bool:
    """What the tokenizer's settings beside a vocabulary say, or the manifest of a run."""
    if (vocab.parent / MANIFEST).is_file():
        return bool(Manifest.load(vocab.parent / MANIFEST).encoding["cased"])
    try:
        settings = orjson.loads((vocab.parent / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and settings.get("do_lower_case") is False
