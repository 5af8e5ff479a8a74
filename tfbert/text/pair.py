"""One or two token sequences to one row: truncate, add the special tokens, make segment ids.

A row of one text is `[CLS] a [SEP]`; a row of a pair is `[CLS] a [SEP] b [SEP]` with segment ids 0 up to the first
[SEP] and 1 after it, also where `b` is empty: the template tells a pair from a single text, not its content.
"""

from collections.abc import Sequence

from tfbert.errors import ConfigError


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
