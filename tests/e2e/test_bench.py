"""The bench itself runs, with the peers that the environment of the tests has."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as bench


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quick mode on tiny sizes: tf.data and keras-bert beside ours, each in a process of its own."""
    out = tmp_path_factory.mktemp("results")
    sizes = ["--preprocess_rows", "200", "--stream_rows", "300", "--window", "200"]
    sizes += ["--shape", "1x64", "--train_rows", "24", "--predict_rows", "16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.environments.FOLDER", out / "no environments")
        for words in (["--only", "preprocess,stream,predict", "--tasks", "titles"], ["--only", "train"]):
            patch.setattr(sys, "argv", ["bench", "--quick", "--out", str(out), *sizes, *words])
            bench.main()
    return out


def scores(results: Path, job: str) -> dict:
    cases = json.loads((results / f"{job}.json").read_text())["cases"]
    return {score["name"]: score for case in cases for score in case["scores"]}


def test_every_job_that_can_be_run_leaves_table_and_chart(results: Path):
    written = {path.name for path in results.iterdir()}
    assert {f"{job}.{kind}" for job in ("preprocess", "stream", "train") for kind in ("md", "json", "png")} <= written


def test_streams_give_the_same_rows(results: Path):
    found = scores(results, "stream")
    assert found["tfbert"]["rows_per_cpu_s"] > 0
    assert found["tfbert, Arrow store"]["agreement"] == "same rows"
    for name in ("tf.data, TFRecord", "tf.data, py_function"):
        if name in found:  # where TensorFlow's legacy Keras is installed
            assert found[name]["agreement"] == "same rows"
            assert found[name]["factor"] > 0


def test_training_tells_tokens_and_first_step(results: Path):
    found = scores(results, "train")
    assert {"tfbert", "tfbert, bf16"} <= set(found)
    for score in found.values():
        assert score["tokens_per_s"] > 0
        assert score["first_s"] > 0
    assert "| tfbert, bf16 |" in (results / "train.md").read_text()
