"""What limits training on many devices, from sizes and rates: python -m benchmarks.scaling

A step ends when the slowest device has its gradient and the sum over all devices has arrived. With the trainer's design
(one global batch, one padded length, gradients summed after the backward pass) a step takes

    max(input, compute + exchange)        once the input is some batches ahead, and their sum where it never is

compute from operations and the share of the peak that a device reaches, exchange from the bytes of a ring all-reduce
over the slowest link, input from the rows that one core makes into batches. `simulate` plays the queue through with
batches of real lengths instead of means.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.gpu import operations
from tfbert.data.plan import EpochPlan

QUEUE = 8  # batches read ahead


@dataclass(frozen=True)
class Cluster:
    """Devices, links and what they reach.

    Args:
        nodes, devices: machines, and devices in each.
        tflops: that a device reaches (peak x share).
        link_gb_s: between the devices of a node, one direction, GB/s.
        network_gb_s: of a node to the others, one direction, GB/s.
        rows_per_cpu_s: rows that one core makes into batches.
        input_cores: cores of a node that do so.
    """

    nodes: int = 1
    devices: int = 8
    tflops: float = 400.0
    link_gb_s: float = 200.0
    network_gb_s: float = 12.5
    rows_per_cpu_s: float = 150_000.0
    input_cores: int = 1

    @property
    def replicas(self) -> int:
        return self.nodes * self.devices


@dataclass(frozen=True)
class Work:
    """A step.

    Args:
        config: width, layers, inner width, vocabulary.
        rows_a_replica: of a step.
        mean_tokens: of a row.
        gradient_bytes: of a number that is exchanged: 4, or 2 in half precision.
    """

    config: dict[str, int]
    rows_a_replica: int = 64
    mean_tokens: float = 105.0
    gradient_bytes: int = 4

    @property
    def parameters(self) -> int:
        c = self.config
        width, inner = c["hidden_size"], c["intermediate_size"]
        layer = 4 * width * width + 2 * width * inner + 9 * width + inner
        return (c["vocab_size"] + 514) * width + c["num_hidden_layers"] * layer


BERT_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "vocab_size": 21128}
BERT_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 30522}


def ring_bytes(size: int, members: int) -> float:
    """Bytes that each member of a ring sends in an all-reduce of `size` bytes."""
    return 2 * (members - 1) / members * size


def exchange_s(work: Work, cluster: Cluster) -> float:
    """Seconds of the all-reduce: a ring inside each node, then one over the nodes."""
    size = work.parameters * work.gradient_bytes
    inside = ring_bytes(size, cluster.devices) / (cluster.link_gb_s * 1e9)
    return inside + ring_bytes(size, cluster.nodes) / (cluster.network_gb_s * 1e9)


def compute_s(work: Work, cluster: Cluster) -> float:
    """Seconds of forward and backward pass over rows of the mean length."""
    rows = [round(work.mean_tokens)] * work.rows_a_replica
    return operations(work.config, rows) / (cluster.tflops * 1e12)


@dataclass(frozen=True)
class Outcome:
    """What a step needs and gets."""

    replicas: int
    compute_ms: float
    exchange_ms: float
    megabytes: float  # that a device sends in a step
    rows_needed: float  # a second, over all devices, to keep them busy
    rows_made: float  # a second, over all nodes
    efficiency: float  # of the devices' time, spent in computing
    limit: str


def estimate(work: Work, cluster: Cluster) -> Outcome:
    """Means of a step; every node makes the rows of its own devices."""
    compute, exchange = compute_s(work, cluster), exchange_s(work, cluster)
    rows = work.rows_a_replica * cluster.replicas
    made = cluster.rows_per_cpu_s * cluster.input_cores * cluster.nodes
    step = max(compute + exchange, rows / made)
    limit = "input" if rows / made > compute + exchange else ("exchange" if exchange > compute else "compute")
    sent = ring_bytes(work.parameters * work.gradient_bytes, cluster.replicas)
    return Outcome(
        cluster.replicas,
        1000 * compute,
        1000 * exchange,
        sent / 1e6,
        rows / (compute + exchange),
        made,
        compute / step,
        limit,
    )


def simulate(work: Work, cluster: Cluster, steps: int = 500, seed: int = 0, sorted_by_length: bool = True) -> float:
    """Share of the devices' time in computing real tokens, batch by batch.

    Rows have lengths with a long tail. Devices wait for their batch, compute its padded cells at one rate, and
    exchange; the input works ahead by at most `QUEUE` batches.

    Args:
        work: a step.
        cluster: where.
        steps: to play through.
        seed: of the lengths.
        sorted_by_length: batches from the epoch plan; otherwise rows as they come, padded to the longest.
    """
    rows = work.rows_a_replica * cluster.replicas
    spread = 0.6
    drawn = np.random.default_rng(seed).lognormal(np.log(work.mean_tokens) - spread**2 / 2, spread, rows * steps)
    lengths = np.clip(drawn, 4, 512).astype(np.int32)
    batches: Sequence[np.ndarray]
    if sorted_by_length:
        batches = list(EpochPlan(lengths, rows, window=300_000, seed=seed, length_multiple=8).batches())
    else:
        batches = np.split(np.arange(len(lengths)), steps)
    making = rows / (cluster.rows_per_cpu_s * cluster.input_cores * cluster.nodes)
    exchange = exchange_s(work, cluster)
    made = clock = useful = 0.0
    ends: list[float] = []
    for i, numbers in enumerate(batches):
        started = ends[i - QUEUE] if i >= QUEUE else 0.0  # there is room in the queue
        made = max(made, started) + making
        longest = int(lengths[numbers].max())
        padded = operations(work.config, [longest] * work.rows_a_replica) / (cluster.tflops * 1e12)
        useful += operations(work.config, lengths[numbers].tolist()) / cluster.replicas / (cluster.tflops * 1e12)
        clock = max(clock, made) + padded + exchange
        ends.append(clock)
    return useful / clock


def table(works: dict[str, Work], clusters: dict[str, Cluster]) -> str:
    """The Markdown table of every encoder on every cluster."""
    lines = [
        "| encoder | devices | compute ms | exchange ms | MB sent a device | rows/s eaten | rows/s made | computing "
        "| limit | simulated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, work in works.items():
        for where, cluster in clusters.items():
            one = estimate(work, cluster)
            rates = f"{one.rows_needed:,.0f} | {one.rows_made:,.0f}"
            played = simulate(work, cluster, steps=200)
            lines.append(
                f"| {name} | {where} | {one.compute_ms:.1f} | {one.exchange_ms:.1f} | {one.megabytes:,.0f} | "
                f"{rates} | {one.efficiency:.0%} | {one.limit} | {played:.0%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, about in (
        ("tflops", "that a device reaches"),
        ("link_gb_s", "between the devices of a node"),
        ("network_gb_s", "of a node"),
        ("rows_per_cpu_s", "that a core makes into batches"),
    ):
        parser.add_argument(f"--{name}", type=float, default=getattr(Cluster(), name), help=about)
    parser.add_argument("--rows_a_replica", type=int, default=Work(BERT_BASE).rows_a_replica)
    parser.add_argument("--mean_tokens", type=float, default=Work(BERT_BASE).mean_tokens)
    parser.add_argument("--gradient_bytes", type=int, default=4, help="2 for an exchange in half precision")
    args = parser.parse_args()
    one = Cluster(1, 1, args.tflops, args.link_gb_s, args.network_gb_s, args.rows_per_cpu_s)
    clusters = {
        "1": one,
        "8 in one node": replace(one, devices=8),
        "2 nodes of 8": replace(one, nodes=2, devices=8),
        "8 nodes of 8": replace(one, nodes=8, devices=8),
    }
    base = Work(BERT_BASE, args.rows_a_replica, args.mean_tokens, args.gradient_bytes)
    sys.stdout.write(table({"base": base, "large": replace(base, config=BERT_LARGE)}, clusters))


if __name__ == "__main__":
    main()
