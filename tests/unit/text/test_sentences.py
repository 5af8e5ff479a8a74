"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbert.text.sentences import split_sentences


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("", []),
        (" \t\u3000", []),
        ("no end", ["no end"]),
        ("我来了。你呢？走！", ["我来了。", "你呢？", "走！"]),
        ("他说：“走！”她走了……真的？！", ["他说：“走！”", "她走了……", "真的？！"]),
        ("（他来了。）她走了。", ["（他来了。）", "她走了。"]),
        ("Hello!世界?好", ["Hello!", "世界?", "好"]),
        ("It rains. It pours.", ["It rains.", "It pours."]),
        ("He said \"Go.\" Then 3.14 is pi.", ['He said "Go."', "Then 3.14 is pi."]),
        ("Mr. Smith left (early.) He did.", ["Mr. Smith left (early.)", "He did."]),
        ("J. R. Tolkien wrote, e.g. books etc. and more.", ["J. R. Tolkien wrote, e.g. books etc. and more."]),
        ("Is it? yes! no", ["Is it?", "yes!", "no"]),
        ("what?!no", ["what?!no"]),
        ("version 1.2.3 of a.b.c runs", ["version 1.2.3 of a.b.c runs"]),
        ("wait... what. ok", ["wait... what. ok"]),
        ("wait... What", ["wait...", "What"]),
        ("one\u2028two。three", ["one\u2028two。", "three"]),
        ("。。。", ["。。。"]),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(alphabet='ab AB.!?。！？…”"）) \n我1', max_size=40))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
