"""Times the cases of `gpu.py` with whatever takes a step."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clock import versions
from benchmarks.gpu import batch_of, operations

Step = Callable[[Mapping[str, Any]], Any]


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def time_cases(
    args: argparse.Namespace,
    place: Callable[[Any], Any],
    step: Step,
    wait: Callable[[Any], Any],
    packages: Sequence[str],
) -> None:
    """Runs every case and writes the figures as one line of JSON.

    Args:
        args: of `flags`.
        place: a batch of arrays -> on the device.
        step: trains on it; gives something to wait for.
        wait: until that is computed.
        packages: whose versions are told.
    """
    config = json.loads(args.config.read_text(encoding="utf-8"))
    told = []
    for name, steps in json.loads(args.cases.read_text(encoding="utf-8")).items():
        started = time.perf_counter()
        by_shape: dict[tuple[int, int], list[list[int]]] = {}
        for one in steps:
            by_shape.setdefault((one[0], len(one)), []).append(one)
        first_s, seconds, timed = 0.0, 0.0, []
        for group in by_shape.values():
            batches = [place(batch_of(one, config["vocab_size"])) for one in group]
            for warm in batches[:2]:  # compiles, and makes what is made at the first use
                wait(step(warm))
                first_s = first_s or time.perf_counter() - started
            begun = time.perf_counter()
            for batch in batches[2:]:
                last = step(batch)
            wait(last)
            seconds += time.perf_counter() - begun
            timed += group[2:]
        rows = [row for one in timed for row in one[1:]]
        told.append({
            "name": name, "steps": len(timed), "rows": len(rows), "tokens": sum(rows), "seconds": seconds,
            "operations": sum(operations(config, one[1:]) for one in timed), "first_step_s": first_s,
        })  # fmt: skip
    print(json.dumps({"cases": told, "versions": versions(packages)}))  # noqa: T201
