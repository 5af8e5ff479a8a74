"""The worker pool over a Ray cluster: the same tasks, the same results, on the machines that Ray has.

Parts are written to the work folder, so the target lies on storage that every machine sees under the same path.
"""

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tfbert.errors import TfbertError, WorkerError
from tfbert.ray_cluster import connect

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 3  # of a task whose machine was lost: parts are written whole or not at all, so doing one again is safe


class _Worker:
    """A process on some machine, with the state that `initializer` builds."""

    def __init__(self, folder: str, initializer: Callable[..., None], arguments: tuple[Any, ...]):
        os.chdir(folder)  # inputs may be named relative to where the command was given
        self._start: Callable[[], None] | None = lambda: initializer(*arguments)

    def run(self, function: Callable[[Any], Any], task: Any) -> Any:
        if self._start is not None:  # here, so that an error is the error of a task
            start, self._start = self._start, None
            start()
        return function(task)


class RayPool:
    """As `WorkerPool`: results in the order of the tasks, few tasks under way, loud failures.

    Args:
        workers: number of processes over the cluster, or None for one a CPU of it.
        initializer: builds the state (tokenizer, dictionary) inside each worker.
        arguments: its picklable arguments.
        address: of the cluster, or None to start one on this machine.
    """

    def __init__(
        self,
        workers: int | None,
        initializer: Callable[..., None],
        arguments: tuple[Any, ...],
        address: str | None = None,
    ):
        self._ray = connect(address)
        count = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        actor = self._ray.remote(num_cpus=1, max_restarts=RETRIES, max_task_retries=RETRIES)(_Worker)
        self._workers = [actor.remote(str(Path.cwd()), initializer, arguments) for _ in range(count)]

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()

    def close(self) -> None:
        """Gives the cluster its CPUs back; nothing may be asked of the workers any more."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def map(self, function: Callable[[T], R], tasks: Iterable[T], place: Callable[[T], str]) -> Iterator[tuple[T, R]]:
        """As `WorkerPool.map`; the task of a machine that was lost is done again elsewhere."""
        waiting: deque[tuple[T, Any]] = deque()
        for number, task in enumerate(tasks):
            worker = self._workers[number % len(self._workers)]
            waiting.append((task, worker.run.remote(function, task)))
            if len(waiting) > 2 * len(self._workers):
                yield self._result(*waiting.popleft(), place)
        while waiting:
            yield self._result(*waiting.popleft(), place)

    def _result(self, task: T, reference: Any, place: Callable[[T], str]) -> tuple[T, R]:
        errors = self._ray.exceptions
        try:
            return task, self._ray.get(reference)
        except errors.RayActorError as error:
            raise WorkerError(
                f"A worker was lost {RETRIES + 1} times (killed, or out of memory?), at last with {place(task)}. "
                "Nothing was published. Free memory or use fewer --workers, then run again."
            ) from error
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, TfbertError | OSError):
                raise cause from None
            report = "".join(traceback.format_exception(error))
            raise WorkerError(f"{report}\nA worker failed on {place(task)}. Nothing was published.") from error
