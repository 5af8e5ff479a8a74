"""Many texts to token ids at once: the ids of `WordPieceTokenizer.encode`, by code point in NumPy.

What a character becomes is looked up for many thousand characters in one step. A character that is a word of its own
with one id (an ideograph, a mark) becomes that id. The runs of other characters, between blanks and such characters,
are looked up in a dictionary that fills itself by `WordPieceTokenizer.encode`, which is exact for every string. The
rules split a text at these places whatever stands beside them, so the ids of a text are those of its parts in order.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfbert.text.wordpiece import MAX_CHARS_PER_WORD, WordPieceTokenizer

MAX_CACHED_RUNS = 100_000  # about 20 MB
GROUP_CHARS = 1 << 18  # characters looked at together, a longer text aside: few enough for the processor's caches

# What a character is, where it is not the id of its only piece:
_IN_RUN = -1
_BLANK = -2
_LOOKS_ROUND = -3  # its rules look at its neighbours: all between the blanks round it is one run
_NEW = -4  # not met before
_SEVERAL = -5  # a run with other than one piece: this and the numbers below it name the pieces
_CODEC = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class TokenRows(NamedTuple):
    """Ids of several texts, one after the other.

    Attributes:
        token_ids: int32 (tokens,).
        lengths: int64 (texts,).
    """

    token_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]


class BatchTokenizer:
    """Texts to ids, without special tokens.

    Args:
        tokenizer: decides the ids.
    """

    def __init__(self, tokenizer: WordPieceTokenizer):
        self._tokenizer = tokenizer
        self._kinds = np.full(0x110000, _NEW, np.int32)
        self._runs = _RunCache(tokenizer)

    def encode(self, texts: Sequence[str]) -> TokenRows:
        """Ids of texts of any length, in time linear in their characters."""
        groups = [self._encode(group) for group in _groups(texts)]
        if len(groups) == 1:
            return groups[0]
        none = TokenRows(np.zeros(0, np.int32), np.zeros(0, np.int64))
        ids, lengths = zip(none, *groups, strict=True)
        return TokenRows(np.concatenate(ids), np.concatenate(lengths))

    def _encode(self, texts: Sequence[str]) -> TokenRows:
        codes = _code_points("\n".join([*texts, ""]))  # a blank behind each, so no run goes on in the next text
        sizes = np.fromiter(map(len, texts), np.int64, len(texts)) + 1
        units = self._look_up(codes)  # where a unit begins: its id, or the number of its pieces
        in_run = units == _IN_RUN
        starts = np.flatnonzero(in_run[1:] > in_run[:-1]) + 1
        if in_run[0]:
            starts = np.concatenate([[0], starts])
        if len(starts):
            units[starts] = np.fromiter(map(self._runs.__getitem__, _runs(codes, in_run)), np.int32, len(starts))
        is_unit = (units >= 0) | (units <= _SEVERAL)
        ids, lengths = units[is_unit], np.add.reduceat(is_unit, np.cumsum(sizes) - sizes, dtype=np.int64)
        several = np.flatnonzero(ids < 0)
        if len(several):
            pieces = self._runs.pieces(ids[several])
            counts = np.ones(len(ids), np.int64)
            counts[several] = np.fromiter(map(len, pieces), np.int64, len(pieces))
            ids = np.repeat(ids, counts)
            ids[ids < 0] = np.fromiter(chain.from_iterable(pieces), np.int32)
            ends = np.concatenate([[0], np.cumsum(counts)])[np.cumsum(lengths)]
            lengths = np.diff(ends, prepend=0)
        return TokenRows(ids, lengths)

    def _look_up(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """What every character is; `_LOOKS_ROUND` is resolved."""
        kinds = np.empty(len(codes), np.int32)
        for first in range(0, len(codes), GROUP_CHARS):  # by parts, as `take` makes a copy of 8 bytes a character
            part = slice(first, first + GROUP_CHARS)
            kinds[part] = self._kinds.take(codes[part])
        lowest = kinds.min()
        if lowest == _NEW:
            is_new = kinds == _NEW
            for code_point in np.unique(codes[is_new]).tolist():
                self._kinds[code_point] = self._kind(chr(code_point))
            kinds[is_new] = self._kinds.take(codes[is_new])
            lowest = kinds.min()
        if lowest == _LOOKS_ROUND:
            is_blank = kinds == _BLANK
            stretch = np.cumsum(is_blank)
            looks_round = np.zeros(stretch[-1] + 1, bool)
            looks_round[stretch[kinds == _LOOKS_ROUND]] = True
            kinds[looks_round[stretch] & ~is_blank] = _IN_RUN
        return kinds

    def _kind(self, char: str) -> int:
        if self._tokenizer.is_blank(char):
            return _BLANK
        if self._tokenizer.looks_round(char):
            return _LOOKS_ROUND
        if self._tokenizer.stands_alone(char) and len(ids := self._tokenizer.encode(char)) == 1:
            return ids[0]
        return _IN_RUN


class _RunCache(dict[str, int]):
    """Run of characters -> the id of its one piece, or the number of its pieces; filled on a miss.

    What is kept is bounded: pieces of runs that are not kept last until `pieces` was called.
    """

    def __init__(self, tokenizer: WordPieceTokenizer):
        super().__init__()
        self._encode = tokenizer.encode
        self._pieces: list[Sequence[int]] = []
        self._passing: list[int] = []  # places in `_pieces`
        self._free: list[int] = []

    def __missing__(self, run: str) -> int:
        ids = self._encode(run)
        keep = len(self) < MAX_CACHED_RUNS and len(run) <= MAX_CHARS_PER_WORD
        value = ids[0] if len(ids) == 1 else _SEVERAL - self._place(ids, keep)
        if keep:
            self[run] = value
        return value

    def _place(self, ids: Sequence[int], keep: bool) -> int:
        if self._free:
            place = self._free.pop()
            self._pieces[place] = ids
        else:
            place = len(self._pieces)
            self._pieces.append(ids)
        if not keep:
            self._passing.append(place)
        return place

    def pieces(self, numbers: npt.NDArray[np.int32]) -> list[Sequence[int]]:
        """The pieces of each number; those that are not kept are forgotten."""
        found = list(map(self._pieces.__getitem__, (_SEVERAL - numbers).tolist()))
        for place in self._passing:
            self._pieces[place] = ()
        self._free += self._passing
        self._passing.clear()
        return found


def _runs(codes: npt.NDArray[Any], in_run: npt.NDArray[np.bool_]) -> list[str]:
    """The runs of characters, in order."""
    with_ends = in_run.copy()
    with_ends[1:] |= in_run[:-1]  # the character behind a run stands for its end
    chosen = codes[with_ends]
    chosen[~in_run[with_ends]] = ord(" ")  # no run holds one
    return chosen.tobytes().decode(_CODEC[codes.itemsize], "surrogatepass").split(" ")[:-1]


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Neighbours of at most `GROUP_CHARS` characters together, or one longer text."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    first, start = 0, 0
    while first < len(texts):
        last = max(first + 1, int(np.searchsorted(ends, start + GROUP_CHARS, "right")))
        yield texts[first:last]
        first, start = last, int(ends[last - 1])


def _code_points(text: str) -> npt.NDArray[Any]:
    """Unsigned integers of the least of 1, 2 or 4 bytes that holds every character."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    try:
        data = text.encode("utf-16-le")
        if len(data) == 2 * len(text):
            return np.frombuffer(data, "<u2")
    except UnicodeEncodeError:
        pass  # half a surrogate pair, which must not become a whole one
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
