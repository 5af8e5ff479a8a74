"""Logits: independent of the padding, finite for every row, float32 under every precision."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from tiny_training import CONFIG, NO_DROPOUT, inputs_of, make_model

from tfbert.errors import ConfigError
from tfbert.model.heads import HEADS, Classifier, masked_max, masked_mean

pytestmark = pytest.mark.usefixtures("logical_cpus")
SHORT, LONG = [2, 7, 8, 3], [2, *range(10, 30), 3]


def logits(model: Any, rows: list[list[int]], length: int | None = None) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = keras.ops.convert_to_numpy(model(inputs_of(rows, length)))
    return result


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 1e-2), ("mixed_float16", 3e-3)])
def test_the_same_text_has_the_same_logits_whatever_it_is_padded_with(head: str, dtype: str, tolerance: float) -> None:
    """Case 074: alone, padded to 16 and beside a long text; weights large enough for logits of order 1."""
    _, model = make_model(head=head, dtype=dtype)
    draw = np.random.default_rng(3)
    model.set_weights([w + 0.3 * draw.standard_normal(w.shape) for w in model.get_weights()])
    alone = logits(model, [SHORT])
    assert np.abs(alone).max() > 0.1
    for other in (logits(model, [SHORT], 16), logits(model, [SHORT], 32), logits(model, [LONG, SHORT])[1:]):
        np.testing.assert_allclose(other, alone, rtol=0, atol=tolerance)
    assert np.abs(logits(model, [LONG]) - alone).max() > 2 * tolerance


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_rows_without_text_have_finite_float32_logits(head: str, dtype: str) -> None:
    """Only [CLS] [SEP], only [CLS], and no token at all; case 086 for the dtype."""
    _, model = make_model(head=head, dtype=dtype)
    inputs = inputs_of([[2, 3], [2], [2]], 6)
    inputs["padding_mask"][2] = 0
    result = model(inputs)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    assert np.isfinite(keras.ops.convert_to_numpy(result)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_pooling_looks_at_tokens_only(dtype: str) -> None:
    x = keras.ops.cast([[[-5.0, 1.0], [-3.0, 3.0], [9.0, 9.0]], [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]], dtype)
    mask = np.array([[1, 1, 0], [0, 0, 0]], np.int32)
    np.testing.assert_array_equal(masked_mean(x, mask), [[-4, 2], [0, 0]])
    np.testing.assert_array_equal(masked_max(x, mask), [[-3, 3], [0, 0]])


def test_the_pool_head_leaves_out_the_first_token() -> None:
    """With an encoder that only looks up tokens, another first token changes the mean head alone."""
    for head, changes in (("pool", False), ("mean", True)):
        config = NO_DROPOUT.from_dict(NO_DROPOUT.to_dict() | {"num_hidden_layers": 0})
        _, model = make_model(config=config, head=head)
        rows = logits(model, [[2, 7, 3], [4, 7, 3]])
        assert (np.abs(rows[0] - rows[1]).max() > 0) == changes


def test_segments_count() -> None:
    _, model = make_model()
    inputs = inputs_of([SHORT])
    other = inputs | {"segment_ids": 1 - inputs["segment_ids"]}
    assert np.abs(keras.ops.convert_to_numpy(model(inputs) - model(other))).max() > 1e-5


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "silu", "tanh"])
def test_every_activation_runs(act: str) -> None:
    config = NO_DROPOUT.from_dict(NO_DROPOUT.to_dict() | {"hidden_act": act})
    assert np.isfinite(logits(make_model(config=config)[1], [SHORT])).all()


def test_rows_longer_than_the_positions_are_refused() -> None:
    """Case 075."""
    _, model = make_model()
    with pytest.raises(ValueError, match=r"at most max_position_embeddings \(32\) tokens long. Received: 33 tokens"):
        model(inputs_of([[5] * 33]))
    assert logits(model, [[5] * 32]).shape == (1, 3)


def test_an_unknown_head_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="A head is one of pool, cls, mean. Received: 'max'"):
        Classifier(CONFIG, 2, head="max")


def test_probabilities_of_two_classes_sum_to_one() -> None:
    """Case 076."""
    _, model = make_model(num_outputs=2)
    shares = keras.ops.convert_to_numpy(keras.ops.softmax(model(inputs_of([SHORT, LONG]))))
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)


def test_variables_are_made_at_once_and_carry_the_names_of_keras_bert() -> None:
    """Case 069: there is no unbuilt model to load weights into."""
    _, model = make_model(head="cls")
    names = [layer.name for layer in model.encoder.layers]
    assert names == [
        "Embedding-Token",
        "Embedding-Segment",
        "Embedding-Position",
        "Embedding-Norm",
        "Encoder-1-MultiHeadSelfAttention",
        "Encoder-1-MultiHeadSelfAttention-Norm",
        "Encoder-1-FeedForward",
        "Encoder-1-FeedForward-Norm",
        "NSP-Dense",
    ]
    attention, feed_forward = (model.encoder.get_layer(names[i]) for i in (4, 6))
    assert [w.name for w in attention.weights] == ["Wq", "bq", "Wk", "bk", "Wv", "bv", "Wo", "bo"]
    assert [w.name for w in feed_forward.weights] == ["W1", "b1", "W2", "b2"]
