"""Weights into an encoder: Google checkpoints, Hugging Face folders, run folders, or random from a bare config.

Loading is all or nothing: names and shapes are compared first, and a partial match is refused with the first missing
tensors named.
"""

import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import orjson

from tfbert.disk import replaced
from tfbert.errors import CheckpointError, ConfigError
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.mlm import MaskedLM
from tfbert.model.tensor_names import GOOGLE_TRANSPOSED, HEAD_LAYERS, huggingface_prefix, is_kernel, tensor_names

RUN_WEIGHTS = "best.weights.h5"
EXPORTS, LAST_EXPORT = "exports", "end"  # of a run of `train.py pretrain`
DESCRIPTION = "model.json"
_DESCRIBED: dict[str, tuple[tuple[type, ...], float, float]] = {  # kinds, lowest and highest number
    "num_outputs": ((int,), 1, 1 << 20),
    "head": ((str,), 0, 0),
    "head_units": ((int,), 1, 1 << 16),
    "head_dropout": ((int, float), 0, 1),
}
_SUM_MARK = b"tfb-crc32\n"
_SUM_BYTES = len(_SUM_MARK) + 4
_BLOCK = 1 << 20
_HDF5_OVERHEAD = 8192  # bytes of description a tensor, at most
_READERS = {"google": ("keras_bert", "keras-bert"), "huggingface": ("safetensors", "safetensors")}


@dataclass(frozen=True)
class Init:
    """Where an encoder starts from.

    Attributes:
        kind: google, huggingface, hdf5 (of keras-bert), run or config.
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
        path: a folder with a Google checkpoint, a Hugging Face folder, a run folder (of pretraining: its last export),
            a checkpoint prefix (also its .index file), an HDF5 file of weights that keras-bert's model wrote, or a bare
            config file for random weights.
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
    if path.suffix in (".h5", ".hdf5") and path.is_file():
        return Init("hdf5", path, BertConfig.load(_first_file([bert_config, folder / "config.json"], folder)), vocab)
    if path.is_dir():
        if (path / EXPORTS / LAST_EXPORT).is_dir():
            return find_init(path / EXPORTS / LAST_EXPORT)
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
    if (path / EXPORTS).is_dir():
        found = sorted(each.name for each in (path / EXPORTS).iterdir())
        raise CheckpointError(
            f"A pretraining run is an --init when it is complete. Received: {path}, which is not; its exports so far: "
            f"{', '.join(found) or 'none'}. Name one of them."
        )
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
    if init.kind == "run":
        return _load_run(encoder, init.path)
    source = _open_source(init)
    parts = ("body", "pooler") if encoder.has_pooler else ("body",)
    count = _compare(encoder, source, parts, "the encoder")
    source.fill(encoder, parts)
    return count


def load_masked_lm(model: MaskedLM, init: Init) -> int:
    """Fills an encoder and the masked-language-model head behind it; returns the number of tensors loaded.

    The pooler and the layer behind it, which tells pairs apart, stay as they are where the checkpoint has none.

    Raises:
        CheckpointError: as `load_encoder`; or there is no such head in it: a run folder of a classifier has none, nor
            has a checkpoint that was saved for a classifier or as a sentence encoder.
    """
    if init.kind == "config":
        return 0
    _check_reader(init)
    if init.kind == "run":
        raise CheckpointError(
            f"{init.path}: a masked language model starts from a Google checkpoint or a Hugging Face folder. "
            "Received: a run folder of a classifier."
        )
    source = _open_source(init)
    if isinstance(source, _HuggingFace):
        source.check_decoder()
    optional = (("pooler", model.encoder.has_pooler), ("pairs", model.has_pair_head))
    more = tuple(part for part, wanted in optional if wanted and source.has(model.encoder.config, part))
    count = _compare(model, source, ("mlm",), "the masked-language-model head")
    count += _compare(model, source, ("body", *more), "the encoder")
    source.fill(model, ("body", "mlm", *more))
    return count


def _check_reader(init: Init) -> None:
    module, package = _READERS.get(init.kind, ("h5py", "h5py"))
    if find_spec(module) is None:
        raise CheckpointError(
            f"{init.path}: reading it needs the package {package}. Received: it is not installed. "
            f"Run `pip install {package}`."
        )


class _Source(ABC):
    """The tensors of a checkpoint under their names there, in shape as we want them."""

    kind: str
    path: Path

    @abstractmethod
    def shape(self, name: str) -> Sequence[int] | None:
        """Shape of a tensor; None where there is none."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """A tensor, float32."""

    def names(self, config: BertConfig, *parts: str) -> dict[str, list[str]]:
        return tensor_names(self.kind, config, *parts)

    def has(self, config: BertConfig, part: str) -> bool:
        names = [name for tensors in self.names(config, part).values() for name in tensors]
        return all(self.shape(name) is not None for name in names)

    def fill(self, model: MaskedLM | BertEncoder, parts: Sequence[str]) -> None:
        """Sets the weights of the parts, which were compared before."""
        for layer, tensors in self.names(_config_of(model), *parts).items():
            _layer(model, layer).set_weights([self.read(name) for name in tensors])


class _Google(_Source):
    kind = "google"

    def __init__(self, prefix: Path):
        self.path = prefix
        with _damaged_google(prefix):
            import tensorflow as tf

            self._shapes = dict(tf.train.list_variables(str(prefix)))

    def shape(self, name: str) -> Sequence[int] | None:
        shape = self._shapes.get(name)
        return shape[::-1] if shape and name in GOOGLE_TRANSPOSED else shape

    def read(self, name: str) -> np.ndarray:
        with _damaged_google(self.path):
            import tensorflow as tf

            value = tf.train.load_variable(str(self.path), name)
        return value.T if name in GOOGLE_TRANSPOSED else value

    def fill(self, model: MaskedLM | BertEncoder, parts: Sequence[str]) -> None:
        """The body by keras-bert's loader, where it knows such a one."""
        encoder = getattr(model, "encoder", model)
        if encoder.config.is_pre_ln:
            super().fill(model, parts)
            return
        with _damaged_google(self.path):
            from keras_bert.loader import load_model_weights_from_checkpoint

            load_model_weights_from_checkpoint(encoder, encoder.config.to_dict(), str(self.path))
        super().fill(model, [part for part in parts if part != "body"])


@contextmanager
def _damaged_google(prefix: Path) -> Iterator[None]:
    """Makes one error of those that TensorFlow raises for damaged files."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, ValueError, OSError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{prefix}: the checkpoint cannot be read. Received: {_one_line(error)}.") from error


class _HuggingFace(_Source):
    """Kernels are stored (out, in) there; names may begin with `bert.` and norms may be called gamma and beta."""

    kind = "huggingface"

    def __init__(self, path: Path, config: BertConfig):
        self.path = path
        self._tensors = {}
        prefix = huggingface_prefix(config)
        for name, value in _read_safetensors(path).items():
            name = name.removeprefix(prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
            self._tensors[name.replace("LayerNorm.beta", "LayerNorm.bias")] = (
                value.T if is_kernel(name, value) else value
            )

    def shape(self, name: str) -> Sequence[int] | None:
        value = self._tensors.get(name)
        return None if value is None else value.shape

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name].astype(np.float32)

    def check_decoder(self) -> None:
        """Whichever tensors of the decoder a writer kept: those of the embedding and of the head are enough."""
        tensors = self._tensors
        decoder, table = tensors.get("cls.predictions.decoder.weight"), tensors.get("embeddings.word_embeddings.weight")
        if decoder is not None and table is not None and not np.array_equal(decoder.T, table):
            raise CheckpointError(
                f"{self.path}: the decoder of a masked language model is its token embedding. Received: "
                "cls.predictions.decoder.weight, which differs from it (tie_word_embeddings: false)."
            )
        bias = tensors.get("cls.predictions.decoder.bias")
        if bias is not None:
            tensors.setdefault("cls.predictions.bias", bias)


class _Hdf5(_Source):
    """Weights of keras-bert's own model, which has layers of the same names with the same weights in the same order.

    Written by `save_weights`, or by `save` with the model, under legacy Keras.
    """

    kind = "google"  # whose table tells how many tensors a layer has
    _bad = (
        OSError,
        KeyError,
        ValueError,
        RuntimeError,
        TypeError,
        AttributeError,
    )  # what h5py raises for damaged files

    def __init__(self, path: Path):
        import h5py

        self.path = path
        self._tensors: dict[str, np.ndarray] = {}
        try:
            with h5py.File(path) as file:
                root = file["model_weights"] if "model_weights" in file else file
                for layer in root.attrs["layer_names"]:
                    name = layer.decode() if isinstance(layer, bytes) else str(layer)
                    for i, weight in enumerate(root[name].attrs["weight_names"]):
                        self._tensors[f"{name}/{i}"] = np.asarray(root[name][weight])
        except self._bad as error:
            raise CheckpointError(
                f"{path}: HDF5 weights are those of keras-bert's model, as legacy Keras writes them. Received: "
                f"{_one_line(error)}."
            ) from error

    def names(self, config: BertConfig, *parts: str) -> dict[str, list[str]]:
        names = super().names(config, *parts)
        return {layer: [f"{layer}/{i}" for i in range(len(tensors))] for layer, tensors in names.items()}

    def shape(self, name: str) -> Sequence[int] | None:
        value = self._tensors.get(name)
        return None if value is None else value.shape

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name].astype(np.float32)


def _open_source(init: Init) -> _Source:
    if init.kind == "google":
        return _Google(init.path)
    return _Hdf5(init.path) if init.kind == "hdf5" else _HuggingFace(init.path, init.config)


def _config_of(model: MaskedLM | BertEncoder) -> BertConfig:
    return model.encoder.config if isinstance(model, MaskedLM) else model.config


def _layer(model: MaskedLM | BertEncoder, name: str) -> keras.layers.Layer:
    """A layer of the model or of the encoder in it."""
    owner = model.encoder if isinstance(model, MaskedLM) and name not in HEAD_LAYERS else model
    return owner.get_layer(name)


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


def _compare(model: MaskedLM | BertEncoder, source: _Source, parts: Sequence[str], what: str) -> int:
    """Refuses a checkpoint that lacks a tensor of the model or has it in another shape; returns their number."""
    wrong = []
    expected = 0
    for layer, tensors in source.names(_config_of(model), *parts).items():
        for weight, name in zip(_layer(model, layer).weights, tensors, strict=True):
            expected += 1
            shape = source.shape(name)
            if shape is None:
                wrong.append(f"{name} is missing")
            elif tuple(shape) != tuple(weight.shape):
                wrong.append(f"{name} is {tuple(shape)}, wanted {tuple(weight.shape)}")
    if wrong:
        raise CheckpointError(
            f"{source.path}: a checkpoint must hold all {expected} tensors of {what}. Received: {len(wrong)} that do "
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
    with replaced(path, held=True) as temporary:
        _check_room(temporary, sum(4 * math.prod(weight.shape) + _HDF5_OVERHEAD for weight in model.weights))
        model.save_weights(temporary)
        with temporary.open("r+b") as file:
            checksum = _crc32(file, temporary.stat().st_size)
            file.write(_SUM_MARK + checksum.to_bytes(4, "little"))


def _check_room(path: Path, num_bytes: int) -> None:
    """Raises OSError where the disk has no room; HDF5 finds out by a crash of the process."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    path.unlink()


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
