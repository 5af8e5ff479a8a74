"""The run folder: what a training run leaves, and all that prediction needs.

config.yaml  bert_config.json  model.json  manifest.json  vocab.txt  labels.txt
best.weights.h5  log.tsv  metrics.jsonl  events/  report/  finished
"""

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tfbert.data.manifest import NAME as MANIFEST
from tfbert.data.manifest import Manifest
from tfbert.errors import ConfigError, DataError
from tfbert.model.checkpoint import RUN_WEIGHTS
from tfbert.model.config import BertConfig


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path / RUN_WEIGHTS

    @property
    def finished(self) -> bool:
        return (self.path / "finished").exists()

    def lock(self) -> None:
        """Makes the folder and takes it for this process; the lock goes with the process.

        Raises:
            ConfigError: another process trains in it, or it holds an unfinished run.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ConfigError(f"A run folder belongs to one run. Received: {self.path}, in use by another.") from None

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
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(config).items()}
        (self.path / "config.yaml").write_text(
            yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        (self.path / "bert_config.json").write_text(bert_config.dump(), encoding="utf-8")
        (self.path / "model.json").write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")
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
            DataError: the folder is not a run folder.
        """
        try:
            model = json.loads((self.path / "model.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.path}: this is not a run folder of `train.py classify`. Received: {error}."
            ) from error
        return BertConfig.load(self.path / "bert_config.json"), model

    def manifest(self) -> Manifest:
        return Manifest.load(self.path / MANIFEST)

    def label_names(self) -> list[str]:
        text = (self.path / "labels.txt").read_text(encoding="utf-8")
        return text.split("\n")[:-1]
