"""Inputs of the bench, operations of a step, and the model of many devices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import batch_of, case_batches, operations, result_row, table
from benchmarks.inputs import write_rows
from benchmarks.scaling import BERT_BASE, Cluster, Work, estimate, ring_bytes, simulate


def test_rows_are_the_same_every_time_and_longer_files_go_on(tmp_path: Path):
    for name, count in (("a", 50), ("b", 50), ("c", 80)):
        write_rows(tmp_path / name, count, 30)
    a, b, c = ((tmp_path / name).read_text(encoding="utf-8") for name in "abc")
    assert a == b
    assert c.startswith(a)
    assert [len(line.split("\t")) for line in c.splitlines()] == [6] * 80


def test_contents_have_a_long_tail(tmp_path: Path):
    write_rows(tmp_path / "rows", 5_000, 100)
    lengths = [len(line.split("\t")[4]) for line in (tmp_path / "rows").read_text(encoding="utf-8").splitlines()]
    assert 90 < np.mean(lengths) < 120
    assert max(lengths) > 400


# ------------------------------------------------------------------------------------------------------- accelerators


def test_operations_of_a_step():
    """Six a weight and token, and twelve times width x length a token for attention's two products."""
    config = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    kernels = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert operations(config, [128] * 4) == 6 * kernels * 512 + 12 * 12 * 768 * 128 * 512
    assert operations(config, [128, 64]) < operations(config, [128, 128])


def test_cases_fill_the_tokens_of_a_step():
    cases = case_batches([16, 64], tokens=256, steps=3)
    assert list(cases) == ["16 tokens", "64 tokens", "mixture"]
    assert cases["16 tokens"] == [[16] * 17] * 5
    shapes = {(step[0], len(step) - 1) for step in cases["mixture"]}
    assert shapes == {(8, 32), (16, 16), (32, 8), (64, 4)}
    assert all(max(step[1:]) <= step[0] for step in cases["mixture"])
    assert case_batches([16, 64], 256, 3) == cases


def test_a_batch_has_the_tokens_of_its_rows():
    batch = batch_of([8, 3, 8], 100)
    assert batch["padding_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8]
    assert (batch["token_ids"][batch["padding_mask"] == 0] == 0).all()
    assert (batch["token_ids"][batch["padding_mask"] == 1] >= 5).all()


def test_share_of_the_peak():
    case = {
        "name": "x", "steps": 4, "rows": 8, "tokens": 80, "seconds": 2.0, "operations": 4e12, "first_step_s": 1.0,
    }  # fmt: skip
    row = result_row("1x64", "p", case, {"versions": {"keras": "3"}}, 8.0)
    assert (row["ms_a_step"], row["tokens_per_s"], row["tflops"], row["share_of_peak"]) == (500.0, 40.0, 2.0, 0.25)
    assert "| 1x64 | x | p | 500.0 | 4 | 40 | 2 | 25.0% | 1.0 |" in table(
        {"card": "C", "peak_tflops": 8.0, "steps": 4}, [row]
    )


# ------------------------------------------------------------------------------------------------------- many devices


def test_parameters_are_those_of_bert_base():
    assert Work(BERT_BASE | {"vocab_size": 30522}).parameters == pytest.approx(109e6, rel=0.01)


def test_bytes_of_a_ring():
    assert [ring_bytes(100, n) for n in (1, 2, 4)] == [0, 100, 150]


def test_one_device_exchanges_nothing():
    one = estimate(Work(BERT_BASE), Cluster(1, 1))
    assert (one.exchange_ms, one.megabytes, one.efficiency, one.limit) == (0, 0, 1, "compute")


def test_where_the_limit_lies():
    work, eight = Work(BERT_BASE), Cluster(1, 8)
    assert estimate(work, replace(eight, rows_per_cpu_s=1000)).limit == "input"
    assert estimate(work, replace(eight, nodes=8)).limit == "exchange"
    halved = estimate(replace(work, gradient_bytes=2), eight)
    assert halved.exchange_ms == pytest.approx(estimate(work, eight).exchange_ms / 2)
    assert halved.efficiency > estimate(work, eight).efficiency


def test_the_simulation_agrees_with_the_means():
    """Batches of sorted rows pad little; rows as they come pad much; a slow input is the limit in both."""
    work, one = Work(BERT_BASE), Cluster(1, 1)
    padded = simulate(work, one, 100, sorted_by_length=False)
    assert padded < 0.6 < 0.9 < simulate(work, one, 100) <= 1
    slow = replace(one, rows_per_cpu_s=1000)
    assert simulate(work, slow, 100) == pytest.approx(estimate(work, slow).efficiency, rel=0.2)
