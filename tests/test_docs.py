"""The documents say the same as the code."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from preprocess.__main__ import COMMANDS as PREPROCESS
from tfbert.cli import parse, parser_for

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    "README.md",
    "docs/cluster.md",
    "docs/data.md",
    "docs/augmentation.md",
    "docs/distillation.md",
    "docs/training.md",
    "docs/pretraining.md",
    "docs/recipes.md",
]


@pytest.fixture(scope="module")
def commands():
    import predict
    import train
    from tfbert import launch

    return {
        "python -m preprocess": PREPROCESS,
        "python train.py": train.commands(),
        "python predict.py": predict.commands(),
        "python -m tfbert.launch": launch.commands(),
    }


def test_settings_document_is_current(tmp_path):
    before = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    script = (ROOT / "docs/make_settings.py").read_text(encoding="utf-8")
    copy = tmp_path / "make_settings.py"
    copy.write_text(script.replace("Path(__file__).resolve().parents[1]", repr(str(ROOT))), encoding="utf-8")
    subprocess.run([sys.executable, str(copy)], check=True, cwd=ROOT, env={"PATH": "", "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "settings.md").read_text(encoding="utf-8") == before, "run `make docs`"


def documented_commands() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += [(document, line) for line in joined.split("\n") if line.startswith("python ")]
    return found


def test_there_are_documented_commands():
    assert len({document for document, _ in documented_commands()}) == len(DOCUMENTS)


@pytest.mark.parametrize(("document", "line"), documented_commands())
def test_documented_command_parses(commands, document, line):
    words = shlex.split(re.sub(r"\[(--[^\]]*)\]", r"\1", line), comments=True)
    prog = next(p for p in commands if line.startswith(p))
    name, *arguments = words[len(prog.split()) :]
    if "--" in arguments:  # what stands behind it is the command of another program
        arguments = arguments[: arguments.index("--")]
    config_class = commands[prog][name][0]
    parse(config_class, f"{prog} {name}", arguments)


@pytest.mark.parametrize("path", sorted((ROOT / "tfbert/presets").glob("*.yaml")), ids=lambda p: p.stem)
def test_preset_loads(path):
    from tfbert.recipes.classify import ClassifyConfig
    from tfbert.recipes.pretrain import PretrainConfig

    words = ["--data", "D", "--run_dir", "R", "--config", str(path)]
    if path.stem.startswith("pretrain"):
        config = parse(PretrainConfig, "train.py pretrain", words)
    else:
        config = parse(ClassifyConfig, "train.py classify", [*words, "--init", "I"])
    assert config.data == "D"


@pytest.mark.parametrize("path", sorted((ROOT / "tfbert/presets").glob("*.json")), ids=lambda p: p.stem)
def test_encoder_preset_loads(path):
    from tfbert.model.config import BertConfig

    assert BertConfig.load(path, vocab_size=100).vocab_size == 100


def test_every_flag_has_a_help_text(commands):
    for group in commands.values():
        for config_class, _, _ in group.values():
            for action in parser_for(config_class, "x")._actions:
                assert action.help, f"{config_class.__name__}.{action.dest}"
