"""Which devices train: one, or several under `MirroredStrategy`; and in which precision."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tfbert.cluster import Cluster, wait_for_all
from tfbert.devices import Devices, check_precision
from tfbert.errors import ConfigError
from tfbert.progress import logger


def make_strategy(
    devices: str = "auto",
    deterministic: bool = False,
    cluster: Cluster | None = None,
    cluster_timeout: float = 300.0,
) -> tf.distribute.Strategy:
    """The strategy for `devices`: the default one for a single device, else `MirroredStrategy`; several workers share
    the work under `MultiWorkerMirroredStrategy`, each with its own devices of the same number.

    `auto` takes every visible GPU, or the CPU where there is none. `cpu:N` makes N logical CPU devices, so that a
    strategy can be tried anywhere. Memory growth is set before anything touches a GPU; calling twice is fine.

    Args:
        devices: as `Devices.parse` takes them.
        deterministic: TensorFlow chooses kernels that give the same bits every time, for the rest of the process.
        cluster: the workers, or None for this process alone. TensorFlow must not have been used before.
        cluster_timeout: seconds in which all workers must come, and the longest wait for one of them later on.

    Raises:
        ConfigError: there are fewer GPUs than asked for, TensorFlow was already started with other devices, or this
            worker cannot join the others.
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
    if cluster is not None:
        return _join(cluster, wanted, gpus, cluster_timeout)
    if wanted.kind == "cpu" or not gpus:
        names = _logical_cpus(wanted.count or 1)
    else:
        names = [f"/gpu:{i}" for i in range(wanted.count or len(gpus))]
    if len(names) > 1:
        # on CPUs plain sums: collectives there allow only one group of devices in the life of a process
        reduction = tf.distribute.ReductionToOneDevice() if "cpu" in names[0] else None
        return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)
    return tf.distribute.OneDeviceStrategy(names[0])


def _join(cluster: Cluster, wanted: Devices, gpus: list, timeout_s: float) -> tf.distribute.Strategy:
    if wanted.kind == "cpu" and (wanted.count or 1) > 1:
        raise ConfigError(
            f"A worker among several has one CPU device. Received: --devices cpu:{wanted.count}. Use cpu:1, or more "
            "workers."
        )
    if gpus:
        tf.config.set_visible_devices([] if wanted.kind == "cpu" else gpus[: wanted.count], "GPU")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.rank,
        num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_s)
    logger.info("worker %d of %d: waiting for the others", cluster.rank, len(cluster.workers))
    wait_for_all(cluster, timeout_s)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, communication_options=options)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ConfigError(
            "Workers must join before TensorFlow is used in the process. Received: a process that used it already."
        ) from error
    except tf.errors.OpError as error:
        raise ConfigError(
            f"A worker joins the others of its cluster. Received: {type(error).__name__}. Start all workers anew, with "
            "the same description."
        ) from error


def worker_of(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Rank of this process and the number of processes that share the work: (0, 1) where it works alone."""
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    replicas = strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
    return int(resolver.task_id), replicas


def sum_over_workers(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """Sum over the processes of host numbers of one shape, float64; every process must call it at the same point."""
    values = np.asarray(values, np.float64)
    if worker_of(strategy)[1] == 1:
        return values
    return strategy.reduce(tf.distribute.ReduceOp.SUM, tf.constant(values), axis=None).numpy()


def gather(strategy: tf.distribute.Strategy, value) -> np.ndarray:
    """Rows on the replicas of all processes -> one array, in order; every process must call it at the same point."""
    own = np.concatenate([part.numpy() for part in strategy.experimental_local_results(value)])
    rank, workers = worker_of(strategy)
    if workers == 1:
        return own
    everyone = np.zeros((workers, *own.shape))
    everyone[rank] = own  # a sum with zeros is exact; `Strategy.gather` would trace a function for every shape
    return sum_over_workers(strategy, everyone).reshape(-1, *own.shape[1:]).astype(own.dtype)


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


def on_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether CPUs do the work."""
    return "CPU" in strategy.extended.worker_devices[0].upper()


def set_precision(precision: str, strategy: tf.distribute.Strategy) -> keras.DTypePolicy:
    """The Keras policy for models, by device.

    bfloat16 on a CPU is done by TensorFlow's graph rewrite on a float32 model, which is faster there than a mixed
    policy; the switch holds for the process. float16 wants loss scaling.

    Raises:
        ConfigError: the precision is unknown.
    """
    check_precision(precision)
    rewrite = precision == "bfloat16" and on_cpu(strategy)
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


def all_sum(value, dtype: str = "float32"):
    """Sum over the replicas, of a tensor or a list of tensors; in replica context.

    Args:
        value: float32.
        dtype: what is sent; bfloat16 halves the traffic. The result is float32 again.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    if dtype == "float32":
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    sent = tf.nest.map_structure(lambda x: tf.cast(x, dtype), value)
    return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), context.all_reduce(tf.distribute.ReduceOp.SUM, sent))
