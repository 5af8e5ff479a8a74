"""Writes docs/settings.md from the settings of every command: `make docs`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from preprocess.__main__ import COMMANDS as PREPROCESS
from tfbert.cli import parser_for

HEAD = """# Settings

Made by `make docs` from the settings themselves. Any flag may also stand in a YAML file given by `--config`: defaults,
then the file, then flags. `--print_config` shows what results. A switch `--name` has its contrary `--no_name`.
"""


def lines() -> Iterator[str]:
    import predict
    import train
    from tfbert import launch

    yield HEAD
    for prog, commands in (
        ("python -m preprocess", PREPROCESS),
        ("python train.py", train.commands()),
        ("python predict.py", predict.commands()),
        ("python -m tfbert.launch", launch.commands()),
    ):
        for name, (config_class, _, summary) in commands.items():
            yield f"## `{prog} {name}`\n\n{summary[0].upper()}{summary[1:]}.\n"
            yield "| setting | default | meaning |\n|---|---|---|"
            yield from rows(config_class, f"{prog} {name}")
            yield ""


def rows(config_class: type, prog: str) -> Iterator[str]:
    for action in parser_for(config_class, prog)._actions:
        if action.dest in ("help", "config", "print_config") or action.help == "==SUPPRESS==":
            continue
        flag = f"`--{action.dest}`" if action.option_strings else f"`{action.dest}` (positional)"
        default = "required" if action.required or not action.option_strings else _shown(action.default)
        text = str(action.help).replace("|", "\\|")
        yield f"| {flag} | {default} | {text} |"


def _shown(value: object) -> str:
    if value is None or value == []:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> None:
    path = Path(__file__).with_name("settings.md")
    path.write_text("\n".join(lines()), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
