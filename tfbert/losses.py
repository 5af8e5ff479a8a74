"""Losses on float32 logits, with `keras.ops` alone.

Row losses give one number a row; the trainer weighs and averages them over the global batch. DMI is a function of the
whole batch. Labels are class ids (B,) or one-hot (B, C), of any numeric dtype.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from tfbert.choices import LOSSES
from tfbert.errors import ConfigError

DMI_REGULARISER = 1e-3  # singular values of the joint matrix below this / num_classes count as this
_LOWEST = -1e9  # what a logit of minus infinity counts as; plus infinity and NaN stay, for the trainer to see


def _scores(logits):
    return ops.maximum(ops.cast(ops.convert_to_tensor(logits), "float32"), _LOWEST)


def _same_rows(labels, logits):
    """Refuses labels that would be broadcast, as far as the shapes are known."""
    if None not in (labels.shape[0], logits.shape[0]) and labels.shape[0] != logits.shape[0]:
        raise ValueError(
            "Labels and logits must have the same number of rows. "
            f"Received: shapes {tuple(labels.shape)} and {tuple(logits.shape)}."
        )


def one_hot(labels, num_classes):
    """Class ids (B,) or (B, 1), or one-hot (B, C), of any numeric dtype -> float32 (B, C)."""
    labels = ops.convert_to_tensor(labels)
    if len(labels.shape) == 2 and labels.shape[-1] == num_classes:
        return ops.cast(labels, "float32")
    if len(labels.shape) == 2 and labels.shape[-1] == 1:
        labels = ops.reshape(labels, (-1,))
    if len(labels.shape) != 1:
        raise ValueError(f"One-hot labels must be {num_classes} wide. Received: shape {tuple(labels.shape)}.")
    return ops.one_hot(ops.cast(labels, "int32"), num_classes, dtype="float32")


def _smooth(targets, label_smoothing, num_classes):
    if not label_smoothing:
        return targets
    return targets * (1.0 - label_smoothing) + label_smoothing / num_classes


def _targets(labels, logits, label_smoothing=0.0):
    """What the probabilities are held against, float32 (B, C)."""
    num_classes = logits.shape[-1]
    targets = one_hot(labels, num_classes)
    _same_rows(targets, logits)
    return _smooth(targets, label_smoothing, num_classes)


def cross_entropy(labels, logits, label_smoothing=0.0):
    """Softmax cross entropy of every row, nats, float32 (B,)."""
    logits = _scores(logits)
    return -ops.sum(_targets(labels, logits, label_smoothing) * ops.log_softmax(logits, axis=-1), axis=-1)


def focal(labels, logits, gamma=2.0, alpha: float | Sequence[float] = 0.25, label_smoothing=0.0):
    """Focal loss of every row: -alpha (1 - p)^gamma log p, summed over the classes as Keras does, float32 (B,).

    With gamma 0 and alpha 1 it is the cross entropy. Some recipes average over the classes instead: that is this
    loss divided by the number of classes.

    Args:
        labels: class ids (B,) or one-hot (B, C).
        logits: (B, C).
        gamma: how much easy rows are played down, >= 0.
        alpha: one factor, or one a class.
        label_smoothing: share of the target spread over all classes.

    Raises:
        ValueError: `alpha` is not one number or one a class.

    Source: Lin et al. 2017, arXiv 1708.02002; `keras.losses.CategoricalFocalCrossentropy`.
    """
    logits = _scores(logits)
    num_classes = logits.shape[-1]
    factors = np.asarray(alpha, np.float32)
    if factors.shape not in ((), (num_classes,)):
        raise ValueError(f"alpha is one number or one a class ({num_classes}). Received: shape {factors.shape}.")
    targets = _targets(labels, logits, label_smoothing)
    log_p = ops.log_softmax(logits, axis=-1)
    # away from 0, where the derivative of x^gamma is infinite for gamma < 1
    easiness = ops.maximum(-ops.expm1(log_p), keras.config.epsilon())
    return -ops.sum(factors * targets * ops.power(easiness, gamma) * log_p, axis=-1)


def binary_cross_entropy(labels, logits, label_smoothing=0.0):
    """Sigmoid cross entropy, mean over the labels of a row: multi-hot (B, C), (B, C) -> float32 (B,)."""
    logits = _scores(logits)
    targets = ops.cast(ops.convert_to_tensor(labels), "float32")
    if targets.shape[1:] != logits.shape[1:]:
        raise ValueError(
            "Multi-hot labels must be as wide as the logits. "
            f"Received: shapes {tuple(targets.shape)} and {tuple(logits.shape)}."
        )
    _same_rows(targets, logits)
    return ops.mean(ops.softplus(logits) - _smooth(targets, label_smoothing, 2) * logits, axis=-1)


def squared_error(labels, logits):
    """Squared error of a regression: (B,) or (B, 1), (B, 1) -> float32 (B,)."""
    values = ops.reshape(ops.cast(logits, "float32"), (-1,))
    labels = ops.reshape(ops.cast(labels, "float32"), (-1,))
    _same_rows(labels, values)
    return ops.square(values - labels)


def divergence(task, logits, others):
    """How far two predictions of the same rows are apart: mean of the two Kullback-Leibler divergences, float32 (B,).

    Of the classes' probabilities; for `multilabel` the mean over the labels' yes and no; for `regression` half the
    squared difference, which is the divergence of two normal distributions of variance 1.

    Args:
        task: classify, multilabel or regression.
        logits: of one prediction, (B, C).
        others: of the other, (B, C).
    """
    a, b = _scores(logits), _scores(others)
    if task == "regression":
        return ops.sum(ops.square(a - b), axis=-1) / 2.0
    if task == "multilabel":
        return ops.mean((ops.sigmoid(a) - ops.sigmoid(b)) * (a - b), axis=-1) / 2.0
    log_p, log_q = ops.log_softmax(a, axis=-1), ops.log_softmax(b, axis=-1)
    return ops.sum((ops.exp(log_p) - ops.exp(log_q)) * (log_p - log_q), axis=-1) / 2.0


def soft_loss(task, teacher_logits, logits, temperature=1.0):
    """How far a student's prediction is from a teacher's, float32 (B,), nats.

    * `classify`: T^2 times the cross entropy of softmax(student / T) under softmax(teacher / T), summed over classes.
      It is smallest, T^2 times the entropy of the teacher's prediction, where the two are equal. T^2 keeps the gradient
      as large as at T = 1. Hinton et al. 2015, arXiv 1503.02531; TinyBERT (arXiv 1909.10351), eq. 10, with T = 1.
    * `multilabel`: the same of each label's yes and no, mean over the labels.
    * `regression`: squared error; the temperature has no part in it.

    Args:
        task: classify, multilabel or regression.
        teacher_logits: (B, C); a class at -1e9 or below has no share.
        logits: of the student, (B, C).
        temperature: T, above 0.

    Raises:
        ValueError: the shapes differ.
    """
    teacher, student = _scores(teacher_logits), _scores(logits)
    if teacher.shape[1:] != student.shape[1:]:
        raise ValueError(
            f"Teacher and student must have the same classes. Received: shapes {teacher.shape} and {student.shape}."
        )
    _same_rows(teacher, student)
    if task == "regression":
        return ops.sum(ops.square(teacher - student), axis=-1)
    teacher, student = teacher / temperature, student / temperature
    if task == "multilabel":
        return temperature**2 * ops.mean(ops.softplus(student) - ops.sigmoid(teacher) * student, axis=-1)
    return -(temperature**2) * ops.sum(ops.softmax(teacher, axis=-1) * ops.log_softmax(student, axis=-1), axis=-1)


def states_error(states, others, mask):
    """Mean squared error of two sequences of vectors over the tokens of each row, padding aside.

    Args:
        states: (B, L, H).
        others: (B, L, H).
        mask: 1 on tokens, 0 on padding, (B, L).

    Returns:
        float32 (B,); 0 for a row without tokens.
    """
    error = ops.mean(ops.square(ops.cast(states, "float32") - ops.cast(others, "float32")), axis=-1)
    mask = ops.cast(mask, "float32")
    return ops.sum(error * mask, axis=-1) / ops.maximum(ops.sum(mask, axis=-1), 1.0)


def scores_error(scores, others, mask):
    """Mean squared error of two sets of attention scores over heads and pairs of tokens of each row, padding aside.

    Scores are those before padding is blocked and before the softmax, so no large negative number takes part.

    Args:
        scores: (B, A, L, L).
        others: (B, A, L, L).
        mask: 1 on tokens, 0 on padding, (B, L).

    Returns:
        float32 (B,); 0 for a row without tokens.
    """
    error = ops.mean(ops.square(ops.cast(scores, "float32") - ops.cast(others, "float32")), axis=1)  # (B, L, L)
    mask = ops.cast(mask, "float32")
    pairs = mask[:, :, None] * mask[:, None, :]
    return ops.sum(error * pairs, axis=(1, 2)) / ops.maximum(ops.sum(pairs, axis=(1, 2)), 1.0)


def joint_matrix(labels, logits, weights=None):
    """Sum over rows of weight x one-hot x probabilities: float64 (C, C), label by row, prediction by column.

    Small singular values magnify rounding, hence float64: in float32 the result would depend on the replicas.
    """
    logits = ops.cast(_scores(logits), "float64")
    targets = ops.cast(_targets(labels, logits), "float64")
    if weights is not None:
        targets = targets * ops.cast(weights, "float64")[:, None]
    return ops.matmul(ops.transpose(targets), ops.softmax(logits, axis=-1))


def dmi_of_joint(joint, num_rows):
    """-log |det(joint / num_rows)|, regularised; float32.

    |det| is the product of the singular values; one below 1e-3 / C counts as 1e-3 / C and has no gradient (a perfect
    classifier on balanced classes has 1 / C everywhere). So loss and gradient stay finite when the matrix is singular,
    and a class that is missing from the batch adds a constant. The value does not depend on the number of rows, and
    may be negative.
    """
    joint = ops.cast(ops.convert_to_tensor(joint), "float64")
    singular_values = ops.svd(joint / ops.cast(num_rows, "float64"), compute_uv=False)
    bounded = ops.maximum(singular_values, DMI_REGULARISER / joint.shape[-1])
    return ops.cast(-ops.sum(ops.log(bounded)), "float32")


def dmi_loss(labels, logits, weights=None, all_sum: Callable[[Any], Any] | None = None):
    """Determinant-based mutual information: robust to noisy labels. Start from a model trained with cross entropy.

    Args:
        labels: class ids (B,) or one-hot (B, C), any numeric dtype.
        logits: (B, C), any float dtype.
        weights: of the rows, (B,), or None.
        all_sum: sums a tensor over the replicas. The joint matrix is then that of the global batch, while its
            gradient is this replica's share: sum the gradients over the replicas.

    Returns:
        Scalar, nats; may be negative. The same on every replica.

    Raises:
        ValueError: the shapes differ.

    Source: Xu et al. 2019, arXiv 1909.03388, eq. 7, with the joint matrix divided by the number of rows.
    """
    joint = joint_matrix(labels, logits, weights)
    num_rows = ops.sum(joint)
    if all_sum is not None:
        joint = joint + ops.stop_gradient(all_sum(joint) - joint)
        num_rows = all_sum(num_rows)
    return dmi_of_joint(joint, ops.stop_gradient(ops.maximum(num_rows, 1e-9)))


@dataclass(frozen=True)
class Loss:
    """A chosen loss: `rows(labels, logits) -> (B,)`, or None where the loss needs the whole batch (DMI)."""

    name: str
    rows: Callable[[Any, Any], Any] | None


def make_loss(
    name: str,
    task: str = "classify",
    *,
    focal_gamma: float = 2.0,
    focal_alpha: float | Sequence[float] = 0.25,
    label_smoothing: float = 0.0,
) -> Loss:
    """The loss of a task by name.

    Raises:
        ConfigError: the name is unknown, or does not go with the task or the smoothing.
    """
    if name not in LOSSES:
        raise ConfigError(f"A loss is one of {', '.join(LOSSES)}. Received: {name!r}.")
    if not 0 <= label_smoothing < 1:
        raise ConfigError(f"label_smoothing must be in [0, 1). Received: {label_smoothing}.")
    if task != "classify" and name != "ce":
        raise ConfigError(f"The task {task} has one loss, ce (its cross entropy or squared error). Received: {name!r}.")
    if label_smoothing and (task == "regression" or name == "dmi"):
        raise ConfigError(f"label_smoothing needs a cross entropy. Received: {label_smoothing} with {name}, {task}.")
    if name == "focal" and not 0 <= focal_gamma < math.inf:
        raise ConfigError(f"focal_gamma must be >= 0. Received: {focal_gamma}.")
    if name == "focal" and not np.all((np.asarray(focal_alpha) >= 0) & np.isfinite(focal_alpha)):
        raise ConfigError(f"focal_alpha must be >= 0. Received: {focal_alpha}.")
    if task == "regression":
        return Loss("squared error", squared_error)
    if task == "multilabel":
        return Loss(name, lambda labels, logits: binary_cross_entropy(labels, logits, label_smoothing))
    if name == "ce":
        return Loss(name, lambda labels, logits: cross_entropy(labels, logits, label_smoothing))
    if name == "focal":
        return Loss(name, lambda labels, logits: focal(labels, logits, focal_gamma, focal_alpha, label_smoothing))
    return Loss(name, None)
