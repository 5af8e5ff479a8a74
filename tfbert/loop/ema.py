"""Exponential moving average of the trained weights: what is validated, kept as best and exported in their place."""

from collections.abc import Sequence

import tensorflow as tf


class WeightAverage(tf.Module):
    """A float32 shadow of every trained variable, with a copy on each replica that is updated there.

    After update t, counted from 1, `shadow += (1 - d) * (variable - shadow)` with `d = min(decay, (1 + t) / (10 + t))`.
    The shadow begins as the variable, so it needs no correction of a bias towards 0; the smaller d of the first
    updates makes it forget the start soon, which with a fixed d of 0.999 would still be a third of it after 1,000
    updates. The copies stay equal because the variables are.

    Make it inside the strategy's scope.

    Args:
        variables: Keras variables that are trained.
        decay: above 0, below 1.
        strategy: whose replicas hold them.

    Source: `tf.train.ExponentialMovingAverage` with `num_updates`; Polyak & Juditsky 1992.
    """

    def __init__(self, variables: Sequence, decay: float, strategy: tf.distribute.Strategy):
        super().__init__()
        self.decay = decay
        self._trained = [v.value for v in variables]
        self.shadows = {
            v.path: tf.Variable(
                tf.cast(v.value, tf.float32), trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
            for v in variables
        }
        self._in_model = False
        self._exchange = tf.function(lambda: strategy.run(self._exchange_on_replica), autograph=False)

    def update(self, updates, made):
        """Follows the variables; in replica context, behind the optimizer.

        Args:
            updates: number of updates with this one, integer scalar.
            made: whether there was one, bool scalar: a step that loss scaling skipped does not count.
        """
        count = tf.cast(updates, tf.float32)
        decay = tf.minimum(self.decay, (1.0 + count) / (10.0 + count))
        share = tf.where(made, 1.0 - decay, 0.0)
        for variable, shadow in zip(self._trained, self.shadows.values(), strict=True):
            tf.raw_ops.AssignAddVariableOp(resource=shadow.handle, value=share * (variable - shadow))

    def put_into_model(self) -> None:
        """Exchanges variables and shadows: the model then has the average; nothing where it has it already."""
        if not self._in_model:
            self._exchange()
            self._in_model = True

    def take_out_of_model(self) -> None:
        """Gives the model back what is trained, bit by bit."""
        if self._in_model:
            self._exchange()
            self._in_model = False

    def _exchange_on_replica(self):
        for variable, shadow in zip(self._trained, self.shadows.values(), strict=True):
            trained, average = variable.read_value(), shadow.read_value()
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=average)
            tf.raw_ops.AssignVariableOp(resource=shadow.handle, value=trained)
