"""A masked language model as a folder that others read: as a Google checkpoint and as a Hugging Face folder at once.

bert_config.json  bert_model.ckpt.index  bert_model.ckpt.data-00000-of-00001   Google, keras-bert, bert4keras
config.json  model.safetensors  tokenizer_config.json                          Hugging Face
vocab.txt                                                                      both
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from tfbert.model.config import BertConfig
from tfbert.model.mlm import MaskedLM
from tfbert.model.tensor_names import GOOGLE_TRANSPOSED, HEAD_LAYERS, huggingface_prefix, is_kernel, tensor_names

PREFIX = "bert_model.ckpt"
Arrays = dict[str, np.ndarray]


def write_checkpoint(folder: Path, model: MaskedLM, vocab: Path | None = None, cased: bool | None = None) -> int:
    """Writes a checkpoint into an empty folder.

    Args:
        folder: is there.
        model: its encoder, pooler and heads are written, as far as it has them.
        vocab: copied into the folder.
        cased: whether the vocabulary is for cased text; None where nobody knows.

    Returns:
        Number of tensors in the Google checkpoint.

    Raises:
        OSError: it could not be written.
    """
    count = _write_google(folder, model)
    _write_huggingface(folder, model)
    if vocab is not None:
        shutil.copyfile(vocab, folder / "vocab.txt")
    if cased is not None:
        tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": not cased}
        length = model.encoder.config.max_position_embeddings
        _write_json(folder / "tokenizer_config.json", tokenizer | {"model_max_length": length})
    return count


def _parts(model: MaskedLM) -> list[str]:
    more = [("pooler", model.encoder.has_pooler), ("pairs", model.has_pair_head)]
    return ["body", "mlm", *(part for part, there in more if there)]


def _tensors(kind: str, model: MaskedLM) -> Arrays:
    """Weights under the names that they have there, in our shape."""
    tensors = {}
    for layer, names in tensor_names(kind, model.encoder.config, *_parts(model)).items():
        owner = model if layer in HEAD_LAYERS else model.encoder
        for weight, name in zip(owner.get_layer(layer).weights, names, strict=True):
            tensors[name] = keras.ops.convert_to_numpy(weight).astype(np.float32)
    return tensors


def _write_google(folder: Path, model: MaskedLM) -> int:
    (folder / "bert_config.json").write_text(model.encoder.config.dump(), encoding="utf-8")
    tensors = _tensors("google", model)
    try:
        tf.raw_ops.SaveV2(
            prefix=str(folder / PREFIX),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[value.T if name in GOOGLE_TRANSPOSED else value for name, value in tensors.items()],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{folder / PREFIX}: {error.message}") from error
    return len(tensors)


def _write_huggingface(folder: Path, model: MaskedLM) -> None:
    prefix = huggingface_prefix(model.encoder.config)
    tensors = {
        (name if name.startswith("cls.") else prefix + name): np.ascontiguousarray(
            value.T if is_kernel(name, value) else value
        )
        for name, value in _tensors("huggingface", model).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _huggingface_config(model.encoder.config, model.has_pair_head))


def _huggingface_config(config: BertConfig, pair_head: bool) -> Mapping[str, Any]:
    values = config.to_dict()
    if config.hidden_act == "gelu_tanh":
        values["hidden_act"] = "gelu_new"  # the same function, under a name that is known there
    heads = "ForPreTraining" if pair_head else "ForMaskedLM"
    kind, name = ("bert_pre_ln", "BertPreLN") if config.is_pre_ln else ("bert", "Bert")
    more = {"pad_token_id": 0, "position_embedding_type": "absolute", "tie_word_embeddings": True}
    return {"architectures": [name + heads], "model_type": kind} | values | more


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
