"""Dynamic masking: statistics, whole words, limits, and that a mask belongs to a row and an epoch alone."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbert.data.batch import Batch
from tfbert.data.masking import SPAN_STOP, Masking, mask_batch
from tfbert.errors import ConfigError
from tfbert.text.wordpiece import SPECIAL_TOKENS, Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)
UNUSED = 5
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, "[unused1]", *(f"t{i}" for i in range(200))])
FIRST = 6


def batch_of(rows: list[list[int]], length: int | None = None) -> Batch:
    """Rows of token ids as a batch, padded."""
    length = length or max(map(len, rows))
    token_ids = np.full((len(rows), length), PAD, np.int32)
    mask = np.zeros_like(token_ids)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return {"token_ids": token_ids, "padding_mask": mask, "weights": np.ones(len(rows), np.float32)}


def random_rows(count: int, least: int, most: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        [CLS, *rng.integers(FIRST, len(VOCABULARY), rng.integers(least, most + 1)).tolist(), SEP] for _ in range(count)
    ]


def random_words(rows: list[list[int]], share: float = 0.6) -> list[str]:
    rng = np.random.default_rng(1)
    return [
        "1" + "".join("01"[int(rng.random() < share)] for _ in row[1:-1]).replace("0", "1", 1) + "1" for row in rows
    ]


def word_starts(words: list[str], length: int) -> np.ndarray:
    return np.array([[flag == "1" for flag in row.ljust(length, "1")] for row in words])


def masked(rows: list[list[int]], words: list[str] | None = None, epoch: int = 0, **how: Any) -> tuple[Batch, Batch]:
    """(batch, masked batch)."""
    batch = batch_of(rows)
    if words is not None:
        batch["word_starts"] = word_starts(words, batch["token_ids"].shape[1])
    return batch, mask_batch(batch, np.arange(len(rows)), Masking.of(VOCABULARY, **how), epoch)


def chosen_of(result: Batch) -> np.ndarray:
    """bool (B, L), from the positions alone."""
    chosen = np.zeros(result["token_ids"].shape, bool)
    row, place = np.nonzero(result["masked_weights"])
    chosen[row, result["masked_positions"][row, place]] = True
    return chosen


def near(successes: int, trials: int, share: float) -> bool:
    """Within five standard deviations of a binomial: missed once in two million."""
    return abs(successes - trials * share) <= 5 * math.sqrt(trials * share * (1 - share)) + 1


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
def test_the_rate_and_what_stands_in_the_masked_places(rate: float) -> None:
    rows = random_rows(2000, 20, 60)
    batch, result = masked(rows, rate=rate)
    chosen = chosen_of(result)
    tokens = sum(len(row) - 2 for row in rows)
    assert near(int(chosen.sum()), tokens, rate)
    read, stood = result["token_ids"][chosen], batch["token_ids"][chosen]
    assert near(int(np.sum(read == MASK)), len(read), 0.8)
    # a random token may be the one that stood there
    same = 0.1 + 0.1 / (len(VOCABULARY) - FIRST)
    assert near(int(np.sum(read == stood)), len(read), same)
    assert near(int(np.sum((read != MASK) & (read != stood))), len(read), 0.2 - same)
    assert np.array_equal(result["token_ids"][~chosen], batch["token_ids"][~chosen])


def test_every_place_is_masked_as_often_as_any_other() -> None:
    rows = random_rows(4000, 20, 20)
    _, result = masked(rows)
    assert all(near(int(count), 4000, 0.15) for count in chosen_of(result).sum(axis=0)[1:-1])


def test_random_tokens_are_all_ordinary_ones_alike() -> None:
    """case 158: never a special token, never [unused...], never beyond the vocabulary."""
    rows = random_rows(1000, 60, 60)
    _, result = masked(rows, rate=0.5, mask_share=0.0, random_share=1.0)
    drawn = result["token_ids"][chosen_of(result)]
    assert drawn.min() >= FIRST
    assert drawn.max() < len(VOCABULARY)
    counts = np.bincount(drawn, minlength=len(VOCABULARY))[FIRST:]
    assert all(near(int(count), len(drawn), 1 / len(counts)) for count in counts)


@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_special_tokens_and_padding_stay(rate: float, unit: str) -> None:
    """case 155."""
    rows = [[CLS, 10, 11, SEP]] * 1000 + [[CLS, 12, UNK, SEP, 13, SEP]] * 500
    batch = batch_of(rows, 16)
    batch["word_starts"] = np.ones((len(rows), 16), bool)
    result = mask_batch(batch, np.arange(len(rows)), Masking.of(VOCABULARY, rate=rate, unit=unit), 0)
    chosen = chosen_of(result)
    assert not chosen[batch["token_ids"] < FIRST].any()
    assert chosen.any(axis=1).all()
    if rate == 1.0:
        assert np.array_equal(chosen, batch["token_ids"] >= FIRST)


def test_a_row_without_candidates_and_one_with_a_single_one() -> None:
    """case 156: nothing to guess counts nothing; a single token is guessed at any rate."""
    _, result = masked([[CLS, SEP], [CLS, 10, SEP], [CLS, UNK, SEP]], rate=0.01)
    assert result["masked_weights"].tolist() == [[0.0], [1.0], [0.0]]
    assert result["masked_positions"][1, 0] == 1
    assert result["masked_ids"][:, 0].tolist() == [0, 10, 0]


def test_words_are_masked_whole_or_not_at_all() -> None:
    rows = random_rows(500, 5, 60)
    words = random_words(rows)
    for unit in ("word", "ngram"):
        _, result = masked(rows, words, unit=unit)
        chosen = chosen_of(result)
        starts = word_starts(words, chosen.shape[1])
        goes_on = ~starts[:, 1:]
        assert np.array_equal(chosen[:, 1:][goes_on], chosen[:, :-1][goes_on])
        for row, flags in zip(rows, chosen, strict=True):
            assert flags.sum() <= math.ceil(0.15 * (len(row) - 2))


def test_a_long_word_is_all_or_nothing() -> None:
    """case 154: `phil ##am ##mon sings` with room for one mask, and with room for three."""
    rows = [[CLS, 10, 11, 12, 13, SEP]] * 200
    words = ["110011"] * 200
    _, result = masked(rows, words, unit="word", rate=0.25)
    assert chosen_of(result)[:, 4].all()
    assert chosen_of(result).sum() == 200
    _, result = masked(rows, words, unit="word", rate=0.75)
    phil = chosen_of(result)[:, 1:4]
    assert set(phil.sum(axis=1).tolist()) == {0, 3}


def test_a_word_longer_than_the_limit_is_never_masked() -> None:
    """case 154: the total may fall short of the limit."""
    _, result = masked([[CLS, 10, 11, 12, SEP]], ["11001"], unit="word", rate=0.15)
    assert not result["masked_weights"].any()


def test_the_smallest_word_is_masked_where_the_limit_allows_it() -> None:
    rows = [[CLS, *range(10, 20), SEP]] * 100  # rate 0.15 of 10 tokens: one or two
    _, result = masked(rows, ["1" + "10" * 5 + "1"] * 100, unit="word")
    assert chosen_of(result).sum(axis=1).tolist() == [2] * 100


def test_a_word_with_an_unknown_token_is_not_a_candidate() -> None:
    _, result = masked([[CLS, 10, UNK, 11, SEP]] * 50, ["11011"] * 50, unit="word", rate=1.0)
    assert chosen_of(result).tolist() == [[False, False, False, True, False]] * 50


def test_lengths_of_ngrams() -> None:
    """Runs of masked tokens are about as long as geometric n-grams; those of single words are not."""
    rows = random_rows(1000, 200, 200)
    words = ["1" * 202] * 1000

    def mean_run(unit: str) -> float:
        chosen = chosen_of(masked(rows, words, unit=unit, rate=0.05)[1])
        starts = chosen[:, 1:] & ~chosen[:, :-1]
        return float(chosen.sum() / starts.sum())

    shares = (1 - SPAN_STOP) ** np.arange(10)
    expected = float((shares / shares.sum()) @ np.arange(1, 11))
    assert mean_run("word") < 1.1
    assert 0.75 * expected < mean_run("ngram") < 1.15 * expected  # the last one of a row is cut, some touch


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_a_row_is_masked_alike_in_any_batch(unit: str) -> None:
    rows = random_rows(64, 3, 40)
    words = random_words(rows)
    masking = Masking.of(VOCABULARY, unit=unit, seed=3)
    batch = batch_of(rows)
    batch["word_starts"] = word_starts(words, batch["token_ids"].shape[1])
    whole = mask_batch(batch, np.arange(64), masking, 5)
    order = np.random.default_rng(0).permutation(64)
    for part in np.array_split(order, 7):
        some = batch_of([rows[i] for i in part], 48)
        some["word_starts"] = word_starts([words[i] for i in part], 48)
        result = mask_batch(some, part, masking, 5)
        width = batch["token_ids"].shape[1]
        assert np.array_equal(result["token_ids"][:, :width], whole["token_ids"][part])
        for i, row in enumerate(part):
            count = int(whole["masked_weights"][row].sum())
            for name in ("masked_positions", "masked_ids", "masked_weights"):
                assert np.array_equal(result[name][i][:count], whole[name][row][:count])
                assert not result[name][i][count:].any()


def test_epochs_seeds_and_rows_differ() -> None:
    row = [CLS, *range(10, 60), SEP]
    batch, rows = batch_of([row] * 20), np.arange(20)

    def inputs(epoch: int, seed: int) -> list[bytes]:
        result = mask_batch(batch, rows, Masking.of(VOCABULARY, seed=seed), epoch)
        return [values.tobytes() for values in result["token_ids"]]

    assert len({*inputs(0, 0), *inputs(1, 0), *inputs(0, 1), *inputs(2**40, -1)}) == 80
    assert inputs(3, 7) == inputs(3, 7)


def test_what_stood_there_is_what_is_to_be_guessed() -> None:
    rows = random_rows(50, 3, 40)
    batch, result = masked(rows)
    row, place = np.nonzero(result["masked_weights"])
    positions = result["masked_positions"][row, place]
    assert np.array_equal(result["masked_ids"][row, place], batch["token_ids"][row, positions])
    assert result["masked_positions"].shape[1] == math.ceil(0.15 * batch["token_ids"].shape[1])
    assert {result[name].dtype for name in ("token_ids", "masked_positions", "masked_ids")} == {np.dtype(np.int32)}
    assert result["masked_weights"].dtype == np.float32


def test_weights_of_rows_are_those_of_their_places() -> None:
    batch = batch_of(random_rows(3, 20, 20))
    batch["weights"] = np.array([2.0, 0.0, 0.5], np.float32)
    weights = mask_batch(batch, np.arange(3), Masking.of(VOCABULARY), 0)["masked_weights"]
    assert [set(row.tolist()) - {0.0} for row in weights] == [{2.0}, set(), {0.5}]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_rows_at_any_rate(data: st.DataObject) -> None:
    token = st.integers(0, len(VOCABULARY) - 1)
    rows = data.draw(st.lists(st.lists(token, min_size=1, max_size=30), min_size=1, max_size=5))
    words = [data.draw(st.lists(st.sampled_from("01"), min_size=len(r), max_size=len(r)).map("".join)) for r in rows]
    unit = data.draw(st.sampled_from(["token", "word", "ngram"]))
    rate = data.draw(st.floats(0.01, 1.0))
    batch, result = masked(rows, words, unit=unit, rate=rate, epoch=data.draw(st.integers(0, 2**31)))
    chosen = chosen_of(result)
    assert not chosen[batch["token_ids"] <= MASK].any()
    assert np.array_equal(result["token_ids"][~chosen], batch["token_ids"][~chosen])
    for i, row in enumerate(rows):
        flags = "1" * len(row) if unit == "token" else "1" + words[i][1:]
        cuts = [*[k for k, flag in enumerate(flags) if flag == "1"], len(row)]
        spans = [range(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
        free = [span for span in spans if all(row[k] > MASK for k in span)]
        limit = max(1, math.ceil(rate * sum(map(len, free))))
        here = {int(k) for k in np.flatnonzero(chosen[i])}
        assert len(here) <= limit
        assert here == {k for span in free if here & set(span) for k in span}
        assert bool(here) == any(len(span) <= limit for span in free)


@pytest.mark.parametrize(
    "how",
    [{"rate": 0.0}, {"rate": 1.1}, {"unit": "letter"}, {"mask_share": 0.9, "random_share": 0.2}, {"max_ngram": 0}],
)
def test_settings_that_make_no_sense(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Received"):
        Masking.of(VOCABULARY, **how)


def test_vocabularies_that_cannot_be_masked() -> None:
    with pytest.raises(ConfigError, match=r"\[MASK\]"):
        Masking.of(Vocabulary(SPECIAL_TOKENS[:4]))
    with pytest.raises(ConfigError, match="not special"):
        Masking.of(Vocabulary([*SPECIAL_TOKENS, "[unused1]"]))


def test_padding_is_padding_whatever_its_id() -> None:
    batch = batch_of([[CLS, 10, SEP]] * 100, 40)
    batch["token_ids"][:, 3:] = 50
    assert chosen_of(mask_batch(batch, np.arange(100), Masking.of(VOCABULARY, rate=0.5), 0)).sum() == 100
