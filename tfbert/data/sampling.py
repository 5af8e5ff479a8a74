"""Which rows an epoch draws where classes are unequal: more of the rare ones, fewer of the frequent ones.

An epoch draws as many rows as the part has, each class a fixed number of them: `balanced` the same number of every
class, `sqrt` in proportion to the square root of its rows. The draws of a class go round: it takes all of its rows
once, in an order that depends on the seed and the round, before any comes again, and the next epoch goes on where this
one ended. So a frequent class that has fewer draws than rows shows its other rows in later epochs, and no row of it is
lost; a rare class shows each row several times an epoch, equally often but for one. What an epoch draws is a function
of labels, rule, seed and epoch, whatever was drawn before.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

SAMPLINGS = ("none", "balanced", "sqrt")
_POWERS = {"balanced": 0.0, "sqrt": 0.5}
_PURPOSE = 3  # of the random numbers; the epoch plan has 0 to 2
Rows = npt.NDArray[np.int64]


def quotas(counts: npt.NDArray[np.int64], rule: str, total: int) -> npt.NDArray[np.int64]:
    """Rows that an epoch draws of every class; a class without rows has none.

    Args:
        counts: rows of every class, (num_classes,).
        rule: `balanced` or `sqrt`.
        total: what they add up to.

    Raises:
        ValueError: the rule is another.
    """
    if rule not in _POWERS:
        raise ValueError(f"A sampling rule is one of {', '.join(_POWERS)}. Received: {rule!r}.")
    shares = np.where(counts > 0, counts.astype(np.float64) ** _POWERS[rule], 0.0)
    exact = total * shares / max(shares.sum(), 1.0)
    whole: npt.NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")  # largest remainders first, ties by class
    whole[order[: total - int(whole.sum())]] += 1
    return whole


class ClassSampler:
    """Rows of every epoch, in file order: draws of equal rows stand together, and reads of a window stay local.

    Takes 16 bytes a row of memory. The rows of the epoch that was last asked for are kept.

    Args:
        labels: class of every row, integers (num_rows,), from 0.
        rule: `balanced` or `sqrt`.
        seed: with the epoch decides what is drawn.

    Attributes:
        counts: rows of every class.
        quotas: draws of every class in an epoch.
    """

    def __init__(self, labels: npt.NDArray[np.integer], rule: str, seed: int = 0):
        self.counts = np.bincount(labels).astype(np.int64)
        self.quotas = quotas(self.counts, rule, len(labels))
        self._seed = seed
        self._by_class = np.argsort(labels, kind="stable").astype(np.int32 if len(labels) < 2**31 else np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.rows = lru_cache(maxsize=1)(self._rows)

    def _rows(self, epoch: int) -> Rows:
        """Row numbers that an epoch draws, rising, (num_rows,)."""
        times = np.zeros(len(self._by_class), np.int32)
        for number in np.flatnonzero(self.quotas):
            of_class = self._by_class[self._starts[number] : self._starts[number + 1]]
            size, quota = len(of_class), int(self.quotas[number])
            first, skip = divmod(epoch * quota, size)
            last, rest = divmod((epoch + 1) * quota, size)
            # rounds from `first` to before `last` are begun and ended, but for what earlier and later epochs draw
            times[of_class] += last - first
            times[of_class[self._order(int(number), first, size)[:skip]]] -= 1
            times[of_class[self._order(int(number), last, size)[:rest]]] += 1
        return np.repeat(np.arange(len(times), dtype=np.int64), times)

    def _order(self, number: int, turn: int, size: int) -> Rows:
        return np.random.default_rng((self._seed, _PURPOSE, number, turn)).permutation(size)
