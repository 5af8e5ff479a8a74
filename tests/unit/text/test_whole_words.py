"""Ids are those of the tokenizer, words those of a segmenter, as far as the tokenizer parts them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbert.text.whole_words import PieceWords, SegmentedWords
from tfbert.text.wordpiece import SPECIAL_TOKENS, Vocabulary, WordPieceTokenizer

TOKENS = [*SPECIAL_TOKENS, *"abcσς.,-", *(f"##{c}" for c in "abcσς"), *"我来使用语言模型"]
TEXTS = st.text(alphabet="abcABΣ .,-我来使用\u0301\u200bé\u3000ﬁ\u037e", max_size=20)


def tokenizer(cased: bool = False) -> WordPieceTokenizer:
    return WordPieceTokenizer(Vocabulary(TOKENS), cased)


def shown(words: PieceWords | SegmentedWords, text: str) -> str:
    """`phil+##am 我` : words apart, tokens of a word joined by +."""
    (ids, lengths), begins = words.encode([text])
    assert lengths.tolist() == [len(ids)]
    return "".join((" " if begin else "+") + TOKENS[i] for i, begin in zip(ids, begins, strict=True)).strip()


def test_pieces_of_a_word_belong_together() -> None:
    assert shown(PieceWords(tokenizer()), "abc a-b 我来") == "a+##b+##c a - b 我 来"
    assert shown(PieceWords(tokenizer()), "") == ""


def test_words_of_a_segmenter() -> None:
    words = SegmentedWords(tokenizer(), lambda text: ["使用", "语言", "模型", "abc", " ", "我"])
    assert shown(words, "使用语言模型abc 我") == "使+用 语+言 模+型 a+##b+##c 我"


def test_words_that_the_tokenizer_does_not_part_are_one() -> None:
    """`a|bc` cut inside a piece, a letter and its accent, a character that is dropped."""
    words = SegmentedWords(tokenizer(), list)
    assert shown(words, "abc我") == "a+##b+##c 我"
    assert shown(words, "a\u0301b 我\u200ba") == "a+##b 我 a"
    assert shown(words, "a-b") == "a - b"


def test_an_unknown_word_is_one_token() -> None:
    assert shown(PieceWords(tokenizer()), "xyz a") == "[UNK] a"


@pytest.mark.parametrize("text", ["A.Σ", "aΣ.b", "A我Σ", "a-Σ b.Σ", "AΣ"])
def test_a_sigma_is_final_by_what_stands_around_it(text: str) -> None:
    """Also behind a sign, where the text is lowered before it is parted."""
    (ids, _), _ = SegmentedWords(tokenizer(), list).encode([text])
    assert ids.tolist() == tokenizer().encode(text)


@pytest.mark.parametrize("cased", [False, True])
@given(text=TEXTS, data=st.data())
def test_ids_are_those_of_the_whole_text(cased: bool, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6)))
    words = [text[a:b] for a, b in itertools.pairwise([0, *(c for c in cuts if c < len(text)), len(text)]) if a < b]
    plain = tokenizer(cased)
    cuts_of = {text: words, "": [], "我a": ["我a"]}
    for encoder in (PieceWords(plain), SegmentedWords(plain, cuts_of.__getitem__)):
        texts = [text, "", "我a", text]
        (ids, lengths), begins = encoder.encode(texts)
        assert lengths.tolist() == [len(plain.encode(each)) for each in texts]
        assert ids.tolist() == [i for each in texts for i in plain.encode(each)]
        starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        assert begins[starts].all()
        # a piece never begins a word
        assert not any(begin and TOKENS[i].startswith("##") for i, begin in zip(ids, begins, strict=True))


def test_jieba_and_its_user_dictionary(tmp_path) -> None:
    from preprocess.segment import make_cut

    text = "使用语言模型"
    vocabulary = Vocabulary(TOKENS)
    plain = shown(SegmentedWords(WordPieceTokenizer(vocabulary), make_cut("jieba", None, True)), text)
    assert plain == "使+用 语+言 模+型"
    words = tmp_path / "words.txt"
    words.write_text("语言模型 100000\n", encoding="utf-8")
    with_dictionary = SegmentedWords(WordPieceTokenizer(vocabulary), make_cut("jieba", str(words), True))
    assert shown(with_dictionary, text) == "使+用 语+言+模+型"
