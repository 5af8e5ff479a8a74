"""What a run on several replicas says about its steps, and what they send each other."""

import json
from pathlib import Path

import pytest
from classify_runs import make_data, train, write_model
from tiny_training import distance, make_store
from tiny_training import train as train_tiny


@pytest.mark.usefixtures("logical_cpus")
def test_replicas_report_where_the_time_goes(tmp_path: Path) -> None:
    data = make_data(tmp_path).folder
    run = train(data, tmp_path / "run", "--devices", "cpu:2", "--epochs", "3", "--gradient_dtype", "bfloat16")
    found = json.loads((run.folder / "parallel.json").read_text(encoding="utf-8"))
    assert (found["workers"], found["replicas"], found["steps"]) == (1, 2, 2 * 8)  # all but the first epoch
    assert 0 < found["exchange_share"] <= 1
    assert 0 <= found["wait_share"] < 1
    assert found["rows_per_s"] == found["rows_per_s_of_a_worker"] > 0
    floats = sum(weight.size for weight in run.weights.values())
    assert found["gradient_bytes"] == 2 * floats
    assert found["advice"].split(" is the limit")[0] in ("reading", "the exchange", "computing")


@pytest.mark.usefixtures("logical_cpus")
def test_one_device_has_nothing_to_report(tmp_path: Path) -> None:
    data = make_data(tmp_path).folder
    run = train(data, tmp_path / "run", "--epochs", "2", init=write_model(tmp_path))
    assert not (run.folder / "parallel.json").exists()


def test_advice_names_what_is_largest() -> None:
    from tfbert.callbacks.parallel_report import advice

    assert advice(0.2, 0.9).startswith("reading")
    assert advice(0.01, 0.9).startswith("the exchange")
    assert advice(0.01, 0.1).startswith("computing")


@pytest.mark.usefixtures("logical_cpus")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_may_be_sent_in_half_precision(tmp_path: Path, dtype: str) -> None:
    """Weights and moments stay float32; one device sends nothing, so nothing is rounded there."""
    store = make_store(tmp_path / "rows.jsonl", 37)
    runs = {
        (devices, sent): train_tiny(store, devices, epochs=2, gradient_dtype=sent)
        for devices, sent in (("cpu:1", "float32"), ("cpu:1", dtype), ("cpu:2", "float32"), ("cpu:2", dtype))
    }
    exact = runs["cpu:1", "float32"].weights
    assert distance(exact, runs["cpu:1", dtype].weights) == 0
    assert distance(exact, runs["cpu:2", "float32"].weights) < 1e-5
    assert 0 < distance(runs["cpu:2", "float32"].weights, runs["cpu:2", dtype].weights) < 5e-3
    assert {str(v.dtype) for v in runs["cpu:2", dtype].weights.values()} == {"float32"}
