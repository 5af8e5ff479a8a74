"""The run folder: what a training run leaves, and all that prediction needs.

config.yaml  bert_config.json  model.json  manifest.json  vocab.txt  labels.txt
best.weights.h5  last/  log.tsv  metrics.jsonl  spikes.jsonl  rows.jsonl  events/  report/  finished  verified.json
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import Manifest
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError, DataError
from tfbert.model.checkpoint import DESCRIPTION, RUN_WEIGHTS, read_description
from tfbert.model.config import BertConfig

CONFIG = "config.yaml"
_OURS = (
    "bert_config.json", DESCRIPTION, MANIFEST, "vocab.txt", "labels.txt", RUN_WEIGHTS, "log.tsv", "metrics.jsonl",
    "spikes.jsonl", "events", "report", "finished", "last", "features", "verified.json", "parallel.json", "exports",
    "evaluations.tsv", "evaluations.jsonl", "teacher", "rows.jsonl",
)  # fmt: skip
_PATHS = ("data", "init", "vocab", "encoded", "tfds_dir")  # settings that name the same file in several ways
_GROWING = ("epochs", "early_exit_time_marker")  # settings that a run may be given more of
# settings that do not decide the result, but for one that would have failed
_FREE = (
    "run_dir", "devices", "save_minutes", "save_steps", "workers", "rank", "cluster_timeout",
    "nan_retries", "nan_rate_factor", "spike_deviations", "memory_gb", "row_log",
    "micro_batch_size", "train_micro_batch_size_per_gpu",
)  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path / RUN_WEIGHTS

    @property
    def state(self) -> Path:
        return self.path / "last"

    @property
    def verified(self) -> Path:
        """Which files of the data were compared with their checksums."""
        return self.path / "verified.json"

    @property
    def finished(self) -> bool:
        return (self.path / "finished").exists()

    def check_same(self, config: Any) -> None:
        """Refuses a run of other settings, finished or not.

        Raises:
            ConfigError: names the settings that differ.
        """
        had = self._settings()
        differing = []
        for name, value in _plain(config).items():
            was = had.get(name, value)
            path = name in _PATHS and value and was
            same = Path(value).resolve() == Path(was).resolve() if path else value == was
            if not (same or name in _FREE or (name in _GROWING and _is_more(value, was))):
                differing.append(f"{name} {was!r}, now {value!r}")
        if differing:
            raise ConfigError(
                f"A run folder holds one run. Received: {self.path}, a run with other settings "
                f"({'; '.join(differing[:5])}). Choose another --run_dir."
            )

    def is_extended_by(self, config: Any) -> bool:
        """Whether the settings ask for more epochs, or more time, than the run had."""
        had = self._settings()
        return any(_is_more(getattr(config, name, None), had[name]) for name in _GROWING if name in had)

    def _settings(self) -> dict[str, Any]:
        try:
            return dict(yaml.safe_load((self.path / CONFIG).read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
            raise DataError(f"{self.path / CONFIG}: the settings of the run cannot be read: {error}.") from error

    def check_free(self, config: Any) -> None:
        """Refuses a folder that a run cannot be written to.

        Raises:
            ConfigError: it is in use, holds a run of other settings, or files of something else under names of a run.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--run_dir names a folder. Received: {self.path}, a file.")
        if (self.path / "lock").exists():
            os.close(self._take_lock())
        self._check_content(config)

    def _check_content(self, config: Any) -> None:
        if (self.path / CONFIG).exists():
            self.check_same(config)
            return
        foreign = [name for name in _OURS if (self.path / name).exists()]
        if foreign:
            raise ConfigError(
                f"A run needs a folder of its own. Received: {self.path}, which holds another's {', '.join(foreign)}. "
                "Choose another --run_dir."
            )

    @contextmanager
    def held(self, config: Any) -> Iterator[None]:
        """Makes the folder, or takes up an unfinished run; other processes are refused meanwhile.

        Raises:
            ConfigError: as `check_free`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = self._take_lock()
        try:
            self._check_content(config)
            (self.path / "finished").unlink(missing_ok=True)
            yield
        finally:
            os.close(handle)

    def _take_lock(self) -> int:
        handle = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ConfigError(f"A run folder belongs to one run. Received: {self.path}, in use by another.") from None
        return handle

    def write_description(
        self,
        config: Any,
        bert_config: BertConfig,
        model: dict[str, Any],
        manifest: Manifest | None,
        vocab: Path | None,
        names: Sequence[str],
    ) -> None:
        """Writes everything that is known before training starts."""
        with atomic_file(self.path / CONFIG, held=True) as file:  # half a file would be other settings, or none
            file.write(yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True).encode("utf-8"))
        (self.path / "bert_config.json").write_text(bert_config.dump(), encoding="utf-8")
        (self.path / DESCRIPTION).write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")
        (self.path / "labels.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        if manifest is not None:
            (self.path / MANIFEST).write_bytes(manifest.dump())
        if vocab is not None:
            shutil.copyfile(vocab, self.path / "vocab.txt")

    def finish(self) -> None:
        (self.path / "finished").write_text("", encoding="utf-8")

    def model_settings(self) -> tuple[BertConfig, dict[str, Any]]:
        """Sizes of the encoder, and the arguments of the classifier.

        Raises:
            CheckpointError: the folder is not a run folder.
        """
        description = read_description(self.path / DESCRIPTION)
        return BertConfig.load(self.path / "bert_config.json"), description

    def manifest(self) -> Manifest:
        """How the texts of the run were read and encoded.

        Raises:
            DataError: the run was trained on files that do not tell, or the manifest is damaged.
        """
        if not (self.path / MANIFEST).exists():
            raise DataError(
                f"{self.path}: prediction needs to know how the texts of the run were encoded. Received: a run on bare "
                "JSON-lines files. Encode the texts with `preprocess encode` and train on that folder."
            )
        return Manifest.load(self.path / MANIFEST)

    def label_names(self) -> list[str]:
        """Names in id order, as they stand in `labels.txt`.

        Raises:
            DataError: the file is not UTF-8.
        """
        try:
            return (self.path / "labels.txt").read_bytes().decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path / 'labels.txt'}: class names are UTF-8 text. Received: {error}.") from error


def _is_more(value: float | None, was: float | None) -> bool:
    """None is no limit."""
    return was is not None and (value is None or value > was)


def _plain(config: Any) -> dict[str, Any]:
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(config).items()}
    paths = {name: Path(values[name]) for name in _PATHS if values.get(name)}
    # the same from any folder; what is no file is a name
    return values | {name: str(path.absolute()) for name, path in paths.items() if path.exists()}
