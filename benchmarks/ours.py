"""Our side of the jobs, through the functions that train.py and predict.py are made of."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Clock


def stream(args: argparse.Namespace) -> None:
    from tfbert.data.feed import FeedSettings, plan_batches
    from tfbert.data.plan import EpochPlan
    from tfbert.data.store import open_store

    clock = Clock()
    store = open_store(args.source)
    plan = EpochPlan(store.lengths, args.batch, window=args.window, length_multiple=1)
    feed = FeedSettings(0, 512, length_multiple=1, task="classify", num_classes=3)
    total = 0
    clock.begin()
    for batch in plan_batches(store, plan, feed, 1):
        clock.add(len(batch["weights"]), np.count_nonzero(batch["padding_mask"]))
        total += int(batch["token_ids"].sum())
        if args.limit and clock.rows >= args.limit:
            break
    clock.tell("numpy", "orjson", sum_of_ids=total)


def train(args: argparse.Namespace) -> None:
    import keras

    from tfbert.data.feed import FeedSettings, distribute, plan_batches
    from tfbert.data.plan import EpochPlan
    from tfbert.data.store import open_store
    from tfbert.loop.trainer import Epoch, Trainer
    from tfbert.losses import make_loss
    from tfbert.model.config import BertConfig
    from tfbert.model.heads import Classifier
    from tfbert.objectives.classification import Classification
    from tfbert.optim import make_optimizer
    from tfbert.strategy import make_strategy, set_precision

    clock = Clock()
    strategy = make_strategy("auto")
    policy = set_precision("bfloat16" if args.bf16 else "none", strategy)
    config = BertConfig.load(args.config)
    store = open_store(args.source)
    feed = FeedSettings(0, args.max_len, 1, task="classify", num_classes=3, vocab_size=config.vocab_size)
    plan = EpochPlan(store.lengths[: args.rows], args.batch, length_multiple=1)
    tokens = [int(store.lengths[rows].sum()) for rows in plan.batches()]
    with strategy.scope():
        model = Classifier(config, 3, head="cls", dtype=policy)
        optimizer = make_optimizer("adamw", model.trainable_variables, weight_decay=0.01, clip_norm=1.0)
    trainer = Trainer(Classification(model, make_loss("ce")), optimizer, strategy, lambda step: 2e-5)

    class Count(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            clock.begin()

        def on_train_batch_end(self, batch, logs=None):
            trainer.flush()
            clock.step(args.batch, tokens[batch])

    with distribute(plan_batches(store, plan, feed, 1), strategy) as batches:
        trainer.fit(iter([Epoch(0, batches, plan.num_batches)]), 1, [Count()])
    clock.tell("tensorflow", "keras", wait_s=trainer.wait_s)


def predict(args: argparse.Namespace) -> None:
    from safetensors.numpy import load_file

    from tfbert.data.feed import FeedSettings, distribute, plan_batches
    from tfbert.data.plan import EpochPlan
    from tfbert.data.store import open_store
    from tfbert.loop.trainer import Scorer
    from tfbert.model.checkpoint import find_init, load_encoder
    from tfbert.model.heads import Classifier
    from tfbert.predictor import BATCH_TOKENS, MAX_BATCH_ROWS, WINDOW_ROWS
    from tfbert.strategy import make_strategy, set_precision

    clock = Clock()
    strategy = make_strategy("auto")
    policy = set_precision("bfloat16" if args.bf16 else "none", strategy)
    init = find_init(args.model)
    with strategy.scope():
        model = Classifier(init.config.blank(), 3, head="cls", dtype=policy)
    load_encoder(model.encoder, init)
    head = load_file(args.model / "model.safetensors")
    model.output_dense.kernel.assign(head["classifier.weight"].T)
    model.output_dense.bias.assign(head["classifier.bias"])
    scorer = Scorer(model, strategy)
    store = open_store(args.source)
    feed = FeedSettings(0, 512, length_multiple=4)
    plan = EpochPlan(
        store.lengths[: args.rows],
        MAX_BATCH_ROWS,
        window=WINDOW_ROWS,
        shuffle=False,
        length_multiple=feed.length_multiple,
        batch_tokens=BATCH_TOKENS["CPU"],
    )
    outputs = np.zeros((args.rows, 3), np.float32)
    first = EpochPlan(store.lengths[:8], 8, shuffle=False)
    with distribute(plan_batches(store, first, feed, 1), strategy) as batches:
        scorer.logits(next(batches))
    clock.first()
    clock.begin()
    with distribute(plan_batches(store, plan, feed, 1), strategy) as batches:
        for rows, batch in zip(plan.batches(), batches, strict=True):
            outputs[rows] = scorer.logits(batch)
            clock.add(len(rows), store.lengths[rows].sum())
    np.save(args.out, outputs)
    clock.tell("tensorflow", "keras")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], None], **flags: Any) -> None:
        one = commands.add_parser(run.__name__)
        one.add_argument("source", type=Path)
        for name, kind in flags.items():
            more = {"action": "store_true"} if kind is bool else {"type": kind, "required": name != "limit"}
            one.add_argument(f"--{name}", **more)
        one.set_defaults(run=run)

    command(stream, window=int, batch=int, limit=int)
    command(train, config=Path, rows=int, batch=int, max_len=int, bf16=bool)
    command(predict, model=Path, rows=int, out=Path, bf16=bool)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
