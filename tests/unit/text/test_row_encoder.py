"""One row from raw text: clean, tokenize, truncate, pack."""

import pytest

from tfbert.errors import ConfigError
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##b", "你", "好", "É", "e", "[", "]", "url"]
VOCABULARY = Vocabulary(TOKENS)


def encoder(max_len: int = 16, cased: bool = False, clean: tuple[str, ...] = (), pair: bool = False) -> RowEncoder:
    return RowEncoder(VOCABULARY, EncodingSettings(max_len, cased, clean, pair))


def tokens(ids: list[int]) -> list[str]:
    return [TOKENS[i] for i in ids]


def test_a_single_text():
    ids, segments, full_length = encoder().encode("A ab 你好x")
    assert tokens(ids) == ["[CLS]", "a", "a", "##b", "你", "好", "[UNK]", "[SEP]"]
    assert segments is None
    assert full_length == 8


def test_a_pair():
    ids, segments, full_length = encoder(pair=True).encode("a", "b 好")
    assert tokens(ids) == ["[CLS]", "a", "[SEP]", "b", "好", "[SEP]"]
    assert segments == [0, 0, 0, 1, 1, 1]
    assert full_length == 6


def test_full_length_is_the_length_before_truncation():
    ids, _, full_length = encoder(max_len=5).encode("a " * 100)
    assert (len(ids), full_length) == (5, 102)
    ids, segments, full_length = encoder(max_len=6, pair=True).encode("a " * 100, "b " * 50)
    assert (len(ids), len(segments or ()), full_length) == (6, 6, 153)


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "\x00", "\u3000"])
def test_texts_without_words(text: str):
    """Case 025."""
    assert tokens(encoder().encode(text)[0]) == ["[CLS]", "[SEP]"]
    ids, segments, _ = encoder(pair=True).encode(text, text)
    assert (tokens(ids), segments) == (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 1])
    assert tokens(encoder(pair=True).encode("a", text)[0]) == ["[CLS]", "a", "[SEP]", "[SEP]"]


def test_text_cannot_bring_special_tokens():
    """Case 042."""
    ids, _, _ = encoder().encode("[SEP] a [MASK]")
    assert tokens(ids) == ["[CLS]", "[", "[UNK]", "]", "a", "[", "[UNK]", "]", "[SEP]"]


def test_cased():
    assert tokens(encoder().encode("É")[0])[1:-1] == ["e"]
    assert tokens(encoder(cased=True).encode("É")[0])[1:-1] == ["É"]


def test_cleaning_comes_first_and_touches_both_texts():
    assert tokens(encoder(clean=("html",)).encode("<p>a</p>")[0])[1:-1] == ["a"]
    ids, segments, _ = encoder(clean=("url", "html"), pair=True).encode("a<br>b", "www.b.c")
    assert (tokens(ids)[1:-1], segments) == (["a", "b", "[SEP]", "url"], [0, 0, 0, 0, 1, 1])


def test_the_same_text_has_the_same_ids_whatever_came_before():
    one, other = encoder(), encoder()
    for text in ("ΑΣ a", "你好", "b" * 300, "a \u302e\u0301 b"):
        other.encode(text)
    texts = ["a b ab", "ΑΣ", "你 a"]
    assert [one.encode(text) for text in texts] == [other.encode(text) for text in texts]


def test_a_pair_encoder_wants_two_texts_and_another_one():
    with pytest.raises(ValueError, match="are pairs. Received: no second text"):
        encoder(pair=True).encode("a")
    with pytest.raises(ValueError, match="are single texts. Received: a second text"):
        encoder().encode("a", "")


def test_settings():
    settings = EncodingSettings(8, True, ("spaces", "html"), False)
    assert settings.clean == ("html", "spaces")
    assert settings.to_dict() == {
        "max_len": 8,
        "cased": True,
        "clean": ["html", "spaces"],
        "pair": False,
        "tokenizer": "wordpiece",
    }
    with pytest.raises(ConfigError, match="at least 3"):
        EncodingSettings(2, False, (), False)
    with pytest.raises(ConfigError, match="at least 4"):
        EncodingSettings(3, False, (), True)
    with pytest.raises(ConfigError, match="Received: 'htm'"):
        EncodingSettings(8, False, ("htm",), False)
