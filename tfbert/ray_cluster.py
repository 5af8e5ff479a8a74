"""Ray, which is an optional extra: a running cluster, or one of this machine alone."""

import logging
import os
from pathlib import Path
from typing import Any

from tfbert.errors import ConfigError

ROOT = Path(__file__).parents[1]


def import_ray() -> Any:
    """Ray, which is an optional extra.

    Raises:
        ConfigError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("This needs Ray. Received: no module ray. Install it: pip install 'tfbert[ray]'.") from None
    return ray


def connect(address: str | None, show_logs: bool = False) -> Any:
    """Ray, connected to a cluster, or to one of this machine alone that is started for the occasion.

    Args:
        address: as `ray.init` takes it (`auto`, `host:port`), or None to start one here.
        show_logs: what the workers write is written here as well.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """
    ray = import_ray()
    paths = os.pathsep.join(
        dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    settings = {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}, "log_to_driver": show_logs}
    if address is None:
        settings |= {"include_dashboard": False, "num_cpus": len(os.sched_getaffinity(0))}
    try:
        ray.init(address=address, logging_level=logging.ERROR, **settings)
    except (ConnectionError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"--ray_address names a running Ray cluster. Received: {address!r} ({reason}).") from error
    return ray
