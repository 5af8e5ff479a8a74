"""Faults that people met in comparable software, as small inputs to `preprocess encode`: group PRE of the cases."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from encode_runs import CHINESE, TOKENS, DataSet, encode, error_line, flags_of, write_vocab

from preprocess.__main__ import main
from tfbert.data.store import open_store

ROOT = Path(__file__).parents[2]
LABELLED = ["--text", "0", "--label", "1"]


def run(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m preprocess encode` in a process of its own, with exactly this environment beside the path."""
    return subprocess.run(
        [sys.executable, "-m", "preprocess", "encode", *map(str, words)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


# ------------------------------------------------------------------------------------------------- 001 to 003: quotes


def test_an_opening_quote_is_ordinary_text(tmp_path: Path) -> None:
    """Case 001: a tab file knows no quoting, so no row swallows the next ones."""
    rows = ["1\td\t0\ttitle\tcontent\tpass", '2\td\t0\t"半价\tcontent\tpass', "3\td\t0\ttitle\tcontent\tpass"]
    data = encode(tmp_path, "\n".join(rows) + "\n", "--text", "3", "--label", "5")
    assert data.texts() == ["title", '" 半 价', "title"]


@pytest.mark.parametrize("text", ['他说"好"', '"', '""', '"a"', "a'b", '"a\\"', '"""', "'", "a,b"])
def test_quotes_and_commas_stay_in_the_text(tmp_path: Path, text: str) -> None:
    """Case 001: balanced, doubled, escaped, single quotes."""
    data = encode(tmp_path, f"x\t1\n{text}\t0\ny\t1\n", *LABELLED, "--keep", "0")
    assert [row["keep"]["0"] for row in data.rows()] == ["x", text, "y"]
    assert data.labels() == ["1", "0", "1"]


def test_ragged_rows_are_read_where_their_columns_exist(tmp_path: Path) -> None:
    """Case 003: 12, 11, 12 columns and one row with 3; texts at 8 and 9, the label last."""
    rows = [[f"c{i}" for i in range(n - 1)] + ["x"] for n in (12, 11, 12, 3)]
    content = "".join("\t".join(row) + "\n" for row in rows)
    data = encode(tmp_path, content, "--text", "8", "--text_b", "9", "--label", "-1")
    assert data.texts() == ["c8 [SEP] c9"] * 3
    assert data.labels() == ["x"] * 3
    assert data.reasons == [(4, "columns")]


def test_a_column_from_the_start_never_meets_one_from_the_end(tmp_path: Path) -> None:
    """Case 003: in a row of 10 columns, column 9 is the label, and not a text."""
    rows = [[f"c{i}" for i in range(n - 1)] + ["x"] for n in (12, 10, 9, 11)]
    data = encode(
        tmp_path, "".join("\t".join(row) + "\n" for row in rows), "--text", "8", "--text_b", "9", "--label=-1"
    )
    assert data.reasons == [(2, "columns"), (3, "columns")]
    assert data.manifest["label_names"] == ["x"]


def test_rows_of_another_width_than_the_header_are_rejected(tmp_path: Path) -> None:
    """Case 003: with names, a missing or extra field means that nobody knows which one it is."""
    data = encode(tmp_path, "t\ty\na\t1\nb\t1\tx\nc\nd\t0\n", "--text", "t", "--label", "y")
    assert data.texts() == ["a", "d"]
    assert data.reasons == [(3, "columns"), (4, "columns")]


def test_empty_first_and_last_columns_are_columns(tmp_path: Path) -> None:
    """Case 003: nothing but the line end is stripped."""
    data = encode(tmp_path, "\ta\t\n\t\t\nx\tb\t \n", "--text", "1", "--keep", "0,2")
    assert data.texts() == ["a", "", "b"]
    assert [row["keep"] for row in data.rows()] == [{"0": "", "2": ""}, {"0": "", "2": ""}, {"0": "x", "2": " "}]


# --------------------------------------------------------------------------------------------- 004 to 007: characters

SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\xa0", "\r"]


@pytest.mark.parametrize("name", ["in.tsv", "in.csv", "in.jsonl", "in.txt"])
def test_only_lf_ends_a_record(tmp_path: Path, name: str) -> None:
    """Case 004: U+2028 and its kin stay inside their field, in every format."""
    texts = ["a\u2028b\u0085c", "x\x0by\x0cz\x1cw", *(f"p{c}q" for c in SEPARATORS[:-1])]
    line = {
        "in.tsv": lambda t: f"{t}\t1",
        "in.csv": lambda t: f"{t},1",
        "in.jsonl": lambda t: orjson.dumps({"0": t, "1": "1"}).decode(),
        "in.txt": lambda t: t,
    }[name]
    flags = ["--text", "0", "--keep", "0"] + ([] if name == "in.txt" else ["--label", "1"])
    data = encode(tmp_path, "".join(line(t) + "\n" for t in texts), *flags, "--chunk_bytes", "3", name=name)
    assert [row["keep"]["0"] for row in data.rows()] == texts
    assert (data.folder / "train.jsonl").read_bytes().count(b"\n") == len(texts)
    store = open_store(data.folder / "train.jsonl")
    assert [record.keep for record in store.read(range(len(store)))] == [{"0": text} for text in texts]
    store.close()


def test_crlf_files_equal_lf_files(tmp_path: Path) -> None:
    """Case 005 (a): byte for byte, header and label file included."""
    content, labels = "t\ty\na b\tpos\nc\tneg\n", "neg\npos\n"
    seen = []
    for end in ("\n", "\r\n"):
        (tmp_path / "labels").write_bytes(labels.replace("\n", end).encode())
        flags = ["--text", "t", "--label", "y", "--labels", str(tmp_path / "labels")]
        data = encode(tmp_path, content.replace("\n", end), *flags)
        seen.append({name: content for name, content in data.files.items() if name != "manifest.json"})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_lone_cr_is_part_of_its_text(tmp_path: Path, end: str) -> None:
    """Case 005 (b)."""
    content = end.join(["a\t1", "前\r后\t1", "b\t0", "\r\t1"]) + end
    data = encode(tmp_path, content, *LABELLED, "--keep", "0")
    assert [row["keep"]["0"] for row in data.rows()] == ["a", "前\r后", "b", "\r"]
    assert data.texts()[1] == "前 后"


def test_a_cr_before_crlf_is_text(tmp_path: Path) -> None:
    """Case 005: one line end is removed, not every carriage return."""
    data = encode(tmp_path, "a\r\r\nb\r\n", "--text", "0", "--keep", "0", "--format", "tsv")
    assert [row["keep"]["0"] for row in data.rows()] == ["a\r", "b"]


@pytest.mark.parametrize("name", ["in.tsv", "in.csv"])
def test_nul_bytes_end_nothing(tmp_path: Path, name: str) -> None:
    """Case 006."""
    sign = "," if name == "in.csv" else "\t"
    content = f"x{sign}1\na\0b c{sign}1\ny{sign}0\n\0{sign}0\n"
    data = encode(tmp_path, content, *LABELLED, name=name)
    assert data.texts() == ["x", "ab c", "y", ""]


def test_a_half_written_tail_of_nul_bytes_is_one_rejected_row(tmp_path: Path) -> None:
    """Case 006."""
    data = encode(tmp_path, b"x\t1\ny\t1\n" + b"\0" * 5000, *LABELLED)
    assert data.texts() == ["x", "y"]
    assert data.reasons == [(3, "columns")]


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "name, content, flags",
    [
        ("in.tsv", "1\ta\n0\tb\n", ["--text", "1", "--label", "0"]),
        ("in.tsv", "y\tt\n1\ta\n0\tb\n", ["--text", "t", "--label", "y"]),
        ("in.csv", "y,t\n1,a\n0,b\n", ["--text", "t", "--label", "y"]),
        ("in.csv", '"1",a\n0,b\n', ["--text", "1", "--label", "0"]),
        ("in.jsonl", '{"y": 1, "t": "a"}\n{"y": 0, "t": "b"}\n', ["--text", "t", "--label", "y"]),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_field(
    tmp_path: Path, name: str, content: str, flags: list[str]
) -> None:
    """Case 007 (a)."""
    data = encode(tmp_path, BOM + content.encode(), *flags, name=name)
    assert data.manifest["label_names"] == ["0", "1"]
    assert data.labels() == ["1", "0"]
    assert data.texts() == ["a", "b"]


@pytest.mark.parametrize(
    "name, content", [("l.txt", "neg\npos\n"), ("l.json", '["neg", "pos"]'), ("l.txt", '{"neg": 0, "pos": 1}')]
)
def test_a_byte_order_mark_in_a_label_file(tmp_path: Path, name: str, content: str) -> None:
    """Case 007 (b)."""
    (tmp_path / name).write_bytes(BOM + content.encode())
    data = encode(tmp_path, "a\tneg\n", *LABELLED, "--labels", str(tmp_path / name))
    assert data.manifest["label_names"] == ["neg", "pos"]


def test_a_byte_order_mark_in_the_vocabulary(tmp_path: Path) -> None:
    """Case 007 (c): [PAD] is line 1."""
    vocab = write_vocab(tmp_path)
    plain = encode(tmp_path, "a 好\n", "--text", "0", name="a.txt").rows()
    vocab.write_bytes(BOM + vocab.read_bytes())
    data = encode(tmp_path, "a 好\n", "--text", "0", name="a.txt")
    assert (data.rows(), data.manifest["pad_id"]) == (plain, 0)


def test_a_mark_elsewhere_is_a_character(tmp_path: Path) -> None:
    """Case 007: and format characters do not count for the tokenizer."""
    data = encode(tmp_path, "a\ufeffb\tx\n\ufeffc\t\ufeffx\n", *LABELLED, "--keep", "0")
    assert data.texts() == ["ab", "c"]
    assert data.manifest["label_names"] == ["x", "\ufeffx"]
    assert data.rows()[1]["keep"] == {"0": "\ufeffc"}


# ----------------------------------------------------------------------------------------------- 009 and 010: encoding


@pytest.mark.parametrize("bad", [b"\xff", "标题".encode("gbk"), b"\xe6\xa0", b"\xed\xa0\x80", b"\xc0\x80"])
@pytest.mark.parametrize("name", ["in.tsv", "in.csv", "in.jsonl"])
def test_a_row_that_is_not_utf8_is_rejected_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: bytes, name: str
) -> None:
    """Case 009: a stray byte, GBK, a cut character, a surrogate, an overlong form."""
    frame = {"in.tsv": b"%s\t1\n", "in.csv": b'"%s",1\n', "in.jsonl": b'{"0": "%s", "1": "1"}\n'}[name]
    content = b"".join(frame % text for text in (b"a", b"b", bad, "标题".encode(), b"e"))
    data = encode(tmp_path, content, *LABELLED, name=name)
    assert data.texts() == ["a", "b", "标 题", "e"]
    assert data.reasons == [(3, "encoding")]
    assert "rejected, encoding: 1" in capsys.readouterr().out
    data = encode(tmp_path, content, *LABELLED, "--replace_bad_bytes", name=name)
    assert len(data.rows()) == 5


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    """Case 010: a C locale without any of Python's helps, with Chinese in file, column, label and folder names."""
    write_vocab(tmp_path)
    (tmp_path / "标题.tsv").write_bytes("类别\t文\n好\t标题 a\n坏\t内容\nx\n".encode())
    words = [
        "标题.tsv",
        "--vocab",
        "vocab.txt",
        "--text",
        "文",
        "--label",
        "类别",
        "--workers",
        "1",
        "--max_bad_rows",
        "1",
    ]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    seen = []
    for out, environment in (("数据1", plain), ("数据2", {"LC_ALL": "C.UTF-8"})):
        done = run(tmp_path, *words, "--out", out, **environment)
        assert (done.returncode, "3 rows read = 2 kept + 1 rejected" in done.stdout) == (0, True), done.stderr
        seen.append(DataSet(tmp_path / out).files)
    assert seen[0] == seen[1]
    assert orjson.loads(seen[0]["manifest.json"])["inputs"]["train"][0]["name"] == "标题.tsv"


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    """Case 010: the name is escaped where it must be text."""
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.tsv"))
    path.write_text("a\t1\nbad\n", encoding="utf-8")
    data = encode(tmp_path, [path], *LABELLED)
    assert data.manifest["inputs"]["train"][0]["name"].endswith("/\\xff.tsv")
    assert data.rejects[0]["file"].endswith("/\\xff.tsv")


# ------------------------------------------------------------------------------------------- 012 to 016: values, counts


@pytest.mark.parametrize("name", ["in.tsv", "in.csv"])
def test_texts_and_labels_are_never_interpreted(tmp_path: Path, name: str) -> None:
    """Case 012."""
    texts = ["NA", "null", "nan", "1.0", "007", "True", "None", "1e5", "0x10", "-", "#N/A", "inf"]
    sign = "," if name == "in.csv" else "\t"
    content = "".join(f"{text}{sign}{text}\n" for text in texts)
    data = encode(tmp_path, content, *LABELLED, "--keep", "0", name=name)
    assert [row["keep"]["0"] for row in data.rows()] == texts
    assert data.labels() == texts
    assert data.manifest["label_names"] == sorted(texts)


@pytest.mark.parametrize("rows, workers", [(1, 8), (3, 8), (0, 4), (9, 4)])
def test_fewer_rows_than_workers(tmp_path: Path, rows: int, workers: int) -> None:
    """Case 013."""
    flags = [*LABELLED, "--workers", str(workers), "--chunk_bytes", "1"]
    data = encode(tmp_path, "".join(f"{i}\t1\n" for i in range(rows)), *flags, processes=True)
    assert data.texts() == [" ".join(str(i)) for i in range(rows)]


@pytest.mark.parametrize("content", [b"", BOM])
@pytest.mark.parametrize("name", ["in.tsv", "in.csv", "in.jsonl", "in.txt", "in.tsv.gz"])
def test_an_empty_file_gives_an_empty_data_set_and_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    """Case 013: with a header asked for or not."""
    for column in ["0"] if name == "in.txt" else ["0", "name"]:
        if name.endswith(".gz") and content:
            continue
        data = encode(tmp_path, content, "--text", column, "--val_fraction", "0.1", "--dedup", name=name)
        assert (data.rows(), data.rejects) == ([], [])
        output = capsys.readouterr()
        assert "the train part is empty" in output.err
        assert name in output.err
        assert "0 rows read = 0 kept + 0 rejected" in output.out
        store = open_store(data.folder / "train.jsonl")
        assert len(store) == 0
        store.close()


def test_a_header_without_rows_is_an_empty_data_set(tmp_path: Path) -> None:
    """Case 013."""
    assert encode(tmp_path, "t\ty\n", "--text", "t", "--label", "y").rows() == []


def test_a_chunk_may_be_rejected_whole(tmp_path: Path) -> None:
    """Case 014: the third quarter."""
    content = "".join(("bad\n" if i in (4, 5) else f"{i}\t1\n") for i in range(8))
    data = encode(tmp_path, content, *LABELLED, "--workers", "4", "--chunk_bytes", "8", processes=True)
    assert data.texts() == ["0", "1", "2", "3", "6", "7"]
    assert data.manifest["read"]["train"]["rejected"] == {"columns": 2}


@pytest.mark.parametrize(
    "content, flags", [("bad\nbad\n", []), ("a\t1\nb\t1\n", ["--filter", "1!=1"]), ("\n\n \n", []), ("a\t\n", [])]
)
def test_nothing_usable_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, flags: list[str]
) -> None:
    """Case 014: every row rejected, filtered or blank."""
    data = encode(tmp_path, content, *LABELLED, *flags, code=2)
    line = error_line(capsys.readouterr().err)
    assert "no usable rows" in line
    assert "in.tsv" in line
    assert not data.folder.exists()


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    """Case 015: and the files are joined as records, not as bytes."""
    (tmp_path / "a.txt").write_bytes(b"r1\nr2")
    (tmp_path / "b.txt").write_bytes(b"r3\n")
    data = encode(tmp_path, [tmp_path / "a.txt", tmp_path / "b.txt"], "--text", "0")
    assert data.texts() == ["r2".replace("2", str(i)) for i in (1, 2, 3)]
    assert [entry["lines"] for entry in data.manifest["inputs"]["train"]] == [2, 1]


@pytest.mark.parametrize("name", ["in.tsv", "in.csv", "in.jsonl", "in.txt"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_ends_of_files(tmp_path: Path, name: str, end: str) -> None:
    """Case 015: none, one, two."""
    line = '{"0": "a", "1": "1"}' if name == "in.jsonl" else {"in.csv": "a,1", "in.txt": "a"}.get(name, "a\t1")
    flags = ["--text", "0"] if name == "in.txt" else LABELLED
    data = encode(tmp_path, line + end, *flags, name=name)
    blank = 1 if end == "\n\n" else 0
    texts = ["a", ""] if name == "in.txt" and blank else ["a"]
    assert data.texts() == texts
    assert data.manifest["read"]["train"]["lines"] == 1 + blank


def test_a_bare_line_without_its_end_is_a_row(tmp_path: Path) -> None:
    """Case 015: in the reader of data sets."""
    path = tmp_path / "bare.jsonl"
    path.write_bytes(b'{"label": 1, "wordids": [2, 5, 3]}')
    store = open_store(path)
    assert (len(store), store.read([0])[0].token_ids) == (1, [2, 5, 3])
    store.close()


def test_parts_are_joined_in_the_order_of_the_input(tmp_path: Path) -> None:
    """Case 016: 23 rows, the first ones slow, up to 12 workers, a row a chunk."""
    content = "".join(f"{i} {'标题 ' * (20000 if i < 2 else 1)}\t{i}\n" for i in range(23))
    seen = []
    for workers in (1, 2, 7, 12):
        flags = [*LABELLED, "--workers", str(workers), "--chunk_bytes", "1", "--max_len", "8"]
        data = encode(tmp_path, content, *flags, out=f"data{workers}", processes=True)
        seen.append(data.files)
    assert data.labels() == [str(i) for i in range(23)]
    assert all(files == seen[0] for files in seen)


# --------------------------------------------------------------------------------------------- 021 to 023: sizes, paths


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 4095, 9001, 30001, 30002, 10**6])
def test_no_border_cuts_a_record(tmp_path: Path, chunk_bytes: int) -> None:
    """Case 021: lines of 1, 1, 10,000, 1 and 1 characters, borders within and on their ends."""
    content = "a\nb\n" + "标" * 10000 + "\nc\nd\n"
    data = encode(tmp_path, content, "--text", "0", "--chunk_bytes", str(chunk_bytes), "--max_len", "9", name="in.txt")
    assert data.texts() == ["a", "b", "标 标 标 标 标 标 标", "c", "d"]


def test_any_number_of_workers_keeps_every_row(tmp_path: Path) -> None:
    """Case 021: 1 and 8 workers, some chunks without a row of their own."""
    content = "1\n2\n" + "标" * 3000 + "\n3\n4\n"
    for workers in (1, 8):
        flags = ["--text", "0", "--workers", str(workers), "--chunk_bytes", "700", "--max_len", "4"]
        data = encode(tmp_path, content, *flags, name="in.txt", processes=True)
        assert data.texts() == ["1", "2", "标 标", "3", "4"]


@pytest.mark.parametrize("name", ["in.tsv", "in.csv", "in.jsonl", "in.txt"])
def test_very_long_fields(tmp_path: Path, name: str) -> None:
    """Case 022: 200,000 and a million characters."""
    texts = ["a", "标题" * 100_000, "x" * 1_000_000, "b " * 100_000]
    line = {"in.tsv": "{}\t1", "in.csv": '"{}",1', "in.jsonl": '{{"0": "{}", "1": "1"}}', "in.txt": "{}"}[name]
    flags = ["--text", "0"] if name == "in.txt" else LABELLED
    content = "".join(line.format(text) + "\n" for text in texts)
    data = encode(tmp_path, content, *flags, "--max_len", "5", name=name)
    assert data.texts() == ["a", "标 题 标", "[UNK]", "b b b"]


def test_paths_with_blanks_quotes_and_dashes(tmp_path: Path) -> None:
    """Case 023: nothing of a name is executed or taken for a flag."""
    folder = tmp_path / "a b"
    folder.mkdir()
    source = folder / "it's $(touch hit) `touch hit`; touch hit.tsv"
    source.write_text("a\t1\n", encoding="utf-8")
    (folder / "-in.tsv").write_text("b\t1\n", encoding="utf-8")
    vocab = write_vocab(tmp_path).rename(folder / 'vo"cab & x.txt')
    flags = ["--vocab", vocab.name, *LABELLED, "--workers", "1"]
    done = run(folder, *flags, "--out", folder / "-out.data", source.name, "--", "-in.tsv")
    assert done.returncode == 0, done.stderr
    assert DataSet(folder / "-out.data").texts() == ["a", "b"]
    done = run(folder, source.name, *flags, "--out=-other")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["-in.tsv", "-other", "-out.data", source.name, vocab.name]
    )


# ----------------------------------------------------------------------------------- 025 to 029: texts, split, cleaning

NOTHING = ["", "   ", "\u200b", "\x00", "\u3000", "\ufffd", "\ufeff\u2060"]


@pytest.mark.parametrize("clean", ["none", "standard"])
def test_texts_of_nothing_are_rows(tmp_path: Path, clean: str) -> None:
    """Case 025: [CLS] [SEP], and in pairs [CLS] [SEP] [SEP]."""
    content = "".join(f"{text}\t{text}\t1\n" for text in NOTHING) + "a\t\t1\n\tb\t0\n"
    flags = ["--clean", clean]
    data = encode(tmp_path, content, "--text", "0", "--label", "2", *flags)
    cls, sep, a, b = (TOKENS.index(token) for token in ("[CLS]", "[SEP]", "a", "b"))
    assert [row["wordids"] for row in data.rows()] == [[cls, sep]] * len(NOTHING) + [[cls, a, sep], [cls, sep]]
    data = encode(tmp_path, content, "--text", "0", "--text_b", "1", "--label", "2", *flags)
    rows = [(row["wordids"], row["segmentids"]) for row in data.rows()]
    assert rows[: len(NOTHING)] == [([cls, sep, sep], [0, 0, 1])] * len(NOTHING)
    assert rows[len(NOTHING) :] == [([cls, a, sep, sep], [0, 0, 0, 1]), ([cls, sep, b, sep], [0, 0, 1, 1])]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize(
    "sizes", [{"a": 9, "b": 1}, {"a": 4, "b": 3, "c": 3}, {"a": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 40, "b": 2}]
)
def test_rare_classes_stay_in_train(tmp_path: Path, fraction: float, sizes: dict[str, int]) -> None:
    """Case 026: no row is lost or on both sides, and every class can be learned."""
    content = "".join(f"{label} {i}\t{label}\n" for label, size in sizes.items() for i in range(size))
    data = encode(tmp_path, content, *LABELLED, "--val_fraction", str(fraction), "--keep", "0")
    val = data.rows("val") if "val" in data.manifest["parts"] else []
    rows = [row["keep"]["0"] for row in data.rows() + val]
    assert sorted(rows) == sorted(line.split("\t")[0] for line in content.splitlines())
    assert set(data.labels()) == set(sizes)
    total, room = sum(sizes.values()), sum(size - 1 for size in sizes.values())
    assert len(val) == min(round(total * fraction), room)


def test_the_result_depends_on_nothing_but_inputs_and_settings(tmp_path: Path) -> None:
    """Case 027: workers, and the seed of Python's hashes."""
    write_vocab(tmp_path)
    names = "positive negative neutral mixed other".split()
    rows = [f"row {i % 70} {CHINESE[i % 20]}\t{names[i % 5]}\n" for i in range(100)]
    (tmp_path / "in.tsv").write_text("".join(rows) + "bad\n" * 3, encoding="utf-8")
    words = ["in.tsv", *flags_of(tmp_path), *LABELLED, "--val_fraction", "0.1", "--seed", "7", "--chunk_bytes", "200"]
    seen = []
    for workers, hash_seed in ((1, "0"), (3, "1"), (8, "2")):
        done = run(tmp_path, *words, "--workers", workers, "--out", f"data{workers}", PYTHONHASHSEED=hash_seed)
        assert done.returncode == 0, done.stderr
        seen.append(DataSet(tmp_path / f"data{workers}").files)
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["labels.txt"].decode().split() == sorted(names)


@pytest.mark.parametrize("clean", ["none", "spaces", "control", "standard"])
@pytest.mark.parametrize("gap", ["\t", "\n", "\r", "\r\n", "\u3000", "\xa0", " \t\n "])
def test_blanks_of_every_kind_part_words(tmp_path: Path, clean: str, gap: str) -> None:
    """Case 029: `foo<TAB>bar` is two words, whatever is cleaned."""
    text = gap.join(["foo", "bar", "baz", "qux"])
    content = orjson.dumps({"t": text, "l": "1"})
    data = encode(tmp_path, content, "--text", "t", "--clean", clean, name="in.jsonl")
    assert data.texts() == ["foo bar baz qux"]


def test_separators_that_are_no_blanks_for_the_tokenizer_stay_as_google_has_them(tmp_path: Path) -> None:
    """Case 029: the rule `spaces` makes blanks of what Google's tokenizer removes or keeps."""
    content = orjson.dumps({"t": "foo\x0bbar\x1fbaz\u2028qux"})
    data = encode(tmp_path, content, "--text", "t", "--clean", "spaces", name="in.jsonl")
    assert data.texts() == ["foo bar baz qux"]


def test_main_takes_lists_of_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing command or input is the user's error."""
    assert main([]) == 2
    assert main(["decode"]) == 2
    assert "A command is one of" in error_line(capsys.readouterr().err)
    assert main(["encode", str(tmp_path / "none.tsv"), *flags_of(tmp_path), "--text", "0"]) == 2
    assert "none.tsv" in error_line(capsys.readouterr().err)
