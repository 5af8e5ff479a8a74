"""Commands of a grid: all combinations, in a stable order, that a shell reads as the same values."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from encode_runs import error_line

import train

GRID = {
    "hyperparameters": {"param1": ["a", "b c"], "param2": [1e-3, True]},
    "default_parameters": {"param3": 0.0},
}


def write(folder: Path, grid: Any) -> Path:
    path = folder / "grid.yaml"
    path.write_text(grid if isinstance(grid, str) else yaml.safe_dump(grid, sort_keys=False), encoding="utf-8")
    return path


def commands(
    folder: Path, grid: Any, capfd: pytest.CaptureFixture[str], *flags: str, run_dirs: bool = False
) -> list[list[str]]:
    more = [] if run_dirs else ["--no_run_dirs"]
    assert train.main(["sweep", str(write(folder, grid)), *more, *flags]) == 0
    return [shlex.split(line) for line in capfd.readouterr().out.splitlines()]


def test_every_combination_has_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Case 163."""
    start = ["python", "train.py", "pretrain"]
    assert commands(tmp_path, GRID, capfd) == [
        [*start, "--param1=a", "--param2=0.001", "--param3=0.0"],
        [*start, "--param1=a", "--param2", "--param3=0.0"],
        [*start, "--param1=b c", "--param2=0.001", "--param3=0.0"],
        [*start, "--param1=b c", "--param2", "--param3=0.0"],
    ]


@pytest.mark.parametrize(
    "value", ["b c", "it's", '"', "$HOME", "a;b", "*", "", "-5", "--x", "=", "`ls`", "a\\b", "中 文", "#", "null"]
)
def test_values_are_quoted(tmp_path: Path, capfd: pytest.CaptureFixture[str], value: str) -> None:
    """Case 163."""
    (words,) = commands(tmp_path, {"hyperparameters": {"key": [value]}}, capfd, "--init_cmd", "run it")
    assert words == ["run", "it", f"--key={value}"]


def test_kinds_of_values(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A switch that is off is said to be off; null leaves a flag out; a list is several words."""
    grid = """
    default_parameters: {up: true, down: false, none: null, number: 1e-3, zero: 0, many: [a, 2], word: 'yes'}
    """
    (words,) = commands(tmp_path, grid, capfd, "--init_cmd", "x")
    assert words == ["x", "--up", "--no_down", "--number=1e-3", "--zero=0", "--many", "a", "2", "--word=yes"]


@pytest.mark.parametrize("grid", [{"hyperparameters": {}}, {"hyperparameters": None}, {"default_parameters": {}}])
def test_nothing_to_vary_is_one_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], grid: Any) -> None:
    """Case 163."""
    assert commands(tmp_path, grid, capfd, "--init_cmd", "x") == [["x"]]


def test_the_example_of_document_e_has_all_four(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    grid = {"hyperparameters": {"param1": ["val1", "val2"], "param2": ["val1", "val2"]}}
    found = commands(tmp_path, grid, capfd, "--init_cmd", "deepspeed run_pretraining.py", "--job_name", "n")
    assert [words[2:] for words in found] == [
        [f"--param1={a}", f"--param2={b}"] for a in ("val1", "val2") for b in ("val1", "val2")
    ]


def test_every_run_has_a_folder_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    grid = {"hyperparameters": {"lr": [1, 2]}}
    found = commands(tmp_path, grid, capfd, "--job_name", "my job", "--runs", "out", run_dirs=True)
    assert [words[-1] for words in found] == ["--run_dir=out/my job-1", "--run_dir=out/my job-2"]
    named = {"hyperparameters": {"run_dir": ["a", "b"]}}
    assert [words[3:] for words in commands(tmp_path, named, capfd, run_dirs=True)] == [
        ["--run_dir=a"],
        ["--run_dir=b"],
    ]


def test_the_commands_are_understood(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tfbert.cli import parse
    from tfbert.recipes.pretrain import PretrainConfig

    grid = {
        "hyperparameters": {"lr": [5e-4, 1e-3], "do_validation": [False]},
        "default_parameters": {"data": "my data", "fp16": True, "finetune_time_markers": "0.5,0.9"},
    }
    for words, rate in zip(commands(tmp_path, grid, capfd, run_dirs=True), (5e-4, 1e-3), strict=True):
        config = parse(PretrainConfig, "train.py pretrain", words[3:])
        assert (config.lr, config.do_validation, config.data, config.fp16) == (rate, False, "my data", True)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"hyperparameters": {"a": [1]}, "default_parameters": {"a": 2}},
            "a name stands in one section. Received: a in",
        ),
        ({"hyperparameters": {"a": []}}, "has a list of values, at least one. Received: a: []"),
        ({"hyperparameters": {"a": 1}}, "has a list of values, at least one. Received: a: 1"),
        ({"hyperparameters": ["a"]}, "hyperparameters are names with values"),
        ({"hyperparameters": {1: ["a"]}}, "hyperparameters are names with values"),
        ({"default_parameters": {"a": {"b": 1}}}, "a value is a word, a number, true, false, null or a list"),
        (
            {"parameters": {}},
            "a grid has the sections hyperparameters and default_parameters. Received: ['parameters']",
        ),
        ("a: [", "a grid is a YAML file"),
        ("- a", "a grid has the sections"),
        ({"hyperparameters": {"a": [1, 2]}, "default_parameters": {"run_dir": "x"}}, "needs a folder of its own"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], grid: Any, message: str) -> None:
    assert train.main(["sweep", str(write(tmp_path, grid))]) == 2
    assert message in error_line(capfd.readouterr().err)


def test_a_file_that_is_missing_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train.main(["sweep", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: the grid cannot be read" in error_line(capfd.readouterr().err)


RUN = """
import pathlib, sys
values = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(values["run_dir"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "log.tsv").write_text("step\\tloss\\tval_loss\\n1\\t3.0\\t\\n2\\t2.5\\t" + values["lr"] + "\\n")
sys.exit(1 if values["lr"] == "0.5" else 0)
"""


def test_runs_take_place_one_after_the_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that fails does not keep the others from running, but the sweep says so."""
    script = tmp_path / "my run.py"
    script.write_text(RUN, encoding="utf-8")
    init = shlex.join([sys.executable, str(script)])
    words = ["--init_cmd", init, "--runs", str(tmp_path / "runs"), "--run"]
    grid = write(tmp_path, {"hyperparameters": {"lr": [0.25, 0.5, 0.75]}})
    assert train.main(["sweep", str(grid), *words]) == 1
    printed = capfd.readouterr()
    table = [line.split() for line in printed.out.splitlines()]
    assert table[0] == ["run", "lr", "end", "minutes", "result"]
    assert [row[:2] for row in table[1:]] == [["1", "0.25"], ["2", "0.5"], ["3", "0.75"]]
    assert "val_loss 0.25" in printed.out
    assert "exit code 1" in printed.out
    assert "error: 1 of 3 runs failed" in printed.err
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["grid-1", "grid-2", "grid-3"]
