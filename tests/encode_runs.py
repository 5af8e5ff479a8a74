"""Runs of `preprocess encode` on small inputs, with a vocabulary whose ids can be turned back into text."""

import signal
import string
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow.ipc

from preprocess.__main__ import main

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_lowercase + string.digits
MARKS = string.punctuation + "“”，。\u2028\u2029"
CHINESE = "标题好坏前后半价他说中文新闻内容一二三四五六七八九十"
TOKENS = [*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), *MARKS, *CHINESE]


def write_vocab(folder: Path) -> Path:
    path = folder / "vocab.txt"
    path.write_bytes("".join(f"{token}\n" for token in TOKENS).encode())
    return path


def decode(token_ids: list[int]) -> str:
    """`[CLS] ab [SEP]` for the ids of `ab`: pieces of a word are glued together."""
    return " ".join(TOKENS[i] for i in token_ids).replace(" ##", "")


@dataclass
class DataSet:
    """What a run wrote."""

    folder: Path

    def rows(self, part: str = "train") -> list[dict[str, Any]]:
        """Rows of either store, as JSON lines have them."""
        if (self.folder / f"{part}.arrow").exists():
            table = pyarrow.ipc.open_file(self.folder / f"{part}.arrow").read_all()
            return [{name: value for name, value in row.items() if (name, value) != ("weight", 1.0)}
                    for row in table.to_pylist()]  # fmt: skip
        data = (self.folder / f"{part}.jsonl").read_bytes()
        assert data == b"" or data.endswith(b"\n")
        return [orjson.loads(line) for line in data.split(b"\n")[:-1]]

    def texts(self, part: str = "train") -> list[str]:
        """Decoded rows without [CLS] and the last [SEP]."""
        return [decode(row["wordids"]).removeprefix("[CLS]").removesuffix("[SEP]").strip() for row in self.rows(part)]

    def labels(self, part: str = "train") -> list[Any]:
        """Names of the labels of the rows."""
        names = self.manifest["label_names"]
        return [names[row["label"]] for row in self.rows(part)]

    @property
    def rejects(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in (self.folder / "rejects.jsonl").read_bytes().split(b"\n")[:-1]]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """(line, reason) of the rejected rows."""
        return [(row["line"], row["reason"]) for row in self.rejects]

    @property
    def manifest(self) -> dict[str, Any]:
        values: dict[str, Any] = orjson.loads((self.folder / "manifest.json").read_bytes())
        return values

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    def check_counts(self) -> None:
        """Lines = kept + rejected, in the manifest and in the files."""
        manifest = self.manifest
        rejected = 0
        for group, read in manifest["read"].items():
            assert read["lines"] == read["kept"] + sum(read["rejected"].values())
            assert read["lines"] == sum(entry["lines"] for entry in manifest["inputs"][group])
            rejected += sum(read["rejected"].values())
        assert sum(read["kept"] for read in manifest["read"].values()) == sum(
            len(self.rows(part)) for part in manifest["parts"]
        )
        assert {part: len(self.rows(part)) for part in manifest["parts"]} == {
            part: counts["rows"] for part, counts in manifest["parts"].items()
        }
        assert len(self.rejects) == rejected


class InlineExecutor:
    """Stands in for the process pool where processes are not what a test is about: a tenth of the time."""

    def __init__(self, workers: int, context: Any, initializer: Callable[..., None], arguments: tuple[Any, ...]):
        previous = signal.getsignal(signal.SIGINT)
        initializer(*arguments)
        signal.signal(signal.SIGINT, previous)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        pass


def flags_of(folder: Path, out: str = "data") -> list[str]:
    """Flags that most runs share; flags behind them win."""
    vocab = folder / "vocab.txt"
    if not vocab.exists():
        write_vocab(folder)
    common = {"--vocab": vocab, "--out": folder / out, "--workers": 1, "--max_bad_rows": 1, "--val_fraction": 0}
    return [str(word) for pair in common.items() for word in pair]


def encode(
    folder: Path,
    content: str | bytes | list[Path],
    *flags: str,
    name: str = "in.tsv",
    out: str = "data",
    code: int = 0,
    processes: bool = False,
) -> DataSet:
    """Writes the content to `name` (or takes the files given), encodes it, and checks exit code and counts.

    The work is done by worker processes only where `processes` asks for them.
    """
    if isinstance(content, list):
        inputs = content
    else:
        inputs = [folder / name]
        inputs[0].write_bytes(content.encode() if isinstance(content, str) else content)
    command = ["encode", *map(str, inputs), *flags_of(folder, out), *flags]
    if processes:
        assert main(command) == code
    else:
        with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
            assert main(command) == code
    data = DataSet(folder / out)
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".encode")]
    if code == 0:
        data.check_counts()
    return data


def error_line(text: str) -> str:
    """The one error line in what a run wrote to stderr."""
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    return line
