"""Lists of whole numbers as text, read in NumPy: no Python object a number.

The digits of many lists are joined, and every number is computed from the eight bytes before its comma, by the three
multiplications that also fast_float uses. Source: Lemire 2022, "Parsing 8-bit digits in SWAR"; Muła 2014.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_COMMA = ord(",")
_AHEAD = b"," * 8  # so that there are eight bytes before the first comma, too
_MOST_DIGITS = 8
_TOGETHER = 256  # lists: what is computed of them stays in the processor's cache

Numbers = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]


def parse_lists(texts: Sequence[bytes]) -> Numbers | None:
    """Reads lists such as `12,3,456`.

    Returns:
        The numbers of all lists, one after the other, and how many each list has. None where a list is empty, holds
        anything but digits and single commas, or a number of more than 8 digits or with a needless 0 before it.
    """
    parts = []
    for first in range(0, len(texts), _TOGETHER):
        part = _parse(texts[first : first + _TOGETHER])
        if part is None:
            return None
        parts.append(part)
    if not parts:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    numbers, counts = zip(*parts, strict=True)
    return np.concatenate(numbers), np.concatenate(counts)


def _parse(texts: Sequence[bytes]) -> Numbers | None:
    text = _AHEAD + b",".join(texts) + b","
    codes = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(codes == _COMMA)[len(_AHEAD) - 1 :]
    starts, ends = commas[:-1] + 1, commas[1:]
    widths = ends - starts
    digits = codes - np.uint8(ord("0"))
    if (
        widths.min() < 1
        or widths.max() > _MOST_DIGITS
        or np.count_nonzero(digits < 10) != int(widths.sum())
        or ((digits[starts] == 0) & (widths > 1)).any()
    ):
        return None
    eights = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))  # at every byte the eight from there on
    words = eights[ends - 8]
    before = (8 * (8 - widths)).astype(np.uint64)
    words = (words >> before) << before  # what stands before the number becomes zeros
    words &= np.uint64(0x0F0F0F0F0F0F0F0F)
    words = (words * np.uint64(2561)) >> np.uint64(8)  # pairs of digits, then fours, then eights
    words &= np.uint64(0x00FF00FF00FF00FF)
    words = (words * np.uint64(6553601)) >> np.uint64(16)
    words &= np.uint64(0x0000FFFF0000FFFF)
    words = (words * np.uint64(42949672960001)) >> np.uint64(32)
    last = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) + len(_AHEAD) - 1  # comma behind each list
    counts = np.diff(np.searchsorted(ends, last, "right"), prepend=0)
    return words.astype(np.int32), counts
