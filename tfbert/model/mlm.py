"""The masked-language-model head behind an encoder, with keras-bert's layer names; its decoder is the token embedding.

Logits are made at given positions alone: a table of 30,000 tokens is wider than the whole encoder, and 15 % of the
tokens are masked at most.

    B rows, L tokens a row, H width, V tokens in the vocabulary, M positions.
"""

import keras
from keras import ops

from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.layers import Dense, LayerNorm, package


@keras.saving.register_keras_serializable(package)
class TokenSimilarity(keras.layers.Layer):
    """Scores of all tokens: x @ embeddings.T + bias. The table is the encoder's own; only the bias is a weight here."""

    def __init__(self, num_tokens, **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = num_tokens
        self.build()

    def build(self, input_shape=None):
        if not self.built:
            self.bias = self.add_weight(name="bias", shape=(self.num_tokens,), initializer="zeros", autocast=False)
            self.built = True

    def call(self, x, embeddings):  # (M, H), (V, H) -> float32 (M, V)
        table = ops.cast(ops.convert_to_tensor(embeddings), self.compute_dtype)
        return ops.cast(ops.matmul(x, ops.transpose(table)), "float32") + self.bias

    def get_config(self):
        return super().get_config() | {"num_tokens": self.num_tokens}


@keras.saving.register_keras_serializable(package)
class MaskedLM(keras.Model):
    """Encoder, dense layer with the encoder's activation, LayerNorm, token scores.

    Args:
        config: sizes of the encoder.
        pooler: also make the encoder's layer behind [CLS], to train it or to keep that of a checkpoint.
        pair_head: also make the layer behind it that tells pairs of texts apart (next sentence, sentence order); with
            the pooler.
        dtype: a Keras dtype or policy; logits are float32 in any case.
    """

    def __init__(self, config, pooler=False, pair_head=False, dtype=None, name="masked_lm", **kwargs):
        super().__init__(name=name, dtype=dtype, **kwargs)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        policy, width = self.dtype_policy, config.hidden_size
        self.encoder = BertEncoder(config, pooler=pooler or pair_head, dtype=policy)
        self.mlm_dense = Dense(
            width, width, config.hidden_act, config.initializer_range, name="MLM-Dense", dtype=policy
        )
        self.mlm_norm = LayerNorm(width, config.layer_norm_eps, name="MLM-Norm", dtype=policy)
        self.mlm_similarity = TokenSimilarity(config.vocab_size, name="MLM-Sim", dtype=policy)
        self.has_pair_head = pair_head
        if pair_head:
            self.nsp = Dense(width, 2, None, config.initializer_range, name="NSP", dtype=policy)
        self.built = True

    def build(self, input_shape=None):
        """Nothing to do: the layers made their weights when they were made."""

    def mlm_logits(self, hidden, positions=None):
        """Token scores at some positions.

        Args:
            hidden: what the encoder gives, (B, L, H) or flat (B * L, H).
            positions: int (M,), row * L + column; None takes all, M = B * L.

        Returns:
            float32 (M, V).
        """
        x = ops.reshape(hidden, (-1, self.encoder.config.hidden_size))
        if positions is not None:
            x = ops.take(x, positions, axis=0)
        x = self.mlm_norm(self.mlm_dense(x))
        return self.mlm_similarity(x, self.encoder.token.embeddings)

    def pair_logits(self, hidden):
        """Which of two kinds a pair is: (B, L, H) -> float32 (B, 2)."""
        return ops.cast(self.nsp(self.encoder.pooler(hidden[:, 0])), "float32")

    def call(self, inputs, positions=None, training=False, seed=None):
        """`token_ids`, `segment_ids`, `padding_mask` (B, L) -> float32 logits (M, V); arguments as elsewhere."""
        return self.mlm_logits(self.encoder(inputs, training=training, seed=seed), positions)

    def get_config(self):
        config = {"config": self.encoder.config.to_dict(), "pooler": self.encoder.has_pooler}
        config |= {"pair_head": self.has_pair_head}
        return config | {"name": self.name, "dtype": keras.saving.serialize_keras_object(self.dtype_policy)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"dtype": keras.saving.deserialize_keras_object(config["dtype"])})
