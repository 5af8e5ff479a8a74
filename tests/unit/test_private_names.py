"""What the product uses of TensorFlow and Keras beyond their documented names: a release that changes it fails here."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbert.model.layers import _GivenSeed
from tfbert.strategy import make_strategy

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("aggregation", ["NONE", "ONLY_FIRST_REPLICA"])
def test_the_handle_of_a_mirrored_variable_is_that_of_the_replica_it_is_asked_on(
    aggregation: str, compiled: bool
) -> None:
    """So raw kernels update each replica's own copy."""
    strategy = make_strategy("cpu:3")
    with strategy.scope():
        variable = tf.Variable(10.0, aggregation=tf.VariableAggregation[aggregation])
        weight = keras.Variable([1.0, 1.0])

    def step() -> tf.Tensor:
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=replica)
        tf.raw_ops.ResourceApplyGradientDescent(var=weight.value.handle, alpha=1.0, delta=tf.fill((2,), replica))
        return variable + 0.0

    def run() -> object:
        return strategy.run(step)

    results = (tf.function(run) if compiled else run)()
    assert [float(r) for r in strategy.experimental_local_results(results)] == [10, 11, 12]
    assert [float(copy) for copy in strategy.experimental_local_results(variable)] == [10, 11, 12]
    copies = strategy.experimental_local_results(weight.value)
    np.testing.assert_array_equal([copy.numpy() for copy in copies], [[1, 1], [0, 0], [-1, -1]])


def test_keras_tells_whose_scope_a_variable_belongs_to() -> None:
    one, two = make_strategy("cpu:2"), make_strategy("cpu:2")
    with one.scope():
        inside = keras.Variable(1.0)
    for variable, strategy, expected in (
        (inside, one, True),
        (inside, two, False),
        (keras.Variable(1.0), one, False),
    ):
        assert strategy.extended.variable_created_in_scope(variable.value) == expected


def test_a_generator_that_hands_out_a_seed_decides_the_masks_of_keras() -> None:
    seed, x = tf.constant([3, 4]), tf.ones((5, 7))
    expected = tf.nn.experimental.stateless_dropout(x, 0.4, seed)
    np.testing.assert_array_equal(keras.random.dropout(x, 0.4, seed=_GivenSeed(seed)), expected)
    compiled = tf.function(lambda seed: keras.random.dropout(x, 0.4, seed=_GivenSeed(seed)))
    np.testing.assert_array_equal(compiled(seed), expected)
    assert (compiled(seed + 1).numpy() != expected.numpy()).any()


def test_values_are_laid_on_the_replicas_in_order() -> None:
    strategy = make_strategy("cpu:4")
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    assert [int(v) for v in strategy.experimental_local_results(values)] == [0, 1, 2, 3]
    assert len(strategy.extended.worker_devices) == 4
    assert all("CPU" in device for device in strategy.extended.worker_devices)


def test_a_sum_over_replicas_is_the_same_on_each_and_takes_lists_and_float64() -> None:
    strategy = make_strategy("cpu:3")

    def step() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.float32)
        values = [replica, tf.fill((2,), tf.cast(replica, tf.float64))]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)  # type: ignore[no-any-return]

    single, vector = strategy.run(step)
    assert [float(v) for v in strategy.experimental_local_results(single)] == [3, 3, 3]
    np.testing.assert_array_equal(
        [v.numpy() for v in strategy.experimental_local_results(vector)], np.full((3, 2), 3.0)
    )
