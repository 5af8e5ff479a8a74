"""Damaged checkpoints, configs, run folders and saved states: refused in one line, or as good as whole.

`FUZZ_ROUNDS` and `FUZZ_SEED` make them longer and other ones; `make soak` does.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from classify_runs import make_data, read_json_lines, table, train, write_model
from fuzzing import command, cut, damaged, hostile, rounds

from tfbert.errors import CheckpointError, TfbertError
from tfbert.loop.state import read_state, write_state

pytestmark = pytest.mark.usefixtures("logical_cpus")
Files = dict[str, bytes]
SIZES = {
    "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 16,
}  # fmt: skip


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def checkpoints(logical_cpus: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """A checkpoint of each kind that `--init` takes, of the same weights."""
    import keras

    from tfbert.model.checkpoint import save_weights
    from tfbert.model.checkpoint_writer import write_checkpoint
    from tfbert.model.config import BertConfig
    from tfbert.model.heads import Classifier
    from tfbert.model.mlm import MaskedLM

    folder = tmp_path_factory.mktemp("checkpoints")
    config = BertConfig(**SIZES)
    keras.utils.set_random_seed(0)
    write_checkpoint(folder, MaskedLM(config))
    save_weights(Classifier(config, 3, head_units=8, dtype="float32"), folder / "best.weights.h5")
    (folder / "model.json").write_text('{"num_outputs": 3, "head_units": 8}', encoding="utf-8")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = {
        "huggingface": ["model.safetensors", "config.json"],
        "google": [name for name in files if name.startswith("bert_")],
        "run": ["best.weights.h5", "bert_config.json", "model.json"],
    }
    return {kind: {name: files[name] for name in several} for kind, several in names.items()}


@pytest.mark.parametrize("seed", rounds(25))
@pytest.mark.parametrize("kind", ["huggingface", "google", "run"])
def test_checkpoints(checkpoints: dict[str, Files], tmp_path: Path, kind: str, seed: int) -> None:
    """All weights are loaded, or the checkpoint is refused, whatever sizes its files claim."""
    from tfbert.model.checkpoint import find_init, load_encoder
    from tfbert.model.encoder import BertEncoder

    draw = random.Random(seed)
    files = checkpoints[kind]
    name = draw.choice(sorted(files))
    write(tmp_path, files | {name: damaged(draw, files[name])})
    try:
        init = find_init(tmp_path)
        if init.config.num_weights < 100_000:  # a larger one is another model, which the comparison of shapes refuses
            encoder = BertEncoder(init.config)
            assert load_encoder(encoder, init) > 0
    except TfbertError as error:
        assert str(tmp_path) in str(error)
        assert "\n" not in str(error)


@pytest.fixture(scope="module")
def trained(logical_cpus: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files]:
    """The data set and the files of a run, without its events."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("trained")
    tf.config.run_functions_eagerly(True)
    data = make_data(folder, 40)
    run = train(data.folder, folder / "run", "--head_units", "8", init=write_model(folder, num_hidden_layers=1))
    tf.config.run_functions_eagerly(False)
    paths = [p for p in run.folder.rglob("*") if p.is_file() and not {"events", "report"} & set(p.parts)]
    files = {str(p.relative_to(run.folder)): p.read_bytes() for p in paths if p.name not in ("lock", "finished")}
    (folder / "rows.tsv").write_text(table(5), encoding="utf-8")
    return folder, files


NEEDED = ["bert_config.json", "model.json", "manifest.json", "vocab.txt", "labels.txt", "best.weights.h5", "rows.tsv"]


@pytest.mark.parametrize("seed", rounds(25))
def test_prediction(trained: tuple[Path, Files], tmp_path: Path, eagerly: None, seed: int) -> None:
    """A line a row, or no output and one line that names the file."""
    import predict as script

    folder, files = trained
    draw = random.Random(seed)
    name = draw.choice(NEEDED)
    rows = (folder / "rows.tsv").read_bytes()
    if name == "rows.tsv":
        rows = damaged(draw, rows) if draw.random() < 0.7 else hostile(draw)
        files = dict(files)
    else:
        files = files | {name: damaged(draw, files[name])}
    write(tmp_path / "run", files)
    (tmp_path / "rows.tsv").write_bytes(rows)
    out = tmp_path / "out.jsonl"
    words = ["--run_dir", tmp_path / "run", "--input", tmp_path / "rows.tsv", "--output", out, "--devices", "cpu:1"]
    outcome = command(script.main, "run", *words)
    outcome.check(str(tmp_path))
    if outcome.code:
        assert not out.exists()
        return
    rest = rows.removeprefix(b"\xef\xbb\xbf")
    lines = rest.count(b"\n") + (not rest.endswith(b"\n") and rest != b"")
    assert len(read_json_lines(out)) == max(0, lines - 1), cut(rows)


@pytest.mark.parametrize("seed", rounds(5))
def test_a_run_that_goes_on(trained: tuple[Path, Files], tmp_path: Path, eagerly: None, seed: int) -> None:
    """A run folder with one damaged file trains on, to a whole result, or is refused."""
    import train as script

    folder, files = trained
    draw = random.Random(seed)
    name = draw.choice(sorted(files))
    write(tmp_path / "run", files | {name: damaged(draw, files[name])})
    (tmp_path / "run/finished").touch()
    paths = ["--data", folder / "data", "--init", folder / "model.json", "--run_dir", tmp_path / "run"]
    steps = ["--epochs", "2", "--learning_rate", "1e-2", "--global_batch_size", "16", "--devices", "cpu:1"]
    outcome = command(script.main, "classify", *paths, *steps, "--head_units", "8")
    outcome.check(str(tmp_path / "run"))
    if outcome.code == 0:
        state = read_state(tmp_path / "run/last")
        assert state is not None
        assert (tmp_path / "run/finished").exists() or "already complete" in outcome.error


@pytest.mark.parametrize("seed", rounds(40))
def test_states(tmp_path: Path, seed: int) -> None:
    """Of two generations the newer one that is whole is read, with every value as it was written."""
    draw = random.Random(seed)
    written = [({"a": np.arange(6.0).reshape(2, 3) + i, "step": np.int64(i)}, {"step": i, "best": 0.5}) for i in (1, 2)]
    folders = [write_state(tmp_path, arrays, values) for arrays, values in written]
    path = draw.choice(sorted(folders[draw.randrange(2)].iterdir()))
    path.write_bytes(damaged(draw, path.read_bytes()))
    state = read_state(tmp_path)
    assert state is not None
    arrays, values = written[state[1]["step"] - 1]
    assert state[1] == values
    assert all(np.array_equal(state[0][name], array) for name, array in arrays.items())
    for other in folders:
        for file in other.iterdir():
            file.write_bytes(damaged(draw, file.read_bytes()))
    with pytest.raises(CheckpointError, match="2 damaged states"):
        read_state(tmp_path)
