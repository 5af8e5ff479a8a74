"""R-Drop and FGM: against formulas, on one device and on two, in half precision."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from tiny_training import distance, make_model, make_store, train

from tfbert import losses
from tfbert.data.batch import Batch
from tfbert.data.feed import FeedSettings, make_batch
from tfbert.data.store import RowStore
from tfbert.losses import make_loss
from tfbert.model.encoder import INPUTS
from tfbert.objectives.classification import Classification

pytestmark = pytest.mark.usefixtures("logical_cpus")
eagerly = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RowStore:
    return make_store(tmp_path_factory.mktemp("regularisers") / "data.jsonl", 12)


@pytest.fixture(scope="module")
def batch(store: RowStore) -> Batch:
    return make_batch(store, np.arange(12), FeedSettings(0, 32, task="classify", num_classes=3), 1)


# ------------------------------------------------------------------------------------------------------- R-Drop


def kl(p: Any, q: Any) -> Any:
    return np.sum(p * np.log(p / q), axis=-1)


def test_the_divergence_is_the_mean_of_both_directions() -> None:
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 5, 4)) * 3
    p, q = scipy.special.softmax(a, -1), scipy.special.softmax(b, -1)
    np.testing.assert_allclose(losses.divergence("classify", a, b), (kl(p, q) + kl(q, p)) / 2, rtol=1e-5)
    yes, other = (np.stack([scipy.special.expit(x), scipy.special.expit(-x)], -1) for x in (a, b))
    each = (kl(yes, other) + kl(other, yes)) / 2
    np.testing.assert_allclose(losses.divergence("multilabel", a, b), each.mean(-1), rtol=1e-4)
    np.testing.assert_allclose(losses.divergence("regression", a[:, :1], b[:, :1]), (a - b)[:, 0] ** 2 / 2, rtol=1e-5)


@pytest.mark.parametrize("task", ["classify", "multilabel"])
@pytest.mark.parametrize(
    "pair", [([1e4, -1e4], [-1e4, 1e4]), ([-np.inf, 0.0], [-np.inf, 0.0]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_the_divergence_is_finite_at_the_edges(task: str, pair: tuple[list[float], list[float]]) -> None:
    a, b = (tf.Variable([x], dtype=tf.float32) for x in pair)
    with tf.GradientTape() as tape:
        value = losses.divergence(task, a, b)
    assert np.isfinite(value).all()
    assert (value.numpy() >= 0).all()
    assert all(np.isfinite(g).all() for g in tape.gradient(value, [a, b]))


@pytest.fixture
def two_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of dropout: a first pass is made larger, a second one smaller, whatever the replica."""

    def scaled(x: Any, rate: float, seed: Any) -> Any:
        return x * tf.cast(tf.where(seed[0] < 0, 0.7, 1.3), x.dtype)

    monkeypatch.setattr("tfbert.model.heads.stateless_dropout", scaled)
    monkeypatch.setattr("tfbert.model.encoder.stateless_dropout", scaled)


DROPPING = {"head_dropout": 0.5}


def widen(trainer: Any) -> None:
    """The logits of random weights are too near to each other for predictions to differ."""
    trainer.model.output_dense.kernel.assign(trainer.model.output_dense.kernel * 100)


@eagerly
@pytest.mark.usefixtures("two_masks")
@pytest.mark.parametrize("frozen", [False, True])
def test_the_loss_of_rdrop(store: RowStore, batch: Batch, frozen: bool) -> None:
    run = train(store, batch=12, rate=1e-30, rdrop=3.0, frozen=frozen, settings=DROPPING, prepare=widen)
    model = make_model(**DROPPING)[1]
    model.output_dense.kernel.assign(model.output_dense.kernel * 100)
    inputs = {name: batch[name] for name in INPUTS}
    first, second = (
        model.logits(
            model.features(inputs, training=not frozen, seed=tf.constant([sign, 0])),
            training=True,
            seed=tf.constant([sign, 0]),
        ).numpy()
        for sign in (1, -1)
    )
    ce = [np.asarray(keras.losses.sparse_categorical_crossentropy(batch["labels"], x, True)) for x in (first, second)]
    p, q = scipy.special.softmax(first, -1), scipy.special.softmax(second, -1)
    rows = (ce[0] + ce[1]) / 2 + 3.0 * (kl(p, q) + kl(q, p)) / 2
    assert run.logs[0]["loss"] == pytest.approx(np.average(rows, weights=batch["weights"]), rel=1e-5)
    assert np.average((kl(p, q) + kl(q, p)) / 2, weights=batch["weights"]) > 1e-5
    assert run.logs[0]["accuracy"] == pytest.approx(np.mean(first.argmax(-1) == batch["labels"]))


@eagerly
@pytest.mark.usefixtures("two_masks")
@pytest.mark.parametrize("more", [{}, {"fgm": 0.5}], ids=str)
def test_rdrop_on_two_replicas_is_rdrop_on_one(store: RowStore, more: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"batch": 8, "rate": 0.02, "rdrop": 2.0, "settings": DROPPING, "prepare": widen} | more
    one, two = train(store, **settings), train(store, "cpu:2", accumulate=2, **settings)
    plain = train(store, **settings | {"rdrop": 0.0})
    assert distance(one.weights, two.weights) < 1e-5
    assert distance(one.weights, plain.weights) > 1e-3
    assert one.logs[0]["loss"] == pytest.approx(two.logs[0]["loss"], abs=1e-5)


@eagerly
def test_the_two_masks_of_a_row_differ_and_repeat(store: RowStore) -> None:
    """With real dropout: the run repeats itself, and predictions of the two passes differ."""
    settings: dict[str, Any] = {"rdrop": 2.0, "settings": DROPPING, "rate": 0.01, "prepare": widen}
    one, again = train(store, **settings), train(store, **settings)
    assert distance(one.weights, again.weights) == 0
    assert one.logs[0]["loss"] > train(store, **settings | {"rdrop": 1e-9}).logs[0]["loss"] + 1e-4


@eagerly
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_rdrop_and_fgm_in_half_precision(store: RowStore, dtype: str) -> None:
    """Near float32, with accumulation and clipping, on two replicas; the loss scale stays."""
    common: dict[str, Any] = {"batch": 8, "rate": 0.5, "rdrop": 1.0, "fgm": 0.1, "accumulate": 2}
    full = train(store, settings={"head": "mean"}, optimizer_settings={"clip_norm": 0.05}, **common)
    assert full.trainer.totals.gradient_norm > 0.05  # clipped
    scaling = dtype == "mixed_float16"
    for devices in ("cpu:1", "cpu:2"):
        half = train(
            store,
            devices,
            settings={"head": "mean", "dtype": dtype},
            optimizer_settings={"clip_norm": 0.05, "loss_scaling": scaling},
            **common,
        )
        assert distance(half.weights, full.weights) < (1e-3 if scaling else 1e-2)
        assert half.logs[0]["loss"] == pytest.approx(full.logs[0]["loss"], abs=1e-3 if scaling else 1e-2)
        assert half.trainer.optimizer.iterations.numpy() == 2
        assert not scaling or half.trainer.optimizer.loss_scale.numpy() == 2**15


def test_rdrop_needs_a_loss_of_each_row() -> None:
    with pytest.raises(ValueError, match="a loss of each row. Received: dmi"):
        Classification(make_model()[1], make_loss("dmi"), rdrop=1.0)


# --------------------------------------------------------------------------------------------------------- FGM


def expected_after_fgm(batch: Batch, epsilon: float, rate: float) -> dict[str, np.ndarray]:
    """One step over the whole batch with a plain tape."""
    model = make_model()[1]
    variables = [v.value for v in model.trainable_variables]
    table = model.encoder.token.embeddings

    def gradients() -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            logits = model({name: batch[name] for name in INPUTS})
            each = keras.losses.sparse_categorical_crossentropy(batch["labels"], logits, from_logits=True)
            loss = tf.reduce_sum(each * batch["weights"]) / batch["weights"].sum()
        return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, variables)]

    clean = gradients()
    before = table.numpy()
    g = clean[[v.path for v in model.trainable_variables].index(table.path)]
    table.assign(before + epsilon * g / np.sqrt(np.sum(g.astype(np.float64) ** 2)))
    adversarial = gradients()
    table.assign(before)
    return {
        v.path: v.numpy() - rate * (a + b)
        for v, a, b in zip(model.trainable_variables, clean, adversarial, strict=True)
    }


@eagerly
@pytest.mark.parametrize(("devices", "accumulate"), [("cpu:1", 1), ("cpu:1", 3), ("cpu:2", 1), ("cpu:2", 2)])
def test_a_step_of_fgm(store: RowStore, batch: Batch, devices: str, accumulate: int) -> None:
    run = train(store, devices, batch=12, rate=0.5, fgm=1.0, accumulate=accumulate)
    expected = expected_after_fgm(batch, 1.0, 0.5)
    plain = train(store, devices, batch=12, rate=0.5, accumulate=accumulate)
    assert distance(run.weights, expected) < 2e-6
    assert distance(plain.weights, expected) > 1e-3
    assert run.logs[0]["loss"] == pytest.approx(plain.logs[0]["loss"])  # that of the rows as they are


def test_a_compiled_step_of_fgm_moves_and_restores_in_order(store: RowStore, batch: Batch) -> None:
    """Real runs are compiled: passes, moves and updates must not overtake each other."""
    run = train(store, "cpu:2", batch=12, rate=0.5, fgm=1.0, accumulate=2)
    assert distance(run.weights, expected_after_fgm(batch, 1.0, 0.5)) < 2e-6


@eagerly
def test_the_table_is_back_bit_by_bit_and_a_gradient_of_zero_moves_nothing(store: RowStore) -> None:
    run = train(store, "cpu:2", rate=1e-30, fgm=1.0)
    table = run.trainer.model.encoder.token.embeddings
    np.testing.assert_array_equal(run.weights[table.path], make_model()[1].encoder.token.embeddings.numpy())
    zero = make_store(Path(store.path).with_name("zero.jsonl"), 3)
    run = train(zero, rate=0.1, fgm=1.0, class_weights={0: 0.0, 1: 0.0, 2: 0.0})
    assert all(np.isfinite(weight).all() for weight in run.weights.values())
