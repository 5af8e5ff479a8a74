"""Every test that docs/guarantees.md names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", TEXT)))


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    path, _, function = named.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert function in names if function else any(name.startswith("test") for name in names)


def test_every_promise_names_a_test() -> None:
    rows = [line for line in TEXT.split("\n") if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    assert not [row for row in rows if "`tests/" not in row]


def test_the_soak_saw_a_hundred_faults_and_no_difference() -> None:
    page = (ROOT / "docs/soak.md").read_text(encoding="utf-8")
    found = re.search(r"\* (\d+) faults in \d+ rounds", page)
    assert found is not None
    assert int(found[1]) >= 100
    assert "no loss, no difference" in page
    lines = (ROOT / "docs/soak.jsonl").read_text(encoding="utf-8").split("\n")
    assert sum('"fault":' in line for line in lines) == int(found[1])
    assert not [line for line in lines if "difference" in line]
