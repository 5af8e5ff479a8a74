"""A student beside its teachers: scores, agreement, size and speed."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbert import report
from tfbert.data.batch import labels_of
from tfbert.data.feed import FeedSettings, make_batch, place
from tfbert.data.store import RowStore
from tfbert.loop.trainer import Scorer
from tfbert.model.heads import Classifier
from tfbert.objectives.distillation import TeacherLogits
from tfbert.progress import logger
from tfbert.training.features import outputs_of_rows

BATCHES = (1, 128)  # rows whose speed is measured
_TIMED_S = 2.0  # a measurement


def compare(
    path: Path,
    student: Classifier,
    teachers: TeacherLogits,
    strategy: tf.distribute.Strategy,
    store: RowStore,
    feed: FeedSettings,
    names: Sequence[str],
) -> dict[str, Any]:
    """Writes what student and teachers say of the rows of a part, beside their labels, and how fast.

    Args:
        path: of the JSON file.
        student: the model.
        teachers: mean of their logits.
        strategy: whose replicas share the work.
        store: the rows.
        feed: how they become arrays; names the task.
        names: classes in id order.

    Returns:
        What was written: `teacher` and `student` with `scores`, `parameters` and `rows_per_s` by batch; `agreement`.
    """
    task = feed.task or ""
    result: dict[str, Any] = {}
    predictions = []
    for name, model, models in (("teacher", teachers, teachers.teachers), ("student", student, [student])):
        scorer = Scorer(model, strategy)
        scores = report.make_scores(task, names)
        logits = np.zeros((len(store), feed.num_classes), np.float32)
        for rows, found in outputs_of_rows(scorer.logits, strategy, store, feed, name):
            logits[rows] = found
            scores.update(labels_of(store.columns(rows).labels, task, feed.num_classes), found)
        predictions.append(logits)
        result[name] = {
            "parameters": int(sum(np.prod(v.shape) for m in models for v in m.variables)),
            "rows_per_s": {str(size): _speed(scorer, strategy, store, feed, size) for size in BATCHES},
            "scores": scores.result(),
        }
    result["agreement"] = agreement(task, *predictions)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _log(result)
    return result


def agreement(task: str, logits: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> float:
    """Share of the rows with the same class; of several labels the share of them; of numbers their correlation."""
    if task == "regression":
        a, b = logits[:, 0].astype(np.float64), others[:, 0].astype(np.float64)
        return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else float(np.array_equal(a, b))
    if task == "multilabel":
        return float(np.mean((logits > 0) == (others > 0)))
    return float(np.mean(logits.argmax(1) == others.argmax(1)))


def _speed(scorer: Scorer, strategy: tf.distribute.Strategy, store: RowStore, feed: FeedSettings, size: int) -> float:
    """Rows a second in batches of a size, spread over the part; the first batch is not counted."""
    size = max(size, strategy.num_replicas_in_sync)
    starts = np.linspace(0, max(0, len(store) - size), 8).astype(np.int64)
    batches = []
    for start in starts:
        rows = np.arange(start, min(start + size, len(store)))
        batches.append(place(make_batch(store, rows, feed, strategy.num_replicas_in_sync), strategy))
    scorer.logits(batches[0])
    done, started = 0, time.perf_counter()
    while True:
        for batch in batches:
            done += len(scorer.logits(batch))
            elapsed = time.perf_counter() - started
            if elapsed > _TIMED_S:
                return done / elapsed


def _log(result: dict[str, Any]) -> None:
    for name in ("teacher", "student"):
        of = result[name]
        speeds = ", ".join(f"{speed:,.0f} rows/s at batch {size}" for size, speed in of["rows_per_s"].items())
        numbers = {k: v for k, v in of["scores"].items() if isinstance(v, float)}
        shown = ", ".join(f"{key} {value:.4f}" for key, value in list(numbers.items())[:3])
        logger.info("%s: %s; %s parameters; %s", name, shown, f"{of['parameters']:,}", speeds)
    logger.info("they agree: %.4f", result["agreement"])
