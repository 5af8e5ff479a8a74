"""Which rows go to validation and which are duplicates, against plain Python over the same rows."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import preprocess.split
from preprocess.parts import ROW
from preprocess.split import CONFLICT, DUPLICATE, TRAIN, VAL, TextGroups, bucket_bits, split_sizes


def make_tables(texts: list[int], labels: list[int], part_rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, (max(texts) + 1, 2), dtype=np.uint64)
    table = np.zeros(len(texts), ROW)
    table["hash"], table["hash2"] = hashes[texts].T
    table["label"] = table["label_key"] = labels
    return [table[i : i + part_rows] for i in range(0, len(table), part_rows)]


@pytest.fixture(params=[(1 << 18, 1 << 22), (8, 16), (3, 2)])
def small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bucket, and many with few rows at a time."""
    monkeypatch.setattr(preprocess.split, "BUCKET_ROWS", request.param[0])
    monkeypatch.setattr(preprocess.split, "WINDOW_ROWS", request.param[1])


@pytest.fixture
def rows() -> tuple[list[int], list[int]]:
    """Texts with many duplicates, one of them a third of all; labels that mostly belong to the text."""
    rng = np.random.default_rng(1)
    texts = np.where(rng.random(200) < 0.3, 7, rng.integers(0, 90, 200)).tolist()
    return texts, [text % 3 if i % 5 else int(rng.integers(0, 3)) for i, text in enumerate(texts)]


def group_of(
    folder: Path, texts: list[int], labels: list[int], name: str = "train", bits: int | None = None
) -> TextGroups:
    tables = make_tables(texts, labels, 17)
    return TextGroups(folder, name, lambda: iter(tables), len(texts), bucket_bits(200) if bits is None else bits)


@pytest.mark.usefixtures("small_steps")
def test_duplicates_and_conflicts_are_those_of_a_plain_loop(tmp_path: Path, rows: tuple[list[int], list[int]]) -> None:
    texts, labels = rows
    group = group_of(tmp_path, texts, labels)
    conflicts = group.compare(drop=True)
    first: dict[int, int] = {}
    expected = []
    for text, label in zip(texts, labels, strict=True):
        expected.append(TRAIN if text not in first else DUPLICATE if first[text] == label else CONFLICT)
        first.setdefault(text, label)
    assert group.destination.read(0, len(texts)).tolist() == expected
    assert conflicts == len({text for text, code in zip(texts, expected, strict=True) if code == CONFLICT})


@pytest.mark.usefixtures("small_steps")
def test_shared_texts_are_counted_once(tmp_path: Path, rows: tuple[list[int], list[int]]) -> None:
    texts, labels = rows
    bits = bucket_bits(len(texts))
    train = group_of(tmp_path, [min(text, 60) for text in texts], labels, bits=bits)
    # the hashes of a text are those of its number, so both groups know the same texts
    test = group_of(tmp_path, texts[:50], labels[:50], "test", bits)
    assert train.compare(drop=True) >= 0
    assert test.compare(drop=True) >= 0
    assert test.count_shared(train) == len({t for t in texts[:50]} & {min(t, 60) for t in texts})


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.6, 0.97])
def test_the_split_has_its_sizes_and_keeps_texts_together(
    tmp_path: Path, rows: tuple[list[int], list[int]], drop: bool, fraction: float
) -> None:
    texts, labels = rows
    group = group_of(tmp_path, texts, labels)
    group.compare(drop)
    chosen = group.split(fraction, 3)
    destination = group.destination.read(0, len(texts))
    assert chosen == np.count_nonzero(destination == VAL)
    sides: dict[int, set[int]] = {}
    for text, code in zip(texts, destination.tolist(), strict=True):
        if code in (TRAIN, VAL):
            sides.setdefault(text, set()).add(code)
    assert all(len(side) == 1 for side in sides.values())
    first = {text: label for text, label in reversed(list(zip(texts, labels, strict=True)))}
    kept = [first[text] for text, code in zip(texts, destination.tolist(), strict=True) if code in (TRAIN, VAL)]
    val = Counter(first[text] for text, code in zip(texts, destination.tolist(), strict=True) if code == VAL)
    wanted = split_sizes(np.bincount(kept, minlength=3), fraction)
    largest = max(Counter(texts).values()) if not drop else 1
    for label in range(3):
        assert abs(val[label] - wanted[label]) <= (largest + 1) // 2 or val[label] < wanted[label]
        assert val[label] < kept.count(label)
    if drop:
        assert [val[label] for label in range(3)] == wanted.tolist()


def test_one_label_of_many_equal_texts_stays(tmp_path: Path) -> None:
    group = group_of(tmp_path, [5] * 50, [0] * 50)
    group.compare(drop=False)
    assert group.split(0.9, 1) == 0


def test_many_labels(tmp_path: Path) -> None:
    texts = list(range(3000))
    group = group_of(tmp_path, texts, [text % 1000 for text in texts])
    group.compare(drop=False)
    assert group.split(1 / 3, 1000) == 1000
    labels = np.array([text % 1000 for text in texts])[group.destination.read(0, 3000) == VAL]
    assert sorted(labels.tolist()) == list(range(1000))


@pytest.mark.parametrize(
    "per_label, fraction, sizes",
    [
        ([9, 1], 0.1, [1, 0]), ([1, 1, 1], 0.5, [0, 0, 0]), ([1, 9], 0.9, [0, 8]), ([10, 10, 10], 0.05, [1, 1, 0]),
        ([0, 5], 0.4, [0, 2]), ([600, 300, 99, 1], 0.1, [60, 30, 10, 0]), ([3], 0.0, [0]), ([0], 0.5, [0]),
    ],
)  # fmt: skip
def test_sizes_by_largest_remainder(per_label: list[int], fraction: float, sizes: list[int]) -> None:
    assert split_sizes(np.array(per_label), fraction).tolist() == sizes
