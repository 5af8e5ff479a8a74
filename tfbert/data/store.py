"""Rows by number, whatever file they lie in; memory does not depend on their number."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbert.data.index import NO_LABEL
from tfbert.data.record import Record
from tfbert.data.rows import RowColumns
from tfbert.errors import DataError

SUFFIXES = {"jsonl": ".jsonl", "arrow": ".arrow"}  # by kind of store
_CHECK_ROWS = 1 << 20  # rows looked at together

RowNumbers = Sequence[int] | npt.NDArray[np.int64]


class RowStore(ABC):
    """Random access to the rows of a file.

    Attributes:
        path: the file.
        lengths: tokens of every row, int32 (num_rows,), memory mapped.
        labels: class of every row or -1, int32 (num_rows,), memory mapped.
    """

    path: Path
    lengths: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def close(self) -> None:
        """Lets go of the file."""

    @abstractmethod
    def columns(self, rows: RowNumbers) -> RowColumns:
        """What a batch of the given rows is made of, in the given order.

        Raises:
            DataError: with the place, where a row is damaged or not the one that was indexed.
        """

    @abstractmethod
    def read(self, rows: RowNumbers) -> list[Record]:
        """The given rows with all that stands in them, one object a row.

        Raises:
            DataError: as `columns`.
        """

    @abstractmethod
    def place(self, row: int) -> str:
        """Where a row stands, for messages."""

    def check_labels(self, num_classes: int) -> None:
        """Refuses the first row whose class is missing or not in [0, num_classes)."""
        first, count = -1, 0
        for start in range(0, len(self), _CHECK_ROWS):
            labels = self.labels[start : start + _CHECK_ROWS]
            bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
            if len(bad) and not count:
                first = start + int(bad[0])
            count += len(bad)
        if count:
            received = "no class" if self.labels[first] == NO_LABEL else str(self.labels[first])
            raise DataError(
                f"{self.place(first)}: a label must be a class id from 0 to {num_classes - 1}. Received: {received} "
                f"({count} such rows)."
            )


def open_store(path: Path | str) -> RowStore:
    """The rows of a file: of an Arrow store where its name ends in `.arrow`, else of JSON lines.

    The index is built and kept beside the file where it is missing or older.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    from tfbert.data.arrow_store import ArrowStore
    from tfbert.data.json_store import JsonStore

    path = Path(path)
    return ArrowStore(path) if path.suffix == SUFFIXES["arrow"] else JsonStore(path)
