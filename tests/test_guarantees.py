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
