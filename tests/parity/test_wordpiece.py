"""Ids equal Google's rules on every string: each code point, hostile neighbours, long words, real texts."""

import os
import string
import sys
import unicodedata
from pathlib import Path

import google_rules as google
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

SHARED = Path(os.environ.get("TFBERT_SHARED", Path(__file__).parents[2].parent / "shared"))
DATA = SHARED / "data"
VOCABULARIES = {"zh": DATA / "vocab/bert-base-chinese/vocab.txt", "en": DATA / "vocab/bert-base-uncased/vocab.txt"}
TEXTS = {
    "zh": ("zh/**/*.txt", "zh/**/*.json", "zh/**/*.tsv", "zh/**/*.csv", "text/zh_*"),
    "en": ("en/**/*.tsv", "en/**/*.txt", "text/en_*"),
}
CHARS_A_FILE = 20_000

# Single characters and pieces of every length, so that a text that is split otherwise gets other ids.
SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.printable.strip(), *"你好界ßǆςσιаб가ᄀ", "un", "hello"]
SMALL += [f"##{token}" for token in SMALL[5:]] + ["##ing", "##llo", "##123", "ab", "##ab", "##aaa"]


def tokenizers(tokens: list[str]) -> dict[bool, WordPieceTokenizer]:
    return {cased: WordPieceTokenizer(Vocabulary(tokens), cased) for cased in (False, True)}


OURS = tokenizers(SMALL)
IDS = {token: i for i, token in enumerate(SMALL)}


def check(text: str) -> None:
    for cased, tokenizer in OURS.items():
        assert tokenizer.words(text) == google.basic_words(text, not cased)
        assert tokenizer.encode(text) == google.token_ids(text, IDS, not cased)


# Characters whose treatment depends on their neighbours, or that ports of the rules get wrong.
HORRIBLE = [
    *"aZ'’.·:- \t\n\r\x00\x01\x0b\x0c\x1c\x1f\x7f\x85\xa0\xad",
    *"ΣσςΑΆᾳ\u0345ͺ",  # final sigma; the iota that is cased, ignorable and a mark
    *"éÅÅKİıẞǅǄﬀŉ",  # case and decomposition that change the length
    *"\u0300\u0301\u0327\u0323\u0334\u0338\u20e3\u20dd\u0488",  # marks of several classes, enclosing marks
    *"\u302e\u302f\u1dfa\U0001d165\U0001d166\U0001d16d\U0001d172\u093c\u09be\u0e38\u0f71\u3099\u309a",
    *"が각가각ﾞ",  # kana with marks, Hangul in one and in three pieces
    *"中〇㐀龥鿿豈﨎\U0002f800\U00020000\U0002ceb0\U00030000",  # ideographs inside and outside of Google's blocks
    *"\u200b\u200c\u200d\u200e\u2028\u2029\u202e\u2060\u3000\u180e\ufeff\ufffd\ufff9\ufffc\ufffe",
    *"\ue000\U000f0000\U0010ffff\U000e0001\U000e0041",  # private use, tags, not a character
    *"👩🫨❤\ufe0f\U0001f3fd",
    *";`´〈。，！＂＃＿｡［$+<=>^|~€×÷°",  # punctuation by category, by decomposition, and signs that are none
]
ANY = st.characters(exclude_categories=["Cs"])
WORDS = st.sampled_from(["hello", "unaffable", "[SEP]", "[MASK]", "##ing", "HELLO", "ΟΔΥΣΣΕΥΣ", "a" * 200, "a" * 201])


@settings(max_examples=600, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(HORRIBLE), st.sampled_from(HORRIBLE), ANY, WORDS), max_size=25))
@example(["Σ"])
@example(["ΑΣ", "\u0301", "'", "\u00ad", "Σ"])
@example(["a", "\U0001d16d", "\U0001d165", "\u0301", "\U0001d165"])
@example(["\u302e", "\u0301", "\u302f", "\u302e"])
def test_horrible_strings(parts: list[str]):
    check("".join(parts))


@settings(max_examples=200, deadline=None)
@given(st.text(ANY, max_size=60))
def test_any_text(text: str):
    check(text)


@settings(max_examples=200, deadline=None)
@given(st.text("ΣσΑ'\u0301\u0345\u00ad.1 ", min_size=1, max_size=12))
def test_final_sigma(text: str):
    check(text)


@settings(max_examples=200, deadline=None)
@given(st.text("\u0301\u0327\u0323\u093c\u302e\u302f\U0001d165\U0001d16d\U0001d172a가Σ", min_size=1, max_size=12))
def test_order_of_combining_marks(text: str):
    check(text)


@pytest.mark.parametrize("cased", [False, True])
def test_every_assigned_code_point_alone_and_in_a_word(cased: bool):
    tokenizer = OURS[cased]
    skipped = ("Cn", "Co", "Cs")
    points = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in skipped]
    assert len(points) > 140_000
    for start in range(0, len(points), 500):
        text = " ".join(f"{char} b{char}A" for char in points[start : start + 500])
        if tokenizer.words(text) != google.basic_words(text, not cased):
            for char in points[start : start + 500]:
                assert tokenizer.words(f"{char} b{char}A") == google.basic_words(f"{char} b{char}A", not cased), char


@pytest.mark.parametrize("char", ["a", "é", "가", "İ", "ß", "字", "\u0301", "！", "\ue000", "𝐀"])
def test_the_length_limit_counts_what_is_left_of_a_word(char: str):
    """Case 037: 200 characters after lower-casing and decomposition are matched, 201 are [UNK]."""
    for count in (66, 67, 99, 100, 101, 150, 199, 200, 201, 400):
        check(char * count)
        check("x" + char * count + ".")


def test_the_oracle_itself():
    """Case 050: expectations made by hand, so that the reference is not trusted blindly."""
    assert google.basic_words("你好,World", True) == ["你", "好", ",", "world"]
    assert google.basic_words("Résumé İstanbul ẞ Ǆ", True) == ["resume", "istanbul", "ß", "ǆ"]
    assert google.basic_words("Résumé", False) == ["Résumé"]
    assert google.basic_words("a\x00b\ufffdc\td\u3000e\u200bf", True) == ["abc", "d", "ef"]
    assert google.basic_words("ΟΔΟΣ ΣΑΣ.", True) == ["οδος", "σας", "."]
    vocabulary = {"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3}
    assert google.word_pieces("unaffable", vocabulary) == ["un", "##aff", "##able"]
    assert google.word_pieces("unafford", vocabulary) == ["[UNK]"]
    assert google.truncate_pair([1] * 50, [2] * 50, 7) == ([1] * 4, [2] * 3)


def real_lines(language: str) -> list[str]:
    """Whole lines from all over every text file; tabs, quotes and braces are text as well."""
    lines = []
    for pattern in TEXTS[language]:
        for path in sorted(DATA.glob(pattern)):
            of_file = path.read_bytes().decode("utf-8").split("\n")
            step = max(1, sum(map(len, of_file)) // CHARS_A_FILE)
            lines += [line[:5000] for line in of_file[::step]]
    return lines


@pytest.mark.parametrize("language", ["zh", "en"])
def test_real_texts_and_vocabularies(language: str):
    if not DATA.is_dir():
        pytest.skip(f"the real texts are not at {DATA}")
    ids = google.read_vocabulary(VOCABULARIES[language])
    vocabulary = Vocabulary.load(VOCABULARIES[language])
    assert {token: i for token, i in vocabulary.ids.items() if token.strip()} == {
        token: i for token, i in ids.items() if token.strip()
    }
    lines = real_lines(language)
    assert sum(map(len, lines)) > 200_000
    for cased in (False, True):
        tokenizer = WordPieceTokenizer(vocabulary, cased)
        for line in lines:
            assert tokenizer.encode(line) == google.token_ids(line, ids, not cased), line
