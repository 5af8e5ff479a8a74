"""The training loop: the same numbers on one device and on many.

Stock Keras `fit` averages per replica, clips before the all-reduce, draws one dropout mask for all replicas and repeats
rows on resume. This loop works with global sums instead. For a global batch of weights w and row losses l

    loss = sum(w * l) / sum(w)

over all replicas and micro-batches; gradients are summed over the replicas, then clipped and applied once. Dropout
masks are a function of (seed, step, micro-batch, replica), batches one of (seed, epoch), so step k is the same step
whether or not the run was interrupted. Keras callbacks work, but for those that look into `model.optimizer`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbert.errors import LossNotFinite, TrainingError
from tfbert.loop.adversarial import FastGradient
from tfbert.loop.ema import WeightAverage
from tfbert.model.encoder import INPUTS
from tfbert.model.heads import Classifier
from tfbert.objectives.base import Objective
from tfbert.objectives.classification import FEATURES
from tfbert.optim import Optimizer, Schedule
from tfbert.strategy import all_sum, gather, sum_over_workers

_REMEDY = "The best weights so far are kept. Lower the learning rate, or warm up longer."
_COUNTED = ("loss", "rows", "tokens", "cells")  # of every step, summed over the replicas
MOST_SKIPPED = 50  # steps in a row; halving takes the loss scale from 2^15 to 1 in 15
FETCH_EVERY = 10  # steps between looks at the device's numbers, so that the device need not wait for the host


@dataclass
class StepTotals:
    """Sums over the steps of an epoch, global."""

    loss: float = 0.0
    weight: float = 0.0
    rows: float = 0.0
    tokens: float = 0.0
    cells: float = 0.0
    steps: int = 0
    gradient_norm: float = 0.0  # of the last step
    sums: dict[str, float] = field(default_factory=dict)  # of the objective

    def add(self, numbers: Mapping[str, float], sums: Mapping[str, float]) -> None:
        """Adds a step."""
        for name, value in numbers.items():
            setattr(self, name, getattr(self, name) + value)
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.steps += 1

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.weight, 1e-9)

    @property
    def padding_share(self) -> float:
        return 1.0 - self.tokens / self.cells if self.cells else 0.0


@dataclass(frozen=True)
class StepNumbers:
    """What a step gave: its number in the stage and in the epoch (from 1; the epoch from 0), mean loss, gradient norm.

    A step that loss scaling skipped is finite if its loss is. Where steps take several batches of the plan,
    `epoch_step` counts these, and `num_batches` is how many this step took.
    """

    number: int
    epoch: int
    epoch_step: int
    loss: float
    gradient_norm: float
    finite: bool
    num_batches: int = 1


@dataclass(frozen=True)
class Epoch:
    """One epoch of work: its number from 0, its batches on the replicas, how many there are and where it begins.

    With `per_step` above 1 a step takes so many batches of the plan at once, which are counted in its stead.
    """

    number: int
    batches: Iterator
    num_steps: int
    first_step: int = 0
    per_step: int = 1


class Trainer:
    """Trains a model under a strategy. Make the model and the optimizer inside `strategy.scope()`.

    Args:
        objective: what is minimised, and the model.
        optimizer: holds the variables that are trained.
        strategy: whose replicas share the work.
        learning_rate: function of the number of batches so far, which is that of the updates where each takes one.
        accumulate: micro-batches a step; with `micro_rows`, the most.
        seed: of the dropout masks.
        micro_rows: rows of a replica in a micro-batch, at most; so batches of fewer rows take fewer micro-batches.
        adversary: a second pass over the batch, against the embedding moved so; its gradients are added.
        average: follows the trained variables; is in the model while it is validated and an epoch ends.
        gradient_dtype: what the replicas send each other.

    Raises:
        ValueError: the model or the optimizer was made outside the scope.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        strategy: tf.distribute.Strategy,
        learning_rate: Schedule,
        *,
        accumulate: int = 1,
        seed: int = 0,
        micro_rows: int | None = None,
        adversary: FastGradient | None = None,
        average: WeightAverage | None = None,
        gradient_dtype: str = "float32",
    ):
        _check_scope(strategy, objective.model, optimizer, *([average] if average is not None else []))
        self.objective, self.model, self.optimizer, self.strategy = objective, objective.model, optimizer, strategy
        self.learning_rate, self.accumulate, self.seed = learning_rate, accumulate, seed % 2**31
        self.micro_rows, self.adversary, self.average = micro_rows, adversary, average
        self.gradient_dtype = gradient_dtype
        if adversary is not None:
            self._adversary_index = [v is adversary.variable for v in optimizer.trained].index(True)
        self.model.stop_training = False  # a stage before may have stopped early
        self.step = 0  # optimizer updates asked for, over the stage
        self.rate_factor = 1.0  # what plateau reduction and recovery multiply the learning rate with
        self.retries = 0  # times that the stage went back to a saved state
        self.watchers: list[Callable[[StepNumbers], None]] = []  # told of every step, in order, soon after it
        self.totals = StepTotals()
        self.epoch = 0  # number of the epoch under way
        self.epoch_step = 0  # batches of it that were taken, one a step or several
        self.batches = 0  # the same, over the stage
        self._taken = 1  # of these by the last step
        self.wait_s = 0.0  # time the loop waited for data
        self._skipped = 0  # steps in a row that the optimizer left out
        self._pending: list = []  # what steps gave, as long as it is still on the devices
        self._train_function = None

    def logs(self) -> dict[str, float]:
        """Loss of the epoch so far, and the objective's numbers."""
        totals = self.totals
        known = dict.fromkeys(self.objective.sums, 0.0) | totals.sums | {"weight": totals.weight, "rows": totals.rows}
        return {"loss": totals.mean_loss} | self.objective.logs(known)

    @property
    def current_rate(self) -> float:
        return self.learning_rate(self.batches) * self.rate_factor

    @property
    def last_rate(self) -> float:
        """That of the last step."""
        return self.learning_rate(max(self.batches - self._taken, 0)) * self.rate_factor

    def position(self) -> dict[str, Any]:
        """Where the stage is, as plain values: with variables and callbacks, all that `go_to` needs."""
        self.flush()
        return {
            "step": self.step,
            "epoch": self.epoch,
            "epoch_step": self.epoch_step,
            "batches": self.batches,
            "rate_factor": self.rate_factor,
            "retries": self.retries,
            "accumulate": self.accumulate,
            "totals": asdict(self.totals),
        }

    def go_to(self, position: dict[str, Any]) -> None:
        """Takes up a position; the next epoch given to `fit` must begin there."""
        self.step, self.rate_factor = position["step"], position["rate_factor"]
        self.batches, self._taken = position.get("batches", self.step), 1
        self.retries = position.get("retries", 0)
        self._pending, self._skipped = [], 0
        if self.micro_rows is None:  # else it follows from the number of devices, which may be another one now
            self.cut_into(position.get("accumulate", self.accumulate))
        self.epoch, self.epoch_step = position["epoch"], position["epoch_step"]
        self.totals = StepTotals(**position["totals"])

    def fit(
        self,
        epochs: Iterator[Epoch],
        num_epochs: int,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        validate: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        """Runs epochs until they end or a callback sets `model.stop_training`, at the end of a step or an epoch.

        Args:
            epochs: the work, in order.
            num_epochs: for callbacks that show it.
            callbacks: Keras callbacks; `logs` of an epoch hold those of the trainer and what `validate` gave.
            validate: called after each epoch; its numbers get the prefix `val_`.

        Raises:
            LossNotFinite: the loss or its gradient is not.
            TrainingError: the validation loss is not finite.
        """
        hooks = keras.callbacks.CallbackList(list(callbacks), model=self.model, epochs=num_epochs)
        self.model.stop_training = False
        hooks.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in epochs:
            if not epoch.first_step:
                self.totals = StepTotals()
            self.epoch, self.epoch_step = epoch.number, epoch.first_step
            hooks.on_epoch_begin(epoch.number)
            logs = self._run_epoch(epoch, hooks)
            if self.average is not None:
                self.average.put_into_model()
            if validate is not None:
                logs |= {f"val_{name}": value for name, value in validate().items()}
                if not np.isfinite(logs.get("val_loss", 0.0)):
                    raise TrainingError(
                        f"The validation loss must be finite. Received: {logs['val_loss']} after epoch "
                        f"{epoch.number + 1}. {_REMEDY}"
                    )
            hooks.on_epoch_end(epoch.number, logs)
            if self.average is not None:
                self.average.take_out_of_model()
            if self.model.stop_training:
                break
        hooks.on_train_end(logs)

    def _run_epoch(self, epoch: Epoch, hooks: keras.callbacks.CallbackList) -> dict[str, float]:
        for number in range(epoch.first_step, epoch.num_steps, epoch.per_step):
            hooks.on_train_batch_begin(number)
            started = time.perf_counter()
            batch = next(epoch.batches)
            self.wait_s += time.perf_counter() - started
            taken = min(epoch.per_step, epoch.num_steps - number)
            self._pending.append((*self._take_step(batch, self.current_rate), number + taken, taken))
            self.step += 1
            self.epoch_step, self.batches, self._taken = number + taken, self.batches + taken, taken
            if len(self._pending) == FETCH_EVERY or self.epoch_step == epoch.num_steps:
                self.flush()
            hooks.on_train_batch_end(number, self.logs())
            if self.model.stop_training:
                break
        self.flush()
        return self.logs() | {"learning_rate": self.last_rate}

    def _take_step(self, batch, rate: float):
        arguments = (batch, tf.constant(rate, tf.float32), tf.constant(self.step, tf.int32))
        if self._train_function is None:
            self._train_function = compiled(self._train_on_replicas, self.strategy, self.objective.ragged, *arguments)
        return self._train_function(*arguments)

    def cut_into(self, accumulate: int) -> None:
        """Takes so many micro-batches a step from here on."""
        if accumulate != self.accumulate:
            self.accumulate, self._train_function = accumulate, None

    def rehearse(self, batch, accumulate: int) -> None:
        """A step that changes nothing: over rows of weight 0 at a rate of 0, by an optimizer that is as new.

        Args:
            batch: on the replicas; all weights are 0.
            accumulate: micro-batches.
        """
        self.cut_into(accumulate)
        counters = [v for v in self.optimizer.state().values() if not v.shape.rank]
        before = [v.numpy() for v in counters]
        try:
            for result in self._take_step(batch, 0.0):
                self._local(result)  # waits for the devices
        finally:
            for variable, value in zip(counters, before, strict=True):
                variable.assign(value)

    def flush(self) -> None:
        """Adds what the last steps gave to the totals.

        Raises:
            LossNotFinite: a loss or a gradient is not.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        steps = np.stack([self._local(sums) for sums, *_ in pending])
        steps = sum_over_workers(self.strategy, steps)  # one exchange for all of these steps
        for number, (values, (_, same, epoch_step, taken)) in enumerate(
            zip(steps.tolist(), pending, strict=True), self.step - len(pending) + 1
        ):
            weight, norm = self.strategy.experimental_local_results(same)[0].numpy().tolist()
            numbers, sums = dict(zip(_COUNTED, values, strict=False)), values[len(_COUNTED) :]
            loss = numbers["loss"]
            # with float16 the loss scale may be too large for a step, but not for one step after the other
            skipped = self.optimizer.loss_scaling and not np.isfinite(norm) and self._skipped < MOST_SKIPPED
            self._skipped = self._skipped + 1 if skipped else 0
            mean, finite = loss / max(weight, 1e-9), bool(np.isfinite(loss) and (np.isfinite(norm) or skipped))
            for watcher in self.watchers:  # an epoch ends with a look at all of its steps
                watcher(StepNumbers(number, self.epoch, epoch_step, mean, norm, finite, taken))
            if not finite:
                raise LossNotFinite(
                    f"The loss and its gradient must be finite. Received: loss {mean:g}, gradient norm {norm:g} at "
                    f"step {number}. {_REMEDY}"
                )
            self.totals.add(numbers | {"weight": weight}, dict(zip(self.objective.sums, sums, strict=True)))
            self.totals.gradient_norm = norm

    def _local(self, value) -> np.ndarray:
        """Sum over this process's replicas, float64."""
        return sum(part.numpy().astype(np.float64) for part in self.strategy.experimental_local_results(value))

    # -------------------------------------------------------------------------------------------- on the replicas

    def _train_on_replicas(self, batch, learning_rate, step):
        return self.strategy.run(self._replica_step, args=(batch, learning_rate, step))

    def _replica_step(self, batch, learning_rate, step):
        total_weights = tf.maximum(all_sum(self.objective.weight(batch)), 1e-9)
        summed, sums = self._gradients(batch, total_weights, step)
        if self.adversary is not None:
            with self.adversary.moved(all_sum(summed[self._adversary_index])):
                more, _ = self._gradients(batch, total_weights, step)
            summed = [a + b for a, b in zip(summed, more, strict=True)]
        total_weight = tf.reshape(total_weights, [-1])[0]
        norm = self.optimizer.apply(all_sum(summed, self.gradient_dtype), learning_rate)
        if self.average is not None:
            self.average.update(self.optimizer.iterations, tf.math.is_finite(norm))
        real = tf.cast(batch["weights"] > 0, tf.float32)
        mask = tf.cast(batch.get("padding_mask", tf.zeros((tf.shape(real)[0], 0))), tf.float32)
        counts = [tf.reduce_sum(real), tf.reduce_sum(mask * real[:, None]), tf.cast(tf.size(mask), tf.float32)]
        return tf.concat([sums[:1], counts, sums[1:]], 0), tf.stack([total_weight, norm])

    def _gradients(self, batch, total_weights, step):
        """Sums over the micro-batches of this replica, of gradients and of the numbers of the loss."""
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        rows = tf.shape(batch["weights"])[0]
        whole = self.micro_rows is None or self.accumulate == 1
        count = self.accumulate if whole else -(-rows // self.micro_rows)

        def micro_batch(k):
            part = slice(rows * k // count, rows * (k + 1) // count)
            draw = (step * self.accumulate + k) * replicas + context.replica_id_in_sync_group
            micro = {name: values[part] for name, values in batch.items()}
            return self._micro_step(micro, total_weights, tf.stack([draw, self.seed]))

        if self.accumulate == 1:
            summed, sums = micro_batch(0)
        else:  # a loop of the graph: one copy of the model in it, whatever the number of micro-batches

            def add(k, summed, sums):
                gradients, more = micro_batch(k)
                return k + 1, [a + b for a, b in zip(summed, gradients, strict=True)], sums + more

            zeros = [tf.zeros(v.shape, v.dtype) for v in self.optimizer.trained]
            start = (tf.constant(0), zeros, tf.zeros(1 + len(self.objective.sums)))
            _, summed, sums = tf.while_loop(lambda k, *_: k < count, add, start, parallel_iterations=1)
        return summed, sums

    def _micro_step(self, batch, total_weights, seed):
        """Dense gradients of this replica's share of the global loss, and the sums of loss and objective."""
        with tf.GradientTape() as tape:
            share, loss_sum, sums = self.objective(batch, total_weights, seed)
            share = self.optimizer.scale_loss(share)
        gradients = tape.gradient(share, self.optimizer.trained)
        missing = [v.name for v, g in zip(self.optimizer.trained, gradients, strict=True) if g is None]
        if missing:
            raise ValueError(f"Every trained variable must take part in the loss. Received: {missing} do not.")
        return [tf.convert_to_tensor(g) for g in gradients], tf.concat([loss_sum[None], sums], 0)


def _check_scope(strategy: tf.distribute.Strategy, model: keras.Model, *others: tf.Module) -> None:
    """Refuses variables without a copy a replica: each replica would update the one there is."""
    if strategy.num_replicas_in_sync == 1:
        return
    for variable in (*(v.value for v in model.variables), *(v for other in others for v in other.variables)):
        if not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                "Model, optimizer and average must be made inside strategy.scope(). "
                f"Received: {variable.name}, made outside of it."
            )


def compiled(function: Callable, strategy: tf.distribute.Strategy, ragged: Sequence[str], batch: dict, *rest):
    """`function` as one graph for batches of any number of rows and any length: it is traced once.

    Args:
        function: of a batch on the replicas, and of `rest`.
        strategy: whose replicas hold the batch.
        ragged: names of the arrays whose second dimension is left open.
        batch: an example; the first dimension is left open.
        rest: examples of the other arguments, of fixed shape.
    """

    def doubled(context):
        parts = {name: strategy.experimental_local_results(value) for name, value in batch.items()}
        larger = {}
        for name, values in parts.items():
            value = tf.repeat(values[context.replica_id_in_sync_group % len(values)], 2, axis=0)
            larger[name] = tf.repeat(value, 2, axis=1) if name in ragged else value
        return larger

    other = strategy.experimental_distribute_values_from_function(doubled)
    signature = {
        name: tf.type_spec_from_value(value).most_specific_common_supertype([tf.type_spec_from_value(other[name])])
        for name, value in batch.items()
    }
    specs = [tf.type_spec_from_value(value) for value in rest]
    return tf.function(function, input_signature=[signature, *specs], autograph=False)


class Scorer:
    """What the model gives for rows, on the replicas, without dropout.

    Args:
        model: the classifier.
        strategy: whose replicas share the rows.
    """

    def __init__(self, model: Classifier, strategy: tf.distribute.Strategy):
        self.model, self.strategy = model, strategy
        self._functions: dict[str, Callable] = {}

    def logits(self, batch) -> np.ndarray:
        """A batch of rows or of their features -> float32 logits of all rows, in order, (rows, num_outputs)."""
        if FEATURES in batch:
            return self._run("head", self.model.logits, batch[FEATURES])
        return self._run("logits", self.model, batch)

    def features(self, batch) -> np.ndarray:
        """A batch of rows -> what the encoder gives the head, float32, in order, (rows, F)."""
        return self._run("features", self.model.features, batch)

    def _run(self, name: str, function: Callable, value) -> np.ndarray:
        inputs = {key: value[key] for key in INPUTS} if isinstance(value, dict) else {FEATURES: value}

        def on_replicas(x):
            return self.strategy.run(lambda y: function(y.get(FEATURES, y), training=False), args=(x,))

        if name not in self._functions:
            self._functions[name] = compiled(on_replicas, self.strategy, INPUTS, inputs)
        return gather(self.strategy, self._functions[name](inputs))
