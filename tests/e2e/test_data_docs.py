"""docs/data.md says what is so."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from preprocess.__main__ import COMMANDS
from tfbert.data.manifest import Manifest
from tfbert.text.clean import RULES, STANDARD, Cleaner

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def table(text: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_examples_work(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))
    assert all(f"preprocess {command}" in script for command in ("vocab", "segment", "encode", "inspect"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "DATA").iterdir()} == {
        "train.jsonl", "train.idx", "val.jsonl", "val.idx", "labels.txt", "vocab.txt", "rejects.jsonl", "manifest.json",
        "train_lengths.png", "train_labels.png",
    }  # fmt: skip
    assert (tmp_path / "words.tsv").read_text(encoding="utf-8").splitlines()[1].startswith("1\t房间 很 干净")
    assert "房 间" in done.stdout


def test_every_cleaning_rule_with_a_true_example() -> None:
    rows = table(section("Cleaning rules"))
    assert [row[0].strip("`") for row in rows] == list(RULES)
    for name, _, before, after in rows:
        if name == "`simplified`":
            pytest.importorskip("opencc")
        assert Cleaner(name.strip("`"))(ast.literal_eval(before.strip("`"))) == ast.literal_eval(after.strip("`")), name
    assert set(RULES) - set(STANDARD) == {"url_remove", "email_remove", "simplified"}


@pytest.mark.parametrize("command", ["vocab", "segment", "encode", "inspect"])
def test_every_flag(command: str) -> None:
    told = set(re.findall(r"`(?:--)?(\w+)`", section(command)))
    assert {field.name for field in dataclasses.fields(COMMANDS[command][0])} <= told


def test_every_field_of_the_manifest() -> None:
    told = set(re.findall(r"`(\w+)`", section("The manifest")))
    assert {field.name for field in dataclasses.fields(Manifest)} <= told


def test_every_reason_for_a_rejected_row() -> None:
    told = set(re.findall(r"`([a-z ]+)`", "".join(row[0] for row in table(section("Rejected rows")))))
    code = "".join(
        path.read_text(encoding="utf-8") for path in [*ROOT.glob("tfbert/data/*.py"), *ROOT.glob("preprocess/*.py")]
    )
    raised = set(re.findall(r'RowError\(\s*"([a-z ]+)"', code)) | {"duplicate", "conflict"}
    assert raised - {"not a text"} == told
