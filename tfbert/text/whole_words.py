"""Token ids and where words begin, for masking whole words.

The ids are always those of the tokenizer on the whole text. What is a word is another question: the pieces of a word of
the tokenizer (English), or a word of a segmenter such as jieba (Chinese, where every character is a token). A border
between two words of the segmenter counts where the tokenizer parts the text too; words that it does not part there
("WordPiece" cut into two, an accent apart from its letter) are one word.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tfbert.text.wordpiece import Vocabulary

Cut = Callable[[str], Iterable[str]]
MAX_CACHED_WORDS = 100_000


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    vocabulary: Vocabulary

    def words(self, text: str) -> list[str]: ...

    def encode(self, text: str) -> list[int]: ...


class PieceWords:
    """Words as the tokenizer has them: a piece that begins with `##` goes on with the word before."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._begins = np.array([not token.startswith("##") for token in tokenizer.vocabulary.tokens], bool)

    def encode(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Token ids of a text, and for each whether it begins a word; the first one does."""
        token_ids = np.array(self._tokenizer.encode(text), np.int32)
        begins = self._begins[token_ids]
        begins[:1] = True
        return token_ids, begins


class SegmentedWords:
    """Words of a segmenter, brought into line with the tokenizer.

    Args:
        tokenizer: decides the ids.
        cut: text -> its words, which joined are the text.
    """

    def __init__(self, tokenizer: Tokenizer, cut: Cut):
        self._tokenizer, self._cut = tokenizer, cut
        self._sides: dict[str, tuple[bool, bool]] = {}
        self._ids: dict[str, list[int]] = {}

    def encode(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """As `PieceWords.encode`."""
        token_ids, starts = array("i"), list[int]()
        for word in self._words(text):
            ids = self._encode_word(word)
            if ids:
                starts.append(len(token_ids))
                token_ids.fromlist(ids)
        begins = np.zeros(len(token_ids), bool)
        begins[np.array(starts, np.int64)] = True
        return np.frombuffer(token_ids, np.int32), begins

    def _words(self, text: str) -> Iterable[str]:
        """The segmenter's words, joined where the tokenizer does not part them."""
        word = ""
        for piece in self._cut(text):
            if word and (self._parts(word[-1])[1] or self._parts(piece[0])[0]):
                yield word
                word = ""
            word += piece
        if word:
            yield word

    def _parts(self, char: str) -> tuple[bool, bool]:
        """Whether the tokenizer always parts a character from what stands before it, and from what stands behind."""
        known = self._sides.get(char)
        if known is None:
            words = self._tokenizer.words(f"a{char}a")
            known = self._sides[char] = (words[0] == "a", words[-1] == "a")
        return known

    def _encode_word(self, word: str) -> list[int]:
        ids = self._ids.get(word)
        if ids is None:
            ids = self._tokenizer.encode(word)
            if len(self._ids) < MAX_CACHED_WORDS:
                self._ids[word] = ids
        return ids
