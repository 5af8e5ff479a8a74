"""The loss of masked tokens and of pairs, against all logits and NumPy in float64."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from tiny_training import NO_DROPOUT, inputs_of

from tfbert.model.mlm import MaskedLM
from tfbert.objectives.mlm import MaskedLanguageModel

pytestmark = pytest.mark.usefixtures("logical_cpus")
ROWS = [[2, 7, 8, 9, 3], [2, 3], [2, 11, 12, 13, 14, 15, 3], [2, 20, 3]]
PLACES = [[1, 3], [], [2, 4], [1]]  # the second row has none (case 156)
IDS = [[41, 42], [], [43, 44], [45]]
WEIGHTS = np.array([1.0, 1.0, 0.5, 2.0], np.float32)
LABELS = np.array([0, 1, 1, 0], np.int32)


def make_batch(rows: slice = slice(None)) -> dict[str, npt.NDArray[Any]]:
    positions, ids = np.zeros((2, 4, 3), np.int32)
    weights = np.zeros((4, 3), np.float32)
    for i, (places, tokens) in enumerate(zip(PLACES, IDS, strict=True)):
        positions[i, : len(places)], ids[i, : len(places)] = places, tokens
        weights[i, : len(places)] = WEIGHTS[i]
    batch: dict[str, Any] = inputs_of(ROWS) | {"weights": WEIGHTS, "labels": LABELS}
    batch |= {"masked_positions": positions, "masked_ids": ids, "masked_weights": weights}
    return {name: values[rows] for name, values in batch.items()}


@pytest.fixture(scope="module")
def model() -> MaskedLM:
    keras.utils.set_random_seed(1)
    made = MaskedLM(NO_DROPOUT, pair_head=True)
    draw = np.random.default_rng(3)
    made.set_weights([draw.normal(0.0, 0.4, w.shape) for w in made.weights])
    return made


def expected(model: MaskedLM) -> tuple[list[float], list[float]]:
    """Loss, hits and weight of the masked tokens and of the pairs, from the logits of all tokens."""
    batch = make_batch()

    def each(logits: Any, label: int) -> tuple[float, float]:
        x = np.asarray(logits, np.float64)
        return float(np.log(np.exp(x - x.max()).sum()) + x.max() - x[label]), float(x.argmax() == label)

    logits = keras.ops.convert_to_numpy(model(batch)).reshape(4, 7, -1)
    masked = [
        (WEIGHTS[i], *each(logits[i, place], token))
        for i in range(4)
        for place, token in zip(PLACES[i], IDS[i], strict=True)
    ]
    pair_logits = keras.ops.convert_to_numpy(model.pair_logits(model.encoder(batch)))
    pairs = [(WEIGHTS[i], *each(pair_logits[i], LABELS[i])) for i in range(4)]
    masked_sums, pair_sums = (
        [sum(w * loss for w, loss, _ in rows), sum(w * hit for w, _, hit in rows), float(sum(w for w, _, _ in rows))]
        for rows in (masked, pairs)
    )
    return masked_sums, pair_sums


def test_sums_are_those_of_the_masked_tokens_and_of_the_pairs(model: MaskedLM) -> None:
    masked, pairs = expected(model)
    objective = MaskedLanguageModel(model)
    sums = objective.sums_of(make_batch()).numpy()
    np.testing.assert_allclose(sums, masked + pairs, rtol=1e-5)
    weights = objective.weight(make_batch()).numpy()
    np.testing.assert_allclose(weights, [masked[2], pairs[2]])
    totals = dict(zip(objective.sums, sums.tolist(), strict=True))
    logs = objective.logs(totals | {"weight": 1.0, "rows": 4.0})
    assert logs == pytest.approx(
        {
            "mlm_loss": masked[0] / masked[2],
            "mlm_accuracy": masked[1] / masked[2],
            "nsp_loss": pairs[0] / pairs[2],
            "nsp_accuracy": pairs[1] / pairs[2],
        },
        rel=1e-5,
    )
    share, loss_sum, _ = objective(make_batch(), weights, tf.constant([1, 2]))
    loss = masked[0] / masked[2] + pairs[0] / pairs[2]
    assert float(share) == pytest.approx(loss, rel=1e-5)
    assert float(loss_sum) == pytest.approx(loss * masked[2], rel=1e-5)


def test_shares_of_parts_add_up_to_the_whole(model: MaskedLM) -> None:
    """In loss and in gradient: what micro-batches and replicas rely on, whatever part holds the masked tokens."""
    objective = MaskedLanguageModel(model)
    weights = objective.weight(make_batch())
    variables = [v.value for v in model.trainable_variables]

    def share_of(rows: slice) -> tuple[float, list[Any]]:
        with tf.GradientTape() as tape:
            share, _, _ = objective(make_batch(rows), weights, tf.constant([1, 2]))
        return float(share), [tf.convert_to_tensor(g).numpy() for g in tape.gradient(share, variables)]

    whole, gradients = share_of(slice(None))
    parts = [share_of(rows) for rows in (slice(0, 1), slice(1, 2), slice(2, 4))]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, rel=1e-5)
    for i, gradient in enumerate(gradients):
        np.testing.assert_allclose(sum(part[i] for _, part in parts), gradient, rtol=0, atol=1e-5)


def test_rows_without_masked_tokens_have_a_finite_loss(model: MaskedLM) -> None:
    """Case 156."""
    objective = MaskedLanguageModel(model)
    batch = make_batch(slice(1, 2))
    with tf.GradientTape() as tape:
        share, loss_sum, sums = objective(batch, tf.constant([1e-9, 1.0]), tf.constant([1, 2]))
    gradients = tape.gradient(share, [v.value for v in model.trainable_variables])
    assert np.isfinite([float(share), float(loss_sum)]).all()
    assert sums.numpy()[:3].tolist() == [0, 0, 0]
    assert all(np.isfinite(tf.convert_to_tensor(g).numpy()).all() for g in gradients)


def test_without_pairs_there_is_one_weight(model: MaskedLM) -> None:
    objective = MaskedLanguageModel(MaskedLM(NO_DROPOUT))
    assert objective.sums == ("masked_loss", "masked_correct", "masked_tokens")
    assert float(objective.weight(make_batch())) == pytest.approx(2 * 1 + 2 * 0.5 + 2)
