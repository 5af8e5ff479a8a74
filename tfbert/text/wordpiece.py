"""WordPiece: text to token ids, by exactly Google's rules, fast.

The rules are those of `BasicTokenizer` and `WordpieceTokenizer` in google-research/bert `tokenization.py`: clean,
put blanks round CJK characters, split at white space, (uncased) lower-case and drop accents, split at punctuation,
then match the longest pieces; a word of more than 200 characters, or one with an unknown piece, is one [UNK].

Nearly every rule looks at one character at a time, so a text is one `str.translate` with a table that fills itself,
one `split()`, and a look-up per word in a dictionary that fills itself. The few characters whose rules look at their
neighbours (the Greek capital sigma, combining marks that are kept) send a text the slow way.
"""

import unicodedata
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tfbert.errors import DataError

MAX_CHARS_PER_WORD = 200
MAX_CACHED_WORDS = 200_000  # about 40 MB; the frequent words come early
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SLOW_WAY = "\0"  # stands in a translated text for what a table cannot say; cleaning drops real NULs

_CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_cjk(code_point: int) -> bool:
    return any(first <= code_point <= last for first, last in _CJK_RANGES)


def is_punctuation(char: str) -> bool:
    if char in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~":
        return True
    return unicodedata.category(char).startswith("P")


def _lower_without_accents(text: str) -> str:
    """Lower case, canonical decomposition (NFD), marks of category Mn dropped.

    `unicodedata.normalize` of a whole text takes quadratic time on a long run of combining marks, so it decomposes
    single characters here and the marks are put in their canonical order by sorting.
    """
    decomposed = (c for char in text.lower() for c in unicodedata.normalize("NFD", char))
    ordered: list[str] = []
    for _, run in groupby(decomposed, key=lambda c: unicodedata.combining(c) > 0):
        ordered += sorted(run, key=unicodedata.combining)
    return "".join(c for c in ordered if unicodedata.category(c) != "Mn")


def _needs_neighbours(char: str) -> bool:
    """Whether the lower case of a character, or its place after decomposition, depends on the characters round it.

    Lower-casing looks round only at a capital sigma. Decomposition moves combining marks only, and those of category
    Mn are dropped afterwards.
    """
    decomposed = unicodedata.normalize("NFD", char.lower())
    return char == "Σ" or any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in decomposed)


def _spaced_punctuation(text: str) -> str:
    return "".join(f" {c} " if is_punctuation(c) else c for c in text)


class _CleanTable(dict[int, str | None]):
    """Code point -> replacement by the rules that come before white-space splitting; filled on a miss."""

    def __missing__(self, code_point: int) -> str | None:
        char = chr(code_point)
        category = unicodedata.category(char)
        replacement: str | None
        if code_point in (0, 0xFFFD):
            replacement = None
        elif char in "\t\n\r" or category == "Zs":
            replacement = " "
        elif category in ("Cc", "Cf"):
            replacement = None
        elif is_cjk(code_point):
            replacement = f" {char} "
        else:
            replacement = char
        self[code_point] = replacement
        return replacement


class _WordTable(dict[int, str | None]):
    """Code point -> replacement by all rules up to WordPiece, or `SLOW_WAY` where these need the neighbours."""

    def __init__(self, clean_table: _CleanTable, cased: bool):
        super().__init__()
        self._clean_table = clean_table
        self._cased = cased

    def __missing__(self, code_point: int) -> str | None:
        replacement = self._clean_table[code_point]
        if replacement is not None:
            if not self._cased:
                slow = _needs_neighbours(chr(code_point))
                replacement = SLOW_WAY if slow else _lower_without_accents(replacement)
            replacement = _spaced_punctuation(replacement)
        self[code_point] = replacement
        return replacement


class _PieceCache(dict[str, tuple[int, ...]]):
    """Word -> ids of its pieces; filled on a miss, up to a bounded size."""

    def __init__(self, ids: dict[str, int], unknown_id: int):
        super().__init__()
        self._ids = ids
        self._unknown = (unknown_id,)
        self._longest = max(map(len, ids), default=0)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_CHARS_PER_WORD:
            return self._unknown
        pieces = self._match(word)
        if len(self) < MAX_CACHED_WORDS:
            self[word] = pieces
        return pieces

    def _match(self, word: str) -> tuple[int, ...]:
        """Longest match first; a word with one unknown piece is unknown as a whole."""
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = self._ids.get(prefix + word[start:end])
                if piece is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return self._unknown
        return tuple(pieces)


class Vocabulary:
    """Tokens and their ids.

    The id of a token is the 0-based number of its LF-terminated line; of equal lines the last one wins, as in
    Google's `load_vocab`. `tokens` keeps every line, so `len(vocabulary)` is the number of lines.

    Raises:
        DataError: [PAD], [UNK], [CLS] or [SEP] is missing. [MASK] is needed by masking alone.
    """

    def __init__(self, tokens: Sequence[str], source: str = "vocabulary"):
        self.tokens = list(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        missing = [token for token in SPECIAL_TOKENS[:4] if token not in self.ids]
        if missing:
            raise DataError(
                f"{source}: a vocabulary needs [PAD], [UNK], [CLS] and [SEP]. Missing: {', '.join(missing)}. "
                "Use the vocab.txt that belongs to the checkpoint, or make one with `preprocess vocab`."
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id = (self.ids[token] for token in SPECIAL_TOKENS[:4])
        self.mask_id = self.ids.get("[MASK]")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Reads `vocab.txt`: UTF-8, one token a line, lines end at LF alone; a byte-order mark is dropped."""
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise DataError(f"{path}: the vocabulary cannot be read. Received: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: a vocabulary is UTF-8 text. Received: {error}.") from error
        lines = text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        return cls([line.strip(" \t\r") for line in lines], source=str(path))


class WordPieceTokenizer:
    """Text to ids, without special tokens: text that spells `[SEP]` is ordinary text.

    Args:
        vocabulary: tokens and ids.
        cased: keep case and accents. Otherwise text is lower-cased and accents are dropped.
    """

    def __init__(self, vocabulary: Vocabulary, cased: bool = False):
        self.vocabulary = vocabulary
        self.cased = cased
        self._clean_table = _CleanTable()
        self._word_table = _WordTable(self._clean_table, cased)
        self._pieces = _PieceCache(vocabulary.ids, vocabulary.unk_id)

    def words(self, text: str) -> list[str]:
        """The words that WordPiece sees: cleaned, folded, punctuation apart."""
        translated = text.translate(self._word_table)
        if SLOW_WAY not in translated:
            return translated.split()
        words: list[str] = []
        for word in text.translate(self._clean_table).split():
            translated = word.translate(self._word_table)
            if SLOW_WAY in translated:
                translated = _spaced_punctuation(_lower_without_accents(word))
            words += translated.split()
        return words

    def is_blank(self, char: str) -> bool:
        """Whether words end at the character and it is in none of them."""
        return (self._clean_table[ord(char)] or "").isspace()

    def looks_round(self, char: str) -> bool:
        """Whether what becomes of the character, or of those beside it, depends on its neighbours."""
        return self._word_table[ord(char)] == SLOW_WAY

    def stands_alone(self, char: str) -> bool:
        """Whether the character is always a word, or several, of its own."""
        replacement = self._word_table[ord(char)] or ""
        return replacement.startswith(" ") and replacement.endswith(" ")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, any length, no special tokens."""
        token_ids: list[int] = []
        for pieces in map(self._pieces.__getitem__, self.words(text)):
            token_ids += pieces
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Tokens of ids joined by blanks, `##` pieces glued to the piece before."""
        tokens = self.vocabulary.tokens
        return " ".join(tokens[i] for i in token_ids).replace(" ##", "")
