"""Optimizers against NumPy, loss scaling, learning rates at their edges."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tfbert.choices import SCHEDULES
from tfbert.errors import ConfigError
from tfbert.optim import Optimizer, decays, layer_factors, make_optimizer, schedule

pytestmark = pytest.mark.usefixtures("logical_cpus")
Array = npt.NDArray[np.float64]
SHAPES = {"kernel": (3, 2), "bias": (2,), "gamma": (3,), "embeddings": (4, 3)}


def start() -> dict[str, Array]:
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape) for name, shape in SHAPES.items()}


def gradients(step: int) -> dict[str, Array]:
    draw = np.random.default_rng(100 + step)
    return {name: draw.standard_normal(shape) for name, shape in SHAPES.items()}


def clipped(values: dict[str, Array], norm: float | None) -> dict[str, Array]:
    size = math.sqrt(sum(float((g**2).sum()) for g in values.values()))
    return values if norm is None else {name: g * min(1, norm / size) for name, g in values.items()}


def reference_adamw(steps: int, rate: float, decay: float, norm: float | None) -> dict[str, Array]:
    """Loshchilov & Hutter, algorithm 2, with the epsilon outside of the bias correction as in TensorFlow."""
    weights = start()
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for t in range(1, steps + 1):
        for name, g in clipped(gradients(t), norm).items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            size = rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            matrix = weights[name].ndim == 2
            weights[name] = (
                weights[name]
                - (rate * decay * weights[name] if matrix else 0)
                - size * first[name] / (np.sqrt(second[name]) + 1e-6)
            )
    return weights


def reference_lamb(steps: int, rate: float, decay: float, norm: float | None) -> dict[str, Array]:
    """You et al. 2020, algorithm 2, phi(z) = z; biases and norms take the step of Adam."""
    weights = start()
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for t in range(1, steps + 1):
        for name, g in clipped(gradients(t), norm).items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            r = first[name] / (1 - 0.9**t) / (np.sqrt(second[name] / (1 - 0.999**t)) + 1e-6)
            if weights[name].ndim == 2:
                r = r + decay * weights[name]
                r = r * np.linalg.norm(weights[name]) / np.linalg.norm(r)
            weights[name] = weights[name] - rate * r
    return weights


def reference_sgd(steps: int, rate: float, decay: float, norm: float | None) -> dict[str, Array]:
    weights = start()
    for t in range(1, steps + 1):
        for name, g in clipped(gradients(t), norm).items():
            weights[name] = weights[name] * (1 - rate * decay * (weights[name].ndim == 2)) - rate * g
    return weights


def make(name: str = "sgd", **settings: Any) -> tuple[list[tf.Variable], Optimizer]:
    variables = [tf.Variable(value, dtype=tf.float32, name=name) for name, value in start().items()]
    return variables, make_optimizer(name, variables, **settings)


def tensors(values: dict[str, Array], scale: float = 1.0) -> list[tf.Tensor]:
    return [tf.constant(g * scale, tf.float32) for g in values.values()]


def rate_of(value: float) -> tf.Tensor:
    return tf.constant(value, tf.float32)


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
@pytest.mark.parametrize(("decay", "norm"), [(0.0, None), (0.1, None), (0.1, 0.5), (0.0, 1e6)])
@pytest.mark.parametrize("compiled", [False, True])
def test_updates_equal_numpy(name: str, decay: float, norm: float | None, compiled: bool) -> None:
    variables, optimizer = make(name, weight_decay=decay, clip_norm=norm)
    apply = tf.function(optimizer.apply) if compiled else optimizer.apply
    for step in range(1, 6):
        size = apply(tensors(gradients(step)), rate_of(0.05))
        assert float(size) == pytest.approx(math.sqrt(sum((g**2).sum() for g in gradients(step).values())), rel=1e-5)
    reference = {"adamw": reference_adamw, "lamb": reference_lamb, "sgd": reference_sgd}[name](5, 0.05, decay, norm)
    for variable, expected in zip(variables, reference.values(), strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert int(optimizer.iterations) == 5


def test_decay_touches_kernels_and_embeddings_only() -> None:
    variables, optimizer = make("adamw", weight_decay=0.5)
    before = [variable.numpy() for variable in variables]
    optimizer.apply([tf.zeros(shape) for shape in SHAPES.values()], rate_of(0.1))
    for variable, old in zip(variables, before, strict=True):
        expected = old * 0.95 if old.ndim == 2 else old
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)
    assert [decays(variable) for variable in variables] == [True, False, False, True]


def test_lamb_moves_a_matrix_of_zeros_like_adam() -> None:
    """And does not move at all where there is neither gradient nor decay: norms of 0 give no ratio."""
    for gradient in (np.ones((3, 2)), np.zeros((3, 2))):
        variable = tf.Variable(tf.zeros((3, 2)))
        optimizer = make_optimizer("lamb", [variable], weight_decay=0.1)
        optimizer.apply([tf.constant(gradient, tf.float32)], rate_of(0.1))
        np.testing.assert_allclose(variable.numpy(), -0.1 * gradient, rtol=0, atol=1e-6)


def test_a_gradient_of_zero_has_no_direction() -> None:
    """Clipping divides by the norm."""
    variables, optimizer = make("sgd", clip_norm=1.0)
    before = [variable.numpy() for variable in variables]
    assert float(optimizer.apply([tf.zeros(shape) for shape in SHAPES.values()], rate_of(0.1))) == 0
    for variable, old in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_scaled_gradients_update_like_unscaled_ones(name: str) -> None:
    plain, optimizer = make(name, clip_norm=0.5)
    scaled, scaling = make(name, clip_norm=0.5, loss_scaling=True)
    assert float(scaling.scale_loss(rate_of(2.0))) == 2 * 2**15
    assert float(optimizer.scale_loss(rate_of(2.0))) == 2
    for step in range(3):
        norm = optimizer.apply(tensors(gradients(step)), rate_of(0.05))
        same = scaling.apply(tensors(gradients(step), 2**15), rate_of(0.05))
        assert float(norm) == pytest.approx(float(same), rel=1e-5)
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_that_overflowed_is_skipped_and_halves_the_scale(bad: float, compiled: bool) -> None:
    variables, optimizer = make("adamw", weight_decay=0.1, clip_norm=1.0, loss_scaling=True)
    apply = tf.function(optimizer.apply) if compiled else optimizer.apply
    apply(tensors(gradients(1), 2**15), rate_of(0.05))
    before = [v.numpy() for v in (*variables, *optimizer.first_moments, *optimizer.second_moments)]
    broken = tensors(gradients(2), 2**15)
    broken[1] = tf.constant([1.0, bad])
    assert not np.isfinite(float(apply(broken, rate_of(0.05))))
    for variable, old in zip((*variables, *optimizer.first_moments, *optimizer.second_moments), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)
    assert (int(optimizer.iterations), float(optimizer.loss_scale), int(optimizer.good_steps)) == (1, 2**14, 0)
    apply(tensors(gradients(2), 2**14), rate_of(0.05))
    assert (int(optimizer.iterations), float(optimizer.loss_scale), int(optimizer.good_steps)) == (2, 2**14, 1)


def test_the_scale_doubles_after_many_good_steps_and_keeps_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfbert.optim._GROW_AFTER", 3)
    _, optimizer = make("sgd", loss_scaling=True)
    scales = []
    for step in range(7):
        optimizer.apply(tensors(gradients(step)), rate_of(0.0))
        scales.append(float(optimizer.loss_scale) / 2**15)
    assert scales == [1, 1, 2, 2, 2, 4, 4]
    nothing = [tf.zeros(shape) for shape in SHAPES.values()]
    optimizer.loss_scale.assign(2.0**24)
    for _ in range(6):
        optimizer.apply(nothing, rate_of(0.0))
    assert float(optimizer.loss_scale) == 2**24
    optimizer.loss_scale.assign(1.0)
    optimizer.apply([tf.fill(shape, math.nan) for shape in SHAPES.values()], rate_of(0.0))
    assert float(optimizer.loss_scale) == 1


def test_an_unknown_optimizer_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="An optimizer is one of adamw, lamb, sgd. Received: 'adam'"):
        make_optimizer("adam", [])


# --------------------------------------------------------------------------------------------------- learning rates


@pytest.mark.parametrize(
    ("name", "warmup", "total", "expected"),
    [
        ("linear", 0, 4, [1, 3 / 4, 2 / 4, 1 / 4]),
        ("linear", 2, 6, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        ("linear", 1, 1, [1]),
        ("linear", 3, 3, [1 / 3, 2 / 3, 1]),
        ("linear", 0, 1, [1]),
        ("constant", 0, 3, [1, 1, 1]),
        ("constant", 2, 4, [1 / 2, 1, 1, 1]),
        ("cosine", 0, 4, [1, (1 + 0.5**0.5) / 2, 1 / 2, (1 - 0.5**0.5) / 2]),
        ("cosine", 2, 4, [1 / 2, 1, 1, 1 / 2]),
        ("polynomial", 1, 5, [1, 1, 3 / 4, 2 / 4, 1 / 4]),
    ],
)
def test_rates_of_all_steps(name: str, warmup: int, total: int, expected: list[float]) -> None:
    """Case 113: the first and the last step have a rate above 0; it never exceeds the peak."""
    rate = schedule(name, 2e-5, warmup, total)
    np.testing.assert_allclose([rate(step) / 2e-5 for step in range(total)], expected, rtol=1e-12)


@pytest.mark.parametrize("total", [0, 1, 2, 7])
@pytest.mark.parametrize("share", [0.0, 0.06, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_edge_divides_by_zero_or_goes_below_zero(name: str, share: float, total: int) -> None:
    """Case 113: shares that round to no step, to one or to all; no steps; steps behind the end."""
    rate = schedule(name, 1.0, int(share * total), total)
    values = [rate(step) for step in range(total + 3)]
    assert all(0 <= value <= 1 for value in values)
    assert all(value > 0 for value in values[:total])
    if name != "constant":
        assert values[total:] == [0, 0, 0]


@pytest.mark.parametrize(
    "arguments", [("cyclic", 1e-3, 0, 9), ("linear", 0.0, 0, 9), ("linear", -1.0, 0, 9), ("linear", 1e-3, -1, 9)]
)
def test_wrong_schedules_are_refused(arguments: tuple[str, float, int, int]) -> None:
    with pytest.raises(ConfigError, match="Received: "):
        schedule(*arguments)


@pytest.mark.parametrize("more", [{"end_learning_rate": 2e-3}, {"end_learning_rate": -1e-9}, {"power": 0.0}])
def test_wrong_ends_are_refused(more: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="between 0 and its peak, by a power > 0. Received: "):
        schedule("polynomial", 1e-3, 0, 9, **more)


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial"])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_fall_ends_at_the_lowest_rate_and_is_that_of_keras(name: str, power: float) -> None:
    """Against Keras' own schedules, which begin behind the rise."""
    keras = pytest.importorskip("keras").optimizers.schedules
    rate = schedule(name, 1e-3, 3, 13, end_learning_rate=1e-4, power=power)
    if name == "cosine":
        expected = keras.CosineDecay(1e-3, 10, alpha=0.1)
    else:
        expected = keras.PolynomialDecay(1e-3, 10, 1e-4, power if name == "polynomial" else 1.0)
    for step in range(12):
        assert rate(3 + step) == pytest.approx(float(expected(step)), rel=1e-5)


# --------------------------------------------------------------------------------------------------- layers


PATHS = [
    *("classifier/encoder/Embedding-Token/embeddings", "classifier/encoder/Embedding-Norm/gamma"),
    *("classifier/encoder/Encoder-1-MultiHeadSelfAttention/Wq", "classifier/encoder/Encoder-12-FeedForward-Norm/beta"),
    *("classifier/encoder/NSP-Dense/kernel", "classifier/Head-Output/bias"),
]


def test_the_rate_falls_from_the_head_to_the_embeddings() -> None:
    assert layer_factors(PATHS, 0.9) == pytest.approx([0.9**13, 0.9**13, 0.9**12, 0.9, 1, 1])
    assert layer_factors(PATHS, 1.0) == [1.0] * 6
    assert layer_factors(PATHS[-2:], 0.5) == [1.0, 1.0]  # the frozen stage


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_each_variable_moves_at_its_own_rate(name: str) -> None:
    """As if each were trained alone at that rate, decay included."""
    factors = [1.0, 0.5, 0.25, 0.0]
    variables, optimizer = make(name, weight_decay=0.1, rate_factors=factors)
    for step in range(3):
        optimizer.apply(tensors(gradients(step)), rate_of(0.05))
    for i, factor in enumerate(factors):
        alone, other = make(name, weight_decay=0.1)
        for step in range(3):
            other.apply(tensors(gradients(step)), rate_of(0.05 * factor))
        np.testing.assert_allclose(variables[i].numpy(), alone[i].numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="one number a variable. Received: 1 for 4"):
        make(name, rate_factors=[1.0])
