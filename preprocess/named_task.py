"""A published task by its name in place of the flags that describe its files."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfbert.data.labels import LabelMap
from tfbert.data.tasks import find_files, find_task
from tfbert.errors import ConfigError

if TYPE_CHECKING:
    from preprocess.encode import EncodeConfig

DESCRIBING = ("text", "text_b", "label", "labels", "columns", "header", "val", "test")  # flags that a name stands for


def check_flags(config: "EncodeConfig") -> None:
    """Refuses flags that a name stands for, and other inputs than one folder."""
    given = [f"--{name}" for name in DESCRIBING if getattr(config, name) not in (None, ())]
    if given or config.format != "auto":
        raise ConfigError(
            f"--task {config.task} knows its files, columns and labels. Received: {', '.join(given) or '--format'}. "
            "Leave out what describes them, or the name."
        )
    if len(config.inputs) != 1:
        raise ConfigError(f"--task {config.task} takes one folder. Received: {len(config.inputs)} inputs.")


def describe(config: "EncodeConfig") -> tuple["EncodeConfig", LabelMap | None]:
    """The same settings with the flags that describe the files of the task, and its labels."""
    task = find_task(config.task)
    layout, parts = find_files(config.task, Path(config.inputs[0]))
    described = replace(
        config,
        task=task.kind,
        inputs=(str(parts["train"]),),
        val=(str(parts["val"]),),
        test=(str(parts["test"]),) if "test" in parts else (),
        text=layout.text,
        text_b=layout.text_b,
        label=layout.label,
        columns=layout.names,
        filter=(*config.filter, *(f"{column}!={value}" for column, value in layout.without)),
        max_len=config.max_len if config.max_len is not None else task.max_len,
    )
    return described, task.label_map()
