"""`predict.py run` and `predict.py evaluate`: a run folder and rows to labelled rows and scores."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classify_runs import NAMES, make_data, predict, strict_json, table, texts, train, write_model
from encode_runs import encode, error_line

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set `data` with a test part (`test.tsv`), and a run on it, `run`; nothing may change them."""
    folder = tmp_path_factory.mktemp("trained")
    data = make_data(folder, test=60)
    train(data.folder, folder / "run", "--epochs", "3")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return folder / "run"


def evaluate(run_dir: Path, rows: Path | str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """What `evaluate --json` writes: one object, and nothing else on standard output."""
    import predict as script

    capsys.readouterr()
    assert script.main(["evaluate", "--run_dir", str(run_dir), "--input", str(rows), "--json", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result: dict[str, Any] = strict_json(out)
    return result


def probabilities(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.array([[row["probs"][name] for name in NAMES] for row in rows])


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


# ---------------------------------------------------------------------------------------------------- rows and lines


def test_a_line_a_row(run: Path, tmp_path: Path):
    rows = predict(run, write(tmp_path / "new.tsv", "text\na x\nx b\nc\n"))
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert [row["label"] for row in rows] == NAMES
    for row in rows:
        assert list(row) == ["row", "label", "prob", "probs"]
        assert list(row["probs"]) == NAMES
        assert sum(row["probs"].values()) == pytest.approx(1)
        assert row["prob"] == row["probs"][row["label"]] == max(row["probs"].values())


def test_headers(run: Path, tmp_path: Path):
    """Case 120: five rows with and without a header are five lines, a header alone is none."""
    lines = "".join(f"{i}\t{text}\n" for i, text in enumerate(texts(5)))
    with_header = predict(run, write(tmp_path / "a.tsv", "id\ttext\n" + lines), "--keep", "id")
    assert [row["id"] for row in with_header] == ["0", "1", "2", "3", "4"]
    named = predict(run, write(tmp_path / "b.tsv", lines), "--columns", "id,text", "--keep", "id")
    numbered = predict(run, write(tmp_path / "c.tsv", lines), "--text", "1", "--keep", "0")
    skipped = predict(run, write(tmp_path / "d.tsv", "no\tnames\n" + lines), "--text", "1", "--header")
    assert named == with_header
    assert [row["0"] for row in numbered] == ["0", "1", "2", "3", "4"]
    for rows in (numbered, skipped):
        assert np.array_equal(probabilities(rows), probabilities(with_header))
    assert predict(run, write(tmp_path / "e.tsv", "id\ttext\n")) == []
    assert predict(run, write(tmp_path / "f.tsv", "")) == []
    everything = predict(run, write(tmp_path / "g.tsv", "id\ttext\n" + lines), "--text", "1", "--no_header")
    assert len(everything) == 6


def test_a_header_without_the_column_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 120: the first row of a file without a header is not taken for one in silence."""
    predict(run, write(tmp_path / "new.tsv", "0\ta x\n1\tb\n"), code=2)
    assert "there is no column 'text'. The columns are: '0', 'a x'" in error_line(capsys.readouterr().err)


def test_unusable_rows_keep_their_place(run: Path, tmp_path: Path):
    """Case 122: one line for every line, with what is wrong; the others are as they are alone."""
    content = b"id\ttext\n1\ta x\n\n   \n2\tb x\nno tab\n3\t\n4\tc\t5\n6\tbad \xff\n7\tc x"
    path = tmp_path / "rows.tsv"
    path.write_bytes(content)
    rows = predict(run, path, "--keep", "id")
    assert [row["row"] for row in rows] == list(range(9))
    assert [row.get("error", row.get("label")) for row in rows] == [
        *("ant", "blank", "blank", "bee", "columns: 1 fields, 2 are named", rows[5]["label"]),
        *("columns: 3 fields, 2 are named", "encoding: not UTF-8", "cat"),
    ]
    assert all(set(row) == {"row", "error"} for row in rows if "error" in row)
    assert [row.get("id") for row in rows] == ["1", None, None, "2", None, "3", None, None, "7"]
    alone = predict(run, write(tmp_path / "alone.tsv", "text\na x\nb x\nc x\n"))
    assert np.allclose(probabilities([rows[0], rows[3], rows[8]]), probabilities(alone), rtol=0, atol=1e-5)


def test_a_file_of_unusable_rows(run: Path, tmp_path: Path):
    """More of them than are looked at together: nothing is ever scored, and memory stays bounded."""
    from tfbert import predictor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "WINDOW_ROWS", 7)
        rows = predict(run, write(tmp_path / "rows.tsv", "id\ttext\n" + "\n" * 100 + "1\ta\n"))
    assert [row.get("error") for row in rows] == ["blank"] * 100 + [None]
    assert rows[100]["row"] == 100


def test_windows_are_joined_in_order(run: Path, folder: Path):
    """Rows are sorted by length inside a window, and written in the order of the input."""
    from tfbert import predictor

    path = folder / "test.tsv"
    whole = predict(run, path, "--keep", "id", output=folder / "whole.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "WINDOW_ROWS", 7)
        cut = predict(run, path, "--keep", "id", output=folder / "cut.jsonl")
    assert [row["id"] for row in cut] == [f"r{i}" for i in range(60)]
    assert [row["row"] for row in cut] == list(range(60))
    assert np.allclose(probabilities(cut), probabilities(whole), rtol=0, atol=1e-5)


def test_kept_columns_and_double_ids(run: Path, tmp_path: Path):
    """Cases 127 and 129: what is kept comes back as it was, row by row; a name of ours gets a prefix."""
    rows = [
        {"id": "x", "text": 'a\tx\n"x', "label": "ant", "n": 3},
        {"id": "x", "text": "b \u2028 x", "label": "\\", "n": 1.5},
        {"id": "y", "text": "c", "label": "标题", "n": True},
    ]
    path = write(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    written = predict(run, path, "--keep", "id,text,label,n")
    assert [(row["id"], row["text"], row["input_label"]) for row in written] == [
        (row["id"], row["text"], row["label"]) for row in rows
    ]
    assert [row["n"] for row in written] == ["3", "1.5", "true"]
    assert [row["label"] for row in written] == NAMES
    assert [list(row)[0] for row in written] == ["row"] * 3


def test_kept_columns_may_be_null(run: Path, tmp_path: Path):
    """What is only kept costs no row its prediction; a text that is null does, and so does a key that is not there."""
    rows = ['{"text": "a", "id": null}', '{"text": null, "id": 1}', '{"text": "b"}', '{"text": "c", "id": "x"}']
    path = write(tmp_path / "rows.jsonl", "\n".join(rows) + "\n")
    first, second, third, last = predict(run, path, "--keep", "id")
    assert (first["label"], first["id"], last["id"]) == ("ant", None, "x")
    assert (second["error"], third["error"]) == ("columns: no 'text'", "columns: no 'id'")
    both = predict(run, path, "--keep", "text,id")
    assert [row.get("text") for row in both] == ["a", None, None, "c"]
    assert both[1]["error"] == "columns: no 'text'"


def test_formats(run: Path, folder: Path, tmp_path: Path):
    """The same rows as TSV, CSV, JSON lines and text, compressed or not: the same answers."""
    lines = texts(20, seed=5)
    files = {
        "rows.tsv": "text\n" + "".join(f"{text}\n" for text in lines),
        "rows.csv": "n,text\n" + "".join(f'1,"{text}"\n' for text in lines),
        "rows.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in lines),
        "rows.txt": "".join(f"{text}\n" for text in lines),
    }
    answers = {}
    for name, content in files.items():
        answers[name] = predict(run, write(tmp_path / name, content))
        compressed = tmp_path / f"{name}.gz"
        compressed.write_bytes(gzip.compress(content.encode()))
        assert predict(run, compressed) == answers[name]
    assert len(answers["rows.tsv"]) == 20
    assert all(rows == answers["rows.tsv"] for rows in answers.values())


def test_an_input_that_is_damaged_half_way(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Case 128: no output, rather than the part that could be read."""
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress(table(5000).encode())[:-400])
    predict(run, path, output=tmp_path / "out.jsonl", code=2)
    assert "the compressed file is damaged" in error_line(capsys.readouterr().err)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.tsv.gz"]


# --------------------------------------------------------------------------------------- the run folder decides


@pytest.fixture(scope="module")
def particular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on cased text cut at six tokens, cleaned, from a file with names for its columns but no header."""
    folder = tmp_path_factory.mktemp("particular")
    rows = "".join(f"{i}\t{text}\t{NAMES[i % 3]}\n" for i, text in enumerate(texts(30)))
    words = ["--columns", "id,body,animal", "--cased", "--clean", "html", "--max_len", "6"]
    data = make_data(folder, rows, *words, text="body", label="animal")
    train(data.folder, folder / "run")
    return folder / "run"


def test_options_come_from_the_run(particular: Path, tmp_path: Path):
    """Case 130: the tokenizer, the cut and the cleaning are those of training, without being asked for."""
    lines = ["0\ta b c x", "1\ta b c x y z z z", "2\t<b>a</b> b c x", "3\tA b c x"]
    plain, cut, cleaned, cased = predict(particular, write(tmp_path / "new.tsv", "\n".join(lines) + "\n"))
    assert plain["probs"] == pytest.approx(cut["probs"], abs=1e-6)
    assert plain["probs"] == pytest.approx(cleaned["probs"], abs=1e-6)
    assert plain["probs"] != pytest.approx(cased["probs"], abs=1e-6)


def test_columns_come_from_the_run_unless_the_file_has_its_own(
    particular: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = "0\ta b\t?\n1\tc x\t?\n"
    known = predict(particular, write(tmp_path / "a.tsv", lines), "--keep", "id,animal")
    assert [(row["id"], row["animal"]) for row in known] == [("0", "?"), ("1", "?")]
    other = predict(particular, write(tmp_path / "b.tsv", "words\tid\na b\t0\nc x\t1\n"), "--text", "words")
    headed = predict(particular, write(tmp_path / "c.tsv", "id\tbody\n0\ta b\n1\tc x\n"), "--header")
    for rows in (other, headed):
        assert np.allclose(probabilities(rows), probabilities(known), rtol=0, atol=1e-6)
    predict(particular, write(tmp_path / "d.jsonl", '{"text": "a"}\n'), "--text", "nowhere", "--format", "tsv", code=2)
    assert "no column 'nowhere'" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize("flag", ["--max_len", "--vocab", "--clean", "--labels"])
def test_what_the_run_decides_cannot_be_given(run: Path, folder: Path, capsys: pytest.CaptureFixture[str], flag: str):
    """Case 130: a conflict is refused."""
    predict(run, folder / "test.tsv", flag, "8", code=2)
    assert flag in error_line(capsys.readouterr().err)


def test_a_second_text_for_a_run_on_single_texts(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, folder / "test.tsv", "--text_b", "id", code=2)
    assert "trained on single texts. Received: --text_b" in error_line(capsys.readouterr().err)


def test_names_are_the_same_in_another_process(run: Path, folder: Path, tmp_path: Path):
    """Case 121: a new process with other hashes, and a file in which one class alone occurs."""
    path = write(tmp_path / "bees.tsv", "text\n" + "".join(f"{text} b\n" for text in texts(9)[1::3]))
    here = predict(run, path)
    words = ["run", "--run_dir", str(run), "--input", str(path), "--output", str(tmp_path / "there")]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "predict.py", *words], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert done.stdout == b""
    there = [strict_json(line) for line in (tmp_path / "there").read_bytes().splitlines()]
    assert [list(row["probs"]) for row in there] == [NAMES] * 3
    assert [row["label"] for row in there] == ["bee"] * 3
    assert np.allclose(probabilities(there), probabilities(here), rtol=0, atol=1e-5)


@pytest.fixture
def changed(run: Path, tmp_path: Path) -> Path:
    """A copy of the run folder to damage."""
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("labels", ["ant\nbee\n", "ant\nbee\ncat\ndog\nelk\n", "bee\nant\ncat\n"])
def test_other_labels_than_those_of_training(
    changed: Path, folder: Path, capsys: pytest.CaptureFixture[str], labels: str
):
    """Case 070: two, five, or three in another order."""
    (changed / "labels.txt").write_text(labels, encoding="utf-8")
    predict(changed, folder / "test.tsv", code=2)
    assert "must have the labels that the run was trained with" in error_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best.weights.h5", "there are no weights yet"),
        ("model.json", "a run folder of"),
        ("manifest.json", "bare JSON-lines files"),
        ("vocab.txt", "vocab.txt"),
        ("labels.txt", "labels.txt"),
    ],
)
def test_a_run_folder_without_a_file(
    changed: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
):
    (changed / name).unlink()
    predict(changed, folder / "test.tsv", code=2)
    assert message in error_line(capsys.readouterr().err)


def test_a_changed_vocabulary(changed: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    path = changed / "vocab.txt"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:10], lines[11], lines[10], *lines[12:]]))
    predict(changed, folder / "test.tsv", code=2)
    assert "not the vocabulary that the run was trained with" in error_line(capsys.readouterr().err)


def test_cut_weights(changed: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    """Case 072: the message names the file, and nothing is written."""
    path = changed / "best.weights.h5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    predict(changed, folder / "test.tsv", output=changed / "out.jsonl", code=2)
    assert f"{path}: the weights are damaged" in error_line(capsys.readouterr().err)
    assert not (changed / "out.jsonl").exists()


# --------------------------------------------------------------------------------------------- devices and batches


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Files of 1, 2, 9, 10 and 11 rows of mixed lengths; longer ones begin with the shorter ones."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = [f"{'x ' * (5 * i % 11)}{'abc'[i % 3]}\n" for i in range(11)]
    return {n: write(folder / f"{n}.tsv", "text\n" + "".join(lines[:n])) for n in (1, 2, 9, 10, 11)}


@pytest.fixture(scope="module")
def expected(run: Path, mixed: dict[int, Path]) -> np.ndarray:
    """One row at a time, on one device."""
    return probabilities(predict(run, mixed[11], "--batch_tokens", "1", "--devices", "cpu:1"))


@pytest.mark.parametrize(
    ("devices", "tokens"), [("cpu:1", "8192"), ("cpu:1", "40"), ("cpu:2", "8192"), ("cpu:3", "20"), ("cpu:3", "8192")]
)
def test_batches_and_devices_do_not_change_the_answer(
    run: Path, mixed: dict[int, Path], expected: np.ndarray, devices: str, tokens: str
):
    """Cases 067, 085 and 131: trained on one device; as many lines as rows, in order, the same probabilities."""
    from tfbert.data.input import Columns
    from tfbert.predictor import Predictor

    predictor = Predictor(run, devices, batch_tokens=int(tokens))
    for rows, path in mixed.items():
        output = path.with_suffix(".jsonl")
        assert predictor.predict_file(path, output, Columns()) == {"labelled": rows}
        written = [strict_json(line) for line in output.read_bytes().splitlines()]
        found = probabilities(written)
        assert [row["row"] for row in written] == list(range(rows))
        assert np.allclose(found, expected[:rows], rtol=0, atol=1e-5)
        assert np.array_equal(found.argmax(axis=1), expected[:rows].argmax(axis=1))


def test_the_same_rows_twice_are_equal_to_the_last_bit(run: Path, mixed: dict[int, Path], tmp_path: Path):
    """Case 079."""
    outputs = [tmp_path / "1", tmp_path / "2"]
    for output in outputs:
        predict(run, mixed[11], output=output)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_is_strict_json(run: Path, mixed: dict[int, Path], expected: np.ndarray, precision: str):
    """Case 125."""
    rows = predict(run, mixed[11], "--mixed_precision", precision)
    assert {type(row["prob"]) for row in rows} == {float}
    assert np.allclose(probabilities(rows), expected, rtol=0, atol=0.02)


def test_an_output_that_is_not_finite_is_an_error_row(run: Path, mixed: dict[int, Path], folder: Path):
    """Case 125: not a NaN in the JSON; the rows beside it stay."""
    from tfbert import predictor

    class Sometimes(predictor.Scorer):
        def logits(self, batch: Any) -> np.ndarray:
            logits = super().logits(batch)
            longest = batch["padding_mask"].numpy().sum(axis=1).argmax()
            logits[longest] = [np.nan, np.inf, 0]
            return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "Scorer", Sometimes)
        rows = predict(run, mixed[11], "--devices", "cpu:1")
        scores = predictor.Predictor(run).evaluate_part(predictor.DataSet.open(folder / "data"), "test")
    bad = [row for row in rows if "error" in row]
    assert bad == [{"row": 2, "error": "output not finite"}]  # ten times x: the longest
    assert len(rows) == 11
    assert scores["rows"] + scores["rejected"]["output not finite"] == 60


# ------------------------------------------------------------------------------------------------- the output file


def test_a_fault_leaves_the_output_of_before(run: Path, folder: Path, tmp_path: Path):
    """A good file of an earlier run is replaced whole, or not at all."""
    from tfbert import predictor

    output = tmp_path / "out.jsonl"
    output.write_bytes(b"good\n")

    class Failing(predictor.Scorer):
        def logits(self, batch: Any) -> np.ndarray:
            raise OSError(28, "No space left on device", str(output))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "Scorer", Failing)
        predict(run, folder / "test.tsv", output=output, code=2)
    assert output.read_bytes() == b"good\n"
    assert len(predict(run, folder / "test.tsv", output=output)) == 60
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("missing/out.jsonl", "--output must lie in an existing folder"),
        (".", "--output names a file"),
        ("rows.tsv", "another file than the input"),
        ("link.tsv", "another file than the input"),
    ],
)
def test_an_output_that_cannot_be_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, message: str
):
    """Before the model is loaded, and without touching the input."""
    path = write(tmp_path / "rows.tsv", "text\na\n")
    (tmp_path / "link.tsv").symlink_to(path)
    predict(run, path, output=tmp_path / output, code=2)
    assert message in error_line(capsys.readouterr().err)
    assert path.read_text(encoding="utf-8") == "text\na\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "tpu"], "--devices is auto, cpu:N or gpu:N"),
        (["--devices", "gpu:64"], "needs as many visible GPUs"),
        (["--batch_tokens", "0"], "--batch_tokens must be at least 1"),
        (["--mixed_precision", "int8"], "--mixed_precision is one of"),
        (["--keep", "id,nothing"], "there is no column 'nothing'"),
        (["--keep", "id,,text"], "may not be empty"),
        (["--format", "xls"], "A format is one of"),
        (["--input", "missing.tsv"], "missing.tsv: the file cannot be read. Received: No such file or directory"),
        (["--run_dir", "missing"], "missing: a run folder of"),
    ],
)
def test_settings_of_prediction_are_refused(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
):
    predict(run, folder / "test.tsv", *flags, output=tmp_path / "out.jsonl", code=2)
    assert message in error_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_rows(run: Path, tmp_path: Path):
    """Case 124: the most memory while 4,000 rows are labelled, and 12,000 more in the same process."""
    for rows in (4_000, 12_000):
        wide = "".join(f"{text}\t{i:03000}\n" for i, text in enumerate(texts(rows)))
        (tmp_path / f"{rows}.tsv").write_text("text\twide\n" + wide, encoding="utf-8")
    script = f"""
        import json
        import psutil
        from tfbert import predictor

        class Watched(predictor.Predictor):
            def output_row(self, number, row, logits):
                if number % 100 == 0:
                    peaks[-1] = max(peaks[-1], psutil.Process().memory_info().rss / 2**20)
                return super().output_row(number, row, logits)

        predictor.WINDOW_ROWS, predictor.CHUNK_BYTES, peaks = 256, 1 << 13, []
        labeller = Watched({str(run)!r}, batch_tokens=100)
        for rows in (4000, 12000):
            peaks.append(0)
            columns = predictor.Columns(keep=("wide",))
            labeller.predict_file(f"{tmp_path}/{{rows}}.tsv", f"{tmp_path}/{{rows}}", columns)
        print(json.dumps(peaks))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert after - before < 12, f"{before:.0f} MB, then {after:.0f} MB"
    with (tmp_path / "12000").open("rb") as file:
        assert sum(1 for _ in file) == 12_000


# ------------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_agrees_with_scikit_learn(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    """The scores of the raw file, of the encoded part and of `predict run` are the same numbers."""
    from sklearn import metrics

    raw = evaluate(run, folder / "test.tsv", capsys)
    part = evaluate(run, f"{folder / 'data'}:test", capsys, "--devices", "cpu:2")
    predicted = [row["label"] for row in predict(run, folder / "test.tsv")]
    true = [NAMES[i % 3] for i in range(60)]
    assert raw["rows"] == part["rows"] == 60
    assert raw["accuracy"] == metrics.accuracy_score(true, predicted)
    assert raw["mcc"] == pytest.approx(metrics.matthews_corrcoef(true, predicted))
    assert raw["confusion"]["labels"] == NAMES
    assert raw["confusion"]["matrix"] == metrics.confusion_matrix(true, predicted, labels=NAMES).tolist()
    assert raw["macro"]["f1"] == pytest.approx(metrics.f1_score(true, predicted, average="macro"))
    f1 = metrics.f1_score(true, predicted, average=None, labels=NAMES)
    assert [raw["per_class"][name]["f1"] for name in NAMES] == pytest.approx(f1.tolist())
    for name in ("accuracy", "mcc", "macro", "micro", "confusion", "rejected"):
        assert raw[name] == part[name]
    assert raw["calibration"]["ece"] == pytest.approx(part["calibration"]["ece"], abs=1e-5)


def test_rows_without_a_usable_label_are_counted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content = "text\tlabel\na\tant\nb\tAnt\nc\t\nc\tcat\n\nonly one\n"
    result = evaluate(run, write(tmp_path / "rows.tsv", content), capsys)
    assert result["rows"] == 2
    assert result["rejected"] == {"unknown label": 1, "empty label": 1, "blank": 1, "columns": 1}


def test_nothing_to_score(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import predict as script

    path = write(tmp_path / "rows.tsv", "text\tlabel\na\tdog\n")
    assert script.main(["evaluate", "--run_dir", str(run), "--input", str(path)]) == 2
    captured = capsys.readouterr()
    assert "there must be labelled rows to score" in error_line(captured.err)
    assert captured.out == ""


def test_text_and_report(run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import predict as script

    words = ["--run_dir", str(run), "--input", str(folder / "test.tsv"), "--report", str(tmp_path / "report")]
    capsys.readouterr()
    assert script.main(["evaluate", *words]) == 0
    out = capsys.readouterr().out
    assert "rows 60\n" in out
    assert all(f"  {name}: precision" in out for name in NAMES)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("scores.json", "confusion.png", "calibration.png"),
    }
    assert strict_json((tmp_path / "report/scores.json").read_text(encoding="utf-8"))["rows"] == 60


def test_a_report_that_cannot_be_written(run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Before the rows are scored."""
    import predict as script

    path = write(tmp_path / "file", "mine")
    words = ["--run_dir", str(run), "--input", str(folder / "test.tsv"), "--report", str(path)]
    assert script.main(["evaluate", *words]) == 2
    captured = capsys.readouterr()
    assert str(path) in error_line(captured.err)
    assert captured.out == ""


def test_another_label_column(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "rows.tsv", "words\ttruth\na\tant\nb x\tbee\n")
    assert evaluate(run, path, capsys, "--text", "words", "--label", "truth")["rows"] == 2


@pytest.mark.parametrize(
    ("rows", "flags", "message"),
    [
        (
            table(30).replace("\tcat", "\tcow"),
            [],
            "labels 3 labels ['ant', 'bee', 'cow'], not 3 labels ['ant', 'bee', 'cat']",
        ),
        (table(30).replace("\tcat", "\tant"), [], "labels 2 labels ['ant', 'bee'], not 3"),
        (table(30), ["--labels"], "labels 3 labels ['bee', 'ant', 'cat'], not 3 labels ['ant', 'bee', 'cat']"),
        (table(30), ["--max_len", "12"], "encoding"),
        (table(30), ["--cased"], "encoding"),
    ],
)
def test_a_data_set_that_is_not_like_the_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, flags: list[str], message: str
):
    """Case 070: another number of labels, other ones, another order; and other ids for the same text."""
    import predict as script

    if flags == ["--labels"]:
        flags = ["--labels", str(write(tmp_path / "labels.txt", "bee\nant\ncat\n"))]
    data = make_data(tmp_path, rows, *flags)
    assert script.main(["evaluate", "--run_dir", str(run), "--input", f"{data.folder}:val"]) == 2
    assert message in error_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data", "data:val, "),
        ("data:nothing", "there is no part 'nothing'. The parts are: train, val, test"),
        ("nowhere:test", "nowhere:test: the file cannot be read"),
    ],
)
def test_a_part_that_is_not_there(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
):
    import predict as script

    assert script.main(["evaluate", "--run_dir", str(run), "--input", f"{folder}/{words}"]) == 2
    assert message in error_line(capsys.readouterr().err)


def test_an_empty_part(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import predict as script

    names = str(write(tmp_path / "labels.txt", "ant\nbee\ncat\n"))
    data = make_data(tmp_path, "id\ttext\tlabel\n", "--labels", names, "--val_fraction", "0")
    assert script.main(["evaluate", "--run_dir", str(run), "--input", f"{data.folder}:train"]) == 2
    assert "there must be labelled rows to score" in error_line(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------------------ other tasks


@pytest.mark.usefixtures("eagerly")
def test_several_labels_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        f"{a} {b}\t{NAMES[i % 3]},{NAMES[(i + 1) % 3]}\n"
        for i, (a, b) in enumerate(zip(texts(60), texts(61, 3)[1:], strict=True))
    ]
    rows = "text\tlabel\n" + "".join(lines) + "x\t\n"
    data = make_data(tmp_path, rows, "--task", "multilabel", "--val_fraction", "0")
    small = write_model(tmp_path, num_hidden_layers=1)
    run = train(data.folder, tmp_path / "run", "--epochs", "3", init=small)
    written = predict(run.folder, tmp_path / "in.tsv")
    for row in written:
        assert row["labels"] == [name for name in NAMES if row["probs"][name] > 0.5]
        assert "label" not in row
    raw = evaluate(run.folder, tmp_path / "in.tsv", capsys)
    part = evaluate(run.folder, f"{data.folder}:train", capsys)
    assert raw == part
    assert raw["rows"] == 61
    true = [{name for name in NAMES if name in line.split("\t")[1]} for line in rows.split("\n")[1:-1]]
    assert raw["exact_match"] == np.mean(
        [set(row["labels"]) == names for row, names in zip(written, true, strict=True)]
    )


@pytest.mark.usefixtures("eagerly")
def test_regression_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Both texts are read; the value is the number that evaluation compares."""
    lines = [f"{a}\t{b}\t{a.count('x') / 4}\n" for a, b in zip(texts(60), texts(60, 1), strict=True)]
    data = make_data(
        tmp_path, "a\tb\ty\n" + "".join(lines), "--task", "regression", "--text_b", "b", text="a", label="y"
    )
    run = train(data.folder, tmp_path / "run", "--epochs", "2", init=write_model(tmp_path, num_hidden_layers=1))
    written = predict(run.folder, tmp_path / "in.tsv", "--keep", "y")
    assert [list(row) for row in written] == [["row", "value", "y"]] * 60
    result = evaluate(run.folder, tmp_path / "in.tsv", capsys)
    errors = [row["value"] - float(row["y"]) for row in written]
    assert result["mse"] == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    swapped = predict(run.folder, tmp_path / "in.tsv", "--text", "b", "--text_b", "a")
    assert any(abs(a["value"] - b["value"]) > 1e-4 for a, b in zip(written, swapped, strict=True))
    one = write(tmp_path / "one.tsv", "a\ty\nx\t1\n")
    predict(run.folder, one, code=2)
    assert "there is no column 'b'" in error_line(capsys.readouterr().err)


@pytest.mark.usefixtures("eagerly")
def test_the_filters_of_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Rows that training left out are predicted like any other, and left out of the scores."""
    rows = table(30).replace("id\t", "kind\t").replace("r7\t", "skip\t")
    data = make_data(tmp_path, rows, "--filter", "kind!=skip", "--val_fraction", "0")
    run = train(data.folder, tmp_path / "run", init=write_model(tmp_path, num_hidden_layers=1))
    assert len(predict(run.folder, tmp_path / "in.tsv")) == 30
    result = evaluate(run.folder, tmp_path / "in.tsv", capsys)
    assert (result["rows"], result["rejected"]) == (29, {"filtered": 1})


@pytest.mark.usefixtures("eagerly")
def test_a_data_set_without_labels_cannot_be_scored(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import predict as script

    data = encode(tmp_path, table(9), "--text", "text", "--max_len", "16")
    assert script.main(["evaluate", "--run_dir", str(run), "--input", f"{data.folder}:train"]) == 2
    assert "task None, not classify" in error_line(capsys.readouterr().err)


def test_a_run_that_goes_on_can_predict_already(changed: Path, folder: Path):
    """The best weights so far are a whole file at any time."""
    (changed / "finished").unlink()
    assert len(predict(changed, folder / "test.tsv")) == 60


@pytest.mark.usefixtures("eagerly")
def test_weights_fit_any_number_of_devices(run: Path, folder: Path, tmp_path: Path):
    """Case 067: trained on two devices, used on one."""
    two = train(folder / "data", tmp_path / "run", "--devices", "cpu:2")
    one = predict(two.folder, folder / "test.tsv", "--devices", "cpu:1", output=tmp_path / "1")
    three = predict(two.folder, folder / "test.tsv", "--devices", "cpu:3", output=tmp_path / "3")
    assert np.allclose(probabilities(one), probabilities(three), rtol=0, atol=1e-5)
