"""What an import costs, and what happens where a package is missing or another Keras is asked for."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from classify_runs import make_data
from encode_runs import error_line, flags_of, write_vocab

ROOT = Path(__file__).parents[2]
HEAVY = ("tensorflow", "keras", "tf_keras", "matplotlib", "jieba", "tokenizers", "sklearn", "scipy", "pyarrow")


def python(script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "modules",
    [
        "tfbert",
        "preprocess",
        "preprocess.__main__",
        "preprocess.encode, preprocess.pool, tfbert.text.row_encoder, tfbert.data.store, tfbert.data.dataset",
        "train, predict",
    ],
)
def test_an_import_is_light(modules: str) -> None:
    """Cases 186 and 192: the forty workers of a large machine would each pay for what is imported here."""
    done = python(f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_workers_are_light(tmp_path: Path) -> None:
    """Case 192: what a worker of `encode` has loaded when its chunk is done."""
    (tmp_path / "in.tsv").write_text("a b\tx\nc\ty\n", encoding="utf-8")
    words = ["encode", str(tmp_path / "in.tsv"), "--text", "0", "--label", "1", *flags_of(tmp_path)]
    (tmp_path / "probe.py").write_text(
        textwrap.dedent(f"""
        import sys
        from multiprocessing import parent_process
        from pathlib import Path
        import preprocess.encode as job
        from preprocess.__main__ import main

        encode_chunk = job.encode_chunk

        def probe(task):
            result = encode_chunk(task)
            loaded = [name for name in {HEAVY!r} if name in sys.modules]
            Path({str(tmp_path / "loaded")!r}).write_text(f"{{loaded}} {{parent_process() is not None}}")
            return result

        if __name__ == "__main__":
            job.encode_chunk = probe
            sys.exit(main({words!r}))
        """),
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(tmp_path / "probe.py")], env=environment, check=True, capture_output=True)
    assert (tmp_path / "loaded").read_text() == "[] True"


def test_raw_data_are_encoded_before_tensorflow_is_there(tmp_path: Path) -> None:
    """Case 192: workers are forked from `train.py classify` while it is light."""
    words = ["classify", "--task", "glue/sst2", "--data", str(tmp_path), "--vocab", str(write_vocab(tmp_path))]
    words += ["--init", "model.json", "--run_dir", str(tmp_path / "run")]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("sentence\tlabel\na\t1\n", encoding="utf-8")
    done = python(f"""
        import sys, train, preprocess.task_data

        def encode(config):
            print(config.task, [name for name in {HEAVY!r} if name in sys.modules])
            sys.exit()

        preprocess.task_data.encode = encode
        train.main({words!r})
    """)
    assert done.stdout == "glue/sst2 []\n", done.stderr


@pytest.mark.parametrize("program", ["train", "predict"])
@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [("TF_USE_LEGACY_KERAS", "1", "Keras 3"), ("KERAS_BACKEND", "jax", "KERAS_BACKEND=tensorflow")],
)
def test_another_keras_is_refused(program: str, variable: str, value: str, shown: str) -> None:
    """Cases 187 and 188: one line, before anything is mixed; `import keras` first makes no difference."""
    script = f"import sys, {program}; sys.exit({program}.main(['--help']))"
    done = python(script, **{variable: value})
    assert (done.returncode, done.stdout) == (2, "")
    line = error_line(done.stderr)
    assert shown in line
    assert f"{variable}={value}" in line or value in line


@pytest.mark.parametrize("value", ["", "0", "False"])
def test_legacy_keras_switched_off_is_fine(value: str) -> None:
    """Case 187."""
    done = python("import sys, train; sys.exit(train.main(['--help']))", TF_USE_LEGACY_KERAS=value)
    assert done.returncode == 0, done.stderr


def blocked(package: str, program: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """A command without a package, as if it were not installed."""
    return python(f"""
        import sys
        sys.modules[{package!r}] = None
        from {program} import main
        sys.exit(main({words!r}))
    """)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("imports"), 30).folder


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("jieba", ["segment", "{in}", "--text", "0", "--out", "{out}/words.tsv"]),
        ("rjieba", ["segment", "{in}", "--text", "0", "--out", "{out}/words.tsv", "--segmenter", "rjieba"]),
        ("tokenizers", ["vocab", "{in}", "--text", "0", "--out", "{out}/vocab.txt", "--size", "100"]),
        ("matplotlib", ["inspect", "{data}"]),
        ("pyarrow", ["vocab", "{in}.zst", "--text", "0", "--out", "{out}/vocab.txt", "--size", "100"]),
    ],
)
def test_a_missing_package_is_named(data: Path, tmp_path: Path, package: str, words: list[str]) -> None:
    """Case 191: one line with the command that installs it, and nothing is left behind."""
    source = data.parent / "in.tsv"
    compressed = Path(f"{source}.zst")
    compressed.write_bytes(b"(zstd)")
    places = {"in": source, "out": tmp_path, "data": data, "vocab": data / "vocab.txt"}
    done = blocked(package, "preprocess.__main__", [word.format(**places) for word in words])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"pip install {package}" in error_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_an_optional_package_of_training_is_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, logical_cpus: int
) -> None:
    """Cases 186 and 191: readers of checkpoints say what they need; a report without matplotlib has no charts."""
    from tfbert import report
    from tfbert.errors import CheckpointError
    from tfbert.model import checkpoint
    from tfbert.model.config import BertConfig

    for package in ("keras_bert", "keras_bert.loader", "safetensors", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    google = checkpoint.Init("google", tmp_path / "bert_model.ckpt", BertConfig(10), None)
    hugging_face = checkpoint.Init("huggingface", tmp_path / "model.safetensors", BertConfig(10), None)
    for init, package in ((google, "keras-bert"), (hugging_face, "safetensors")):
        with pytest.raises(CheckpointError, match=f"pip install {package}"):
            checkpoint.load_encoder(None, init)
    scores = report.ClassifyScores(["a", "b"])
    report.write_report(tmp_path / "report", scores.result())
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["scores.json"]
