"""One training step on an accelerator: our encoder on TensorFlow or JAX beside Hugging Face transformers on torch.

    KERAS_BACKEND=jax python -m benchmarks.gpu --out benchmarks/results      ours on JAX, and the peer if torch is there
    python -m benchmarks.gpu --backends tensorflow,jax --torch PATH/bin/python
    python -m benchmarks.gpu --shapes 1x64 --lengths 16 --tokens 64          a trial on any machine

bfloat16, AdamW, dropout, clipping by the global norm. Cases are full rows of each length, and a mixture: rows of the
lengths that reviews have, sorted and padded to a few lengths, so that compiled shapes stay few. The share of peak is
that of the operations that the real tokens need, in matrix products, forward and backward. Needs numpy and psutil, and
what each program needs: keras with TensorFlow or JAX on the card; torch and transformers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import write_config
from benchmarks.measure import ROOT, ProgramError, run

PEAK_TFLOPS = {  # dense bfloat16 products (V100, T4: float16), by what the card's name contains; first match counts
    "B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L40": 181, "L4": 121,
    "A40": 150, "A10": 125, "4090": 165, "3090": 71, "V100": 125, "T4": 65,
}  # fmt: skip
MIXTURE_STEPS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=os.environ.get("KERAS_BACKEND"), help="tensorflow, jax, or both")
    parser.add_argument("--torch", type=Path, help="Python with torch and transformers, if it is another one")
    parser.add_argument("--shapes", default="12x768,24x1024", help="layers x width of the encoders")
    parser.add_argument("--lengths", default="128,512", help="tokens of the full rows")
    parser.add_argument("--tokens", type=int, default=16_384, help="cells of a step: rows x length")
    parser.add_argument("--steps", type=int, default=10, help="steps timed, behind two others")
    parser.add_argument("--peak_tflops", type=float, help="of the card, where it is not known here")
    parser.add_argument("--no_compile", action="store_true", help="the peer without torch.compile")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    args = parser.parse_args()
    card = card_name()
    peak = args.peak_tflops or next((flops for part, flops in PEAK_TFLOPS.items() if part in card), None)
    lengths = [int(length) for length in args.lengths.split(",")]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in args.shapes.split(","):
            cases = Path(folder) / f"{shape}.json"
            cases.write_text(json.dumps(case_batches(lengths, args.tokens, args.steps)), encoding="utf-8")
            flags = ["--config", write_config(Path(folder), shape), "--cases", cases]
            for name, words, variables in programs(args, flags):
                try:
                    told = run(words, variables).told
                except ProgramError as error:
                    sys.stderr.write(f"{name} is left out: {error}\n")
                    continue
                rows += [result_row(shape, name, case, told, peak) for case in told["cases"]]
    about = {"card": card, "peak_tflops": peak, "steps": args.steps}
    text = table(about, rows)
    sys.stdout.write(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu.json").write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")
        (args.out / "gpu.md").write_text(text, encoding="utf-8")


def programs(args: argparse.Namespace, flags: Sequence[object]) -> list[tuple[str, list[object], dict[str, str]]]:
    """What is measured: name, command, variables of its environment."""
    backends = args.backends.split(",") if args.backends else [b for b in ("tensorflow", "jax") if find_spec(b)]
    ours = [sys.executable, "-m", "benchmarks.gpu_step", *flags]
    found = [(f"tfbert on {backend}", ours, {"KERAS_BACKEND": backend}) for backend in backends]
    if args.torch or find_spec("torch"):
        compile_it = [] if args.no_compile else ["--compile"]
        words = [args.torch or sys.executable, "-m", "benchmarks.peers.hf_step", *flags, *compile_it]
        name = f"HF transformers, SDPA{'' if args.no_compile else ', torch.compile'}"
        found.append((name, words, {}))
    return found


def case_batches(lengths: Sequence[int], tokens: int, steps: int) -> dict[str, list[list[int]]]:
    """Name of a case -> for every step the length of the batch and the real tokens of each of its rows.

    The first two steps of each shape are not timed.
    """
    cases = {f"{n} tokens": [[n] * (1 + max(1, tokens // n))] * (steps + 2) for n in lengths}
    longest = max(lengths)
    edges = sorted({max(8, longest // 8), max(8, longest // 4), longest // 2, longest})
    drawn = np.random.default_rng(0).lognormal(np.log(longest / 4), 0.6, 200_000)
    real = np.sort(np.clip(drawn, 4, longest).astype(int))
    mixture = []
    for low, edge in zip([0, *edges], edges, strict=False):
        inside = real[(real > low) & (real <= edge)]
        count = max(1, tokens // edge)
        share = max(1, round(MIXTURE_STEPS * inside.sum() / real.sum()))
        rows = np.resize(np.random.default_rng(edge).permutation(inside), (share + 2, count))
        mixture += [[edge, *row] for row in rows.tolist()]
    cases["mixture"] = mixture
    return cases


def batch_of(step: Sequence[int], vocab_size: int) -> dict[str, np.ndarray]:
    """Model inputs and labels of a step of `case_batches`, int32."""
    length, rows = step[0], np.array(step[1:])
    mask = (np.arange(length) < rows[:, None]).astype(np.int32)
    ids = np.random.default_rng(length).integers(5, vocab_size, mask.shape, dtype=np.int32) * mask
    labels = np.arange(len(rows), dtype=np.int32) % 3
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": mask, "labels": labels}


def operations(config: dict[str, Any], rows: Sequence[int]) -> float:
    """Floating-point operations of a step over rows of so many real tokens: three times those of the forward pass."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    tokens, squares = float(sum(rows)), float(sum(n * n for n in rows))
    layer = tokens * (8 * width * width + 4 * width * inner) + 4 * width * squares
    return 3 * config["num_hidden_layers"] * layer


def result_row(
    shape: str, program: str, case: dict[str, Any], told: dict[str, Any], peak: float | None
) -> dict[str, Any]:
    """A line of the table."""
    rate = case["operations"] / case["seconds"] / 1e12
    return {
        "shape": shape,
        "case": case["name"],
        "program": program,
        "ms_a_step": 1000 * case["seconds"] / case["steps"],
        "rows_per_s": case["rows"] / case["seconds"],
        "tokens_per_s": case["tokens"] / case["seconds"],
        "tflops": rate,
        "share_of_peak": rate / peak if peak else None,
        "first_step_s": case["first_step_s"],
        "versions": told["versions"],
    }


def table(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    versions = {name: number for row in rows for name, number in row["versions"].items()}
    peak = f"{about['peak_tflops']:g} TFLOP/s" if about["peak_tflops"] else "unknown"
    lines = [
        "# One training step on an accelerator",
        "",
        f"{about['card']}; peak {peak}; {about['steps']} steps; bfloat16; "
        + ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
        + ".",
        "",
        "| encoder | case | program | ms a step | rows/s | real tokens/s | TFLOP/s | share of peak | first step s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row['share_of_peak']:.1%}" if row["share_of_peak"] else ""
        rates = f"{row['rows_per_s']:,.0f} | {row['tokens_per_s']:,.0f} | {row['tflops']:.3g}"
        lines.append(
            f"| {row['shape']} | {row['case']} | {row['program']} | {row['ms_a_step']:.1f} | {rates} | {share} | "
            f"{row['first_step_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def card_name() -> str:
    """Name and driver of the first card; without one, that it is a CPU."""
    try:
        words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
        return "{}, driver {}".format(*done.stdout.splitlines()[0].split(", "))
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "CPU"


if __name__ == "__main__":
    main()
