"""`python train.py COMMAND`: train on data sets made by `python -m preprocess`."""

import sys
from collections.abc import Mapping, Sequence

from tfbert.cli import Command, import_tensorflow, run
from tfbert.recipes import sweep

SWEEP = (sweep.SweepConfig, sweep.sweep, "commands of a grid of settings, to be read or run one after the other")


def commands() -> Mapping[str, Command]:
    import_tensorflow()
    from tfbert.recipes import classify, distill, pretrain

    return {
        "classify": (classify.ClassifyConfig, classify.run, "train a classifier on labelled rows"),
        "distill": (distill.DistillConfig, distill.run, "train a small classifier to do as larger ones do"),
        "pretrain": (pretrain.PretrainConfig, pretrain.run, "pretrain a masked language model in a budget of time"),
        "sweep": SWEEP,
    }


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == "sweep":  # which needs no TensorFlow
        return run("train.py", {"sweep": SWEEP}, argv)
    return run("train.py", commands, argv)


if __name__ == "__main__":
    sys.exit(main())
