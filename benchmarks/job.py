"""Programs that do the same job, run in turn on the same input."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks import measure
from benchmarks.environments import python_of
from benchmarks.measure import Measured, ProgramError

OURS = "tfbert"


@dataclass(frozen=True)
class Program:
    """A program that does a job.

    Args:
        name: in table and chart; ours begin with `tfbert`.
        environment: of `environments.PACKAGES`, or `ours`.
        words: arguments of its Python.
        variables: of its environment.
        against: of a peer, name of our program that it is held against.
        target: of a peer, how many times as fast ours shall be; of ours, how many times as fast as the best peer.
    """

    name: str
    environment: str
    words: Sequence[object]
    variables: Mapping[str, str] = field(default_factory=dict)
    against: str = OURS
    target: float | None = None


@dataclass(frozen=True)
class Case:
    """One input and the programs that work on it.

    Args:
        name: titles, reviews, pairs.
        about: what is special about it, for the table.
        rows: that a program does, where it does not tell itself.
        programs: ours first.
        agreement: runs by program -> for each peer how far its result is ours, for the table.
    """

    name: str
    about: str
    rows: int
    programs: Sequence[Program]
    agreement: Callable[[Mapping[str, Measured]], dict[str, str]] = lambda runs: {}


@dataclass(frozen=True)
class Job:
    """A kind of work and the number by which programs are held against each other."""

    name: str
    title: str
    measure: str  # of `Score`, the larger the better
    cases: Sequence[Case]


@dataclass(frozen=True)
class Score:
    """Medians over the repetitions of one program.

    Rates are over the job proper where the program told it (without start-up, compilation and loading), else over the
    whole process; `cpu_s`, `wall_s` and `peak_mb` are always those of the whole process tree. `first_s` is the time
    from the start of the process to its first result; of training, from its begin to the end of its first step.
    """

    name: str
    rows_per_s: float
    rows_per_cpu_s: float
    tokens_per_s: float | None
    wall_s: float
    cpu_s: float
    peak_mb: float
    first_s: float | None
    agreement: str = ""
    against: str = OURS
    target: float | None = None
    factor: float | None = None  # of a peer, how many times as fast ours is; of ours with a target, than the best peer
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)


def run_case(job: Job, case: Case, repeat: int, say: Callable[[str], None] = lambda text: None) -> list[Score]:
    """Runs the programs of a case in turn, `repeat` times. A peer without its environment, or that fails, is left out.

    Raises:
        ProgramError: one of ours failed.
    """
    programs = {}
    for program in case.programs:
        python = python_of(program.environment)
        if python is None:
            say(f"{job.name}, {case.name}: no environment {program.environment}; {program.name} is left out")
        else:
            programs[program.name] = (program, [python, *program.words])
    runs: dict[str, list[Measured]] = {name: [] for name in programs}
    for _ in range(repeat):
        for name in list(programs):
            program, words = programs[name]
            try:
                runs[name].append(measure.run(words, program.variables))
            except ProgramError as error:
                if program.name.startswith(OURS):
                    raise
                say(f"{job.name}, {case.name}: {name} failed and is left out: {error}")
                del programs[name], runs[name]
    agreement = case.agreement({name: measured[-1] for name, measured in runs.items()})
    scores = {
        name: _score(programs[name][0], measured, case.rows, agreement.get(name, "")) for name, measured in runs.items()
    }
    return [_compared(score, scores, job.measure) for score in scores.values()]


def _score(program: Program, runs: Sequence[Measured], rows: int, agreement: str) -> Score:
    rates = [_rates(run, rows) for run in runs]
    told_first = [run.told.get("first_step_s") or run.told.get("first_s") for run in runs]
    first = [seconds for seconds in told_first if seconds]
    tokens = [rate["tokens_per_s"] for rate in rates if rate["tokens_per_s"]]
    return Score(
        program.name,
        statistics.median(rate["rows_per_s"] for rate in rates),
        statistics.median(rate["rows_per_cpu_s"] for rate in rates),
        statistics.median(tokens) if tokens else None,
        statistics.median(run.wall_s for run in runs),
        statistics.median(run.cpu_s for run in runs),
        statistics.median(run.peak_mb for run in runs),
        statistics.median(first) if first else None,
        agreement,
        program.against,
        program.target,
        versions=runs[-1].told.get("versions", {}),
    )


def _rates(run: Measured, rows: int) -> dict[str, float]:
    told = run.told
    wall, cpu = told.get("work_s") or run.wall_s, told.get("work_cpu_s") or run.cpu_s
    rows = told.get("rows") or rows
    return {
        "rows_per_s": rows / wall,
        "rows_per_cpu_s": rows / cpu,
        "tokens_per_s": told.get("tokens", 0) / wall,
    }


def _compared(score: Score, scores: Mapping[str, Score], measure_name: str) -> Score:
    def rate(one: Score) -> float:
        return float(getattr(one, measure_name) or 0)

    if not score.is_ours:
        ours = scores.get(score.against)
        return score if ours is None or not rate(score) else replace(score, factor=rate(ours) / rate(score))
    best = max((rate(one) for one in scores.values() if not one.is_ours), default=0.0)
    return replace(score, factor=rate(score) / best) if score.target and best else score
