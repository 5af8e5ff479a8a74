"""Programs run in turn, and what becomes of their figures."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.job import Case, Job, Program, Score, run_case
from benchmarks.measure import ProgramError, run
from benchmarks.results import CaseResult, JobResult, table, write


def says(told: dict, before: str = "") -> list[str]:
    return ["-c", f"{before}\nprint('noise')\nprint({json.dumps(json.dumps(told))})"]


def score(name: str, rate: float, **more) -> Score:
    return Score(name, rate, rate / 2, rate * 20, 3.0, 2.5, 150.0, 1.25, **more)


def result(cases: list[CaseResult]) -> JobResult:
    return JobResult("stream", "Rows to batches", "rows_per_s", {"processor": "P, 2 cores", "repetitions": 3}, cases)


# ---------------------------------------------------------------------------------------------------------- measuring


def test_a_program_is_measured_with_its_children():
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "x = bytearray(80_000_000); import time; sum(range(10**7)); time.sleep(0.6)"])
"""
    measured = run([sys.executable, *says({"rows": 7}, code)])
    assert measured.told == {"rows": 7}
    assert measured.peak_mb > 80
    assert measured.cpu_s > 0.05
    assert measured.wall_s >= 0.6


def test_a_failed_program_is_told_with_its_words():
    with pytest.raises(ProgramError, match="exit code 1(.|\n)*no such thing"):
        run([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_programs_are_run_in_turn_and_held_against_ours():
    fast = {"rows": 100, "tokens": 900, "work_s": 2.0, "work_cpu_s": 4.0, "first_s": 0.5, "versions": {"a": "1"}}
    slow = fast | {"work_s": 8.0, "work_cpu_s": 10.0}
    programs = [
        Program("tfbert", "ours", says(fast), target=2.0),
        Program("peer", "ours", says(slow), target=3.0),
        Program("better peer", "ours", says(slow | {"work_s": 4.0})),
        Program("tfbert, other", "ours", says(fast | {"work_s": 1.0})),
        Program("peer of the other", "ours", says(slow), against="tfbert, other"),
    ]
    case = Case("titles", "short", 0, programs, lambda runs: {"peer": f"{len(runs)} runs"})
    scores = {one.name: one for one in run_case(Job("j", "J", "rows_per_s", [case]), case, 1)}
    assert scores["tfbert"].rows_per_s == 50.0
    assert (scores["tfbert"].rows_per_cpu_s, scores["tfbert"].tokens_per_s) == (25.0, 450.0)
    assert scores["tfbert"].factor == 2.0  # against the best peer
    assert scores["peer"].factor == 4.0
    assert scores["peer of the other"].factor == 8.0
    assert scores["tfbert, other"].factor is None
    assert scores["peer"].agreement == "5 runs"
    assert scores["peer"].versions == {"a": "1"}


def test_the_median_of_the_repetitions_counts(tmp_path: Path):
    counter = tmp_path / "n"
    code = f"""
import pathlib, json
path = pathlib.Path({str(counter)!r})
n = int(path.read_text()) if path.exists() else 0
path.write_text(str(n + 1))
print(json.dumps({{"rows": [10, 90, 20][n], "work_s": 1.0, "work_cpu_s": 1.0}}))
"""
    case = Case("c", "", 0, [Program("tfbert", "ours", ["-c", code])])
    assert run_case(Job("j", "J", "rows_per_s", [case]), case, 3)[0].rows_per_s == 20


def test_peers_that_fail_or_lack_their_packages_are_left_out(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setitem(environments.PACKAGES, "none", ("no-such-package>=1",))
    told = {"rows": 1, "work_s": 1.0, "work_cpu_s": 1.0}
    programs = [
        Program("tfbert", "ours", says(told)),
        Program("broken", "ours", ["-c", "1/0"]),
        Program("absent", "none", says(told)),
    ]
    case, said = Case("c", "", 0, programs), []
    assert [one.name for one in run_case(Job("j", "J", "rows_per_s", [case]), case, 2, said.append)] == ["tfbert"]
    assert len(said) == 2
    assert "absent is left out" in said[0]
    assert "ZeroDivisionError" in said[1]


def test_our_own_failure_ends_the_bench():
    case = Case("c", "", 0, [Program("tfbert, bf16", "ours", ["-c", "1/0"])])
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        run_case(Job("j", "J", "rows_per_s", [case]), case, 1)


def test_without_a_word_the_whole_process_counts():
    case = Case("c", "", 1000, [Program("tfbert", "ours", ["-c", "sum(range(10**6))"])])
    (one,) = run_case(Job("j", "J", "rows_per_s", [case]), case, 1)
    assert one.rows_per_s == pytest.approx(1000 / one.wall_s)
    assert one.tokens_per_s is None


# ---------------------------------------------------------------------------------------------------- table and chart


def test_the_table():
    scores = [
        score("tfbert", 2000.0, target=2.0, factor=2.5, versions={"numpy": "2.4"}),
        score("peer", 800.0, target=3.0, factor=2.5, agreement="same rows", versions={"torch": "2.13"}),
        Score("old", 12.34, 6.0, None, 1, 1, 9, None, factor=162.1),
    ]
    text = table(result([CaseResult("titles", "max_len 64", scores)]))
    lines = text.splitlines()
    assert lines[0] == "# Rows to batches"
    assert "P, 2 cores; 3 repetitions; numpy 2.4; torch 2.13." in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| titles")]
    assert rows[0] == [
        "titles, max_len 64", "tfbert", "2,000", "1,000", "40,000", "1.2", "3.0", "2.5", "150", "2.50", "2: met", "",
    ]  # fmt: skip
    assert rows[1][-3:] == ["2.50", "3: missed", "same rows"]
    assert rows[2][2:] == ["12.3", "6.0", "", "", "1.0", "1.0", "9.0", "162.10", "", ""]
    assert all(len(row) == len(lines[6].strip("|").split("|")) for row in rows)


def test_files_of_a_job(tmp_path: Path):
    cases = [CaseResult(name, "x", [score("tfbert", 2.0), score("peer", 1.0)]) for name in ("titles", "reviews")]
    write(tmp_path / "new", result(cases))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["stream.json", "stream.md", "stream.png"]
    written = json.loads((tmp_path / "new/stream.json").read_text())
    assert [case["scores"][1]["rows_per_s"] for case in written["cases"]] == [1.0, 1.0]
    assert written["about"]["processor"] == "P, 2 cores"
    assert (tmp_path / "new/stream.png").read_bytes()[:4] == b"\x89PNG"
