"""Losses: values worked out by hand, parity with Keras and NumPy, and finite numbers and gradients everywhere."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tfbert import losses
from tfbert.errors import ConfigError
from tfbert.losses import DMI_REGULARISER, dmi_loss, make_loss

pytestmark = pytest.mark.usefixtures("logical_cpus")
Array = npt.NDArray[np.floating[Any]]
P = [[0.7, 0.2, 0.1]]


def log(probabilities: Any) -> Array:
    """Logits of probabilities; minus infinity for 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, np.float32))


def value_and_gradient(loss: Callable[[Any], Any], logits: Any) -> tuple[Array, Array]:
    x = tf.Variable(logits)
    with tf.GradientTape() as tape:
        value = loss(x)
    return value.numpy(), tf.convert_to_tensor(tape.gradient(value, x)).numpy()


def rows_of(name: str, **settings: Any) -> Callable[[Any, Any], Any]:
    rows = make_loss(name, **settings).rows
    assert rows is not None
    return rows


# --------------------------------------------------------------------------------------------------- cross entropy


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("form", ["ids", "column", "one-hot"])
def test_labels_of_any_form_and_type_give_the_same(form: str, dtype: str) -> None:
    ids = np.array([0, 2, 1])
    labels = {"ids": ids, "column": ids[:, None], "one-hot": np.eye(3)[ids]}[form].astype(dtype)
    logits = np.array([[2, 1, 0], [0, 1, 3], [1, 1, 1]], np.float32)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[range(3), ids]
    np.testing.assert_allclose(losses.cross_entropy(labels, logits), expected, rtol=1e-6)
    np.testing.assert_allclose(rows_of("focal", focal_gamma=0, focal_alpha=1)(labels, logits), expected, rtol=1e-6)
    joint = losses.joint_matrix(labels, logits).numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(joint, np.eye(3)[ids].T @ shares, rtol=1e-6)


def test_booleans_are_labels_too() -> None:
    labels = np.array([[True, False], [False, True]])
    np.testing.assert_allclose(losses.cross_entropy(labels, log([[0.5, 0.5], [0.9, 0.1]])), -np.log([0.5, 0.1]), 1e-6)


def test_a_uniform_prediction_of_two_classes_costs_log_2() -> None:
    """Case 076."""
    np.testing.assert_allclose(losses.cross_entropy([0, 1], np.zeros((2, 2), np.float32)), [math.log(2)] * 2, 1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_equals_keras_also_smoothed(smoothing: float) -> None:
    draw = np.random.default_rng(0)
    logits = 5 * draw.standard_normal((20, 4)).astype(np.float32)
    labels = np.eye(4)[draw.integers(4, size=20)]
    theirs = keras.losses.categorical_crossentropy(labels, logits, from_logits=True, label_smoothing=smoothing)
    np.testing.assert_allclose(rows_of("ce", label_smoothing=smoothing)(labels, logits), theirs, rtol=1e-5)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2, 1], np.eye(3)[[0]], np.eye(3)[[0, 1, 2, 1]], np.eye(2)[[0, 1, 1]]])
@pytest.mark.parametrize("name", ["ce", "focal", "dmi"])
def test_labels_that_do_not_fit_the_logits_are_refused(name: str, labels: Any) -> None:
    """They would be broadcast."""
    loss = rows_of(name) if name != "dmi" else dmi_loss
    with pytest.raises(ValueError, match="Received: shape"):
        loss(np.asarray(labels), np.zeros((3, 3), np.float32))


# ----------------------------------------------------------------------------------------------------------- focal


def test_focal_by_hand() -> None:
    """Cases 096 and 099: gamma and alpha are not exchanged, and classes are summed."""
    labels = np.array([[1, 0, 0]])
    assert float(rows_of("focal", focal_gamma=0, focal_alpha=1)(labels, log(P))[0]) == pytest.approx(0.3567, abs=1e-4)
    default = float(rows_of("focal")(labels, log(P))[0])
    assert default == pytest.approx(0.25 * 0.3**2 * -math.log(0.7), rel=1e-5)
    assert default == pytest.approx(0.00803, abs=1e-5)


def test_focal_takes_a_factor_a_class() -> None:
    """Case 100: by the true class."""
    probabilities = np.array([[0.5, 0.3, 0.2]] * 3)
    values = rows_of("focal", focal_gamma=1, focal_alpha=[1, 2, 3])([0, 1, 2], log(probabilities))
    p = probabilities[0]
    np.testing.assert_allclose(values, [1, 2, 3] * (1 - p) * -np.log(p), rtol=1e-5)
    for wrong in ([1, 2], [1, 2, 3, 4], [[1, 2, 3]]):
        with pytest.raises(ValueError, match=r"one number or one a class \(3\)"):
            losses.focal([0, 1, 2], log(probabilities), alpha=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_focal_equals_keras_with_its_gradient(gamma: float, smoothing: float) -> None:
    draw = np.random.default_rng(1)
    logits = 2 * draw.standard_normal((20, 4)).astype(np.float32)
    labels = np.eye(4, dtype=np.float32)[draw.integers(4, size=20)]
    alpha = [0.25, 1.0, 0.5, 2.0]
    ours = value_and_gradient(
        lambda x: losses.focal(labels, x, gamma=gamma, alpha=alpha, label_smoothing=smoothing), logits
    )
    theirs = value_and_gradient(
        lambda x: keras.losses.categorical_focal_crossentropy(
            labels, x, alpha=alpha, gamma=gamma, from_logits=True, label_smoothing=smoothing
        ),
        logits,
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("label", [[1, 0, 0], [0, 1, 0]])
@pytest.mark.parametrize("p", [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
def test_probabilities_of_exactly_zero_and_one_stay_finite(p: list[float], label: list[float], gamma: float) -> None:
    """Case 097: nine combinations and more, with minus infinity as the logit of 0."""
    for loss in (
        lambda x: losses.focal([label], x, gamma=gamma),
        lambda x: losses.cross_entropy([label], x),
        lambda x: losses.binary_cross_entropy([label], x),
        lambda x: dmi_loss([label], x),
    ):
        value, gradient = value_and_gradient(loss, log([p]))
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
    if p == label:
        assert float(losses.focal([label], log([p]), gamma=gamma)[0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["ce", "focal", "dmi"])
def test_large_logits_of_any_precision_give_a_finite_float32_loss(name: str, dtype: str) -> None:
    """Case 086: logits up to 30, and far beyond."""
    for size in (30.0, 6e4):
        logits = tf.cast(size * np.array([[1, -1, 0], [-1, 1, 1], [0, 0, 1], [1, 1, 1]]), dtype)
        loss: Any = dmi_loss if name == "dmi" else rows_of(name)
        value, gradient = value_and_gradient(lambda x, loss=loss: loss([1, 0, 2, 2], x), logits)
        assert value.dtype == np.float32
        assert np.isfinite(value).all()
        assert np.isfinite(gradient.astype(np.float32)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["ce", "focal", "dmi"])
def test_a_model_that_has_diverged_is_not_hidden(name: str, bad: float) -> None:
    """Case 115: the loss is not finite, so that training stops."""
    loss: Any = dmi_loss if name == "dmi" else rows_of(name)
    value = np.asarray(loss([0, 1, 2], np.full((3, 3), bad, np.float32)))
    assert not np.isfinite(value).any()


# --------------------------------------------------------------------------------------- several labels, regression


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary_cross_entropy_equals_keras(smoothing: float) -> None:
    draw = np.random.default_rng(2)
    logits = 4 * draw.standard_normal((12, 5)).astype(np.float32)
    labels = (draw.random((12, 5)) < 0.4).astype(np.int64)
    theirs = keras.losses.binary_crossentropy(
        labels.astype(np.float32), logits, from_logits=True, label_smoothing=smoothing
    )
    rows = rows_of("ce", task="multilabel", label_smoothing=smoothing)
    np.testing.assert_allclose(rows(labels, logits), theirs, rtol=1e-5)
    for wrong in (labels[:, :1], labels[:1], labels[0]):
        with pytest.raises(ValueError, match="Received: shapes"):
            rows(wrong, logits)


def test_squared_error_takes_columns_and_does_not_broadcast() -> None:
    rows = rows_of("ce", task="regression")
    logits = np.array([[1.0], [2.0], [4.0]], np.float32)
    for labels in (np.array([0, 2, 1]), np.array([[0.0], [2.0], [1.0]])):
        np.testing.assert_array_equal(rows(labels, logits), [1, 0, 9])
    with pytest.raises(ValueError, match="same number of rows"):
        rows(np.zeros(1), logits)


# ------------------------------------------------------------------------------------------------------------- DMI


def reference_dmi(labels: Any, logits: Array, weights: Array | None = None) -> float:
    """In float64 by NumPy alone: -log |det| where all singular values are large, their bounded product otherwise."""
    x = logits.astype(np.float64)
    shares = np.exp(x - x.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    weights = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    joint = (np.eye(x.shape[1])[labels] * weights[:, None]).T @ shares / weights.sum()
    values = np.linalg.svd(joint, compute_uv=False)
    least = DMI_REGULARISER / x.shape[1]
    if values.min() >= least:
        return float(-np.log(abs(np.linalg.det(joint))))
    return float(-np.log(np.maximum(values, least)).sum())


@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_dmi_equals_the_determinant_with_its_gradient(num_classes: int, weighted: bool) -> None:
    """Parity with NumPy in float64, the gradient by differences."""
    draw = np.random.default_rng(num_classes)
    labels = np.arange(8 * num_classes) % num_classes
    logits = 3 * np.eye(num_classes, dtype=np.float32)[labels]
    logits += draw.standard_normal(logits.shape).astype(np.float32)
    weights = draw.uniform(0.5, 2, len(labels)).astype(np.float32) if weighted else None
    value, gradient = value_and_gradient(lambda x: dmi_loss(labels, x, weights), logits)
    assert float(value) == pytest.approx(reference_dmi(labels, logits, weights), rel=1e-6)
    for i, j in ((0, 0), (1, 0), (len(labels) - 1, num_classes - 1)):
        step = np.zeros(logits.shape)
        step[i, j] = 1e-5
        expected = reference_dmi(labels, logits + step, weights) - reference_dmi(labels, logits - step, weights)
        assert float(gradient[i, j]) == pytest.approx(expected / 2e-5, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [2], [1, 1, 1, 1], [0, 1], [0, 1, 2, 2]])
def test_dmi_is_finite_when_a_class_is_missing(labels: list[int]) -> None:
    """Case 091: singular joint matrices, with parity in value."""
    draw = np.random.default_rng(4)
    logits = draw.standard_normal((len(labels), 3)).astype(np.float32)
    for x in (logits, np.zeros_like(logits), 50 * logits, np.ones_like(logits) * logits[:1]):
        value, gradient = value_and_gradient(lambda x: dmi_loss(labels, x), x)
        assert float(value) == pytest.approx(reference_dmi(labels, x), rel=1e-4)
        assert np.isfinite(gradient).all()


def test_a_missing_class_leaves_the_signal_of_the_others() -> None:
    """Case 091: the loss does not sit at a constant, and its gradient makes the prediction better."""
    labels = [0, 1, 1, 0]
    logits = np.array([[0.5, 0, 0], [0, 0.5, 0], [0, 0.2, 0], [0.1, 0, 0]], np.float32)
    value, gradient = value_and_gradient(lambda x: dmi_loss(labels, x), logits)
    better = logits - gradient / np.abs(gradient).max()
    assert float(dmi_loss(labels, better)) < float(value) - 0.1


@pytest.mark.parametrize(("num_classes", "rows"), [(60, 512), (3, 100_000), (119, 64)])
def test_dmi_of_many_classes_or_rows_neither_overflows_nor_stands_still(num_classes: int, rows: int) -> None:
    """Case 093."""
    draw = np.random.default_rng(5)
    labels = draw.integers(num_classes, size=rows)
    values = []
    for _ in range(2):
        logits = draw.standard_normal((rows, num_classes)).astype(np.float32)
        value, gradient = value_and_gradient(lambda x: dmi_loss(labels, x), logits)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0
        values.append(float(value))
    assert abs(values[0] - values[1]) > 1e-3


def test_dmi_does_not_depend_on_the_number_of_rows_and_may_be_negative() -> None:
    """Case 094: the same six rows once and twice; and row weights of 2."""
    labels = [0, 1, 2, 0, 1, 2]
    logits = np.random.default_rng(6).standard_normal((6, 3)).astype(np.float32)
    once = float(dmi_loss(labels, logits))
    assert float(dmi_loss(labels * 2, np.concatenate([logits, logits]))) == pytest.approx(once, rel=1e-6)
    assert float(dmi_loss(labels, logits, np.full(6, 2.0))) == pytest.approx(once, rel=1e-6)
    perfect = 100 * np.eye(2, dtype=np.float32)[[0, 1]]
    assert float(dmi_loss([0, 1], perfect)) == pytest.approx(math.log(4), rel=1e-5)
    assert float(losses.dmi_of_joint(np.eye(2) * 3, 1)) < 0


def test_rows_of_weight_0_do_not_count_in_dmi() -> None:
    logits = np.random.default_rng(7).standard_normal((5, 3)).astype(np.float32)
    few = dmi_loss([0, 1, 2], logits[:3])
    assert float(dmi_loss([0, 1, 2, 2, 2], logits, [1, 1, 1, 0, 0])) == pytest.approx(float(few), rel=1e-6)
    value, gradient = value_and_gradient(lambda x: dmi_loss([0, 1, 2, 2, 2], x, np.zeros(5)), logits)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_exchanging_two_columns_does_not_change_dmi() -> None:
    """It sees information, not agreement: hence the warm start with cross entropy."""
    logits = np.random.default_rng(8).standard_normal((9, 3)).astype(np.float32)
    labels = np.arange(9) % 3
    assert float(dmi_loss(labels, logits)) == pytest.approx(float(dmi_loss(labels, logits[:, [1, 0, 2]])), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("crossentropy",), {}, r"A loss is one of ce, focal, dmi\. Received: 'crossentropy'"),
        (("",), {}, "A loss is one of"),
        (("focal", "multilabel"), {}, "has one loss, ce"),
        (("dmi", "regression"), {}, "has one loss, ce"),
        (("dmi",), {"label_smoothing": 0.1}, "label_smoothing needs a cross entropy"),
        (("ce", "regression"), {"label_smoothing": 0.1}, "label_smoothing needs a cross entropy"),
        (("ce",), {"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\)"),
        (("ce",), {"label_smoothing": -0.1}, r"label_smoothing must be in \[0, 1\)"),
        (("focal",), {"focal_gamma": -1}, "focal_gamma must be >= 0"),
        (("focal",), {"focal_gamma": math.nan}, "focal_gamma must be >= 0"),
        (("focal",), {"focal_alpha": -1}, "focal_alpha must be >= 0"),
        (("focal",), {"focal_alpha": [1, math.nan]}, "focal_alpha must be >= 0"),
    ],
)
def test_wrong_choices_are_refused(arguments: tuple[str, ...], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loss(*arguments, **settings)


def test_an_unknown_keyword_and_a_bare_position_are_refused() -> None:
    """Case 099: nothing is swallowed."""
    with pytest.raises(TypeError, match="gama"):
        make_loss("focal", gama=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        make_loss("focal", "classify", 2.0, 0.25)  # type: ignore[misc]


def test_dmi_has_no_row_losses() -> None:
    assert make_loss("dmi").rows is None
