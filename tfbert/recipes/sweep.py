"""Commands of a grid of settings: every combination, to be read, or run one after the other."""

import itertools
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tfbert.cli import option
from tfbert.errors import ConfigError, WorkerError
from tfbert.progress import logger

SECTIONS = ("hyperparameters", "default_parameters")
_SCALARS = (str, int, float, bool)


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Write, or run, one command for each combination of the values in a YAML file."""

    grid: str = option(positional=True)
    """YAML file: `hyperparameters` (names with lists of values) and `default_parameters` (names with one value)."""
    init_cmd: str = "python train.py pretrain"
    """What every command begins with."""
    job_name: str | None = None
    """Name of the sweep: run k goes to the folder NAME-k in --runs. Default: the name of the file."""
    runs: str = "runs"
    """Folder of the run folders."""
    run_dirs: bool = True
    """Give every command a --run_dir of its own, unless the grid names run_dir."""
    run: bool = False
    """Run the commands one after the other, and show a table of what came out."""

    def __post_init__(self) -> None:
        if not self.init_cmd.strip():
            raise ConfigError("--init_cmd is a command. Received: nothing.")
        try:
            shlex.split(self.init_cmd)
        except ValueError as error:
            raise ConfigError(
                f"--init_cmd is a command as a shell takes it. Received: {self.init_cmd} ({error})."
            ) from None


@dataclass(frozen=True)
class Job:
    """One combination.

    Attributes:
        words: of the command.
        chosen: the values of the hyperparameters, as words, by name.
        run_dir: its run folder, where that is known.
    """

    words: list[str]
    chosen: dict[str, str]
    run_dir: Path | None


def sweep(config: SweepConfig) -> None:
    """Writes the commands to standard output, a line each; or runs them.

    Raises:
        ConfigError: the file is no such grid.
        WorkerError: a run failed; the others took place.
    """
    jobs = make_jobs(config)
    if not config.run:
        sys.stdout.write("".join(f"{shlex.join(job.words)}\n" for job in jobs))
        return
    codes = []
    rows = []
    for number, job in enumerate(jobs, 1):
        logger.info("run %d of %d: %s", number, len(jobs), shlex.join(job.words))
        started = time.monotonic()
        code = _run(job.words)
        codes.append(code)
        minutes = (time.monotonic() - started) / 60
        rows.append([str(number), *job.chosen.values(), "done" if code == 0 else f"exit code {code}", f"{minutes:.1f}"])
        rows[-1] += _result(job.run_dir)
        if code in (130, 143, -2, -15):  # it was stopped, and so is the sweep
            break
    names = ["run", *(jobs[0].chosen if jobs else ()), "end", "minutes", "result"]
    sys.stdout.write(_table([names, *rows]))
    failed = sum(code != 0 for code in codes)
    if failed or len(codes) < len(jobs):
        raise WorkerError(
            f"error: {failed} of {len(jobs)} runs failed, {len(jobs) - len(codes)} were not begun. "
            "The same command goes on."
        )


def make_jobs(config: SweepConfig) -> list[Job]:
    """All combinations, in the order of the file: the last hyperparameter changes fastest.

    Raises:
        ConfigError: the file is no such grid.
    """
    varied, fixed = _read_grid(Path(config.grid))
    name = config.job_name or Path(config.grid).stem
    jobs = []
    for number, values in enumerate(itertools.product(*varied.values()), 1):
        chosen = dict(zip(varied, values, strict=True))
        settings = chosen | fixed
        run_dir = None
        if "run_dir" in settings:
            run_dir = Path(str(settings["run_dir"]))
        elif config.run_dirs:
            run_dir = Path(config.runs) / f"{name}-{number}"
            settings = settings | {"run_dir": str(run_dir)}
        words = [word for key, value in settings.items() for word in _words(key, value)]
        shown = {key: "" if value is None else str(value) for key, value in chosen.items()}
        jobs.append(Job([*shlex.split(config.init_cmd), *words], shown, run_dir))
    if len(jobs) > 1 and "run_dir" in fixed:
        raise ConfigError(
            f"{config.grid}: every run needs a folder of its own. Received: run_dir in default_parameters, "
            f"{len(jobs)} combinations. Leave it out; --runs and --job_name name the folders."
        )
    return jobs


def _read_grid(path: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    try:
        grid = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: the grid cannot be read. Received: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: a grid is a YAML file. Received: {' '.join(str(error).split())}.") from error
    if not isinstance(grid, dict) or not set(grid) <= set(SECTIONS):
        found = list(grid) if isinstance(grid, dict) else type(grid).__name__
        raise ConfigError(f"{path}: a grid has the sections {' and '.join(SECTIONS)}. Received: {found}.")
    varied, fixed = (grid.get(section) or {} for section in SECTIONS)
    for section, values in zip(SECTIONS, (varied, fixed), strict=True):
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"{path}: {section} are names with values. Received: {values!r}.")
    both = sorted(set(varied) & set(fixed))
    if both:
        raise ConfigError(f"{path}: a name stands in one section. Received: {', '.join(both)} in both.")
    for key, values in varied.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"{path}: a hyperparameter has a list of values, at least one. Received: {key}: {values!r}."
            )
    for key, value in [*((k, v) for k, values in varied.items() for v in values), *fixed.items()]:
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, _SCALARS) for item in items):
            raise ConfigError(
                f"{path}: a value is a word, a number, true, false, null or a list of these. "
                f"Received: {key}: {value!r}."
            )
    return varied, fixed


def _words(key: str, value: Any) -> list[str]:
    """The words of a flag: `--key=value`; a switch as `--key` or `--no_key`; nothing for a value of null."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no_{key}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)]
    return [f"--{key}={value}"]


def _run(words: Sequence[str]) -> int:
    command = [sys.executable, *words[1:]] if words[0] in ("python", "python3") else list(words)
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise ConfigError(f"--init_cmd must be a program. Received: {words[0]} ({error.strerror}).") from error


def _result(run_dir: Path | None) -> list[str]:
    """The last losses in the log of a run."""
    try:
        if run_dir is None:
            return [""]
        lines = (run_dir / "log.tsv").read_text(encoding="utf-8").split("\n")
        row: Mapping[str, str] = dict(zip(lines[0].split("\t"), lines[-2].split("\t"), strict=True))
    except (OSError, ValueError, IndexError):
        return [""]
    numbers = {name: row[name] for name in ("loss", "val_loss", "val_accuracy", "val_mlm_accuracy") if row.get(name)}
    return [", ".join(f"{name} {float(value):.4g}" for name, value in numbers.items())]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )
