"""Google's BERT tokenization (BasicTokenizer, then WordpieceTokenizer), written out rule by rule.

Plain and slow on purpose, and it shares no code with the product: it is what the product is compared with.
"""

import unicodedata
from pathlib import Path

MAX_CHARS = 200
CJK_BLOCKS = [
    (0x4E00, 0x9FFF),  # CJK Unified Ideographs
    (0x3400, 0x4DBF),  # Extension A
    (0x20000, 0x2A6DF),  # Extension B
    (0x2A700, 0x2B73F),  # Extension C
    (0x2B740, 0x2B81F),  # Extension D
    (0x2B820, 0x2CEAF),  # Extension E
    (0xF900, 0xFAFF),  # Compatibility Ideographs
    (0x2F800, 0x2FA1F),  # Compatibility Ideographs Supplement
]


def is_control(char):
    if char == "\t" or char == "\n" or char == "\r":
        return False
    return unicodedata.category(char) == "Cc" or unicodedata.category(char) == "Cf"


def is_blank(char):
    if char == " " or char == "\t" or char == "\n" or char == "\r":
        return True
    return unicodedata.category(char) == "Zs"


def is_punctuation(char):
    number = ord(char)
    if 33 <= number <= 47 or 58 <= number <= 64 or 91 <= number <= 96 or 123 <= number <= 126:
        return True
    return unicodedata.category(char)[0] == "P"


def is_cjk(char):
    for first, last in CJK_BLOCKS:
        if first <= ord(char) <= last:
            return True
    return False


def clean(text):
    result = ""
    for char in text:
        if ord(char) == 0 or ord(char) == 0xFFFD or is_control(char):
            continue
        result += " " if is_blank(char) else char
    return result


def surround_cjk(text):
    result = ""
    for char in text:
        result += " " + char + " " if is_cjk(char) else char
    return result


def strip_accents(text):
    result = ""
    for char in unicodedata.normalize("NFD", text):
        if unicodedata.category(char) != "Mn":
            result += char
    return result


def split_punctuation(word):
    words = []
    begin_new = True
    for char in word:
        if is_punctuation(char):
            words.append(char)
            begin_new = True
        elif begin_new:
            words.append(char)
            begin_new = False
        else:
            words[-1] += char
    return words


def basic_words(text, uncased):
    """What BasicTokenizer returns."""
    words = []
    for word in surround_cjk(clean(text)).split():
        if uncased:
            word = strip_accents(word.lower())
        words.extend(split_punctuation(word))
    return " ".join(words).split()


def word_pieces(word, vocabulary):
    """What WordpieceTokenizer returns for one word."""
    if len(word) > MAX_CHARS:
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(word):
        found = None
        end = len(word)
        while start < end:
            candidate = word[start:end]
            if start > 0:
                candidate = "##" + candidate
            if candidate in vocabulary:
                found = candidate
                break
            end -= 1
        if found is None:
            return ["[UNK]"]
        pieces.append(found)
        start = end
    return pieces


def token_ids(text, vocabulary, uncased):
    """Ids of a text, no special tokens. `vocabulary`: token -> id."""
    ids = []
    for word in basic_words(text, uncased):
        for piece in word_pieces(word, vocabulary):
            ids.append(vocabulary[piece])
    return ids


def read_vocabulary(path):
    """Token -> number of its line; of equal lines the last one wins."""
    vocabulary = {}
    for number, line in enumerate(Path(path).read_bytes().decode("utf-8").split("\n")[:-1]):
        vocabulary[line] = number
    return vocabulary


def truncate_pair(a, b, budget):
    """The loop of run_classifier.py: the longer list loses its last element; of equal ones the second."""
    a, b = list(a), list(b)
    while len(a) + len(b) > budget:
        if len(a) > len(b):
            a.pop()
        else:
            b.pop()
    return a, b
