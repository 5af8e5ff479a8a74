"""Charts of a data set as PNG files: token lengths, labels. Drawn without a display, and without warnings."""

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from preprocess.summary import length_percentile
from tfbert.disk import atomic_file
from tfbert.errors import ConfigError

MAX_BARS = 60
TOP_LABELS, LAST_LABELS = 40, 20  # of more labels, the most and the least frequent are drawn
MAX_NAME = 28  # characters of a label name
BLUE, ORANGE, GREY = "#4878a8", "#d9822b", "#8a8a8a"
# Fonts with Chinese characters, as Linux, macOS and Windows have them.
FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "Droid Sans Fallback", "AR PL UMing CN", "AR PL UKai CN", "PingFang SC", "Hiragino Sans GB",
    "Heiti SC", "STHeiti", "Songti SC", "Microsoft YaHei", "SimHei", "SimSun", "Noto Sans CJK JP", "Arial Unicode MS",
)  # fmt: skip


def check_matplotlib() -> None:
    """Raises ConfigError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "Charts need the package matplotlib. Received: it is not installed. Run `pip install matplotlib`, or give "
            "--no_charts."
        )


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # and not pyplot, which would keep the figure and look for a display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    with atomic_file(path) as file:
        file.write(image.getvalue())


def fonts_for(texts: Sequence[str]) -> list[str] | None:
    """Names of installed fonts that together show all of `texts`, or None."""
    from matplotlib import font_manager

    needed = {ord(char) for text in texts for char in text}
    manager = font_manager.fontManager
    known = {font.name: font.fname for font in reversed(manager.ttflist)}
    for family in (None, *FONTS):
        names = ["DejaVu Sans"] + ([family] if family in known else [])
        if family is not None and family not in known:
            continue
        shown = set().union(*(font_manager.get_font(known[name]).get_charmap() for name in names if name in known))
        if needed <= shown:
            return names
    return None


def draw_lengths(path: Path, histogram: Mapping[str, int], max_len: int, title: str) -> None:
    """Rows by number of tokens before truncation.

    The longest rows share the last bar, so that a few of them do not press the others into a corner.
    """
    lengths = sorted((int(length), rows) for length, rows in histogram.items())
    longest, total = lengths[-1][0], sum(rows for _, rows in lengths)
    end = length_percentile(histogram, 99.5)
    if longest <= max(MAX_BARS, 1.5 * end):
        end = longest
    width = max(1, -(-end // MAX_BARS))
    bars = -(-end // width)
    counts = [0] * bars
    beyond = 0
    for length, rows in lengths:
        if length <= bars * width:
            counts[(length - 1) // width] += rows
        else:
            beyond += rows
    figure, axes = _figure(8, 4.5)
    axes.bar([i * width + width / 2 + 0.5 for i in range(bars)], counts, width, color=BLUE, edgecolor="white", lw=0.5)
    right = bars * width + 0.5
    if beyond:
        limit, middle = bars * width, right + max(width, right * 0.03)
        label = f"longer than {limit:,}: {beyond:,} rows, up to {longest:,} tokens"
        axes.bar(middle, beyond, width, color=ORANGE, label=label)
        axes.annotate(f"> {limit:,}", (middle, beyond), (0, 3), textcoords="offset points", ha="center", fontsize=8)
        right = middle + width
    for percent, style in ((50, ":"), (99, "--")):
        value = length_percentile(histogram, percent)
        axes.axvline(min(value, right), color=GREY, ls=style, lw=1.2, label=f"{percent} % of the rows: up to {value:,}")
    cut = sum(rows for length, rows in lengths if length > max_len)
    label = f"max_len {max_len:,} cuts {cut / total:.2%} of the rows"
    if max_len <= right:
        axes.axvline(max_len + 0.5, color="black", lw=1.2, label=label)
    else:
        axes.plot([], [], color="black", lw=1.2, label=f"{label} (right of the chart)")
    axes.set(
        title=title, xlim=(0.5, right + width / 2),
        xlabel="tokens a row, special tokens included" + (f" ({width} lengths a bar)" if width > 1 else ""),
        ylabel="rows",
    )  # fmt: skip
    _thousands(axes.yaxis)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=9)
    _save(figure, path)


def draw_labels(path: Path, counts: Mapping[str, int], rows: int, title: str) -> bool:
    """Rows by label, most frequent first, of `rows` in all.

    Returns whether the names could be shown; else their ids stand there.
    """
    ids = {name: i for i, name in enumerate(counts)}
    ranked = sorted(counts.items(), key=lambda item: (-item[1], ids[item[0]]))
    hidden = ranked[TOP_LABELS:-LAST_LABELS]
    shown = ranked[:TOP_LABELS] + ranked[-LAST_LABELS:] if hidden else ranked
    fonts = fonts_for([_short(name) for name, _ in shown])
    names = [_short(name) if fonts else f"id {ids[name]}" for name, _ in shown]
    bars = [count for _, count in shown]
    notes = [f"{count:,} ({count / rows:.1%})" for count in bars]
    if hidden:
        names.insert(TOP_LABELS, "…")
        bars.insert(TOP_LABELS, 0)
        notes.insert(TOP_LABELS, f"{len(hidden):,} labels between, with {sum(count for _, count in hidden):,}")
    figure, axes = _figure(8, max(2.4, 1.3 + 0.24 * len(bars)))
    axes.barh(range(len(bars)), bars, color=BLUE)
    for i, (count, note) in enumerate(zip(bars, notes, strict=True)):
        axes.text(count, i, " " + note, va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), names)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)  # a dollar sign is a dollar sign
        text.set_fontfamily(fonts or ["DejaVu Sans"])
    axes.invert_yaxis()
    axes.set(title=title, xlabel="rows", xlim=(0, max(*bars, 1) * 1.18), ylim=(len(bars) - 0.4, -0.6))
    axes.set_ylabel("label" if fonts else "label id: its line in labels.txt, from 0\n(no installed font has the names)")
    _thousands(axes.xaxis)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)
    return fonts is not None


def draw_values(path: Path, values: Sequence[float], title: str) -> None:
    """Rows by the number that a regression predicts."""
    figure, axes = _figure(8, 4.5)
    axes.hist(values, bins=min(30, max(1, len(set(values)))), color=BLUE, edgecolor="white", lw=0.5)
    axes.set(title=title, xlabel="label", ylabel="rows")
    _thousands(axes.yaxis)
    axes.grid(axis="y", alpha=0.3)
    _save(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def _thousands(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
