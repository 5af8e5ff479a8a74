"""Training steps of a classifier on rows of real lengths."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.inputs import TASKS, Inputs, write_config
from benchmarks.job import OURS, Case, Job, Program

OURS_BF16 = f"{OURS}, bf16"


def job(folder: Path, tasks: Sequence[str], shape: str, rows: int, batch: int) -> Job:
    """Every program trains on the same rows with dropout, clipping and AdamW; the first step is not in the rates."""
    task = TASKS["reviews"]
    inputs = Inputs(folder, task, 20_000)
    config = write_config(folder, shape)
    flags = ["train", inputs.data / "train.jsonl", "--config", config, "--rows", rows, "--batch", batch]
    flags += ["--max_len", task.max_len]

    def words(module: str, *more: str) -> list[object]:
        return ["-m", f"benchmarks.{module}", *flags, *more]

    programs = [
        Program(OURS, "ours", words("ours")),
        Program("HF Trainer, grouped by length", "torch", words("peers.hf"), target=1.8),
        Program("KerasHub, sorted batches", "keras", words("peers.keras_hub")),
        Program("keras-bert recipe, fixed padding", "legacy", words("peers.keras_bert"), target=4.0),
        Program(OURS_BF16, "ours", words("ours", "--bf16")),
        Program("HF Trainer, bf16", "torch", words("peers.hf", "--bf16"), against=OURS_BF16, target=1.6),
    ]
    about = f"{shape} encoder, {batch} rows a step, {task.about}"
    cases = [Case(task.name, about, rows, programs)] if task.name in tasks else []
    return Job("train", "Training steps", "tokens_per_s", cases)
