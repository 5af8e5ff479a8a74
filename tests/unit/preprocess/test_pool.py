"""The worker pool: order, types of errors, workers that vanish."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from preprocess.pool import WorkerPool, check_workers, run_apart
from tfbert.errors import ConfigError, DataError, WorkerError

_factor = 0


def set_factor(factor: int) -> None:
    global _factor
    _factor = factor


def refuse(message: str) -> None:
    raise ConfigError(message)


def work(task: int) -> int:
    if task == -1:
        raise DataError("file:1: the user's fault")
    if task == -2:
        raise KeyError("ours")
    if task == -3:
        raise OSError(28, "No space left on device", "disk")
    if task == -4:
        os.kill(os.getpid(), signal.SIGKILL)
    return task * _factor


def own_id(_: int) -> int:
    return os.getpid()


def place(task: int) -> str:
    return f"task {task}"


def test_results_come_in_the_order_of_the_tasks() -> None:
    with WorkerPool(2, set_factor, (3,)) as pool:
        assert list(pool.map(work, range(50), place)) == [(task, 3 * task) for task in range(50)]


def test_a_process_with_other_threads_is_not_forked() -> None:
    """A lock that another thread holds would stay locked in the child for ever."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    set_factor(7)  # what a child of a fork would find
    try:
        with WorkerPool(1, abs, (1,)) as pool:
            assert list(pool.map(work, [1], place)) == [(1, 0)]
    finally:
        end.set()
        thread.join()
        set_factor(0)


def test_a_closed_pool_has_given_all_results() -> None:
    with WorkerPool(2, set_factor, (3,)) as pool:
        results = pool.map(work, range(20), place)
        assert len(list(results)) == 20
        pool.close()


def test_tasks_are_taken_only_as_they_are_needed() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(1, 10**9):
            taken.append(task)
            yield task

    with WorkerPool(1, set_factor, (1,)) as pool:
        results = pool.map(work, tasks(), place)
        assert [next(results)[1] for _ in range(5)] == [1, 2, 3, 4, 5]
        results.close()
    assert len(taken) < 12


@pytest.mark.parametrize(
    "task, kind, message",
    [
        (-1, DataError, "file:1: the user's fault"),
        (-2, WorkerError, "KeyError: 'ours'"),
        (-3, OSError, "No space left"),
        (-4, WorkerError, "task -4"),
    ],
)
def test_failures_keep_their_kind_and_earlier_results(task: int, kind: type[Exception], message: str) -> None:
    seen = []
    with pytest.raises(kind) as error, WorkerPool(1, set_factor, (1,)) as pool:
        for done in pool.map(work, [1, 2, task, 3], place):
            seen.append(done)
    assert message in str(error.value)
    if task != -4:
        assert seen == [(1, 1), (2, 2)]
    if task == -2:
        assert "task -2" in str(error.value)


def test_an_error_while_a_worker_gets_ready_keeps_its_kind() -> None:
    with pytest.raises(ConfigError, match="no such rule"), WorkerPool(2, refuse, ("no such rule",)) as pool:
        list(pool.map(work, range(5), place))


def test_a_worker_that_dies_between_two_tasks_is_noticed() -> None:
    """All results so far are there, and still the rest of the tasks must not be lost silently."""
    seen = []
    with WorkerPool(1, set_factor, (1,)) as pool:

        def tasks() -> Iterator[int]:
            yield from (1, 2)
            ((_, worker),) = pool.map(own_id, [0], place)  # the only worker has done 1 and 2 now
            os.kill(worker, signal.SIGKILL)
            with suppress(WorkerError):
                while list(pool.map(own_id, [0], place)):
                    pass  # until the pool knows
            yield 3

        with pytest.raises(WorkerError, match="task 3"):
            for task, _ in pool.map(work, tasks(), place):
                seen.append(task)
    assert seen == [1, 2]


def test_number_of_workers() -> None:
    assert check_workers(3) == 3
    assert check_workers(None) >= 1
    with pytest.raises(ConfigError, match="at least 1. Received: 0"):
        check_workers(0)


def test_workers_import_no_tensorflow(tmp_path: Path) -> None:
    with WorkerPool(1, set_factor, (1,)) as pool:
        ((_, loaded),) = pool.map(has_tensorflow, [0], place)
    assert not loaded


def has_tensorflow(_: int) -> bool:
    import sys

    import preprocess.encode  # noqa: F401

    return "tensorflow" in sys.modules


def write_own_id(path: Path) -> None:
    path.write_text(str(os.getpid()), encoding="utf-8")


def test_a_process_of_its_own(tmp_path: Path) -> None:
    run_apart(write_own_id, tmp_path / "id")
    assert int((tmp_path / "id").read_text(encoding="utf-8")) != os.getpid()
    with pytest.raises(ConfigError, match="wrong"):
        run_apart(refuse, "wrong")
    with pytest.raises(WorkerError, match="KeyError: 'ours'"):
        run_apart(work, -2)
    with pytest.raises(WorkerError, match="died without a word"):
        run_apart(work, -4)


def test_a_closed_pool_is_waited_for() -> None:
    """A thread of it that is left would end in a race with the interpreter."""
    before = threading.active_count()
    for _ in range(3):
        with WorkerPool(1, set_factor, (1,)) as pool:
            assert list(pool.map(work, [1], place)) == [(1, 1)]
            pool.close()
        assert threading.active_count() == before
