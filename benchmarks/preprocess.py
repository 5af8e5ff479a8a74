"""Raw rows to JSON lines of token ids."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.inputs import TASKS, Inputs
from benchmarks.job import OURS, Case, Job, Program
from benchmarks.measure import Measured


def job(folder: Path, tasks: Sequence[str], rows: int, workers: int) -> Job:
    """Every program writes the same ids, with labels, in the order of the rows."""
    cases = []
    for task in TASKS.values():
        if task.name not in tasks:
            continue
        inputs = Inputs(folder, task, rows)
        words = ["-m", "preprocess", "encode", inputs.raw, "--out", folder / f"{task.name}.encoded", *inputs.encoding]
        programs = [Program(OURS, "ours", [*words, "--workers", workers])]
        written = {}
        for name, module, environment, target in PEERS:
            if task.text_b and module == "flash":
                continue  # it has no pairs
            written[name] = folder / f"{task.name}.{module}.jsonl"
            column = "pair" if task.text_b else task.text
            arguments = [inputs.raw, column, inputs.vocab, task.max_len, written[name], workers]
            arguments = [f"benchmarks.peers.{module}", "encode", *arguments]
            programs.append(Program(name, environment, ["-m", *arguments], target=target))
        ours = folder / f"{task.name}.encoded/train.jsonl"
        cases.append(Case(task.name, task.about, rows, programs, _Agreement(ours, written)))
    return Job("preprocess", "Raw rows to JSON lines of token ids", "rows_per_s", cases)


PEERS = (
    ("Hugging Face datasets", "hf", "torch", 8.0),
    ("flash-tokenizer", "flash", "torch", 1.2),
    ("KerasHub tokenizer in tf.data", "keras_hub", "keras", None),
)


class _Agreement:
    """Share of rows with the same ids as ours."""

    def __init__(self, ours: Path, theirs: Mapping[str, Path]):
        self._ours, self._theirs = ours, theirs

    def __call__(self, runs: Mapping[str, Measured]) -> dict[str, str]:
        shares = {}
        for name, path in self._theirs.items():
            if name not in runs:
                continue
            with self._ours.open("rb") as a, path.open("rb") as b:
                same = [json.loads(x)["wordids"] == json.loads(y)["wordids"] for x, y in zip(a, b, strict=True)]
            shares[name] = f"{sum(same) / len(same):.2%} of the rows have our ids"
        return shares
