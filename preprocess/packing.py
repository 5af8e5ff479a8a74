"""Documents to rows: sentences packed up to a length, alone or as pairs. Every token of a document is in one row.

A row holds consecutive sentences of one document, as many as fit. A sentence that is too long for a row is cut into
units, where a word begins. With probability `short_fraction` a row is only filled up to a random length (BERT's
`short_seq_prob`). Pairs:

* NSP (next sentence): the units of a row are parted at a random place; half of the rows keep both sides (label 0,
  `next`), the others get a random text of another document in place of the second side (1, `random`), and the units
  that it replaces go to the next row. A unit that is left alone always gets a random text. (BERT, arXiv 1810.04805)
* SOP (sentence order): both sides are kept, and half of the rows have them swapped (label 0, `ordered`; 1, `swapped`).
  A unit that is left alone is cut in the middle, at the beginning of a word. (ALBERT, arXiv 1909.11942)

Rows are a pure function of the document, the seed, and (NSP) the texts that are lent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tfbert.errors import ConfigError

PAIRS = {"none": (), "nsp": ("next", "random"), "sop": ("ordered", "swapped")}  # kind of pairs -> names of the labels
SPECIAL = {"none": 2, "nsp": 3, "sop": 3}  # special tokens of a row


class Text(NamedTuple):
    """A run of tokens.

    Attributes:
        token_ids: (n,).
        begins: whether each token begins a word, bool (n,).
        lengths: tokens of the sentences or units, in order; their sum is n.
    """

    token_ids: npt.NDArray[np.int32]
    begins: npt.NDArray[np.bool_]
    lengths: npt.NDArray[np.int64]


class Side(NamedTuple):
    """The first or second text of a row."""

    token_ids: npt.NDArray[np.int32]
    begins: npt.NDArray[np.bool_]


class PackedRow(NamedTuple):
    """One row; `borrowed` is the number of tokens of the second side that belong to another document."""

    first: Side
    second: Side | None = None
    label: int | None = None
    borrowed: int = 0


Lend = Callable[[np.random.Generator, int], Side]  # a text of another document, of at most so many tokens, at least one


@dataclass(frozen=True)
class Packing:
    """How rows are made.

    Args:
        max_len: most tokens of a row, special ones included.
        pairs: none, nsp or sop.
        short_fraction: share of the rows that are filled up to a random length only.
    """

    max_len: int
    pairs: str = "none"
    short_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.pairs not in PAIRS:
            raise ConfigError(f"--pairs is one of {', '.join(PAIRS)}. Received: {self.pairs!r}.")
        least = SPECIAL[self.pairs] + (1 if self.pairs == "none" else 2)
        if self.max_len < least:
            raise ConfigError(
                f"--max_len counts the special tokens and must be at least {least} with --pairs {self.pairs}. "
                f"Received: {self.max_len}."
            )
        if not 0 <= self.short_fraction <= 1:
            raise ConfigError(f"--short_fraction is a share from 0 to 1. Received: {self.short_fraction}.")

    @property
    def room(self) -> int:
        """Tokens of text in a row."""
        return self.max_len - SPECIAL[self.pairs]

    @property
    def longest_unit(self) -> int:
        """Two units always fit into the row of a pair."""
        return self.room if self.pairs == "none" else self.room // 2


def pack_document(
    document: Text, packing: Packing, rng: np.random.Generator, lend: Lend | None = None
) -> tuple[list[PackedRow], int]:
    """The rows of one document, in order.

    Args:
        document: its sentences.
        packing: how.
        rng: of this document alone.
        lend: gives texts of other documents; for NSP.

    Returns:
        The rows, and the number of tokens at the end that are in none: at most one, of which no pair can be made.
    """
    units = cut_units(document, packing.longest_unit)
    least = 1 if packing.pairs == "none" else 2
    ends = np.cumsum(units.lengths)
    rows: list[PackedRow] = []
    first, dropped = 0, 0
    while first < len(units.lengths):
        target = packing.room
        if rng.random() < packing.short_fraction:
            target = int(rng.integers(min(2, target), target + 1))
        start = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, start + target, "right")), min(first + least, len(ends)))
        here = slice(start, int(ends[last - 1]))
        chosen = Text(units.token_ids[here], units.begins[here], units.lengths[first:last])
        if packing.pairs == "none":
            rows.append(PackedRow(Side(chosen.token_ids, chosen.begins)))
        elif packing.pairs == "nsp" and lend is not None:
            row, used = _next_sentence(chosen, target, packing.room, rng, lend)
            rows.append(row)
            last = first + used
        elif (ordered := _sentence_order(chosen, rng)) is not None:
            rows.append(ordered)
        else:
            dropped += len(chosen.token_ids)
        first = last
    return rows, dropped


def cut_units(text: Text, longest: int) -> Text:
    """The same tokens with no unit above `longest`; cut where a word begins, if one does."""
    if not len(text.lengths) or text.lengths.max() <= longest:
        return text
    lengths: list[int] = []
    position = 0
    for length in text.lengths.tolist():
        end = position + length
        while end - position > longest:
            begins = np.flatnonzero(text.begins[position + 1 : position + longest + 1])
            size = int(begins[-1]) + 1 if len(begins) else longest
            lengths.append(size)
            position += size
        lengths.append(end - position)
        position = end
    return text._replace(lengths=np.array(lengths, np.int64))


def _sides(text: Text, cut: int) -> tuple[Side, Side]:
    return Side(text.token_ids[:cut], text.begins[:cut]), Side(text.token_ids[cut:], text.begins[cut:])


def _next_sentence(chosen: Text, target: int, room: int, rng: np.random.Generator, lend: Lend) -> tuple[PackedRow, int]:
    """A row, and how many of the units it uses."""
    count = len(chosen.lengths)
    kept = int(rng.integers(1, count)) if count > 1 else 1
    first, second = _sides(chosen, int(chosen.lengths[:kept].sum()))
    if count > 1 and rng.random() < 0.5:
        return PackedRow(first, second, 0), count
    size = len(first.token_ids)
    lent = lend(rng, min(max(target - size, 1), room - size))
    return PackedRow(first, lent, 1, len(lent.token_ids)), kept


def _sentence_order(chosen: Text, rng: np.random.Generator) -> PackedRow | None:
    """A row, or None where there are no two sides."""
    count = len(chosen.lengths)
    if count > 1:
        cut = int(chosen.lengths[: int(rng.integers(1, count))].sum())
    elif len(chosen.token_ids) > 1:
        middle = len(chosen.token_ids) / 2
        places = np.flatnonzero(chosen.begins[1:]) + 1
        cut = int(places[np.argmin(np.abs(places - middle))]) if len(places) else int(middle)
    else:
        return None
    first, second = _sides(chosen, cut)
    if rng.random() < 0.5:
        return PackedRow(first, second, 0)
    return PackedRow(second, first, 1)
