"""Which devices train, and in which precision."""

import logging
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfbert.devices import Devices
from tfbert.errors import ConfigError
from tfbert.strategy import log_devices, make_strategy, set_precision

pytestmark = pytest.mark.usefixtures("logical_cpus")
without_gpu = pytest.mark.skipif("len(__import__('tensorflow').config.list_physical_devices('GPU')) > 0")


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [("auto", "auto", None), ("cpu", "cpu", 1), ("cpu:3", "cpu", 3), ("gpu", "gpu", None), ("gpu:8", "gpu", 8)],
)
def test_forms_of_devices(text: str, kind: str, count: int | None) -> None:
    assert Devices.parse(text) == Devices(kind, count)


@pytest.mark.parametrize(
    "text", ["", "cpu:0", "cpu:-1", "cpu:1.5", "gpu:", "GPU", "auto:2", "tpu", "cpu:2 ", "0,1", "-1"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--devices is auto, cpu:N or gpu:N"):
        make_strategy(text)


@without_gpu
@pytest.mark.parametrize("value", ["", "-1", "0", "0,1,", "0,1,2,3,4,5,6,7", None])
def test_the_number_of_replicas_is_not_counted_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Case 084."""
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert make_strategy("auto").num_replicas_in_sync == 1


def test_strategies_are_made_any_number_of_times_after_tensorflow_has_started() -> None:
    """Case 087."""
    tf.constant(1)
    for text, replicas in (("cpu:2", 2), ("cpu:1", 1), ("cpu:4", 4), ("cpu:2", 2), ("cpu", 1)):
        assert make_strategy(text).num_replicas_in_sync == replicas


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="Logical CPUs must be made before TensorFlow starts. Received: 5 asked for, 4"
    ):
        make_strategy("cpu:5")
    count = len(tf.config.list_physical_devices("GPU")) + 1
    with pytest.raises(ConfigError, match=rf"--devices gpu:{count} needs as many visible GPUs"):
        make_strategy(f"gpu:{count}")


@pytest.mark.parametrize("error", [None, RuntimeError("already initialised"), ValueError("virtual devices")])
@pytest.mark.parametrize("devices", ["auto", "cpu:1", "cpu:2"])
def test_memory_growth_is_set_for_every_gpu_and_never_fails(
    monkeypatch: pytest.MonkeyPatch, devices: str, error: Exception | None
) -> None:
    """Case 087: also where only CPUs train, since TensorFlow takes all of a GPU's memory at once otherwise."""
    grown = []

    def grow(gpu: str, enable: bool) -> None:
        grown.append((gpu, enable))
        if error is not None:
            raise error

    found = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a", "b"] if kind == "GPU" else found(kind))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    made: list[Any] = []
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", made.append)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda names, **_: made.append(names))
    make_strategy(devices)
    assert grown == [("a", True), ("b", True)]
    assert made == [{"auto": ["/gpu:0", "/gpu:1"], "cpu:1": "/cpu:0", "cpu:2": ["/cpu:0", "/cpu:1"]}[devices]]


def test_determinism_and_memory_growth_come_before_anything_touches_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 087: in that order, and only where it is asked for."""
    done: list[str] = []
    found = tf.config.list_physical_devices

    def logical(kind: str) -> list[Any]:
        done.append("devices")
        return []

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a"] if kind == "GPU" else found(kind))
    monkeypatch.setattr(tf.config, "list_logical_devices", logical)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, enable: done.append("growth"))
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: done.append("determinism"))
    for name in ("OneDeviceStrategy", "MirroredStrategy"):
        monkeypatch.setattr(tf.distribute, name, lambda *_, **__: done.append("devices"))
    make_strategy("auto", deterministic=True)
    assert done == ["determinism", "growth", "devices"]
    done.clear()
    make_strategy("auto")
    assert done == ["growth", "devices"]


@pytest.mark.parametrize(
    ("precision", "policy", "rewrite"),
    [("none", "float32", False), ("bfloat16", "float32", True), ("float16", "mixed_float16", False)],
)
def test_precisions_on_a_cpu(precision: str, policy: str, rewrite: bool) -> None:
    """bfloat16 is a graph rewrite there, which the next model without it must not inherit."""
    one = make_strategy("cpu:1")
    try:
        assert set_precision(precision, one) == keras.DTypePolicy(policy)
        assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision_onednn_bfloat16"] == rewrite
    finally:
        set_precision("none", one)
    assert not tf.config.optimizer.get_experimental_options()["auto_mixed_precision_onednn_bfloat16"]


def test_an_unknown_precision_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="--mixed_precision is one of none, bfloat16, float16. Received: 'fp16'"):
        set_precision("fp16", make_strategy("cpu:1"))


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ("cpu:1", "1 replica(s) on CPU:0; global batch of 10 rows, 10 a replica"),
        ("cpu:4", "4 replica(s) on CPU:0, CPU:1, CPU:2, CPU:3; global batch of 10 rows, 2.5 a replica"),
    ],
)
def test_the_log_tells_both_batch_sizes(caplog: pytest.LogCaptureFixture, devices: str, text: str) -> None:
    """Case 090."""
    with caplog.at_level(logging.INFO, "tfbert"):
        log_devices(make_strategy(devices), 10)
    assert text in caplog.text
