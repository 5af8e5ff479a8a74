"""Word vectors from text files, and the nearest neighbours of words.

Formats: GloVe (a word and its numbers a line, separated by blanks) and word2vec text (the same behind a line with the
number of words and of dimensions).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preprocess.words import is_candidate
from tfbert.errors import DataError
from tfbert.progress import logger

BLOCK_WORDS = 128  # words looked up together
_SAMPLE = 100  # lines that tell the number of dimensions


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, of length 1.

    Attributes:
        words: in the order of the file: frequent ones first, mostly.
        vectors: float32 (words, dimensions).
        skipped: lines that are no such row, by reason.
    """

    words: list[str]
    vectors: npt.NDArray[np.float32]
    skipped: Counter[str]


def load_vectors(path: Path, limit: int) -> WordVectors:
    """Reads a file.

    Args:
        path: the file, UTF-8.
        limit: most rows to take from its start; 0 takes all.

    Raises:
        DataError: the file cannot be read, or holds no vector.
    """
    words: dict[str, int] = {}
    rows: list[npt.NDArray[np.float32]] = []
    skipped: Counter[str] = Counter()
    try:
        with path.open("rb") as file:
            dimensions, has_header = _find_dimensions([file.readline() for _ in range(_SAMPLE)])
            file.seek(0)
            if has_header:
                file.readline()
            for line in file:
                if limit and len(rows) == limit:
                    break
                row = _read_row(line, dimensions)
                reason = row if isinstance(row, str) else "repeated" if row[0] in words else ""
                if reason or isinstance(row, str):
                    skipped[reason] += reason != "blank"
                    continue
                words[row[0]] = len(rows)
                rows.append(row[1])
    except OSError as error:
        raise DataError(f"{path}: the vectors cannot be read. Received: {error.strerror}.") from error
    if not rows:
        raise DataError(
            f"{path}: a vector file holds a word and its numbers a line, separated by blanks. Received: no such line"
            f"{''.join(f', {n} {reason}' for reason, n in skipped.items())}."
        )
    if skipped.total():
        reasons = ", ".join(f"{reason}: {n:,}" for reason, n in sorted(skipped.items()) if n)
        logger.warning("%s: %s lines are left out (%s)", path, f"{skipped.total():,}", reasons)
    return WordVectors(list(words), np.stack(rows), +skipped)


def _find_dimensions(lines: list[bytes]) -> tuple[int, bool]:
    """Numbers a row, and whether the first line is a header: two whole numbers."""
    fields = [line.split() for line in lines if line.strip()]
    has_header = bool(fields) and len(fields[0]) == 2 and all(field.isdigit() for field in fields[0])
    if has_header:
        return int(fields[0][1]), True
    counts = Counter(len(row) - 1 for row in fields)
    return (counts.most_common(1)[0][0] if counts else 0), False


def _read_row(line: bytes, dimensions: int) -> tuple[str, npt.NDArray[np.float32]] | str:
    """A word and its vector, or what is wrong with the line."""
    fields = line.split()
    if not fields:
        return "blank"
    if dimensions < 1 or len(fields) != dimensions + 1:
        return "other number of fields"
    try:
        word = fields[0].decode("utf-8")
        vector = np.array(fields[1:], np.float32)
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError:
        return "not a number"
    length = float(np.linalg.norm(vector))
    if not 0 < length < np.inf:
        return "without a direction"
    return word, vector / np.float32(length)


class Neighbours:
    """The nearest words of words by the cosine, found once a word.

    The product has one shape whatever is looked up together, so the answer for a word is always the same.

    Args:
        vectors: of the words.
        top: K, neighbours a word.
        candidate: which words may be neighbours.
    """

    def __init__(self, vectors: WordVectors, top: int, candidate: Callable[[str], bool] = is_candidate):
        self._vectors, self._top = vectors.vectors, top
        self._at = {word: i for i, word in enumerate(vectors.words)}
        chosen = [i for i, word in enumerate(vectors.words) if candidate(word)]
        self._words = [vectors.words[i] for i in chosen]
        self._table = np.ascontiguousarray(self._vectors[chosen].T)  # (dimensions, candidates)
        self._found: dict[str, tuple[str, ...]] = {}

    def __call__(self, words: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Neighbours of each word, nearest first; none for a word without a vector."""
        words = list(words)
        new = sorted({key for key in map(self._key, words) if key is not None and key not in self._found})
        for i in range(0, len(new), BLOCK_WORDS):
            self._look_up(new[i : i + BLOCK_WORDS])
        found = {}
        for word in words:
            key = self._key(word)
            found[word] = self._found[key] if key is not None else ()
        return found

    def _key(self, word: str) -> str | None:
        """How a word is spelt in the file: as it is, or in lower case."""
        return next((form for form in (word, word.lower()) if form in self._at), None)

    def _look_up(self, words: list[str]) -> None:
        queries = np.zeros((BLOCK_WORDS, self._vectors.shape[1]), np.float32)
        queries[: len(words)] = self._vectors[[self._at[word] for word in words]]
        similarity = queries @ self._table
        count = min(self._top + 4, len(self._words))  # the word itself and its other spellings are among them
        for word, row in zip(words, similarity, strict=False):
            nearest = np.argpartition(-row, count - 1)[:count] if count < len(row) else np.arange(len(row))
            nearest = nearest[np.lexsort((nearest, -row[nearest]))]
            others = [self._words[i] for i in nearest if self._words[i].lower() != word.lower()]
            self._found[word] = tuple(others[: self._top])
