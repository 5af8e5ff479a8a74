"""What the charts show."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preprocess import charts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would have been saved."""
    figures: list[Any] = []
    monkeypatch.setattr(charts, "_save", lambda figure, path: figures.append(figure))
    return figures


@pytest.mark.parametrize(
    "histogram",
    [
        {"3": 5},
        {"1": 1, "2": 2, "30": 4},
        {str(length): 10 for length in range(3, 400)},
        {"5": 1000, "10": 1000, "4096": 1, "99840": 2},
    ],
)
def test_every_row_is_in_the_chart_of_lengths(drawn: list[Any], histogram: dict[str, int]) -> None:
    charts.draw_lengths(Path("x.png"), histogram, 128, "title")
    axes = drawn[0].axes[0]
    bars = axes.patches
    assert sum(bar.get_height() for bar in bars) == sum(histogram.values())
    low, high = axes.get_xlim()
    assert all(low <= bar.get_x() <= high for bar in bars)
    assert len(bars) <= charts.MAX_BARS + 1


def test_a_bar_holds_the_lengths_it_stands_over(drawn: list[Any]) -> None:
    charts.draw_lengths(Path("x.png"), {"3": 5, "4": 7, "6": 1}, 4, "title")
    heights = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in drawn[0].axes[0].patches}
    assert {x: height for x, height in heights.items() if height} == {3: 5, 4: 7, 6: 1}
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert "max_len 4 cuts 7.69% of the rows" in legend


def test_few_very_long_rows_do_not_press_the_others_into_a_corner(drawn: list[Any]) -> None:
    charts.draw_lengths(Path("x.png"), {"5": 1000, "10": 1000, "99840": 2}, 128, "title")
    assert drawn[0].axes[0].get_xlim()[1] < 20


def test_labels_are_ranked_and_the_middle_of_many_is_left_out(drawn: list[Any]) -> None:
    counts = {f"n{i}": 1000 - i for i in range(100)}
    assert charts.draw_labels(Path("x.png"), counts, sum(counts.values()), "title")
    axes = drawn[0].axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == [*(f"n{i}" for i in range(40)), "…", *(f"n{i}" for i in range(80, 100))]
    notes = [text.get_text().strip() for text in axes.texts]
    assert notes[0].startswith("1,000 (")
    assert notes[40].startswith(f"40 labels between, with {sum(1000 - i for i in range(40, 80)):,}")


def test_names_without_a_font_become_ids(drawn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "FONTS", ())
    assert not charts.draw_labels(Path("x.png"), {"好评": 1, "差评": 3}, 4, "title")
    assert [text.get_text() for text in drawn[0].axes[0].get_yticklabels()] == ["id 1", "id 0"]


def test_an_installed_font_is_taken(drawn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A font that matplotlib brings along stands in for a Chinese one: it has signs that the default font lacks."""
    from matplotlib import font_manager

    def signs(name: str) -> set[int]:
        return set(font_manager.get_font(font_manager.findfont(name)).get_charmap())

    missing = sorted(signs("STIXGeneral") - signs("DejaVu Sans"))
    name = chr(next(code for code in missing if chr(code).isprintable() and code > 0x2000))
    monkeypatch.setattr(charts, "FONTS", ("No Such Font", "STIXGeneral"))
    assert charts.fonts_for([name, "a"]) == ["DejaVu Sans", "STIXGeneral"]
    assert charts.draw_labels(Path("x.png"), {name: 1}, 1, "title")
    assert charts.fonts_for(["plain"]) == ["DejaVu Sans"]
    assert charts.fonts_for([chr(0x10FFFF)]) is None


def test_signs_of_mathematics_in_names_are_ordinary_signs(tmp_path: Path) -> None:
    assert charts.draw_labels(tmp_path / "x.png", {"$x_{$": 3, "$a$ b": 2, "_hidden": 1}, 6, "title")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_commands_and_their_workers_stay_light(tmp_path: Path) -> None:
    """Every process that `encode` starts tells at its end which heavy packages it has imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, pathlib, sys\n"
        "heavy = {'tensorflow', 'keras', 'matplotlib', 'jieba', 'tokenizers'}\n"
        "def tell():\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.told').write_text(' '.join(heavy & set(sys.modules)))\n"
        "atexit.register(tell)\n"
        "import multiprocessing.util as util\n"  # a forked worker ends without atexit
        "util.register_after_fork(tell, lambda _: util.Finalize(None, tell, exitpriority=0))\n",
        encoding="utf-8",
    )
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", encoding="utf-8")
    command = [sys.executable, "-m", "preprocess", "encode", str(tmp_path / "in.txt"), "--text", "0", "--workers", "1"]
    command += ["--vocab", str(tmp_path / "vocab.txt"), "--out", str(tmp_path / "data")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    told = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.told")]
    assert len(told) >= 2
    assert set(told) == {""}
