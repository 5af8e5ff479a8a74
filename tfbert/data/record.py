"""The row of a data set: `{"type", "label", "wordids", "segmentids", "weight", "words", "keep"}` on disk, ids in code.

This is the one file that knows both vocabularies. Ids are stored without padding; `segmentids` is absent where all
are 0, `label` where there is none, `weight` where it is 1.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from tfbert.data.numbers import parse_lists
from tfbert.data.rows import Labels, Ragged, RowColumns
from tfbert.errors import DataError

MAX_ID = 2**31 - 1  # ids and class ids are int32 everywhere
Label = int | float | list[int] | None
_LISTS = ("wordids", "segmentids")
_COMPACT = b'"wordids":[', b'"segmentids":[', b'"words":"'  # as orjson writes them
_MOST_BEHIND = 64  # bytes behind the ids of a line that is read the short way
_SPACED = b'"wordids": [', b'"segmentids": [', b'"words": "'  # as json does


class Record(NamedTuple):
    """One row.

    Attributes:
        token_ids: special tokens included, no padding.
        segment_ids: as long as `token_ids`; None means all 0.
        label: class id, list of class ids (multi-label), float (regression) or None.
        weight: weight of the row in the loss.
        type: free text, or None.
        words: a character a token, `1` where a word begins and `0` where it goes on; or None.
        keep: columns copied from the input, or None; nothing in training reads them.
    """

    token_ids: list[int]
    segment_ids: list[int] | None = None
    label: Label = None
    weight: float = 1.0
    type: str | None = None
    keep: dict[str, str | None] | None = None
    words: str | None = None


def dump(record: Record) -> bytes:
    """One line of JSON with its LF."""
    row: dict[str, Any] = {}
    if record.type is not None:
        row["type"] = record.type
    if record.label is not None:
        row["label"] = record.label
    if record.weight != 1.0:
        row["weight"] = record.weight
    row["wordids"] = record.token_ids
    if record.segment_ids is not None:
        row["segmentids"] = record.segment_ids
    if record.words is not None:
        row["words"] = record.words
    if record.keep is not None:
        row["keep"] = record.keep
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def dump_rows(
    token_ids: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    first_lengths: npt.NDArray[np.int64] | None = None,
    *,
    labels: Sequence[Label] | None = None,
    weights: Sequence[float] | None = None,
    types: Sequence[str] | None = None,
    words: Sequence[bytes] | None = None,
    keep: Mapping[str, Sequence[str]] | None = None,
) -> list[bytes]:
    """The lines of many rows, as `dump` makes them, without a Python object a token.

    Args:
        token_ids: (tokens,), the rows one behind the other.
        lengths: (rows,), tokens of each row, at least one.
        first_lengths: (rows,), tokens with segment id 0, before those with 1; None means no segment ids.
        labels: as in `Record`, a value a row; None where no row has one.
        weights: the same.
        types: the same.
        words: the same, as ASCII.
        keep: kept columns by name.
    """
    fields: list[list[bytes]] = []
    if types is not None:
        fields.append([b'"type":%b,' % orjson.dumps(value) for value in types])
    if labels is not None:
        fields.append([b'"label":%b,' % orjson.dumps(value) for value in labels])
    if weights is not None:
        fields.append([b'"weight":%b,' % orjson.dumps(value) if value != 1.0 else b"" for value in weights])
    heads = list(map(b"".join, zip(*fields, strict=True))) if fields else [b""] * len(lengths)
    tails = [b"]"] * len(lengths) if first_lengths is None else _segment_texts(first_lengths, lengths)
    if words is not None:
        tails = [b'%b,"words":"%b"' % parts for parts in zip(tails, words, strict=True)]
    if keep is not None:
        rows = zip(*keep.values(), strict=True)
        kept = (orjson.dumps(dict(zip(keep, values, strict=True))) for values in rows)
        tails = [b'%b,"keep":%b' % parts for parts in zip(tails, kept, strict=True)]
    parts = zip(heads, _id_texts(token_ids, lengths), tails, strict=True)
    return [b'{%b"wordids":[%b%b}\n' % part for part in parts]


def _segment_texts(first_lengths: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    """What stands behind the ids of a row with segment ids."""
    longest = int(lengths.max(initial=0))
    zeros, ones = b"0," * longest, b"1," * longest
    return [
        b'],"segmentids":[%b]' % (zeros[: 2 * first] + ones[: 2 * (length - first)])[:-1]
        for first, length in zip(first_lengths.tolist(), lengths.tolist(), strict=True)
    ]


def _id_texts(token_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    """The ids of every row, joined by commas."""
    if not len(token_ids):
        return [b""] * len(lengths)
    text = orjson.dumps(token_ids, option=orjson.OPT_SERIALIZE_NUMPY)
    widths = np.full(len(token_ids), 2, np.int8)  # one digit and a comma
    power, largest = 10, int(token_ids.max())
    while power <= largest:
        widths += (token_ids >= power).view(np.int8)
        power *= 10
    ends = np.cumsum(np.add.reduceat(widths, np.cumsum(lengths) - lengths, dtype=np.int64)).tolist()
    return [text[start + 1 : end] for start, end in zip([0, *ends], ends, strict=False)]


def parse(line: bytes) -> Record:
    """Reads one line.

    Raises:
        DataError: it is not such a row; the message lacks the place, which the caller knows.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"a row must be JSON. Received: {_cut(line)} ({error}).") from None
    if not isinstance(row, dict):
        raise DataError(f"a row must be a JSON object. Received: {_cut(line)}.")
    token_ids = row.get("wordids")
    if not _is_id_list(token_ids) or not token_ids:
        raise DataError(f"`wordids` must be a list of one or more ids from 0 to {MAX_ID}. Received: {_cut(line)}.")
    segment_ids = row.get("segmentids")
    if segment_ids is not None and (not _is_id_list(segment_ids) or len(segment_ids) != len(token_ids)):
        raise DataError(f"`segmentids` must be as many as `wordids`. Received: {_cut(line)}.")
    label = row.get("label")
    if not _is_label(label):
        raise DataError(f"`label` must be a number or a list of class ids. Received: {_cut(line)}.")
    weight = row.get("weight", 1.0)
    if not _is_weight(weight):
        raise DataError(f"`weight` must be a number >= 0. Received: {_cut(line)}.")
    words = row.get("words")
    if not isinstance(words, str) or len(words) != len(token_ids) or words.strip("01"):
        words = None  # of someone else's file, which may call anything so
    return Record(token_ids, segment_ids, label, float(weight), row.get("type"), row.get("keep"), words)


def parse_columns(lines: Sequence[bytes]) -> RowColumns | None:
    """Reads many lines at once, in a fraction of the time; None where one of them needs a closer look by `parse`.

    The lists are cut out of each line as text and read together. The rest of a line goes through the JSON parser; it is
    the same for many rows.
    """
    parts = []
    for line in lines:
        part = _split_plain(line) or _split(line)
        if part is None:
            return None
        parts.append(part)
    ids, segments, labels, weights, words = zip(*parts, strict=True) if parts else ((), (), (), (), ())
    tokens = parse_lists(ids)
    given = [text for text in segments if text is not None]
    segment_numbers = parse_lists(given)
    if tokens is None or segment_numbers is None:
        return None
    segment_ids = None
    if given:
        counts = np.zeros(len(lines), np.int64)
        counts[[text is not None for text in segments]] = segment_numbers[1]
        if not ((counts == tokens[1]) | (counts == 0)).all():
            return None
        segment_ids = Ragged.joined(segment_numbers[0], counts)
    flags = _word_flags(words, tokens[1])
    return RowColumns(Ragged.joined(*tokens), segment_ids, _labels(labels), np.array(weights, np.float32), flags)


def _labels(labels: Sequence[Label]) -> Labels:
    """As an array where all are class ids."""
    if set(map(type, labels)) == {int}:
        ids = np.array(labels, np.int32)
        if ids.min() >= 0:
            return ids
    return list(labels)


def _word_flags(words: Sequence[bytes | None], lengths: npt.NDArray[np.int64]) -> Ragged | None:
    fitting = [text if text is not None and len(text) == n else b"" for text, n in zip(words, lengths, strict=True)]
    joined = b"".join(fitting)
    if not joined:
        return None
    counts = np.fromiter(map(len, fitting), np.int64, len(fitting))
    return Ragged.joined(np.frombuffer(joined, np.uint8) - np.uint8(ord("0")), counts)


_Parts = tuple[bytes, bytes | None, Label, float, bytes | None]


def _split_plain(line: bytes) -> _Parts | None:
    """`_split` for the most frequent lines: of one text, and with little behind the ids; None where it is another."""
    head, _, tail = line.partition(_COMPACT[0])
    token_ids, _, rest = tail.partition(b"]")
    if len(rest) > _MOST_BEHIND:
        return None
    known = _label_and_weight_of(head, rest)
    return None if known is None else (token_ids, None, *known, None)


@lru_cache(4096)
def _label_and_weight_of(head: bytes, rest: bytes) -> tuple[Label, float] | None:
    """Of what stands before and behind the ids."""
    return _label_and_weight(b"%b%b]%b" % (head, _COMPACT[0], rest), False, False)


def _split(line: bytes) -> _Parts | None:
    """Takes a line apart without reading its lists, where it has the form that `dump` or `json.dumps` give it.

    Returns:
        Text between the brackets of `wordids` and of `segmentids`, which whoever reads it checks; label, weight, words.
        None where the line may have another form or be damaged.
    """
    ids_open, segments_open, words_open = _COMPACT
    begin = line.find(ids_open)
    spaced = begin < 0
    if spaced:
        ids_open, segments_open, words_open = _SPACED
        begin = line.find(ids_open)
        if begin < 0:
            return None
    begin += len(ids_open)
    end = line.find(b"]", begin)
    if end < 0:
        return None
    token_ids, segment_ids = line[begin:end], None
    segments_begin = line.find(segments_open, end) + len(segments_open)
    if segments_begin < len(segments_open):
        rest = line[:begin] + line[end:]
    else:
        segments_end = line.find(b"]", segments_begin)
        segment_ids = line[segments_begin:segments_end]
        rest = line[:begin] + line[end:segments_begin] + line[segments_end:]
    words = None
    words_begin = rest.find(words_open) + len(words_open)
    if words_begin >= len(words_open):
        words_end = rest.find(b'"', words_begin)
        words = rest[words_begin:words_end]
        if words.strip(b"01"):
            return None
        rest = rest[:words_begin] + rest[words_end:]
    label_weight = _label_and_weight(rest, segment_ids is not None, words is not None)
    if label_weight is None:
        return None
    if spaced:
        token_ids = token_ids.replace(b", ", b",")
        segment_ids = None if segment_ids is None else segment_ids.replace(b", ", b",")
    return token_ids, segment_ids, *label_weight, words


@lru_cache(4096)
def _label_and_weight(rest: bytes, with_segments: bool, with_words: bool) -> tuple[Label, float] | None:
    """Of a line whose lists and words were taken out; None where it is not such a line."""
    try:
        row = orjson.loads(rest)
    except orjson.JSONDecodeError:
        return None
    lists: dict[str, list[int]] = {"wordids": [], "segmentids": []} if with_segments else {"wordids": []}
    if not isinstance(row, dict) or {name: row[name] for name in _LISTS if name in row} != lists:
        return None
    if any(rest.count(name.encode()) != (name in lists) for name in _LISTS):  # twice, or inside another value
        return None
    if rest.count(b'"words"') != with_words or (with_words and row.get("words") != ""):
        return None
    label, weight = row.get("label"), row.get("weight", 1.0)
    return (label, float(weight)) if _is_label(label) and _is_weight(weight) else None


def columns_of(records: Sequence[Record]) -> RowColumns:
    """Rows as columns, in the same order."""
    segment_ids = None
    if any(r.segment_ids is not None for r in records):
        segment_ids = Ragged.of([r.segment_ids or () for r in records])
    tokens = Ragged.of([r.token_ids for r in records])
    return RowColumns(
        tokens,
        segment_ids,
        [r.label for r in records],
        np.fromiter((r.weight for r in records), np.float32, len(records)),
        _word_flags([None if r.words is None else r.words.encode() for r in records], tokens.lengths),
    )


def _is_label(label: object) -> bool:
    return label is None or type(label) is float or _is_class(label) or _is_id_list(label)


def _is_weight(weight: object) -> bool:
    return type(weight) in (int, float) and 0 <= weight < float("inf")  # type: ignore[operator]


def _is_class(value: object) -> bool:
    return type(value) is int and abs(value) <= MAX_ID


def _is_id_list(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return not value or (set(map(type, value)) == {int} and 0 <= min(value) and max(value) <= MAX_ID)


def _cut(line: bytes, limit: int = 120) -> str:
    text = line[:limit].decode("utf-8", "replace")
    return repr(text + ("..." if len(line) > limit else ""))
