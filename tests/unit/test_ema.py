"""The moving average of the weights: its numbers, and where it stands in for them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_training import Arrays, Run, distance, make_model, make_store, train, weights_of

from tfbert.data.store import RowStore
from tfbert.loop.ema import WeightAverage
from tfbert.loop.trainer import Trainer

pytestmark = pytest.mark.usefixtures("logical_cpus", "eagerly")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RowStore:
    return make_store(tmp_path_factory.mktemp("ema") / "data.jsonl", 24)


class Steps(keras.callbacks.Callback):
    """The weights after every step, and at the end of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Arrays] = []
        self.ends: list[Arrays] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(weights_of(self.model))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(weights_of(self.model))


def shadows_of(run: Run) -> Arrays:
    assert run.trainer.average is not None
    return {path: v.numpy() for path, v in run.trainer.average.shadows.items()}


def averaged(start: Arrays, steps: list[Arrays], decay: float) -> Arrays:
    """In float64."""
    shadows = {name: value.astype(np.float64) for name, value in start.items()}
    for t, weights in enumerate(steps, 1):
        d = min(decay, (1 + t) / (10 + t))
        shadows = {name: d * shadow + (1 - d) * weights[name] for name, shadow in shadows.items()}
    return {name: value.astype(np.float32) for name, value in shadows.items()}


@pytest.mark.parametrize("decay", [0.25, 0.999])
def test_the_average_is_that_of_numpy_on_any_number_of_replicas(store: RowStore, decay: float) -> None:
    settings: dict[str, Any] = {"optimizer": "adamw", "rate": 0.01, "epochs": 2, "ema": decay}
    watch, two = Steps(), Steps()
    run = train(store, callbacks=[watch], **settings)
    other = train(store, "cpu:2", callbacks=[two], accumulate=2, **settings)
    expected = averaged(weights_of(make_model()[1]), watch.steps, decay)
    assert len(watch.steps) == 6
    assert distance(shadows_of(run), expected) < 1e-6
    assert distance(expected, run.weights) > 1e-3
    assert distance(shadows_of(run), shadows_of(other)) < 1e-5
    for variable in other.trainer.average.shadows.values():
        copies = other.trainer.strategy.experimental_local_results(variable)
        np.testing.assert_array_equal(copies[0].numpy(), copies[1].numpy())


def test_an_epoch_is_judged_and_kept_by_the_average_and_training_goes_on_without(store: RowStore) -> None:
    seen: list[Arrays] = []
    models: list[Any] = []

    def validate() -> dict[str, float]:
        seen.append(weights_of(models[0]))
        return {"loss": 1.0}

    watch = Steps()
    run = train(
        store,
        "cpu:2",
        rate=0.5,
        epochs=2,
        ema=0.9,
        callbacks=[watch],
        validate=validate,
        prepare=lambda trainer: models.append(trainer.model),
    )
    plain = train(store, "cpu:2", rate=0.5, epochs=2)
    assert distance(run.weights, plain.weights) == 0
    start = weights_of(make_model()[1])
    for epoch in range(2):
        expected = averaged(start, watch.steps[: 3 * epoch + 3], 0.9)
        assert distance(seen[epoch], watch.ends[epoch]) == 0
        assert distance(seen[epoch], expected) < 1e-6
        assert distance(seen[epoch], watch.steps[3 * epoch + 2]) > 1e-3


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_a_skipped_step_does_not_count(store: RowStore, devices: str) -> None:
    """With float16 a step may overflow: neither weights nor average move."""

    def raise_scale(trainer: Trainer) -> None:
        trainer.optimizer.loss_scale.assign(2.0**18)
        trainer.model.output_dense.kernel.assign(trainer.model.output_dense.kernel * 50)

    watch = Steps()
    settings: dict[str, Any] = {"head": "mean", "dtype": "mixed_float16"}
    run = train(
        store,
        devices,
        rate=0.01,
        epochs=3,
        ema=0.9,
        callbacks=[watch],
        prepare=raise_scale,
        settings=settings,
        optimizer_settings={"loss_scaling": True},
    )
    start = weights_of(make_model(**settings)[1])
    start = {n: w * (50 if n == run.trainer.model.output_dense.kernel.path else 1) for n, w in start.items()}
    before = [start, *watch.steps]
    made = [b for a, b in zip(before, watch.steps, strict=False) if distance(a, b) > 0]
    assert 0 < len(made) == run.trainer.optimizer.iterations.numpy() < len(watch.steps)
    shadows = shadows_of(run)
    assert all(value.dtype == np.float32 for value in shadows.values())
    # the shadow was made before the kernel was multiplied: it alone starts from another value
    shadows.pop(run.trainer.model.output_dense.kernel.path)
    expected = {name: value for name, value in averaged(start, made, 0.9).items() if name in shadows}
    assert distance(shadows, expected) < 1e-6


def test_a_frozen_encoder_has_no_average(store: RowStore) -> None:
    run = train(store, frozen=True, ema=0.9)
    assert {path.split("/")[-2] for path in shadows_of(run)} == {"Head-Dense", "Head-Output"}


def test_an_average_of_another_scope_is_refused() -> None:
    """Case 088."""
    strategy, model = make_model("cpu:2")
    from tfbert.losses import make_loss
    from tfbert.objectives.classification import Classification
    from tfbert.optim import make_optimizer

    with strategy.scope():
        optimizer = make_optimizer("sgd", model.trainable_variables)
    average = WeightAverage(make_model()[1].trainable_variables, 0.9, tf.distribute.get_strategy())
    with pytest.raises(ValueError, match=r"average must be made inside strategy\.scope\(\)"):
        Trainer(Classification(model, make_loss("ce")), optimizer, strategy, lambda step: 0.1, average=average)
