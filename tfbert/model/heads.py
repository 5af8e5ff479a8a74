"""Classifiers: an encoder and a head that pools its tokens into float32 logits.

Pooling looks at tokens only, never at padding: a row has the same logits whatever it is batched with.
"""

import keras
from keras import ops

from tfbert.choices import HEADS
from tfbert.errors import ConfigError
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.layers import Dense, draw_seed, layer_seed, package, stateless_dropout

_HEAD_DROPOUT = 2_000  # number of the head's dropout; the encoder's count from 1


def masked_mean(x, mask):
    """Mean over tokens: (B, L, H), (B, L) -> (B, H); zeros for a row without tokens."""
    weights = ops.expand_dims(ops.cast(mask, x.dtype), -1)
    return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1.0)


def masked_max(x, mask):
    """Maximum over tokens: (B, L, H), (B, L) -> (B, H); zeros for a row without tokens."""
    lowest = -3e4 if x.dtype == "float16" else -1e9
    highest = ops.max(ops.where(ops.expand_dims(ops.cast(mask, "bool"), -1), x, ops.cast(lowest, x.dtype)), axis=1)
    return ops.where(ops.any(ops.cast(mask, "bool"), axis=1, keepdims=True), highest, ops.zeros_like(highest))


@keras.saving.register_keras_serializable(package)
class Classifier(keras.Model):
    """Encoder with one of three heads; also for several labels a row and for regression, which differ in the loss.

    * `pool`: drop [CLS], masked maximum beside masked mean, dense relu, dropout, dense (the recipe for noisy rows);
    * `cls`: the pooler behind [CLS], dropout, dense (Google's recipe);
    * `mean`: masked mean of all tokens, dropout, dense.

    Args:
        config: sizes of the encoder.
        num_outputs: classes, labels, or 1 for regression.
        head: one of `HEADS`.
        head_units: width of the dense layer of the `pool` head.
        head_dropout: dropout before the last layer.
        dtype: a Keras dtype or policy; logits are float32 in any case.

    Raises:
        ConfigError: the head is unknown.
    """

    def __init__(
        self,
        config,
        num_outputs,
        head="pool",
        head_units=256,
        head_dropout=0.1,
        dtype=None,
        name="classifier",
        **kwargs,
    ):
        super().__init__(name=name, dtype=dtype, **kwargs)
        if head not in HEADS:
            raise ConfigError(f"A head is one of {', '.join(HEADS)}. Received: {head!r}.")
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        self.num_outputs, self.head = num_outputs, head
        self.head_units, self.head_dropout = head_units, head_dropout
        self.encoder = BertEncoder(config, pooler=head == "cls", dtype=self.dtype_policy)
        width, stddev = config.hidden_size, config.initializer_range
        if head == "pool":
            self.dense = Dense(2 * width, head_units, "relu", stddev, name="Head-Dense", dtype="float32")
            width = head_units
        self.output_dense = Dense(width, num_outputs, None, stddev, name="Head-Output", dtype="float32")
        self.built = True

    def build(self, input_shape=None):
        """Nothing to do: the layers made their weights when they were made."""

    def features(self, inputs, training=False, seed=None):
        """What the encoder gives the head, float32 (B, F)."""
        x = self.encoder(inputs, training=training, seed=seed)
        mask = inputs["padding_mask"]
        if self.head == "cls":
            return ops.cast(self.encoder.pooler(x[:, 0]), "float32")
        x = ops.cast(x, "float32")
        if self.head == "mean":
            return masked_mean(x, mask)
        x, mask = x[:, 1:], mask[:, 1:]
        return ops.concatenate([masked_max(x, mask), masked_mean(x, mask)], axis=-1)

    def logits(self, features, training=False, seed=None):
        """Features (B, F) -> float32 logits (B, num_outputs)."""
        x = self.dense(features) if self.head == "pool" else features
        if training and self.head_dropout:
            seed = draw_seed() if seed is None else seed
            x = stateless_dropout(x, self.head_dropout, layer_seed(seed, _HEAD_DROPOUT))
        return self.output_dense(x)

    def call(self, inputs, training=False, seed=None):
        """`token_ids`, `segment_ids`, `padding_mask` (B, L) -> float32 logits (B, num_outputs)."""
        return self.logits(self.features(inputs, training, seed), training, seed)

    def get_config(self):
        return {
            "config": self.encoder.config.to_dict(),
            "num_outputs": self.num_outputs,
            "head": self.head,
            "head_units": self.head_units,
            "head_dropout": self.head_dropout,
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"dtype": keras.saving.deserialize_keras_object(config["dtype"])})
