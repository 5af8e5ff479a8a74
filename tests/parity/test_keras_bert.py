"""A Google checkpoint gives the numbers that keras-bert's own model gives, on legacy Keras in a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tfbert.errors import CheckpointError, ConfigError
from tfbert.model.checkpoint import find_init, load_encoder, load_masked_lm
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder
from tfbert.model.mlm import MaskedLM

pytestmark = pytest.mark.usefixtures("logical_cpus")
PREFIX = "bert_model.ckpt"
ORACLE = """
import sys
import numpy as np
import keras_bert
from tensorflow import keras
folder, inputs, outputs = sys.argv[1:]
model = keras_bert.load_trained_model_from_checkpoint(
    f"{folder}/bert_config.json", f"{folder}/bert_model.ckpt", training=True, seq_len=None
)
last = max(layer.name for layer in model.layers if layer.name.endswith("-FeedForward-Norm"))
wanted = [model.get_layer(name).output for name in (last, "NSP-Dense", "MLM-Sim")]
model = keras.models.Model(model.inputs[:2], wanted)
results = {}
batches = np.load(inputs)
for name in sorted({key.rpartition("/")[0] for key in batches}):
    outputs_of = model.predict_on_batch([batches[f"{name}/token_ids"], batches[f"{name}/segment_ids"]])
    results |= {f"{name}/{key}": value for key, value in zip(("tokens", "pooled", "masked"), outputs_of)}
np.savez(outputs, **results)
"""


@pytest.fixture(scope="module")
def checkpoint(shared_data: Path) -> Path:
    return shared_data / "checkpoints/keras_bert_tiny"


def batches() -> dict[str, dict[str, npt.NDArray[np.int32]]]:
    """Rows of several lengths; real tokens are never 0, which keras-bert takes for padding."""
    draw = np.random.default_rng(0)
    result = {}
    for name, lengths in {"one": [5], "padded": [2, 9, 16, 1], "short": [3, 4, 2], "full": [16, 16]}.items():
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
        token_ids = draw.integers(1, 15, mask.shape).astype(np.int32) * mask
        segment_ids = draw.integers(0, 2, mask.shape).astype(np.int32) * mask
        result[name] = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask}
    return result


@pytest.fixture(scope="module")
def oracle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[np.float32]]:
    """What keras-bert's model gives for the batches."""
    folder = tmp_path_factory.mktemp("oracle")
    arrays = {f"{name}/{key}": value for name, batch in batches().items() for key, value in batch.items()}
    np.savez(folder / "in.npz", **arrays)
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", ORACLE, str(checkpoint), str(folder / "in.npz"), str(folder / "out.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "No module named 'tf_keras'" in done.stderr:
        pytest.skip("tf-keras is not installed")
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("form", ["", PREFIX, f"{PREFIX}.index", f"{PREFIX}.data-00000-of-00001"])
def test_outputs_equal_keras_bert(checkpoint: Path, oracle: dict[str, Any], form: str) -> None:
    """Case 077: folder, prefix and index file; every tensor of the encoder is counted."""
    init = find_init(checkpoint / form)
    assert (init.kind, init.path, init.vocab) == ("google", checkpoint / PREFIX, checkpoint / "vocab.txt")
    encoder = BertEncoder(init.config, pooler=True)
    assert load_encoder(encoder, init) == len(encoder.weights) == 39
    for name, batch in batches().items():
        tokens = encoder(batch)
        ours = keras.ops.convert_to_numpy(tokens)
        real = batch["padding_mask"] > 0
        np.testing.assert_allclose(ours[real], oracle[f"{name}/tokens"][real], rtol=0, atol=1e-5)
        pooled = keras.ops.convert_to_numpy(encoder.pooler(tokens[:, 0]))
        np.testing.assert_allclose(pooled, oracle[f"{name}/pooled"], rtol=0, atol=1e-5)


def test_masked_tokens_equal_keras_bert(checkpoint: Path, oracle: dict[str, Any]) -> None:
    """Probabilities of every token, at all positions and at chosen ones."""
    init = find_init(checkpoint)
    model = MaskedLM(init.config)
    assert load_masked_lm(model, init) == len(model.weights) == 42
    for name, batch in batches().items():
        real = np.flatnonzero(batch["padding_mask"])
        expected = oracle[f"{name}/masked"].reshape(-1, init.config.vocab_size)
        hidden = model.encoder(batch)
        for logits, rows in ((model(batch), slice(None)), (model.mlm_logits(hidden, real[::-1]), real[::-1])):
            ours = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
            keep = real if isinstance(rows, slice) else slice(None)
            np.testing.assert_allclose(ours[keep], expected[rows][keep], rtol=0, atol=1e-5)


def test_a_checkpoint_without_the_head_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """The wwm releases have none: the encoder loads, the masked language model does not, and stays as it was."""
    head = tuple(f"cls/predictions/{name}" for name in ("output_bias", "transform/LayerNorm/beta"))
    init = find_init(rewrite(checkpoint, tmp_path, leave_out=head))
    model = MaskedLM(init.config)
    before = model.get_weights()
    with pytest.raises(
        CheckpointError,
        match="all 5 tensors of the masked-language-model head. Received: 2 .*: "
        "cls/predictions/transform/LayerNorm/beta is missing; cls/predictions/output_bias is missing",
    ):
        load_masked_lm(model, init)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert load_encoder(model.encoder, init) == 37


def test_an_encoder_without_a_pooler_needs_none(checkpoint: Path, tmp_path: Path) -> None:
    folder = rewrite(checkpoint, tmp_path, leave_out=("bert/pooler/dense/kernel", "bert/pooler/dense/bias"))
    init = find_init(folder)
    assert load_encoder(BertEncoder(init.config), init) == 37
    with pytest.raises(CheckpointError, match="all 39 tensors .* 2 that do not fit: bert/pooler/dense/kernel is miss"):
        load_encoder(BertEncoder(init.config, pooler=True), init)


def test_loading_works_under_two_replicas(checkpoint: Path) -> None:
    from tfbert.strategy import make_strategy

    init = find_init(checkpoint)
    strategy = make_strategy("cpu:2")
    with strategy.scope():
        encoder = BertEncoder(init.config)
        load_encoder(encoder, init)
    expected = tf.train.load_variable(str(init.path), "bert/embeddings/word_embeddings")
    for copy in strategy.experimental_local_results(encoder.token.embeddings.value):
        np.testing.assert_array_equal(copy.numpy(), expected)


# ------------------------------------------------------------------------------------------ checkpoints that are wrong


def rewrite(
    source: Path,
    folder: Path,
    leave_out: tuple[str, ...] = (),
    rename: tuple[str, str] = ("", ""),
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """A copy of a checkpoint without some tensors, under other names, or with other shapes."""
    prefix = str(source / PREFIX)
    tensors = {
        name.replace(*rename) if rename[0] else name: tf.constant(tf.train.load_variable(prefix, name))
        for name, _ in tf.train.list_variables(prefix)
        if name not in leave_out
    }
    for name, shape in (shapes or {}).items():
        tensors[name] = tf.zeros(shape)
    folder.mkdir(exist_ok=True)
    tf.raw_ops.SaveV2(
        prefix=str(folder / PREFIX),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    shutil.copy(source / "bert_config.json", folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"leave_out": ("bert/encoder/layer_1/output/dense/bias",)},
            "1 that do not fit: bert/encoder/layer_1/output/dense/bias is missing",
        ),
        (
            {"rename": ("bert/", "module/bert/")},
            "37 that do not fit: bert/embeddings/word_embeddings is missing; "
            "bert/embeddings/token_type_embeddings is missing; bert/embeddings/position_embeddings is missing. Does",
        ),
        (
            {"shapes": {"bert/embeddings/word_embeddings": (14, 4)}},
            r"1 that do not fit: bert/embeddings/word_embeddings is \(14, 4\), wanted \(15, 4\)",
        ),
        (
            {"shapes": {"bert/encoder/layer_0/intermediate/dense/kernel": (16, 4)}},
            r"layer_0/intermediate/dense/kernel is \(16, 4\), wanted \(4, 16\)",
        ),
    ],
)
def test_a_partial_checkpoint_is_refused_with_the_first_tensors(
    checkpoint: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Case 069: nothing is loaded then."""
    init = find_init(rewrite(checkpoint, tmp_path, **change))
    encoder = BertEncoder(init.config)
    before = encoder.get_weights()
    with pytest.raises(CheckpointError, match=f"must hold all 37 tensors of the encoder. Received: .*{message}"):
        load_encoder(encoder, init)
    for old, new in zip(before, encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, "16 that do not fit: bert/encoder/layer_2/attention/self/query/kernel is missing"),
        ({"max_position_embeddings": 8}, r"position_embeddings is \(16, 4\), wanted \(8, 4\)"),
        ({"vocab_size": 20}, r"word_embeddings is \(15, 4\), wanted \(20, 4\)"),
    ],
)
def test_a_config_of_another_model_is_refused(
    checkpoint: Path, tmp_path: Path, change: dict[str, int], message: str
) -> None:
    folder = rewrite(checkpoint, tmp_path)
    config = BertConfig.from_dict(BertConfig.load(folder / "bert_config.json").to_dict() | change)
    (folder / "bert_config.json").write_text(config.dump(), encoding="utf-8")
    init = find_init(folder)
    with pytest.raises(CheckpointError, match=message):
        load_encoder(BertEncoder(init.config), init)


def test_an_index_without_its_data_is_refused(shared_data: Path, tmp_path: Path) -> None:
    shutil.copy(shared_data / f"checkpoints/bert_base_uncased_index/{PREFIX}.index", tmp_path)
    with pytest.raises(CheckpointError, match=r"a checkpoint needs its config. Received: no bert_config\.json or con"):
        find_init(tmp_path)
    shutil.copy(shared_data / "vocab/bert-base-uncased/bert_config.json", tmp_path)
    for form in ("", PREFIX, f"{PREFIX}.index"):
        with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.index: a checkpoint needs its \.data file"):
            find_init(tmp_path / form)


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_cut_checkpoint_is_named(checkpoint: Path, tmp_path: Path, part: str, keep: float) -> None:
    """Case 072."""
    folder = rewrite(checkpoint, tmp_path)
    path = folder / f"{PREFIX}.{part}"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    init = find_init(folder)
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt: the checkpoint cannot be read"):
        load_encoder(BertEncoder(init.config), init)


def test_the_released_checkpoint_is_chosen_among_several(checkpoint: Path, tmp_path: Path) -> None:
    """Also in a folder whose name holds blanks and quotes."""
    folder = rewrite(checkpoint, tmp_path / "it's a b")
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"{PREFIX}.{suffix}", folder / f"a-1000.{suffix}")
    assert find_init(folder).path.name == PREFIX
    assert find_init(folder / "a-1000").path.name == "a-1000"
    init = find_init(folder)
    assert load_encoder(BertEncoder(init.config), init) == 37


def test_a_damaged_config_is_named(checkpoint: Path, tmp_path: Path) -> None:
    folder = rewrite(checkpoint, tmp_path)
    (folder / "bert_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bert_config\.json: a BERT config is a JSON file"):
        find_init(folder)
