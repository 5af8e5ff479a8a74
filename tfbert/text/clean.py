"""Cleaning rules: each has a name, can be switched on alone, and is recorded in the data set's manifest.

Rules are applied in the order of `RULES`, whatever the order they were asked for in. By default none is on: the
tokenizer already removes control characters and treats every kind of blank as one, so rules are for text that is
dirty in ways the tokenizer keeps.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable

from tfbert.errors import ConfigError

_TAG = re.compile(r"<(?:!--.{0,10000}?-->|/?[A-Za-z][A-Za-z0-9:-]{0,30}(?:[\s/][^<>]{0,10000})?/?)>", re.DOTALL)
_URL = re.compile(r"(?:(?:https?|ftp)://|www\.)[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.IGNORECASE)
_EMAIL = re.compile(r"(?<![\w.+-])[A-Za-z0-9_.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_BLANKS = re.compile(r"\s+")
_REPEATS = re.compile(r"([^\w\s])\1{2,}|([!?！？。，、~…])\2+")
_HALF_WIDTH = {code_point: code_point - 0xFEE0 for code_point in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def _unescape(text: str) -> str:
    return html.unescape(_TAG.sub(" ", text)) if "<" in text or "&" in text else text


def _drop_control(text: str) -> str:
    if text.isprintable():
        return text
    kept = (" " if c in "\t\n\r" else c for c in text if c in "\t\n\r" or unicodedata.category(c) not in ("Cc", "Cf"))
    return "".join(kept).replace("\ufffd", "")


def _simplifier() -> Callable[[str], str]:
    try:
        import opencc
    except ImportError as error:
        raise ConfigError(
            "The cleaning rule `simplified` needs the package opencc. Received: it is not installed. "
            "Run `pip install opencc`."
        ) from error
    return opencc.OpenCC("t2s").convert


# name -> (what it does, maker of the function)
RULES: dict[str, tuple[str, Callable[[], Callable[[str], str]]]] = {
    "html": ("HTML tags become a blank, entities their characters", lambda: _unescape),
    "url": ("web addresses become the word URL", lambda: lambda t: _URL.sub(" URL ", t)),
    "url_remove": ("web addresses are removed", lambda: lambda t: _URL.sub(" ", t)),
    "email": ("e-mail addresses become the word EMAIL", lambda: lambda t: _EMAIL.sub(" EMAIL ", t)),
    "email_remove": ("e-mail addresses are removed", lambda: lambda t: _EMAIL.sub(" ", t)),
    "control": ("control and format characters are removed, tab and line ends become blanks", lambda: _drop_control),
    "fullwidth": ("full-width letters, digits and signs become half-width", lambda: lambda t: t.translate(_HALF_WIDTH)),
    "simplified": ("traditional Chinese becomes simplified (needs opencc)", _simplifier),
    "repeats": ("a mark repeated without end is kept once", lambda: lambda t: _REPEATS.sub(r"\1\2", t)),
    "spaces": ("white space of any kind and length becomes one blank", lambda: lambda t: _BLANKS.sub(" ", t).strip()),
}
STANDARD = ("html", "url", "email", "control", "fullwidth", "repeats", "spaces")


def parse_rules(rules: str | Iterable[str]) -> tuple[str, ...]:
    """`"html,url"`, `"none"`, `"standard"` or an iterable of names -> names in the order of application."""
    names = [name.strip() for name in rules.split(",")] if isinstance(rules, str) else list(rules)
    wanted: set[str] = set()
    for name in names:
        if name in ("", "none"):
            continue
        if name != "standard" and name not in RULES:
            raise ConfigError(f"A cleaning rule is one of {', '.join(RULES)}, standard, none. Received: {name!r}.")
        wanted.update(STANDARD if name == "standard" else (name,))
    for kind in ("url", "email"):
        if f"{kind}_remove" in wanted:
            wanted.discard(kind)
    return tuple(name for name in RULES if name in wanted)


class Cleaner:
    """Applies named rules to a text; a pure function of (rules, text)."""

    def __init__(self, rules: str | Iterable[str] = "none"):
        self.rules = parse_rules(rules)
        self._functions = [RULES[name][1]() for name in self.rules]

    def __call__(self, text: str) -> str:
        for function in self._functions:
            text = function(text)
        return text
