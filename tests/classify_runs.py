"""Small learnable data sets, trainings and predictions through the command lines."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from encode_runs import TOKENS, DataSet, encode

NAMES = ["ant", "bee", "cat"]
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def texts(count: int, seed: int = 0) -> list[str]:
    """Rows of one-letter words; row i holds the first letter of `NAMES[i % 3]`, the others are noise."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        words = [draw.choice("xyz") for _ in range(draw.randint(0, 7))] + [NAMES[i % 3][0]]
        draw.shuffle(words)
        rows.append(" ".join(words))
    return rows


def table(count: int, seed: int = 0) -> str:
    """TSV with a header: id, text, label."""
    lines = [f"r{i}\t{text}\t{NAMES[i % 3]}\n" for i, text in enumerate(texts(count, seed))]
    return "id\ttext\tlabel\n" + "".join(lines)


def make_data(
    folder: Path, rows: int | str = 150, *flags: str, text: str = "text", label: str = "label", test: int = 0
) -> DataSet:
    """An encoded data set `folder/data` of a table; with `test` rows in its test part (file `test.tsv`)."""
    content = rows if isinstance(rows, str) else table(rows)
    given = ["--text", text, "--label", label, "--val_fraction", "0.2", "--max_len", "16", *flags]
    if test:
        (folder / "test.tsv").write_text(table(test, seed=1), encoding="utf-8")
        given += ["--test", str(folder / "test.tsv")]
    return encode(folder, content, *given)


def write_model(folder: Path, **changes: Any) -> Path:
    """Config of a random encoder for the vocabulary of `encode_runs`."""
    path = folder / "model.json"
    path.write_text(json.dumps({"vocab_size": len(TOKENS)} | SHAPE | changes), encoding="utf-8")
    return path


@dataclass
class Run:
    """A run folder."""

    folder: Path

    @property
    def log(self) -> list[dict[str, str]]:
        """Rows of log.tsv."""
        header, *lines = (self.folder / "log.tsv").read_text(encoding="utf-8").split("\n")[:-1]
        return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]

    def column(self, name: str) -> list[float]:
        return [float(row[name]) for row in self.log]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_json_lines(self.folder / "metrics.jsonl")

    @property
    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays of best.weights.h5 by path."""
        found = {}
        with h5py.File(self.folder / "best.weights.h5") as file:
            file.visititems(
                lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        return found

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """Modification time and content of every file."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def train(data: Path, run_dir: Path, *flags: str, init: Path | None = None, code: int = 0) -> Run:
    """`train.py classify` in this process, from a random encoder unless `init` says otherwise."""
    import train as script

    common = {"--data": data, "--init": init or write_model(run_dir.parent), "--run_dir": run_dir}
    words = [str(word) for pair in common.items() for word in pair]
    speed = ["--epochs", "1", "--learning_rate", "1e-2", "--global_batch_size", "16", "--devices", "cpu:1"]
    assert script.main(["classify", *words, *speed, *flags]) == code
    return Run(run_dir)


def predict(run_dir: Path, rows: Path, *flags: str, output: Path | None = None, code: int = 0) -> list[dict[str, Any]]:
    """`predict.py run` in this process; what it wrote."""
    import predict as script

    output = output or rows.with_name(rows.name + ".predicted.jsonl")
    words = ["--run_dir", str(run_dir), "--input", str(rows), "--output", str(output)]
    assert script.main(["run", *words, *flags]) == code
    return read_json_lines(output) if code == 0 else []


def strict_json(text: str | bytes) -> Any:
    """As a strict parser reads it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def read_json_lines(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [strict_json(line) for line in data.split(b"\n")[:-1]]


def same_weights(a: Run, b: Run) -> bool:
    first, second = a.weights, b.weights
    assert first.keys() == second.keys()
    return all(np.array_equal(first[name], second[name]) for name in first)


def blocks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[i : i + size] for i in range(0, len(values), size))
