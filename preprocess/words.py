"""The words of a text where they stand, and which of them may be replaced by another.

A word is a run of letters and digits, with apostrophes inside it ("don't"); a run of Chinese characters is cut into
words by jieba. Spans are character offsets into the text, so whatever is not replaced stays as it was.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tfbert.text.wordpiece import SPECIAL_TOKENS, Vocabulary, is_cjk, is_punctuation

Cut = Callable[[str], Iterable[str]]

NEGATIONS = frozenset(
    """
    no not nor none never neither nobody nothing nowhere cannot without hardly scarcely barely rarely seldom few
    little less least lack lacks lacked lacking fail fails failed unless except but however although though yet
    despite
    """.split()
)
"""English words that turn a statement round; also every word that ends in n't."""

STOP_WORDS = frozenset(
    """
    a an the this that these those such same other another each every either both all any some most more much many
    own i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her
    hers herself it its itself they them their theirs themselves one ones who whom whose which what where when why
    how am is are was were be been being do does did doing done have has had having will would shall should can
    could may might must ought need dare used let and or if then else because as until while of at by for with about
    against between among into onto through during before after above below to from up down in out on off over under
    again further once here there so than too very just only also even still ever always now well ago upon within
    toward towards since per via re etc eg ie vs s t d ll m ve o y ma ain re mr mrs ms dr let's it's that's what's
    there's who's ca wo ai gon gonna wanna gotta he's she's i'm i've i'll i'd you're you've you'll you'd we're we've
    we'll we'd they're they've they'll they'd
    """.split()
)
"""English words without a meaning of their own."""

CHINESE_NEGATIONS = frozenset("不没沒无無非未别別莫勿否毋甭弗休免难難缺欠")
"""Characters that turn a Chinese word round; no word with one of them is replaced or put in the place of another."""

CHINESE_STOP_WORDS = frozenset(
    """
    的 了 着 过 地 得 之 其 所 以 而 且 与 和 及 或 则 若 虽 但 却 因 为 于 在 从 自 到 向 对
    把 被 让 给 将 由 跟 同 比 按 是 有 就 都 也 还 又 再 很 太 更 最 只 才 便 即 并 等 这 那
    哪 此 该 某 每 各 我 你 您 他 她 它 咱 们 我们 你们 他们 她们 它们 自己 人家 大家 谁 什么 怎么
    怎样 如何 为何 为什么 哪里 哪儿 这里 那里 这儿 那儿 这个 那个 这些 那些 这样 那样 这么 那么 一个 一些
    一种 一样 一直 一下 一点 可以 可能 能够 应该 需要 必须 已经 曾经 正在 将要 因为 所以 由于 因此 虽然
    但是 可是 然而 不过 而且 并且 或者 还是 如果 假如 只要 只有 除了 除非 以及 关于 对于 至于 根据 通过
    作为 其中 其他 其它 之后 之前 以后 以前 时候 然后 于是 甚至 尤其 比如 例如 等等 啊 吧 呢 吗 嘛 呀
    哦 哈 啦 嗯 喔 哎 唉 呵 哇 么 个 位 只 件 次 些 种 上 下 里 中 内 外 前 后 来 去 会 能 要
    想 可 做 说 看 用 年 月 日 时 分 秒
    """.split()
)
"""Chinese words without a meaning of their own, measure words, and words of place and time that carry facts."""


class Word(NamedTuple):
    """A word where it stands.

    Attributes:
        start, end: characters of the text.
        text: the word.
        chinese: it consists of Chinese characters.
    """

    start: int
    end: int
    text: str
    chinese: bool


class _KindTable(dict[int, str]):
    """Code point -> w (part of a word), c (Chinese character), ' (apostrophe) or a blank; filled on a miss."""

    def __missing__(self, code_point: int) -> str:
        char = chr(code_point)
        if is_cjk(code_point):
            kind = "c"
        elif char in "'’":
            kind = "'"
        elif char.isspace() or is_punctuation(char) or unicodedata.category(char)[0] == "C":
            kind = " "
        else:
            kind = "w"
        self[code_point] = kind
        return kind


_KINDS = _KindTable()
_RUN = re.compile(r"c+|w+(?:'w+)*")


def find_words(text: str, cut: Cut | None) -> list[Word]:
    """All words of a text, in order.

    Args:
        text: any string.
        cut: cuts a run of Chinese characters into words; None takes each character for a word.
    """
    words = []
    for match in _RUN.finditer(text.translate(_KINDS)):
        start, end = match.span()
        run = text[start:end]
        if match[0][0] == "w":
            words.append(Word(start, end, run, False))
            continue
        for word in cut(run) if cut is not None else run:
            words.append(Word(start, start + len(word), word, True))
            start += len(word)
    return words


def is_plain(word: str) -> bool:
    """Whether a word of letters may stand in a text in the place of another: letters alone, no stop or negation word.

    Digits, signs and emoji carry facts: a word with one of them stays.
    """
    lower = word.lower().replace("’", "'")
    if lower in STOP_WORDS or lower in NEGATIONS or lower.endswith("n't"):
        return False
    letters = len(word) > 1 and word[0].isalpha() and word[-1] not in "'’"
    return letters and all(c.isalpha() or c == "'" or unicodedata.category(c) == "Mn" for c in lower)


def is_plain_chinese(word: str) -> bool:
    """The same for a word of Chinese characters."""
    return word not in CHINESE_STOP_WORDS and not CHINESE_NEGATIONS.intersection(word)


def is_negation(word: Word) -> bool:
    lower = word.text.lower().replace("’", "'")
    return not CHINESE_NEGATIONS.isdisjoint(lower) or lower in NEGATIONS or lower.endswith("n't")


def is_replaceable(word: Word) -> bool:
    return is_plain_chinese(word.text) if word.chinese else is_plain(word.text)


def is_candidate(text: str) -> bool:
    """Whether a word of a list of vectors may stand in a text in the place of another."""
    chinese = [is_cjk(ord(c)) for c in text]
    return all(chinese) and is_plain_chinese(text) if any(chinese) else is_plain(text)


def candidate_tokens(vocabulary: Vocabulary) -> tuple[list[bool], list[bool]]:
    """Tokens that may stand in the place of a word of letters, and of a Chinese character: (V,) each.

    Never special tokens, `##` pieces, signs, digits, stop or negation words. A line that a later equal line hides has
    no id of its own.
    """
    own = [vocabulary.ids[token] == i and token not in SPECIAL_TOKENS for i, token in enumerate(vocabulary.tokens)]
    chinese = [len(token) == 1 and is_cjk(ord(token)) for token in vocabulary.tokens]
    letters = [is_plain(token) and not any(is_cjk(ord(c)) for c in token) for token in vocabulary.tokens]
    return (
        [a and b for a, b in zip(own, letters, strict=True)],
        [
            a and b and token not in CHINESE_NEGATIONS
            for a, b, token in zip(own, chinese, vocabulary.tokens, strict=True)
        ],
    )


def like(word: str, model: str) -> str:
    """A candidate in the letter case of the word that it replaces: lower, Capital or UPPER."""
    if word != word.lower():
        return word  # it has a case of its own, as the tokens of a cased vocabulary do
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def replace_words(text: str, words: Sequence[Word], replacements: Sequence[str]) -> str:
    """The text with other words at some places; the words are in order."""
    parts = []
    at = 0
    for word, replacement in zip(words, replacements, strict=True):
        parts += [text[at : word.start], replacement]
        at = word.end
    return "".join([*parts, text[at:]])
