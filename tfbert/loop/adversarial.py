"""Adversarial training on the word embedding: the fast gradient method."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


class FastGradient:
    """Moves the table of word embeddings against the model, while a second pass learns to resist.

    With g the gradient of the loss of the *global* batch with respect to the table, summed over replicas and
    micro-batches, the table moves by `epsilon * g / |g|`, |g| the Euclidean norm over all of it. So the move is the
    same on every replica, and on one device as on many. Loss scaling cancels out. Where g is 0 nothing moves.

    Args:
        variable: the table, a Keras variable that is trained.
        epsilon: length of the move, above 0.

    Source: Miyato et al. 2017, arXiv 1605.07725, eq. 5 and 6, with the table moved once in place of each row's
    embeddings, as usual for BERT.
    """

    def __init__(self, variable, epsilon: float):
        self.variable, self.epsilon = variable.value, epsilon

    @contextmanager
    def moved(self, gradient) -> Iterator[None]:
        """What runs inside sees the moved table; afterwards it is as before, bit by bit. In replica context.

        Args:
            gradient: g, dense float32, equal on every replica.
        """
        before = self.variable.read_value()
        size = tf.norm(gradient)
        move = gradient * tf.math.divide_no_nan(self.epsilon, size)
        tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=before + move)
        yield
        tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=before)
