"""Which devices train: one, or several under `MirroredStrategy`; and in which precision."""

import contextlib
import re
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfbert.errors import ConfigError
from tfbert.progress import logger

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


def make_strategy(devices: str = "auto", deterministic: bool = False) -> tf.distribute.Strategy:
    """The strategy for `devices`: the default one for a single device, else `MirroredStrategy`.

    `auto` takes every visible GPU, or the CPU where there is none. `cpu:N` makes N logical CPU devices, so that a
    strategy can be tried anywhere. Memory growth is set before anything touches a GPU; calling twice is fine.
    `deterministic` makes TensorFlow choose kernels that give the same bits every time, for the rest of the process.

    Raises:
        ConfigError: there are fewer GPUs than asked for, or TensorFlow was already started with other devices.
    """
    wanted = Devices.parse(devices)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    if wanted.kind == "gpu" and len(gpus) < (wanted.count or 1):
        raise ConfigError(f"--devices {devices} needs as many visible GPUs. Received: {len(gpus)}. Use auto or cpu:N.")
    for gpu in gpus:
        with contextlib.suppress(RuntimeError, ValueError):  # already started or divided, by a caller who chose
            tf.config.experimental.set_memory_growth(gpu, True)
    if wanted.kind == "cpu" or not gpus:
        names = _logical_cpus(wanted.count or 1)
    else:
        names = [f"/gpu:{i}" for i in range(wanted.count or len(gpus))]
    if len(names) > 1:
        # on CPUs plain sums: collectives there allow only one group of devices in the life of a process
        reduction = tf.distribute.ReductionToOneDevice() if "cpu" in names[0] else None
        return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)
    return tf.distribute.OneDeviceStrategy(names[0])


def _logical_cpus(count: int) -> list[str]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if count > 1:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            found = len(tf.config.list_logical_devices("CPU"))
            if found < count:
                raise ConfigError(
                    f"Logical CPUs must be made before TensorFlow starts. Received: {count} asked for, {found} there."
                ) from None
    return [f"/cpu:{i}" for i in range(count)]


def set_precision(precision: str, strategy: tf.distribute.Strategy) -> keras.DTypePolicy:
    """The Keras policy for models, by device.

    bfloat16 on a CPU is done by TensorFlow's graph rewrite on a float32 model, which is faster there than a mixed
    policy; the switch holds for the process. float16 wants loss scaling.

    Raises:
        ConfigError: the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"--mixed_precision is one of {', '.join(PRECISIONS)}. Received: {precision!r}.")
    on_cpu = "CPU" in strategy.extended.worker_devices[0].upper()
    rewrite = precision == "bfloat16" and on_cpu
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": rewrite})
    if precision == "none" or rewrite:
        return keras.DTypePolicy("float32")
    return keras.DTypePolicy(f"mixed_{precision}")


def log_devices(strategy: tf.distribute.Strategy, global_batch_size: int) -> None:
    replicas = strategy.num_replicas_in_sync
    logger.info(
        "%d replica(s) on %s; global batch of %d rows, %.4g a replica",
        replicas,
        ", ".join(device.split("device:")[-1] for device in strategy.extended.worker_devices),
        global_batch_size,
        global_batch_size / replicas,
    )


def all_sum(value):
    """Sum over the replicas, of a tensor or a list of tensors; in replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
