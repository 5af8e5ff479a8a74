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

# Every pattern takes time linear in the text: its repeats are bounded, or cannot give back what another part takes.
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<[/!?]?[A-Za-z][A-Za-z0-9:-]{0,30}(?:[\s/][^<>]*)?>")
_LONG_NUMBER = re.compile(r"&#([0-9]{8,});?")
_URL = re.compile(
    r"(?:(?:https?|ftp)://|(?<![A-Za-z0-9.])www\.(?=[A-Za-z0-9]))[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"(?<![A-Za-z0-9_.+-])[A-Za-z0-9_.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_BLANKS = re.compile(r"\s+")
_REPEATS = re.compile(r"([^\w\s])\1{2,}|([!?！？。，、~…])\2+")
_HALF_WIDTH = {code_point: code_point - 0xFEE0 for code_point in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def _drop_html(text: str) -> str:
    if "<" in text:
        end = text.rfind("-->") + 3  # beyond it no comment ends, and looking for the end would be quadratic
        text = _TAG.sub(" ", _COMMENT.sub(" ", text[:end]) + text[end:])
    return html.unescape(_LONG_NUMBER.sub(_short_number, text)) if "&" in text else text


def _short_number(match: re.Match[str]) -> str:
    """A character reference that `html.unescape` can take: it refuses numbers of thousands of digits."""
    digits = match[1].lstrip("0")
    return f"&#{digits or 0};" if len(digits) < 8 else "\ufffd"


class _ControlTable(dict[int, str | None]):
    """Code point -> what the rule `control` makes of it; filled on a miss."""

    def __missing__(self, code_point: int) -> str | None:
        char = chr(code_point)
        replacement: str | None = char
        category = unicodedata.category(char)
        if category in ("Cc", "Cf", "Zl", "Zp") or char == "\ufffd":
            replacement = " " if char.isspace() else None
        self[code_point] = replacement
        return replacement


_CONTROL = _ControlTable()


def _simplifier() -> Callable[[str], str]:
    try:
        import opencc
    except ImportError as error:
        raise ConfigError(
            "The cleaning rule `simplified` needs the package opencc. Received: it is not installed. "
            "Run `pip install opencc`."
        ) from error
    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


# name -> (what it does, maker of the function)
RULES: dict[str, tuple[str, Callable[[], Callable[[str], str]]]] = {
    "html": ("HTML tags and comments become a blank, entities their characters", lambda: _drop_html),
    "control": (
        "control and format characters and U+FFFD are removed; tab and line ends of any kind become a blank",
        lambda: lambda t: t.translate(_CONTROL),
    ),
    "url": ("web addresses become the word URL", lambda: lambda t: _URL.sub(" URL ", t)),
    "url_remove": ("web addresses are removed", lambda: lambda t: _URL.sub(" ", t)),
    "email": ("e-mail addresses become the word EMAIL", lambda: lambda t: _EMAIL.sub(" EMAIL ", t)),
    "email_remove": ("e-mail addresses are removed", lambda: lambda t: _EMAIL.sub(" ", t)),
    "fullwidth": ("full-width letters, digits and signs become half-width", lambda: lambda t: t.translate(_HALF_WIDTH)),
    "simplified": ("traditional Chinese becomes simplified (needs opencc)", _simplifier),
    "repeats": ("a mark repeated without end is kept once", lambda: lambda t: _REPEATS.sub(r"\1\2", t)),
    "spaces": ("white space of any kind and length becomes one blank", lambda: lambda t: _BLANKS.sub(" ", t).strip()),
}
STANDARD = ("html", "control", "url", "email", "fullwidth", "repeats", "spaces")


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
