"""The row of a data set: `{"type", "label", "wordids", "segmentids", "weight", "keep"}` on disk, token ids in code.

This is the one file that knows both vocabularies. Ids are stored without padding; `segmentids` is absent where all
are 0, `label` where there is none, `weight` where it is 1.
"""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from tfbert.data.rows import Ragged, RowColumns
from tfbert.errors import DataError

MAX_ID = 2**31 - 1  # ids and class ids are int32 everywhere


class Record(NamedTuple):
    """One row.

    Attributes:
        token_ids: special tokens included, no padding.
        segment_ids: as long as `token_ids`; None means all 0.
        label: class id, list of class ids (multi-label), float (regression) or None.
        weight: weight of the row in the loss.
        type: free text, or None.
        keep: columns copied from the input, or None; nothing in training reads them.
    """

    token_ids: list[int]
    segment_ids: list[int] | None = None
    label: int | float | list[int] | None = None
    weight: float = 1.0
    type: str | None = None
    keep: dict[str, str] | None = None


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
    if record.keep is not None:
        row["keep"] = record.keep
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


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
    return Record(token_ids, segment_ids, label, float(weight), row.get("type"), row.get("keep"))


def parse_columns(lines: Sequence[bytes]) -> RowColumns | None:
    """Reads many lines at once, in a fraction of the time; None where `parse` has something against one of them."""
    token_ids, segment_ids = array("i"), array("i")
    lengths, segment_lengths, labels, weights = [], [], [], []
    try:
        for line in lines:
            row = orjson.loads(line)
            ids = row["wordids"]
            token_ids.fromlist(ids)  # takes int32 alone; and true and false, so lines with these are left to `parse`
            lengths.append(len(ids))
            segments = row.get("segmentids")
            if segments is not None:
                segment_ids.fromlist(segments)
            segment_lengths.append(0 if segments is None else len(segments))
            if (
                not ids
                or segment_lengths[-1] != (0 if segments is None else len(ids))
                or b"true" in line
                or b"false" in line
            ):
                return None
            labels.append(row.get("label"))
            weights.append(row.get("weight", 1.0))
    except (orjson.JSONDecodeError, TypeError, KeyError, OverflowError, AttributeError):
        return None
    if not (all(map(_is_label, labels)) and all(map(_is_weight, weights))):
        return None
    tokens = _joined(token_ids, lengths)
    segments = _joined(segment_ids, segment_lengths) if segment_ids else None
    if tokens.values.min(initial=0) < 0 or (segments is not None and segments.values.min(initial=0) < 0):
        return None
    return RowColumns(tokens, segments, labels, np.array(weights, np.float32))


def _joined(values: "array[int]", lengths: list[int]) -> Ragged:
    return Ragged.joined(np.frombuffer(values, np.int32), np.array(lengths, np.int64))


def columns_of(records: Sequence[Record]) -> RowColumns:
    """Rows as columns, in the same order."""
    segment_ids = None
    if any(r.segment_ids is not None for r in records):
        segment_ids = Ragged.of([r.segment_ids or () for r in records])
    return RowColumns(
        Ragged.of([r.token_ids for r in records]),
        segment_ids,
        [r.label for r in records],
        np.fromiter((r.weight for r in records), np.float32, len(records)),
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
