"""Command lines: flags, files, errors and exit codes."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tfbert.cli import Command, option, run
from tfbert.errors import DataError, WorkerError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Config:
    """What the tests set."""

    inputs: tuple[str, ...] = option(positional=True)
    """Files."""
    out: str = option()
    """Where to."""
    name: str | None = None
    """A word."""
    rate: float = 1e-3
    """A number."""
    many: tuple[str, ...] = option((), many=True)
    """Words."""
    each: tuple[str, ...] = option((), repeat=True)
    """Words, one a flag."""
    flag: bool = False
    """Yes or no."""
    header: bool | None = None
    """Yes, no or as it comes."""
    count: int | None = None
    """A whole number, or as it comes."""


def parsed(*words: str) -> Config:
    seen: list[Config] = []
    assert run("prog", {"go": (Config, seen.append, "goes")}, ["go", *words]) == 0
    return seen[0]


def test_flags_of_every_kind() -> None:
    config = parsed(
        "a", "b", "--out", "o", "--rate", "2e-5", "--each", "x", "--each", "y z", "--flag", "--no_header",
        "--many", "1", "2",
    )  # fmt: skip
    assert config == Config(("a", "b"), "o", None, 2e-5, ("1", "2"), ("x", "y z"), True, False)
    assert parsed("a", "--out", "o") == Config(("a",), "o")


@pytest.mark.parametrize(
    "word", ["null", "~", "None", "1.0", "true", "[a", "{a: b}", "- a", "a: b", "", " ", "1e3", "#x", "标题"]
)
def test_words_are_taken_as_they_are(word: str) -> None:
    assert parsed("a", "--out", word, "--name", word) == Config(("a",), word, word)


def test_a_file_gives_defaults_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("out: 5\nname: null\nrate: 1e-4\neach: [x]\nheader: true\ninputs: [a]\n", encoding="utf-8")
    assert parsed("--config", str(path)) == Config(("a",), "5", None, 1e-4, (), ("x",), False, True)
    assert parsed("b", "--rate", "2", f"--config={path}", "--name", "n").rate == 2
    assert parsed("b", "--config", str(path)).inputs == ("b",)


@pytest.mark.parametrize(
    "words",
    [["a"], ["--out", "o"], *(["a", "--out", "o", *wrong] for wrong in (["--rate", "x"], ["--nope"], ["--flag=3"]))],
)  # fmt: skip
def test_wrong_flags_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run("prog", {"go": (Config, print, "goes")}, ["go", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "prog go --help" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "x"], "--rate is a number. Received: x."),
        (["--count", "1e3"], "--count is a whole number. Received: 1e3."),
        (["--count="], "--count is a whole number. Received: nothing."),
        (["--config", "nowhere.yaml"], "--config: File does not exist: "),
    ],
)
def test_a_value_of_the_wrong_type(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert run("prog", {"go": (Config, print, "goes")}, ["go", "a", "--out", "o", *words]) == 2
    assert message in capsys.readouterr().err


def test_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    commands: dict[str, Command] = {"go": (Config, print, "goes somewhere")}
    assert run("prog", commands, []) == 2
    assert run("prog", commands, ["--help"]) == 0
    assert capsys.readouterr().out.count("goes somewhere") == 2
    assert run("prog", commands, ["went"]) == 2
    assert "A command is one of go. Received: 'went'." in capsys.readouterr().err


def raising(error: BaseException) -> dict[str, Command]:
    def function(_: Config) -> None:
        raise error

    return {"go": (Config, function, "")}


@pytest.mark.parametrize(
    "error, code, shown",
    [
        (DataError("f:1: wrong\nin two lines"), 2, "error: f:1: wrong in two lines\n"),
        (OSError(28, "No space left on device", "/disk"), 2, "error: /disk: No space left on device.\n"),
        (WorkerError("Traceback ...\nhere"), 1, "Traceback ...\nhere\n"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT\n"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, shown: str) -> None:
    assert run("prog", raising(error), ["go", "a", "--out", "o"]) == code
    assert capsys.readouterr().err == shown


def test_faults_of_the_product_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run("prog", raising(ZeroDivisionError()), ["go", "a", "--out", "o"])


def test_sigterm_unwinds_and_the_handler_is_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    unwound = []

    def function(_: Config) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            unwound.append(True)

    before = signal.getsignal(signal.SIGTERM)
    assert run("prog", {"go": (Config, function, "")}, ["go", "a", "--out", "o"]) == 143
    assert (unwound, capsys.readouterr().err) == ([True], "stopped by SIGTERM\n")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "environment, shown",
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "('标题',) 文 utf-8\n".encode()),
        ({"PYTHONIOENCODING": "ascii"}, b"('\\u6807\\u9898',) \\u6587 utf-8\n"),
    ],
)
def test_names_survive_any_locale(tmp_path: Path, environment: dict[str, str], shown: bytes) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, test_cli\nfrom tfbert.cli import run\n"
        "def go(config): print(config.inputs, config.out, sys.getfilesystemencoding())\n"
        "sys.exit(run('prog', {'go': (test_cli.Config, go, '')}))\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, str(script), "go", "标题", "--out", "文"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path} | environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_destructor_is_not_lost(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    """Python only tells of an exception there, and goes on."""

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def function(_: Config) -> None:
        Dropped()
        threading.Event().wait(10)
        raise AssertionError

    assert run("prog", {"go": (Config, function, "")}, ["go", "a", "--out", "o"]) == code
    assert capsys.readouterr().err == f"stopped by {number.name}\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_commands_are_imported_counts_behind(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    """Half of NumPy is imported when it comes: its C code would tell of another error."""
    imported: list[str] = []

    def commands() -> dict[str, Command]:
        signal.raise_signal(number)
        imported.append("all")
        return raising(AssertionError())

    assert run("prog", commands, ["go"]) == code
    assert imported == ["all"]
    assert capsys.readouterr().err == f"stopped by {number.name}\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_others_make_of_a_signal_is_a_stop(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    """TensorFlow's C++ takes the exception and fails in another way; a fault of the next run is one again."""
    words = ["go", "a", "--out", "o"]
    replaced = RuntimeError("pybind11: ORIGINAL X REPLACED BY Terminated: <EMPTY MESSAGE>")
    assert run("prog", raising(replaced), words) == 143
    assert capsys.readouterr().err.startswith("stopped by SIGTERM (told as RuntimeError: pybind11")

    def function(_: Config) -> None:
        try:
            signal.raise_signal(number)
        except BaseException:  # noqa: BLE001
            raise TypeError("got None") from None

    assert run("prog", {"go": (Config, function, "")}, words) == code
    assert capsys.readouterr().err == f"stopped by {number.name} (told as TypeError: got None)\n"
    with pytest.raises(ZeroDivisionError):
        run("prog", raising(ZeroDivisionError()), words)
