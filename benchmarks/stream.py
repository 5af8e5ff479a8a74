"""Rows on disk to shuffled, padded int32 batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.environments import python_of
from benchmarks.inputs import TASKS, Inputs
from benchmarks.job import OURS, Case, Job, Program
from benchmarks.measure import Measured, run

BATCH = 32
PEERS = (  # name, module, kind, environment
    ("HF datasets, streaming JSON", "hf", "json", "torch"),
    ("HF datasets, Arrow and sampler", "hf", "arrow", "torch"),
    ("tf.data, TFRecord", "tf_data", "tfrecord", "legacy"),
    ("tf.data, py_function", "tf_data", "py_function", "legacy"),
    ("generator of a keras-bert recipe", "keras_bert", "generator", "legacy"),
)
_PREPARED = (("tf_data", "tfrecord", "legacy"), ("hf", "arrow", "torch"))
OURS_ARROW = f"{OURS}, Arrow store"
_SLOW = {"generator": 20_000, "py_function": 100_000}  # rows after which a slow one may stop


def job(folder: Path, tasks: Sequence[str], rows: int, window: int) -> Job:
    """Every program shuffles in a window and pads a batch to its longest row (the generator: to `max_len`)."""
    cases = []
    for name in ("titles", "reviews"):
        if name not in tasks:
            continue
        task = TASKS[name]
        inputs = Inputs(folder, task, rows)
        source = inputs.data / "train.jsonl"
        common = ["--window", window, "--batch", BATCH]
        ours = ["-m", "benchmarks.ours", "stream"]
        programs = [
            Program(OURS, "ours", [*ours, source, *common], target=2.0),
            Program(OURS_ARROW, "ours", [*ours, inputs.arrow / "train.arrow", *common], target=8.0),
        ]
        for peer, module, kind, environment in PEERS:
            words = ["-m", f"benchmarks.peers.{module}", f"stream_{kind}", source, *common, "--max_len", task.max_len]
            if kind in _SLOW:
                words += ["--limit", _SLOW[kind]]
            programs.append(Program(peer, environment, words))
        cases.append(Case(task.name, task.about, rows, programs, _agreement))
        for module, kind, environment in _PREPARED:  # the other formats that peers read; not measured
            python = python_of(environment)
            if python is not None:
                run([python, "-m", f"benchmarks.peers.{module}", f"prepare_{kind}", source])
    return Job("stream", f"Rows on disk to padded batches of {BATCH}, shuffled", "rows_per_cpu_s", cases)


def _agreement(runs: Mapping[str, Measured]) -> dict[str, str]:
    """Every row once: the same rows, tokens and sum of ids as ours."""
    ours = runs[OURS].told
    same = {}
    for name, measured in runs.items():
        told = measured.told
        if name != OURS and told.get("whole", True):
            equal = [told[key] == ours[key] for key in ("rows", "tokens", "sum_of_ids")]
            same[name] = "same rows" if all(equal) else "other rows"
    return same
