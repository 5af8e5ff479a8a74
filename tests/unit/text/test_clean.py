"""Cleaning rules: what each does, what it leaves alone, and that no text makes it slow."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbert.errors import ConfigError
from tfbert.text.clean import RULES, STANDARD, Cleaner, parse_rules

ROOT = Path(__file__).parents[3]
EXAMPLES = {
    "html": [
        ("<p>a</p>b<br/>c", " a b c"),
        ('<a href="x" >y</a >', " y "),
        ("a<!-- b > c -->d<!---->e<!--\n-->f", "a d e f"),
        ('<!DOCTYPE html><?xml version="1.0"?>a', "  a"),
        ("&lt;b&gt; &amp;amp; &nbsp;&#20013;&#x4e2d; &hearts", "<b> &amp; \xa0中中 &hearts"),
        ("&#0000000065; &#99999999; &#xffffffff;", "A \ufffd \ufffd"),
        ("1 < 2 > 1, a<3, <>, <-, x <<b>b>", "1 < 2 > 1, a<3, <>, <-, x < b>"),
        ("<!-- never closed <b>c", "<!-- never closed  c"),
        ("<b never closed", "<b never closed"),
        ("好&坏 AT&T", "好&坏 AT&T"),
    ],
    "control": [
        ("a\x00b\x7fc\u200bd\u00ade\ufefff\ufffdg", "abcdefg"),
        ("a\tb\nc\rd\r\ne\x0bf\x0cg\x85h\u2028i\u2029j", "a b c d  e f g h i j"),
        ("a b\xa0c\u3000d é 中 👩 \ue000", "a b\xa0c\u3000d é 中 👩 \ue000"),
        ("👩\u200d👧", "👩👧"),
    ],
    "url": [
        ("see http://a.b/c?d=e&f#g now", "see  URL  now"),
        ("看https://t.cn/Abc，好", "看 URL ，好"),
        ("HTTPS://A.B www.x.com ftp://f", " URL   URL   URL "),
        ("www. awww.cute http:/x", "www. awww.cute http:/x"),
    ],
    "url_remove": [("see http://a.b/c now", "see   now"), ("a.b", "a.b")],
    "email": [
        ("to a.b+c@x-y.co.uk.", "to  EMAIL ."),
        ("联系user@example.com谢谢", "联系 EMAIL 谢谢"),
        ("@a a@ a@b @用户 5@6.7", "@a a@ a@b @用户 5@6.7"),
    ],
    "email_remove": [("a user@example.com b", "a   b")],
    "fullwidth": [
        ("ＡＢｃ１２！（％）～\u3000x", "ABc12!(%)~ x"),
        ("中，。“”カﾊ￥", "中,。“”カﾊ￥"),
    ],
    "repeats": [
        ("好！！！！ what??!! ......", "好！ what?! ."),
        ("---- ** *** ~~ ，， 👍👍👍 👍👍", "- ** * ~ ， 👍 👍👍"),
        ("aaa 好好好 111 ___    ", "aaa 好好好 111 ___    "),
    ],
    "spaces": [(" a \t\n b\u3000\u2003c\xa0 ", "a b c"), ("a\u200bb", "a\u200bb")],
}
# Beginnings and ends of what the rules look for, and what stands between them.
PARTS = [
    *["<", ">", "</", "<!--", "-->", "--", "<b ", "/>", "&", "&#", "&#x", ";", "&amp", "&lt;", "9", "0"],
    *["http://", "www.", "a", "ab", ".", "@", "-", "_", "+", "!", "！", "…", "中", "\u3000", " ", "\t", "\n"],
    *["\x00", "\u200b", "\ufffd", "\u2028", "Ａ", "＜", "\u0301", "👩"],
]
TEXTS = st.lists(st.one_of(st.sampled_from(PARTS), st.characters(exclude_categories=["Cs"])), max_size=30).map("".join)
WITHOUT_PACKAGES = [name for name in RULES if name != "simplified"]


@pytest.mark.parametrize("rule, raw, wanted", [(rule, *pair) for rule, pairs in EXAMPLES.items() for pair in pairs])
def test_each_rule(rule: str, raw: str, wanted: str):
    assert Cleaner(rule)(raw) == wanted


def test_every_rule_has_examples():
    assert {*EXAMPLES, "simplified"} == set(RULES)


def test_simplified():
    pytest.importorskip("opencc", reason="the rule `simplified` needs opencc")
    assert Cleaner("simplified")("漢語 abc 汉语 頭髮發展") == "汉语 abc 汉语 头发发展"


def test_simplified_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(ConfigError, match="needs the package opencc"):
        Cleaner("simplified")


def test_no_rule_is_the_default_and_changes_nothing():
    text = " <b>\u3000&amp;\x00！！！ http://a.b a@b.cc"
    assert Cleaner()(text) == Cleaner("none")(text) == Cleaner("")(text) == text


@pytest.mark.parametrize("rules", ["none", "spaces", "control", "standard", "fullwidth", "html,url,email,repeats"])
def test_blanks_still_divide_words(rules: str):
    """Case 029."""
    assert Cleaner(rules)("foo\tbar\u3000baz\nqux").split() == ["foo", "bar", "baz", "qux"]


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_no_rule_joins_words(text: str):
    divided = f"foo\t{text}\u3000baz\nqux"
    for rule in WITHOUT_PACKAGES:
        cleaned = Cleaner(rule)(divided)
        assert cleaned.split()[-1] == "qux" and cleaned.split()[0].startswith("foo")


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_a_rule_applied_twice_does_no_more(text: str):
    """All but `html`: `&amp;lt;` is the entity of an entity."""
    for rule in WITHOUT_PACKAGES:
        if rule != "html" or "&" not in text:
            clean = Cleaner(rule)
            assert clean(clean(text)) == clean(text), rule


@given(TEXTS, st.permutations(STANDARD))
@settings(max_examples=100, deadline=None)
def test_the_order_asked_for_does_not_matter(text: str, rules: list[str]):
    assert Cleaner(rules)(text) == Cleaner("standard")(text)


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_rules_together_are_the_rules_in_their_order(text: str):
    for one, other in itertools.combinations(WITHOUT_PACKAGES, 2):
        if one.split("_")[0] != other.split("_")[0]:
            assert Cleaner([other, one])(text) == Cleaner(other)(Cleaner(one)(text))


def test_a_hidden_character_does_not_hide_an_address():
    assert Cleaner("standard")("ht\u200btp://a.b me\xad@x.org") == "URL EMAIL"


def test_parse_rules():
    assert parse_rules("spaces, html") == parse_rules(["spaces", "html", "spaces"]) == ("html", "spaces")
    assert parse_rules("none") == parse_rules("") == parse_rules(()) == ()
    assert set(parse_rules("standard")) == set(STANDARD)
    assert parse_rules("url,url_remove,email_remove") == ("url_remove", "email_remove")
    assert "url" not in parse_rules("standard,url_remove")
    with pytest.raises(ConfigError, match="Received: 'HTML'"):
        parse_rules("HTML")


HOSTILE = r"""
from tfbert.text.clean import RULES, Cleaner

size = 1 << 19
repeated = ["<!--", "<!-->", "<!-- -- >", "<", "<a ", "<a/", "<a b=\"", "</", "<" + "a" * 31, "&", "&amp", "&#9",
            "&" + "a" * 31, "http://", "www.", "a@", "a.", "a@a.", "x@a-", "a", "!", "!?", "--", " \t", "\x01\u200b"]
texts = [(part * size)[:size] for part in repeated]
texts += ["<!--" + "-" * size, "<a " + " " * size, "<a " + "/" * size, "&#" + "9" * size, "&#" + "0" * size + "65;",
          "&#x" + "f" * size, "x@" + "a." * (size // 2), "a" * size + "@b.cc", " " * size + "a"]
for name in RULES:
    if name != "simplified":
        for text in texts:
            Cleaner(name)(text)
"""


def test_hostile_texts_of_half_a_million_characters_take_linear_time(tmp_path):
    """All of them take a few seconds; a single one that is quadratic takes many minutes."""
    script = tmp_path / "script.py"
    script.write_text(HOSTILE, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
