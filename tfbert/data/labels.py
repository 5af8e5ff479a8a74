"""Label names, raw labels and class ids."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tfbert.data.source import RowError
from tfbert.errors import DataError


@dataclass(frozen=True)
class LabelMap:
    """Names in id order, and the id of every raw label; several raw labels may share an id."""

    names: tuple[str, ...]
    ids: dict[str, int]


def sorted_names(names: Iterable[str]) -> LabelMap:
    """The map for labels as they were met: sorted, as numbers if all are numbers."""
    unique = set(names)
    try:
        ordered = sorted(unique, key=lambda name: (float(name), name))
        if not all(math.isfinite(float(name)) for name in ordered):
            raise ValueError
    except ValueError:
        ordered = sorted(unique)
    return LabelMap(tuple(ordered), {name: i for i, name in enumerate(ordered)})


def load_label_map(path: Path | str) -> LabelMap:
    """Reads a label file.

    Text: a name a line, in id order; or `raw TAB name` a line, where several raw labels may share a name. JSON: a list
    of names; an object raw -> name; an object raw -> id. JSON lines: objects with `label` and, optionally,
    `label_desc`. A file named .json, .jsonl or .ndjson is JSON; any other is JSON where it reads as JSON, else text.

    Raises:
        DataError: it cannot be read, is empty, or names a raw label twice.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the labels cannot be read. Received: {error}.") from error
    pairs = _pairs(path, text)
    if not pairs:
        raise DataError(f"{path}: a label file needs at least one label. Received: an empty file.")
    names: dict[str, int] = {}
    ids: dict[str, int] = {}
    for raw, name in ((raw.strip(), name.strip()) for raw, name in pairs):
        if not raw or not name or "\n" in name:
            raise DataError(f"{path}: a label is not empty and holds no line end. Received: {raw!r}, {name!r}.")
        if raw in ids:
            raise DataError(f"{path}: a label may stand only once. Received: {raw!r} twice.")
        ids[raw] = names.setdefault(name, len(names))
    return LabelMap(tuple(names), ids)


def _pairs(path: Path, text: str) -> list[tuple[str, str]]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    named_json = path.suffix.lower() in (".json", ".jsonl", ".ndjson")
    if named_json or text.lstrip()[:1] in ("{", "["):
        try:
            return _json_pairs(path, orjson.loads(text))
        except orjson.JSONDecodeError:
            if named_json or text.lstrip().startswith("{"):
                return [_json_row(path, number, line) for number, line in lines]
    pairs = []
    for _, line in lines:
        raw, tab, name = line.partition("\t")
        pairs.append((raw, name if tab else raw))
    return pairs


def _json_pairs(path: Path, value: object) -> list[tuple[str, str]]:
    if isinstance(value, list):
        return [(_text(path, name), _text(path, name)) for name in value]
    if not isinstance(value, dict):
        raise DataError(f"{path}: JSON labels are a list or an object. Received: {type(value).__name__}.")
    if "label" in value and "label_desc" in value:
        return [(_text(path, value["label"]), _text(path, value["label_desc"]))]
    if all(type(number) is int for number in value.values()):
        first: dict[int, str] = {}
        for raw, number in sorted(value.items(), key=lambda item: item[1]):
            first.setdefault(number, raw)
        if list(first) != list(range(len(first))):
            raise DataError(f"{path}: class ids count from 0 without gaps. Received: {sorted(first)}.")
        return [(raw, first[number]) for raw, number in sorted(value.items(), key=lambda item: item[1])]
    return [(raw, _text(path, name)) for raw, name in value.items()]


def _text(path: Path, value: object) -> str:
    """A JSON value as the reader of rows spells it."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, list | dict):
        raise DataError(f"{path}: a label is a text or a number. Received: {value!r}.")
    return orjson.dumps(value).decode()


def _json_row(path: Path, number: int, line: str) -> tuple[str, str]:
    try:
        row = orjson.loads(line)
        return _text(path, row["label"]), _text(path, row.get("label_desc", row["label"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}:{number}: a label row is an object with `label`. Received: {line[:80]!r}.") from None


class LabelReader:
    """Raw label text -> label of a record, by task.

    Args:
        task: classify, multilabel or regression.
        ids: raw label -> class id; unused for regression.
        separator: between the labels of a multi-label row.
    """

    def __init__(self, task: str, ids: dict[str, int], separator: str = ","):
        self._task, self._ids, self._separator = task, ids, separator

    def __call__(self, raw: str) -> int | float | list[int]:
        """Raises RowError: `empty label`, `unknown label`, or `label` (not a finite number)."""
        if self._task == "regression":
            if not raw.strip():
                raise RowError("empty label")
            try:
                value = float(raw)
            except ValueError:
                raise RowError("label", f"not a number: {raw[:40]!r}") from None
            if not math.isfinite(value):
                raise RowError("label", f"not finite: {raw[:40]!r}")
            return value
        names = raw_labels(self._task, raw, self._separator)
        unknown = [name for name in names if name not in self._ids]
        if unknown:
            raise RowError("unknown label", repr(unknown[0][:40]))
        if self._task == "multilabel":
            return sorted({self._ids[name] for name in names})
        return self._ids[names[0]]

    def column(self, raws: Sequence[str]) -> tuple[list[Any], dict[int, RowError]]:
        """The labels of many rows, and the error of each row that has one (its label stands for nothing)."""
        known: dict[str, Any] = {}
        errors: dict[str, RowError] = {}
        for raw in dict.fromkeys(raws):
            try:
                known[raw] = self(raw)
            except RowError as error:
                known[raw] = None
                errors[raw] = error
        labels = list(map(known.__getitem__, raws))
        return labels, {row: errors[raw] for row, raw in enumerate(raws) if raw in errors} if errors else {}


def raw_labels(task: str, raw: str, separator: str) -> Sequence[str]:
    """The labels that a field spells.

    A multi-label field holds names joined by the separator, or is a JSON list of names; an empty one means that no
    class applies. An empty field of a single-label task is an error.

    Raises:
        RowError: `empty label`, or `label` (a name with a tab or a line end, which no label file could hold).
    """
    if task == "multilabel":
        names = [name for part in _split_labels(raw, separator) if (name := part.strip())]
    else:
        names = [raw.strip()]
        if not names[0]:
            raise RowError("empty label")
    for name in names:
        if "\t" in name or "\n" in name:
            raise RowError("label", f"a tab or line end inside: {name[:40]!r}")
    return names


def _split_labels(raw: str, separator: str) -> list[str]:
    if raw.startswith("["):
        try:
            names = orjson.loads(raw)
            return [name if isinstance(name, str) else orjson.dumps(name).decode() for name in names]
        except orjson.JSONDecodeError:
            pass  # a name that begins with a bracket
    return raw.split(separator)
