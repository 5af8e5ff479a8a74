"""What a student learns from its teachers: their layers, or their predictions. Teachers are never trained."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfbert import losses
from tfbert.losses import Loss
from tfbert.model.distiller import PARTS, LayerMatcher
from tfbert.model.encoder import INPUTS, BertEncoder
from tfbert.model.heads import Classifier
from tfbert.objectives.base import Objective
from tfbert.objectives.classification import count_correct

TEACHER_LOGITS = "teacher_logits"  # key of a batch that holds what the teachers gave for its rows


class LayerDistillation(Objective):
    """Weighted sum of the errors of attention scores, hidden states and embeddings, mean over the teachers.

    The teachers run on the same replica in the same step, without dropout; no gradient goes through them.

    Args:
        model: the student.
        teachers: encoders.
        matchers: how each is compared.
        part_weights: factor of each of `PARTS`.
        dropout: whether the student's dropout is on.
    """

    def __init__(
        self,
        model: Classifier,
        teachers: Sequence[BertEncoder],
        matchers: Sequence[LayerMatcher],
        part_weights: Mapping[str, float],
        dropout: bool = False,
    ):
        self.model, self.teachers, self.matchers = model, teachers, matchers
        self.part_weights, self.dropout = part_weights, dropout
        self.variables = [v for matcher in matchers for p in matcher.projections for v in p.trainable_variables]
        self.sums = tuple(f"{part}_loss" for part in PARTS)

    def __call__(self, batch, total_weight, seed):
        """As the base; the sums are those of weight x error of each part."""
        inputs = {name: batch[name] for name in INPUTS}
        weights, mask = batch["weights"], batch["padding_mask"]
        states = self.model.encoder.states(inputs, training=self.dropout, seed=seed)
        sums = tf.zeros(len(PARTS))
        for teacher, matcher in zip(self.teachers, self.matchers, strict=True):
            theirs = tf.nest.map_structure(tf.stop_gradient, teacher.states(inputs, training=False))
            errors = matcher(states, theirs, mask)
            sums += tf.stack([tf.reduce_sum(weights * errors[part]) for part in PARTS])
        sums /= len(self.teachers)
        # a part of weight 0 takes no part: 0 times an infinite error, or its gradient, would be no number
        loss_sum = tf.add_n(
            [self.part_weights[part] * sums[i] for i, part in enumerate(PARTS) if self.part_weights[part]]
        )
        return loss_sum / total_weight, loss_sum, tf.stop_gradient(sums)

    def logs(self, totals):
        return {name: totals[name] / max(totals["weight"], 1e-9) for name in self.sums}


class PredictionDistillation(Objective):
    """The teachers' predictions as soft targets, and a share of the labels' own loss.

    Args:
        model: the student.
        loss: of a row, on its label.
        task: classify, multilabel or regression.
        temperature: of the soft targets.
        hard_weight: share of the loss on labels, from 0 to 1.
        teachers: give the logits where the batch has none.
        dropout: whether the student's dropout is on.
    """

    def __init__(
        self,
        model: Classifier,
        loss: Loss,
        task: str = "classify",
        *,
        temperature: float = 1.0,
        hard_weight: float = 0.0,
        teachers: "TeacherLogits | None" = None,
        dropout: bool = False,
    ):
        self.model, self.loss, self.task = model, loss, task
        self.temperature, self.hard_weight, self.teachers, self.dropout = temperature, hard_weight, teachers, dropout
        self.sums = ("soft_loss",) if task == "regression" else ("soft_loss", "correct")

    def __call__(self, batch, total_weight, seed):
        """As the base; `correct` counts rows of weight above 0 whose label the student gives."""
        labels, weights = batch["labels"], batch["weights"]
        inputs = {name: batch[name] for name in INPUTS}
        if TEACHER_LOGITS in batch:
            theirs = batch[TEACHER_LOGITS]
        elif self.teachers is not None:
            theirs = tf.stop_gradient(self.teachers(inputs))
        else:
            raise ValueError("Soft targets need teachers. Received: neither logits in the batch nor teachers.")
        logits = self.model(inputs, training=self.dropout, seed=seed)
        soft = losses.soft_loss(self.task, theirs, logits, self.temperature)
        rows = (
            soft
            if not self.hard_weight
            else (1 - self.hard_weight) * soft + self.hard_weight * self.loss.rows(labels, logits)
        )
        loss_sum = tf.reduce_sum(weights * rows)
        sums = [tf.reduce_sum(weights * soft)]
        if self.task != "regression":
            sums.append(tf.reduce_sum(tf.cast(weights > 0, tf.float32) * count_correct(self.task, labels, logits)))
        return loss_sum / total_weight, loss_sum, tf.stop_gradient(tf.stack(sums))

    def logs(self, totals):
        logs = {"soft_loss": totals["soft_loss"] / max(totals["weight"], 1e-9)}
        return logs if self.task == "regression" else logs | {"accuracy": totals["correct"] / max(totals["rows"], 1e-9)}


class TeacherLogits:
    """Mean of the logits of several classifiers, their classes in the order of the data's.

    Args:
        teachers: classifiers.
        orders: for each, the number of its class for every class of the data; None where the orders are the same.
    """

    def __init__(self, teachers: Sequence[Classifier], orders: Sequence[Sequence[int] | None]):
        self.teachers, self.orders = teachers, orders

    def __call__(self, inputs, training=False):
        """`token_ids`, `segment_ids`, `padding_mask` (B, L) -> float32 (B, C)."""
        found = []
        for teacher, order in zip(self.teachers, self.orders, strict=True):
            logits = teacher(inputs, training=False)
            found.append(logits if order is None else tf.gather(logits, order, axis=1))
        return tf.add_n(found) / len(found)
