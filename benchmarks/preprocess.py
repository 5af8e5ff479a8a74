"""Raw rows to JSON lines of token ids: ours and the peers in turn, on the same generated rows.

    make bench                                      all of it, with an environment of their own for the peers
    python benchmarks/preprocess.py --rows 100000   with the environment made before

Writes `benchmarks/results/preprocess.md`, `.json` and `.png`: medians of interleaved repetitions of the whole process,
CPU time and peak memory of the process tree, and how many rows of a peer have the same ids.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import psutil

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"Hugging Face datasets": "hf_datasets.py", "flash-tokenizer": "flash.py"}
PEER_PACKAGES = ("datasets", "transformers", "tokenizers", "flash-tokenizer", "orjson")
TASKS = {  # column, mean characters of a content, max_len
    "titles": ("title", 20, 64),
    "reviews": ("content", 150, 256),
    "pairs": ("pair", 90, 128),
}
COLUMNS = "object_id,created,operator_id,title,content,action"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-bench", help="environment of the peers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    args = parser.parse_args()
    python = args.peers / "bin/python"
    with tempfile.TemporaryDirectory() as folder:
        results = [task_results(Path(folder), name, args, python) for name in TASKS]
    about = {
        "rows": args.rows,
        "workers": args.workers,
        "repetitions": args.repeat,
        "processor": processor(),
        "python": platform.python_version(),
        "peers": peer_versions(python),
        "orjson": version("orjson"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "preprocess.json").write_text(json.dumps({"about": about, "results": results}, indent=2) + "\n")
    (args.out / "preprocess.md").write_text(table(about, results), encoding="utf-8")
    chart(args.out / "preprocess.png", results)
    sys.stdout.write(table(about, results))


def task_results(folder: Path, task: str, args: argparse.Namespace, python: Path) -> dict[str, Any]:
    column, mean, max_len = TASKS[task]
    rows, vocab = folder / f"{task}.tsv", folder / f"{task}.vocab.txt"
    generate = ["benchmarks/generate.py", "--rows", args.rows, "--mean_content", mean, "--out", rows]
    call(sys.executable, *generate)
    call(
        *(sys.executable, "-m", "preprocess", "vocab", rows, "--out", vocab, "--size", 12_000, "--columns", COLUMNS),
        *("--text", "title,content"),
    )
    ours = folder / f"{task}.data"
    texts = ["--text", column] if column != "pair" else ["--text", "content", "--text_b", "title"]
    commands = {
        "tfbert": [
            *(sys.executable, "-m", "preprocess", "encode", rows, "--out", ours, "--vocab", vocab, *texts),
            *("--label", "action", "--columns", COLUMNS, "--max_len", max_len, "--val_fraction", 0),
            *("--workers", args.workers),
        ]
    }
    for name, script in PEERS.items():
        if name == "flash-tokenizer" and column == "pair":
            continue  # it has no pairs
        written = folder / f"{task}.{script}.jsonl"
        commands[name] = [
            *(python, f"benchmarks/peers/{script}", rows, column, vocab, max_len, written, args.workers),
        ]
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(args.repeat):
        for name, words in commands.items():
            measured[name].append(measure(*words))
    outputs = {name: folder / f"{task}.{PEERS[name]}.jsonl" for name in commands if name != "tfbert"}
    summary = {}
    for name, runs in measured.items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        summary[name] = median | {
            "rows_per_s": args.rows / median["wall_s"],
            "rows_per_cpu_s": args.rows / median["cpu_s"],
        }
        if name in outputs:
            summary[name]["same_ids"] = same_ids(ours / "train.jsonl", outputs[name])
    return {"task": task, "max_len": max_len, "summary": summary}


def call(*words: Any) -> None:
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def measure(*words: Any) -> dict[str, float]:
    """Wall and CPU seconds, and the peak of the summed memory (PSS) of the process tree, of one run."""
    before, started = os.times(), time.perf_counter()
    process = psutil.Popen([str(w) for w in words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_of(process))
        time.sleep(0.1)
    wall, after = time.perf_counter() - started, os.times()
    if process.returncode:
        sys.exit(process.stderr.read().decode())
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": wall, "cpu_s": cpu, "peak_mb": peak / 1e6}


def memory_of(process: psutil.Process) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.Error:
        pass  # one of them just ended
    return total


def same_ids(ours: Path, theirs: Path) -> float:
    """Share of rows with the same ids."""
    with ours.open("rb") as a, theirs.open("rb") as b:
        same = [json.loads(x)["wordids"] == json.loads(y)["wordids"] for x, y in zip(a, b, strict=True)]
    return sum(same) / len(same)


def processor() -> str:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(":")[1].strip() for line in info.split("\n") if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def peer_versions(python: Path) -> dict[str, str]:
    code = "import sys; from importlib.metadata import version; print('\\n'.join(map(version, sys.argv[1:])))"
    done = subprocess.run([python, "-c", code, *PEER_PACKAGES], check=True, capture_output=True, text=True)
    return dict(zip(PEER_PACKAGES, done.stdout.split(), strict=True))


def table(about: dict[str, Any], results: list[dict[str, Any]]) -> str:
    lines = [
        "# Raw rows to JSON lines of token ids",
        "",
        f"{about['rows']:,} generated rows a task, {about['workers']} workers, medians of {about['repetitions']} "
        f"interleaved runs of the whole process on {about['processor']}; Python {about['python']}, "
        + ", ".join(f"{name} {number}" for name, number in about["peers"].items())
        + ".",
        "",
        "| task | program | rows/s | rows per CPU s | wall s | peak MB | ours is faster by | same ids as ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        best = result["summary"]["tfbert"]["wall_s"]
        for name, row in result["summary"].items():
            factor = f"{row['wall_s'] / best:.2f}" if name != "tfbert" else ""
            same = f"{row['same_ids']:.2%}" if "same_ids" in row else ""
            lines.append(
                f"| {result['task']}, max_len {result['max_len']} | {name} | {row['rows_per_s']:,.0f} | "
                f"{row['rows_per_cpu_s']:,.0f} | {row['wall_s']:.1f} | {row['peak_mb']:,.0f} | {factor} | {same} |"
            )
    return "\n".join(lines) + "\n"


def chart(path: Path, results: list[dict[str, Any]]) -> None:
    figure, axes = pyplot.subplots(1, len(results), figsize=(4 * len(results), 3.2), layout="constrained")
    for axis, result in zip(axes, results, strict=True):
        names = list(result["summary"])
        bars = axis.bar(names, [result["summary"][name]["rows_per_s"] for name in names])
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=8)
        axis.margins(y=0.12)
        axis.set(title=result["task"], ylabel="rows/s")
        axis.tick_params(axis="x", labelrotation=15, labelsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
