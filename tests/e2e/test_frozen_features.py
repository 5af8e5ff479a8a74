"""The frozen stage pays for the encoder once, and gives what paying every epoch gives."""

from pathlib import Path

import numpy as np
import pytest
from classify_runs import Run, make_data, train, write_model

pytestmark = pytest.mark.usefixtures("eagerly")

FROZEN = ["--frozen_epochs", "3", "--frozen_learning_rate", "1e-2", "--epochs", "0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 75).folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every call of an encoder, as they come."""
    from tfbert.model.encoder import BertEncoder

    rows: list[int] = []
    call = BertEncoder.call

    def counting(self, inputs, training=False, seed=None):
        rows.append(len(inputs["token_ids"]))
        return call(self, inputs, training, seed)

    monkeypatch.setattr(BertEncoder, "call", counting)
    return rows


def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfbert.recipes import classify

    monkeypatch.setattr(classify, "fits_on_disk", lambda *_: False)


def assert_close(a: Run, b: Run) -> None:
    for name, values in a.weights.items():
        np.testing.assert_allclose(values, b.weights[name], atol=2e-6, err_msg=name)
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(a.column(column), b.column(column), atol=1e-5, err_msg=column)


@pytest.mark.parametrize("flags", [[], ["--head", "cls"], ["--head", "mean", "--loss", "dmi", "--devices", "cpu:2"]])
def test_equals_computing_the_encoder_every_epoch(data, small, tmp_path, monkeypatch, flags):
    kept = train(data, tmp_path / "kept", *FROZEN, *flags, init=small)
    without_cache(monkeypatch)
    assert_close(kept, train(data, tmp_path / "computed", *FROZEN, *flags, init=small))


def test_every_row_is_encoded_once(data, small, tmp_path, encoded, monkeypatch):
    train(data, tmp_path / "kept", *FROZEN, init=small)
    once = sum(encoded)
    assert once == 75 + 15  # all rows, and the validation rows again for the final report
    encoded.clear()
    without_cache(monkeypatch)
    train(data, tmp_path / "computed", *FROZEN, init=small)
    assert sum(encoded) == 3 * 75 + 15


def test_nothing_is_left_and_one_epoch_keeps_nothing(data, small, tmp_path, monkeypatch):
    from tfbert.recipes import classify

    run = train(data, tmp_path / "run", *FROZEN, init=small)
    assert not (run.folder / "features").exists()

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(classify, "compute_features", never)
    train(data, tmp_path / "one", "--frozen_epochs", "1", "--epochs", "1", init=small)


def test_an_interrupted_stage_uses_them_again(data, small, tmp_path, encoded, monkeypatch):
    from tfbert.callbacks.save_state import SaveState

    whole = train(data, tmp_path / "whole", *FROZEN, init=small)
    ends = SaveState.on_epoch_end

    def stopped(self, epoch, logs=None):
        ends(self, epoch, logs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SaveState, "on_epoch_end", stopped)
        train(data, tmp_path / "stopped", *FROZEN, init=small, code=130)
    kept = tmp_path / "stopped" / "features" / "train.f32"
    assert kept.stat().st_size == 60 * 32 * 4
    encoded.clear()
    resumed = train(data, tmp_path / "stopped", *FROZEN, init=small)
    assert sum(encoded) == 15  # the final report alone
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(values, resumed.weights[name])


def test_other_weights_or_rows_are_computed_again(data, tmp_path, encoded, logical_cpus):
    import keras

    from tfbert.data.feed import FeedSettings
    from tfbert.data.store import open_store
    from tfbert.model.config import BertConfig
    from tfbert.model.heads import Classifier
    from tfbert.strategy import make_strategy
    from tfbert.training.features import compute_features

    keras.utils.set_random_seed(0)
    model = Classifier(BertConfig(100, 16, 2, 2, 32, max_position_embeddings=32), 3)
    strategy = make_strategy("cpu:1")
    store, feed = open_store(data / "train.jsonl"), FeedSettings(0, 16, task="classify", num_classes=3)

    def compute() -> np.ndarray:
        return np.array(compute_features(tmp_path / "train.f32", model, strategy, store, feed))

    first = compute()
    assert first.shape == (60, 32) and sum(encoded) == 60
    np.testing.assert_array_equal(compute(), first)
    assert sum(encoded) == 60
    embeddings = model.encoder.token.embeddings
    embeddings.assign(embeddings.numpy()[::-1])
    assert np.abs(compute() - first).max() > 1e-3
    assert sum(encoded) == 120
    (tmp_path / "train.json").unlink()  # a run that was killed while it wrote them
    compute()
    assert sum(encoded) == 180


def test_a_disk_without_room(data, small, tmp_path, monkeypatch):
    from tfbert.training import features

    monkeypatch.setattr(features.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    run = train(data, tmp_path / "run", *FROZEN, init=small)
    assert len(run.log) == 3
    assert not (run.folder / "features").exists()
