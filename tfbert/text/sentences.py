"""Text to sentences, by signs alone: good enough to pack rows at natural borders, in Chinese and English.

A sentence ends
* after 。 ！ ？ … (any number of them), and closing quotes or brackets behind them;
* after ! or ? and closing signs, where white space, a CJK character or the end of the text follows;
* after . and closing signs, where white space follows and then no lower-case letter, and where the word before it is
  neither a single capital letter (an initial) nor one of `ABBREVIATIONS`.
Nothing is lost but the white space between two sentences.
"""

import re

ABBREVIATIONS = frozenset(
    "Mr Mrs Ms Dr Prof Sr Jr St Gen Col Capt Lt Sgt Rep Sen Gov Rev Hon Pres Mt Ft No Nos Vol vol pp Fig Figs Eq Ref "
    "Inc Ltd Co Corp Bros Dept Univ etc al vs cf e.g i.e eg ie approx est Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov "
    "Dec U.S U.K U.N".split()
)
_CLOSERS = "[\"'”’」』】》〉）〕)\\]}]*"
_CJK = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
_END = re.compile(
    f"(?:[。！？…][。！？…!?]*{_CLOSERS}|[!?][!?。！？…]*{_CLOSERS}(?=[\\s{_CJK}]|$)|\\.+{_CLOSERS}(?=\\s))"
)
_OPENERS = "([\"'“‘（「"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without white space round them; none is empty."""
    sentences = []
    start = 0
    for match in _END.finditer(text):
        if match.group().startswith(".") and not _ends(text, match.start(), match.end()):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends(text: str, dot: int, end: int) -> bool:
    """Whether a full stop at `dot`, with closing signs up to `end`, ends a sentence."""
    rest = text[end : end + 20].lstrip()
    if rest[:1].islower():
        return False
    before = text[max(0, dot - 20) : dot].split()
    word = before[-1].lstrip(_OPENERS) if before else ""
    is_initial = len(word) == 1 and word.isupper()
    return not (is_initial or word in ABBREVIATIONS)
