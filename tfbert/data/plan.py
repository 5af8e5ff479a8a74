"""The epoch plan: which rows make up which batch, as a pure function of numbers.

    rows of the file --(blocks permuted)--> windows --(shuffled, sorted by length, cut)--> batches --(shuffled)--> steps

Blocks of consecutive rows are permuted over the whole file, so a sorted file comes out mixed while reads stay local;
inside a window of `window` rows the rows are shuffled, sorted into length buckets and cut into batches, and the
batches are shuffled. Nothing depends on the content of a row, on the number of replicas or on what was read before,
so position k of an epoch can be reached without reading anything: resume is exact and instant.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tfbert.data.sampling import ClassSampler

Rows = npt.NDArray[np.int64]
MAX_BLOCK_ROWS = 1024
BLOCKS_PER_WINDOW = 256  # at least, where the window allows: how well one window mixes a sorted file


@dataclass(frozen=True)
class EpochPlan:
    """One epoch over `len(lengths)` rows.

    Args:
        lengths: tokens of every row, shape (num_rows,).
        global_batch_size: rows a step over all replicas; with `batch_tokens`, the most rows a step.
        window: rows that are shuffled and sorted together (rounded up to whole batches).
        seed, epoch: decide the order, together.
        shuffle: False keeps windows in file order and only sorts by length inside them (evaluation, prediction).
        length_multiple: lengths in one bucket differ by less than this.
        batch_tokens: where given, a batch is cut so that rows x (longest row, rounded up) stays within it.
        sampler: where given, the epoch is over the rows that it draws, as many as there are, in place of each row once.
        per_step: batches that a step takes at once. The order of the rows is the same for any number, so it may change
            in the middle of an epoch.
    """

    lengths: npt.NDArray[np.int32]
    global_batch_size: int
    window: int = 300_000
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    length_multiple: int = 8
    batch_tokens: int | None = None
    sampler: ClassSampler | None = None
    per_step: int = 1

    def __post_init__(self) -> None:
        for name, least in (("global_batch_size", 1), ("window", 1), ("length_multiple", 1), ("seed", 0), ("epoch", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}. Received: {getattr(self, name)}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1. Received: {self.batch_tokens}.")

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @cached_property
    def window_rows(self) -> int:
        """Rows a window: whole batches, so that only an epoch's last window has a short batch."""
        batches = max(1, -(-self.window // self.global_batch_size))
        return batches * self.global_batch_size

    @property
    def num_windows(self) -> int:
        return -(-self.num_rows // self.window_rows)

    @cached_property
    def num_batches(self) -> int:
        """Batches of the epoch; ceil(rows / batch) unless they are cut by tokens."""
        if self.batch_tokens is None:
            return -(-self.num_rows // self.global_batch_size)
        return int(self._window_starts[-1])

    @cached_property
    def _window_starts(self) -> npt.NDArray[np.int64]:
        """Number of the first batch of every window, and the number of batches."""
        if self.batch_tokens is None:
            per_window = self.window_rows // self.global_batch_size
            starts = np.arange(self.num_windows + 1, dtype=np.int64) * per_window
            starts[-1] = self.num_batches
            return starts
        counts = [len(self._cuts(self._sorted_window(w))) - 1 for w in range(self.num_windows)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def longest_batch(self) -> int:
        """Number of a batch with the longest row, in the same plan without shuffling and sampling."""
        window = int(np.argmax(self.lengths)) // self.window_rows
        return int(self._window_starts[window + 1]) - 1

    def batches(self, start: int = 0) -> Iterator[Rows]:
        """Row numbers of every step from batch number `start` on; a batch's rows are sorted by bucket, longest last."""
        single = self._batches(start)
        while step := list(itertools.islice(single, self.per_step)):
            yield step[0] if len(step) == 1 else np.concatenate(step)

    def _batches(self, start: int) -> Iterator[Rows]:
        if start < 0:
            raise ValueError(f"A batch number must be at least 0. Received: {start}.")
        if start >= self.num_batches:
            return
        window = int(np.searchsorted(self._window_starts, start, "right")) - 1
        skip = start - int(self._window_starts[window])
        for w in range(window, self.num_windows):
            yield from self.window_batches(w)[skip:]
            skip = 0

    def window_batches(self, window: int) -> list[Rows]:
        """The batches of one window, in the order of the steps."""
        rows = self._sorted_window(window)
        cuts = self._cuts(rows)
        batches = [rows[a:b] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
        if not self.shuffle:
            return batches
        order = self._rng(2, window).permutation(len(batches))
        return [batches[i] for i in order]

    def _rng(self, purpose: int, window: int = 0) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.epoch, purpose, window))

    @cached_property
    def _block_rows(self) -> int:
        return int(np.clip(self.window_rows // BLOCKS_PER_WINDOW, 1, MAX_BLOCK_ROWS))

    @cached_property
    def _blocks(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Blocks in the epoch's order, and the position at which each begins."""
        count = -(-self.num_rows // self._block_rows)
        order = self._rng(0).permutation(count).astype(np.int64)
        sizes = np.full(count, self._block_rows, np.int64)
        sizes[order == count - 1] = self.num_rows - (count - 1) * self._block_rows
        return order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _window(self, window: int) -> Rows:
        """Rows of a window before sorting."""
        first = window * self.window_rows
        last = min(first + self.window_rows, self.num_rows)
        if not self.shuffle:
            return self._drawn(np.arange(first, last, dtype=np.int64))
        order, starts = self._blocks
        a, b = np.searchsorted(starts, [first, last - 1], "right") - 1
        positions = np.arange(first, last, dtype=np.int64)
        edges = np.clip(starts[a : b + 2], first, last)
        block = np.repeat(np.arange(a, b + 1), edges[1:] - edges[:-1])
        rows: Rows = order[block] * self._block_rows + (positions - starts[block])
        self._rng(1, window).shuffle(rows)
        return self._drawn(rows)

    def _drawn(self, places: Rows) -> Rows:
        """The rows at places of the epoch before blocks were permuted."""
        return places if self.sampler is None else self.sampler.rows(self.epoch)[places]

    def _buckets(self, rows: Rows) -> npt.NDArray[np.int64]:
        return -(-self.lengths[rows].astype(np.int64) // self.length_multiple)

    def _sorted_window(self, window: int) -> Rows:
        rows = self._window(window)
        return rows[np.argsort(self._buckets(rows), kind="stable")]

    def _cuts(self, rows: Rows) -> list[int]:
        """Where the batches of sorted rows begin, and the end."""
        if self.batch_tokens is None:
            return [*range(0, len(rows), self.global_batch_size), len(rows)]
        padded = self._buckets(rows) * self.length_multiple
        cuts, start = [0], 0
        while start < len(rows):
            ahead = padded[start : start + self.global_batch_size]
            fits = np.arange(1, len(ahead) + 1) * ahead <= self.batch_tokens
            start += max(1, int(np.count_nonzero(fits)))
            cuts.append(start)
        return cuts


def replica_slice(rows_in_batch: int, replica: int, num_replicas: int) -> slice:
    """The rows of a batch that belong to one replica: disjoint, complete, sizes differ by at most one."""
    return slice(rows_in_batch * replica // num_replicas, rows_in_batch * (replica + 1) // num_replicas)
