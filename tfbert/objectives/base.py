"""What the trainer asks of an objective."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbert.model.encoder import INPUTS


class Objective:
    """What a step minimises, and the numbers that it reports beside the loss.

    For a global batch the loss is sum(weight x part) / sum(weight) over all replicas and micro-batches. An objective
    gives a replica's share of it; the trainer sums gradients and numbers.

    Attributes:
        model: whose variables are saved and restored.
        variables: what is trained beside the model and is no part of it; saved and restored like the model.
        sums: names of the numbers that `__call__` gives beside the loss; each is summed over an epoch.
        ragged: names of the arrays of a batch whose second dimension differs from batch to batch.
    """

    model: keras.Model
    variables: Sequence[keras.Variable] = ()
    sums: tuple[str, ...] = ()
    ragged: tuple[str, ...] = INPUTS

    def weight(self, batch: Mapping[str, Any]) -> Any:
        """Sum of the weights of this replica's part of a batch, float32 scalar.

        An objective of several parts gives their weights, float32 (parts,); the first is the one of the log.
        """
        return tf.reduce_sum(batch["weights"])

    def __call__(self, batch: Mapping[str, Any], total_weight: Any, seed: Any) -> tuple[Any, Any, Any]:
        """The share of this replica and micro-batch; in replica context, under the trainer's gradient tape.

        Args:
            batch: tensors whose first dimension is the row.
            total_weight: sum of `weight` over the replicas, of the same shape; above 0.
            seed: of the dropout masks, int32 (2,).

        Returns:
            What is differentiated; the sum of weight x loss; the other sums, float32 (len(self.sums),).
        """
        raise NotImplementedError

    def logs(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Numbers of the log, beside the loss, from the sums over an epoch; `totals` has `weight` and `rows` too."""
        return {}
