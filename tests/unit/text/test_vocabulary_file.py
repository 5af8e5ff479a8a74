"""vocab.txt: the id of a token is the number of its line, whatever else the file holds."""

import os
from pathlib import Path

import pytest

from tfbert.errors import DataError
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

SHARED = Path(os.environ.get("TFBERT_SHARED", Path(__file__).parents[3].parent / "shared"))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def load(tmp_path: Path, content: bytes) -> Vocabulary:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    return Vocabulary.load(path)


def lines(*tokens: str, end: str = "\n") -> bytes:
    return "".join(token + end for token in [*SPECIAL, *tokens]).encode()


def test_duplicate_and_blank_lines_move_no_id(tmp_path):
    """Case 034."""
    vocabulary = load(tmp_path, lines("a", "a", "", "b", "c"))
    assert len(vocabulary) == 10
    assert [vocabulary.ids[token] for token in ("a", "b", "c")] == [6, 8, 9]
    assert WordPieceTokenizer(vocabulary).encode("a b c d") == [6, 8, 9, 1]


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_blank_lines_at_the_ends_count(tmp_path, blank: str):
    vocabulary = load(tmp_path, f"{blank}\n".encode() + lines("a") + f"{blank}\n".encode())
    assert len(vocabulary) == 8
    assert vocabulary.ids["a"] == 6
    assert vocabulary.pad_id == 1


def test_a_repeated_special_token_has_the_id_of_its_last_line(tmp_path):
    vocabulary = load(tmp_path, lines("a", "[SEP]"))
    assert vocabulary.sep_id == vocabulary.ids["[SEP]"] == 6


def test_byte_order_mark_and_crlf(tmp_path):
    plain = load(tmp_path, lines("a", "##b"))
    assert load(tmp_path, b"\xef\xbb\xbf" + lines("a", "##b")).tokens == plain.tokens
    assert load(tmp_path, lines("a", "##b", end="\r\n")).tokens == plain.tokens
    assert load(tmp_path, lines("a", "##b", end=" \n")).tokens == plain.tokens


def test_last_line_without_line_end(tmp_path):
    assert load(tmp_path, lines("a", "b")[:-1]).tokens == load(tmp_path, lines("a", "b")).tokens


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\u3000"])
def test_only_line_feeds_end_a_line(tmp_path, char: str):
    vocabulary = load(tmp_path, lines(char, f"##{char}", "a"))
    assert len(vocabulary) == 8
    assert vocabulary.tokens[5:] == [char, f"##{char}", "a"]
    assert vocabulary.ids["a"] == 7
    assert WordPieceTokenizer(vocabulary).encode("a") == [7]


def test_a_token_with_a_byte_order_mark_inside_the_file_keeps_it(tmp_path):
    assert load(tmp_path, lines("a", "\ufeff", "b")).ids["\ufeff"] == 6


@pytest.mark.parametrize("missing", SPECIAL[:4])
def test_missing_special_tokens_are_named(tmp_path, missing: str):
    """Case 046."""
    with pytest.raises(DataError) as caught:
        load(tmp_path, lines("a").replace(missing.encode() + b"\n", b"x\n"))
    assert f"Missing: {missing}." in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "vocab.txt"))


def test_all_missing_special_tokens_are_named_at_once(tmp_path):
    with pytest.raises(DataError, match=r"Missing: \[PAD\], \[UNK\], \[CLS\], \[SEP\]\."):
        load(tmp_path, b"")
    with pytest.raises(DataError, match=r"Missing: \[UNK\], \[SEP\]\."):
        load(tmp_path, b"[PAD]\n[CLS]\n[sep]\na\n")


def test_mask_is_needed_by_masking_alone(tmp_path):
    vocabulary = load(tmp_path, b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    assert vocabulary.mask_id is None
    assert load(tmp_path, lines("a")).mask_id == 4


def test_special_tokens_may_stand_anywhere(tmp_path):
    """Case 047."""
    vocabulary = load(tmp_path, b"a\nb\n[SEP]\n[CLS]\n[UNK]\n[PAD]\n")
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id) == (5, 4, 3, 2)
    assert WordPieceTokenizer(vocabulary).encode("a b z") == [0, 1, 4]


@pytest.mark.parametrize("content", [b"\xff\xfe[\x00P\x00", "[PAD]\n中\n".encode("gb18030")])
def test_a_file_that_is_not_utf_8_is_refused(tmp_path, content: bytes):
    with pytest.raises(DataError, match="a vocabulary is UTF-8 text"):
        load(tmp_path, content)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt: the vocabulary cannot be read"):
        Vocabulary.load(tmp_path / "no.txt")
    with pytest.raises(DataError, match="the vocabulary cannot be read"):
        Vocabulary.load(tmp_path)


def test_the_released_vocabularies():
    folder = SHARED / "data" / "vocab"
    if not folder.is_dir():
        pytest.skip(f"the released vocabularies are not at {folder}")
    chinese = Vocabulary.load(folder / "bert-base-chinese" / "vocab.txt")
    assert len(chinese) == 21128
    assert (chinese.pad_id, chinese.unk_id, chinese.cls_id, chinese.sep_id, chinese.mask_id) == (0, 100, 101, 102, 103)
    assert (chinese.tokens[343], chinese.tokens[13502]) == ("\u2028", "##\u2028")
    assert len(Vocabulary.load(folder / "bert-base-uncased" / "vocab.txt")) == 30522
