"""What each column of an input is for: text, second text, label, type, weight, kept columns, filters."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any, NamedTuple, TypeVar

from tfbert.data.source import RowError
from tfbert.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Roles:
    """Columns by role; each is a name or a 0-based number as a string, negative from the end.

    Attributes:
        group: rows with equal values stay on one side of the validation split.
        filters: (column, value) pairs; a row whose column equals the value is left out.
    """

    text: str
    text_b: str | None = None
    label: str | None = None
    type: str | None = None
    weight: str | None = None
    keep: tuple[str, ...] = ()
    filters: tuple[tuple[str, str], ...] = ()
    group: str | None = None

    @property
    def wanted(self) -> list[str]:
        """The columns to read, in the order in which `RowFields` expects them."""
        single = [self.text, self.text_b, self.label, self.type, self.weight, self.group]
        return [c for c in single if c is not None] + [*self.keep] + [column for column, _ in self.filters]

    @property
    def nullable(self) -> range:
        """Places of the kept columns in `wanted`: nothing is done with them, so they may be null."""
        first = len(self.wanted) - len(self.filters) - len(self.keep)
        return range(first, first + len(self.keep))

    def without_targets(self) -> "Roles":
        """The same without label, type, weight and group: what prediction needs."""
        return Roles(self.text, self.text_b, keep=self.keep, filters=self.filters)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Roles":
        return cls(**values | {"keep": tuple(values["keep"]), "filters": tuple((c, v) for c, v in values["filters"])})


class RowFields(NamedTuple):
    """The fields of one row by role."""

    text: str
    text_b: str | None
    label: str | None
    type: str | None
    weight: float
    keep: dict[str, str | None]
    group: str | None


class FieldColumns(NamedTuple):
    """The fields of many rows by role; None where no column has it."""

    text: Sequence[str]
    text_b: Sequence[str] | None
    label: Sequence[str] | None
    type: Sequence[str] | None
    weight: Sequence[float] | None
    keep: dict[str, Sequence[str]]
    group: Sequence[str] | None

    def select(self, chosen: Sequence[bool]) -> "FieldColumns":
        """The rows that are marked."""

        def rows(column: Sequence[T] | None) -> list[T] | None:
            return None if column is None else list(compress(column, chosen))

        return FieldColumns(
            list(compress(self.text, chosen)),
            rows(self.text_b),
            rows(self.label),
            rows(self.type),
            rows(self.weight),
            {name: list(compress(column, chosen)) for name, column in self.keep.items()},
            rows(self.group),
        )


class FieldReader:
    """Fields in the order of `Roles.wanted` -> `RowFields`; raises RowError for `filtered` and `weight`."""

    def __init__(self, roles: Roles):
        names = ["text_b", "label", "type", "weight", "group"]
        present = [name for name in names if getattr(roles, name) is not None]
        self._at = {name: i for i, name in enumerate(present, 1)}
        self._keep = {name: len(present) + 1 + i for i, name in enumerate(roles.keep)}
        first_filter = len(present) + 1 + len(roles.keep)
        self._filters = [(first_filter + i, value) for i, (_, value) in enumerate(roles.filters)]

    def __call__(self, fields: Sequence[str]) -> RowFields:
        for i, value in self._filters:
            if fields[i] == value:
                raise RowError("filtered", repr(value))
        at = self._at
        weight = 1.0
        if "weight" in at:
            weight = _weight(fields[at["weight"]])
        return RowFields(
            fields[0],
            fields[at["text_b"]] if "text_b" in at else None,
            fields[at["label"]] if "label" in at else None,
            fields[at["type"]] if "type" in at else None,
            weight,
            {name: fields[i] for name, i in self._keep.items()},
            fields[at["group"]] if "group" in at else None,
        )

    def columns(self, columns: Sequence[Sequence[str]]) -> tuple[FieldColumns, dict[int, RowError]]:
        """The same for many rows: columns in the order of `Roles.wanted`; and the error of each row that has one."""
        errors: dict[int, RowError] = {}
        for i, value in self._filters:
            error = RowError("filtered", repr(value))
            if value in columns[i]:
                errors = {row: error for row, field in enumerate(columns[i]) if field == value} | errors
        at = self._at
        weights: list[float] | None = [] if "weight" in at else None
        if weights is not None:
            for row, text in enumerate(columns[at["weight"]]):
                try:
                    weights.append(_weight(text))
                except RowError as error:
                    weights.append(1.0)
                    errors.setdefault(row, error)
        fields = FieldColumns(
            columns[0],
            columns[at["text_b"]] if "text_b" in at else None,
            columns[at["label"]] if "label" in at else None,
            columns[at["type"]] if "type" in at else None,
            weights,
            {name: columns[i] for name, i in self._keep.items()},
            columns[at["group"]] if "group" in at else None,
        )
        return fields, errors


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise RowError("weight", f"not a number >= 0: {text[:40]!r}")
    return weight


def split_names(names: str | None) -> tuple[str, ...]:
    """`"a,b"` -> ("a", "b").

    Raises:
        ConfigError: a name is empty; left out silently, it would move the columns behind it.
    """
    split = tuple(name.strip() for name in names.split(",")) if names else ()
    if not all(split):
        raise ConfigError(f"Names joined by commas may not be empty. Received: {names!r}.")
    return split


def parse_filters(filters: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`COLUMN!=VALUE` texts -> (column, value) pairs.

    Raises:
        ConfigError: a filter has another form.
    """
    pairs = []
    for text in filters:
        column, sign, value = text.partition("!=")
        if not sign or not column:
            raise ConfigError(f"A filter has the form COLUMN!=VALUE. Received: {text!r}.")
        pairs.append((column, value))
    return tuple(pairs)
