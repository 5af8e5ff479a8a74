"""`python predict.py COMMAND`: label rows with a run of `train.py`, and score it."""

import sys
from collections.abc import Mapping, Sequence

from tfbert.cli import Command, import_tensorflow, run


def commands() -> Mapping[str, Command]:
    import_tensorflow()
    from tfbert import predictor

    return {
        "run": (predictor.RunConfig, predictor.run, "label the rows of a file"),
        "evaluate": (predictor.EvaluateConfig, predictor.evaluate, "score a run on labelled rows"),
        "export": (predictor.ExportConfig, predictor.export, "write a run's model as a file that others serve"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run("predict.py", commands, argv)


if __name__ == "__main__":
    sys.exit(main())
