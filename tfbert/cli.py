"""Command lines: a frozen dataclass becomes flags, YAML and help; errors become exit codes.

Exit codes: 0 done; 2 the user's input or settings are wrong, or the system refused a file (one line on stderr);
130 and 143 stopped by SIGINT and SIGTERM; 1 a fault of the product (traceback).
"""

import codecs
import dataclasses
import io
import os
import re
import signal
import sys
import threading
import types
import typing
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfbert.errors import ConfigError, TfbertError, WorkerError
from tfbert.progress import setup_logging

C = TypeVar("C")
Command = tuple[type, Callable[[Any], None], str]  # config class, function of a config, one line of help


_AGAIN_S = 0.05
_KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


class Terminated(BaseException):
    """SIGTERM, raised in the main thread so that `finally` blocks run."""


def option(default: Any = dataclasses.MISSING, **how: Any) -> Any:
    """A dataclass field with something to say about its flag: `positional` (a `str` is one word, a tuple one or more),
    `repeat`, `many`, or `also` (other names of the flag).
    """
    return dataclasses.field(default=default, metadata=how)


def run(
    prog: str, commands: Mapping[str, Command] | Callable[[], Mapping[str, Command]], argv: Sequence[str] | None = None
) -> int:
    """Parses `prog COMMAND ...`, runs the command's function, returns the exit code.

    Args:
        prog: how the program is called.
        commands: by name; or a function that makes them, where that may fail (it imports TensorFlow).
        argv: the words after the program's name; None takes those of the process.
    """
    if argv is None:
        _use_utf8()
        argv = sys.argv[1:]
    argv = list(argv)
    _escape_output()
    setup_logging()
    previous, hook = _raise_on_signals(), sys.unraisablehook
    sys.unraisablehook = partial(_send_again, hook)
    try:
        with signals_wait():
            if callable(commands):
                commands = commands()
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
    except BrokenPipeError:  # whoever read the output had enough; the work itself is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}.")
    except (KeyboardInterrupt, Terminated, Exception) as error:
        number = _signal_of(error)
        if number is None:
            raise
        told = f" (told as {type(error).__name__}: {' '.join(str(error).split())})" * isinstance(error, Exception)
        sys.stderr.write(f"stopped by {number.name}{told}\n")
        return 128 + number
    finally:
        sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def signals_wait() -> Iterator[None]:
    """SIGINT and SIGTERM that come while something is imported count behind it: C code that imports (NumPy,
    TensorFlow) makes another error of the exception that they raise.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _use_utf8() -> None:
    """Starts this process again in Python's UTF-8 mode where the locale knows ASCII alone.

    File names, column names and label names on the command line are UTF-8 there as well.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, sys.orig_argv)


def _escape_output() -> None:
    """A name that the terminal cannot show is shown escaped, and does not end a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str) -> int:
    sys.stderr.write("error: " + " ".join(message.split("\n")) + "\n")
    return 2


def _signal_of(error: BaseException) -> signal.Signals | None:
    """Of a signal's exception; also of what C code made of one, which may be any error."""
    name = type(error).__name__
    if isinstance(error, Exception):
        replaced = re.search(r"REPLACED BY (\w+)", str(error))
        name = replaced[1] if replaced else name
    return {"Terminated": signal.SIGTERM, "KeyboardInterrupt": signal.SIGINT}.get(name, _stopping)


_stopping: signal.Signals | None = None  # whose exception was raised in this run


def _raise_on_signals() -> dict[signal.Signals, Any]:
    """SIGTERM raises, and SIGINT unless it is ignored or another's; returns the handlers of before."""

    def handler(number: int, frame: types.FrameType | None) -> None:
        global _stopping
        _stopping = signal.Signals(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    global _stopping
    _stopping = None
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        if number == signal.SIGTERM or signal.getsignal(number) is signal.default_int_handler:
            with suppress(ValueError):  # not the main thread: the caller keeps its own handling
                before[number] = signal.signal(number, handler)
    return before


def _send_again(hook: Callable[[Any], object], lost: Any) -> None:
    """A signal whose exception Python could not pass on, because a `__del__` was running, comes once more."""
    number = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(lost.exc_type)
    if number is None:
        hook(lost)
        return
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


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

    docs: dict[str, str] = {}
    for owner in reversed(config_class.__mro__[:-1]):  # each class describes its own fields
        docs |= {p.arg_name: p.description or "" for p in parse_from_object(owner).params}
    summary = (config_class.__doc__ or "").strip().split("\n\n")[0]
    parser = ArgumentParser(prog=prog, description=summary, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file with values for any of the flags below")
    hints = typing.get_type_hints(config_class)
    # what must be given comes first
    for field in sorted(dataclasses.fields(config_class), key=lambda f: f.default is not dataclasses.MISSING):
        kind, how = hints[field.name], field.metadata
        default: Any = field.default
        required = default is dataclasses.MISSING
        name = field.name if how.get("positional") else f"--{field.name}"
        arguments: dict[str, Any] = {"help": " ".join(docs.get(field.name, "").split())}
        if how.get("positional"):
            arguments |= {"type": str} if kind is str else {"nargs": "+", "type": str}
        elif kind is bool or kind == (bool | None):
            arguments |= {"action": ActionYesNo(yes_prefix="", no_prefix="no_"), "default": default}
        elif how.get("many"):
            arguments |= {"nargs": "+", "type": str, "default": list(default)}
        elif how.get("repeat"):
            arguments |= {"action": "append", "type": _Word(several=True), "default": list(default)}
        else:
            kind = _Word() if kind in (str, str | None) else kind
            arguments |= {"type": kind} | ({"required": True} if required else {"default": default})
        parser.add_argument(name, *(f"--{other}" for other in how.get("also", ())), **arguments)
    return parser


class _Word:
    """Type of a text flag: `null` on the command line is a word like any other; a number in a YAML file is one too.

    Args:
        several: take a list as well, all values of a repeated flag in a YAML file.
    """

    def __init__(self, several: bool = False):
        self._several = several

    def __call__(self, value: object) -> str | list[str] | None:
        if isinstance(value, list) and self._several:
            return [str(item) for item in value]
        if isinstance(value, list | dict):
            raise ValueError("one value is wanted, not a list or an object")
        return None if value is None else str(value)

    def __repr__(self) -> str:
        return "str"


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
        if (
            "item assignment" in message or "is not iterable" in message
        ):  # what the parser says of one value where it wants several
            message = "A setting of several values stands in a YAML file as a list, such as `val: [dev.tsv]`"
        raise ConfigError(
            f"{_told(message, typing.get_type_hints(config_class))}. `{prog} --help` lists the flags."
        ) from None
    chosen = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        value = values[field.name]
        if value is None and field.metadata.get("repeat"):
            value = []
        if isinstance(value, str) and field.metadata.get("repeat"):
            value = [value]  # one value of a setting that may have several, in a YAML file
        chosen[field.name] = tuple(value) if isinstance(value, list) else value
    return config_class(**chosen)


def _told(message: str, kinds: Mapping[str, Any]) -> str:
    """What the parser says of a value of the wrong type, in our words."""
    found = re.match(r'Parser key "(\w+)": ', message)
    if found is None:
        return message
    name = found[1]
    received = re.match(r".*(?:Given|Got) value: ?(.*)", message)  # the last of several
    kind = next((word for kind, word in _KINDS.items() if kinds.get(name) in (kind, kind | None)), None)
    if kind is None or received is None:
        return f"--{name}: {message.removeprefix(found[0])}"
    return f"--{name} is {kind}. Received: {received[1] or 'nothing'}"


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


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras 3 on it, without TensorFlow's start-up messages.

    Raises:
        ConfigError: the environment asks for legacy Keras or another backend.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"):
        raise ConfigError("tfbert runs on Keras 3. Received: TF_USE_LEGACY_KERAS=1. Unset it.")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise ConfigError(f"Training needs KERAS_BACKEND=tensorflow. Received: {os.environ['KERAS_BACKEND']}.")
    no_gpu = not any(Path("/dev").glob("nvidia*"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if no_gpu else "1")  # without a GPU, "no CUDA" is no error
    if "tensorflow" in sys.modules:
        return
    sys.stderr.flush()
    kept = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silent, 2)  # the messages come from C++ before its own logging is set up
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silent)
