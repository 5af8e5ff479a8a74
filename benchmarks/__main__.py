"""Our speed beside that of peers, each in an environment of its own, on the same generated rows.

    make bench                                  everything, as the documents show it
    make bench QUICK=1                          smaller, in a few minutes
    python -m benchmarks --only stream,predict  some of it, in the environments made before

Writes `NAME.md`, `NAME.json` and `NAME.png` of each job to `benchmarks/results`.
"""

import argparse
import os
import platform
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks import predict, preprocess, stream, train
from benchmarks.inputs import TASKS
from benchmarks.job import Job, run_case
from benchmarks.measure import ROOT
from benchmarks.results import CaseResult, JobResult, table, write
from tfbert import __version__


@dataclass(frozen=True)
class Sizes:
    """How much work each job does, and how often."""

    preprocess_rows: int
    stream_rows: int
    window: int
    shape: str
    train_rows: int
    train_batch: int
    predict_rows: int
    tasks: str
    repeat: dict[str, int]


_TASKS = ",".join(TASKS)
_REPEAT = {"preprocess": 3, "stream": 3, "train": 2, "predict": 2}
FULL = Sizes(100_000, 150_000, 100_000, "12x768", 64, 8, 512, _TASKS, _REPEAT)
QUICK = Sizes(20_000, 40_000, 20_000, "4x256", 64, 8, 512, _TASKS, {})
JOBS = ("preprocess", "stream", "train", "predict")


def make_job(name: str, folder: Path, sizes: Sizes) -> Job:
    """A job of `JOBS` on the tasks that it has of those of the sizes."""
    tasks = sizes.tasks.split(",")
    if name == "preprocess":
        return preprocess.job(folder, tasks, sizes.preprocess_rows, len(os.sched_getaffinity(0)))
    if name == "stream":
        return stream.job(folder, tasks, sizes.stream_rows, sizes.window)
    if name == "train":
        return train.job(folder, tasks, sizes.shape, sizes.train_rows, sizes.train_batch)
    return predict.job(folder, tasks, sizes.shape, sizes.predict_rows)


def measure_job(job: Job, repeat: int, machine: dict[str, str]) -> JobResult:
    cases = []
    for case in job.cases:
        say(f"{job.name}: {case.name}")
        cases.append(CaseResult(case.name, case.about, run_case(job, case, repeat, say)))
    return JobResult(job.name, job.title, job.measure, {**machine, "repetitions": repeat}, cases)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(":")[1].strip() for line in info.split("\n") if line.startswith("model name")]
    return {
        "processor": f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "ours": f"tfbert {__version__}, "
        + ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "keras", "numpy", "orjson")),
    }


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, once each")
    parser.add_argument("--only", default=",".join(JOBS), help=f"jobs, joined by commas: {', '.join(JOBS)}")
    for field in fields(Sizes):
        if field.type is int or field.type is str:
            parser.add_argument(f"--{field.name}", type=field.type, help=f"instead of {getattr(FULL, field.name)}")
    parser.add_argument("--repeat", type=int, help="interleaved repetitions, instead of 2 or 3")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    args = parser.parse_args()
    sizes = QUICK if args.quick else FULL
    given = {field.name: getattr(args, field.name, None) for field in fields(Sizes) if field.name != "repeat"}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only.split(","):
            repeat = args.repeat or sizes.repeat.get(name, 1)
            job = make_job(name, Path(folder), sizes)
            if not job.cases:
                say(f"{name}: left out; it needs another task, or the environment torch")
                continue
            result = measure_job(job, repeat, machine())
            write(args.out, result)
            sys.stdout.write(table(result))


if __name__ == "__main__":
    main()
