"""Rows to arrays: pad to the longest row of the global batch, mask from lengths, fill up with rows of weight 0."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbert.data.index import NO_LABEL
from tfbert.data.rows import Labels, Ragged, RowColumns
from tfbert.errors import DataError

Batch = dict[str, npt.NDArray[np.generic]]


def padded_length(longest: int, length_multiple: int, max_len: int, pad_to_max: bool = False) -> int:
    """Length that a batch is padded to: a multiple of `length_multiple`, never more than `max_len` needs."""
    if pad_to_max:
        return max_len
    rounded = -(-longest // length_multiple) * length_multiple
    return max(longest, min(rounded, max_len))


def collate(rows: RowColumns, length: int, pad_id: int, extremes: tuple[int, int] | None = None) -> Batch:
    """Model inputs of rows.

    Args:
        rows: of the batch.
        length: that they are padded to.
        pad_id: what they are padded with.
        extremes: tokens of the shortest and the longest row, where they are known.

    Returns:
        `token_ids`, `segment_ids`, `padding_mask` (1 on real tokens), each int32 (rows, length). The mask comes from
        the lengths: a real token may have the id of [PAD].

    Raises:
        DataError: a row is longer than `length`.
    """
    lengths = rows.token_ids.lengths
    shortest, longest = extremes or (int(lengths.min(initial=length)), int(lengths.max(initial=0)))
    if longest > length:
        raise DataError(
            f"A row must fit the length of the batch, {length} tokens. Received: {longest} tokens. "
            "Encode the text again with a smaller --max_len."
        )
    shape = len(lengths), length
    token_ids = rows.token_ids.padded(length, pad_id, shortest)
    segments = np.zeros(shape, np.int32) if rows.segment_ids is None else rows.segment_ids.padded(length, 0)
    if shortest == length:  # as in most batches of sorted rows
        mask = np.ones(shape, np.int32)
    else:
        mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    return {"token_ids": token_ids, "segment_ids": segments, "padding_mask": mask}


def labels_of(
    labels: Labels, task: str, num_classes: int, place: Callable[[int], str] = "row {} of the batch".format
) -> npt.NDArray[np.generic]:
    """Labels as the losses take them.

    Args:
        labels: of the rows.
        task: classify, multilabel or regression.
        num_classes: labels are below it (not for regression).
        place: number in `labels` -> where the row is, for messages.

    Returns:
        Class ids int32 (rows,); multi-hot float32 (rows, num_classes); or numbers float32 (rows,).

    Raises:
        DataError: a label is missing, out of range or of another kind; the message begins with the place.
    """
    if task == "regression":
        return _numbers(labels, place)
    if task == "multilabel":
        return _multi_hot(labels, num_classes, place)
    return _class_ids(labels, num_classes, place)


def _numbers(labels: Labels, place: Callable[[int], str]) -> npt.NDArray[np.float32]:
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "f":
        return labels.astype(np.float32)
    listed = _listed(labels)
    for i, label in enumerate(listed):
        if type(label) not in (int, float):
            raise DataError(f"{place(i)}: a label must be a number. Received: {label}.")
    return np.array(listed, np.float32)


def _class_ids(labels: Labels, num_classes: int, place: Callable[[int], str]) -> npt.NDArray[np.int32]:
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "i":
        ids = labels
    else:
        listed = _listed(labels)
        _refuse(labels, [i for i, label in enumerate(listed) if type(label) is not int], num_classes, place)
        ids = np.array(listed, np.int64)
    _refuse(labels, np.flatnonzero((ids < 0) | (ids >= num_classes)), num_classes, place)
    return ids.astype(np.int32, copy=False)


def _multi_hot(labels: Labels, num_classes: int, place: Callable[[int], str]) -> npt.NDArray[np.float32]:
    rows = labels
    if not isinstance(rows, Ragged):
        listed = [label if isinstance(label, list) else [label] for label in _listed(labels)]
        wrong = [i for i, ids in enumerate(listed) if not all(type(label) is int for label in ids)]
        _refuse(labels, wrong, num_classes, place)
        rows = Ragged.of(listed, np.int64)
    ids, numbers = rows.flat(), rows.row_numbers()
    _refuse(labels, numbers[(ids < 0) | (ids >= num_classes)], num_classes, place)
    hot = np.zeros((len(rows.lengths), num_classes), np.float32)
    hot[numbers, ids] = 1.0
    return hot


def _refuse(
    labels: Labels, wrong: Sequence[int] | npt.NDArray[np.int64], num_classes: int, place: Callable[[int], str]
) -> None:
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{place(row)}: a label must be a class id from 0 to {num_classes - 1}. Received: {_label(labels, row)}."
        )


def _listed(labels: Labels) -> list[Any]:
    """Labels of whatever kind, one object a row."""
    if isinstance(labels, list):
        return labels
    return [_label(labels, i) for i in range(len(labels.lengths if isinstance(labels, Ragged) else labels))]


def _label(labels: Labels, row: int) -> Any:
    """A label as the row has it."""
    if isinstance(labels, Ragged):
        start = labels.starts[row]
        return labels.values[start : start + labels.lengths[row]].tolist()
    if isinstance(labels, np.ndarray):
        return None if labels.dtype.kind == "i" and labels[row] == NO_LABEL else labels[row].item()
    return labels[row]


def row_weights(
    weights: npt.NDArray[np.float32], class_ids: npt.NDArray[np.generic], class_weights: Mapping[int, float] | None
) -> npt.NDArray[np.float32]:
    """Sample weight times class weight, float32 (rows,)."""
    if not class_weights:
        return weights
    return weights * np.array([class_weights.get(i, 1.0) for i in class_ids.tolist()], np.float32)


def fill_up(batch: Batch, multiple: int) -> Batch:
    """Adds copies of the first row, with weight 0, until the rows divide evenly: no replica is ever empty."""
    rows = len(batch["weights"])
    missing = -rows % multiple
    if not missing:
        return batch
    filled = {name: np.concatenate([values, np.repeat(values[:1], missing, axis=0)]) for name, values in batch.items()}
    filled["weights"][rows:] = 0
    return filled
