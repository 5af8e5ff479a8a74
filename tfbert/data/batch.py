"""Records to arrays: pad to the longest row of the global batch, mask from lengths, fill up with rows of weight 0."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from tfbert.data.record import Record
from tfbert.errors import DataError

Batch = dict[str, npt.NDArray[np.generic]]


def padded_length(longest: int, length_multiple: int, max_len: int, pad_to_max: bool = False) -> int:
    """Length that a batch is padded to: a multiple of `length_multiple`, never more than `max_len` needs."""
    if pad_to_max:
        return max_len
    rounded = -(-longest // length_multiple) * length_multiple
    return max(longest, min(rounded, max_len))


def collate(records: Sequence[Record], length: int, pad_id: int) -> Batch:
    """Model inputs of records.

    Returns:
        `token_ids`, `segment_ids`, `padding_mask` (1 on real tokens), each int32 (rows, length). The mask comes from
        the lengths: a real token may have the id of [PAD].

    Raises:
        DataError: a row is longer than `length`.
    """
    lengths = np.fromiter((len(r.token_ids) for r in records), np.int64, len(records))
    if lengths.max(initial=0) > length:
        raise DataError(
            f"A row must fit the length of the batch, {length} tokens. Received: {lengths.max()} tokens. "
            "Encode the text again with a smaller --max_len."
        )
    mask = np.arange(length) < lengths[:, None]
    token_ids = np.full(mask.shape, pad_id, np.int32)
    token_ids[mask] = np.fromiter(chain.from_iterable(r.token_ids for r in records), np.int32, int(lengths.sum()))
    segment_ids = np.zeros(mask.shape, np.int32)
    for i, r in enumerate(records):
        if r.segment_ids is not None:
            segment_ids[i, : len(r.segment_ids)] = r.segment_ids
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask.astype(np.int32)}


def labels_of(
    records: Sequence[Record], task: str, num_classes: int, place: Callable[[int], str] = "row {} of the batch".format
) -> npt.NDArray[np.generic]:
    """Labels as the losses take them.

    Args:
        records: the rows.
        task: classify, multilabel or regression.
        num_classes: labels are below it (not for regression).
        place: number in `records` -> where the row is, for messages.

    Returns:
        Class ids int32 (rows,); multi-hot float32 (rows, num_classes); or numbers float32 (rows,).

    Raises:
        DataError: a label is missing, out of range or of another kind; the message begins with the place.
    """
    if task == "regression":
        for i, r in enumerate(records):
            if type(r.label) not in (int, float):
                raise DataError(f"{place(i)}: a label must be a number. Received: {r.label}.")
        return np.array([r.label for r in records], np.float32)
    several = task == "multilabel"
    labels = [r.label if several and isinstance(r.label, list) else [r.label] for r in records]
    for i, ids in enumerate(labels):
        if not all(type(label) is int and 0 <= label < num_classes for label in ids):
            raise DataError(
                f"{place(i)}: a label must be a class id from 0 to {num_classes - 1}. Received: {records[i].label}."
            )
    if not several:
        return np.array([ids[0] for ids in labels], np.int32)
    hot = np.zeros((len(records), num_classes), np.float32)
    for i, ids in enumerate(labels):
        hot[i, ids] = 1.0  # type: ignore[index]  # all int, as checked above
    return hot


def row_weights(records: Sequence[Record], class_weights: Mapping[int, float] | None) -> npt.NDArray[np.float32]:
    """Sample weight times class weight, float32 (rows,)."""
    weights = np.fromiter((r.weight for r in records), np.float32, len(records))
    if class_weights:
        weights *= np.fromiter((class_weights.get(r.label, 1.0) for r in records), np.float32, len(records))  # type: ignore[arg-type]
    return weights


def fill_up(batch: Batch, multiple: int) -> Batch:
    """Adds copies of the first row, with weight 0, until the rows divide evenly: no replica is ever empty."""
    rows = len(batch["weights"])
    missing = -rows % multiple
    if not missing:
        return batch
    filled = {name: np.concatenate([values, np.repeat(values[:1], missing, axis=0)]) for name, values in batch.items()}
    filled["weights"][rows:] = 0
    return filled
