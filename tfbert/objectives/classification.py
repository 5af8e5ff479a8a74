"""The loss of a classifier: one class, several labels, or a number a row."""

import tensorflow as tf

from tfbert import losses
from tfbert.losses import Loss
from tfbert.model.encoder import INPUTS
from tfbert.model.heads import Classifier
from tfbert.objectives.base import Objective
from tfbert.strategy import all_sum

FEATURES = "features"  # key of a batch that holds what a frozen encoder gave, in place of token ids


def count_correct(task, labels, logits):
    """How much of each row's label a prediction gives, float32 (B,): 0 or 1; of several labels their share."""
    if task == "classify":
        return tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), labels), tf.float32)
    return tf.reduce_mean(tf.cast(tf.equal(logits > 0, labels > 0.5), tf.float32), -1)


class Classification(Objective):
    """A loss on the logits of a classifier.

    Args:
        model: the classifier.
        loss: of a row, or of the whole batch (DMI).
        task: classify, multilabel or regression.
        frozen_encoder: the encoder runs without dropout and gets no gradient.
        rdrop: weight of R-Drop: every row passes twice with dropout masks of its own, its loss is the mean of the
            two plus `rdrop` times the symmetric divergence of the two predictions. 0 for one pass. Liang et al. 2021,
            arXiv 2106.14448; the paper sums the two losses, so its alpha is twice this one, as in its authors' code.

    Raises:
        ValueError: R-Drop with a loss of the whole batch.
    """

    def __init__(
        self,
        model: Classifier,
        loss: Loss,
        task: str = "classify",
        frozen_encoder: bool = False,
        rdrop: float = 0.0,
    ):
        if rdrop and loss.rows is None:
            raise ValueError(f"R-Drop needs a loss of each row. Received: {loss.name}.")
        self.model, self.loss, self.task, self.frozen_encoder = model, loss, task, frozen_encoder
        self.rdrop = rdrop
        self.sums = () if task == "regression" else ("correct",)

    def __call__(self, batch, total_weight, seed):
        """As the base; `correct` counts rows of weight above 0."""
        labels, weights = batch["labels"], batch["weights"]
        features = self._features(batch, seed)
        logits = self.model.logits(features, training=True, seed=seed)
        if self.loss.rows is None:
            share = losses.dmi_loss(labels, logits, weights, all_sum)
            # the same on every replica: weigh it like the rows' mean
            loss_sum = share / tf.distribute.get_replica_context().num_replicas_in_sync * total_weight
        else:
            losses_of_rows = self.loss.rows(labels, logits)
            if self.rdrop:
                other = tf.stack([-1 - seed[0], seed[1]])  # no step has negative numbers
                features = features if self.frozen_encoder else self._features(batch, other)
                others = self.model.logits(features, training=True, seed=other)
                apart = losses.divergence(self.task, logits, others)
                losses_of_rows = (losses_of_rows + self.loss.rows(labels, others)) / 2.0 + self.rdrop * apart
            loss_sum = tf.reduce_sum(weights * losses_of_rows)
            share = loss_sum / total_weight
        if not self.sums:
            return share, loss_sum, tf.zeros(0)
        correct = tf.reduce_sum(tf.cast(weights > 0, tf.float32) * count_correct(self.task, labels, logits))
        return share, loss_sum, correct[None]

    def _features(self, batch, seed):
        if FEATURES in batch:
            features = batch[FEATURES]
        else:
            inputs = {name: batch[name] for name in INPUTS}
            features = self.model.features(inputs, training=not self.frozen_encoder, seed=seed)
        return tf.stop_gradient(features) if self.frozen_encoder else features

    def logs(self, totals):
        return {"accuracy": totals["correct"] / max(totals["rows"], 1e-9)} if self.sums else {}
