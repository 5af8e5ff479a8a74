"""Variants of the texts of a row: words replaced by candidates (TinyBERT), or the operations of EDA.

Everything is drawn from a generator of the row's own, so a variant depends on the seed, the texts and the settings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from preprocess.words import Word, is_negation, replace_words

ROUNDS = 4  # variants that come out equal are drawn again, so many times as many in all
Texts = tuple[str, ...]


class Column(NamedTuple):
    """One text of a row.

    Attributes:
        text: the original.
        words: all words of it.
        candidates: of the words that have some.
    """

    text: str
    words: Sequence[Word]
    candidates: Mapping[Word, Sequence[str]]


Draw = Callable[[np.random.Generator, Sequence[Column], int], Iterator[Texts]]


def distinct(draw: Draw, rng: np.random.Generator, columns: Sequence[Column], count: int) -> list[Texts]:
    """At most `count` variants, different from each other and from the original; fewer where there are no more."""
    original = tuple(column.text for column in columns)
    found: dict[Texts, None] = {}
    for _ in range(ROUNDS):
        for texts in draw(rng, columns, count):
            if texts != original and len(found) < count:
                found[texts] = None
        if len(found) == count:
            break
    return list(found)


def replacements(probability: float) -> Draw:
    """Each word that has candidates becomes one of them with a probability.

    Source: Jiao et al. 2020, arXiv 1909.10351, algorithm 1; all columns are drawn together, from the original row.
    """

    def draw(rng: np.random.Generator, columns: Sequence[Column], count: int) -> Iterator[Texts]:
        per_column = [list(column.candidates) for column in columns]
        total = sum(map(len, per_column))
        if not total:
            return
        for changed, which in zip(rng.random((count, total)) < probability, rng.random((count, total)), strict=True):
            texts = []
            at = 0
            for column, words in zip(columns, per_column, strict=True):
                here = [i for i in range(len(words)) if changed[at + i]]
                new = [_pick(column.candidates[words[i]], which[at + i]) for i in here]
                texts.append(replace_words(column.text, [words[i] for i in here], new))
                at += len(words)
            yield tuple(texts)

    return draw


def _pick(candidates: Sequence[str], number: float) -> str:
    return candidates[int(number * len(candidates))]


def operations(names: Sequence[str], rate: float) -> Draw:
    """The operations of EDA, one after the other; each on every column that has words.

    Source: Wei and Zou 2019, arXiv 1901.11196. Differences: synonyms are neighbours in a space of word vectors;
    negation words are not deleted.
    """

    def draw(rng: np.random.Generator, columns: Sequence[Column], count: int) -> Iterator[Texts]:
        for i in range(count):
            change = OPERATIONS[names[i % len(names)]]
            yield tuple(change(rng, column, rate) if column.words else column.text for column in columns)

    return draw


def delete_words(rng: np.random.Generator, column: Column, rate: float) -> str:
    """Leaves out each word with a probability, and one blank beside it; negations and the last word left stay."""
    drawn = rng.random(len(column.words)) < rate
    gone = [word for word, chosen in zip(column.words, drawn, strict=True) if chosen and not is_negation(word)]
    if len(gone) == len(column.words):
        del gone[int(rng.integers(len(gone)))]
    text = column.text
    wider: list[Word] = []
    for word in gone:
        start, end = word.start, word.end
        if text[end : end + 1] == " ":
            end += 1
        elif text[start - 1 : start] == " " and (not wider or wider[-1].end < start):
            start -= 1
        wider.append(word._replace(start=start, end=end))
    return replace_words(text, wider, [""] * len(wider))


def swap_words(rng: np.random.Generator, column: Column, rate: float) -> str:
    """Exchanges two words, `rate` times the number of words, at least once."""
    order = list(range(len(column.words)))
    if len(order) > 1:
        for _ in range(max(1, int(rate * len(order)))):
            i, j = rng.choice(len(order), 2, replace=False)
            order[i], order[j] = order[j], order[i]
    return replace_words(column.text, column.words, [column.words[i].text for i in order])


def replace_by_synonyms(rng: np.random.Generator, column: Column, rate: float) -> str:
    """Replaces `rate` times the number of words, at least one, of those that have candidates."""
    words = list(column.candidates)
    count = min(len(words), max(1, int(rate * len(column.words))))
    chosen = sorted(rng.choice(len(words), count, replace=False)) if count else []
    new = [_pick(column.candidates[words[i]], rng.random()) for i in chosen]
    return replace_words(column.text, [words[i] for i in chosen], new)


OPERATIONS: dict[str, Callable[[np.random.Generator, Column, float], str]] = {
    "delete": delete_words,
    "swap": swap_words,
    "synonym": replace_by_synonyms,
}
