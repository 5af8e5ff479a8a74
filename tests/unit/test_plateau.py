"""The rate on a plateau."""

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("least", "expected"), [(0.0, [1, 0.5, 0.25, 0.125]), (0.3, [1, 0.5, 0.3, 0.3])])
def test_the_rate_is_lowered_and_never_below_the_least(least: float, expected: list[float]) -> None:
    from tfbert.callbacks.plateau import Plateau

    trainer = SimpleNamespace(rate_factor=1.0)
    callback = Plateau(trainer, "loss", "min", 1, 0.5, least=least)
    factors = []
    for epoch in range(4):
        callback.on_epoch_end(epoch, {"loss": 1.0})
        factors.append(trainer.rate_factor)
    assert factors == expected


def test_a_rate_below_the_least_stays() -> None:
    from tfbert.callbacks.plateau import Plateau

    trainer = SimpleNamespace(rate_factor=0.1)
    callback = Plateau(trainer, "loss", "min", 1, 0.5, least=0.3)
    for epoch in range(3):
        callback.on_epoch_end(epoch, {"loss": 1.0})
    assert trainer.rate_factor == 0.1
