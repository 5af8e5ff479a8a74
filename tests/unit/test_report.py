"""Scores: parity with scikit-learn on the whole set, and finite values where there is nothing to divide by."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.metrics
from scipy.stats import pearsonr, spearmanr

from tfbert import report
from tfbert.report import ClassifyScores, MultilabelScores, RegressionScores, make_scores

Array = npt.NDArray[Any]


def sure(predicted: Array | list[int], num_classes: int) -> Array:
    """Logits of a model that is certain."""
    return 20 * np.eye(num_classes, dtype=np.float32)[predicted]


def classify(labels: Array, logits: Array, batch: int = 7) -> ClassifyScores:
    scores = ClassifyScores([f"n{i}" for i in range(logits.shape[1])])
    for i in range(0, len(labels), batch):
        scores.update(labels[i : i + batch], logits[i : i + batch])
    return scores


def all_numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in all_numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in all_numbers(v)]
    return [] if isinstance(value, str) else [value]


@pytest.mark.parametrize(("num_classes", "rows"), [(2, 50), (5, 200), (40, 60)])
def test_scores_equal_scikit_learn_on_the_whole_set(num_classes: int, rows: int) -> None:
    """Case 089: whatever the batches are; with classes that are never met or never predicted."""
    draw = np.random.default_rng(num_classes)
    labels = draw.integers(num_classes, size=rows)
    logits = draw.standard_normal((rows, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    predicted = logits.argmax(axis=1)
    result = classify(labels, logits).result()
    common: dict[str, Any] = {"labels": range(num_classes), "zero_division": 0}
    assert result["rows"] == rows
    assert result["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted))
    assert result["mcc"] == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predicted))
    for average in ("macro", "micro"):
        p, r, f, _ = sklearn.metrics.precision_recall_fscore_support(labels, predicted, average=average, **common)
        assert result[average] == pytest.approx({"precision": p, "recall": r, "f1": f})
    each = np.array(sklearn.metrics.precision_recall_fscore_support(labels, predicted, **common)).T
    for row, values in zip(result["per_class"].values(), each, strict=True):
        assert list(row.values()) == pytest.approx(list(values))
    matrix = sklearn.metrics.confusion_matrix(labels, predicted, labels=range(num_classes))
    assert result["confusion"] == {"labels": [f"n{i}" for i in range(num_classes)], "matrix": matrix.tolist()}


def test_macro_f1_is_that_of_the_whole_set() -> None:
    """Case 089: per class 2/3, 4/5 and 0."""
    labels, predicted = np.array([0, 0, 0, 1, 1, 2]), [0, 0, 1, 1, 1, 0]
    scores = classify(labels, sure(predicted, 3), batch=2)
    assert scores.per_class_f1() == pytest.approx({"n0": 2 / 3, "n1": 4 / 5, "n2": 0})
    assert scores.brief()["macro_f1"] == pytest.approx(0.4889, abs=5e-5)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("hit", [True, False])
def test_no_rows_and_a_single_class_give_finite_scores(rows: int, hit: bool) -> None:
    """Case 103."""
    labels = np.full(rows, 1)
    result = classify(labels, sure([1 if hit else 0] * rows, 2).reshape(rows, 2)).result()
    assert all(math.isfinite(number) for number in all_numbers(result))
    assert result["accuracy"] == (1.0 if hit and rows else 0.0)
    assert result["macro"]["f1"] == (0.5 if hit and rows else 0.0)
    assert result["mcc"] == 0
    assert json.loads(json.dumps(result)) == result
    assert str(rows) in report.text_report(result)


def test_calibration_error_by_hand() -> None:
    """Two bins: 0.9 sure and right 3 of 4 times, 0.6 sure and right 1 of 2 times."""
    probabilities = np.array([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
    labels = np.array([0, 0, 0, 1, 1, 0])
    calibration = classify(labels, np.log(probabilities)).result()["calibration"]
    assert calibration["ece"] == pytest.approx((4 * 0.15 + 2 * 0.1) / 6)
    filled = [b for b in calibration["bins"] if b["rows"]]
    assert [b["rows"] for b in filled] == [2, 4]
    assert [b["confidence"] for b in filled] == pytest.approx([0.6, 0.9])
    assert [b["accuracy"] for b in filled] == pytest.approx([0.5, 0.75])


def test_calibration_error_equals_the_definition() -> None:
    draw = np.random.default_rng(1)
    logits, labels = 2 * draw.standard_normal((500, 4)), draw.integers(4, size=500)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, hits = shares.max(axis=1), shares.argmax(axis=1) == labels
    place = np.digitize(confidence, np.linspace(0, 1, report.NUM_BINS + 1)) - 1
    expected = sum(
        abs(hits[place == b].mean() - confidence[place == b].mean()) * (place == b).mean() for b in np.unique(place)
    )
    assert classify(labels, logits).result()["calibration"]["ece"] == pytest.approx(expected)


def test_certain_rows_are_in_the_last_bin() -> None:
    calibration = classify(np.array([0, 0]), sure([0, 1], 2) * 50).result()["calibration"]
    assert calibration["bins"][-1] == {"rows": 2, "confidence": 1.0, "accuracy": 0.5}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_do_not_break_the_report(bad: float) -> None:
    """Case 115: a model that has diverged is scored, not crashed on."""
    result = classify(np.array([0, 1, 1]), np.array([[bad, bad], [bad, 0], [0, 5.0]])).result()
    assert result["rows"] == 3
    assert all(math.isfinite(number) for number in all_numbers(result))


def test_shares_of_extreme_logits() -> None:
    np.testing.assert_allclose(report.softmax(np.array([[1e4, -1e4], [0, 0]], np.float32)), [[1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(report.sigmoid(np.array([-1e4, 0, 1e4], np.float32)), [0, 0.5, 1], atol=1e-12)


# --------------------------------------------------------------------------------------- several labels, regression


def test_several_labels_equal_scikit_learn() -> None:
    draw = np.random.default_rng(2)
    labels = (draw.random((60, 5)) < [0.5, 0.3, 0.1, 0.9, 0.0]).astype(np.float32)
    logits = draw.standard_normal((60, 5)) + 2 * labels - [0, 1, 1, 1, 9]
    scores = MultilabelScores("abcde")
    for i in range(0, 60, 7):
        scores.update(labels[i : i + 7], logits[i : i + 7])
    result, predicted = scores.result(), logits > 0
    assert result["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(labels > 0, predicted))
    assert result["accuracy"] == pytest.approx(1 - sklearn.metrics.hamming_loss(labels > 0, predicted))
    for average in ("macro", "micro"):
        p, r, f, _ = sklearn.metrics.precision_recall_fscore_support(
            labels > 0, predicted, average=average, zero_division=0
        )
        assert result[average] == pytest.approx({"precision": p, "recall": r, "f1": f})
    each = sklearn.metrics.precision_recall_fscore_support(labels > 0, predicted, zero_division=0)
    assert scores.per_class_f1() == pytest.approx(dict(zip("abcde", each[2], strict=True)))
    assert [row["rows"] for row in result["per_class"].values()] == each[3].tolist()


def test_regression_equals_scipy() -> None:
    draw = np.random.default_rng(3)
    labels = np.round(draw.normal(size=80), 1)  # with ties
    outputs = labels + draw.normal(size=80)
    scores = RegressionScores()
    for i in range(0, 80, 7):
        scores.update(labels[i : i + 7], outputs[i : i + 7, None])
    result = scores.result()
    assert result["rows"] == 80
    assert result["mse"] == pytest.approx(sklearn.metrics.mean_squared_error(labels, outputs), rel=1e-5)
    assert result["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(labels, outputs), rel=1e-5)
    assert result["pearson"] == pytest.approx(pearsonr(labels, outputs)[0], rel=1e-5)
    assert result["spearman"] == pytest.approx(spearmanr(labels.astype(np.float32), outputs)[0], rel=1e-5)


@pytest.mark.parametrize("task", ["classify", "multilabel", "regression"])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_nothing_and_constant_rows_give_finite_scores(task: str, rows: int) -> None:
    """Case 103."""
    scores = make_scores(task, ["a", "b"])
    if rows:
        labels = {"classify": np.zeros(rows, np.int32), "multilabel": np.zeros((rows, 2)), "regression": np.ones(rows)}
        scores.update(labels[task], -np.ones((rows, 1 if task == "regression" else 2), np.float32))
    result = scores.result()
    assert all(math.isfinite(number) for number in all_numbers(result))
    assert set(report.reported_names(task)) == set(scores.brief())
    assert report.text_report(result).startswith(f"rows {rows}")


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    result = classify(np.array([0, 1, 1]), sure([0, 1, 0], 2)).result()
    report.write_report(tmp_path / "a/report", result)
    names = {path.name for path in (tmp_path / "a/report").iterdir()}
    assert names == {"scores.json", "confusion.png", "calibration.png"}
    assert json.loads((tmp_path / "a/report/scores.json").read_text(encoding="utf-8")) == result
    for name in ("confusion.png", "calibration.png"):
        assert (tmp_path / "a/report" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("names", [["$x_{$", "a\\b"], ["好", "坏"], ["", " "], [f"c{i}" for i in range(60)]])
def test_names_of_any_kind_are_drawn(tmp_path: Path, names: list[str]) -> None:
    scores = ClassifyScores(names)
    scores.update(np.array([0, 1, 1]), sure([0, 1, 0], len(names)))
    report.write_report(tmp_path, scores.result())
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
