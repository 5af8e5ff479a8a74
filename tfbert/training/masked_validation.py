"""The numbers of a masked language model on the val part: the same rows with the same masks each time."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfbert.data.batch import Batch
from tfbert.data.feed import FeedSettings, distribute, plan_batches
from tfbert.data.plan import EpochPlan
from tfbert.data.store import RowStore
from tfbert.loop.agreement import Agreement
from tfbert.loop.trainer import compiled
from tfbert.objectives.mlm import MaskedLanguageModel
from tfbert.strategy import sum_over_workers, worker_of


class MaskedValidation:
    """Means over the masked tokens of the first rows of a part, and over their pairs.

    Args:
        store: the part.
        feed: how rows become arrays, masks included; all is masked as in epoch 0.
        objective: whose numbers they are.
        strategy: whose replicas share the rows.
        replica_rows: rows of a replica in a batch.
        num_rows: the first rows of the part that are looked at; 0 for all.
        interrupted: asked between batches whether to leave off; of several workers, one that says so is enough.
    """

    def __init__(
        self,
        store: RowStore,
        feed: FeedSettings,
        objective: MaskedLanguageModel,
        strategy: tf.distribute.Strategy,
        replica_rows: int,
        num_rows: int = 0,
        interrupted: Callable[[], bool] = lambda: False,
    ):
        self.store, self.feed, self.objective, self.strategy = store, feed, objective, strategy
        self._interrupted = interrupted
        lengths = store.lengths[:num_rows] if num_rows else store.lengths
        rows = replica_rows * strategy.num_replicas_in_sync
        self.plan = EpochPlan(lengths, rows, shuffle=False, length_multiple=feed.length_multiple)
        self._function: Callable[..., Any] | None = None

    def __call__(self) -> dict[str, float] | None:
        """`loss` and the numbers of the objective; None where it was interrupted."""
        sums = np.zeros(len(self.objective.sums))
        agreement = Agreement(self.strategy)
        with distribute(self._batches(), self.strategy) as batches:
            for number, batch in enumerate(batches):
                if agreement.is_due(number) and agreement.sum(number, [self._interrupted()])[0]:
                    return None
                if self._function is None:
                    self._function = compiled(self._on_replicas, self.strategy, self.objective.ragged, batch)
                parts = self.strategy.experimental_local_results(self._function(batch))
                sums += np.sum([part.numpy() for part in parts], axis=0, dtype=np.float64)
        sums = sum_over_workers(self.strategy, sums)
        logs = self.objective.logs(dict(zip(self.objective.sums, sums.tolist(), strict=True)))
        return {"loss": sum(value for name, value in logs.items() if name.endswith("_loss"))} | logs

    def _batches(self) -> Iterator[Batch]:
        replicas, worker = self.strategy.num_replicas_in_sync, worker_of(self.strategy)
        return plan_batches(self.store, self.plan, self.feed, replicas, worker=worker)

    def _on_replicas(self, batch: Any) -> Any:
        return self.strategy.run(lambda part: self.objective.sums_of(part), args=(batch,))
