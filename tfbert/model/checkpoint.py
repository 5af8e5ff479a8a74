"""Weights into an encoder: Google checkpoints, Hugging Face folders, run folders, or random from a bare config.

Loading is all or nothing: names and shapes are compared first, and a partial match is refused with the first missing
tensors named.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import orjson

from tfbert.errors import CheckpointError, ConfigError
from tfbert.model.config import MAX_SIZE, BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.mlm import MaskedLM

RUN_WEIGHTS = "best.weights.h5"
DESCRIPTION = "model.json"
_DESCRIBED: dict[str, tuple[tuple[type, ...], float, float]] = {  # kinds, lowest and highest number
    "num_outputs": ((int,), 1, MAX_SIZE),
    "head": ((str,), 0, 0),
    "head_units": ((int,), 1, MAX_SIZE),
    "head_dropout": ((int, float), 0, 1),
}
_SUM_MARK = b"tfb-crc32\n"
_SUM_BYTES = len(_SUM_MARK) + 4
_BLOCK = 1 << 20
_READERS = {"google": ("keras_bert", "keras-bert"), "huggingface": ("safetensors", "safetensors")}


@dataclass(frozen=True)
class Init:
    """Where an encoder starts from.

    Attributes:
        kind: google, huggingface, run or config.
        path: checkpoint prefix, safetensors file, weight file or config file.
        config: sizes of the encoder.
        vocab: the vocab.txt beside it, if there is one.
    """

    kind: str
    path: Path
    config: BertConfig
    vocab: Path | None


def find_init(path: Path | str, vocab_size: int | None = None) -> Init:
    """Tells what `--init` names.

    Args:
        path: a folder with a Google checkpoint, a Hugging Face folder, a run folder, a checkpoint prefix (also its
            .index file), or a bare config file for random weights.
        vocab_size: for a bare config without one.

    Raises:
        CheckpointError: nothing of these is there.
    """
    path = Path(path)
    if path.suffix == ".json" and path.is_file():
        return Init("config", path, BertConfig.load(path, vocab_size), None)
    folder = path if path.is_dir() else path.parent
    vocab = folder / "vocab.txt" if (folder / "vocab.txt").is_file() else None
    bert_config = folder / "bert_config.json"
    if path.is_dir():
        if (path / RUN_WEIGHTS).is_file() and bert_config.is_file():
            return Init("run", path / RUN_WEIGHTS, BertConfig.load(bert_config), vocab)
        if (path / "model.safetensors").is_file():
            config = _first_file([path / "config.json", bert_config], path)
            return Init("huggingface", path / "model.safetensors", BertConfig.load(config), vocab)
        prefixes = sorted(p.with_suffix("") for p in path.glob("*.index"))
        if len(prefixes) > 1:
            prefixes = [p for p in prefixes if p.name == "bert_model.ckpt"] or prefixes
        if prefixes:
            return _google(prefixes[0], bert_config, vocab)
    elif path.parent.is_dir():
        prefix = path.with_suffix("") if path.suffix == ".index" or ".data-" in path.name else path
        if prefix.with_name(prefix.name + ".index").is_file():
            return _google(prefix, bert_config, vocab)
    raise CheckpointError(
        "--init takes a folder with a Google checkpoint (bert_config.json, bert_model.ckpt.*), a Hugging Face folder "
        f"(config.json, model.safetensors), a run folder, or a config .json for random weights. Received: {path}, "
        f"which is none of these{'' if path.exists() else ' (it does not exist)'}."
    )


def _google(prefix: Path, bert_config: Path, vocab: Path | None) -> Init:
    config = _first_file([bert_config, prefix.parent / "config.json"], prefix.parent)
    if not any(path.name.startswith(prefix.name + ".data-") for path in prefix.parent.iterdir()):
        raise CheckpointError(f"{prefix}.index: a checkpoint needs its .data file. Received: none beside the index.")
    return Init("google", prefix, BertConfig.load(config), vocab)


def _first_file(candidates: Sequence[Path], folder: Path) -> Path:
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = " or ".join(c.name for c in candidates)
    raise CheckpointError(f"{folder}: a checkpoint needs its config. Received: no {names}.")


def check_vocabulary(config: BertConfig, num_tokens: int, source: str) -> str | None:
    """Refuses ids that the model has no row for; tells where the model has rows to spare.

    Raises:
        ConfigError: the vocabulary is larger than the model's.
    """
    if num_tokens > config.vocab_size:
        raise ConfigError(
            f"Token ids must be below the model's vocab_size. Received: a vocabulary of {num_tokens} tokens "
            f"({source}), vocab_size {config.vocab_size}. Use the vocab.txt that belongs to the checkpoint."
        )
    if num_tokens < config.vocab_size:
        return f"the vocabulary has {num_tokens} tokens, the model {config.vocab_size}: the rest stays unused"
    return None


def load_encoder(encoder: BertEncoder, init: Init) -> int:
    """Fills an encoder; returns the number of tensors loaded (0 for a bare config).

    Raises:
        CheckpointError: the file is damaged, or does not hold every tensor in the right shape.
    """
    if init.kind == "config":
        return 0
    _check_reader(init)
    if init.kind == "google":
        return _load_google(encoder, init.path)
    if init.kind == "huggingface":
        return _load_huggingface(encoder, _huggingface_tensors(init.path), init.path)
    return _load_run(encoder, init.path)


def load_masked_lm(model: MaskedLM, init: Init) -> int:
    """Fills an encoder and the masked-language-model head behind it; returns the number of tensors loaded.

    Raises:
        CheckpointError: as `load_encoder`; or there is no such head in it: a run folder of a classifier has none, nor
            has a checkpoint that was saved for a classifier or as a sentence encoder.
    """
    if init.kind == "config":
        return 0
    _check_reader(init)
    if init.kind == "google":
        count = _compare_google(model, _GOOGLE_MLM, init.path, _MLM_HEAD) + _load_google(model.encoder, init.path)
        _set_from_google(model, _GOOGLE_MLM, init.path)
        return count
    if init.kind == "huggingface":
        tensors = _with_tied_decoder(_huggingface_tensors(init.path), init.path)
        count = _compare_huggingface(model, _HF_MLM, tensors, init.path, _MLM_HEAD)
        count += _load_huggingface(model.encoder, tensors, init.path)
        _set_from_huggingface(model, _HF_MLM, tensors)
        return count
    raise CheckpointError(
        f"{init.path}: a masked language model starts from a Google checkpoint or a Hugging Face folder. "
        "Received: a run folder of a classifier."
    )


def _check_reader(init: Init) -> None:
    module, package = _READERS.get(init.kind, ("h5py", "h5py"))
    if find_spec(module) is None:
        raise CheckpointError(
            f"{init.path}: reading it needs the package {package}. Received: it is not installed. "
            f"Run `pip install {package}`."
        )


def _layer_names(config: BertConfig, names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Expands `{i}` (from 0) and `{n}` (from 1) over the layers of the encoder: our layer -> names of its tensors."""
    expanded = {}
    for layer, tensors in names.items():
        numbers = range(config.num_hidden_layers) if "{n}" in layer else range(1)
        for i in numbers:
            expanded[layer.format(n=i + 1)] = [tensor.format(i=i) for tensor in tensors]
    return expanded


def _dense(prefix: str, *, kernel: str) -> list[str]:
    return [f"{prefix}/{kernel}", f"{prefix}/bias"]


_GOOGLE_BODY = {
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
    "Encoder-{n}-FeedForward-Norm": [f"bert/encoder/layer_{{i}}/output/LayerNorm/{part}" for part in ("gamma", "beta")],
}
_POOLER = "NSP-Dense"
_MLM_HEAD = "the masked-language-model head"
_GOOGLE_POOLER = {_POOLER: _dense("bert/pooler/dense", kernel="kernel")}
_GOOGLE_MLM = {
    "MLM-Dense": _dense("cls/predictions/transform/dense", kernel="kernel"),
    "MLM-Norm": ["cls/predictions/transform/LayerNorm/gamma", "cls/predictions/transform/LayerNorm/beta"],
    "MLM-Sim": ["cls/predictions/output_bias"],
}


def _load_google(encoder: BertEncoder, prefix: Path) -> int:
    """By keras-bert's loader, after every name and shape was checked."""
    pooler = _GOOGLE_POOLER if encoder.has_pooler else {}
    count = _compare_google(encoder, _layer_names(encoder.config, _GOOGLE_BODY) | pooler, prefix)
    with _damaged_google(prefix):
        from keras_bert.loader import load_model_weights_from_checkpoint

        load_model_weights_from_checkpoint(encoder, encoder.config.to_dict(), str(prefix))
    _set_from_google(encoder, pooler, prefix)  # keras-bert loads the pooler only together with the MLM head
    return count


def _compare_google(
    model: keras.Model, names: Mapping[str, Sequence[str]], prefix: Path, what: str = "the encoder"
) -> int:
    with _damaged_google(prefix):
        import tensorflow as tf

        found = dict(tf.train.list_variables(str(prefix)))
    return _compare(model, names, found.get, str(prefix), what)


def _set_from_google(model: keras.Model, names: Mapping[str, Sequence[str]], prefix: Path) -> None:
    with _damaged_google(prefix):
        import tensorflow as tf

        for layer, tensors in names.items():
            model.get_layer(layer).set_weights([tf.train.load_variable(str(prefix), name) for name in tensors])


@contextmanager
def _damaged_google(prefix: Path) -> Iterator[None]:
    """Makes one error of those that TensorFlow raises for damaged files."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, ValueError, OSError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{prefix}: the checkpoint cannot be read. Received: {_one_line(error)}.") from error


_HF_BODY = {
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
}
_HF_POOLER = {_POOLER: ["pooler.dense.weight", "pooler.dense.bias"]}
_HF_MLM = {
    "MLM-Dense": ["cls.predictions.transform.dense.weight", "cls.predictions.transform.dense.bias"],
    "MLM-Norm": ["cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.LayerNorm.bias"],
    "MLM-Sim": ["cls.predictions.bias"],
}


def _huggingface_tensors(path: Path) -> dict[str, np.ndarray]:
    """Tensors by name and in shape as we want them.

    Kernels are stored (out, in) there; names may begin with `bert.` and norms may be called gamma and beta.
    """
    tensors = {}
    for name, value in _read_safetensors(path).items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        is_kernel = name.endswith(".weight") and value.ndim == 2 and "embeddings" not in name
        tensors[name] = value.T if is_kernel else value
    return tensors


def _load_huggingface(encoder: BertEncoder, tensors: Mapping[str, np.ndarray], path: Path) -> int:
    names = _layer_names(encoder.config, _HF_BODY) | (_HF_POOLER if encoder.has_pooler else {})
    count = _compare_huggingface(encoder, names, tensors, path)
    _set_from_huggingface(encoder, names, tensors)
    return count


def _with_tied_decoder(tensors: dict[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """Whichever tensors of the decoder a writer kept: the ones of the embedding and of the head are enough."""
    decoder, table = tensors.get("cls.predictions.decoder.weight"), tensors.get("embeddings.word_embeddings.weight")
    if decoder is not None and table is not None and not np.array_equal(decoder.T, table):
        raise CheckpointError(
            f"{path}: the decoder of a masked language model is its token embedding. Received: "
            "cls.predictions.decoder.weight, which differs from it (tie_word_embeddings: false)."
        )
    bias = tensors.get("cls.predictions.decoder.bias")
    return tensors if bias is None else {"cls.predictions.bias": bias} | tensors


def _compare_huggingface(
    model: keras.Model,
    names: Mapping[str, Sequence[str]],
    tensors: Mapping[str, np.ndarray],
    path: Path,
    what: str = "the encoder",
) -> int:
    shapes = {name: value.shape for name, value in tensors.items()}
    return _compare(model, names, shapes.get, str(path), what)


def _set_from_huggingface(
    model: keras.Model, names: Mapping[str, Sequence[str]], tensors: Mapping[str, np.ndarray]
) -> None:
    for layer, wanted in names.items():
        model.get_layer(layer).set_weights([tensors[name].astype(np.float32) for name in wanted])


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file; bfloat16, which NumPy lacks, as float32."""
    from safetensors import SafetensorError, deserialize

    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
    tensors = {}
    try:
        for name, stored in deserialize(path.read_bytes()):
            if stored["dtype"] in types:
                value = np.frombuffer(stored["data"], types[stored["dtype"]]).reshape(stored["shape"])
                if stored["dtype"] == "BF16":
                    value = (value.astype(np.uint32) << 16).view(np.float32)
                tensors[name] = value
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: the file cannot be read. Received: {_one_line(error)}.") from error
    return tensors


def _compare(
    model: keras.Model,
    names: Mapping[str, Sequence[str]],
    shape_of: Callable[[str], Sequence[int] | None],
    source: str,
    what: str = "the encoder",
) -> int:
    """Refuses a checkpoint that lacks a tensor of the model or has it in another shape; returns their number."""
    wrong = []
    expected = 0
    for layer, tensors in names.items():
        for weight, name in zip(model.get_layer(layer).weights, tensors, strict=True):
            expected += 1
            shape = shape_of(name)
            if shape is None:
                wrong.append(f"{name} is missing")
            elif tuple(shape) != tuple(weight.shape):
                wrong.append(f"{name} is {tuple(shape)}, wanted {tuple(weight.shape)}")
    if wrong:
        raise CheckpointError(
            f"{source}: a checkpoint must hold all {expected} tensors of {what}. Received: {len(wrong)} that do "
            f"not fit: {'; '.join(wrong[:3])}. Does the config belong to it?"
        )
    return expected


def _load_run(encoder: BertEncoder, path: Path) -> int:
    """The encoder out of a run's classifier."""
    from tfbert.model.heads import Classifier

    description = read_description(path.with_name(DESCRIPTION))
    source = Classifier(encoder.config, **description)
    load_weights(source, path)
    if encoder.has_pooler and not source.encoder.has_pooler:
        raise CheckpointError(
            f"{path}: the head cls starts from a model with a pooler. Received: a run with the head "
            f"{description['head']}. Use the head pool or mean."
        )
    for layer in encoder.layers:
        layer.set_weights(source.encoder.get_layer(layer.name).get_weights())
    return len(encoder.weights)


def read_description(path: Path) -> dict[str, Any]:
    """The arguments of a run's `Classifier`, beside its encoder's config.

    Raises:
        CheckpointError: the file is missing or does not describe a classifier.
    """
    from tfbert.model.heads import HEADS

    try:
        values = orjson.loads(path.read_bytes())
        if not isinstance(values, dict) or not {"num_outputs"} <= values.keys() <= set(_DESCRIBED):
            raise ValueError("it does not describe a classifier")
        if values.get("head", HEADS[0]) not in HEADS:
            raise ValueError(f"head {str(values['head'])[:40]!r}")
        for name, value in values.items():
            kinds, low, high = _DESCRIBED[name]
            if type(value) not in kinds or (str not in kinds and not low <= value <= high):
                raise ValueError(f"{name} {str(value)[:40]!r}")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path.parent}: a run folder of `train.py classify` has a {path.name} that describes its classifier. "
            f"Received: {_one_line(error)}."
        ) from error
    return values


def load_weights(model, path: Path) -> None:
    """Reads a `.weights.h5` file into a model of the same shape.

    A file that `save_weights` wrote ends with its checksum, so no byte of it can have changed unseen. HDF5 itself
    knows none, and its readers stumble over damaged files in many ways.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there are no weights. Received: no such file.")
    try:
        _check_sum(path)
        count = _count_tensors(path)
        if count != len(model.weights):  # Keras itself ignores tensors that the model has no place for
            raise ValueError(f"{count} tensors, {len(model.weights)} in the model")
        model.load_weights(path)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, MemoryError) as error:  # all from damaged files
        raise CheckpointError(
            f"{path}: the weights are damaged or of another model. Received: {_one_line(error)}."
        ) from error


def _count_tensors(path: Path) -> int:
    import h5py

    count = 0

    def look(name: str, item: object) -> None:
        nonlocal count
        count += isinstance(item, h5py.Dataset)

    with h5py.File(path) as file:
        file.visititems(look)
    return count


def save_weights(model, path: Path) -> None:
    """Writes a `.weights.h5` file whole or not at all, with its checksum behind what HDF5 reads of it."""
    temporary = path.with_name("saving-" + path.name)
    model.save_weights(temporary)
    with temporary.open("r+b") as file:
        checksum = _crc32(file, temporary.stat().st_size)
        file.write(_SUM_MARK + checksum.to_bytes(4, "little"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _check_sum(path: Path) -> None:
    """Raises ValueError where the file ends with a checksum that is not its own; files of others have none."""
    size = path.stat().st_size - _SUM_BYTES
    with path.open("rb") as file:
        if size < 0:
            return
        file.seek(size)
        mark, stored = file.read(len(_SUM_MARK)), file.read(4)
        file.seek(0)
        if mark == _SUM_MARK and _crc32(file, size) != int.from_bytes(stored, "little"):
            raise ValueError("the checksum does not fit")


def _crc32(file: BinaryIO, size: int) -> int:
    checksum = 0
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        checksum = zlib.crc32(block, checksum)
        size -= len(block)
    return checksum


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
