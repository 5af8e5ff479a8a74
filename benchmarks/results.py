"""Scores as a table (Markdown), as JSON and as bar charts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.job import Score

_UNITS = {"rows_per_s": "rows/s", "rows_per_cpu_s": "rows per CPU second", "tokens_per_s": "real tokens/s"}


@dataclass(frozen=True)
class CaseResult:
    """Scores of the programs of a case, ours first."""

    name: str
    about: str
    scores: Sequence[Score]


@dataclass(frozen=True)
class JobResult:
    """What a job gave, and what is known about machine and versions."""

    name: str
    title: str
    measure: str
    about: dict[str, Any]
    cases: Sequence[CaseResult]


def write(folder: Path, result: JobResult) -> None:
    """Writes `NAME.json`, `NAME.md` and `NAME.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.name}.json").write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    (folder / f"{result.name}.md").write_text(table(result), encoding="utf-8")
    chart(folder / f"{result.name}.png", result)


def table(result: JobResult) -> str:
    """The Markdown document of a job."""
    versions: dict[str, str] = {}
    for case in result.cases:
        for score in case.scores:
            versions |= score.versions
    about = [f"{value} {name}" if isinstance(value, int) else str(value) for name, value in result.about.items()]
    about += [f"{name} {number}" for name, number in sorted(versions.items())]
    lines = [
        f"# {result.title}",
        "",
        f"Medians of interleaved runs; {'; '.join(about)}. Rates without start-up where the program tells them; CPU "
        "seconds, peak memory and seconds in all are those of the whole process tree. The first result counts from "
        "the start of the process; in training, the first step from the begin of training.",
        "",
        f"Faster, in {_UNITS[result.measure]}: beside a peer how many times as fast ours is, beside ours how many "
        "times as fast as the best peer.",
        "",
        "| case | program | rows/s | rows per CPU s | real tokens/s | first result s | all s | CPU s | peak MB "
        "| faster | target | agreement |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in result.cases:
        lines += [_line(f"{case.name}, {case.about}", score) for score in case.scores]
    return "\n".join(lines) + "\n"


def _line(case: str, score: Score) -> str:
    cells = [
        case,
        score.name,
        _number(score.rows_per_s),
        _number(score.rows_per_cpu_s),
        _number(score.tokens_per_s),
        "" if score.first_s is None else f"{score.first_s:.1f}",
        f"{score.wall_s:.1f}",
        f"{score.cpu_s:.1f}",
        _number(score.peak_mb),
        "" if score.factor is None else f"{score.factor:.2f}",
        _target(score),
        score.agreement,
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _target(score: Score) -> str:
    if score.factor is None or score.target is None:
        return ""
    return f"{score.target:g}: {'met' if score.factor >= score.target else 'missed'}"


def chart(path: Path, result: JobResult) -> None:
    """One bar a program, one picture a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    most = max((len(case.scores) for case in result.cases), default=1)
    figure, axes = pyplot.subplots(
        1, len(result.cases), figsize=(5.5 * len(result.cases), 0.9 + 0.42 * most), layout="constrained", squeeze=False
    )
    for axis, case in zip(axes[0], result.cases, strict=True):
        scores = list(reversed(case.scores))
        values = [getattr(score, result.measure) or 0 for score in scores]
        colours = ["#d95f02" if score.is_ours else "#7f8c9b" for score in scores]
        bars = axis.barh([score.name for score in scores], values, color=colours)
        axis.bar_label(bars, labels=[_number(value) for value in values], padding=3, fontsize=8)
        axis.margins(x=0.18)
        axis.set(title=f"{case.name}, {case.about}", xlabel=_UNITS[result.measure])
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
