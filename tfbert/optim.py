"""Optimizers that update each replica's copy with TensorFlow's fused kernels, and learning rates as plain functions.

The trainer hands over gradients that are already summed over the replicas, equal on each. So every replica updates
its own copy of a variable, clipping sees the global gradient, and the decision to skip a step that overflowed is the
same everywhere.
"""

import math
import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfbert.choices import OPTIMIZERS, SCHEDULES
from tfbert.errors import ConfigError
from tfbert.progress import logger

_INITIAL_LOSS_SCALE = 2.0**15
_GROW_AFTER = 2000  # steps without overflow before the loss scale doubles

Schedule = Callable[[int], float]


def schedule(
    name: str,
    learning_rate: float,
    warmup_steps: int,
    total_steps: int,
    *,
    end_learning_rate: float = 0.0,
    power: float = 1.0,
) -> Schedule:
    """Learning rate of a step, counted from 0.

    It rises to `learning_rate` in `warmup_steps` steps, then falls as `remaining` says from there to
    `end_learning_rate` behind the last step. The first and the last step have a rate above 0.

    Args:
        name: one of `choices.SCHEDULES`.
        learning_rate: the highest.
        warmup_steps: steps of the rise, at least 0.
        total_steps: of the whole schedule.
        end_learning_rate: where the fall ends; without meaning for `constant`.
        power: of `polynomial`.

    Raises:
        ConfigError: the name is unknown or a number is out of range.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"A schedule is one of {', '.join(SCHEDULES)}. Received: {name!r}.")
    if warmup_steps < 0 or learning_rate <= 0:
        raise ConfigError(
            f"warmup_steps must be >= 0 and learning_rate > 0. Received: {warmup_steps} and {learning_rate}."
        )
    if not 0 <= end_learning_rate <= learning_rate or power <= 0:
        raise ConfigError(
            "The learning rate ends between 0 and its peak, by a power > 0. "
            f"Received: {end_learning_rate} of {learning_rate}, power {power}."
        )
    falling = max(1, total_steps - warmup_steps)

    def rate(step: int) -> float:
        if step < warmup_steps:
            return learning_rate * (step + 1) / warmup_steps
        left = remaining(name, min(1.0, 1.0 - (total_steps - step) / falling), power)
        return end_learning_rate + (learning_rate - end_learning_rate) * left

    return rate


def remaining(name: str, done: float, power: float = 1.0) -> float:
    """How much of the way from the peak to the end a learning rate has still to fall, 1 to 0.

    Args:
        name: `linear` 1 - p, `cosine` (1 + cos(pi p)) / 2, `polynomial` (1 - p)^power, `constant` 1.
        done: p, share of the fall that is over, from 0 to 1.
        power: of `polynomial`.

    Source: Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5 (cosine).
    """
    if name == "constant":
        return 1.0
    if name == "cosine":
        return (1.0 + math.cos(math.pi * done)) / 2.0
    return max(0.0, 1.0 - done) ** (power if name == "polynomial" else 1.0)


def layer_factors(paths: Sequence[str], decay: float) -> list[float]:
    """What the learning rate of each variable is multiplied with: the lower its layer, the less it moves.

    The head has 1, the top layer of the encoder `decay`, each layer below it `decay` times the one above, the
    embeddings `decay ** (layers + 1)`. The pooler counts as head.

    Args:
        paths: of Keras variables, such as `encoder/Encoder-1-FeedForward/W1`.
        decay: above 0, at most 1.

    Source: Howard & Ruder 2018, arXiv 1801.06146, section 3.2 (discriminative fine-tuning), for transformers as in
    Clark et al. 2020, arXiv 2003.10555 (ELECTRA), where the head has a layer of its own too.
    """
    layers = [re.search(r"\bEncoder-(\d+)-", path) for path in paths]
    head = 1 + max((int(layer[1]) for layer in layers if layer), default=0)
    depths = [
        int(layer[1]) if layer else 0 if re.search(r"\bEmbedding-", path) else head
        for path, layer in zip(paths, layers, strict=True)
    ]
    return [decay ** (head - depth) for depth in depths]


def decays(variable) -> bool:
    """Weight decay touches matrices (kernels, embeddings), not biases and norms."""
    return len(variable.shape) >= 2


class Optimizer(tf.Module):
    """Base: clipping, decoupled weight decay, loss scaling; `_update` is the rule.

    Make it inside the strategy's scope. `apply` is called in replica context.

    Args:
        variables: Keras variables to train.
        weight_decay: share of a matrix subtracted each step, times the learning rate.
        clip_norm: largest norm of the whole gradient, or None.
        loss_scaling: scale the loss for float16, skip steps whose gradient is not finite.
        rate_factors: what the learning rate is multiplied with, one a variable; None is 1 for all.
    """

    def __init__(
        self,
        variables: Sequence,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        loss_scaling: bool = False,
        rate_factors: Sequence[float] | None = None,
    ):
        super().__init__()
        self.trained = [v.value if hasattr(v, "value") and not isinstance(v, tf.Variable) else v for v in variables]
        self.weight_decay, self.clip_norm, self.loss_scaling = weight_decay, clip_norm, loss_scaling
        self.iterations = _replicated(tf.zeros((), tf.int64), "iterations")
        if loss_scaling:
            self.loss_scale = _replicated(tf.constant(_INITIAL_LOSS_SCALE), "loss_scale")
            self.good_steps = _replicated(tf.zeros((), tf.int64), "good_steps")
        self._rate_factors = [1.0] * len(self.trained) if rate_factors is None else list(rate_factors)
        if len(self._rate_factors) != len(self.trained):
            raise ValueError(
                f"rate_factors has one number a variable. Received: {len(self._rate_factors)} for {len(self.trained)}."
            )
        self._decays = [decays(v) and weight_decay > 0 for v in self.trained]
        logger.info(
            "optimizer: %d variables, weight decay %g on %d of them", len(self.trained), weight_decay, sum(self._decays)
        )

    def state(self) -> dict[str, tf.Variable]:
        """What the optimizer remembers, by name."""
        state = {"iterations": self.iterations}
        if self.loss_scaling:
            state |= {"loss_scale": self.loss_scale, "good_steps": self.good_steps}
        return state

    def scale_loss(self, loss):
        return loss * self.loss_scale if self.loss_scaling else loss

    def apply(self, gradients, learning_rate):
        """Updates the variables from summed gradients.

        Args:
            gradients: dense, in the order of the variables, of the scaled loss.
            learning_rate: float32 scalar.

        Returns:
            Norm of the gradient before clipping, float32 scalar; not finite where the step was skipped.
        """
        if self.loss_scaling:
            gradients = [g / self.loss_scale for g in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            factor = tf.minimum(1.0, self.clip_norm / tf.maximum(norm, 1e-12))
            gradients = [g * factor for g in gradients]

        def update():
            shared = self._shared(tf.cast(self.iterations, tf.float32) + 1.0)
            rates = {factor: learning_rate * factor for factor in set(self._rate_factors)}
            decays = {factor: rate * self.weight_decay for factor, rate in rates.items()}
            for i, (variable, gradient) in enumerate(zip(self.trained, gradients, strict=True)):
                factor = self._rate_factors[i]
                if self._decays[i]:
                    _subtract(variable, decays[factor] * variable)
                self._update(i, variable, gradient, rates[factor], shared)
            tf.raw_ops.AssignAddVariableOp(resource=self.iterations.handle, value=tf.ones((), tf.int64))
            return tf.constant(True)

        if not self.loss_scaling:
            update()
            return norm
        finite = tf.math.is_finite(norm)
        tf.cond(finite, update, lambda: tf.constant(False))
        good = tf.where(finite, self.good_steps + 1, tf.zeros((), tf.int64))
        grow = good >= _GROW_AFTER
        scale = tf.where(finite, tf.where(grow, self.loss_scale * 2.0, self.loss_scale), self.loss_scale / 2.0)
        _assign(self.loss_scale, tf.clip_by_value(scale, 1.0, 2.0**24))
        _assign(self.good_steps, tf.where(grow, tf.zeros((), tf.int64), good))
        return norm

    def _shared(self, step) -> dict[str, tf.Tensor]:
        """Arguments of the kernel that are the same for every variable: they stand once in the graph."""
        return {}

    def _update(self, index, variable, gradient, rate, shared):
        raise NotImplementedError


class AdamW(Optimizer):
    """Adam with bias correction and decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

    def __init__(self, variables, beta_1=0.9, beta_2=0.999, epsilon=1e-6, **kwargs):
        super().__init__(variables, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.first_moments = [_replicated(tf.zeros(v.shape), "m") for v in self.trained]
        self.second_moments = [_replicated(tf.zeros(v.shape), "v") for v in self.trained]

    def state(self) -> dict[str, tf.Variable]:
        moments = {f"m/{i}": m for i, m in enumerate(self.first_moments)}
        return super().state() | moments | {f"v/{i}": v for i, v in enumerate(self.second_moments)}

    def _shared(self, step):
        beta_1, beta_2 = tf.constant(self.beta_1), tf.constant(self.beta_2)
        return {
            "beta1_power": tf.pow(beta_1, step),
            "beta2_power": tf.pow(beta_2, step),
            "beta1": beta_1,
            "beta2": beta_2,
            "epsilon": tf.constant(self.epsilon),
        }

    def _update(self, index, variable, gradient, rate, shared):
        first, second = self.first_moments[index], self.second_moments[index]
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=first.handle, v=second.handle, lr=rate, grad=gradient, **shared
        )


class Lamb(AdamW):
    """Adam whose step of each matrix is as long as the matrix, times the learning rate; for very large batches.

    With u = m / (sqrt(v) + epsilon) + weight_decay w, both moments corrected, a matrix w moves by -rate |w| / |u| u;
    by -rate u where one of the norms is 0. Biases and norms take Adam's step.

    Source: You et al. 2020, arXiv 1904.00962, algorithm 2 with the identity as its function phi.
    """

    def __init__(self, variables, **kwargs):
        super().__init__(variables, **kwargs)
        self._decays = [False] * len(self.trained)  # it is part of the step here

    def _shared(self, step):
        shared = super()._shared(step)
        # the kernel's epsilon belongs to the raw moment
        return shared | {"epsilon": self.epsilon * tf.sqrt(1.0 - shared["beta2_power"])}

    def _update(self, index, variable, gradient, rate, shared):
        before = tf.convert_to_tensor(variable)
        # the fused kernel moves the variable by Adam's step: plain operations would be rewritten to bfloat16 on CPUs
        super()._update(index, variable, gradient, tf.ones(()) if decays(variable) else rate, shared)
        if not decays(variable):
            return
        move = before - tf.convert_to_tensor(variable) + self.weight_decay * before
        length, size = tf.norm(move), tf.norm(before)
        trust = tf.where((length > 0) & (size > 0), size / tf.maximum(length, 1e-30), 1.0)
        _assign(variable, before - rate * trust * move)


class SGD(Optimizer):
    """Plain gradient descent."""

    def _update(self, index, variable, gradient, rate, shared):
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def make_optimizer(name: str, variables: Sequence, **settings) -> Optimizer:
    """An optimizer by name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in OPTIMIZERS:
        raise ConfigError(f"An optimizer is one of {', '.join(OPTIMIZERS)}. Received: {name!r}.")
    return {"adamw": AdamW, "lamb": Lamb, "sgd": SGD}[name](variables, **settings)


def _replicated(value, name):
    """A variable with a copy on every replica; the copies stay equal because their updates are."""
    return tf.Variable(value, trainable=False, name=name, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def _assign(variable, value):
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _subtract(variable, value):
    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=value)
