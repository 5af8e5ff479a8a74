"""Command lines: a frozen dataclass becomes flags, YAML and help; errors become exit codes.

Exit codes: 0 done; 2 the user's input or settings are wrong, or the system refused a file (one line on stderr);
130 and 143 stopped by SIGINT and SIGTERM; 1 a fault of the product (traceback).
"""

import dataclasses
import signal
import sys
import types
import typing
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tfbert.errors import ConfigError, TfbertError, WorkerError
from tfbert.progress import setup_logging

C = TypeVar("C")
Command = tuple[type, Callable[[Any], None], str]  # config class, function of a config, one line of help


class Terminated(BaseException):
    """SIGTERM, raised in the main thread so that `finally` blocks run."""


def option(default: Any = dataclasses.MISSING, **how: Any) -> Any:
    """A dataclass field with something to say about its flag: `positional`, `repeat` or `many`."""
    return dataclasses.field(default=default, metadata=how)


def run(prog: str, commands: Mapping[str, Command], argv: Sequence[str] | None = None) -> int:
    """Parses `prog COMMAND ...`, runs the command's function, returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    setup_logging()
    previous = _raise_on_sigterm()
    try:
        if not argv or argv[0] in ("-h", "--help"):
            _print_commands(prog, commands)
            return 0 if argv else 2
        if argv[0] not in commands:
            raise ConfigError(f"A command is one of {', '.join(commands)}. Received: {argv[0]!r}.")
        config_class, function, _ = commands[argv[0]]
        function(parse(config_class, f"{prog} {argv[0]}", argv[1:]))
        return 0
    except WorkerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except TfbertError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}.")
    except KeyboardInterrupt:
        sys.stderr.write("stopped by SIGINT\n")
        return 130
    except Terminated:
        sys.stderr.write("stopped by SIGTERM\n")
        return 143
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _fail(message: str) -> int:
    sys.stderr.write("error: " + " ".join(message.split("\n")) + "\n")
    return 2


def _raise_on_sigterm() -> Any:
    def handler(number: int, frame: types.FrameType | None) -> None:
        raise Terminated

    try:
        return signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not the main thread: the caller keeps its own handling
        return None


def _print_commands(prog: str, commands: Mapping[str, Command]) -> None:
    width = max(map(len, commands))
    lines = [f"usage: {prog} COMMAND ...", "", "commands:"]
    lines += [f"  {name:{width}}  {help_line}" for name, (_, _, help_line) in commands.items()]
    lines += ["", f"`{prog} COMMAND --help` lists the flags of a command."]
    sys.stdout.write("\n".join(lines) + "\n")


def parser_for(config_class: type, prog: str) -> Any:
    """A jsonargparse parser with one flag a field; the help is the string below the field."""
    from docstring_parser import parse_from_object
    from jsonargparse import ActionYesNo, ArgumentParser

    docs = {p.arg_name: p.description or "" for p in parse_from_object(config_class).params}
    summary = (config_class.__doc__ or "").strip().split("\n\n")[0]
    parser = ArgumentParser(prog=prog, description=summary, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file with values for any of the flags below")
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        kind, how = hints[field.name], field.metadata
        required = field.default is dataclasses.MISSING
        name = field.name if how.get("positional") else f"--{field.name}"
        arguments: dict[str, Any] = {"help": " ".join(docs.get(field.name, "").split())}
        if how.get("positional"):
            arguments |= {"nargs": "+", "type": str}
        elif kind is bool or kind == (bool | None):
            arguments |= {"action": ActionYesNo(yes_prefix="", no_prefix="no_"), "default": field.default}
        elif how.get("many"):
            arguments |= {"nargs": "+", "type": str, "default": list(field.default)}
        elif how.get("repeat"):
            arguments |= {"action": "append", "type": str, "default": list(field.default)}
        else:
            arguments |= {"type": kind} | ({"required": True} if required else {"default": field.default})
        parser.add_argument(name, **arguments)
    return parser


def parse(config_class: type[C], prog: str, argv: Sequence[str]) -> C:
    """Defaults, then `--config` files, then flags, whatever their order.

    Raises:
        ConfigError: a flag is unknown, missing or of the wrong type.
    """
    parser = parser_for(config_class, prog)
    try:
        values = parser.parse_args(_config_first(argv))
    except (ArgumentError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{message}. `{prog} --help` lists the flags.") from None
    chosen = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        value = values[field.name]
        chosen[field.name] = tuple(value) if isinstance(value, list) else value
    return config_class(**chosen)


def _config_first(argv: Sequence[str]) -> list[str]:
    files: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            files += [word, next(words, "")]
        elif word.startswith("--config="):
            files.append(word)
        else:
            rest.append(word)
    return files + rest
