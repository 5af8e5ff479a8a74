"""Deterministic inputs of any size: python -m benchmarks.inputs --rows 1000000 --out rows.tsv

Six columns as in a content-review log: object_id, created, operator_id, title, content, action. Text is Chinese
characters with a Zipf-like frequency, some Latin words, numbers and marks. Titles are short and much alike in length;
lengths of contents have a long tail, as reviews have.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.measure import ROOT

ACTIONS = ("pass", "reject", "review")
COLUMNS = "object_id,created,operator_id,title,content,action"
WORDS = ("BERT", "iPhone13", "NBA", "www.example.com", "COVID-19", "3.14", "2024", "OK", "VIP", "GDP")
BATCH = 10_000
VOCABULARY_SIZE = 12_000
_SPREAD = 0.6  # of the logarithm of the length of a content


@dataclass(frozen=True)
class Task:
    """What is made of the rows: one text or two, and how long."""

    name: str
    text: str
    text_b: str | None
    mean_content: int
    max_len: int

    @property
    def about(self) -> str:
        return f"max_len {self.max_len}"


TASKS = {
    "titles": Task("titles", "title", None, 20, 64),
    "reviews": Task("reviews", "content", None, 100, 256),
    "pairs": Task("pairs", "content", "title", 80, 128),
}


@dataclass(frozen=True)
class Inputs:
    """Files of one task, made when they are first asked for.

    Args:
        folder: where they lie.
        task: what kind.
        num_rows: how many.
    """

    folder: Path
    task: Task
    num_rows: int

    @cached_property
    def raw(self) -> Path:
        """Six columns, tab separated."""
        path = self.folder / f"{self.task.name}-{self.num_rows}.tsv"
        write_rows(path, self.num_rows, self.task.mean_content)
        return path

    @cached_property
    def vocab(self) -> Path:
        """WordPieces of the first rows."""
        rows = self.folder / f"{self.task.name}-vocabulary.tsv"
        write_rows(rows, 20_000, self.task.mean_content)
        path = self.folder / f"{self.task.name}.vocab.txt"
        words = ["vocab", rows, "--out", path, "--size", VOCABULARY_SIZE, "--columns", COLUMNS]
        _preprocess(*words, "--text", "title,content")
        return path

    @cached_property
    def data(self) -> Path:
        """The data set with all rows in its train part."""
        path = self.folder / f"{self.task.name}-{self.num_rows}.data"
        _preprocess("encode", self.raw, "--out", path, *self.encoding)
        return path

    @cached_property
    def arrow(self) -> Path:
        """The same as an Arrow store."""
        path = self.folder / f"{self.task.name}-{self.num_rows}.arrow"
        _preprocess("encode", self.raw, "--out", path, *self.encoding, "--store", "arrow")
        return path

    @property
    def encoding(self) -> list[object]:
        """Flags of `preprocess encode` for the task."""
        second = ["--text_b", self.task.text_b] if self.task.text_b else []
        return [
            *("--vocab", self.vocab, "--text", self.task.text, *second, "--label", "action", "--columns", COLUMNS),
            *("--max_len", self.task.max_len, "--val_fraction", 0),
        ]


def write_config(folder: Path, shape: str) -> Path:
    """A bert_config.json of `layers x width`, heads of 64."""
    layers, width = (int(number) for number in shape.split("x"))
    config = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // 64),
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    }
    path = folder / f"bert-{shape}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def _preprocess(*words: object) -> None:
    command = [sys.executable, "-m", "preprocess", *(str(word) for word in words)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def write_rows(path: Path, num_rows: int, mean_content: int, seed: int = 0) -> None:
    """Writes rows; the first ones are the same whatever their number."""
    characters = np.array([chr(c) for c in range(0x4E00, 0x4E00 + 6000)])
    np.random.default_rng(seed).shuffle(characters)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for first in range(0, num_rows, BATCH):
            rng = np.random.default_rng((seed, first))
            titles = _texts(rng, characters, rng.poisson(16, BATCH) + 2)
            long_tail = rng.lognormal(np.log(mean_content) - _SPREAD**2 / 2, _SPREAD, BATCH)
            contents = _texts(rng, characters, long_tail.astype(np.int64) + 5)
            actions = rng.choice(len(ACTIONS), BATCH, p=(0.7, 0.2, 0.1))
            operators = rng.integers(0, 40, BATCH) * rng.integers(0, 2, BATCH)
            lines = [
                f"{first + i}\t2024-01-{i % 28 + 1:02d}\t{operator}\t{title}\t{content}\t{ACTIONS[action]}\n"
                for i, (operator, title, content, action) in enumerate(
                    zip(operators, titles, contents, actions, strict=True)
                )
            ]
            file.writelines(lines[: num_rows - first])


def _texts(rng: np.random.Generator, characters: np.ndarray, lengths: np.ndarray) -> list[str]:
    ranks = np.minimum(rng.zipf(1.3, int(lengths.sum())) - 1, len(characters) - 1)
    text = "".join(characters[ranks])
    marks = rng.integers(0, len(WORDS) * 3, len(lengths))
    ends = np.cumsum(lengths)
    return [
        text[end - length : end] + (WORDS[mark] + "，" if mark < len(WORDS) else "。")
        for end, length, mark in zip(ends, lengths, marks, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mean_content", type=int, default=60, help="mean characters of a content")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_rows(args.out, args.rows, args.mean_content, args.seed)


if __name__ == "__main__":
    main()
