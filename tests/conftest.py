"""What several test folders share."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Where the tests run in the background of a shell, SIGINT is ignored and every process they start inherits that.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("TFBERT_SHARED", ROOT / "../shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}")
    return folder


@pytest.fixture(scope="session")
def logical_cpus() -> int:
    """Four logical CPU devices, made before TensorFlow starts: `cpu:1` to `cpu:4` then work any number of times."""
    from tfbert.cli import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    return len(tf.config.list_logical_devices("CPU"))


@pytest.fixture
def eagerly(logical_cpus: int) -> Iterator[None]:
    """Steps of tiny models run faster than they are compiled: for tests that are about something else."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
