"""Dropout: a function of (seed, layer, step, replica) in training, absent in prediction."""

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from tiny_training import CONFIG, inputs_of, make_model

from tfbert.model.layers import layer_seed, stateless_dropout

pytestmark = pytest.mark.usefixtures("logical_cpus")


def mask(seed: tuple[int, int], layer: int) -> npt.NDArray[np.bool_]:
    x = stateless_dropout(tf.ones(400), 0.5, layer_seed(tf.constant(seed), layer))
    return x.numpy() > 0  # type: ignore[no-any-return]


def test_a_mask_is_a_function_of_draw_seed_and_layer() -> None:
    base = mask((1, 5), 1)
    assert 100 < base.sum() < 300
    np.testing.assert_array_equal(base, mask((1, 5), 1))
    for other in (((2, 5), 1), ((1, 6), 1), ((1, 5), 2), ((1, 5), 2000)):
        agreement = (base == mask(*other)).mean()
        assert 0.35 < agreement < 0.65, other


def test_kept_values_are_scaled_and_rate_zero_keeps_all() -> None:
    kept = stateless_dropout(tf.ones(400), 0.25, tf.constant([1, 1])).numpy()
    assert set(np.unique(kept)) <= {np.float32(0), np.float32(4 / 3)}
    assert kept.mean() == pytest.approx(1, abs=0.15)
    x = tf.ones(4)
    assert stateless_dropout(x, 0.0, tf.constant([1, 1])) is x


def test_all_dropouts_of_a_model_draw_different_masks() -> None:
    """Encoder layers and the head: no two seeds are equal, and none overflows."""
    seeds = {tuple(layer_seed(tf.constant([3, 7]), n).numpy().tolist()) for n in [*range(1, 100), 2000]}
    assert len(seeds) == 100
    assert all(0 < value < 2**31 for _, value in seeds)


def test_training_uses_the_seed_and_prediction_has_no_dropout() -> None:
    """Case 079: two predictions are bit-equal."""
    _, model = make_model(config=CONFIG, head_dropout=0.5)
    inputs = inputs_of([[2, 7, 8, 9, 3], [2, 10, 3], [2, 3]])

    def run(**settings: object) -> npt.NDArray[np.float32]:
        result: npt.NDArray[np.float32] = keras.ops.convert_to_numpy(model(inputs, **settings))
        return result

    np.testing.assert_array_equal(run(), run())
    np.testing.assert_array_equal(run(), run(training=False, seed=tf.constant([1, 2])))
    seeded = run(training=True, seed=tf.constant([1, 2]))
    np.testing.assert_array_equal(seeded, run(training=True, seed=tf.constant([1, 2])))
    assert (seeded != run(training=True, seed=tf.constant([2, 2]))).any()
    assert (seeded != run()).any()


def test_without_a_seed_every_call_draws_anew_also_in_a_compiled_function() -> None:
    _, model = make_model(config=CONFIG, head_dropout=0.5)
    compiled = tf.function(lambda inputs: model(inputs, training=True), reduce_retracing=True)
    one, two = inputs_of([[2, 7, 8, 9, 3]]), inputs_of([[2, 7, 8, 9, 3]] * 2)
    first, second = compiled(one).numpy(), compiled(one).numpy()
    assert (first != second).any()
    assert np.isfinite(compiled(two).numpy()).all()
