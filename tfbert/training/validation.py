"""Scores of a part of a data set while a model is trained."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfbert import losses, report
from tfbert.data.batch import Batch
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.loop.trainer import Scorer
from tfbert.losses import Loss
from tfbert.strategy import gather, worker_of
from tfbert.training.features import Features, feature_batches

TARGETS = ("labels", "weights")


class Validation:
    """Scores every row exactly once, in the same batches every time.

    Args:
        store: the rows.
        feed: how they become arrays; names the task.
        scorer: gives the logits.
        loss: what `loss` in the result is; the DMI loss is that of all rows at once.
        names: classes in id order.
        global_batch_size: rows a batch, at least 64.
        metrics: reported beside the usual numbers.

    Attributes:
        features: what the frozen encoder gives for the rows, or None to compute it.
        scores: of the last call.
    """

    def __init__(
        self,
        store: RowStore,
        feed: FeedSettings,
        scorer: Scorer,
        loss: Loss,
        names: Sequence[str],
        global_batch_size: int,
        metrics: Sequence[str] = (),
    ):
        self.store, self.feed = store, feed
        self._scorer, self._loss, self._names, self._metrics = scorer, loss, list(names), metrics
        self._plan = EpochPlan(
            store.lengths, max(global_batch_size, 64), shuffle=False, length_multiple=feed.length_multiple
        )
        self.features: Features | None = None
        self.scores = self._empty_scores()

    def _empty_scores(self) -> report.Scores:
        return report.make_scores(self.feed.task or "", self._names, self._metrics)

    def limit_rows(self, rows: int) -> None:
        """Takes batches of at most so many rows from here on."""
        if rows < self._plan.global_batch_size:
            self._plan = replace(self._plan, global_batch_size=rows)

    def _batches(self) -> Iterator[Batch]:
        replicas = self._scorer.strategy.num_replicas_in_sync
        if self.features is not None:
            return feature_batches(self.store, self.features, self._plan, self.feed, replicas)
        worker = worker_of(self._scorer.strategy)
        return plan_batches(self.store, self._plan, self.feed, replicas, worker=worker)

    def __call__(self) -> dict[str, float]:
        """Loss and the brief scores of the task."""
        self.scores = self._empty_scores()
        strategy = self._scorer.strategy
        loss_sum = weight_sum = 0.0
        joint: Any = 0.0
        with distribute(self._batches(), strategy) as stream:
            for rows, batch in zip(self._plan.batches(), stream, strict=True):
                logits, labels, weights = (
                    values[: len(rows)]  # without the rows that fill the batch up
                    for values in (self._scorer.logits(batch), *(gather(strategy, batch[n]) for n in TARGETS))
                )
                if self._loss.rows is None:
                    joint = joint + losses.joint_matrix(labels, logits, weights).numpy().astype(np.float64)
                else:
                    loss_sum += float(np.sum(weights * self._loss.rows(labels, logits).numpy(), dtype=np.float64))
                weight_sum += float(weights.sum(dtype=np.float64))
                self.scores.update(labels, logits)
        if self._loss.rows is None:
            loss_sum = float(losses.dmi_of_joint(tf.constant(joint, tf.float64), weight_sum)) * weight_sum
        return {"loss": loss_sum / max(weight_sum, 1e-9)} | self.scores.brief()

    def details(self) -> dict[str, Any]:
        """What only the log in JSON holds."""
        return {"val_f1_per_class": self.scores.per_class_f1()}
