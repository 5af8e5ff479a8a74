"""Who is who among several workers."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tfbert.cluster import Cluster, find_cluster, wait_for_all
from tfbert.errors import ConfigError

TWO = ("one:2000", "two:2000")


def tf_config(cluster: object, task: object) -> str:
    return json.dumps({"cluster": cluster, "task": task})


def test_alone_without_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert find_cluster() is None
    monkeypatch.setenv("TF_CONFIG", " ")
    assert find_cluster() is None


def test_one_worker_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["one:2000"]}, {"type": "worker", "index": 0}))
    assert find_cluster() is None
    assert find_cluster("one:2000", 0) is None


def test_flags_and_environment_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": list(TWO)}, {"type": "worker", "index": 1}))
    assert find_cluster() == find_cluster("one:2000, two:2000", 1) == Cluster(TWO, 1)
    assert not Cluster(TWO, 1).is_chief
    assert Cluster(TWO, 0).is_chief


def test_a_chief_comes_before_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"chief": ["one:2000"], "worker": ["two:2000"]}
    for kind, rank in (("chief", 0), ("worker", 1)):
        monkeypatch.setenv("TF_CONFIG", tf_config(both, {"type": kind, "index": 0}))
        assert find_cluster() == Cluster(TWO, rank)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
        tf_config({"worker": list(TWO)}, {"type": "worker", "index": 2}),
        tf_config({"worker": list(TWO)}, {"type": "worker", "index": -1}),
        tf_config({"worker": list(TWO)}, {"type": "worker", "index": "x"}),
        tf_config({"worker": list(TWO)}, {"type": "ps", "index": 0}),
        tf_config({"worker": list(TWO), "ps": ["c:1"]}, {"type": "worker", "index": 0}),
        tf_config({"worker": 3}, {"type": "worker", "index": 0}),
        tf_config({"worker": ["one", "two:1"]}, {"type": "worker", "index": 0}),
        tf_config({"worker": ["one:1", "one:1"]}, {"type": "worker", "index": 0}),
    ],
)
def test_a_wrong_description_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Case 169."""
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match="Received"):
        find_cluster()


@pytest.mark.parametrize(
    ("workers", "rank"),
    [("a:1,b:1", None), (None, 0), ("a:1,b:1", 2), ("a:1,b:1", -1), ("a,b", 0), ("a:1,,b:1", 0), ("a:70000,b:1", 0)],
)
def test_wrong_flags_are_refused(workers: str | None, rank: int | None) -> None:
    with pytest.raises(ConfigError, match="Received"):
        find_cluster(workers, rank)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        here = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{here}, address already in use"):
            wait_for_all(Cluster((here, "localhost:1"), 0), 0.1)


def test_a_worker_that_does_not_come_is_named() -> None:
    with socket.socket() as free, socket.socket() as there, socket.socket() as nobody:
        for one in (free, there, nobody):
            one.bind(("", 0))
        there.listen()
        addresses = tuple(f"localhost:{one.getsockname()[1]}" for one in (free, there, nobody))
        free.close()
        with pytest.raises(ConfigError, match=f"within 0.5 s .* none from {addresses[2]}\\. "):
            wait_for_all(Cluster(addresses, 0), 0.5)


def test_workers_wait_for_each_other() -> None:
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("", 0))
        addresses = tuple(f"localhost:{free.getsockname()[1]}" for free in (one, two))
    both = Barrier(2)

    def work(rank: int) -> None:
        wait_for_all(Cluster(addresses, rank), 20)
        with socket.socket() as joining:  # as TensorFlow does behind it
            joining.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            joining.bind(("", int(addresses[rank].rpartition(":")[2])))
            joining.listen()
            both.wait(20)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work, rank) for rank in (0, 1)]:
            done.result()
