"""Dynamic masking: which tokens a masked language model has to guess, as a pure function of (seed, epoch, row).

No random state is kept: every draw is a hash of the seed, the epoch, the number of the row and the place in the row.
So a row is masked alike whatever batch, replica or worker it comes to; differently in each epoch; and always alike
where the epoch is given as a constant (validation).

What is chosen are words: single tokens, the words that the data set stores (`words`), or runs of these (n-grams). A
word is masked whole or not at all. Shapes: B rows, L tokens, W words, P masked places a row.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbert.data.batch import Batch
from tfbert.errors import ConfigError
from tfbert.text.wordpiece import SPECIAL_TOKENS, Vocabulary

UNITS = ("token", "word", "ngram")
SPAN_STOP = 0.2  # lengths of n-grams are geometric with this parameter, cut at `max_ngram` (SpanBERT, arXiv 1907.10529)

_SIZES, _ORDER, _SPANS, _ACTIONS, _IDS = range(5)  # what a draw is for
_M64 = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Masking:
    """How rows are masked.

    Args:
        mask_id: id of [MASK].
        maskable: which ids may be masked, bool (vocab_size,): all but the special tokens and [UNK].
        replacements: ids that a random replacement is drawn from, int32 (n,): as `maskable`, without [unused...].
        rate: share of the maskable tokens of a row that are masked.
        unit: token, word (whole words) or ngram (runs of whole words).
        mask_share, random_share: of the masked places, those that read [MASK] and those that read a random token; the
            others keep their token.
        max_ngram: most words of an n-gram.
        seed: decides the draws, together with epoch and row.
    """

    mask_id: int
    maskable: npt.NDArray[np.bool_]
    replacements: npt.NDArray[np.int32]
    rate: float = 0.15
    unit: str = "token"
    mask_share: float = 0.8
    random_share: float = 0.1
    max_ngram: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"The share of masked tokens is above 0 and at most 1. Received: {self.rate}.")
        if self.unit not in UNITS:
            raise ConfigError(f"What is masked together is one of {', '.join(UNITS)}. Received: {self.unit!r}.")
        if not (self.mask_share >= 0 and self.random_share >= 0 and self.mask_share + self.random_share <= 1 + 1e-9):
            raise ConfigError(
                "The shares of [MASK] and of random tokens are at least 0, and at most 1 together. Received: "
                f"{self.mask_share} and {self.random_share}."
            )
        if self.max_ngram < 1:
            raise ConfigError(f"An n-gram has at least one word. Received: {self.max_ngram}.")

    @classmethod
    def of(cls, vocabulary: Vocabulary, **settings: Any) -> "Masking":
        """Masking for a vocabulary; `settings` are the other arguments.

        Raises:
            ConfigError: the vocabulary has no [MASK] or nothing but special tokens, or a setting is wrong.
        """
        if vocabulary.mask_id is None:
            raise ConfigError("Masking needs [MASK] in the vocabulary. Received: a vocabulary without it.")
        special = {vocabulary.ids[token] for token in SPECIAL_TOKENS if token in vocabulary.ids}
        maskable = np.ones(len(vocabulary), bool)
        maskable[list(special)] = False
        unused = [i for i, token in enumerate(vocabulary.tokens) if token.startswith("[unused")]
        replaceable = maskable.copy()
        replaceable[unused] = False
        if not replaceable.any():
            raise ConfigError("Masking needs tokens that are not special. Received: a vocabulary without any.")
        replacements = np.flatnonzero(replaceable).astype(np.int32)
        return cls(vocabulary.mask_id, maskable, replacements, **settings)

    def limit(self, tokens: int) -> int:
        """Most masked places of a row of so many maskable tokens."""
        return max(1, math.ceil(self.rate * tokens))


def mask_batch(batch: Batch, rows: npt.NDArray[np.int64], masking: Masking, epoch: int) -> Batch:
    """A batch with masked tokens.

    A row of n maskable tokens gets `rate * n` masked ones on average, rounded up or down at random: never more than
    `masking.limit(n)`, and at least one. A word that does not fit into what is left of this number is passed over; so
    a row gets less where its words are long, and none where no word of it is as short as the limit. A word with a
    token that may not be masked ([UNK]) is never masked.

    Args:
        batch: `token_ids`, `padding_mask` (B, L), `weights` (B,), anything else; but for the unit `token`,
            `word_starts`, bool (B, L), where words begin.
        rows: number of every row in its data set, (B,).
        masking: how.
        epoch: number of the epoch; a constant where masks have to be the same each time.

    Returns:
        The batch without `word_starts`, with other `token_ids`, and with P = `limit(L)` places a row, which lie in the
        order of the text: `masked_positions` int32 (B, P), places in the row; `masked_ids` int32 (B, P), the tokens
        that stood there; `masked_weights` float32 (B, P), the weight of the row. Where a row has fewer places,
        position, id and weight are 0.
    """
    token_ids, is_token = batch["token_ids"], batch["padding_mask"] != 0
    starts = np.ones(token_ids.shape, bool) if masking.unit == "token" else batch["word_starts"].astype(bool)
    draw = _Draws(masking.seed, epoch, rows)
    chosen = _choose(masking, draw, masking.maskable[token_ids] & is_token, starts)
    inputs = _replace(masking, draw, token_ids, chosen)
    places = masking.limit(token_ids.shape[1])
    counts = np.count_nonzero(chosen, axis=1)
    is_place = np.arange(places) < counts[:, None]
    positions = np.zeros(is_place.shape, np.int32)
    positions[is_place] = np.nonzero(chosen)[1]
    ids = np.where(is_place, np.take_along_axis(token_ids, positions, 1), 0)
    weights = np.where(is_place, batch["weights"][:, None], 0)
    return {name: values for name, values in batch.items() if name != "word_starts"} | {
        "token_ids": inputs,
        "masked_positions": positions,
        "masked_ids": ids.astype(np.int32),
        "masked_weights": weights.astype(np.float32),
    }


def _choose(
    masking: Masking, draw: "_Draws", maskable: npt.NDArray[np.bool_], starts: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which tokens are masked, bool (B, L): words in random order, as long as they fit."""
    # (B, L) number of the word of every token
    word: npt.NDArray[np.int64] = np.cumsum(starts, axis=1) - starts[:, :1]
    num_rows, num_words = len(word), int(word.max(initial=0)) + 1
    flat = word + np.arange(num_rows)[:, None] * num_words
    size = np.bincount(flat.ravel(), minlength=num_rows * num_words).reshape(num_rows, num_words)
    free = np.bincount(flat[maskable], minlength=num_rows * num_words).reshape(num_rows, num_words) == size
    free &= size > 0  # all of a word, or nothing
    tokens = np.sum(size, axis=1, where=free)
    left = _wanted(masking, draw, tokens, np.min(size, axis=1, where=free, initial=word.shape[1] + 1))
    order = np.argsort(np.where(free, draw(_ORDER, num_words), 2.0), axis=1)
    spans = _spans(masking, draw, num_words)
    taken = np.zeros_like(free)
    everyone = np.arange(num_rows)
    for rank in range(int(np.count_nonzero(free, axis=1).max(initial=0))):
        first, going = order[:, rank], left > 0
        for step in range(int(spans.max())):
            here = np.minimum(first + step, num_words - 1)
            going &= (step < spans[everyone, first]) & (first + step < num_words)
            going &= free[everyone, here] & (size[everyone, here] <= left)
            left -= np.where(going, size[everyone, here], 0)
            taken[everyone[going], here[going]] = True
            free[everyone[going], here[going]] = False
        if not left.any():
            break
    return np.take_along_axis(taken, word, 1)


def _wanted(
    masking: Masking, draw: "_Draws", tokens: npt.NDArray[np.int64], smallest: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Tokens of every row to mask: the rate, rounded at random; at least the smallest word where the limit allows."""
    wanted = np.floor(masking.rate * tokens + draw(_SIZES, 1)[:, 0]).astype(np.int64)
    limit = np.maximum(np.ceil(masking.rate * tokens), 1)
    wanted = np.where(smallest <= limit, np.maximum(wanted, smallest), np.maximum(wanted, 1))
    return np.where(tokens > 0, np.minimum(wanted, limit), 0).astype(np.int64)


def _spans(masking: Masking, draw: "_Draws", num_words: int) -> npt.NDArray[np.int64]:
    """Words of the n-gram that begins at every word, (B, W)."""
    if masking.unit != "ngram":
        return np.ones((draw.num_rows, num_words), np.int64)
    shares = (1 - SPAN_STOP) ** np.arange(masking.max_ngram)
    ends = np.cumsum(shares / shares.sum())
    return np.minimum(np.searchsorted(ends, draw(_SPANS, num_words), "right") + 1, masking.max_ngram)


def _replace(
    masking: Masking, draw: "_Draws", token_ids: npt.NDArray[Any], chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    action, which = draw(_ACTIONS, token_ids.shape[1]), draw(_IDS, token_ids.shape[1])
    inputs = token_ids.astype(np.int32)
    is_random = chosen & (action >= masking.mask_share) & (action < masking.mask_share + masking.random_share)
    number = (which[is_random] * len(masking.replacements)).astype(np.int64)
    inputs[is_random] = masking.replacements[number]
    inputs[chosen & (action < masking.mask_share)] = masking.mask_id
    return inputs


class _Draws:
    """Uniform numbers in [0, 1) of rows: hashes of (seed, epoch, row, what for, place) by SplitMix64."""

    def __init__(self, seed: int, epoch: int, rows: npt.NDArray[np.int64]):
        self.num_rows = len(rows)
        key = np.array([_mix_int(_mix_int(seed & _M64) ^ (epoch & _M64))], np.uint64)
        self._keys = _mix(key ^ np.asarray(rows).astype(np.uint64))  # (B,)

    def __call__(self, purpose: int, places: int) -> npt.NDArray[np.float64]:
        """Shape (B, places)."""
        place = np.arange(places, dtype=np.uint64) + np.uint64(purpose << 32)
        bits = _mix(self._keys[:, None] + _mix(place)[None, :])
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele et al. 2014): each bit of the input decides each bit of the output."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    return int(_mix(np.array([x], np.uint64))[0])
