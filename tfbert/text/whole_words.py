"""Token ids and where words begin, for masking whole words.

The ids are always those of the tokenizer on the whole text. What is a word is another question: the pieces of a word of
the tokenizer (English), or a word of a segmenter such as jieba (Chinese, where every character is a token). A border
between two words of the segmenter counts where the tokenizer parts the text too; words that it does not part there
("WordPiece" cut into two, an accent apart from its letter) are one word.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tfbert.text.batch import BatchTokenizer, TokenRows
from tfbert.text.wordpiece import WordPieceTokenizer

Cut = Callable[[str], Iterable[str]]
Begins = npt.NDArray[np.bool_]  # whether each token begins a word; the first one of a text does


class PieceWords:
    """Words as the tokenizer has them: a piece that begins with `##` goes on with the word before."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        self._tokenizer = BatchTokenizer(tokenizer)
        self._begins = np.array([not token.startswith("##") for token in tokenizer.vocabulary.tokens], bool)

    def encode(self, texts: Sequence[str]) -> tuple[TokenRows, Begins]:
        """Ids of several texts, without special tokens, and where words begin."""
        rows = self._tokenizer.encode(texts)
        begins = self._begins[rows.token_ids]
        begins[(np.cumsum(rows.lengths) - rows.lengths)[rows.lengths > 0]] = True
        return rows, begins


class SegmentedWords:
    """Words of a segmenter, brought into line with the tokenizer.

    Args:
        tokenizer: decides the ids.
        cut: text -> its words, which joined are the text.
    """

    def __init__(self, tokenizer: WordPieceTokenizer, cut: Cut):
        self._words, self._cut = tokenizer.words, cut
        self._tokenizer = BatchTokenizer(tokenizer)
        self._sides: dict[str, tuple[bool, bool, bool]] = {}

    def encode(self, texts: Sequence[str]) -> tuple[TokenRows, Begins]:
        """As `PieceWords.encode`."""
        words: list[str] = []
        ends = [0]
        for text in texts:
            words += self._joined(text)
            ends.append(len(words))
        rows = self._tokenizer.encode(words)
        token_ends = np.concatenate([[0], np.cumsum(rows.lengths)])
        begins = np.zeros(len(rows.token_ids), bool)
        begins[token_ends[:-1][rows.lengths > 0]] = True
        return TokenRows(rows.token_ids, np.diff(token_ends[ends])), begins

    def _joined(self, text: str) -> Iterable[str]:
        """The segmenter's words, joined where the tokenizer does not part them."""
        word = ""
        has_sigma = "\u03a3" in text  # its lower case depends on letters behind signs, too
        for piece in self._cut(text):
            if word and self._are_apart(word[-1], piece[0], has_sigma):
                yield word
                word = ""
            word += piece
        if word:
            yield word

    def _are_apart(self, left: str, right: str, has_sigma: bool) -> bool:
        _, behind, ends_case = self._parts(left)
        before, _, begins_case = self._parts(right)
        return (behind or before) and (not has_sigma or ends_case or begins_case)

    def _parts(self, char: str) -> tuple[bool, bool, bool]:
        """What a character does always: the tokenizer parts it from what stands before it; from what stands behind; and
        letters before it do not change the lower case of those behind.
        """
        known = self._sides.get(char)
        if known is None:
            words = self._words(f"a{char}a")
            alone = not self._words(f"a{char}\u03a3")[-1].endswith("\u03c2")  # a final sigma
            known = self._sides[char] = (words[0] == "a", words[-1] == "a", alone)
        return known
