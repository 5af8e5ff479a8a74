"""A pool of worker processes that fails loudly: results in order, bounded queue, no silent loss."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from types import TracebackType
from typing import Any, TypeVar

from tfbert.errors import ConfigError, TfbertError, WorkerError

T = TypeVar("T")
R = TypeVar("R")


def check_workers(workers: int | None) -> int:
    """Number of processes: as given, or one a core."""
    if workers is None:
        return len(os.sched_getaffinity(0))
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1. Received: {workers}.")
    return workers


_setup: tuple[Callable[..., None], tuple[Any, ...]] | None = None


def _initialize(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    global _setup
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what a Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _setup = (initializer, arguments)


def _run(function: Callable[[T], R], task: T) -> R:
    """A task in a worker. The first one builds the state, so an error there is the error of a task, with its type."""
    global _setup
    if _setup is not None:
        initializer, arguments = _setup
        initializer(*arguments)
        _setup = None
    return function(task)


def _keep_freed_memory() -> None:
    """Tells glibc to use memory again that was freed, up to 64 MB, instead of giving it back at once.

    A task frees some 20 MB, and taking them from the system again, page by page, was a third of a task's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 1 << 26)  # M_TRIM_THRESHOLD
        mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, the largest there is


def _context() -> ForkContext | SpawnContext:
    """Forked workers start at once and share what is loaded; a process with other threads must not be forked."""
    forks = threading.active_count() == 1 and "tensorflow" not in sys.modules
    return multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Workers that start meanwhile inherit it: a Ctrl-C during their imports is the parent's business alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class WorkerPool:
    """Processes with a state of their own, made after their start by `initializer(*arguments)`.

    Args:
        workers: number of processes.
        initializer: builds the state (tokenizer, dictionary) inside each worker.
        arguments: its picklable arguments.
    """

    def __init__(self, workers: int, initializer: Callable[..., None], arguments: tuple[Any, ...]):
        self._workers = workers
        self._closing: threading.Thread | None = None
        self._executor = ProcessPoolExecutor(workers, _context(), _initialize, (initializer, arguments))

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closing is None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        else:
            self._closing.join()

    def close(self) -> None:
        """Lets the processes end while others work; nothing may be asked of them any more."""
        # an executor that is told not to wait is never waited for, and ends in a race with the interpreter
        self._closing = threading.Thread(target=self._executor.shutdown)
        self._closing.start()

    def map(self, function: Callable[[T], R], tasks: Iterable[T], place: Callable[[T], str]) -> Iterator[tuple[T, R]]:
        """Runs `function` on every task; yields (task, result) in the order of the tasks.

        Only a few tasks a worker are under way at once, so an endless iterable of large tasks is fine.

        Raises:
            TfbertError: as the worker raised it.
            WorkerError: a worker raised anything else, with its traceback; or died, with the places (`place(task)`)
                that were being worked on.
        """
        waiting: deque[tuple[T, Future[R]]] = deque()
        for task in tasks:
            future: Future[R]
            try:
                with _sigint_blocked():
                    future = self._executor.submit(_run, function, task)
            except BrokenProcessPool as error:  # a worker died between two tasks
                future = Future()
                future.set_exception(error)
            waiting.append((task, future))
            if len(waiting) > 2 * self._workers:
                yield self._result(waiting, place)
        while waiting:
            yield self._result(waiting, place)

    def _result(self, waiting: deque[tuple[T, Future[R]]], place: Callable[[T], str]) -> tuple[T, R]:
        task, future = waiting[0]
        try:
            result = future.result()
        except (TfbertError, OSError):
            raise
        except BrokenProcessPool:
            unfinished = [t for t, f in waiting if f.exception() is not None]
            suspects = [place(t) for t in unfinished[: self._workers]]  # tasks are begun in their order
            raise WorkerError(
                "A worker process died without a word (killed, or out of memory?) while these were worked on: "
                + "; ".join(suspects)
                + ". Nothing was published. Free memory or use fewer --workers, then run again."
            ) from None
        except Exception as error:
            report = "".join(traceback.format_exception(error))
            raise WorkerError(f"{report}\nA worker failed on {place(task)}. Nothing was published.") from error
        waiting.popleft()
        return task, result


def run_apart(function: Callable[[T], None], argument: T) -> None:
    """Runs a function in a process of its own, which ends with this one: it imports what this one must not.

    Raises:
        TfbertError, OSError: as the function raised it.
        WorkerError: it raised anything else, with its traceback, or its process died.
    """
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, function, argument))
    with _sigint_blocked():
        process.start()
    sender.close()
    try:
        error = receiver.recv()
    except EOFError:
        raise WorkerError("A process died without a word (killed, or out of memory?). Run again.") from None
    finally:
        process.kill()  # it has nothing left to say
        process.join()
    if error is not None:
        raise error


def _report(sender: Connection, function: Callable[[T], None], argument: T) -> None:
    _initialize(function, ())
    try:
        function(argument)
        sys.stdout.flush()
    except (TfbertError, OSError) as error:
        sender.send(error)
    except Exception:  # noqa: BLE001
        sender.send(WorkerError(traceback.format_exc()))
    else:
        sender.send(None)
