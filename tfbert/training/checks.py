"""Refusals before anything is trained: data, model and settings that do not go together."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfbert.data.dataset import DataSet
from tfbert.data.manifest import Manifest, file_checksum
from tfbert.data.store import RowStore
from tfbert.errors import ConfigError, DataError
from tfbert.model.checkpoint import Init, check_vocabulary
from tfbert.model.config import BertConfig
from tfbert.progress import logger
from tfbert.training.settings import EpochSettings


def open_stores(data: DataSet) -> tuple[RowStore, RowStore | None]:
    """The rows to train on, and those to validate on where there is such a part.

    Raises:
        DataError: a part has no rows.
    """
    train = data.store("train")
    if not len(train):
        raise DataError(f"{train.path}: there must be rows to train on. Received: a file without rows.")
    if "val" not in data.parts:
        logger.info("there is no val part: the last weights are kept")
        return train, None
    val = data.store("val")
    if not len(val):
        raise DataError(
            f"{val.path}: there must be rows to validate on. Received: a file without rows. Encode again with a larger "
            "--val_fraction, with rows in --val, or with --val_fraction 0 for no validation."
        )
    return train, val


def check_labels(task: str, names: Sequence[str], train: RowStore, val: RowStore | None) -> None:
    """Refuses rows without a label of the task, and fewer classes than it takes."""
    if task == "regression":
        return
    if len(names) < (2 if task == "classify" else 1):
        raise DataError(f"A classifier needs at least two classes. Received: {names}. Give --labels when encoding.")
    if task == "classify":
        train.check_labels(len(names))
        if val is not None:
            val.check_labels(len(names))


def check_batch(settings: EpochSettings, replicas: int, workers: int) -> None:
    """Refuses a batch that leaves a replica without rows."""
    rows = settings.global_batch_size * settings.step_batches(workers)
    if rows < replicas * settings.accumulate:
        raise ConfigError(
            f"--global_batch_size is at least one row a device and micro-batch. Received: {rows} "
            f"rows, {replicas} devices, --accumulate {settings.accumulate}."
        )


def check_memory_bound(settings: EpochSettings, on_cpu: bool) -> None:
    """Refuses to try sizes on a CPU without a bound: the system would kill the process."""
    if settings.auto_accumulate and on_cpu and settings.memory_gb is None:
        raise ConfigError("--auto_accumulate on a CPU needs --memory_gb, what the process may take. Received: none.")
    if settings.memory_gb is not None and not on_cpu:
        raise ConfigError(
            f"--memory_gb is for CPUs; a GPU's own memory is the bound. Received: {settings.memory_gb}. Leave it out."
        )


def choose_monitor(
    settings: EpochSettings, train_names: Sequence[str], val_names: Sequence[str], metrics: Sequence[str] = ()
) -> tuple[str | None, str]:
    """What decides the best epoch, and its direction.

    Args:
        settings: `monitor`, `mode`, `patience` and `schedule` count.
        train_names: numbers of the log that training gives.
        val_names: those that validation gives; none without a val part.
        metrics: that results of the task are published by; the first one decides unless `monitor` is given.

    Raises:
        ConfigError: there is no such number, or its direction is not known.
    """
    available = [*train_names, *val_names]
    monitor = settings.monitor
    if monitor is None:
        watching = {
            "--patience": settings.patience,
            "--mode": settings.mode,
            "plateau": settings.schedule == "plateau",
        }
        if not val_names and any(watching.values()):
            raise ConfigError(
                f"{' and '.join(name for name, given in watching.items() if given)} needs a number to watch. Received: "
                "no val part and no --monitor."
            )
        if metrics and val_names and settings.mode != "min":
            return f"val_{metrics[0]}", "max"
        return ("val_loss", settings.mode or "min") if val_names else (None, "min")
    if monitor not in available:
        raise ConfigError(f"--monitor is one of {', '.join(available)}. Received: {monitor!r}.")
    if settings.mode is None:
        if not monitor.endswith("loss"):
            raise ConfigError(f"--mode min or max says which way {monitor} gets better. Received: none.")
        return monitor, "min"
    return monitor, settings.mode


def check_encoding(init: Init, manifest: Manifest, path: Path) -> None:
    """Refuses a data set whose ids or lengths the model has no rows for."""
    notice = check_vocabulary(init.config, manifest.vocab_size, f"{path}/vocab.txt")
    if notice:
        logger.info("%s", notice)
    if init.vocab is not None and file_checksum(init.vocab) != manifest.vocab_checksum:
        logger.warning("the data were not encoded with %s: are the token ids those of the model?", init.vocab)
    encoding = manifest.encoding_settings()
    check_positions(init.config, encoding.max_len)
    if encoding.pair and init.config.type_vocab_size < 2:
        raise ConfigError(
            f"Pairs need a model with two segments. Received: type_vocab_size {init.config.type_vocab_size} in "
            f"{init.path}."
        )


def check_positions(config: BertConfig, max_len: int) -> None:
    """Refuses rows longer than the model's positions."""
    if max_len > config.max_position_embeddings:
        raise ConfigError(
            f"Rows are at most max_position_embeddings tokens long. Received: max_len {max_len}, "
            f"{config.max_position_embeddings} positions. Encode again with a smaller --max_len."
        )


def longest(data: DataSet, stores: Sequence[RowStore]) -> int:
    """Length that no row exceeds: max_len of the data set, or the longest row of bare files."""
    if data.manifest is not None:
        return int(data.manifest.encoding["max_len"])
    return max(int(np.max(store.lengths)) for store in stores)
