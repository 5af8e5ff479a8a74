"""Settings that give each class a number, by name: `good=0.25,bad=0.75`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbert.errors import ConfigError

DEFAULT_ALPHA = 0.25


def focal_alpha(text: str, names: Sequence[str]) -> float | list[float]:
    """`--focal_alpha`: one factor, or one a class (0.25 for classes not named).

    Raises:
        ConfigError: a class is unknown or named twice, or a number is negative or none.
    """
    if "=" not in text:
        return _not_negative("focal_alpha", text)
    values = _by_class("focal_alpha", text, names)
    return [values.get(i, DEFAULT_ALPHA) for i in range(len(names))]


def class_weights(text: str | None, names: Sequence[str], labels: npt.NDArray[Any]) -> dict[int, float] | None:
    """`--class_weights`: class id -> weight, or None; classes not named weigh 1.

    Args:
        text: None, `balanced` (rows / (classes x rows of the class)), or `name=number` pairs.
        names: class names in id order.
        labels: class ids of the training rows.

    Raises:
        ConfigError: as `focal_alpha`; or no class has a weight.
    """
    if text is None:
        return None
    if text == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        return {i: len(labels) / (len(names) * int(count)) if count else 1.0 for i, count in enumerate(counts)}
    weights = _by_class("class_weights", text, names)
    if len(weights) == len(names) and not any(weights.values()):
        raise ConfigError(f"--class_weights leaves a class something to weigh. Received: {text!r}.")
    return weights


def _by_class(option: str, text: str, names: Sequence[str]) -> dict[int, float]:
    """`name=number,...` -> class id -> number."""
    values: dict[int, float] = {}
    pieces = text.split(",")
    for i, piece in enumerate(pieces[:-1]):
        if "=" not in piece:  # a comma in a name
            pieces[i + 1] = f"{piece},{pieces[i + 1]}"
    for pair in (piece for i, piece in enumerate(pieces) if "=" in piece or i == len(pieces) - 1):
        name, sign, number = pair.rpartition("=")
        name = name.strip()
        if name not in names or not sign:
            raise ConfigError(f"--{option} names classes as name=number: {', '.join(names[:20])}. Received: {pair!r}.")
        if names.index(name) in values:
            raise ConfigError(f"--{option} names a class once. Received: {name!r} twice.")
        values[names.index(name)] = _not_negative(option, number)
    return values


def _not_negative(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"--{option} takes numbers >= 0. Received: {text!r}.")
    return value
