"""A prepared TensorFlow Datasets builder to JSON lines: a file a split, in the stored order, streamed.

Nothing is downloaded: whoever has the data prepares the builder (`download_and_prepare`), here it is only read.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from tfbert.cli import import_tensorflow, option
from tfbert.data.output import check_output
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError, DataError
from tfbert.progress import Progress, logger


@dataclass(frozen=True)
class TfdsConfig:
    """Write the rows of a prepared TensorFlow Datasets builder as JSON lines."""

    name: str = option(positional=True)
    """The data set, such as glue/mrpc; or the folder of a prepared version, such as data/glue/mrpc/2.0.0."""
    out: str = option()
    """Folder for SPLIT.jsonl of every split, and labels.txt."""
    data_dir: str | None = None
    """Where it is prepared. Default: that of the package, ~/tensorflow_datasets."""
    splits: tuple[str, ...] = option((), many=True)
    """The splits to write. Default: all."""


def tfds(config: TfdsConfig) -> None:
    """Writes the splits."""
    if find_spec("tensorflow_datasets") is None:
        raise ConfigError(
            "Reading a builder needs the package tensorflow-datasets. Received: it is not installed. "
            "Run `pip install tensorflow-datasets importlib_resources`."
        )
    import_tensorflow()
    out = Path(config.out)
    if not out.resolve().parent.is_dir() or out.is_file():
        raise DataError(f"--out names a folder in an existing one. Received: {out}.")
    builder = _open(config)
    splits = {name: info.num_examples for name, info in builder.info.splits.items()}
    wanted = config.splits or tuple(splits)
    for name in wanted:
        if name not in splits:
            raise ConfigError(f"--splits are of {', '.join(splits)}. Received: {name}.")
        if out.is_dir():
            check_output(out / f"{name}.jsonl")
    columns, names = _columns(builder.info.features)
    out.mkdir(exist_ok=True)
    lines = [f"{builder.info.full_name} -> {out}"]
    for split in wanted:
        rows = 0
        path = out / f"{split}.jsonl"
        with atomic_file(path) as file, Progress(splits[split], " rows", split) as progress:
            for row in _rows(builder, split, columns):
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                rows += 1
                progress.update(1)
        lines.append(f"  {path}: {rows:,} rows")
    if names is not None:
        with atomic_file(out / "labels.txt") as file:
            file.write("".join(f"{name}\n" for name in names).encode("utf-8"))
        lines.append(f"  {out / 'labels.txt'}: {len(names)} labels")
    lines.append(f"  columns: {', '.join(columns)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _open(config: TfdsConfig) -> Any:
    import tensorflow_datasets

    folder = Path(config.name)
    try:
        if (folder / "dataset_info.json").is_file():
            return tensorflow_datasets.builder_from_directory(folder)
        builder = tensorflow_datasets.builder(config.name, data_dir=config.data_dir, try_gcs=False)
    except (tensorflow_datasets.core.registered.DatasetNotFoundError, ValueError, FileNotFoundError) as error:
        first = str(error).strip().split("\n")[0]
        raise DataError(f"{config.name}: there is no such prepared data set. Received: {first}.") from error
    if not builder.is_prepared():
        raise DataError(
            f"{config.name}: the data set must be prepared, nothing is downloaded here. Received: no complete "
            f"{builder.data_dir}. Prepare it with its own download_and_prepare(), or give --data_dir."
        )
    return builder


def _columns(features: Mapping[str, Any]) -> tuple[dict[str, Callable[[Any], Any]], list[str] | None]:
    """How a value of each column becomes one of JSON, None where there is none; and the names of the one label."""
    from tensorflow_datasets import features as kinds

    columns: dict[str, Callable[[Any], Any]] = {}
    labels: dict[str, list[str]] = {}
    left_out = []
    for name, feature in features.items():
        shape = getattr(feature, "shape", None)
        if isinstance(feature, kinds.ClassLabel):
            labels[name] = [str(label) for label in feature.names]
            columns[name] = partial(_label, labels[name])
        elif shape == ():
            columns[name] = _plain
        else:
            left_out.append(name)
    if left_out:
        logger.warning("not text, number or label, so left out: %s", ", ".join(left_out))
    return columns, next(iter(labels.values())) if len(labels) == 1 else None


def _label(names: list[str], value: Any) -> str | None:
    return names[value] if value >= 0 else None  # -1 is a row without a label


def _plain(value: Any) -> Any:
    """A text or a number."""
    return value.decode("utf-8") if isinstance(value, bytes) else value.item()


def _rows(builder: Any, split: str, columns: Mapping[str, Callable[[Any], Any]]) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets

    one_by_one = tensorflow_datasets.ReadConfig(interleave_cycle_length=1)  # the files of a split, in order
    examples = builder.as_dataset(split=split, shuffle_files=False, read_config=one_by_one)
    for example in tensorflow_datasets.as_numpy(examples):
        row = {name: read(example[name]) for name, read in columns.items()}
        yield {name: value for name, value in row.items() if value is not None}
