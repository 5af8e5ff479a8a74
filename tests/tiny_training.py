"""A tiny classifier, rows for it, and runs of the trainer on any number of replicas."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.record import Record, dump
from tfbert.data.store import RowStore, open_store
from tfbert.loop.adversarial import FastGradient
from tfbert.loop.ema import WeightAverage
from tfbert.loop.trainer import Epoch, Trainer
from tfbert.losses import make_loss
from tfbert.model.config import BertConfig
from tfbert.model.heads import Classifier
from tfbert.objectives.classification import Classification
from tfbert.optim import layer_factors, make_optimizer
from tfbert.strategy import make_strategy

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)
NO_DROPOUT = CONFIG.without_dropout()
NUM_CLASSES = 3
Arrays = dict[str, npt.NDArray[np.float32]]


def inputs_of(rows: list[list[int]], length: int | None = None) -> dict[str, npt.NDArray[np.int32]]:
    """Model inputs of rows of token ids, padded to the longest or to `length`; the second half is segment 1."""
    length = length or max(map(len, rows))
    token_ids, segment_ids, mask = np.zeros((3, len(rows), length), np.int32)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)] = row
        segment_ids[i, len(row) // 2 : len(row)] = 1
        mask[i, : len(row)] = 1
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask}


def make_store(path: Path, count: int, task: str = "classify", seed: int = 1) -> RowStore:
    """Rows of 3 to 13 tokens with labels of the task and weights from 0.5 to 2."""
    draw = np.random.default_rng(seed)

    def label() -> Any:
        if task == "regression":
            return float(draw.normal())
        if task == "multilabel":
            return np.flatnonzero(draw.random(NUM_CLASSES) < 0.5).tolist()
        return int(draw.integers(NUM_CLASSES))

    with path.open("wb") as file:
        for _ in range(count):
            token_ids = [2, *draw.integers(5, 50, draw.integers(1, 12)).tolist(), 3]
            file.write(dump(Record(token_ids, None, label(), float(draw.uniform(0.5, 2)))))
    return open_store(path)


def make_model(
    devices: str = "cpu:1", config: BertConfig = NO_DROPOUT, num_outputs: int = NUM_CLASSES, **settings: Any
):
    """A strategy and a classifier with the same random weights every time."""
    strategy = make_strategy(devices)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        settings = {"head": "pool", "head_units": 8, "head_dropout": 0.0, "dtype": "float32"} | settings
        return strategy, Classifier(config, num_outputs, **settings)


@dataclass
class Run:
    """What a run of the trainer left."""

    trainer: Trainer
    weights: Arrays = field(default_factory=dict)
    logs: list[dict[str, float]] = field(default_factory=list)  # of the epochs
    batches: int = 0


class Watch(keras.callbacks.Callback):
    """Writes down what the trainer tells its callbacks."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.run.batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run.logs.append(dict(logs))


def weights_of(model: Any) -> Arrays:
    return {variable.path: variable.numpy() for variable in model.variables}


def train(
    store: RowStore,
    devices: str = "cpu:1",
    *,
    loss: str = "ce",
    task: str = "classify",
    optimizer: str = "sgd",
    rate: float = 0.1,
    batch: int = 8,
    epochs: int = 1,
    accumulate: int = 1,
    frozen: bool = False,
    batch_tokens: int | None = None,
    class_weights: Mapping[int, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    optimizer_settings: Mapping[str, Any] | None = None,
    loss_settings: Mapping[str, Any] | None = None,
    layer_decay: float = 1.0,
    ema: float = 0.0,
    fgm: float = 0.0,
    rdrop: float = 0.0,
    gradient_dtype: str = "float32",
    seed: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validate: Callable[[], dict[str, float]] | None = None,
    prepare: Callable[[Trainer], None] = lambda trainer: None,
) -> Run:
    """Trains a tiny classifier from the same start, after `prepare` has seen the trainer."""
    strategy, model = make_model(devices, **({"num_outputs": 1} if task == "regression" else {}) | (settings or {}))
    model.encoder.trainable = not frozen
    with strategy.scope():
        factors = layer_factors([v.path for v in model.trainable_variables], layer_decay)
        updates = make_optimizer(optimizer, model.trainable_variables, rate_factors=factors, **optimizer_settings or {})
        average = WeightAverage(model.trainable_variables, ema, strategy) if ema else None
    adversary = FastGradient(model.encoder.token.embeddings, fgm) if fgm else None
    chosen = make_loss(loss, task, **loss_settings or {})
    trainer = Trainer(
        Classification(model, chosen, task, frozen_encoder=frozen, rdrop=rdrop),
        updates,
        strategy,
        lambda step: rate,
        accumulate=accumulate,
        seed=seed,
        adversary=adversary,
        average=average,
        gradient_dtype=gradient_dtype,
    )
    feed = FeedSettings(0, 32, length_multiple=4, task=task, num_classes=NUM_CLASSES, class_weights=class_weights)
    plans = [EpochPlan(store.lengths, batch, epoch=epoch, batch_tokens=batch_tokens) for epoch in range(epochs)]
    multiple = strategy.num_replicas_in_sync * accumulate
    batches = distribute((b for plan in plans for b in plan_batches(store, plan, feed, multiple)), strategy)
    run = Run(trainer)
    prepare(trainer)
    trainer.fit(
        (Epoch(plan.epoch, batches, plan.num_batches) for plan in plans), epochs, [Watch(run), *callbacks], validate
    )
    run.weights = weights_of(model)
    return run


def distance(a: Arrays, b: Arrays) -> float:
    """Largest difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)
