"""Deterministic inputs of any size: python benchmarks/generate.py --rows 1000000 --out rows.tsv

Six columns as in a content-review log: object_id, created, operator_id, title, content, action. Text is Chinese
characters with a Zipf-like frequency, some Latin words, numbers and marks.
"""

import argparse
from pathlib import Path

import numpy as np

ACTIONS = ("pass", "reject", "review")
WORDS = ("BERT", "iPhone13", "NBA", "www.example.com", "COVID-19", "3.14", "2024", "OK", "VIP", "GDP")
BATCH = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mean_content", type=int, default=60, help="mean characters of a content")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    characters = np.array([chr(c) for c in range(0x4E00, 0x4E00 + 6000)])
    np.random.default_rng(args.seed).shuffle(characters)
    with args.out.open("w", encoding="utf-8", newline="\n") as file:
        for first in range(0, args.rows, BATCH):
            rng = np.random.default_rng((args.seed, first))
            count = min(BATCH, args.rows - first)
            titles = _texts(rng, characters, rng.poisson(16, count) + 2)
            contents = _texts(rng, characters, rng.poisson(args.mean_content, count) + 5)
            actions = rng.choice(len(ACTIONS), count, p=(0.7, 0.2, 0.1))
            operators = rng.integers(0, 40, count) * rng.integers(0, 2, count)
            file.writelines(
                f"{first + i}\t2024-01-{i % 28 + 1:02d}\t{operator}\t{title}\t{content}\t{ACTIONS[action]}\n"
                for i, (operator, title, content, action) in enumerate(
                    zip(operators, titles, contents, actions, strict=True)
                )
            )


def _texts(rng: np.random.Generator, characters: np.ndarray, lengths: np.ndarray) -> list[str]:
    ranks = np.minimum(rng.zipf(1.3, int(lengths.sum())) - 1, len(characters) - 1)
    text = "".join(characters[ranks])
    marks = rng.integers(0, len(WORDS) * 3, len(lengths))
    ends = np.cumsum(lengths)
    return [
        text[end - length : end] + (WORDS[mark] + "，" if mark < len(WORDS) else "。")
        for end, length, mark in zip(ends, lengths, marks, strict=True)
    ]


if __name__ == "__main__":
    main()
