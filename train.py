"""`python train.py COMMAND`: train on data sets made by `python -m preprocess`."""

import sys
from collections.abc import Mapping, Sequence

from tfbert.cli import Command, import_tensorflow, run


def commands() -> Mapping[str, Command]:
    import_tensorflow()
    from tfbert.recipes import classify, pretrain

    return {
        "classify": (classify.ClassifyConfig, classify.run, "train a classifier on labelled rows"),
        "pretrain": (pretrain.PretrainConfig, pretrain.run, "pretrain a masked language model in a budget of time"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run("train.py", commands, argv)


if __name__ == "__main__":
    sys.exit(main())
