"""Records to arrays: padding, mask, labels, weights, and rows that only fill a batch up."""

import numpy as np
import pytest

from tfbert.data.batch import collate, fill_up, labels_of, padded_length, row_weights
from tfbert.data.record import Record, columns_of
from tfbert.data.rows import Labels, Ragged, RowColumns
from tfbert.errors import DataError


def of(*records: Record) -> RowColumns:
    return columns_of(records)


def ragged(*rows: list[int]) -> Ragged:
    """Rows that lie in a flat array in another order, with gaps between them."""
    starts = [1 + sum(len(row) + 1 for row in rows[i + 1 :]) for i in range(len(rows))]
    values = np.full(sum(map(len, rows)) + len(rows) + 1, 99, np.uint16)
    for start, row in zip(starts, rows, strict=True):
        values[start : start + len(row)] = row
    return Ragged(values, np.array(starts, np.int64), np.array([len(row) for row in rows], np.int64))


def rows_of(*lengths: int) -> RowColumns:
    return of(*(Record(list(range(1, length + 1))) for length in lengths))


# ---------------------------------------------------------------------------------------------------------- collate


def test_rows_are_padded_at_their_end():
    """Case 063."""
    batch = collate(of(Record([5, 6, 7]), Record([8]), Record([1, 2, 3, 4])), 4, pad_id=0)
    assert batch["token_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0], [1, 2, 3, 4]]
    assert batch["padding_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch["segment_ids"].tolist() == [[0] * 4] * 3
    assert {name: values.dtype for name, values in batch.items()} == dict.fromkeys(batch, np.dtype(np.int32))
    assert set(batch) == {"token_ids", "segment_ids", "padding_mask"}


def test_the_mask_comes_from_lengths():
    """Case 047: [PAD] is 5, a real token has id 0, and another one the id of [PAD]."""
    batch = collate(of(Record([2, 0, 5, 3]), Record([0])), 5, pad_id=5)
    assert batch["token_ids"].tolist() == [[2, 0, 5, 3, 5], [0, 5, 5, 5, 5]]
    assert batch["padding_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]


def test_segments_of_pairs_beside_single_texts():
    pair = Record([2, 7, 3, 8, 3], [0, 0, 0, 1, 1])
    batch = collate(of(pair, Record([2, 3]), pair), 6, pad_id=0)
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 0], [0] * 6, [0, 0, 0, 1, 1, 0]]


def test_rows_out_of_a_flat_array():
    """Rows in any order, gaps between them, segments of their own; the last one is padded beyond the array's end."""
    rows = RowColumns(ragged([5, 6, 7], [8], [1, 2]), ragged([0, 1, 1], [], [0, 1]), [], np.ones(3, np.float32))
    batch = collate(rows, 5, pad_id=9)
    assert batch["token_ids"].tolist() == [[5, 6, 7, 9, 9], [8, 9, 9, 9, 9], [1, 2, 9, 9, 9]]
    assert batch["segment_ids"].tolist() == [[0, 1, 1, 0, 0], [0] * 5, [0, 1, 0, 0, 0]]
    assert batch["padding_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


def test_no_records():
    assert [values.shape for values in collate(of(), 4, 0).values()] == [(0, 4)] * 3


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(DataError, match="must fit the length of the batch, 4 tokens. Received: 6 tokens"):
        collate(rows_of(3, 6, 5), 4, pad_id=0)


def test_padded_length():
    """Cases 048 and 063: the longest row rounded up, or the length that was asked for."""
    assert [padded_length(longest, 8, 64) for longest in (1, 8, 9, 60, 64)] == [8, 8, 16, 64, 64]
    assert padded_length(13, 1, 64) == 13
    assert padded_length(13, 8, 14) == 14  # rounding up does not go beyond max_len
    assert padded_length(20, 8, 14) == 20  # rows of another's making may be longer
    assert padded_length(3, 8, 512, pad_to_max=True) == 512
    assert [
        collate(rows_of(3, 5), padded_length(5, 8, 16, fixed), 0)["token_ids"].shape for fixed in (False, True)
    ] == [
        (2, 8),
        (2, 16),
    ]


# ----------------------------------------------------------------------------------------------------------- labels


def test_class_labels():
    for given in ([2, 0, 1], np.array([2, 0, 1], np.int32)):
        labels = labels_of(given, "classify", 3)
        assert (labels.tolist(), labels.dtype) == ([2, 0, 1], np.int32)


def test_multi_hot_labels():
    """Case 059: the width is that of the task, whatever the batch holds."""
    listed: list = [[0, 1], [], [1], 0]
    for given in (listed, ragged([0, 1], [], [1], [0])):
        labels = labels_of(given, "multilabel", 3)
        assert labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]]
        assert labels.dtype == np.float32
    assert labels_of(np.array([1, 0], np.int32), "multilabel", 2).tolist() == [[0, 1], [1, 0]]


def test_regression_labels():
    for given in ([2.5, -1, 0], np.array([2.5, -1, 0])):
        labels = labels_of(given, "regression", 0)
        assert (labels.tolist(), labels.dtype) == ([2.5, -1.0, 0.0], np.float32)


@pytest.mark.parametrize("task", ["classify", "multilabel"])
@pytest.mark.parametrize("wrong", [-1, 3, None, 1.0, 0.5, [3], [0, -1]])
def test_labels_outside_of_the_classes_are_refused_with_their_row(task: str, wrong):
    """Case 059: -1 must not become the last class, nor no label every class."""
    with pytest.raises(DataError) as caught:
        labels_of([0, 1, wrong, 2], task, 3)
    assert str(caught.value) == f"row 2 of the batch: a label must be a class id from 0 to 2. Received: {wrong}."
    with pytest.raises(DataError, match=r"^data\.jsonl:12: a label"):
        labels_of([0, wrong], task, 3, place=lambda row: f"data.jsonl:{row + 11}")


@pytest.mark.parametrize("task", ["classify", "multilabel"])
@pytest.mark.parametrize(
    "labels, received",
    [
        (np.array([0, 3], np.int32), "3"),
        (np.array([0, -1], np.int32), "None"),
        (np.array([0, -7], np.int32), "-7"),
        (np.array([0.0, 0.5]), "0.0"),
    ],
)
def test_labels_of_a_column_outside_of_the_classes(task: str, labels: Labels, received: str):
    row = 0 if received == "0.0" else 1
    with pytest.raises(DataError, match=rf"^row {row} of the batch: a label must be .* Received: {received}\.$"):
        labels_of(labels, task, 3)


def test_several_labels_of_a_column_outside_of_the_classes():
    with pytest.raises(DataError, match=r"^row 2 of the batch: .* Received: \[0, 3\]\.$"):
        labels_of(ragged([1], [], [0, 3]), "multilabel", 3)
    with pytest.raises(DataError, match=r"^row 0 of the batch: .* Received: \[1\]\.$"):
        labels_of(ragged([1], [], [0, 3]), "classify", 3)


def test_a_list_is_no_class():
    with pytest.raises(DataError, match=r"Received: \[1\]"):
        labels_of([[1]], "classify", 3)


@pytest.mark.parametrize("labels", [[0.5, None], [0.5, [1]], np.array([4, -1], np.int32)])
def test_regression_labels_must_be_numbers(labels: Labels):
    with pytest.raises(DataError, match="row 1 of the batch: a label must be a number"):
        labels_of(labels, "regression", 0)


@pytest.mark.parametrize("task, shape", [("classify", (0,)), ("multilabel", (0, 3)), ("regression", (0,))])
def test_labels_of_no_records(task: str, shape: tuple[int, ...]):
    assert labels_of([], task, 3).shape == shape


# ---------------------------------------------------------------------------------------------------------- weights


def test_row_weights():
    weights, classes = np.array([1.0, 0.5, 0.0], np.float32), np.array([0, 1, 2], np.int32)
    assert row_weights(weights, classes, None).tolist() == [1.0, 0.5, 0.0]
    weighted = row_weights(weights, classes, {0: 2.0, 1: 3.0, 2: 4.0})
    assert (weighted.tolist(), weighted.dtype) == ([2.0, 1.5, 0.0], np.float32)
    assert row_weights(weights, classes, {1: 3.0}).tolist() == [1.0, 1.5, 0.0]
    assert row_weights(weights[:0], classes[:0], {1: 3.0}).tolist() == []


# ---------------------------------------------------------------------------------------------------------- fill up


def batch_of(*lengths: int) -> dict:
    weights = np.arange(1, len(lengths) + 1, dtype=np.float32)
    labels = np.arange(len(lengths), dtype=np.int32)
    return collate(rows_of(*lengths), max(lengths), pad_id=0) | {"labels": labels, "weights": weights}


@pytest.mark.parametrize("rows, multiple, total", [(1, 4, 4), (3, 2, 4), (5, 4, 8), (7, 7, 7), (4, 1, 4)])
def test_fill_up_gives_every_replica_rows(rows: int, multiple: int, total: int):
    batch = batch_of(*range(2, rows + 2))
    filled = fill_up(batch, multiple)
    assert {name: len(values) for name, values in filled.items()} == dict.fromkeys(batch, total)
    assert filled["weights"].tolist() == [float(i + 1) for i in range(rows)] + [0.0] * (total - rows)
    for name, values in batch.items():
        assert filled[name].dtype == values.dtype
        assert filled[name][:rows].tolist() == values.tolist()
        if name != "weights":  # whole rows, so that no loss or softmax meets an empty one
            assert filled[name][rows:].tolist() == values[:1].tolist() * (total - rows)


def test_fill_up_leaves_its_input_alone():
    batch = batch_of(2, 3, 4)
    fill_up(batch, 4)
    assert batch["weights"].tolist() == [1.0, 2.0, 3.0]
    assert len(batch["labels"]) == 3
