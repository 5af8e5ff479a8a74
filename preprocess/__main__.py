"""`python -m preprocess COMMAND`: raw text to data sets."""

import sys
from collections.abc import Sequence

from preprocess.encode import EncodeConfig, encode
from tfbert.cli import Command, run

COMMANDS: dict[str, Command] = {
    "encode": (EncodeConfig, encode, "raw files to a data-set folder of token ids"),
}


def main(argv: Sequence[str] | None = None) -> int:
    return run("python -m preprocess", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
