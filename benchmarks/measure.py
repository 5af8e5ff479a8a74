"""Runs a program and measures it from outside: time, CPU of the process tree, peak memory of the process tree."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
STARTED = "BENCH_STARTED"  # tells the program when its process was started, seconds since 1970
_SAMPLE_S = 0.1


@dataclass(frozen=True)
class Measured:
    """One run of a program.

    Attributes:
        wall_s, cpu_s: of the whole process, start-up included; CPU seconds of all its processes.
        peak_mb: largest sum of the memory of all its processes (proportional set size: shared pages count once).
        told: the JSON object on the last line of its output; empty where there is none.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    told: Mapping[str, Any] = field(default_factory=dict)


class ProgramError(Exception):
    """A measured program failed."""


def run(words: Sequence[object], environment: Mapping[str, str] | None = None) -> Measured:
    """Runs a program in the project's folder.

    Raises:
        ProgramError: it ended with another exit code than 0; with the end of what it said.
    """
    command = [str(word) for word in words]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), **(environment or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # programs are measured as installed ones: compiled beforehand
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        before, started = os.times(), time.perf_counter()
        variables[STARTED] = repr(time.time())
        process = psutil.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        peak = 0
        while process.poll() is None:
            begun = time.perf_counter()
            peak = max(peak, _memory(process))
            time.sleep(max(_SAMPLE_S, 20 * (time.perf_counter() - begun)))  # looking at large processes takes a while
        wall, after = time.perf_counter() - started, os.times()
        output, said = (_text(file) for file in (out, errors))
    if process.returncode:
        raise ProgramError(
            f"{' '.join(command)}\nended with exit code {process.returncode}:\n{(output + said)[-3000:]}"
        )
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    last = output.strip().rsplit("\n", 1)[-1]
    return Measured(wall, cpu, peak / 1e6, json.loads(last) if last.startswith("{") else {})


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def _memory(process: psutil.Process) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.Error:
        pass  # one of them just ended
    return total
