"""The shape of a BERT encoder, with the field names of `bert_config.json`."""

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tfbert.errors import ConfigError

MAX_SIZE = 2**31 - 1  # of any dimension
ACTIVATIONS = ("gelu", "gelu_new", "gelu_tanh", "relu", "silu", "tanh")
LN_MODES = ("post-ln", "pre-ln")


@dataclass(frozen=True)
class BertConfig:
    """Sizes and rates of an encoder.

    Attributes:
        vocab_size: rows of the token embedding.
        hidden_size: width H.
        num_hidden_layers: Transformer layers.
        num_attention_heads: heads a layer; divides `hidden_size`.
        intermediate_size: width of the feed-forward layer.
        hidden_act: gelu (by the error function), gelu_new or gelu_tanh (by tanh), relu, silu, tanh.
        hidden_dropout_prob: dropout after embeddings and dense layers.
        attention_probs_dropout_prob: dropout on attention probabilities.
        max_position_embeddings: longest row in tokens.
        type_vocab_size: number of segments.
        initializer_range: standard deviation of the truncated normal that new weights are drawn from.
        layer_norm_eps: added to the variance.
        encoder_ln_mode: post-ln (BERT: each sum is normalised) or pre-ln (what enters a sub-layer is, and the output of
            the last layer; it trains at higher rates: Xiong et al. 2020, arXiv 2002.04745).

    Raises:
        ConfigError: a value is out of range.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    encoder_ln_mode: str = "post-ln"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                least = 0 if field.name == "num_hidden_layers" else 1
                if type(value) is not int or not least <= value <= MAX_SIZE:
                    raise ConfigError(
                        f"{field.name} is a whole number from {least} to {MAX_SIZE}. Received: {str(value)[:40]!r}."
                    )
            elif field.type is float and (type(value) not in (int, float) or not 0 <= value < 1):
                raise ConfigError(f"{field.name} is a number in [0, 1). Received: {value!r}.")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "num_attention_heads must divide hidden_size. "
                f"Received: {self.num_attention_heads} heads, hidden_size {self.hidden_size}."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act is one of {', '.join(ACTIVATIONS)}. Received: {self.hidden_act!r}.")
        if self.encoder_ln_mode not in LN_MODES:
            raise ConfigError(f"encoder_ln_mode is one of {', '.join(LN_MODES)}. Received: {self.encoder_ln_mode!r}.")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> "BertConfig":
        """Takes the fields it knows of a `bert_config.json` or `config.json`."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        if "vocab_size" not in known:
            raise ConfigError(f"{source}: a BERT config needs vocab_size. Received: {sorted(values)}.")
        positions = values.get("position_embedding_type", "absolute")
        if positions != "absolute":
            raise ConfigError(f"{source}: position_embedding_type must be absolute. Received: {positions!r}.")
        try:
            return cls(**known)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None

    @classmethod
    def load(cls, path: Path | str, vocab_size: int | None = None) -> "BertConfig":
        """Reads a JSON file; `vocab_size` fills in where the file has none (a config to train from scratch)."""
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: a BERT config is a JSON file. Received: {error}.") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: a BERT config is a JSON object. Received: {type(values).__name__}.")
        if vocab_size is not None:
            values.setdefault("vocab_size", vocab_size)
        config = cls.from_dict(values, str(path))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 4 * config.num_weights > memory:
            raise ConfigError(
                f"{path}: the weights must fit in memory. Received: {config.num_weights:,} weights of 4 bytes, "
                f"{memory:,} bytes of memory."
            )
        return config

    @property
    def num_weights(self) -> int:
        """Weights of the encoder, without pooler."""
        width = self.hidden_size
        embeddings = (self.vocab_size + self.type_vocab_size + self.max_position_embeddings + 2) * width
        attention, feed_forward = 4 * width * (width + 1), 2 * width * self.intermediate_size
        return embeddings + self.num_hidden_layers * (attention + feed_forward + self.intermediate_size + 5 * width)

    @property
    def is_pre_ln(self) -> bool:
        return self.encoder_ln_mode == "pre-ln"

    def blank(self) -> "BertConfig":
        """The same for a model whose weights are all loaded: to draw those of a 12-layer one first takes seconds."""
        return replace(self, initializer_range=0.0)

    def without_dropout(self) -> "BertConfig":
        return replace(self, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def dump(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"
