"""One or two token sequences to one row: truncate, add the special tokens, make segment ids.

A row of one text is `[CLS] a [SEP]`; a row of a pair is `[CLS] a [SEP] b [SEP]` with segment ids 0 up to the first
[SEP] and 1 after it, also where `b` is empty: the template tells a pair from a single text, not its content.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tfbert.errors import ConfigError
from tfbert.text.batch import TokenRows


def check_max_len(max_len: int, pair: bool) -> None:
    """Raises ConfigError where `max_len`, which counts the special tokens, leaves no room for text."""
    least = 4 if pair else 3
    if max_len < least:
        kind = "pairs" if pair else "single texts"
        raise ConfigError(
            f"max_len counts the special tokens and must be at least {least} for {kind}. Received: {max_len}."
        )


def truncated_lengths(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """How much of each sequence stays so that the sum fits `budget`.

    The longer one loses its last token until both fit; of equally long ones the second loses first. Same result as
    Google's `_truncate_seq_pair`, without its loop.
    """
    excess = length_a + length_b - budget
    if excess <= 0:
        return length_a, length_b
    difference = length_a - length_b
    if difference > 0:
        length_a -= min(difference, excess)
    else:
        length_b -= min(-difference, excess)
    excess = length_a + length_b - budget
    if excess > 0:  # equally long now: take turns, the second one first
        length_b -= (excess + 1) // 2
        length_a -= excess // 2
    return length_a, length_b


def pack(
    a: Sequence[int], b: Sequence[int] | None, max_len: int, cls_id: int, sep_id: int
) -> tuple[list[int], list[int] | None]:
    """Token ids of at most `max_len` with special tokens, and segment ids (None for a single text: all 0)."""
    if b is None:
        return [cls_id, *a[: max_len - 2], sep_id], None
    keep_a, keep_b = truncated_lengths(len(a), len(b), max_len - 3)
    token_ids = [cls_id, *a[:keep_a], sep_id, *b[:keep_b], sep_id]
    return token_ids, [0] * (keep_a + 2) + [1] * (keep_b + 1)


class PackedRows(NamedTuple):
    """Rows one after the other, special tokens included.

    Attributes:
        token_ids: int32 (tokens,).
        lengths: int64 (rows,), tokens of each row.
        first_lengths: int64 (rows,), tokens up to the first [SEP], which have segment id 0; the others have 1.
        full_lengths: int64 (rows,), tokens before truncation.
    """

    token_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    first_lengths: npt.NDArray[np.int64]
    full_lengths: npt.NDArray[np.int64]


def pack_rows(a: TokenRows, b: TokenRows | None, max_len: int, cls_id: int, sep_id: int) -> PackedRows:
    """What `pack` makes of each row, for all rows at once."""
    if b is None:
        kept = [np.minimum(a.lengths, max_len - 2)]
        full_lengths = a.lengths + 2
    else:  # `truncated_lengths` in closed form
        budget = max_len - 3
        kept = [
            np.minimum(a.lengths, np.maximum(budget - b.lengths, (budget + 1) // 2)),
            np.minimum(b.lengths, np.maximum(budget - a.lengths, budget // 2)),
        ]
        full_lengths = a.lengths + b.lengths + 3
    one = np.ones(len(a.lengths), np.int64)
    sizes = np.stack([one] + [size for keep in kept for size in (keep, one)], axis=1)  # [CLS] a [SEP] (b [SEP])
    kind = np.repeat(np.tile(np.arange(sizes.shape[1], dtype=np.int8), len(sizes)), sizes.reshape(-1))
    token_ids = np.full(len(kind), sep_id, np.int32)
    token_ids[kind == 0] = cls_id
    token_ids[kind == 1] = _first_tokens(a, kept[0])
    if b is not None:
        token_ids[kind == 3] = _first_tokens(b, kept[1])
    return PackedRows(token_ids, sizes.sum(axis=1), kept[0] + 2, full_lengths)


def _first_tokens(rows: TokenRows, kept: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The first `kept` tokens of every row."""
    cut = rows.lengths - kept
    if not cut.any():
        return rows.token_ids
    keeps = np.repeat(np.tile([True, False], len(kept)), np.stack([kept, cut], axis=1).reshape(-1))
    chosen: npt.NDArray[np.int32] = rows.token_ids[keeps]
    return chosen
