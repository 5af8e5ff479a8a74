"""A trained classifier as a file that others serve: SavedModel or ONNX.

Each takes `token_ids`, `segment_ids` and `padding_mask`, int32 (B, L) of any B and L, and gives `logits` and `probs`
(a regression: `logits` and `value`), float32.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfbert.disk import new_folder
from tfbert.errors import ConfigError
from tfbert.model.heads import Classifier
from tfbert.run_folder import RunFolder

FORMATS = ("savedmodel", "onnx")
_BESIDE = ("labels.txt", "vocab.txt", "manifest.json", "bert_config.json", "model.json")
_INPUTS = ("token_ids", "segment_ids", "padding_mask")
_ONNX_OPSET = 17


class Served(tf.Module):
    """What is served: logits, and what they mean for the task.

    Args:
        model: the classifier.
        task: classify, multilabel or regression.
        pad_id: id of [PAD].
    """

    def __init__(self, model: Classifier, task: str, pad_id: int):
        super().__init__()
        self.model, self._task, self._pad_id = model, task, pad_id

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name) for name in _INPUTS])
    def rows(self, token_ids, segment_ids, padding_mask):
        """Encoded rows (B, L), padded to one length."""
        logits = self.model({"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask})
        if self._task == "regression":
            return {"logits": logits, "value": logits[:, 0]}
        return {
            "logits": logits,
            "probs": tf.nn.sigmoid(logits) if self._task == "multilabel" else tf.nn.softmax(logits),
        }

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, "token_ids")])
    def single_texts(self, token_ids):
        """Rows of one text: padding is what has the id of [PAD]."""
        mask = tf.cast(token_ids != self._pad_id, tf.int32)
        return self.rows(token_ids, tf.zeros_like(token_ids), mask)


def export(run: RunFolder, model: Classifier, task: str, pad_id: int, format: str, output: Path, int8: bool) -> None:
    """Writes a folder with the model and what is needed to feed it: labels, vocabulary, manifest, configs.

    Args:
        run: that the model is of.
        model: on one device, in float32.
        task: classify, multilabel or regression.
        pad_id: id of [PAD].
        format: one of `FORMATS`.
        output: the folder; nothing may be there.
        int8: weights of the products as 8-bit integers (onnx).

    Raises:
        ConfigError: the folder exists, or a package is missing.
    """
    if output.exists():
        raise ConfigError(f"--output names a folder that is made. Received: {output}, which exists.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output must lie in an existing folder. Received: {output}.")
    write = {"savedmodel": _write_savedmodel, "onnx": _write_onnx}[format]
    with new_folder(output) as folder:
        write(Served(model, task, pad_id), folder, int8)
        for name in _BESIDE:
            if (run.path / name).is_file():
                shutil.copyfile(run.path / name, folder / name)
        described = {"format": format, "int8": int8, "task": task, "pad_id": pad_id, "inputs": list(_INPUTS)}
        (folder / "export.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _write_savedmodel(served: Served, folder: Path, int8: bool) -> None:
    signatures = {"serving_default": served.rows, "single_texts": served.single_texts}
    tf.saved_model.save(served, str(folder), signatures=signatures)


def _write_onnx(served: Served, folder: Path, int8: bool) -> None:
    convert = _package("tf2onnx.convert", "tf2onnx onnx")
    path = folder / "model.onnx"
    convert.from_function(
        served.rows,
        served.rows.input_signature,
        opset=_ONNX_OPSET,
        output_path=str(path),
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    if int8:
        quantization = _package("onnxruntime.quantization", "onnxruntime")
        quantization.quantize_dynamic(str(path), str(path), weight_type=quantization.QuantType.QInt8)


def _erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """The complement of Erf, which exact gelu uses and tf2onnx does not know."""
    erf = graph.make_node("Erf", node.input)
    one = graph.make_const(f"{name}_one", np.array(1, np.float32))
    graph.remove_node(node.name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output, name=name)


def _package(name: str, packages: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"This export needs packages that are not installed. Received: {error}. Run `pip install {packages}`."
        ) from error
