"""Who am I among several workers: from flags or from TF_CONFIG; joining the others in bounded time.

Every worker runs the same command. One of them, rank 0, is the chief and writes the run folder; the others read it, so
it lies on storage that all of them see.
"""

import json
import os
import re
import socket
import time
from dataclasses import dataclass

from tfbert.errors import ConfigError

_ADDRESS = re.compile(r"[^:,\s]+:(\d{1,5})|\[[0-9a-fA-F:]+\]:(\d{1,5})")
_CONNECT_S = 1.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Cluster:
    """Several workers, each one process.

    Args:
        workers: `host:port` of each, in order of rank.
        rank: place of this process among them.
    """

    workers: tuple[str, ...]
    rank: int

    def __post_init__(self) -> None:
        for address in self.workers:
            match = _ADDRESS.fullmatch(address)
            if not match or not 0 < int(match.group(1) or match.group(2)) < 65536:
                raise ConfigError(f"A worker is named as host:port. Received: {address!r}.")
        if len(set(self.workers)) < len(self.workers):
            raise ConfigError(f"Each worker has an address of its own. Received: {', '.join(self.workers)}.")
        if not 0 <= self.rank < len(self.workers):
            raise ConfigError(
                f"The rank of a worker is its place among them, from 0. Received: {self.rank} of {len(self.workers)}."
            )

    @property
    def is_chief(self) -> bool:
        return self.rank == 0


def find_cluster(workers: str | None = None, rank: int | None = None) -> Cluster | None:
    """The cluster of this process, or None where it works alone.

    Args:
        workers: `host:port,...`, or None to look at the variable TF_CONFIG.
        rank: of this process, with `workers`.

    Raises:
        ConfigError: the description is wrong, or half of it is missing.
    """
    if (workers is None) != (rank is None):
        given = "--workers without --rank" if rank is None else "--rank without --workers"
        raise ConfigError(f"--workers and --rank belong together. Received: {given}.")
    if workers is not None and rank is not None:
        cluster = Cluster(tuple(address.strip() for address in workers.split(",")), rank)
    else:
        text = os.environ.get("TF_CONFIG", "").strip()
        if not text:
            return None
        cluster = _of_tf_config(text)
    return cluster if len(cluster.workers) > 1 else None


def _of_tf_config(text: str) -> Cluster:
    rule = "TF_CONFIG describes the workers and this one's place among them"
    try:
        described = json.loads(text)
        tasks, task = described["cluster"], described["task"]
        kind, index = str(task["type"]), int(task["index"])
        chief, workers = list(tasks.get("chief", [])), list(tasks.get("worker", []))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'{rule}: {{"cluster": {{"worker": ["host:port", ...]}}, "task": {{"type": "worker", "index": 0}}}}. '
            f"Received: {text[:200]!r} ({type(error).__name__}: {error})."
        ) from None
    if set(tasks) - {"chief", "worker"} or kind not in tasks:
        raise ConfigError(f"{rule}, of the kinds worker and chief alone. Received: {', '.join(tasks)}, task {kind!r}.")
    if not 0 <= index < len(tasks[kind]):
        raise ConfigError(f"{rule}. Received: {kind} {index} of {len(tasks[kind])}.")
    return Cluster(tuple(map(str, chief + workers)), index + (len(chief) if kind == "worker" else 0))


def wait_for_all(cluster: Cluster, timeout_s: float) -> None:
    """Returns once somebody listens at the address of every worker; this process listens at its own meanwhile.

    TensorFlow's joining cannot be interrupted from Python, so it begins when all are there. A worker that has gone on
    to it listens there again in a moment.

    Args:
        cluster: of this process.
        timeout_s: longest wait, seconds.

    Raises:
        ConfigError: this worker's port is taken, or others did not come in time.
    """
    own = cluster.workers[cluster.rank]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", int(own.rpartition(":")[2])))
        except OSError as error:
            raise ConfigError(
                f"A worker listens at the port of its address. Received: {own}, "
                f"{(error.strerror or str(error)).lower()}. Is another run at it?"
            ) from None
        listening.listen(len(cluster.workers))
        end = time.monotonic() + timeout_s
        missing = [address for address in cluster.workers if address != own]
        while missing := [address for address in missing if not _listens(address)]:
            if time.monotonic() >= end:
                raise ConfigError(
                    f"All {len(cluster.workers)} workers must come within {timeout_s:g} s (--cluster_timeout). "
                    f"Received: none from {', '.join(missing)}. Start them, or describe the cluster as it is."
                )
            time.sleep(_POLL_S)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True
