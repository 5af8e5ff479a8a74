"""Which words of a text a masked language model is asked about, and what its answers say.

A pass is one row for the model: [CLS] window [SEP], some words of the window replaced by [MASK], and behind it, if
wanted, the window once more as it was and [SEP], in segment 1. A text longer than the model's positions is seen
through windows; each of its words lies in one, away from its edges.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from preprocess.words import Word, is_plain_chinese
from tfbert.data.masked_rows import MaskedRows, TopTokens
from tfbert.errors import ConfigError
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

LETTERS, CHINESE = 0, 1  # kinds of positions
BEAM = 200  # beginnings of a Chinese word that are kept
NEVER = -1e8  # scores below it are of tokens that are not allowed


class Slot(NamedTuple):
    """A word that the model is asked about.

    Attributes:
        word: which one.
        start, length: its tokens in the text.
    """

    word: Word
    start: int
    length: int


@dataclass(frozen=True)
class PassSettings:
    """How words become passes.

    Attributes:
        max_tokens: positions of the model.
        masked_share: largest share of a window's tokens masked in one pass, if these are several words; 0: one word.
        original: the window as it was stands behind the masked one.
    """

    max_tokens: int
    masked_share: float
    original: bool

    @property
    def window(self) -> int:
        """Tokens of a text that a pass has room for."""
        return (self.max_tokens - 3) // 2 if self.original else self.max_tokens - 2

    def check(self) -> None:
        """Raises ConfigError where the model has no room for a word and its neighbours."""
        if self.window < 3:
            raise ConfigError(
                "A masked language model needs positions for a word and its neighbours. Received: a model of "
                f"{self.max_tokens} positions{', with the text in it twice (--original)' if self.original else ''}."
            )


def tokenize(
    text: str, words: Sequence[Word], wanted: Iterable[Word], tokenizer: WordPieceTokenizer
) -> tuple[list[int], list[Slot]]:
    """Token ids of a text, and which of the wanted words are one known piece, or one a Chinese character."""
    token_ids: list[int] = []
    slots = []
    asked = set(wanted)
    at = 0
    for word in words:
        token_ids += tokenizer.encode(text[at : word.start])
        pieces = tokenizer.encode(word.text)
        if word in asked and tokenizer.vocabulary.unk_id not in pieces:
            if len(pieces) == (len(word.text) if word.chinese else 1):
                slots.append(Slot(word, len(token_ids), len(pieces)))
        token_ids += pieces
        at = word.end
    return token_ids + tokenizer.encode(text[at:]), slots


def window_start(slot: Slot, num_tokens: int, window: int) -> int:
    """First token of the window in which a word is seen, in steps of half a window."""
    if num_tokens <= window:
        return 0
    step = max(1, window // 2)
    start = min(max(0, slot.start // step * step - step // 2), num_tokens - window)
    return max(start, slot.start + slot.length - window)


@dataclass
class PassBuilder:
    """Collects the passes of many texts."""

    settings: PassSettings
    vocabulary: Vocabulary
    _token_ids: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _first: list[int] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _kinds: list[int] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], slots: Sequence[Slot]) -> dict[Word, tuple[int, ...]]:
        """Makes the passes of one text; tells the numbers of each word's positions."""
        window = self.settings.window
        by_start: dict[int, list[Slot]] = {}
        for slot in slots:
            if slot.length <= window:
                by_start.setdefault(window_start(slot, len(token_ids), window), []).append(slot)
        positions: dict[Word, tuple[int, ...]] = {}
        for start, inside in by_start.items():
            tokens = token_ids[start : start + window]
            count = num_passes(inside, len(tokens), self.settings.masked_share)
            for i in range(count):
                self._add_pass(tokens, start, inside[i::count], positions)
        return positions

    def _add_pass(
        self, tokens: Sequence[int], start: int, slots: Sequence[Slot], positions: dict[Word, tuple[int, ...]]
    ) -> None:
        masked = list(tokens)
        mask_id = self.vocabulary.mask_id or 0
        for slot in slots:
            number = len(self._columns)
            positions[slot.word] = tuple(range(number, number + slot.length))
            for i in range(slot.start - start, slot.start - start + slot.length):
                masked[i] = mask_id
                self._rows.append(len(self._ends))
                self._columns.append(1 + i)
                self._kinds.append(CHINESE if slot.word.chinese else LETTERS)
        row = [self.vocabulary.cls_id, *masked, self.vocabulary.sep_id]
        self._first.append(len(row))
        if self.settings.original:
            row += [*tokens, self.vocabulary.sep_id]
        self._token_ids += row
        self._ends.append(len(self._token_ids))

    def rows(self) -> MaskedRows:
        return MaskedRows(
            np.array(self._token_ids, np.int32),
            np.array(self._ends, np.int64),
            np.array(self._first, np.int32),
            np.array(self._rows, np.int64),
            np.array(self._columns, np.int32),
            np.array(self._kinds, np.int8),
        )


def num_passes(slots: Sequence[Slot], num_tokens: int, masked_share: float) -> int:
    """Passes over which the words of a window are dealt out, one after the other, so that neighbours are apart."""
    if not masked_share:
        return len(slots)
    budget = max(1, int(masked_share * num_tokens))
    return min(len(slots), -(-sum(slot.length for slot in slots) // budget))


def masked_candidates(
    word: Word,
    positions: tuple[int, ...],
    answers: TopTokens,
    tokenizer: WordPieceTokenizer,
    frequencies: Mapping[str, int],
    count: int,
) -> list[str]:
    """The best words in the place of a word, best first, never the word itself.

    Args:
        word: what stands there.
        positions: of its tokens in `answers`.
        answers: the best tokens at each position, those that may stand there alone.
        tokenizer: knows the tokens.
        frequencies: of Chinese words; beginnings of words have the frequency 0 there.
        count: K, most candidates.
    """
    tokens = tokenizer.vocabulary.tokens
    best = [
        [(tokens[i], float(score)) for i, score in zip(answers.ids[p], answers.scores[p], strict=True) if score > NEVER]
        for p in positions
    ]
    if word.chinese:
        return chinese_words(best, word.text, frequencies, count)
    own = tokenizer.encode(word.text)
    return [token for token, _ in best[0] if tokenizer.vocabulary.ids[token] != own[0]][:count]


def chinese_words(
    best: Sequence[Sequence[tuple[str, float]]], word: str, frequencies: Mapping[str, int], count: int
) -> list[str]:
    """Dictionary words of as many characters, by the sum of their characters' scores."""
    found = [("", 0.0)]
    for characters in best:
        longer = [
            (begin + char, score + more)
            for begin, score in found
            for char, more in characters
            if begin + char in frequencies
        ]
        found = sorted(longer, key=lambda item: (-item[1], item[0]))[:BEAM]
    words = (text for text, _ in found if frequencies[text] > 0 and text != word and is_plain_chinese(text))
    return list(words)[:count]
