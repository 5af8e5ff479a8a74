"""Logits of rows of real lengths."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.environments import python_of
from benchmarks.inputs import TASKS, Inputs, write_config
from benchmarks.job import OURS, Case, Job, Program
from benchmarks.measure import Measured, run

OURS_BF16 = f"{OURS}, bf16"
ROWS = {"titles": 1.0, "reviews": 0.3}  # share of the rows that a task does


def job(folder: Path, tasks: Sequence[str], shape: str, rows: int) -> Job:
    """Every program has the same weights and goes through the same rows, sorted by length."""
    model = folder / "model"
    python = python_of("torch")
    if python is None:  # the weights come from there
        return Job("predict", "Logits of rows", "rows_per_s", [])
    if not model.exists():
        run([python, "-m", "benchmarks.peers.hf", "prepare_model", write_config(folder, shape), model])
        run([python, "-m", "benchmarks.peers.ort", "prepare", model])
    cases = []
    for name, share in ROWS.items():
        if name not in tasks:
            continue
        inputs = Inputs(folder, TASKS[name], 20_000)
        count = int(rows * share)
        outputs: dict[str, Path] = {}

        def words(program: str, module: str, *more: str) -> list[object]:
            outputs[program] = folder / f"{name}-{len(outputs)}.npy"  # noqa: B023 - called below, in this round
            data = inputs.data / "train.jsonl"  # noqa: B023
            flags = ["--model", model, "--rows", count, "--out", outputs[program]]  # noqa: B023
            return ["-m", f"benchmarks.{module}", "predict", data, *flags, *more]

        def program(name: str, environment: str, module: str, *more: str, **settings: object) -> Program:
            return Program(name, environment, words(name, module, *more), **settings)

        programs = [
            program(OURS, "ours", "ours"),
            program("onnxruntime", "torch", "peers.ort", target=1.2),
            program("HF transformers", "torch", "peers.hf"),
            program(OURS_BF16, "ours", "ours", "--bf16"),
            program("HF transformers, bf16", "torch", "peers.hf", "--bf16", against=OURS_BF16, target=1.0),
        ]
        cases.append(Case(name, f"{shape} encoder, {TASKS[name].about}", count, programs, _Agreement(outputs)))
    return Job("predict", "Logits of rows", "rows_per_s", cases)


class _Agreement:
    """Largest difference of a logit from ours in float32."""

    def __init__(self, outputs: Mapping[str, Path]):
        self._outputs = outputs

    def __call__(self, runs: Mapping[str, Measured]) -> dict[str, str]:
        ours = np.load(self._outputs[OURS])
        differences = {}
        for name in runs:
            if name != OURS:
                differences[name] = f"logits within {np.abs(np.load(self._outputs[name]) - ours).max():.1g}"
        return differences
