"""`python -m tfbert.launch ray ... -- classify ...`: the workers of a run on a Ray cluster.

Ray Train starts the workers, watches them, and starts them anew, as many as there is room for, when one is lost or a
machine comes. Each round is an ordinary run of `train.py` with a cluster description, and goes on from the last state
in the run folder, which lies on storage that all machines see.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfbert.cli import Command, run
from tfbert.errors import ConfigError, WorkerError
from tfbert.ray_cluster import connect

STOPS = (0, 2)  # exit codes that another try would not change


@dataclass(frozen=True)
class RayConfig:
    """Train on a Ray cluster; the command of train.py stands behind `--`, without --workers and --rank."""

    address: str | None = None
    """Ray cluster to use, such as auto. Default: one of this machine alone."""
    min_workers: int = 1
    """Fewest workers to train with."""
    max_workers: int = 2
    """Most workers; as many are used as the cluster has room for."""
    cpus_per_worker: float = 1.0
    """CPUs that a worker takes."""
    gpus_per_worker: int = 0
    """GPUs that a worker takes."""
    commit_steps: int = 100
    """Steps between two saves of the state: what a lost worker costs at most."""
    resize_seconds: float = 60.0
    """Seconds between two looks for room for more workers."""
    max_restarts: int = 100
    """Rounds that may end with a lost worker before the run is given up."""
    cluster_timeout: float = 120.0
    """Seconds in which the workers of a round must find each other."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_workers <= self.max_workers:
            raise ConfigError(
                "--min_workers is at least 1 and at most --max_workers. "
                f"Received: {self.min_workers} and {self.max_workers}."
            )
        for name in ("cpus_per_worker", "commit_steps", "resize_seconds", "cluster_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} must be above 0. Received: {getattr(self, name)}.")
        if self.max_restarts < 0 or self.gpus_per_worker < 0:
            raise ConfigError("--max_restarts and --gpus_per_worker are at least 0. Received: a negative number.")


def train_on_ray(command: Sequence[str], config: RayConfig) -> None:
    """Runs a command of train.py to its end, over as many rounds as it takes.

    Args:
        command: its words, such as `classify --data DATA ...`.
        config: the workers.

    Raises:
        ConfigError: Ray is missing, the cluster cannot be reached, or the command was refused.
        WorkerError: more rounds were lost than allowed, or a worker failed in a way that is nobody's machine's fault.
    """
    words = _words(command, config)
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    ray = connect(config.address, show_logs=True)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    from tfbert.ray_backend import AddressConfig

    devices: dict[str, float] = {"CPU": config.cpus_per_worker}
    if config.gpus_per_worker:
        devices["GPU"] = config.gpus_per_worker
    trainer = DataParallelTrainer(
        _work,
        train_loop_config={"words": words, "folder": str(Path.cwd())},
        backend_config=AddressConfig(),
        scaling_config=ScalingConfig(
            num_workers=(config.min_workers, config.max_workers)
            if config.min_workers < config.max_workers
            else config.max_workers,
            use_gpu=bool(config.gpus_per_worker),
            resources_per_worker=devices,
            elastic_resize_monitor_interval_s=config.resize_seconds,
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(Path(_value(words, "run_dir")).absolute() / "rounds"),
            failure_config=FailureConfig(max_failures=config.max_restarts),
        ),
    )
    try:
        result = trainer.fit()
    except TrainingFailedError as error:
        raise WorkerError(f"The run was given up: {error}") from error
    finally:
        ray.shutdown()
    if (result.metrics or {}).get("code") == 2:
        raise ConfigError("The command must be one that train.py takes. Received: the error of the worker above.")


def _words(command: Sequence[str], config: RayConfig) -> list[str]:
    words = list(command)
    if not words:
        raise ConfigError("The command of train.py stands behind --. Received: none.")
    given = [name for name in ("workers", "rank") if any(w.split("=")[0] == f"--{name}" for w in words)]
    if given:
        raise ConfigError(f"Workers find each other by themselves here. Received: --{given[0]}. Leave it out.")
    if not _value(words, "run_dir"):
        raise ConfigError("The command names its --run_dir, on storage that all machines see. Received: none.")
    if not _value(words, "save_steps"):
        words += ["--save_steps", str(config.commit_steps)]
    if not _value(words, "cluster_timeout"):
        words += ["--cluster_timeout", str(config.cluster_timeout)]
    return words


def _value(words: Sequence[str], name: str) -> str:
    """What a flag of a command is set to, or an empty text."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == f"--{name}":
            return after
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return ""


def _work(settings: dict[str, Any]) -> None:
    """One worker of one round, in a process that Ray made."""
    import ray.train

    import train

    os.chdir(settings["folder"])
    context = ray.train.get_context()
    words = list(settings["words"])
    if context.get_world_size() > 1:
        words += ["--workers", os.environ["TFBERT_WORKERS"], "--rank", str(context.get_world_rank())]
    code = train.main(words)
    if code not in STOPS:
        raise RuntimeError(f"worker {context.get_world_rank()} ended with exit code {code}")
    ray.train.report({"code": code})


def commands(command: Sequence[str] = ()) -> Mapping[str, Command]:
    return {"ray": (RayConfig, partial(train_on_ray, command), "train on a Ray cluster, on workers that come and go")}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    return run("python -m tfbert.launch", commands(command), own)


if __name__ == "__main__":
    sys.exit(main())
