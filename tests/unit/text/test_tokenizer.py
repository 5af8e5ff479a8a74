"""Text to ids, by examples worked out by hand; parity with the whole rule set is tested in tests/parity."""

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tfbert.text import wordpiece
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

ROOT = Path(__file__).parents[3]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def pieces(text: str, tokens: list[str], cased: bool = False) -> list[str]:
    vocabulary = Vocabulary([*SPECIAL, *tokens])
    return [vocabulary.tokens[i] for i in WordPieceTokenizer(vocabulary, cased).encode(text)]


def words(text: str, cased: bool = False) -> list[str]:
    return WordPieceTokenizer(Vocabulary(SPECIAL), cased).words(text)


def test_longest_piece_first():
    tokens = ["un", "u", "##n", "##aff", "##able", "##a", "##ffable", "##affa"]
    assert pieces("unaffable", tokens[:5]) == ["un", "##aff", "##able"]
    assert pieces("unaffable unaff", tokens) == ["[UNK]", "un", "##aff"]  # greedy takes ##affa and does not go back


def test_one_unknown_piece_makes_the_whole_word_unknown():
    """Case 036."""
    assert pieces("unaffable un unaff", ["un", "##aff"]) == ["[UNK]", "un", "un", "##aff"]
    assert pieces("xun", ["un", "##un"]) == ["[UNK]"]
    assert pieces("", ["un"]) == []


def test_a_continuation_piece_does_not_begin_a_word():
    assert pieces("able", ["##able"]) == ["[UNK]"]
    assert pieces("##able", ["##able", "#"]) == ["#", "#", "[UNK]"]


@pytest.mark.parametrize("count, unknown", [(101, False), (150, False), (200, False), (201, True), (100_000, True)])
def test_words_of_more_than_200_characters_are_unknown(count: int, unknown: bool):
    """Case 037."""
    wanted = ["[UNK]"] if unknown else ["a"] + ["##a"] * (count - 1)
    assert pieces("a" * count, ["a", "##a"]) == wanted
    assert pieces(f"a {'a' * count}.", ["a", "##a", "."]) == ["a", *wanted, "."]


@pytest.mark.parametrize("cased", [False, True])
def test_control_and_format_characters(cased: bool):
    """Case 038."""
    text = "a\x00b c\ufffdd e\u200bf g\th i\nj k\x7fl m\u00adn o\ue000p"
    assert words(text, cased) == ["ab", "cd", "ef", "g", "h", "i", "j", "kl", "mn", "o\ue000p"]
    assert words("a\x0bb\x0cc\x1cd\x85e f\u2028g\u2029h", cased) == ["abcde", "f", "g", "h"]
    assert words("a\u00a0b\u3000c\u2003d\re", cased) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "\x00", "\u3000\t\n", "\ufffd\ufeff"])
def test_texts_without_words(text: str):
    assert words(text) == words(text, cased=True) == []


def test_case_and_accents():
    """Case 039."""
    assert words("Résumé İstanbul ẞ Ǆ") == ["resume", "istanbul", "ß", "ǆ"]
    assert words("Résumé İstanbul ẞ Ǆ", cased=True) == ["Résumé", "İstanbul", "ẞ", "Ǆ"]
    assert words("ÀÉÎõü ﬁ Å") == ["aeiou", "ﬁ", "a"]


def test_final_sigma_depends_on_the_word_alone():
    assert words("ΟΔΟΣ ΣΑΣ. Σ ΟΔΟΣ中") == ["οδος", "σας", ".", "σ", "οδος", "中"]
    assert words("ΑΣ\u00adΑ ΑΣ'Α ΑΣ' Α\u0301Σ") == ["ασα", "ασ", "'", "α", "ας", "'", "ας"]


def test_kept_marks_are_put_in_canonical_order():
    swapped, ordered = "\U0001d16d\U0001d165", "\U0001d165\U0001d16d"
    assert words(f"a{swapped} b{ordered} \U0001d16d") == [f"a{ordered}", f"b{ordered}", "\U0001d16d"]
    assert words(f"a{swapped}", cased=True) == [f"a{swapped}"]


def test_ideographs_stand_alone_and_other_east_asian_letters_do_not():
    assert words("iPhone中国123岁") == ["iphone", "中", "国", "123", "岁"]
    assert words("カタカナひらがな漢字") == ["カタカナひらかな", "漢", "字"]
    assert words("\U00020000a\U0002f800") == ["\U00020000", "a", unicodedata.normalize("NFD", "\U0002f800")]
    assert words("〇〆") == ["〇〆"]


def test_punctuation_stands_alone_and_signs_of_ascii_count():
    assert words("don't，“好”$5.00+1=a_b…") == [*"don ' t ， “ 好 ” $ 5 . 00 + 1 = a _ b …".split()]
    assert words("5€×2") == ["5€×2"]


def test_emoji():
    """Case 041."""
    assert words("好🫨!") == ["好", "🫨", "!"]
    assert words("👩\u200d👩\u200d👧") == ["👩👩👧"]
    assert words("❤\ufe0f") == ["❤"]
    assert words("❤\ufe0f", cased=True) == ["❤\ufe0f"]


def test_text_that_spells_a_special_token_is_ordinary_text():
    """Case 042."""
    tokens = ["a", "b", "[", "]", "sep", "mask", "SEP", "MASK"]
    wanted = ["a", "[", "sep", "]", "b", "[", "mask", "]"]
    assert pieces("a [SEP] b [MASK]", tokens) == wanted
    assert pieces("a [SEP] b [MASK]", tokens, cased=True) == [t.upper() if len(t) > 1 else t for t in wanted]
    assert pieces("[UNK][PAD]", ["[", "]"]) == ["[", "[UNK]", "]", "[", "[UNK]", "]"]


def test_a_full_word_cache_changes_nothing(monkeypatch):
    monkeypatch.setattr(wordpiece, "MAX_CACHED_WORDS", 2)
    tokens = [*"abcdefg", "##a", "##b"]
    for _ in range(2):
        assert pieces("a b c d ab ba e xyz f g", tokens) == [*"abcd", "a", "##b", "b", "##a", "e", "[UNK]", "f", "g"]


def test_decode():
    vocabulary = Vocabulary([*SPECIAL, "un", "##aff", "##able", "好"])
    tokenizer = WordPieceTokenizer(vocabulary)
    assert tokenizer.decode(tokenizer.encode("Unaffable 好!")) == "unaffable 好 [UNK]"


def run_script(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)


HOSTILE = r"""
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer
half = 1 << 19
texts = ["aa" * half, "\u0301\u0327" * half, "\u03a3\u03a3" * half, "\u03a3" + "''" * half + "\u03a3",
         "\u03a3" + "\u0327\u0301" * half, "\U0001d16d\U0001d165" * half, "a\u200b" * half, "!!" * half]
vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "!", "#"])
for cased in (False, True):
    for text in texts:
        WordPieceTokenizer(vocabulary, cased).encode(text)
"""


def test_hostile_texts_of_a_million_characters_take_linear_time(tmp_path):
    """They take half a second each at most; work that is quadratic in the text takes many minutes."""
    done = run_script(tmp_path, HOSTILE)
    assert (done.returncode, done.stderr) == (0, "")


FORK = r"""
import multiprocessing, sys
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

tokenizer = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "\u4f60"]))

if __name__ == "__main__":
    texts = ["ab \u4f60 a" * (i % 5) for i in range(1000)]
    wanted = [tokenizer.encode(text) for text in texts]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            if pool.map(tokenizer.encode, texts) != wanted:
                sys.exit(1)
"""


def test_a_tokenizer_in_use_survives_fork_and_spawn(tmp_path):
    """Case 049."""
    done = run_script(tmp_path, FORK)
    assert (done.returncode, done.stderr) == (0, "")
