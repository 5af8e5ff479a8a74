"""Scores of a classifier from streamed batches: memory depends on the classes, not on the rows.

Scores come from scikit-learn, computed on the confusion matrix (each cell one weighted row). A class without rows or
without predictions scores 0, never NaN.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbert.progress import logger

NUM_BINS = 15


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -700, 700)))


class ClassifyScores:
    """Scores of a single-label classifier.

    Args:
        names: class names in id order.
        metrics: those that the log shows beside the usual ones: mcc, f1 (of the second of two classes).
    """

    def __init__(self, names: Sequence[str], metrics: Sequence[str] = ()):
        self.names, self._metrics = list(names), metrics
        self.confusion = np.zeros((len(names), len(names)), np.int64)  # true class by row, predicted by column
        self._bins = np.zeros((3, NUM_BINS))  # rows, sum of confidence, sum of hits

    def update(self, labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> None:
        """Adds rows: class ids (rows,), logits (rows, classes); where these are not finite, the confidence is 0."""
        predicted = logits.argmax(axis=-1)
        np.add.at(self.confusion, (labels.astype(np.int64), predicted), 1)
        with np.errstate(invalid="ignore"):
            confidence = np.nan_to_num(softmax(logits).max(axis=-1))
        place = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        for i, values in enumerate((np.ones(len(labels)), confidence, predicted == labels)):
            np.add.at(self._bins[i], place, values)

    def brief(self) -> dict[str, float]:
        """The numbers that a training log shows."""
        result = self.result()
        usual = {"accuracy": result["accuracy"], "macro_f1": result["macro"]["f1"]}
        return usual | {name: result[name] for name in self._metrics}

    def per_class_f1(self) -> dict[str, float]:
        return {name: row["f1"] for name, row in self.result()["per_class"].items()}

    def result(self) -> dict[str, Any]:
        """All scores as plain Python values."""
        from sklearn.metrics import matthews_corrcoef, precision_recall_fscore_support

        classes = np.arange(len(self.names))
        true, predicted = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
        weights = self.confusion.ravel()
        rows = int(weights.sum())
        hits = int(np.trace(self.confusion))
        common: dict[str, Any] = {"labels": classes, "sample_weight": weights, "zero_division": 0}
        if rows:
            each = precision_recall_fscore_support(true, predicted, **common)
            macro = precision_recall_fscore_support(true, predicted, average="macro", **common)
            micro = precision_recall_fscore_support(true, predicted, average="micro", **common)
            mcc = float(matthews_corrcoef(true, predicted, sample_weight=weights))
        else:
            zeros = np.zeros(len(classes))
            each, macro, micro, mcc = (zeros, zeros, zeros, zeros), (0.0,) * 4, (0.0,) * 4, 0.0
        words = ("precision", "recall", "f1")
        return {
            "rows": rows,
            "accuracy": hits / rows if rows else 0.0,
            "macro": {word: float(macro[i]) for i, word in enumerate(words)},
            "micro": {word: float(micro[i]) for i, word in enumerate(words)},
            "mcc": mcc,
            **({"f1": float(each[2][1])} if len(classes) == 2 else {}),
            "per_class": {
                name: {word: float(each[i][c]) for i, word in enumerate(words)} | {"rows": int(each[3][c])}
                for c, name in enumerate(self.names)
            },
            "confusion": {"labels": self.names, "matrix": self.confusion.tolist()},
            "calibration": self._calibration(rows),
        }

    def _calibration(self, rows: int) -> dict[str, Any]:
        """Expected calibration error over equal bins of confidence (Guo et al. 2017), and the bins."""
        count, confidence, hits = self._bins
        filled = np.maximum(count, 1)
        gaps = np.abs(hits - confidence)
        return {
            "ece": float(gaps.sum() / rows) if rows else 0.0,
            "bins": [
                {
                    "rows": int(count[i]),
                    "confidence": float(confidence[i] / filled[i]),
                    "accuracy": float(hits[i] / filled[i]),
                }
                for i in range(NUM_BINS)
            ],
        }


class MultilabelScores:
    """Scores of a multi-label classifier at the threshold 0.5.

    Args:
        names: label names in id order.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self._counts = np.zeros((3, len(names)), np.int64)  # true positives, predicted, true
        self._rows = self._exact = self._cells = 0

    def update(self, labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> None:
        """Adds rows: multi-hot labels and logits, each (rows, labels)."""
        true, predicted = labels > 0.5, logits > 0
        self._counts += np.stack([(true & predicted).sum(0), predicted.sum(0), true.sum(0)])
        self._rows += len(labels)
        self._exact += int((true == predicted).all(axis=1).sum())
        self._cells += int((true == predicted).sum())

    def brief(self) -> dict[str, float]:
        result = self.result()
        return {"accuracy": result["accuracy"], "macro_f1": result["macro"]["f1"], "micro_f1": result["micro"]["f1"]}

    def per_class_f1(self) -> dict[str, float]:
        return {name: row["f1"] for name, row in self.result()["per_class"].items()}

    def result(self) -> dict[str, Any]:
        def scores(hit: float, predicted: float, true: float) -> dict[str, float]:
            return {
                "precision": float(hit / predicted) if predicted else 0.0,
                "recall": float(hit / true) if true else 0.0,
                "f1": float(2 * hit / (predicted + true)) if predicted + true else 0.0,
            }

        each = [scores(*column) for column in self._counts.T]
        cells = max(self._rows * len(self.names), 1)
        return {
            "rows": self._rows,
            "accuracy": self._cells / cells,
            "exact_match": self._exact / max(self._rows, 1),
            "macro": {word: float(np.mean([row[word] for row in each])) for word in ("precision", "recall", "f1")},
            "micro": scores(*self._counts.sum(axis=1)),
            "per_class": {
                name: row | {"rows": int(self._counts[2, i])}
                for i, (name, row) in enumerate(zip(self.names, each, strict=True))
            },
        }


class RegressionScores:
    """Scores of a regression; keeps two floats a row for the rank correlation."""

    def __init__(self) -> None:
        self._true: list[npt.NDArray[np.float32]] = []
        self._predicted: list[npt.NDArray[np.float32]] = []

    def update(self, labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> None:
        """Adds rows: values (rows,), outputs (rows, 1)."""
        self._true.append(labels.astype(np.float32))
        self._predicted.append(logits[:, 0].astype(np.float32))

    def brief(self) -> dict[str, float]:
        result = self.result()
        return {name: result[name] for name in ("mse", "pearson", "spearman")}

    def per_class_f1(self) -> dict[str, float]:
        return {}

    def result(self) -> dict[str, Any]:
        from scipy.stats import rankdata

        true = np.concatenate(self._true or [np.zeros(0)]).astype(np.float64)
        predicted = np.concatenate(self._predicted or [np.zeros(0)]).astype(np.float64)
        error = predicted - true
        return {
            "rows": len(true),
            "mse": float(np.mean(error**2)) if len(true) else 0.0,
            "mae": float(np.mean(np.abs(error))) if len(true) else 0.0,
            "pearson": _correlation(true, predicted),
            "spearman": _correlation(rankdata(true), rankdata(predicted)),
        }


def _correlation(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    if len(a) < 2 or not a.std() or not b.std():
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


Scores = ClassifyScores | MultilabelScores | RegressionScores


def make_scores(task: str, names: Sequence[str], metrics: Sequence[str] = ()) -> Scores:
    """Empty scores for a task; `metrics` are what its results are published by, shown beside the usual numbers."""
    if task == "regression":
        return RegressionScores()
    return MultilabelScores(names) if task == "multilabel" else ClassifyScores(names, metrics)


def reported_names(task: str, metrics: Sequence[str] = ()) -> list[str]:
    """The names under which `brief` reports."""
    return list(make_scores(task, ["a", "b"], metrics).brief())


def text_report(result: dict[str, Any]) -> str:
    """Scores as lines to read."""
    lines = [f"rows {result['rows']:,}"]
    lines += [
        f"{name} {result[name]:.4f}"
        for name in ("accuracy", "exact_match", "mcc", "f1", "mse", "mae", "pearson", "spearman")
        if name in result
    ]
    for name in ("macro", "micro"):
        if name in result:
            lines.append(f"{name} " + ", ".join(f"{word} {value:.4f}" for word, value in result[name].items()))
    if "calibration" in result:
        lines.append(f"calibration error {result['calibration']['ece']:.4f}")
    for name, row in result.get("per_class", {}).items():
        scores = ", ".join(f"{word} {row[word]:.4f}" for word in ("precision", "recall", "f1"))
        lines.append(f"  {name}: {scores}, rows {row['rows']:,}")
    return "\n".join(lines)


def write_report(folder: Path, result: dict[str, Any]) -> None:
    """Writes `scores.json`, and `confusion.png` and `calibration.png` for a single-label classifier."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if "confusion" in result and find_spec("matplotlib") is None:
        logger.warning("no charts in %s: they need matplotlib, which is missing; run `pip install matplotlib`", folder)
    elif "confusion" in result:
        _plot_confusion(folder / "confusion.png", result["confusion"])
        _plot_calibration(folder / "calibration.png", result["calibration"])


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # and not pyplot, which would keep the figure and look for a display

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _plot_confusion(path: Path, confusion: dict[str, Any]) -> None:
    matrix = np.array(confusion["matrix"])
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = float(np.clip(len(matrix) * 0.5, 4, 16))
    figure, axes = _figure(size + 1.5, size)
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, label="share of the true class")
    # a font for other scripts may be missing; between two `$` matplotlib reads a formula
    names = [_shown(name) if name.isascii() else str(i) for i, name in enumerate(confusion["labels"])]
    axes.set(xlabel="predicted", ylabel="true", title=f"confusion, {int(matrix.sum()):,} rows")
    if len(names) <= 40:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    if len(names) <= 20:
        for i, row in enumerate(matrix):
            for j, count in enumerate(row):
                colour = "white" if shares[i, j] > 0.5 else "black"
                axes.text(j, i, f"{count}", ha="center", va="center", fontsize=7, color=colour)
    figure.savefig(path, dpi=120)


def _shown(name: str, limit: int = 28) -> str:
    return (name if len(name) <= limit else name[: limit - 3] + "...").replace("$", r"\$")


def _plot_calibration(path: Path, calibration: dict[str, Any]) -> None:
    bins = [b for b in calibration["bins"] if b["rows"]]
    figure, axes = _figure(5, 5)
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", label="perfect")
    axes.plot([b["confidence"] for b in bins], [b["accuracy"] for b in bins], marker="o", label="model")
    axes.set(
        xlabel="confidence",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"calibration error {calibration['ece']:.4f}",
    )
    axes.legend()
    figure.savefig(path, dpi=120)
