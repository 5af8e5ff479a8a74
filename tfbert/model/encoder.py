"""The BERT encoder: post-LN or pre-LN Transformer with keras-bert's layer names, so Google checkpoints load by name."""

from typing import NamedTuple

import keras
from keras import ops

from tfbert.model.config import BertConfig
from tfbert.model.layers import (
    Dense,
    Embedding,
    FeedForward,
    LayerNorm,
    SelfAttention,
    draw_seed,
    layer_seed,
    package,
    stateless_dropout,
)

INPUTS = ("token_ids", "segment_ids", "padding_mask")


@keras.saving.register_keras_serializable(package)
class BertEncoder(keras.Model):
    """Token ids to one vector a token.

    Its variables exist from the start, under any strategy whose scope it is made in.

    Args:
        config: sizes.
        pooler: also make the layer behind [CLS] (`NSP-Dense` in keras-bert, `pooler` elsewhere).
        dtype: a Keras dtype or policy, such as `mixed_bfloat16`; None is the global policy.
    """

    def __init__(self, config, pooler=False, dtype=None, name="encoder", **kwargs):
        super().__init__(name=name, dtype=dtype, **kwargs)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        self.config, self.has_pooler = config, pooler
        width, stddev = config.hidden_size, config.initializer_range
        common = {"dtype": self.dtype_policy}

        def embedding(rows, name):
            return Embedding(rows, width, stddev, name=f"Embedding-{name}", **common)

        def norm(name):
            return LayerNorm(width, config.layer_norm_eps, name=name, **common)

        self.token = embedding(config.vocab_size, "Token")
        self.segment = embedding(config.type_vocab_size, "Segment")
        self.position = embedding(config.max_position_embeddings, "Position")
        self.embedding_norm = norm("Embedding-Norm")
        self.attentions, self.attention_norms, self.feed_forwards, self.feed_forward_norms = [], [], [], []
        for i in range(1, config.num_hidden_layers + 1):
            prefix = f"Encoder-{i}"
            attention = SelfAttention(
                width,
                config.num_attention_heads,
                config.attention_probs_dropout_prob,
                stddev,
                name=f"{prefix}-MultiHeadSelfAttention",
                **common,
            )
            self.attentions.append(attention)
            self.attention_norms.append(norm(f"{prefix}-MultiHeadSelfAttention-Norm"))
            self.feed_forwards.append(
                FeedForward(
                    width, config.intermediate_size, config.hidden_act, stddev, name=f"{prefix}-FeedForward", **common
                )
            )
            self.feed_forward_norms.append(norm(f"{prefix}-FeedForward-Norm"))
        if config.is_pre_ln:
            self.final_norm = norm("Encoder-Final-Norm")
        if pooler:
            self.pooler = Dense(width, width, "tanh", stddev, name="NSP-Dense", **common)
        self.built = True

    def build(self, input_shape=None):
        """Nothing to do: the layers made their weights when they were made."""

    def call(self, inputs, training=False, seed=None):
        """Encodes padded rows.

        Args:
            inputs: `token_ids`, `segment_ids`, `padding_mask` (1 on tokens, 0 on padding), int32 (B, L).
            training: dropout on.
            seed: int tensor (2,); decides the dropout masks. None draws one from Keras' global generator.

        Returns:
            (B, L, H) in the compute dtype.

        Raises:
            ValueError: L is known and above `max_position_embeddings`.
        """
        return self._encode(inputs, training, seed, None)

    def states(self, inputs, training=False, seed=None):
        """What the layers give on the way; arguments and errors as `call`.

        Returns:
            Hidden states: of the embeddings, then of every layer, num_hidden_layers + 1 of (B, L, H); and attention
            scores before padding is blocked and before the softmax, num_hidden_layers of (B, A, L, L).
        """
        found = _States([], [])
        self._encode(inputs, training, seed, found)
        return found.hidden, found.scores

    def _encode(self, inputs, training, seed, states):
        """`call`; writes down hidden states and scores in `states`, unless it is None."""
        token_ids, mask = inputs["token_ids"], inputs["padding_mask"]
        if (token_ids.shape[1] or 0) > self.config.max_position_embeddings:
            raise ValueError(
                f"Rows are at most max_position_embeddings ({self.config.max_position_embeddings}) tokens long. "
                f"Received: {token_ids.shape[1]} tokens."
            )
        length = ops.shape(token_ids)[1]
        rate, pre_ln = self.config.hidden_dropout_prob, self.config.is_pre_ln
        drops = _Dropouts(seed) if training else None
        x = self.token(token_ids) + self.segment(inputs["segment_ids"]) + self.position.first(length)
        x = self.embedding_norm(ops.reshape(x, (-1, self.config.hidden_size)))
        if states is not None:
            states.hidden.append(ops.reshape(x, (-1, length, self.config.hidden_size)))
        if drops:
            x = stateless_dropout(x, rate, drops.next())
        blocked = -1e9 if self.compute_dtype != "float16" else -3e4
        bias = ops.expand_dims(ops.cast(1 - ops.cast(mask, "int32"), self.compute_dtype), (1, 2)) * blocked
        for attention, norm, feed_forward, norm_2 in zip(
            self.attentions, self.attention_norms, self.feed_forwards, self.feed_forward_norms, strict=True
        ):
            drop = drops.next() if drops else None
            y = attention(norm(x) if pre_ln else x, bias, length=length, seed=drop, with_scores=states is not None)
            if states is not None:
                y, scores = y
                states.scores.append(scores)
            x = x + (stateless_dropout(y, rate, drops.next()) if drops else y)
            x = x if pre_ln else norm(x)
            y = feed_forward(norm_2(x) if pre_ln else x, training=training)
            x = x + (stateless_dropout(y, rate, drops.next()) if drops else y)
            x = x if pre_ln else norm_2(x)
            if states is not None:
                is_last = len(states.scores) == self.config.num_hidden_layers
                y = self.final_norm(x) if pre_ln and is_last else x
                states.hidden.append(ops.reshape(y, (-1, length, self.config.hidden_size)))
        if pre_ln:
            x = self.final_norm(x)
        return ops.reshape(x, (-1, length, self.config.hidden_size))

    def get_config(self):
        config = {"config": self.config.to_dict(), "pooler": self.has_pooler}
        return config | {"name": self.name, "dtype": keras.saving.serialize_keras_object(self.dtype_policy)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"dtype": keras.saving.deserialize_keras_object(config["dtype"])})


class _States(NamedTuple):
    """What layers give, as it comes."""

    hidden: list
    scores: list


class _Dropouts:
    """The seeds of a forward pass's dropouts, one after the other."""

    def __init__(self, seed):
        self._seed = draw_seed() if seed is None else seed
        self._number = 0

    def next(self):
        self._number += 1
        return layer_seed(self._seed, self._number)
