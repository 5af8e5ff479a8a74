"""The number of replicas never changes the result.

Most runs here are eager, which spares the tracing; some are compiled, as real runs are.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from tiny_training import (
    CONFIG,
    NO_DROPOUT,
    NUM_CLASSES,
    Run,
    distance,
    inputs_of,
    make_model,
    make_store,
    train,
    weights_of,
)

from tfbert.data.feed import FeedSettings, make_batch, place, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.loop.trainer import Scorer, Trainer
from tfbert.losses import make_loss
from tfbert.model.checkpoint import save_weights
from tfbert.objectives.classification import Classification
from tfbert.optim import make_optimizer
from tfbert.report import ClassifyScores
from tfbert.strategy import all_sum, log_devices, make_strategy

pytestmark = pytest.mark.usefixtures("logical_cpus")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


def compare(folder: Path, rows: int, replicas: tuple[int, ...], tolerance: float = 1e-5, **settings: Any) -> list[Run]:
    """Trains on one device and on several; weights, losses and step counts must agree."""
    store = make_store(folder / f"{rows}{settings.get('task', '')}.jsonl", rows, settings.get("task", "classify"))
    start = weights_of(make_model(**settings.get("settings", {}))[1]) if settings.get("task") != "regression" else None
    runs = [train(store, f"cpu:{n}", **settings) for n in (1, *replicas)]
    one = runs[0]
    if start is not None:
        assert distance(one.weights, start) > 100 * tolerance
    for run in runs[1:]:
        assert distance(run.weights, one.weights) < tolerance
        assert run.batches == one.batches
        assert run.trainer.optimizer.iterations.numpy() == one.trainer.optimizer.iterations.numpy()
        for a, b in zip(run.logs, one.logs, strict=True):
            assert a == pytest.approx(b, abs=tolerance)
    return runs


def test_compiled_runs_agree(folder: Path) -> None:
    """Cases 080 and 082: batches of 8, the last one short; with row weights, decay and clipping."""
    settings = {"weight_decay": 0.1, "clip_norm": 0.5}
    compare(folder, 33, (2,), optimizer="adamw", rate=0.01, optimizer_settings=settings)


@pytest.mark.parametrize(
    ("rows", "batch", "replicas"),
    [(37, 8, (2, 3)), (33, 9, (4,)), (10, 9, (3,)), (4, 9, (3,))],
)
@pytest.mark.usefixtures("eagerly")
def test_batches_that_do_not_divide_agree(folder: Path, rows: int, batch: int, replicas: tuple[int, ...]) -> None:
    """Cases 080, 081 and 082: the first, the last or the only batch is uneven; a replica has no row of its own."""
    compare(folder, rows, replicas, batch=batch, rate=0.5)


@pytest.mark.parametrize(
    ("settings", "replicas"),
    [
        ({"optimizer": "adamw", "rate": 0.01, "accumulate": 3, "batch": 9}, (2,)),
        ({"optimizer": "adamw", "rate": 0.01, "batch": 9, "epochs": 2}, (2,)),
        ({"rate": 5.0, "loss": "focal", "batch": 9, "class_weights": {0: 1.0, 1: 10.0}}, (3,)),
        ({"optimizer": "adamw", "rate": 0.01, "loss": "dmi", "batch": 9}, (2, 3)),
        ({"rate": 0.5, "task": "multilabel"}, (2,)),
        ({"rate": 0.1, "task": "regression"}, (2,)),
        ({"rate": 0.5, "batch_tokens": 80}, (3,)),
        ({"rate": 0.5, "settings": {"head": "cls"}, "optimizer_settings": {"clip_norm": 0.05}}, (2,)),
        ({"rate": 0.5, "settings": {"head": "mean"}, "frozen": True}, (2,)),
        ({"optimizer": "adamw", "rate": 0.01, "layer_decay": 0.5}, (2,)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("eagerly")
def test_losses_tasks_and_batch_rules_agree(folder: Path, settings: dict[str, Any], replicas: tuple[int, ...]) -> None:
    """Cases 081, 082 and 095."""
    compare(folder, 20, replicas, **settings)


@pytest.mark.parametrize("loss", ["ce", "focal", "dmi"])
@pytest.mark.usefixtures("eagerly")
def test_a_single_row_on_three_replicas_is_finite(folder: Path, loss: str) -> None:
    """Case 081."""
    store = make_store(folder / "1.jsonl", 1)
    one, three = (train(store, devices, loss=loss, rate=2.0) for devices in ("cpu:1", "cpu:3"))
    assert np.isfinite(three.logs[0]["loss"])
    assert three.logs[0] == pytest.approx(one.logs[0], abs=1e-5)
    assert distance(one.weights, three.weights) < 1e-5


@pytest.mark.usefixtures("eagerly")
def test_class_weights_count_in_every_loss(folder: Path) -> None:
    """Case 101: a row of weight 10 counts ten times, a class that is not named once."""
    store = make_store(folder / "weights.jsonl", 8)
    for loss in ("ce", "focal"):
        plain = train(store, loss=loss)
        weighted = train(store, loss=loss, class_weights={1: 10.0})
        named = train(store, loss=loss, class_weights={0: 1.0, 1: 10.0, 2: 1.0})
        assert distance(plain.weights, weighted.weights) > 1e-4
        assert distance(weighted.weights, named.weights) == 0


# ------------------------------------------------------------------------------------------------------- float16


@pytest.mark.parametrize(("head", "tolerance"), [("mean", 3e-4), ("pool", 5e-3)])
@pytest.mark.usefixtures("eagerly")
def test_float16_is_near_and_keeps_the_same_scale(folder: Path, head: str, tolerance: float) -> None:
    """Case 086: rounding alone, larger for the pool head, whose maximum may pick another token of equal value."""
    settings: dict[str, Any] = {"batch": 8, "rate": 0.1, "optimizer_settings": {"clip_norm": 0.5}}
    half = settings | {"settings": {"head": head, "dtype": "mixed_float16"}}
    half["optimizer_settings"] = {"clip_norm": 0.5, "loss_scaling": True}
    store = make_store(folder / "half.jsonl", 20)
    single = train(store, **settings | {"settings": {"head": head}})
    runs = [train(store, f"cpu:{n}", **half) for n in (1, 2)]
    for run in runs:
        assert distance(run.weights, single.weights) < tolerance
        assert run.logs[0]["loss"] == pytest.approx(single.logs[0]["loss"], abs=1e-3)
        assert run.trainer.optimizer.loss_scale.numpy() == 2**15
        assert run.trainer.optimizer.iterations.numpy() == 3
    assert distance(runs[0].weights, runs[1].weights) < tolerance


@pytest.mark.parametrize(("loss", "devices"), [("ce", "cpu:1"), ("focal", "cpu:2")])
@pytest.mark.usefixtures("eagerly")
def test_large_logits_in_float16_stay_finite(folder: Path, loss: str, devices: str) -> None:
    """Case 086: logits up to 30 over 20 steps; the loss is not multiplied by the scale."""

    def widen(trainer: Trainer) -> None:
        kernel = trainer.model.output_dense.kernel
        kernel.assign(kernel * 30 / np.abs(trainer.model(inputs_of([[2, 7, 8, 3]]))).max())

    store = make_store(folder / "large.jsonl", 40)
    run = train(
        store,
        devices,
        loss=loss,
        epochs=4,
        rate=0.01,
        prepare=widen,
        settings={"head": "mean", "dtype": "mixed_float16"},
        optimizer_settings={"loss_scaling": True, "clip_norm": 1.0},
    )
    assert run.batches == 20
    assert all(0 < log["loss"] < 100 for log in run.logs)
    assert all(np.isfinite(weight).all() for weight in run.weights.values())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bad_replica", [0, 1, 2])
def test_an_overflow_on_one_replica_skips_the_step_on_all(bad_replica: int, compiled: bool) -> None:
    """Case 086: the scale is halved on all."""
    strategy = make_strategy("cpu:3")
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
        optimizer = make_optimizer("adamw", [variable], weight_decay=0.1, loss_scaling=True)

    def step(bad: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = tf.where(tf.equal(replica, bad), tf.constant([np.inf, 1.0]), tf.constant([1.0, 1.0]))
        return optimizer.apply(all_sum([gradient]), tf.constant(0.1))

    def run(bad: tf.Tensor) -> Any:
        return strategy.run(step, args=(bad,))

    function = tf.function(run) if compiled else run
    for bad, iterations, scale in ((bad_replica, 0, 2**14), (-1, 1, 2**14)):
        function(tf.constant(bad))
        copies = strategy.experimental_local_results(variable)
        for copy in copies:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())
        assert (copies[0].numpy() == [1.0, 2.0]).all() == (iterations == 0)
        for value, expected in ((optimizer.iterations, iterations), (optimizer.loss_scale, scale)):
            assert [float(copy) for copy in strategy.experimental_local_results(value)] == [expected] * 3


@pytest.mark.usefixtures("eagerly")
def test_a_scale_that_is_too_large_comes_down_and_training_goes_on(folder: Path) -> None:
    """Steps overflow inside of the model and are skipped, on one device and on two."""

    def raise_scale(trainer: Trainer) -> None:
        trainer.optimizer.loss_scale.assign(2.0**18)
        trainer.model.output_dense.kernel.assign(trainer.model.output_dense.kernel * 50)

    store = make_store(folder / "scale.jsonl", 64)
    runs = [
        train(
            store,
            f"cpu:{n}",
            rate=0.01,
            prepare=raise_scale,
            settings={"head": "mean", "dtype": "mixed_float16"},
            optimizer_settings={"loss_scaling": True},
        )
        for n in (1, 2)
    ]
    for run in runs:
        assert 0 < run.trainer.optimizer.iterations.numpy() < run.batches
        assert run.trainer.optimizer.loss_scale.numpy() < 2**18
        assert all(np.isfinite(weight).all() for weight in run.weights.values())


# --------------------------------------------------------------------------------------------- dropout, batches, log


@pytest.mark.usefixtures("eagerly")
def test_dropout_differs_by_replica_micro_batch_and_step_and_repeats(folder: Path) -> None:
    store = make_store(folder / "dropout.jsonl", 16)

    def seeds(seed: int = 0, first_step: int = 0) -> list[tuple[int, ...]]:
        seen: list[tuple[int, ...]] = []

        def watch(trainer: Trainer) -> None:
            trainer.step = first_step

            def record(inputs: Any, training: bool, seed: Any) -> Any:
                seen.append(tuple(seed.numpy().tolist()))
                return tf.zeros((len(inputs["token_ids"]), 2 * CONFIG.hidden_size))

            trainer.model.features = record

        settings = {"config": CONFIG, "head_dropout": 0.5}
        train(store, "cpu:2", batch=8, accumulate=2, seed=seed, prepare=watch, settings=settings, frozen=True)
        return seen

    first = seeds()
    assert len(first) == len(set(first)) == 2 * 2 * 2
    assert sorted(seeds()) == sorted(first)
    assert not set(seeds(seed=1)) & set(first)
    resumed = seeds(first_step=1)
    assert sorted(resumed)[:4] == sorted(first)[4:]


def test_the_batch_size_is_that_of_all_replicas(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 090: 16 rows, 4 a step, 2 a replica; the log tells both."""
    plan = EpochPlan(make_store(folder / "sixteen.jsonl", 16).lengths, 4)
    assert plan.num_batches == 4
    with caplog.at_level(logging.INFO, "tfbert"):
        log_devices(make_strategy("cpu:2"), 4)
    assert "2 replica(s) on CPU:0, CPU:1; global batch of 4 rows, 2 a replica" in caplog.text


@pytest.mark.usefixtures("eagerly")
def test_totals_count_each_row_and_token_once(folder: Path) -> None:
    """Rows that fill up a batch count as padding."""
    store = make_store(folder / "37.jsonl", 37)
    for replicas in (1, 3):
        totals = train(store, f"cpu:{replicas}", batch=8, optimizer_settings={}).trainer.totals
        assert (totals.steps, totals.rows, totals.tokens) == (5, 37, int(store.lengths.sum()))
        assert totals.weight == pytest.approx(sum(record.weight for record in store.read(range(37))))
        assert 0 < totals.padding_share < 1


@pytest.mark.usefixtures("eagerly")
def test_predictions_come_in_order_and_are_complete(folder: Path) -> None:
    """Cases 085 and 089: batches of 9 on three devices against one batch on one; the score is that of the whole set."""
    feed = FeedSettings(0, 32, task="classify", num_classes=NUM_CLASSES)
    (three, model), (one, alone) = make_model("cpu:3"), make_model("cpu:1")
    for rows in (1, 2, 9, 10, 11):
        store = make_store(folder / f"predict{rows}.jsonl", rows)
        expected = Scorer(alone, one).logits(place(make_batch(store, np.arange(rows), feed, 1), one))
        scores, logits, labels = ClassifyScores("abc"), np.zeros_like(expected), np.zeros(rows)
        plan = EpochPlan(store.lengths, 9, shuffle=False)
        for numbers, batch in zip(plan.batches(), plan_batches(store, plan, feed, 3), strict=True):
            result = Scorer(model, three).logits(place(batch, three))
            assert len(result) % 3 == 0
            real = batch["weights"] > 0
            scores.update(batch["labels"][real], result[real])
            logits[numbers], labels[numbers] = result[real], batch["labels"][real]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
        f1 = sklearn.metrics.f1_score(labels, logits.argmax(1), labels=range(3), average="macro", zero_division=0)
        assert scores.result()["macro"]["f1"] == pytest.approx(f1)


# ------------------------------------------------------------------------------------------ weights, stages, scopes


def test_weights_pass_between_replica_counts_in_a_fresh_process(tmp_path: Path) -> None:
    """Case 067: trained on one device, loaded under two, and the other way round; five rows are predicted."""
    store = make_store(tmp_path / "data.jsonl", 16)
    rows = inputs_of([[2, *range(5, 5 + n), 3] for n in (1, 2, 3, 9, 4, 4)])
    np.savez(tmp_path / "rows.npz", **rows)
    expected = {}
    tf.config.run_functions_eagerly(True)
    for replicas in (1, 2):
        run = train(store, f"cpu:{replicas}", rate=0.5)
        save_weights(run.trainer.model, tmp_path / f"of{replicas}.weights.h5")
        expected[replicas] = run.trainer.model(rows).numpy()
    tf.config.run_functions_eagerly(False)
    program = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from tiny_training import make_model\n"
        "from tfbert.data.feed import place\n"
        "from tfbert.model.checkpoint import load_weights\n"
        "from tfbert.loop.trainer import Scorer\n"
        "rows = dict(np.load('rows.npz')) | {'weights': np.ones(6, np.float32)}\n"
        "for saved, loaded in ((1, 2), (2, 1)):\n"
        "    strategy, model = make_model(f'cpu:2' if loaded == 2 else 'cpu:1')\n"
        "    with strategy.scope():\n"
        "        load_weights(model, Path(f'of{saved}.weights.h5'))\n"
        "    np.save(f'of{saved}.npy', Scorer(model, strategy).logits(place(rows, strategy)))\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for replicas, logits in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"of{replicas}.npy"), logits, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("eagerly")
def test_the_frozen_stage_leaves_the_encoder_alone_and_the_full_stage_does_not(folder: Path) -> None:
    """Case 073."""
    store = make_store(folder / "stages.jsonl", 16)
    start = weights_of(make_model("cpu:2")[1])
    settings: dict[str, Any] = {"optimizer": "adamw", "rate": 0.01, "optimizer_settings": {"weight_decay": 0.1}}
    for frozen in (True, False):
        run = train(store, "cpu:2", frozen=frozen, **settings)
        same = {name for name, weight in run.weights.items() if np.array_equal(weight, start[name])}
        encoder = {name for name in start if not name.startswith("Head")}
        assert same == (encoder if frozen else set())
        assert len(run.trainer.optimizer.trained) == len(start) - (len(encoder) if frozen else 0)


@pytest.mark.usefixtures("eagerly")
def test_the_frozen_encoder_runs_without_dropout(folder: Path) -> None:
    store = make_store(folder / "calm.jsonl", 16)
    runs = [train(store, frozen=True, settings={"config": config}) for config in (CONFIG, NO_DROPOUT)]
    assert distance(runs[0].weights, runs[1].weights) == 0


def test_models_and_optimizers_of_another_scope_are_refused_at_once() -> None:
    """Case 088: each replica would update the only copy."""
    two, model = make_model("cpu:2")
    _, outside = make_model("cpu:1")
    with two.scope():
        optimizer = make_optimizer("sgd", model.trainable_variables)
    objective = Classification(model, make_loss("ce"))
    with pytest.raises(ValueError, match=r"must be made inside strategy\.scope\(\)"):
        Trainer(Classification(outside, make_loss("ce")), optimizer, two, lambda step: 0.1)
    with pytest.raises(ValueError, match=r"must be made inside strategy\.scope\(\)"):
        Trainer(objective, make_optimizer("adamw", model.trainable_variables), two, lambda step: 0.1)
    Trainer(objective, optimizer, two, lambda step: 0.1)
