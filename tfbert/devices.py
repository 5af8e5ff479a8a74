"""Words for devices and precision, as settings take them; what they become is in `strategy`."""

import re
from dataclasses import dataclass

from tfbert.errors import ConfigError

PRECISIONS = ("none", "bfloat16", "float16")


@dataclass(frozen=True)
class Devices:
    """A request for devices: kind `auto`, `cpu` or `gpu`, and how many (None: all)."""

    kind: str
    count: int | None

    @classmethod
    def parse(cls, text: str) -> "Devices":
        """`auto`, `cpu`, `cpu:2`, `gpu`, `gpu:8`.

        Raises:
            ConfigError: another form.
        """
        match = re.fullmatch(r"auto|(cpu|gpu)(?::([1-9][0-9]{0,3}))?", text)
        if not match:
            raise ConfigError(f"--devices is auto, cpu:N or gpu:N. Received: {text!r}.")
        kind, count = match.groups()
        if kind is None:
            return cls("auto", None)
        return cls(kind, int(count) if count else (1 if kind == "cpu" else None))


def check_devices(devices: str, mixed_precision: str) -> None:
    """Refuses words that name no devices or no precision, before anything is read.

    Raises:
        ConfigError: names the setting.
    """
    Devices.parse(devices)
    check_precision(mixed_precision)


def check_precision(precision: str) -> None:
    """Raises ConfigError where there is no such precision."""
    if precision not in PRECISIONS:
        raise ConfigError(f"--mixed_precision is one of {', '.join(PRECISIONS)}. Received: {precision!r}.")
