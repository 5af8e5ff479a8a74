"""The training loop: callbacks, early ends, and what stops it."""

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_training import distance, make_model, make_store, train, weights_of

from tfbert.data.feed import FeedSettings, make_batch
from tfbert.data.store import RowStore
from tfbert.errors import TrainingError
from tfbert.loop.trainer import Trainer
from tfbert.losses import Loss
from tfbert.model.encoder import INPUTS

pytestmark = pytest.mark.usefixtures("logical_cpus", "eagerly")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RowStore:
    return make_store(tmp_path_factory.mktemp("trainer") / "data.jsonl", 12)


def test_the_loss_of_a_step_is_the_weighted_mean_over_its_rows(store: RowStore) -> None:
    """Against Keras' loss and accuracy, over batches of 5, 5 and 2 rows, at a rate that changes nothing."""
    run = train(store, batch=5, rate=1e-30)
    model = run.trainer.model
    records = store.read(range(12))
    losses, hits, weights = [], [], np.array([r.weight for r in records])
    for record in records:
        ids = np.array([record.token_ids], np.int32)
        logits = model({"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1})
        label = np.array([record.label])
        losses.append(float(keras.losses.sparse_categorical_crossentropy(label, logits, from_logits=True)[0]))
        hits.append(int(np.argmax(logits[0])) == record.label)
    assert run.logs[0]["loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-5)
    assert run.logs[0]["accuracy"] == pytest.approx(np.mean(hits))
    assert run.logs[0]["learning_rate"] == 1e-30


@pytest.mark.parametrize(("devices", "accumulate"), [("cpu:1", 1), ("cpu:1", 3), ("cpu:2", 2)])
def test_a_step_descends_the_gradient_of_the_weighted_mean(store: RowStore, devices: str, accumulate: int) -> None:
    """One step over all 12 rows, against Keras' loss and a plain tape."""
    run = train(store, devices, batch=12, rate=0.5, accumulate=accumulate)
    _, model = make_model()
    feed = FeedSettings(0, 32, task="classify", num_classes=3)
    batch = make_batch(store, np.arange(12), feed, 1)
    with tf.GradientTape() as tape:
        logits = model({name: batch[name] for name in INPUTS})
        each = keras.losses.sparse_categorical_crossentropy(batch["labels"], logits, from_logits=True)
        loss = tf.reduce_sum(each * batch["weights"]) / batch["weights"].sum()
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(loss, [v.value for v in model.trainable_variables]), strict=True
    ):
        expected = variable.numpy() - 0.5 * tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(run.weights[variable.path], expected, rtol=0, atol=1e-6)


def test_keras_callbacks_work(store: RowStore, tmp_path: Path) -> None:
    """Files of weights and logs appear; early stopping gives back the best weights."""
    losses = iter([0.5, 0.3, 0.4, 0.6, 0.1])
    path = tmp_path / "{epoch:02d}.weights.h5"
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True, mode="min"),
    ]
    run = train(store, "cpu:2", epochs=5, rate=0.5, callbacks=callbacks, validate=lambda: {"loss": next(losses)})
    assert [log["val_loss"] for log in run.logs] == [0.5, 0.3, 0.4, 0.6]
    assert sorted(p.name for p in tmp_path.glob("*.h5")) == [f"0{i}.weights.h5" for i in range(1, 5)]
    assert len((tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()) == 5
    run.trainer.model.load_weights(tmp_path / "02.weights.h5")
    assert distance(weights_of(run.trainer.model), run.weights) == 0


def test_a_callback_ends_the_training_in_the_middle_of_an_epoch(store: RowStore) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    run = train(store, batch=2, epochs=3, callbacks=[Stop()])
    assert (run.batches, len(run.logs)) == (2, 1)
    assert (run.trainer.totals.steps, run.trainer.totals.rows) == (2, 4)


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(store: RowStore) -> None:
    """Case 115."""

    def spoil(trainer: Trainer) -> None:
        trainer.learning_rate = lambda step: 0.1 if step < 2 else 1e30

    with pytest.raises(TrainingError, match=r"loss and its gradient must be finite.* at step [45]\. The best weights"):
        train(store, batch=2, prepare=spoil)


@pytest.mark.parametrize("scaling", [False, True])
def test_a_gradient_that_is_not_finite_in_the_last_step_ends_the_run(store: RowStore, scaling: bool) -> None:
    """The loss still is, and the weights are spoilt; under loss scaling the step is skipped instead."""

    def spoil(trainer: Trainer) -> None:
        rows = trainer.objective.loss.rows
        assert rows is not None

        def broken(labels: Any, logits: Any) -> Any:
            if trainer.step < 5:
                return rows(labels, logits)
            return rows(labels, logits) + tf.sqrt(tf.reduce_sum(logits, -1) * 0.0)  # 0, with an infinite derivative

        trainer.objective.loss = Loss("broken", broken)

    settings: dict[str, Any] = {"batch": 2, "prepare": spoil, "optimizer_settings": {"loss_scaling": scaling}}
    if scaling:
        run = train(store, **settings)
        assert run.trainer.optimizer.iterations.numpy() == 5
        assert all(np.isfinite(weight).all() for weight in run.weights.values())
    else:
        with pytest.raises(TrainingError, match=r"gradient norm (nan|inf) at step 6\."):
            train(store, **settings)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_validation_loss_that_is_not_finite_ends_the_run_before_anything_is_saved(
    store: RowStore, value: float
) -> None:
    """Case 115."""
    saved: list[int] = []

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            saved.append(epoch)

    values = iter([0.5, value])
    with pytest.raises(TrainingError, match=r"validation loss must be finite\. Received: (nan|inf) after epoch 2"):
        train(store, epochs=3, callbacks=[Save()], validate=lambda: {"loss": next(values)})
    assert saved == [0]


def test_a_variable_that_takes_no_part_is_named(store: RowStore) -> None:
    def cut(trainer: Trainer) -> None:
        trainer.model.features = lambda inputs, training, seed: tf.zeros((len(inputs["token_ids"]), 16))

    with pytest.raises(ValueError, match="Every trained variable must take part in the loss"):
        train(store, prepare=cut)


def test_any_seed_is_taken(store: RowStore) -> None:
    runs = [train(store, seed=seed, settings={"head_dropout": 0.5}) for seed in (5, 2**31 + 5, 2**40)]
    assert distance(runs[0].weights, runs[1].weights) == 0
    assert distance(runs[0].weights, runs[2].weights) > 0
