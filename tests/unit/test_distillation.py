"""Layer maps, losses of student and teacher, kept logits: against hand-computed values and NumPy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_training import CONFIG, NO_DROPOUT, inputs_of, make_model, make_store

from tfbert import losses
from tfbert.errors import ConfigError
from tfbert.losses import make_loss
from tfbert.model.config import BertConfig
from tfbert.model.distiller import PARTS, LayerMatcher, check_heads, copy_layers, layer_map
from tfbert.model.encoder import BertEncoder
from tfbert.model.heads import Classifier
from tfbert.objectives.distillation import (
    TEACHER_LOGITS,
    LayerDistillation,
    PredictionDistillation,
    TeacherLogits,
)

pytestmark = pytest.mark.usefixtures("logical_cpus")
ROWS = inputs_of([[2, 7, 8, 9, 3], [2, 10, 3], [2, 3]], length=8)
SEED = np.array([1, 2], np.int32)


def sized(config: BertConfig = NO_DROPOUT, **changes: Any) -> BertConfig:
    return BertConfig.from_dict(config.to_dict() | changes)


def batch_of(rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    count = len(rows["token_ids"])
    weights = np.arange(1, count + 1, dtype=np.float32)
    return {"weights": tf.constant(weights)} | {k: tf.constant(v) for k, v in (rows | more).items()}


# ------------------------------------------------------------------------------------------------------- layer maps


@pytest.mark.parametrize(
    ("kind", "layers", "of", "expected"),
    [
        ("uniform", 6, 12, (2, 4, 6, 8, 10, 12)),
        ("uniform", 4, 12, (3, 6, 9, 12)),
        ("uniform", 12, 12, tuple(range(1, 13))),
        ("top", 3, 12, (10, 11, 12)),
        ("bottom", 5, 12, (1, 2, 3, 4, 5)),
        ("1, 5,12", 3, 12, (1, 5, 12)),
    ],
)
def test_layer_maps(kind: str, layers: int, of: int, expected: Sequence[int]) -> None:
    """Case 140: TinyBERT's g(m) = 3 m for 4 of 12; layers count from 1, 0 is the embeddings."""
    assert layer_map(kind, layers, of) == expected


@pytest.mark.parametrize(
    ("kind", "layers", "of", "message"),
    [
        ("uniform", 5, 12, "divides the teacher's. Received: 'uniform' for 5 layers"),
        ("top", 13, 12, "no more than its teacher"),
        ("uniform", 0, 12, "at least one layer"),
        ("0,6", 2, 12, "from 1 to 12"),
        ("6,13", 2, 12, "from 1 to 12"),
        ("6", 2, 12, "for each of the student's"),
        ("6,3", 2, 12, "ascending"),
        ("middle", 2, 12, "is one of uniform, top, bottom"),
    ],
)
def test_maps_that_are_refused(kind: str, layers: int, of: int, message: str) -> None:
    """Case 140."""
    with pytest.raises(ConfigError, match=message):
        layer_map(kind, layers, of)


# ------------------------------------------------------------------------------------------------------------ losses


def test_soft_cross_entropy_by_hand() -> None:
    """Case 144: teacher [2, 0], student [0, 0]: log 2; with T = 4 the gradient keeps its size; one number a row."""
    teacher, student = np.array([[2.0, 0.0]] * 3, np.float32), tf.zeros((3, 2))
    np.testing.assert_allclose(losses.soft_loss("classify", teacher, student), [0.693147] * 3, atol=1e-6)
    entropy = losses.soft_loss("classify", teacher, teacher)
    np.testing.assert_allclose(0.693147 - entropy, [0.327814] * 3, atol=1e-5)
    np.testing.assert_allclose(losses.soft_loss("classify", teacher, student, 4.0), [16 * 0.693147] * 3, rtol=1e-6)
    for temperature in (1.0, 4.0):
        with tf.GradientTape() as tape:
            tape.watch(student)
            loss = losses.soft_loss("classify", teacher, student, temperature)
        p = 1 / (1 + np.exp(-2 / temperature))
        np.testing.assert_allclose(tape.gradient(loss, student)[0, 0], temperature * (0.5 - p), rtol=1e-5)


def test_regression_and_several_labels() -> None:
    """Case 146: the teacher's number, 2.5, and not the label."""
    np.testing.assert_allclose(losses.soft_loss("regression", [[2.5]], [[1.0]]), [2.25])
    teacher, student = np.array([[3.0, -1.0]], np.float32), np.array([[0.5, 2.0]], np.float32)
    p, q = 1 / (1 + np.exp(-teacher / 2)), 1 / (1 + np.exp(-student / 2))
    expected = 4 * -(p * np.log(q) + (1 - p) * np.log(1 - q)).mean(axis=1)
    np.testing.assert_allclose(losses.soft_loss("multilabel", teacher, student, 2.0), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="the same classes"):
        losses.soft_loss("classify", np.zeros((2, 3)), np.zeros((2, 2)))


def test_padding_takes_no_part() -> None:
    draw = np.random.default_rng(0)
    mask = ROWS["padding_mask"]
    a, b = draw.normal(size=(2, 3, 8, 4)).astype(np.float32)
    expected = [((a[i, :n] - b[i, :n]) ** 2).mean() for i, n in enumerate(mask.sum(1))]
    np.testing.assert_allclose(losses.states_error(a, b, mask), expected, rtol=1e-5)
    a, b = draw.normal(size=(2, 3, 2, 8, 8)).astype(np.float32)
    expected = [((a[i, :, :n, :n] - b[i, :, :n, :n]) ** 2).mean() for i, n in enumerate(mask.sum(1))]
    np.testing.assert_allclose(losses.scores_error(a, b, mask), expected, rtol=1e-5)
    np.testing.assert_allclose(losses.states_error(a[:, 0], b[:, 0], np.zeros_like(mask)), [0, 0, 0])


@pytest.mark.parametrize("mode", ["post-ln", "pre-ln"])
def test_states_are_those_of_the_layers(mode: str) -> None:
    """The last hidden state is the encoder's output; scores are unnormalised and without padding's large numbers."""
    encoder = BertEncoder(sized(num_hidden_layers=2, encoder_ln_mode=mode))
    hidden, scores = encoder.states(ROWS)
    assert (len(hidden), len(scores)) == (3, 2)
    np.testing.assert_array_equal(hidden[-1], encoder(ROWS))
    layer = encoder.attentions[0]
    x = np.array(encoder.attention_norms[0](hidden[0]) if mode == "pre-ln" else hidden[0])
    q, k = (
        (x @ w.numpy() + b.numpy()).reshape(3, 8, 2, 4).transpose(0, 2, 1, 3)
        for w, b in ((layer.Wq, layer.bq), (layer.Wk, layer.bk))
    )
    np.testing.assert_allclose(scores[0], q @ k.transpose(0, 1, 3, 2) / 2, atol=1e-5)
    assert np.abs(scores[1]).max() < 100


# -------------------------------------------------------------------------------------------------------- objectives


def make_pair(student: BertConfig, teacher: BertConfig, **settings: Any) -> tuple[Classifier, Classifier]:
    models = []
    for seed, config in ((0, student), (1, teacher)):
        keras.utils.set_random_seed(seed)
        models.append(Classifier(config, 3, **{"head": "mean", "head_dropout": 0.1} | settings))
    for variable in models[1].variables:  # away from symmetric starts
        variable.assign(variable + 0.1 * tf.random.normal(variable.shape, seed=3))
    return models[0], models[1]


def layer_objective(student: Classifier, teacher: Classifier, layers: Sequence[int], **settings: Any) -> Any:
    matcher = LayerMatcher(student.encoder.config, teacher.encoder.config, layers, **settings)
    return LayerDistillation(student, [teacher.encoder], [matcher], dict.fromkeys(PARTS, 1.0))


@pytest.mark.parametrize("head", ["mean", "cls", "pool"])
def test_a_copy_of_the_teacher_has_loss_zero(head: str) -> None:
    """Case 142: with dropout in the config and padding in the batch."""
    config = sized(CONFIG, num_hidden_layers=2)
    student, teacher = make_pair(config, config, head=head)
    student.set_weights(teacher.get_weights())
    objective = layer_objective(student, teacher, (1, 2))
    assert not objective.variables
    share, loss_sum, sums = objective(batch_of(ROWS), tf.constant(6.0), SEED)
    assert [float(share), float(loss_sum), *map(float, sums)] == [0.0] * 5
    soft = PredictionDistillation(student, make_loss("ce"), teachers=TeacherLogits([teacher], [None]))
    logits = teacher(ROWS)
    entropy = losses.soft_loss("classify", logits, logits)
    share, *_ = soft(batch_of(ROWS, labels=np.array([0, 1, 2], np.int32)), tf.constant(6.0), SEED)
    assert abs(float(share) - float(np.sum(entropy * [1, 2, 3]) / 6)) < 1e-6


def test_layers_are_compared_by_the_map() -> None:
    """A student of the teacher's layers 2 and 4 differs from it, but its first layer is the teacher's, by copy."""
    teacher_config = sized(num_hidden_layers=4)
    student, teacher = make_pair(sized(num_hidden_layers=2), teacher_config)
    assert copy_layers(student, teacher.encoder, (2, 4)) == 37
    np.testing.assert_array_equal(student.encoder.attentions[1].Wq, teacher.encoder.attentions[3].Wq)
    hidden, scores = student.encoder.states(ROWS)
    theirs, their_scores = teacher.encoder.states(ROWS)
    matcher = LayerMatcher(student.encoder.config, teacher_config, (2, 4))
    errors = matcher((hidden, scores), (theirs, their_scores), ROWS["padding_mask"])
    mask = ROWS["padding_mask"]
    expected = losses.states_error(hidden[1], theirs[2], mask) + losses.states_error(hidden[2], theirs[4], mask)
    np.testing.assert_allclose(errors["hidden"], expected, rtol=1e-5)
    expected = losses.scores_error(scores[0], their_scores[1], mask)
    expected += losses.scores_error(scores[1], their_scores[3], mask)
    np.testing.assert_allclose(errors["attention"], expected, rtol=1e-5)
    np.testing.assert_array_equal(errors["embedding"], [0, 0, 0])
    with pytest.raises(ConfigError, match="has its sizes"):
        copy_layers(make_pair(sized(hidden_size=4), NO_DROPOUT)[0], teacher.encoder, (1,))


def test_other_widths_and_heads() -> None:
    """Case 141: trained projections that are no part of the student; heads as their mean, or refused."""
    small, large = sized(hidden_size=4, num_attention_heads=2), sized(num_attention_heads=4)
    student, teacher = make_pair(small, large)
    with pytest.raises(ConfigError, match="2 heads of the student, 4 of the teacher"):
        check_heads(small, large, "same")
    check_heads(small, large, "mean")
    objective = layer_objective(student, teacher, (1,), heads="mean")
    assert [tuple(v.shape) for v in objective.variables] == [(4, 8), (4, 8)]
    assert not {v.path for v in objective.variables} & {v.path for v in student.variables}
    trained = [*student.encoder.trainable_variables, *objective.variables]
    with tf.GradientTape() as tape:
        share, *_ = objective(batch_of(ROWS), tf.constant(6.0), SEED)
    gradients = tape.gradient(share, [v.value for v in trained])
    assert all(g is not None for g in gradients)
    assert tape is not None
    assert float(share) > 0


def test_the_teacher_is_never_trained() -> None:
    """Case 143: a step at rate 1 changes the student and not a bit of the teacher; no gradient goes through it."""
    student, teacher = make_pair(sized(num_hidden_layers=1), sized(num_hidden_layers=2))
    before = [w.copy() for w in teacher.get_weights()]
    batch = batch_of(ROWS, labels=np.array([0, 1, 2], np.int32))
    soft = PredictionDistillation(student, make_loss("ce"), teachers=TeacherLogits([teacher], [None]))
    for objective in (layer_objective(student, teacher, (2,)), soft):
        with tf.GradientTape() as tape:
            share, *_ = objective(batch, tf.constant(6.0), SEED)
        assert float(share) > 0
        student_variables = [v.value for v in student.trainable_variables]
        theirs = [v.value for v in teacher.variables]
        found = tape.gradient(share, [*student_variables, *theirs])
        assert all(g is None for g in found[len(student_variables) :])
        for variable, gradient in zip(student_variables, found, strict=False):
            if gradient is not None:
                variable.assign_sub(tf.convert_to_tensor(gradient))
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_several_teachers_are_averaged() -> None:
    student, first = make_pair(NO_DROPOUT, NO_DROPOUT)
    _, second = make_pair(NO_DROPOUT, NO_DROPOUT)
    second.set_weights([w * 1.5 for w in second.get_weights()])
    logits = TeacherLogits([first, second], [None, (2, 0, 1)])(ROWS)
    np.testing.assert_allclose(logits, (first(ROWS) + np.array(second(ROWS))[:, [2, 0, 1]]) / 2, atol=1e-6)
    matchers = [LayerMatcher(NO_DROPOUT, NO_DROPOUT, (1,)) for _ in range(2)]
    both = LayerDistillation(student, [first.encoder, second.encoder], matchers, dict.fromkeys(PARTS, 1.0))
    single = [layer_objective(student, teacher, (1,)) for teacher in (first, second)]
    batch, total = batch_of(ROWS), tf.constant(6.0)
    expected = sum(float(objective(batch, total, SEED)[0]) for objective in single) / 2
    assert float(both(batch, total, SEED)[0]) == pytest.approx(expected, rel=1e-5)


def test_a_part_of_weight_zero_does_not_spoil_the_others() -> None:
    """Its error may be infinite; 0 times it would be no number."""
    student, teacher = make_pair(NO_DROPOUT, NO_DROPOUT)
    weights = {"attention": 0.0, "hidden": 1.0, "embedding": 0.0}
    objective = LayerDistillation(student, [teacher.encoder], [LayerMatcher(NO_DROPOUT, NO_DROPOUT, (1,))], weights)
    with tf.GradientTape() as tape:
        hidden, scores = student.encoder.states(ROWS)
        objective.model.encoder.states = lambda *_, **__: (hidden, [score * np.float32(1e30) for score in scores])
        share, _, sums = objective(batch_of(ROWS), tf.constant(6.0), SEED)
    assert not np.isfinite(sums[0])
    gradients = tape.gradient(share, [v.value for v in student.encoder.trainable_variables])
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in [share, *gradients])


def test_hard_labels_have_their_share() -> None:
    student, teacher = make_pair(NO_DROPOUT, NO_DROPOUT)
    loss = make_loss("ce")
    labels = np.array([0, 1, 2], np.int32)
    batch = batch_of(ROWS, labels=labels) | {TEACHER_LOGITS: teacher(ROWS)}
    shares = [
        float(PredictionDistillation(student, loss, hard_weight=h)(batch, tf.constant(6.0), SEED)[0])
        for h in (0.0, 0.25, 1.0)
    ]
    hard = float(np.sum(np.array(loss.rows(labels, student(ROWS))) * [1, 2, 3]) / 6)
    assert shares[2] == pytest.approx(hard, rel=1e-5)
    assert shares[1] == pytest.approx(0.75 * shares[0] + 0.25 * shares[2], rel=1e-5)
    with pytest.raises(ValueError, match="neither logits in the batch nor teachers"):
        PredictionDistillation(student, loss)(batch_of(ROWS, labels=labels), tf.constant(6.0), SEED)


# -------------------------------------------------------------------------------------------------------- kept logits


class _NumbersOfRows:
    """Stands in for teachers: the logits of a row tell which row it is."""

    def __init__(self, store: Any):
        self.keys = {tuple(store.columns(np.array([i])).token_ids.padded(16, 0)[0]): i for i in range(len(store))}

    def __call__(self, inputs: Any, training: bool = False) -> Any:
        def look_up(ids: Any) -> Any:
            padded = np.zeros((len(ids), 16), np.int32)
            padded[:, : ids.shape[1]] = ids[:, :16]
            numbers = [self.keys.get(tuple(row), 0) for row in padded]
            return np.eye(20, dtype=np.float32)[numbers] * 4

        found = tf.numpy_function(look_up, [inputs["token_ids"]], tf.float32)
        return tf.ensure_shape(found, (None, 20))


@pytest.mark.parametrize("top_k", [0, 3])
def test_kept_logits_belong_to_their_rows(tmp_path: Path, top_k: int) -> None:
    """Case 145: whatever the order of an epoch; a change of data or teachers refuses them."""
    from tfbert.data.feed import FeedSettings
    from tfbert.data.plan import EpochPlan
    from tfbert.training.teachers import batches_with_logits, compute_logits

    store = make_store(tmp_path / "rows.jsonl", 20)
    strategy, _ = make_model()
    feed = FeedSettings(0, 32, task="classify", num_classes=20)
    teacher = _NumbersOfRows(store)
    assert len(teacher.keys) == 20
    cache = compute_logits(tmp_path / "teacher", teacher, strategy, store, feed, ["a"], top_k)  # type: ignore[arg-type]
    seen = []
    for epoch in range(2):
        plan = EpochPlan(store.lengths, 6, seed=1, epoch=epoch)
        for rows, batch in zip(plan.batches(), batches_with_logits(store, cache, plan, feed, 4), strict=True):
            assert len(batch[TEACHER_LOGITS]) == len(batch["weights"]) % 4 + len(batch["weights"])
            assert batch[TEACHER_LOGITS].argmax(1)[: len(rows)].tolist() == rows.tolist()
            assert (batch[TEACHER_LOGITS][: len(rows)] == 4).sum() == len(rows)
            assert (batch[TEACHER_LOGITS] < -1e8).sum() == (17 * len(batch["weights"]) if top_k else 0)
            seen.append(rows.tolist())
    assert len(seen[0]) and sorted(sum(seen[: len(seen) // 2], [])) == list(range(20))
    assert seen[: len(seen) // 2] != seen[len(seen) // 2 :]

    def refuse(*_: Any) -> None:
        raise AssertionError

    again = compute_logits(tmp_path / "teacher", refuse, strategy, store, feed, ["a"], top_k)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.read(np.arange(20)), cache.read(np.arange(20)))
    with pytest.raises(ConfigError, match="other data, other teachers"):
        compute_logits(tmp_path / "teacher", refuse, strategy, store, feed, ["b"], top_k)  # type: ignore[arg-type]
