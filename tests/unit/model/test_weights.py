"""Weight files: written whole, loaded into any model of the same shape, refused otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from tiny_training import CONFIG, NO_DROPOUT, inputs_of, make_model, weights_of

from tfbert.errors import CheckpointError
from tfbert.model.checkpoint import find_init, load_encoder, load_weights, read_description, save_weights
from tfbert.model.config import BertConfig
from tfbert.model.encoder import BertEncoder

pytestmark = pytest.mark.usefixtures("logical_cpus")
ROOT = Path(__file__).parents[3]
ROWS = inputs_of([[2, 7, 8, 9, 3], [2, 10, 3], [2, 3]])


def logits(model: Any) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = keras.ops.convert_to_numpy(model(ROWS))
    return result


def with_layers(count: int) -> BertConfig:
    return BertConfig.from_dict(NO_DROPOUT.to_dict() | {"num_hidden_layers": count})


@pytest.fixture(scope="module")
def saved(logical_cpus: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, npt.NDArray[np.float32]]:
    """A weight file and the logits of the model that wrote it."""
    path = tmp_path_factory.mktemp("saved") / "best.weights.h5"
    model = make_model()[1]
    model.set_weights([w + 0.1 for w in model.get_weights()])
    save_weights(model, path)
    assert [p.name for p in path.parent.iterdir()] == ["best.weights.h5"]
    return path, logits(model)


def test_weights_load_whatever_was_built_before(saved: tuple[Path, npt.NDArray[np.float32]]) -> None:
    path, expected = saved
    others = [make_model(head="cls"), make_model(config=with_layers(2)), make_model("cpu:2")]
    for devices in ("cpu:1", "cpu:2"):
        strategy, model = make_model(devices, dtype="float32")
        assert np.abs(logits(model) - expected).max() > 1e-3
        with strategy.scope():
            load_weights(model, path)
        np.testing.assert_array_equal(logits(model), expected)
    assert len(others) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"num_outputs": 2},
        {"num_outputs": 5},
        {"head": "mean"},
        {"head": "cls"},
        {"head_units": 9},
        {"config": with_layers(0)},
        {"config": with_layers(2)},
        {"config": BertConfig.from_dict(NO_DROPOUT.to_dict() | {"vocab_size": 51})},
    ],
    ids=str,
)
def test_weights_of_another_model_are_refused(
    saved: tuple[Path, npt.NDArray[np.float32]], other: dict[str, Any]
) -> None:
    """Cases 069 and 070: also a model that would find all its own tensors in the file."""
    _, model = make_model(**other)
    with pytest.raises(CheckpointError, match=r"best\.weights\.h5: the weights are damaged or of another model"):
        load_weights(model, saved[0])


@pytest.mark.parametrize("damage", ["half", "empty", "text", "middle", "absent", "folder"])
def test_a_damaged_file_is_named(saved: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path, damage: str) -> None:
    """Case 072."""
    data = saved[0].read_bytes()
    path = tmp_path / "cut.weights.h5"
    if damage == "folder":
        path.mkdir()
    elif damage != "absent":
        content = {"half": data[: len(data) // 2], "empty": b"", "text": b"not weights", "middle": data[:200]}
        path.write_bytes(content[damage])
    with pytest.raises(CheckpointError, match=r"cut\.weights\.h5: "):
        load_weights(make_model()[1], path)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_changed_byte_is_seen(saved: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path, at: float) -> None:
    """HDF5 itself would read another number; a file of others, without a checksum, loads as it is."""
    data = bytearray(saved[0].read_bytes())
    path = tmp_path / "changed.weights.h5"
    path.write_bytes(data[: data.rindex(b"tfb-crc32\n")])
    _, model = make_model()
    load_weights(model, path)
    np.testing.assert_array_equal(logits(model), saved[1])
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"changed\.weights\.h5: .*the checksum does not fit"):
        load_weights(model, path)


@pytest.mark.parametrize(
    "content",
    [
        b"{}", b"[]", b"[" * 5000, b"\xff", b'{"num_outputs": 0}', b'{"num_outputs": true}', b'{"num_outputs": 1e3}',
        b'{"num_outputs": 2, "head": "../x"}', b'{"num_outputs": 2, "head_units": 99999999999999}',
        b'{"num_outputs": 2, "name": "x"}', b'{"num_outputs": 2, "head_dropout": "0"}',
    ],
)  # fmt: skip
def test_a_description_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a run folder .* has a model\.json"):
        read_description(tmp_path / "model.json")


def test_a_save_that_fails_leaves_the_file_before(
    saved: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 072: the only checkpoint is not destroyed."""
    path = tmp_path / "best.weights.h5"
    path.write_bytes(saved[0].read_bytes())
    _, model = make_model()

    def die(temporary: Path) -> None:
        Path(temporary).write_bytes(b"half a fi")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model, "save_weights", die)
    with pytest.raises(OSError, match="No space left"):
        save_weights(model, path)
    monkeypatch.undo()
    load_weights(model, path)
    np.testing.assert_array_equal(logits(model), saved[1])


def test_a_full_disk_is_an_error_and_no_crash(
    saved: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 kills the process where a write fails, so the room is asked for before it begins."""
    path = tmp_path / "best.weights.h5"
    path.write_bytes(saved[0].read_bytes())
    _, model = make_model()

    def full(descriptor: int, offset: int, size: int) -> None:
        assert size >= sum(weight.numpy().nbytes for weight in model.weights)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: .*best\.weights\.h5"):
        save_weights(model, path)
    assert [file.name for file in tmp_path.iterdir()] == ["best.weights.h5"]
    load_weights(model, path)


@pytest.mark.parametrize("name", ["stage1.weight.h5", "best.h5", "epoch01"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    """Case 066."""
    with pytest.raises(ValueError, match=r"\.weights\.h5"):
        save_weights(make_model()[1], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_whole_models_load_in_a_fresh_process_without_custom_objects(tmp_path: Path) -> None:
    """Case 071: also with a precision policy and dropout; the process imports the layers and nothing more."""
    expected = {}
    for head, dtype in (("pool", "float32"), ("cls", "mixed_bfloat16"), ("mean", "float32")):
        _, model = make_model(config=CONFIG, head=head, dtype=dtype, head_dropout=0.1)
        model.save(tmp_path / f"{head}.keras")
        expected[head] = logits(model)
    np.savez(tmp_path / "inputs.npz", **ROWS)
    program = (
        "import sys, numpy as np, keras, tfbert.model.heads\n"
        "inputs = dict(np.load('inputs.npz'))\n"
        "models = {head: keras.saving.load_model(f'{head}.keras') for head in ('pool', 'cls', 'mean')}\n"
        "np.savez('logits.npz', **{head: model(inputs).numpy() for head, model in models.items()})\n"
        "print(models['cls'].encoder.compute_dtype, models['pool'].encoder.config.hidden_dropout_prob)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["bfloat16", "0.1"]
    for head, values in np.load(tmp_path / "logits.npz").items():
        np.testing.assert_allclose(values, expected[head], rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------- where to start from


def write_run(folder: Path, head: str) -> dict[str, npt.NDArray[np.float32]]:
    """A run folder as far as `--init` reads it; returns the weights of its encoder."""
    _, model = make_model(head=head)
    folder.mkdir(exist_ok=True)
    save_weights(model, folder / "best.weights.h5")
    (folder / "bert_config.json").write_text(NO_DROPOUT.dump(), encoding="utf-8")
    settings = {"num_outputs": 3, "head": head, "head_units": 8, "head_dropout": 0.0}
    (folder / "model.json").write_text(json.dumps(settings), encoding="utf-8")
    return {path.removeprefix("classifier/"): w for path, w in weights_of(model.encoder).items()}


@pytest.mark.parametrize(("head", "pooler"), [("pool", False), ("cls", True), ("cls", False)])
def test_an_encoder_starts_from_a_run(tmp_path: Path, head: str, pooler: bool) -> None:
    written = write_run(tmp_path, head)
    init = find_init(tmp_path)
    assert (init.kind, init.vocab, init.config) == ("run", None, NO_DROPOUT)
    encoder = BertEncoder(init.config, pooler=pooler)
    assert load_encoder(encoder, init) == len(encoder.weights)
    for name, weight in weights_of(encoder).items():
        np.testing.assert_array_equal(weight, written[name])


def test_a_run_without_a_pooler_gives_none(tmp_path: Path) -> None:
    write_run(tmp_path, "mean")
    with pytest.raises(CheckpointError, match="a run with the head mean. Use the head pool or mean"):
        load_encoder(BertEncoder(NO_DROPOUT, pooler=True), find_init(tmp_path))


def test_a_run_folder_that_lacks_its_description_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "pool")
    (tmp_path / "model.json").unlink()
    with pytest.raises(CheckpointError, match="model.json that describes its classifier"):
        load_encoder(BertEncoder(NO_DROPOUT), find_init(tmp_path))


def test_a_bare_config_gives_random_weights(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text('{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}', encoding="utf-8")
    init = find_init(path, vocab_size=30)
    assert (init.kind, init.config.vocab_size, init.vocab) == ("config", 30, None)
    encoder = BertEncoder(init.config)
    assert load_encoder(encoder, init) == 0
    kernel = encoder.get_layer("Encoder-1-FeedForward").get_weights()[0]
    assert 0.01 < kernel.std() < 0.03
    assert np.abs(kernel).max() <= 0.04 + 1e-6


@pytest.mark.parametrize("make", ["nothing", "empty folder", "text file", "config missing", "h5 alone"])
def test_what_is_no_start_is_refused_with_the_forms(tmp_path: Path, make: str) -> None:
    path = tmp_path / "init"
    if make == "text file":
        path.write_text("x", encoding="utf-8")
    elif make != "nothing":
        path.mkdir()
    if make == "config missing":
        (path / "model.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"a checkpoint needs its config. Received: no config\.json"):
            find_init(path)
        return
    if make == "h5 alone":
        (path / "best.weights.h5").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"--init takes .*which is none of these") as caught:
        find_init(path)
    assert ("does not exist" in str(caught.value)) == (make == "nothing")
