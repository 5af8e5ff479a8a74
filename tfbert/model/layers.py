"""The layers of the encoder, with keras-bert's weight order, on flat tokens.

Dense layers work on (B*L, H): a flat matrix product runs about twice as fast on a CPU as the same product on
(B, L, H), and `gelu(x @ w + b)` is fused behind it. Only attention sees (B, heads, L, size).

    B rows, L tokens a row, T = B * L, H width, A heads, S = H / A.
"""

import keras
from keras import ops

package = "tfbert"


class _GivenSeed(keras.random.SeedGenerator):
    """Hands a seed tensor to `keras.random`, which takes only integers and generators; has no state."""

    def __init__(self, seed):
        self._given = ops.cast(seed, "uint32") if keras.backend.backend() == "jax" else seed  # as each backend wants it

    def next(self, ordered=True):
        return self._given


def stateless_dropout(x, rate, seed):
    """Dropout whose mask is a function of `seed`, an int tensor of shape (2,); none where the rate is 0."""
    return keras.random.dropout(x, rate, seed=_GivenSeed(seed)) if rate else x


def draw_seed():
    """A seed tensor from Keras' global generator, a new one at each run of a compiled function."""
    return keras.random.randint((2,), 0, 2**31 - 1, dtype="int32")


def layer_seed(seed, number):
    """The seed of the number-th dropout of a model (at most 2,000), from the seed of the step."""
    return seed + ops.convert_to_tensor([0, (number + 1) * 1_000_003], dtype=seed.dtype)


def activation(name, is_fused=False):
    """The function of a `hidden_act`.

    Args:
        name: as in a BERT config.
        is_fused: written as TensorFlow fuses it behind a product also where it rewrites the graph to bfloat16, a
            quarter faster there. For float32 without gradients: unfused, 1 + erf would lose digits of a small result.
    """
    if name == "gelu" and is_fused:
        return lambda x: 0.5 * x * (1.0 + ops.erf(x * 2**-0.5))
    if name == "gelu":
        return lambda x: ops.gelu(x, approximate=False)
    if name in ("gelu_new", "gelu_tanh"):
        return lambda x: ops.gelu(x, approximate=True)
    return {"relu": ops.relu, "silu": ops.silu, "tanh": ops.tanh}[name]


def initializer(stddev):
    return keras.initializers.TruncatedNormal(stddev=stddev) if stddev else "zeros"


def dense(x, kernel, bias):
    """A dense layer without its activation: (T, in) -> (T, out)."""
    return ops.add(ops.matmul(x, kernel), bias)


@keras.saving.register_keras_serializable(package)
class Embedding(keras.layers.Layer):
    """Rows of a table. The table stays float32: casting it whole each step would cost more than the look-up."""

    def __init__(self, num_rows, width, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.num_rows, self.width, self.stddev = num_rows, width, stddev
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            self.embeddings = self.add_weight(
                name="embeddings",
                shape=(self.num_rows, self.width),
                initializer=initializer(self.stddev),
                autocast=False,
            )
            self.built = True

    def call(self, ids):  # (...) -> (..., width)
        return ops.cast(ops.take(self.embeddings, ids, axis=0), self.compute_dtype)

    def first(self, count):
        """The first `count` rows, (count, width)."""
        return ops.cast(ops.convert_to_tensor(self.embeddings)[:count], self.compute_dtype)

    def get_config(self):
        return super().get_config() | {"num_rows": self.num_rows, "width": self.width, "stddev": self.stddev}


@keras.saving.register_keras_serializable(package)
class LayerNorm(keras.layers.Layer):
    """Normalises the last axis; computed in float32 whatever the compute dtype."""

    def __init__(self, width, epsilon=1e-12, **kwargs):
        super().__init__(**kwargs)
        self.width, self.epsilon = width, epsilon
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            self.gamma = self.add_weight(name="gamma", shape=(self.width,), initializer="ones", autocast=False)
            self.beta = self.add_weight(name="beta", shape=(self.width,), initializer="zeros", autocast=False)
            self.built = True

    def call(self, x):  # (T, H) -> (T, H)
        x = ops.cast(x, "float32")
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        y = centred * ops.rsqrt(variance + self.epsilon) * self.gamma + self.beta
        return ops.cast(y, self.compute_dtype)

    def get_config(self):
        return super().get_config() | {"width": self.width, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package)
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention; weights Wq bq Wk bk Wv bv Wo bo."""

    def __init__(self, width, num_heads, dropout=0.0, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.width, self.num_heads, self.dropout, self.stddev = width, num_heads, dropout, stddev
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            for letter in "qkvo":
                kernel = self.add_weight(
                    name=f"W{letter}", shape=(self.width, self.width), initializer=initializer(self.stddev)
                )
                setattr(self, f"W{letter}", kernel)
                setattr(
                    self, f"b{letter}", self.add_weight(name=f"b{letter}", shape=(self.width,), initializer="zeros")
                )
            self.built = True

    def call(self, x, bias, *, length, seed=None, with_scores=False):
        """Attends within rows.

        Args:
            x: (T, H).
            bias: added to the scores, (B, 1, 1, L): 0 for tokens, very negative for padding.
            length: L.
            seed: of the dropout on the probabilities, or None for none.
            with_scores: give the scores as well, as they are before `bias`.

        Returns:
            (T, H); with scores, and (B, A, L, L).
        """
        size = self.width // self.num_heads

        def heads(kernel, offset, scale=1.0):  # (T, H) -> (B, A, L, S)
            y = dense(x, kernel, offset)
            y = y * scale if scale != 1.0 else y
            return ops.transpose(ops.reshape(y, (-1, length, self.num_heads, size)), (0, 2, 1, 3))

        q = heads(self.Wq, self.bq, size**-0.5)
        k, v = heads(self.Wk, self.bk), heads(self.Wv, self.bv)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))  # (B, A, L, L)
        probabilities = ops.softmax(scores + bias, axis=-1)
        if seed is not None:
            probabilities = stateless_dropout(probabilities, self.dropout, seed)
        y = ops.transpose(ops.matmul(probabilities, v), (0, 2, 1, 3))  # (B, L, A, S)
        y = dense(ops.reshape(y, (-1, self.width)), self.Wo, self.bo)
        return (y, scores) if with_scores else y

    def get_config(self):
        config = {"width": self.width, "num_heads": self.num_heads, "dropout": self.dropout, "stddev": self.stddev}
        return super().get_config() | config


@keras.saving.register_keras_serializable(package)
class FeedForward(keras.layers.Layer):
    """Two dense layers; weights W1 b1 W2 b2."""

    def __init__(self, width, inner_width, hidden_act="gelu", stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.width, self.inner_width, self.hidden_act, self.stddev = width, inner_width, hidden_act, stddev
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            shapes = {"1": (self.width, self.inner_width), "2": (self.inner_width, self.width)}
            for number, shape in shapes.items():
                kernel = self.add_weight(name=f"W{number}", shape=shape, initializer=initializer(self.stddev))
                setattr(self, f"W{number}", kernel)
                setattr(self, f"b{number}", self.add_weight(name=f"b{number}", shape=shape[1:], initializer="zeros"))
            self.built = True

    def call(self, x, training=False):  # (T, H) -> (T, H)
        is_fused = not training and self.compute_dtype == "float32"
        inner = activation(self.hidden_act, is_fused)(dense(x, self.W1, self.b1))
        return dense(inner, self.W2, self.b2)

    def get_config(self):
        config = {
            "width": self.width,
            "inner_width": self.inner_width,
            "hidden_act": self.hidden_act,
            "stddev": self.stddev,
        }
        return super().get_config() | config


@keras.saving.register_keras_serializable(package)
class Dense(keras.layers.Layer):
    """x @ kernel + bias, built at once."""

    def __init__(self, inputs, units, activation=None, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.inputs, self.units, self.activation, self.stddev = inputs, units, activation, stddev
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            self.kernel = self.add_weight(
                name="kernel", shape=(self.inputs, self.units), initializer=initializer(self.stddev)
            )
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")
            self.built = True

    def call(self, x):  # (B, inputs) -> (B, units)
        y = dense(ops.cast(x, self.compute_dtype), self.kernel, self.bias)
        return activation(self.activation)(y) if self.activation else y

    def get_config(self):
        config = {"inputs": self.inputs, "units": self.units, "activation": self.activation, "stddev": self.stddev}
        return super().get_config() | config
