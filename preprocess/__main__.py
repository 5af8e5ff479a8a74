"""`python -m preprocess COMMAND`: raw text to data sets."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from tfbert.cli import Command, run

HELP = {
    "vocab": "raw files to a WordPiece vocabulary",
    "encode": "raw files to a data-set folder of token ids",
    "corpus": "plain text to a data-set folder for pretraining",
    "segment": "one column of a file to words joined by blanks",
    "tfds": "a prepared TensorFlow Datasets builder to JSON lines",
    "augment": "every row and variants of it, for a larger training set",
    "inspect": "a data set in numbers, sample rows and charts",
}


class _Commands(Mapping[str, Command]):
    """Command `x` is the function `x` of an `XConfig` in `preprocess.x`, imported when it is asked for."""

    def __getitem__(self, name: str) -> Command:
        help_line = HELP[name]
        module = import_module(f"preprocess.{name}")
        return getattr(module, f"{name.capitalize()}Config"), getattr(module, name), help_line

    def __iter__(self) -> Iterator[str]:
        return iter(HELP)

    def __len__(self) -> int:
        return len(HELP)


COMMANDS = _Commands()


def main(argv: Sequence[str] | None = None) -> int:
    return run("python -m preprocess", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
