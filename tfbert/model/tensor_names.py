"""What tensors are called in the checkpoints of others: our layer -> the names of its weights, in order.

Models with pre-LN have the same tensors and one norm more, but not the same mathematics. Programs that know post-LN
alone would load them and compute nonsense, so theirs have other prefixes, at which such programs stop.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfbert.model.config import BertConfig

HEAD_LAYERS = ("MLM-Dense", "MLM-Norm", "MLM-Sim", "NSP")  # those of a masked language model outside its encoder
GOOGLE_TRANSPOSED = ("cls/seq_relationship/output_weights",)  # stored (out, in); other kernels are (in, out)


def _dense(prefix: str, *, kernel: str) -> list[str]:
    return [f"{prefix}/{kernel}", f"{prefix}/bias"]


_GOOGLE = {
    "body": {
        "Embedding-Token": ["bert/embeddings/word_embeddings"],
        "Embedding-Segment": ["bert/embeddings/token_type_embeddings"],
        "Embedding-Position": ["bert/embeddings/position_embeddings"],
        "Embedding-Norm": ["bert/embeddings/LayerNorm/gamma", "bert/embeddings/LayerNorm/beta"],
        "Encoder-{n}-MultiHeadSelfAttention": [
            f"bert/encoder/layer_{{i}}/attention/{dense}/{part}"
            for dense in ("self/query", "self/key", "self/value", "output/dense")
            for part in ("kernel", "bias")
        ],
        "Encoder-{n}-MultiHeadSelfAttention-Norm": [
            f"bert/encoder/layer_{{i}}/attention/output/LayerNorm/{part}" for part in ("gamma", "beta")
        ],
        "Encoder-{n}-FeedForward": [
            f"bert/encoder/layer_{{i}}/{dense}/dense/{part}"
            for dense in ("intermediate", "output")
            for part in ("kernel", "bias")
        ],
        "Encoder-{n}-FeedForward-Norm": [
            f"bert/encoder/layer_{{i}}/output/LayerNorm/{part}" for part in ("gamma", "beta")
        ],
    },
    "final_norm": {"Encoder-Final-Norm": ["bert/encoder/LayerNorm/gamma", "bert/encoder/LayerNorm/beta"]},
    "pooler": {"NSP-Dense": ["bert/pooler/dense/kernel", "bert/pooler/dense/bias"]},
    "mlm": {
        "MLM-Dense": [f"cls/predictions/transform/dense/{part}" for part in ("kernel", "bias")],
        "MLM-Norm": [f"cls/predictions/transform/LayerNorm/{part}" for part in ("gamma", "beta")],
        "MLM-Sim": ["cls/predictions/output_bias"],
    },
    "pairs": {"NSP": ["cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias"]},
}
_HUGGINGFACE = {
    "body": {
        "Embedding-Token": ["embeddings.word_embeddings.weight"],
        "Embedding-Segment": ["embeddings.token_type_embeddings.weight"],
        "Embedding-Position": ["embeddings.position_embeddings.weight"],
        "Embedding-Norm": ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"],
        "Encoder-{n}-MultiHeadSelfAttention": [
            f"encoder.layer.{{i}}.attention.{dense}.{part}"
            for dense in ("self.query", "self.key", "self.value", "output.dense")
            for part in ("weight", "bias")
        ],
        "Encoder-{n}-MultiHeadSelfAttention-Norm": [
            f"encoder.layer.{{i}}.attention.output.LayerNorm.{part}" for part in ("weight", "bias")
        ],
        "Encoder-{n}-FeedForward": [
            f"encoder.layer.{{i}}.{dense}.dense.{part}"
            for dense in ("intermediate", "output")
            for part in ("weight", "bias")
        ],
        "Encoder-{n}-FeedForward-Norm": [f"encoder.layer.{{i}}.output.LayerNorm.{part}" for part in ("weight", "bias")],
    },
    "final_norm": {"Encoder-Final-Norm": ["encoder.LayerNorm.weight", "encoder.LayerNorm.bias"]},
    "pooler": {"NSP-Dense": ["pooler.dense.weight", "pooler.dense.bias"]},
    "mlm": {
        "MLM-Dense": [f"cls.predictions.transform.dense.{part}" for part in ("weight", "bias")],
        "MLM-Norm": [f"cls.predictions.transform.LayerNorm.{part}" for part in ("weight", "bias")],
        "MLM-Sim": ["cls.predictions.bias"],
    },
    "pairs": {"NSP": ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]},
}
_TABLES: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] = {"google": _GOOGLE, "huggingface": _HUGGINGFACE}


def tensor_names(kind: str, config: BertConfig, *parts: str) -> dict[str, list[str]]:
    """Our layers, by name, and the names of their tensors in the order of `layer.weights`.

    Args:
        kind: google, or huggingface (there without the prefix `bert.` that most writers put before some).
        config: of the encoder.
        parts: body (embeddings and layers), pooler, mlm (the masked-language-model head), pairs (the layer behind the
            pooler).
    """
    names: dict[str, list[str]] = {}
    for part in parts:
        table = _TABLES[kind][part]
        if part == "body" and config.is_pre_ln:
            table = {**table, **_TABLES[kind]["final_norm"]}
        for layer, tensors in table.items():
            for i in range(config.num_hidden_layers) if "{n}" in layer else range(1):
                names[layer.format(n=i + 1)] = [tensor.format(i=i) for tensor in tensors]
    if config.is_pre_ln and kind == "google":
        names = {layer: [name.replace("bert/", "bert_pre_ln/", 1) for name in each] for layer, each in names.items()}
    return names


def huggingface_prefix(config: BertConfig) -> str:
    """What names of the encoder's tensors begin with in most files of Hugging Face."""
    return "bert_pre_ln." if config.is_pre_ln else "bert."


def is_kernel(name: str, value: np.ndarray) -> bool:
    """Whether a tensor of Hugging Face is a matrix that is stored (out, in)."""
    return name.endswith(".weight") and value.ndim == 2 and "embeddings" not in name
