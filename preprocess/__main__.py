"""`python -m preprocess COMMAND`: raw text to data sets."""

import sys
from collections.abc import Sequence

from preprocess.augment import AugmentConfig, augment
from preprocess.corpus import CorpusConfig, corpus
from preprocess.encode import EncodeConfig, encode
from preprocess.inspect import InspectConfig, inspect
from preprocess.segment import SegmentConfig, segment
from preprocess.tfds import TfdsConfig, tfds
from preprocess.vocab import VocabConfig, vocab
from tfbert.cli import Command, run

COMMANDS: dict[str, Command] = {
    "vocab": (VocabConfig, vocab, "raw files to a WordPiece vocabulary"),
    "encode": (EncodeConfig, encode, "raw files to a data-set folder of token ids"),
    "corpus": (CorpusConfig, corpus, "plain text to a data-set folder for pretraining"),
    "segment": (SegmentConfig, segment, "one column of a file to words joined by blanks"),
    "tfds": (TfdsConfig, tfds, "a prepared TensorFlow Datasets builder to JSON lines"),
    "augment": (AugmentConfig, augment, "every row and variants of it, for a larger training set"),
    "inspect": (InspectConfig, inspect, "a data set in numbers, sample rows and charts"),
}


def main(argv: Sequence[str] | None = None) -> int:
    return run("python -m preprocess", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
