"""Tells the workers that Ray Train starts each other's addresses.

Ray's own backend for TensorFlow forces legacy Keras on every worker; this one sets a variable and nothing else.
"""

import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

VARIABLE = "TFBERT_WORKERS"


def _address() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


def _tell(addresses: str) -> None:
    os.environ[VARIABLE] = addresses
    os.environ.pop("TF_CONFIG", None)


class _Addresses(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        addresses = worker_group.execute(_address)
        worker_group.execute(_tell, ",".join(addresses))


@dataclass
class AddressConfig(BackendConfig):
    """For the `backend_config` of a Ray trainer."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Addresses
