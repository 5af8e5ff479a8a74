"""Damaged and hostile files, from a seed: for the fuzz tests, and for as long as one likes in the soak.

A file is either written from nasty pieces (`hostile`), or a good one is damaged (`damaged`): bytes flipped, cut,
doubled, moved, filled with NULs, numbers made enormous, JSON nested deeper than any stack.
"""

import io
import os
import random
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

PIECES = [
    b"a", b"word", b"0", b"1", b"-1", b"1e999", b"nan", b"null", b"true", b"\t", b"\t\t", b"\n", b"\r",
    b"\r\n", b"\n\n",
    b'"', b"'", b",", b";", b"{", b"}", b"[", b"]", b":", b"\\", b"\\u0000", b"\\ud800", b"\0", b"\x0b\x0c\x1c",
    b"\x1a",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", "标题".encode(), "\u2028\u2029\u0085".encode(),
    "é\u0301🫨\u200d".encode(), b"../../x", b"/etc/passwd", b"=", b"!=", b"[SEP]", b"9" * 400, b"-" + b"9" * 5000,
    b"x" * 3000, b'{"text": "a", "label": "0"}', b'{"text": ["a"], "label": {"b": 1}}', b'{"text": 1e400}',
]  # fmt: skip
LARGE = [
    lambda draw: b"y" * draw.choice([1 << 16, 1 << 20]),
    lambda draw: draw.choice([b"[", b'{"a":', b"- ", b"(", b'"']) * draw.choice([500, 5000, 100_000]),
    lambda draw: b"\n" * 20_000,
    lambda draw: b"\t" * 100_000,
    lambda draw: "\u0300".encode() * 50_000,
]
NUMBERS = [
    b"0",
    b"-1",
    b"1",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551616",
    b"1e308",
    b"0.5",
    b"9" * 30,
]


def rounds(usual: int) -> range:
    """The seeds of a fuzz test: `usual` ones, or as many as FUZZ_ROUNDS says, from FUZZ_SEED on."""
    first = int(os.environ.get("FUZZ_SEED", "0")) * 1_000_000
    return range(first, first + int(os.environ.get("FUZZ_ROUNDS", str(usual))))


def hostile(draw: random.Random, pieces: Sequence[bytes] = PIECES, most: int = 60) -> bytes:
    """Content made of pieces that readers stumble over; one in ten holds something large."""
    content = [draw.choice(pieces) for _ in range(draw.randrange(most))]
    if draw.random() < 0.1:
        content.insert(draw.randrange(len(content) + 1), draw.choice(LARGE)(draw))
    return b"".join(content)


def damaged(draw: random.Random, data: bytes, times: int = 3) -> bytes:
    """The data with one or a few things done to them; never the same data."""
    changed = data
    while changed == data:
        for _ in range(draw.randint(1, times)):
            changed = draw.choice(_DAMAGES)(draw, changed)
    return changed


def _spot(draw: random.Random, data: bytes) -> int:
    """A position, as often near the beginning, where headers are, as anywhere."""
    return draw.randrange(min(len(data), 64) + 1 if draw.random() < 0.3 else len(data) + 1)


def _flip(draw: random.Random, data: bytes) -> bytes:
    at = min(_spot(draw, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :] if data else b"\xff"


def _replace(draw: random.Random, data: bytes) -> bytes:
    at, piece = _spot(draw, data), draw.choice(PIECES)
    return data[:at] + piece + data[at + len(piece) :]


def _insert(draw: random.Random, data: bytes) -> bytes:
    at = _spot(draw, data)
    return data[:at] + draw.choice(PIECES) + data[at:]


def _insert_large(draw: random.Random, data: bytes) -> bytes:
    at = _spot(draw, data)
    return data[:at] + (draw.choice(LARGE)(draw) if draw.random() < 0.2 else draw.choice(PIECES)) + data[at:]


def _cut_end(draw: random.Random, data: bytes) -> bytes:
    return data[: _spot(draw, data)]


def _cut_out(draw: random.Random, data: bytes) -> bytes:
    a, b = sorted((_spot(draw, data), _spot(draw, data)))
    return data[:a] + data[b:]


def _double(draw: random.Random, data: bytes) -> bytes:
    a, b = sorted((_spot(draw, data), _spot(draw, data)))
    return data[:b] + data[a:]


def _fill(draw: random.Random, data: bytes) -> bytes:
    """What a file system leaves of a block that was never written."""
    a = _spot(draw, data)
    b = min(a + draw.choice([1, 8, 512]), len(data))
    return data[:a] + draw.choice([b"\0", b"\xff", b" "]) * (b - a) + data[b:]


def _number(draw: random.Random, data: bytes) -> bytes:
    """A number written in the data becomes another."""
    found = list(re.finditer(rb"\d+", data[: 1 << 16]))
    if not found:
        return _binary_number(draw, data)
    match = draw.choice(found)
    return data[: match.start()] + draw.choice(NUMBERS) + data[match.end() :]


def _binary_number(draw: random.Random, data: bytes) -> bytes:
    """Eight or four bytes at an aligned place become an enormous or a negative number."""
    width = draw.choice([4, 8])
    at = _spot(draw, data) // width * width
    value = draw.choice([0, 1, -1, 1 << 31, 1 << 40, (1 << 62) + 1]) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def _word(draw: random.Random, data: bytes) -> bytes:
    """A JSON or YAML word becomes one of another kind."""
    found = list(re.finditer(rb'"[^"]{0,40}"|\btrue\b|\bnull\b|\b[a-z_]+\b|\[|\{', data[: 1 << 16]))
    if not found:
        return _insert(draw, data)
    match = draw.choice(found)
    other = [
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"0",
        b"-1",
        b'"x"',
        b"true",
        b"[1]",
        b'"../../x"',
        b"&a [*a]",
        b"!!python/x",
    ]
    return data[: match.start()] + draw.choice(other) + data[match.end() :]


_DAMAGES: list[Callable[[random.Random, bytes], bytes]] = [
    _flip, _flip, _replace, _insert, _insert_large, _cut_end, _cut_out, _double, _fill, _number, _number,
    _binary_number, _word, _word,
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    error: str

    def check(self, *names: str) -> None:
        """Done, or refused with one line that names one of the files or settings."""
        assert self.code in (0, 2), self
        assert "Traceback" not in self.error, self
        if self.code == 2:
            lines = [line for line in self.error.split("\n") if line.startswith("error: ")]
            assert len(lines) == 1, self
            assert any(name in lines[0] for name in names), self


def command(main: Callable[[list[str]], int], *words: object) -> Outcome:
    """Runs a script's `main` in this process; an exception that gets out of it is a traceback for its user."""
    out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with redirect_stdout(out), redirect_stderr(error):
        code = main([str(word) for word in words])
    for stream in (out, error):
        stream.flush()
    return Outcome(code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, error)))


def cut(content: bytes, most: int = 2000) -> str:
    """Content for a message."""
    return repr(content[:most]) + (f" ... ({len(content)} bytes)" if len(content) > most else "")
