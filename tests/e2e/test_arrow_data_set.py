"""Data sets of Arrow files, from raw text to scores: all as with JSON lines."""

import shutil
from pathlib import Path

import orjson
import pytest
from classify_runs import make_data, same_weights, train
from encode_runs import DataSet, encode, error_line

import preprocess.__main__ as preprocess_script
from tfbert.data import arrow_writer

ARROW = ["--store", "arrow"]


def same_rows(a: DataSet, b: DataSet) -> None:
    assert list(a.manifest["parts"]) == list(b.manifest["parts"])
    for part in a.manifest["parts"]:
        assert a.rows(part) == b.rows(part)
        assert all(list(x) == list(y) for x, y in zip(a.rows(part), b.rows(part), strict=True))
    for name in ("rejects.jsonl", "labels.txt", "vocab.txt"):
        assert a.files.get(name) == b.files.get(name)
    ours, others = a.manifest, b.manifest
    for manifest in (ours, others):
        del manifest["store"]
        for part in manifest["parts"].values():
            del part["checksum"], part["bytes"]
    assert ours == others


# ------------------------------------------------------------------------------------------------------------ encoding


@pytest.mark.parametrize(
    "task, labels",
    [
        ("classify", ["x", "y", "z"]),
        ("multilabel", ["x,y", "", "z"]),
        ("regression", ["1", "-0.25", "1e3"]),
        (None, [""] * 3),
    ],
)
def test_rows_are_those_of_json_lines(tmp_path: Path, task: str | None, labels: list[str], monkeypatch) -> None:
    """Every column, every destination of a row, parts of a few rows, record batches that end elsewhere."""
    monkeypatch.setattr(arrow_writer, "BATCH_ROWS", 7)
    rows = [
        f"{'ab 人 ' * (i % 5)}w{i % 40}\tsecond {i % 9}\t{labels[i % 3]}\tkind {i % 3}\t{i % 4 / 2}\t{i}\n"
        for i in range(60)
    ]
    rows[5] = "too few\n"
    rows[11] = rows[11].replace("\t0.5", "\tx").replace("\t1.0", "\tx").replace("\t1.5", "\tx")
    flags = ["--text", "0", "--text_b", "1", "--type", "3", "--weight", "4", "--keep", "5,3", "--dedup"]
    flags += ["--val_fraction", "0.2", "--chunk_bytes", "200"]
    flags += ["--label", "2", "--task", task] if task else []
    content = "".join(rows)
    ours = encode(tmp_path, content, *flags, *ARROW, out="arrow")
    same_rows(ours, encode(tmp_path, content, *flags, out="json"))
    assert set(ours.files) >= {"train.arrow", "train.idx", "val.arrow", "val.idx", "manifest.json"}
    assert not [name for name in ours.files if name.endswith(".jsonl") and name != "rejects.jsonl"]
    for chunk_bytes in ("90", "100000"):
        other = encode(tmp_path, content, *flags, *ARROW, "--chunk_bytes", chunk_bytes, out="other")
        assert other.files == ours.files


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    content = "".join(f"some words {i}\t{i % 3}\n" for i in range(100))
    flags = ["--text", "0", "--label", "1", "--val_fraction", "0.1", "--chunk_bytes", "300", *ARROW]
    one = encode(tmp_path, content, *flags, out="one", processes=True)
    three = encode(tmp_path, content, *flags, "--workers", "3", out="three", processes=True)
    assert one.files == three.files


def test_a_part_without_rows(tmp_path: Path) -> None:
    (tmp_path / "none.tsv").write_bytes(b"")
    data = encode(tmp_path, "a\t1\n", "--text", "0", "--label", "1", "--test", str(tmp_path / "none.tsv"), *ARROW)
    assert (len(data.rows()), len(data.rows("test"))) == (1, 0)


def test_the_other_store_takes_the_place_of_the_first(tmp_path: Path) -> None:
    flags = ["--text", "0", "--label", "1", "--val_fraction", "0.5"]
    names = []
    for store in ("jsonl", "arrow", "jsonl"):
        data = encode(tmp_path, "a\t1\nb\t1\nc\t1\nd\t1\n", *flags, "--store", store)
        names.append(sorted(name for name in data.files if name.startswith(("train", "val"))))
    assert names[0] == names[2] == ["train.idx", "train.jsonl", "val.idx", "val.jsonl"]
    assert names[1] == ["train.arrow", "train.idx", "val.arrow", "val.idx"]


def test_kept_values_may_be_null(tmp_path: Path) -> None:
    rows = '{"t": "a", "k": null}\n{"t": "b", "k": "x"}\n{"t": "c"}\n'
    for store in ("jsonl", "arrow"):
        data = encode(tmp_path, rows, "--text", "t", "--keep", "k", "--store", store, name="in.jsonl")
        assert [row["keep"] for row in data.rows()] == [{"k": None}, {"k": "x"}]
        assert data.reasons == [(3, "columns")]


def test_stores_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encode(tmp_path, "a\t1\n", "--text", "0", "--store", "parquet", code=2)
    assert "--store is one of jsonl, arrow. Received: 'parquet'" in error_line(capsys.readouterr().err)
    data = encode(tmp_path, "a\t1\n", "--text", "0", *ARROW)
    manifest = data.folder / "manifest.json"
    manifest.write_bytes(orjson.dumps(data.manifest | {"store": "../x"}))
    assert preprocess_script.main(["inspect", str(data.folder), "--no_charts"]) == 2
    assert "manifest is damaged" in error_line(capsys.readouterr().err)


def test_without_pyarrow(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 191: told before anything is read."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    encode(tmp_path, "a\t1\n", "--text", "0", *ARROW, code=2)
    assert "--store arrow needs the package pyarrow" in error_line(capsys.readouterr().err)
    assert not (tmp_path / "data").exists()


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for store in ("jsonl", "arrow"):
        flags = ["--text", "0", "--label", "1", "--keep", "2", "--store", store]
        data = encode(tmp_path, "ab c\t1\td\nb 人\t0\te\n", *flags)
        capsys.readouterr()
        assert preprocess_script.main(["inspect", str(data.folder), "--no_charts"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "[CLS] ab c [SEP]" in shown[0]


# ------------------------------------------------------------------------------------------------------------ training


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, logical_cpus: int) -> dict[str, DataSet]:
    """The same data set in either store."""
    return {
        store: make_data(tmp_path_factory.mktemp(store), 90, "--store", store, test=30) for store in ("jsonl", "arrow")
    }


@pytest.mark.usefixtures("eagerly")
def test_training_and_scores_are_those_of_json_lines(
    both: dict[str, DataSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import predict as script

    runs, scores = {}, {}
    for store, data in both.items():
        (tmp_path / store).mkdir()
        runs[store] = train(data.folder, tmp_path / store / "run", "--frozen_epochs", "1")
        for other in both.values():  # a run on one store scores the other
            capsys.readouterr()
            words = ["--run_dir", str(runs[store].folder), "--input", f"{other.folder}:test", "--json"]
            assert script.main(["evaluate", *words]) == 0
            scores[store, other.folder] = capsys.readouterr().out
    assert same_weights(runs["jsonl"], runs["arrow"])
    assert runs["jsonl"].column("val_loss") == runs["arrow"].column("val_loss")
    assert len(set(scores.values())) == 1


@pytest.mark.usefixtures("eagerly")
def test_bare_files(both: dict[str, DataSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, or a folder of files, without a manifest; the index is made."""
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(both["arrow"].folder / "train.arrow", folder)
    train(folder, tmp_path / "a")
    shutil.copy(both["arrow"].folder / "val.arrow", folder / "val.arrow")
    train(folder, tmp_path / "b")
    assert (folder / "val.idx").exists()
    train(folder / "train.arrow", tmp_path / "c")
    shutil.copy(both["jsonl"].folder / "train.jsonl", folder)
    train(folder, tmp_path / "d", code=2)
    assert "has one kind of files. Received: train.jsonl and train.arrow" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b"", lambda b: b[:-8] + b"\0" * 8, None])
def test_a_damaged_file_is_refused_by_its_name(
    both: dict[str, DataSet], tmp_path: Path, capsys: pytest.CaptureFixture[str], damage
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(both["arrow"].folder, folder)
    if damage is None:
        (folder / "train.arrow").unlink()
    else:
        (folder / "train.arrow").write_bytes(damage((folder / "train.arrow").read_bytes()))
    train(folder, tmp_path / "run", code=2)
    assert f"{folder}/train.arrow: " in error_line(capsys.readouterr().err)
