"""`python train.py COMMAND`: train on data sets made by `python -m preprocess`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from tfbert.cli import Command, import_tensorflow, run, signals_wait
from tfbert.training.classify_config import ClassifyConfig

HELP = {
    "classify": "train a classifier on labelled rows",
    "distill": "train a small classifier to do as larger ones do",
    "pretrain": "pretrain a masked language model in a budget of time",
    "sweep": "commands of a grid of settings, to be read or run one after the other",
}


def classify(config: ClassifyConfig) -> None:
    """Encodes the raw data of a task first, while TensorFlow is not there: forked workers would each carry it."""
    if config.raw:
        from preprocess.task_data import TaskData

        run_dir = Path(config.run_dir) if config.encoded is None else None
        data = TaskData(
            config.task or "", config.data, config.data_set, run_dir, config.init, config.vocab, config.max_len,
            config.cased, config.tfds_dir,
        )  # fmt: skip
        data.make(may_write=config.cluster is None)
    with signals_wait():
        import_tensorflow()
        from tfbert.recipes.classify import run as train
    train(config)


class _Commands(Mapping[str, Command]):
    """Commands by name, imported when they are asked for: not all of them need TensorFlow."""

    def __getitem__(self, name: str) -> Command:
        help_line = HELP[name]
        if name == "classify":
            return ClassifyConfig, classify, help_line
        if name == "sweep":
            from tfbert.recipes.sweep import SweepConfig, sweep

            return SweepConfig, sweep, help_line
        import_tensorflow()
        module = import_module(f"tfbert.recipes.{name}")
        return getattr(module, f"{name.capitalize()}Config"), module.run, help_line

    def __iter__(self) -> Iterator[str]:
        return iter(HELP)

    def __len__(self) -> int:
        return len(HELP)


def commands() -> Mapping[str, Command]:
    return _Commands()


def main(argv: Sequence[str] | None = None) -> int:
    return run("train.py", commands, argv)


if __name__ == "__main__":
    sys.exit(main())
