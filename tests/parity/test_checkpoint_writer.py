"""What is written as a checkpoint is what others read: keras-bert in a process of its own, and by name Hugging Face."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tfbert.errors import CheckpointError
from tfbert.model.checkpoint import Init, find_init, load_encoder, load_masked_lm
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.mlm import MaskedLM
from tfbert.training.exports import export

pytestmark = pytest.mark.usefixtures("logical_cpus")
SIZES: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_act": "relu",  # keras-bert's gelu is the one by tanh
}
CONFIG = BertConfig(**SIZES)
PRE_LN = BertConfig(**SIZES, encoder_ln_mode="pre-ln")
ORACLE = """
import sys
import numpy as np
import keras_bert
from tensorflow import keras
folder, inputs, outputs = sys.argv[1:]
files = f"{folder}/bert_config.json", f"{folder}/bert_model.ckpt"
model = keras_bert.load_trained_model_from_checkpoint(*files, training=True, seq_len=None)
wanted = [model.get_layer(name).output for name in ("Encoder-2-FeedForward-Norm", "NSP-Dense", "MLM-Sim", "NSP")]
model = keras.models.Model(model.inputs[:2], wanted)
batch = np.load(inputs)
values = model.predict_on_batch([batch["token_ids"], batch["segment_ids"]])
np.savez(outputs, **dict(zip(("tokens", "pooled", "masked", "pairs"), values)))
whole = keras_bert.load_trained_model_from_checkpoint(*files, training=True, seq_len=None)
whole.save_weights(f"{folder}/keras_bert.h5")
"""


def make(config: BertConfig = CONFIG, **settings: Any) -> MaskedLM:
    """Random weights everywhere, biases and norms too."""
    model = MaskedLM(config, **{"pooler": True} | settings)
    draw = np.random.default_rng(3)
    model.set_weights([draw.normal(0.0, 0.4, w.shape) for w in model.weights])
    return model


def batch() -> dict[str, npt.NDArray[np.int32]]:
    draw = np.random.default_rng(0)
    mask = (np.arange(9) < np.array([[9], [4], [1]])).astype(np.int32)
    token_ids = draw.integers(1, 30, mask.shape).astype(np.int32) * mask
    return {
        "token_ids": token_ids,
        "segment_ids": draw.integers(0, 2, mask.shape).astype(np.int32) * mask,
        "padding_mask": mask,
    }


def values(tensor: Any) -> npt.NDArray[np.float32]:
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def test_keras_bert_loads_the_google_checkpoint(tmp_path: Path) -> None:
    """Encoder, pooler and both heads give its numbers."""
    model = make(pair_head=True)
    assert export(tmp_path / "a b", model, None, None)
    np.savez(tmp_path / "in.npz", **batch())  # type: ignore[arg-type]
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", ORACLE, *(str(tmp_path / name) for name in ("a b", "in.npz", "out.npz"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "No module named 'tf_keras'" in done.stderr:
        pytest.skip("tf-keras is not installed")
    assert done.returncode == 0, done.stderr
    theirs = dict(np.load(tmp_path / "out.npz"))
    hidden = model.encoder(batch())
    real = batch()["padding_mask"] > 0
    np.testing.assert_allclose(values(hidden)[real], theirs["tokens"][real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(values(model.encoder.pooler(hidden[:, 0])), theirs["pooled"], rtol=0, atol=1e-5)
    masked = values(keras.ops.softmax(model(batch()))).reshape(3, 9, 30)
    np.testing.assert_allclose(masked[real], theirs["masked"][real], rtol=0, atol=1e-5)
    pairs = values(keras.ops.softmax(model.pair_logits(hidden)))
    np.testing.assert_allclose(pairs, theirs["pairs"], rtol=0, atol=1e-5)
    # the weights that its model writes as HDF5 are read again
    init = find_init(tmp_path / "a b/keras_bert.h5")
    assert (init.kind, init.config) == ("hdf5", CONFIG)
    again = MaskedLM(init.config, pooler=True, pair_head=True)
    assert load_masked_lm(again, init) == len(model.weights)
    for before, after in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(values(before), values(after), before.path)
    encoder = BertEncoder(init.config)
    assert load_encoder(encoder, init) == len(encoder.weights)
    with pytest.raises(
        CheckpointError, match=r"all 53 tensors of the encoder\. Received: 16 that do not fit: Encoder-3-"
    ):
        load_encoder(BertEncoder(BertConfig(**SIZES | {"num_hidden_layers": 3})), init)
    init.path.write_bytes(init.path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="HDF5 weights are those of keras-bert's model"):
        load_encoder(BertEncoder(init.config), init)


def huggingface_names(layers: int) -> set[str]:
    """`BertForPreTraining.state_dict()` without the decoder, which is tied and not saved (transformers 5)."""
    embeddings = ["word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"]
    names = {f"bert.embeddings.{name}" for name in [*embeddings, "LayerNorm.weight", "LayerNorm.bias"]}
    dense = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    dense += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
    names |= {f"bert.encoder.layer.{i}.{d}.{part}" for i in range(layers) for d in dense for part in ("weight", "bias")}
    heads = ["bert.pooler.dense", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"]
    names |= {f"{d}.{part}" for d in [*heads, "cls.seq_relationship"] for part in ("weight", "bias")}
    return names | {"cls.predictions.bias"}


def test_names_and_shapes_are_those_of_hugging_face(tmp_path: Path) -> None:
    model = make(pair_head=True)
    vocab = tmp_path / "v.txt"
    vocab.write_text("[PAD]\n", encoding="utf-8")
    export(tmp_path / "out", model, vocab, cased=False)
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert set(tensors) == huggingface_names(2)
    assert tensors["bert.encoder.layer.1.intermediate.dense.weight"].shape == (12, 8)
    assert tensors["cls.seq_relationship.weight"].shape == (2, 8)
    assert tensors["bert.embeddings.word_embeddings.weight"].shape == (30, 8)
    np.testing.assert_array_equal(
        tensors["bert.encoder.layer.1.output.dense.weight"].T, values(model.encoder.feed_forwards[1].W2)
    )
    with safe_open(tmp_path / "out/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["model_type"] == "bert"
    assert {name: config[name] for name in SIZES} == SIZES
    tokenizer = json.loads((tmp_path / "out/tokenizer_config.json").read_text(encoding="utf-8"))
    assert tokenizer == {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 16}
    assert (tmp_path / "out/vocab.txt").read_bytes() == b"[PAD]\n"


@pytest.mark.parametrize("form", ["google", "huggingface"])
@pytest.mark.parametrize("config", [CONFIG, PRE_LN], ids=["post-ln", "pre-ln"])
@pytest.mark.parametrize("pair_head", [False, True])
def test_what_was_written_is_read_again(tmp_path: Path, form: str, config: BertConfig, pair_head: bool) -> None:
    model = make(config, pair_head=pair_head)
    export(tmp_path / "out", model, None, None)
    init = find_init(tmp_path / "out")
    assert (init.kind, init.config) == ("huggingface", config)
    if form == "google":
        init = find_init(tmp_path / "out/bert_model.ckpt")
        assert (init.kind, init.config) == ("google", config)
    again = MaskedLM(init.config, pooler=True, pair_head=pair_head)
    assert load_masked_lm(again, init) == len(model.weights)
    for before, after in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(values(before), values(after), before.path)
    encoder = BertEncoder(init.config, pooler=True)
    assert load_encoder(encoder, init) == len(encoder.weights)
    np.testing.assert_array_equal(values(encoder(batch())), values(model.encoder(batch())))


def test_heads_that_a_checkpoint_lacks_stay_as_they_are(tmp_path: Path) -> None:
    """Pretraining goes on with pairs from a model that learned none; one with a pooler from one without."""
    export(tmp_path / "plain", make(pooler=False), None, None)
    init = find_init(tmp_path / "plain")
    model = make(pair_head=True)
    before = {layer: model.get_layer(layer).get_weights() for layer in ("NSP", "MLM-Sim")}
    assert load_masked_lm(model, init) == len(model.weights) - 4
    np.testing.assert_array_equal(before["NSP"][0], values(model.nsp.kernel))


@pytest.mark.parametrize("form", ["", "bert_model.ckpt"])
def test_a_pre_ln_model_is_never_taken_for_another(tmp_path: Path, form: str) -> None:
    """A reader that knows nothing of the mode finds no tensors, in place of wrong numbers."""
    export(tmp_path / "out", make(PRE_LN), None, None)
    assert json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))["model_type"] != "bert"
    init = find_init(tmp_path / "out" / form)
    with pytest.raises(CheckpointError, match="37 that do not fit"):
        load_encoder(BertEncoder(CONFIG), Init(init.kind, init.path, CONFIG, None))


def test_pre_ln_is_the_formula(tmp_path: Path) -> None:
    """x + f(norm(x)) for both halves of a layer, and a norm behind the last: with the layers' own functions."""
    model = make(PRE_LN).encoder
    inputs = {name: array[:1] for name, array in batch().items()}
    x = model.token(inputs["token_ids"]) + model.segment(inputs["segment_ids"]) + model.position.first(9)
    x = model.embedding_norm(keras.ops.reshape(x, (-1, 8)))
    bias = np.zeros((1, 1, 1, 9), np.float32)
    for i in range(2):
        x = x + model.attentions[i](model.attention_norms[i](x), bias, length=9)
        x = x + model.feed_forwards[i](model.feed_forward_norms[i](x))
    np.testing.assert_allclose(values(model(inputs))[0], values(model.final_norm(x)), rtol=0, atol=1e-5)


def test_an_export_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that is there is not written again; one that fails leaves nothing."""
    from tfbert.model import checkpoint_writer

    folder = tmp_path / "exports/0.5"
    assert export(folder, make(), None, None)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert not export(folder, make(), None, None)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_writer, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        export(tmp_path / "exports/0.6", make(), None, None)
    assert [path.name for path in (tmp_path / "exports").iterdir()] == ["0.5"]
    (tmp_path / "exports/writing-0.7").mkdir()
    (tmp_path / "exports/writing-0.7/model.safetensors").write_bytes(b"half")
    monkeypatch.undo()
    assert export(tmp_path / "exports/0.7", make(), None, None)
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == ["0.5", "0.7"]
