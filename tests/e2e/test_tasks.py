"""Published tasks by name: files, columns and labels from a folder in the layout of its benchmark."""

import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import orjson
import pytest
from encode_runs import DataSet, InlineExecutor, error_line, write_vocab

from preprocess.__main__ import main
from tfbert.data.tasks import TASKS, Layout
from tfbert.report import reported_names

MNLI = "index\tpromptID\tpairID\tgenre\tb1\tb2\tp1\tp2\tsentence1\tsentence2\tlabel1"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def encode(folder: Path, task: str, inputs: Path, *flags: str, code: int = 0, out: str = "data") -> DataSet:
    vocab = write_vocab(folder)
    common = ["--vocab", str(vocab), "--out", str(folder / out), "--workers", "1"]
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        assert main(["encode", str(inputs), "--task", task, *common, *flags]) == code
    data = DataSet(folder / out)
    if code == 0:
        data.check_counts()
        assert data.manifest["task_name"] == task
    return data


def test_cola_has_no_header(tmp_path: Path) -> None:
    row = "gj04\t{}\t{}\t{}\n"
    files = {
        "train.tsv": row.format(1, "", "good one") + row.format(0, "*", "bad one"),
        "dev.tsv": row.format(1, "", "dev").rstrip("\n"),
        "test.tsv": "index\tsentence\n0\tnot of it\n",
    }
    data = encode(tmp_path, "glue/cola", write(tmp_path / "glue" / "CoLA", files).parent)
    assert data.texts() == ["good one", "bad one"]
    assert data.labels() == ["acceptable", "unacceptable"]
    assert set(data.manifest["parts"]) == {"train", "val"}


def test_mrpc_keeps_its_quotes(tmp_path: Path) -> None:
    files = {
        "train.tsv": MRPC + '1\t1\t2\ta " b\tc\n0\t3\t4\t"\td "e"\n',
        "dev.tsv": MRPC + "1\t5\t6\tf\tg\n",
    }
    data = encode(tmp_path, "glue/mrpc", write(tmp_path / "in", files))
    assert data.texts() == ['a " b[SEP] c', '"[SEP] d " e "'] or data.texts() == ['a " b [SEP] c', '" [SEP] d " e "']
    assert data.labels() == ["equivalent", "not_equivalent"]
    assert data.manifest["encoding"]["max_len"] == 128


def test_mnli_has_two_dev_sets_and_rows_of_other_lengths(tmp_path: Path) -> None:
    """12 columns to train on, 16 to validate on; a row that lost some is rejected; `-` is no label."""
    row = "0\t1\t1n\tg\tb\tb\tp\tp\t{}\t{}\t{}\n"
    dev = MNLI + "\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
    files = {
        "train.tsv": MNLI + "\tgold_label\n" + row.format("a", "b", "neutral\tneutral") + "1\tcut\n",
        "dev_matched.tsv": dev
        + row.format("c", "d", "x\tx\tx\tx\tx\tentailment")
        + row.format("e", "f", "x\t\t\t\t\t-"),
        "dev_mismatched.tsv": dev + row.format("g", "h", "x\tx\tx\tx\tx\tcontradiction"),
        "test_matched.tsv": "never read",
    }
    data = encode(tmp_path, "glue/mnli", write(tmp_path / "in", files), "--max_bad_rows", "0.5")
    assert [data.labels(part) for part in ("train", "val", "test")] == [["neutral"], ["entailment"], ["contradiction"]]
    assert [row["reason"] for row in data.rejects] == ["columns", "filtered"]
    assert data.manifest["label_names"] == ["entailment", "neutral", "contradiction"]


def test_stsb_is_a_regression(tmp_path: Path) -> None:
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    row = "0\tm\tf\ty\t1\tn\tn\t{}\t{}\t{}\n"
    files = {"train.tsv": header + row.format("a", "b", "3.800"), "dev.tsv": header + row.format("c", "d", "0.000")}
    data = encode(tmp_path, "glue/stsb", write(tmp_path / "in", files), "--max_len", "16")
    assert [row["label"] for part in ("train", "val") for row in data.rows(part)] == [3.8, 0.0]
    assert data.manifest["task"] == "regression"
    assert data.manifest["encoding"]["max_len"] == 16


def test_clue_has_json_lines(tmp_path: Path) -> None:
    files = {
        "train.json": '{"label": "116", "label_desc": "news_game", "sentence": "x", "keywords": ""}\n',
        "dev.json": '{"label": "100", "sentence": "y"}\n',
        "test.json": '{"id": "0", "sentence": "z"}\n',
    }
    data = encode(tmp_path, "clue/tnews", write(tmp_path / "in", files))
    assert data.labels() == ["news_game"]
    assert data.labels("val") == ["news_story"]
    assert data.rows()[0]["label"] == 14
    numbers = {
        "train.json": '{"label": 118, "label_des": "x", "sentence": "a"}\n',
        "dev.json": '{"label": 0, "sentence": "b"}\n',
    }
    assert encode(tmp_path, "clue/iflytek", write(tmp_path / "i", numbers), out="i_data").rows()[0]["label"] == 118


def test_chinese_layouts(tmp_path: Path) -> None:
    titles = {"train.txt": "标题\t8\n", "dev.txt": "内容\t0\n", "test.txt": "新闻\t9\n"}
    data = encode(tmp_path, "thucnews", write(tmp_path / "t", titles))
    assert [data.labels(part) for part in ("train", "val", "test")] == [["game"], ["finance"], ["entertainment"]]
    reviews = {f"{part}.tsv": "label\ttext_a\n1\t好\n" for part in ("train", "dev", "test")}
    data = encode(tmp_path, "chnsenticorp", write(tmp_path / "c", reviews), out="reviews")
    assert data.labels("test") == ["positive"]


def test_compressed_files(tmp_path: Path) -> None:
    import gzip

    folder = write(tmp_path / "in", {"dev.tsv": "sentence\tlabel\nb \t0\n"})
    (folder / "train.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\na \t1\n"))
    assert encode(tmp_path, "glue/sst2", folder).labels() == ["positive"]


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """case 151: the files found and those wanted."""
    folder = write(tmp_path / "in", {"dev.tsv": "x", "readme": "x"})
    encode(tmp_path, "glue/rte", folder, code=2)
    error = error_line(capsys.readouterr().err)
    assert "needs train.tsv or train.jsonl, here or in RTE/. Received: the files dev.tsv, readme" in error
    (folder / "dev.tsv").rename(folder / "train.tsv")
    encode(tmp_path, "glue/rte", folder, code=2)
    assert "needs dev.tsv for validation" in error_line(capsys.readouterr().err)
    encode(tmp_path, "glue/rte", folder / "nowhere", code=2)
    assert "takes the folder" in error_line(capsys.readouterr().err)


def test_an_unknown_label_is_rejected_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """case 180."""
    files = {"train.tsv": "sentence\tlabel\na\t1\nb\t2\nc\t\n", "dev.tsv": "sentence\tlabel\na\t0\n"}
    folder = write(tmp_path / "in", files)
    encode(tmp_path, "glue/sst2", folder, code=2)
    assert "train.tsv:3: unknown label" in error_line(capsys.readouterr().err)
    data = encode(tmp_path, "glue/sst2", folder, "--max_bad_rows", "1")
    assert data.reasons == [(3, "unknown label"), (4, "empty label")]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--text", "x"], "knows its files, columns and labels. Received: --text"),
        (["--label", "x", "--val", "y"], "Received: --label, --val"),
        (["--format", "csv"], "--format"),
        (["--task", "glue/none"], "glue/mrpc"),
        (["--task", "classify"], "--text names the column"),
    ],
)
def test_flags_beside_a_name(
    tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    encode(tmp_path, "glue/rte", tmp_path, *flags, code=2)
    assert message in error_line(capsys.readouterr().err)


def test_a_change_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """case 182: the same size and time, other content; the fingerprint goes by content."""
    folder = write(tmp_path / "in", {part: "sentence\tlabel\na\t1\n" for part in ("train.tsv", "dev.tsv")})
    before = encode(tmp_path, "glue/sst2", folder).files
    stat = (folder / "train.tsv").stat()
    (folder / "train.tsv").write_text("sentence\tlabel\nb\t1\n", encoding="utf-8")
    os.utime(folder / "train.tsv", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = encode(tmp_path, "glue/sst2", folder).files
    assert before["train.jsonl"] != after["train.jsonl"]


def file_of(layout: Layout, name: str, label: str) -> str:
    """A file of the layout with one row, whose texts are `a` and `b`."""
    texts = {layout.text: "a"} | ({layout.text_b: "b"} if layout.text_b else {})
    row = texts | {layout.label: label} | {column: label for column, _ in layout.without}
    if name.endswith((".json", ".jsonl")):
        return orjson.dumps(row).decode() + "\n"
    if layout.names is not None:
        return "\t".join(row.get(column, "x") for column in layout.names.split(",")) + "\n"
    if all(column.isdigit() for column in row):
        return "\t".join(row[str(i)] for i in range(len(row))) + "\n"
    return "more\t" + "\t".join(row) + "\n" + "x\t" + "\t".join(row.values()) + "\n"


@pytest.mark.parametrize("name, number", [(name, i) for name, task in TASKS.items() for i in range(len(task.layouts))])
def test_every_layout_of_every_task(tmp_path: Path, name: str, number: int) -> None:
    task = TASKS[name]
    layout = task.layouts[number]
    spelled = task.labels[-1][-1] if task.labels else "2.5"
    files = {file: file_of(layout, file, spelled) for file in layout.files.values()}
    data = encode(tmp_path, name, write(tmp_path / task.folder, files).parent)
    text = "a [SEP] b" if layout.text_b else "a"
    for part in layout.files:
        assert data.texts(part) == [text]
        assert [row["label"] for row in data.rows(part)] == [len(task.labels) - 1 if task.labels else 2.5]
    assert data.manifest["encoding"]["max_len"] == task.max_len
    assert data.manifest["task"] == task.kind


def test_the_table_itself() -> None:
    for name, task in TASKS.items():
        assert task.layouts
        for layout in task.layouts:
            assert set(layout.files) >= {"train", "val"}
        assert task.metrics[0] in reported_names(task.kind, task.metrics)
        if task.kind == "classify":
            labels = task.label_map()
            assert labels is not None
            assert sorted(set(labels.ids.values())) == list(range(len(labels.names))), name
            assert "f1" not in task.metrics or len(labels.names) == 2


PUBLISHED = {
    "glue/cola": ("en/glue", 8551, 1043), "glue/sst2": ("en/glue", 67349, 872), "glue/mrpc": ("en/glue", 3668, 408),
    "glue/rte": ("en/glue", 2490, 277), "glue/wnli": ("en/glue", 635, 71), "glue/stsb": ("en/glue", 5749, 1500),
    "glue/qnli": ("en/glue", 165, 5463), "glue/mnli": ("en/glue", 486, 11), "clue/tnews": ("zh", 7804, 4928),
    "clue/iflytek": ("zh", 3024, 1373), "thucnews": ("zh", 33567, 9995), "chnsenticorp": ("zh", 9600, 1200),
}  # fmt: skip


@pytest.mark.parametrize("name", ["glue/cola", "glue/mrpc", "glue/rte", "glue/mnli", "glue/wnli", "clue/tnews"])
def test_real_files(tmp_path: Path, shared_data: Path, name: str) -> None:
    """Every row of the published files is taken."""
    folder, train, val = PUBLISHED[name]
    data = encode(tmp_path, name, shared_data / folder)
    assert {part: counts["rows"] for part, counts in data.manifest["parts"].items()} == {"train": train, "val": val} | (
        {"test": 5} if name == "glue/mnli" else {}
    )
    assert not data.rejects
