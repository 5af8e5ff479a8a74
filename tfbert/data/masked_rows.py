"""Rows with masked positions, and the tokens that a model expects there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class MaskedRows:
    """Rows with masked positions.

    Attributes:
        token_ids: int32 (tokens,), the rows one after the other.
        ends: int64 (rows,), the token behind the last one of each.
        first_segment: int32 (rows,), tokens of segment 0 of each; the others are segment 1.
        position_row: int64 (positions,), row of each masked position, in ascending order.
        position_column: int32 (positions,), its place in the row.
        position_kind: int8 (positions,), which tokens are wanted there: a row of `allowed`.
    """

    token_ids: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    first_segment: npt.NDArray[np.int32]
    position_row: npt.NDArray[np.int64]
    position_column: npt.NDArray[np.int32]
    position_kind: npt.NDArray[np.int8]

    @classmethod
    def join(cls, parts: "Sequence[MaskedRows]") -> "MaskedRows":
        """Several as one: their rows and positions in order."""
        tokens = np.cumsum([0, *(len(part.token_ids) for part in parts)])
        rows = np.cumsum([0, *(len(part.ends) for part in parts)])
        return cls(
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.ends + tokens[i] for i, part in enumerate(parts)]),
            np.concatenate([part.first_segment for part in parts]),
            np.concatenate([part.position_row + rows[i] for i, part in enumerate(parts)]),
            np.concatenate([part.position_column for part in parts]),
            np.concatenate([part.position_kind for part in parts]),
        )


@dataclass(frozen=True)
class TopTokens:
    """The best tokens at some positions, best first; of equal ones the smaller id.

    Attributes:
        ids: int32 (M, K).
        scores: float32 (M, K), logits; of tokens that are not allowed below -1e8.
    """

    ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
