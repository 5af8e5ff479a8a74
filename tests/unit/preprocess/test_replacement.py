"""Words where they stand, passes for the model, neighbours of vectors: the parts of `preprocess augment`."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_models import TOKENS

from preprocess.replacement import PassBuilder, PassSettings, tokenize
from preprocess.rewrite import take_apart
from preprocess.variants import Column, delete_words
from preprocess.vectors import Neighbours, load_vectors
from preprocess.words import (
    CHINESE_NEGATIONS,
    NEGATIONS,
    STOP_WORDS,
    candidate_tokens,
    find_words,
    is_plain,
    is_plain_chinese,
    is_replaceable,
    like,
    replace_words,
)
from tfbert.data.source import Source
from tfbert.errors import DataError
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

VOCABULARY = Vocabulary(TOKENS)
TOKENIZER = WordPieceTokenizer(VOCABULARY)


# ------------------------------------------------------------------------------------------------------------- words


def test_words_are_found_where_they_stand() -> None:
    text = "Don't stop-motion, it’s 3D; naïve cafe\u0301 'quoted' 最大的ABC城市！\U0001f600 a_b"
    words = [text[word.start : word.end] for word in find_words(text, lambda run: [run[:2], *run[2:]])]
    assert words == [
        "Don't", "stop", "motion", "it’s", "3D", "naïve", "cafe\u0301", "quoted", "最大", "的", "ABC", "城市",
        "\U0001f600", "a", "b",
    ]  # fmt: skip
    assert [word.text for word in find_words(text, list) if word.chinese] == list("最大的城市")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_put_together_again(text: str) -> None:
    words = find_words(text, None)
    assert replace_words(text, words, [word.text for word in words]) == text
    assert all(text[word.start : word.end] == word.text != "" for word in words)
    assert all(a.end <= b.start for a, b in zip(words, words[1:], strict=False))


@pytest.mark.parametrize(
    "word", ["Not", "isn't", "WON’T", "don’t", "the", "I'll", "x", "2nd", "'s", "ca", "\U0001f600"]
)
def test_words_that_stay(word: str) -> None:
    """Case 136."""
    assert not is_plain(word)


def test_lists_are_as_they_are_used() -> None:
    assert all(word == word.lower() for word in STOP_WORDS | NEGATIONS)
    assert all(len(char) == 1 for char in CHINESE_NEGATIONS)
    assert is_plain("naïve")
    assert is_plain_chinese("电影")
    assert not is_plain_chinese("不好")
    assert not is_plain_chinese("的")


def test_candidates_are_whole_tokens() -> None:
    letters, chinese = candidate_tokens(Vocabulary([*TOKENS, "good", "中国", "x"]))
    found = {token for token, allowed in zip([*TOKENS, "good"], letters, strict=False) if allowed}
    assert {"good", "film"} <= found
    assert not found & {"the", "not", "over", "##s", "[MASK]", "[unused1]", "1", ",", "最", "x"}
    assert letters[-3]  # of two equal lines the last one has the id
    assert not letters[TOKENS.index("good")]
    assert not chinese[-2]
    assert [token for token, allowed in zip(TOKENS, chinese, strict=False) if allowed][:3] == ["最", "大", "的"]


@pytest.mark.parametrize(
    ("word", "model", "expected"),
    [("film", "movie", "film"), ("film", "Movie", "Film"), ("film", "MOVIE", "FILM"), ("film", "I", "Film"),
     ("NASA", "movie", "NASA"), ("film", "moVie", "film"), ("好", "坏", "好")],
)  # fmt: skip
def test_letter_case(word: str, model: str, expected: str) -> None:
    assert like(word, model) == expected


# ------------------------------------------------------------------------------------------------------------ passes


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 80),
    positions=st.sampled_from([12, 17, 64, 512]),
    share=st.sampled_from([0.0, 0.1, 0.15, 0.5]),
    original=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_word_is_masked_once_inside_the_model(
    count: int, positions: int, share: float, original: bool, seed: int
) -> None:
    """Case 132: rows fit, segments fit rows, each position holds [MASK], and nothing else is changed."""
    draw = np.random.default_rng(seed)
    words = draw.choice(["good", "the", "movie", "overblown", "最大", "城市", "zzz", "2"], count)
    text = " ".join(words)
    found = find_words(text, lambda run: [run])
    ids, slots = tokenize(text, found, [w for w in found if is_replaceable(w)], TOKENIZER)
    assert ids == TOKENIZER.encode(text)
    assert [slot.word.text for slot in slots] == [w for w in words if w in ("good", "movie", "最大", "城市")]
    builder = PassBuilder(PassSettings(positions, share, original), VOCABULARY)
    of_words = builder.add(ids, slots)
    assert set(of_words) == {slot.word for slot in slots}
    rows = builder.rows()
    assert len(rows.position_row) == sum(slot.length for slot in slots)
    window = builder.settings.window
    starts = [0, *rows.ends][:-1]
    for row, (start, end) in enumerate(zip(starts, rows.ends, strict=True)):
        tokens = rows.token_ids[start:end].tolist()
        here = rows.position_column[rows.position_row == row].tolist()
        first = int(rows.first_segment[row])
        assert len(tokens) <= positions
        assert (tokens[0], tokens[first - 1], tokens[-1]) == (VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.sep_id)
        assert [i for i, token in enumerate(tokens[:first]) if token == VOCABULARY.mask_id] == sorted(here)
        assert len(tokens) == (2 * first - 1 if original else first)
        assert first == min(len(ids), window) + 2
        assert len(here) <= max(2, int(share * first) + 2)
        if original:
            seen = tokens[first:-1]
            assert any(seen == ids[i : i + window] for i in range(len(ids)))
            assert [a for a, b in zip(tokens[1 : first - 1], seen, strict=True) if a != b] == [
                VOCABULARY.mask_id
            ] * len(here)
    for slot in slots:
        where = [int(rows.position_column[p]) for p in of_words[slot.word]]
        assert where == list(range(where[0], where[0] + slot.length))
        if len(ids) > window:  # neighbours on both sides, where the text has some
            assert where[0] > min(slot.start, window // 8)
            assert where[-1] <= window


# ----------------------------------------------------------------------------------------------------------- vectors


def test_a_header_and_odd_rows(tmp_path: Path) -> None:
    """Case 137."""
    path = tmp_path / "v.txt"
    path.write_bytes(b"3 2\na 1 0\nb .9 .1 \n. . 0 1\nc x 1\n\xff 1 1\na 0 1\nd 0 0\n\ne nan 1\n")
    vectors = load_vectors(path, 0)
    assert vectors.words == ["a", "b"]
    np.testing.assert_allclose(np.linalg.norm(vectors.vectors, axis=1), 1, rtol=1e-6)
    assert vectors.skipped == {
        "other number of fields": 1, "not a number": 1, "not UTF-8": 1, "repeated": 1, "without a direction": 2,
    }  # fmt: skip


def test_without_a_header_the_usual_number_of_fields_counts(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("two words 1 2 3\nthe 1 2 3\nof 3 2 1\r\n7 1 1 1\n", encoding="utf-8")
    assert load_vectors(path, 0).words == ["the", "of", "7"]
    assert load_vectors(path, 1).words == ["the"]


@pytest.mark.parametrize("content", ["", "\n\n", "3 2\n", "word\n"])
def test_a_file_without_vectors_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"v\.txt: a vector file holds a word and its numbers a line"):
        load_vectors(path, 0)


def test_real_vectors_have_sensible_neighbours(shared_data: Path) -> None:
    vectors = load_vectors(shared_data / "embeddings/glove.6B.50d.subset.txt", 0)
    assert vectors.vectors.shape == (2446, 50)
    found = Neighbours(vectors, 15)(["movie", "Monday", "zzzz"])
    assert "film" in found["movie"][:3]
    assert "tuesday" in found["Monday"]
    assert found["zzzz"] == ()


def test_neighbours_are_those_of_a_plain_product(tmp_path: Path) -> None:
    """Whatever they are looked up together with, to the last one."""
    draw = np.random.default_rng(0)
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}qw" for i in range(400)]
    path = tmp_path / "v.txt"
    rows = [f"{word} {' '.join(map(str, draw.normal(size=5)))}\n" for word in words]
    path.write_text("".join(rows), encoding="utf-8")
    vectors = load_vectors(path, 0)
    similarity = vectors.vectors.astype(np.float64) @ vectors.vectors.T.astype(np.float64)
    np.fill_diagonal(similarity, -2)
    together = Neighbours(vectors, 7)(words)
    alone = Neighbours(vectors, 7)
    for i in range(0, 400, 7):
        expected = tuple(words[j] for j in np.argsort(-similarity[i])[:7])
        assert together[words[i]] == expected
        assert alone([words[i]])[words[i]] == expected


# ---------------------------------------------------------------------------------------------------- records and EDA


@given(st.lists(st.text(alphabet='ab,"\r\n ', max_size=6), min_size=2, max_size=4), st.booleans())
def test_fields_of_csv_are_those_of_the_reader(fields: list[str], quote_all: bool) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL).writerow(fields)
    record = text.getvalue().encode()
    source = Source("x.csv", "csv", False, 0, 0, None, (1, 0))
    apart = take_apart(source, record)
    assert apart.texts == (fields[1], fields[0])
    assert apart.fill(apart.texts) == record
    changed = apart.fill(["x,\ny", fields[0]], ("n", "id"))
    assert next(csv.reader(io.StringIO(changed.decode(), newline=""))) == [fields[0], "x,\ny", *fields[2:], "id"]


def test_deleting_takes_one_blank_along() -> None:
    text = "a bb cc. dd"
    words = find_words(text, None)
    column = Column(text, words, {})
    rng = np.random.default_rng(0)
    found = {delete_words(rng, column, 0.5) for _ in range(200)}
    assert {"bb cc. dd", "a cc. dd", "a bb. dd", "a bb cc."} <= found
    assert not any("  " in deleted for deleted in found)
    assert "not" in delete_words(rng, Column("not a", find_words("not a", None), {}), 0.99)
