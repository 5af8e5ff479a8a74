"""`preprocess encode`: raw files in, a data-set folder out, every row accounted for."""

import csv
import gzip
import hashlib
import io
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pyarrow
import pytest
from encode_runs import TOKENS, DataSet, encode, error_line, flags_of, write_vocab

from preprocess.__main__ import main
from tfbert.data.index import read_index
from tfbert.data.manifest import Manifest
from tfbert.data.store import open_store

ROWS = [("abc", "1"), ("标题 de", "0"), ("f, g", "1"), ('h"i', "2")]
CLS, SEP = TOKENS.index("[CLS]"), TOKENS.index("[SEP]")


def tsv(rows: list[tuple[str, ...]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in rows).encode()


def csv_of(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def jsonl(rows: list[tuple[str, ...]]) -> bytes:
    return b"".join(orjson.dumps({"0": text, "1": label}) + b"\n" for text, label in rows)


def zst(data: bytes, folder: Path) -> bytes:
    with pyarrow.CompressedOutputStream(str(folder / "z"), "zstd") as file:
        file.write(data)
    return (folder / "z").read_bytes()


# ------------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("make, suffix", [(tsv, ".tsv"), (csv_of, ".csv"), (jsonl, ".jsonl"), (jsonl, ".json")])
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_every_format_gives_the_same_rows(tmp_path: Path, make, suffix: str, packed: str) -> None:
    content = make(ROWS)
    content = {"": content, ".gz": gzip.compress(content), ".zst": zst(content, tmp_path)}[packed]
    data = encode(tmp_path, content, "--text", "0", "--label", "1", name=f"in{suffix}{packed}")
    assert data.texts() == ["abc", "标 题 de", "f , g", 'h " i']
    assert data.labels() == ["1", "0", "1", "2"]
    assert data.rows()[0] == {"label": 1, "wordids": [CLS, *(TOKENS.index(t) for t in ("a", "##b", "##c")), SEP]}


def test_plain_text_is_a_row_a_line(tmp_path: Path) -> None:
    data = encode(tmp_path, "a, b\n\n标题\n", "--text", "text", name="in.txt")
    assert data.texts() == ["a , b", "", "标 题"]
    assert all("label" not in row for row in data.rows())
    assert data.manifest["task"] is None
    assert not (data.folder / "labels.txt").exists()


def test_other_names_are_read_by_their_first_line(tmp_path: Path) -> None:
    assert encode(tmp_path, "a\tb\n", "--text", "1", name="in.txt").texts() == ["b"]
    assert encode(tmp_path, "a b\n", "--text", "0", name="noname").texts() == ["a b"]


def test_format_wins_over_the_name(tmp_path: Path) -> None:
    assert encode(tmp_path, '"a,b",c\n', "--text", "0", "--format", "csv", name="in.tsv").texts() == ["a , b"]
    packed = gzip.compress(b"a\tb\n")
    assert encode(tmp_path, packed, "--text", "1", "--format", "tsv", name="in.log.gz").texts() == ["b"]


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(b"a\tb\n" * 2000, mtime=0)[:-9], b"not compressed"],
    ids=["cut", "not compressed"],
)
def test_damaged_gzip_is_an_error_with_the_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], packed: bytes
) -> None:
    data = encode(tmp_path, packed, "--text", "0", name="in.tsv.gz", code=2)
    assert "in.tsv.gz" in error_line(capsys.readouterr().err)
    assert not data.folder.exists()


def test_damaged_zstd_is_an_error_with_the_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = zst(b"a\tb\n" * 2000, tmp_path)[:-5]
    encode(tmp_path, packed, "--text", "0", name="in.tsv.zst", code=2)
    assert "in.tsv.zst" in error_line(capsys.readouterr().err)


def test_csv_fields_may_hold_line_ends(tmp_path: Path) -> None:
    content = csv_of([("a\nb", "1"), ("c\r\nd", "0"), ("e", "1")])
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--chunk_bytes", "1", name="in.csv")
    assert data.texts() == ["a b", "c d", "e"]
    assert data.manifest["read"]["train"]["lines"] == 3


def test_an_unclosed_csv_quote_is_an_error_where_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encode(tmp_path, 'a,1\n"b\nc",0\n"d,1\ne,0\n', "--text", "0", name="in.csv", code=2)
    line = error_line(capsys.readouterr().err)
    assert "in.csv:4:" in line
    assert "--format tsv" in line


def test_json_values_are_taken_as_they_are_spelled(tmp_path: Path) -> None:
    lines = ['{"t": 1.0, "l": 100}', '{"t": true, "l": "100"}', '{"t": "x", "l": 100, "more": [1]}']
    data = encode(tmp_path, "\n".join(lines), "--text", "t", "--label", "l", name="in.jsonl")
    assert data.texts() == ["1 . 0", "true", "x"]
    assert data.manifest["label_names"] == ["100"]


def test_bad_json_rows_are_rejected_with_their_reason(tmp_path: Path) -> None:
    lines = ['{"t": "a"}', '{"t": "b"', "[1]", "", '{"u": "c"}', '{"t": null}', '{"t": "\\ud800"}', '{"t": "d"}']
    data = encode(tmp_path, "\n".join(lines), "--text", "t", name="in.jsonl")
    assert data.texts() == ["a", "d"]
    assert data.reasons == [(2, "json"), (3, "json"), (4, "blank"), (5, "columns"), (6, "columns"), (7, "json")]


# ------------------------------------------------------------------------------------------------------ columns


def test_a_named_column_needs_the_header(tmp_path: Path) -> None:
    data = encode(tmp_path, "y\ttext\n1\ta\n0\tb\n", "--text", "text", "--label", "y")
    assert data.texts() == ["a", "b"]
    assert data.labels() == ["1", "0"]
    assert data.manifest["read"]["train"]["lines"] == 2


def test_numbers_expect_no_header(tmp_path: Path) -> None:
    assert encode(tmp_path, "y\ttext\n1\ta\n", "--text", "1").texts() == ["text", "a"]


def test_header_and_no_header_decide_otherwise(tmp_path: Path) -> None:
    assert encode(tmp_path, "y\ttext\n1\ta\n", "--text", "-1", "--header").texts() == ["a"]
    data = encode(tmp_path, "y\ttext\n1\ta\n", "--text", "t", "--columns", "l,t", "--header")
    assert data.texts() == ["a"]
    assert encode(tmp_path, "y\ttext\n1\ta\n", "--text", "t", "--columns", "l,t").texts() == ["text", "a"]
    assert encode(tmp_path, "y\ttext\n1\ta\n", "--text", "1", "--no_header").texts() == ["text", "a"]


def test_negative_columns_count_from_the_end(tmp_path: Path) -> None:
    data = encode(tmp_path, "x\ta\t1\nx\tx\tb\t0\n", "--text", "-2", "--label", "-1")
    assert data.texts() == ["a", "b"]


def test_names_and_numbers_may_be_mixed(tmp_path: Path) -> None:
    data = encode(tmp_path, "id\ttext\ty\n7\ta\t1\n", "--text", "text", "--label", "-1", "--keep", "0,y")
    assert data.rows()[0]["keep"] == {"0": "7", "y": "1"}


def test_a_header_with_line_ends_in_a_csv_name(tmp_path: Path) -> None:
    data = encode(tmp_path, '"the\ntext",y\na,1\nb\n', "--text", "the\ntext", "--label", "y", name="in.csv")
    assert data.texts() == ["a"]
    assert data.reasons == [(4, "columns")]


def test_a_single_field_is_never_text_and_label_at_once(tmp_path: Path) -> None:
    data = encode(tmp_path, "a\t1\nno label here\nb\t0\n", "--text", "0", "--label", "-1")
    assert data.manifest["label_names"] == ["0", "1"]
    assert data.reasons == [(2, "columns")]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--text", "body"], "there is no column 'body'. The columns are: 'text', 'y', 'y'."),
        (["--text", "text", "--label", "y"], "the column 'y' occurs 2 times"),
        (["--text", "text", "--no_header"], "a column can be named only where a header or --columns names it"),
        (["--text", "b", "--columns", "a,,b"], "may not be empty"),
        (["--text", "0", "--keep", "1,,2"], "may not be empty"),
        (["--text", "0", "--filter", "1=2"], "COLUMN!=VALUE"),
        (["--text", "0", "--format", "parquet"], "A format is one of"),
        (["--text", "0", "--format", "jsonl", "--header"], "--header"),
        (["--text", "1", "--format", "text"], "one column"),
    ],
)
def test_wrong_columns_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    data = encode(tmp_path, "text\ty\ty\na\t1\t2\n", *flags, code=2)
    assert message in error_line(capsys.readouterr().err)
    assert not data.folder.exists()


def test_each_file_has_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\ty\na\t1\n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text("y\ttext\n0\tb\n", encoding="utf-8")
    data = encode(tmp_path, [tmp_path / "a.tsv", tmp_path / "b.tsv"], "--text", "text", "--label", "y")
    assert list(zip(data.texts(), data.labels(), strict=True)) == [("a", "1"), ("b", "0")]


# -------------------------------------------------------------------------------------------------- rows and pairs


def test_pairs_have_segment_ids(tmp_path: Path) -> None:
    data = encode(tmp_path, "ab\tc\t1\nd\t\t0\n", "--text", "0", "--text_b", "1", "--label", "2")
    assert data.texts() == ["ab [SEP] c", "d [SEP]"]
    assert [row["segmentids"] for row in data.rows()] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1]]
    assert data.manifest["encoding"]["pair"] is True


def test_max_len_counts_the_special_tokens(tmp_path: Path) -> None:
    data = encode(tmp_path, "a b c d\nx\n", "--text", "0", "--max_len", "4", "--format", "text")
    assert data.texts() == ["a b", "x"]
    part = data.manifest["parts"]["train"]
    assert (part["truncated"], part["length_histogram"]) == (1, {"3": 1, "6": 1})
    pair = encode(tmp_path, "a b c d\tx y\n", "--text", "0", "--text_b", "1", "--max_len", "6")
    assert pair.texts() == ["a b [SEP] x"]


@pytest.mark.parametrize("flags, least", [([], 3), (["--text_b", "1"], 4)])
def test_max_len_without_room_for_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], least: int
) -> None:
    encode(tmp_path, "a\tb\n", "--text", "0", *flags, "--max_len", str(least - 1), code=2)
    assert f"at least {least}" in error_line(capsys.readouterr().err)
    encode(tmp_path, "a\tb\n", "--text", "0", *flags, "--max_len", str(least))


def test_type_keep_and_weight_are_copied(tmp_path: Path) -> None:
    content = "a\thuman\t0.5\tid 1\t\nb\tmodel\t1\t\tx\n"
    data = encode(tmp_path, content, "--text", "0", "--type", "1", "--weight", "2", "--keep", "3,-1")
    first, second = data.rows()
    assert list(first) == ["type", "weight", "wordids", "keep"]
    assert (first["type"], first["weight"], first["keep"]) == ("human", 0.5, {"3": "id 1", "-1": ""})
    assert "weight" not in second  # 1 is what its absence means


def test_bad_weights_are_rejected(tmp_path: Path) -> None:
    data = encode(tmp_path, "a\t1\nb\t-1\nc\tx\nd\tnan\ne\tinf\nf\t0\ng\t\n", "--text", "0", "--weight", "1")
    assert data.texts() == ["a", "f"]
    assert data.reasons == [(2, "weight"), (3, "weight"), (4, "weight"), (5, "weight"), (7, "weight")]


def test_filters_leave_rows_out_that_equal_the_value(tmp_path: Path) -> None:
    content = "a\t0\tx\nb\t1\tx\nc\t2\ty\nd\t00\tx\n"
    data = encode(
        tmp_path, content, "--text", "0", "--filter", "1!=0", "--filter", "2!=y", "--max_bad_rows", "0", "--strict"
    )
    assert data.texts() == ["b", "d"]
    assert data.manifest["read"]["train"]["rejected"] == {"filtered": 2}
    assert data.reasons == [(1, "filtered"), (3, "filtered")]


def test_cased_keeps_case(tmp_path: Path) -> None:
    content = "Ab\n"
    assert encode(tmp_path, content, "--text", "0", name="a.txt").texts() == ["ab"]
    assert encode(tmp_path, content, "--text", "0", "--cased", name="a.txt").texts() == ["[UNK]"]


def test_cleaning_rules_are_applied_and_recorded(tmp_path: Path) -> None:
    content = "<b>a</b> b&amp;c\n"
    assert encode(tmp_path, content, "--text", "0", "--clean", "html", name="a.txt").texts() == ["a b & c"]
    data = encode(tmp_path, content, "--text", "0", "--clean", "spaces,html", name="a.txt")
    assert data.manifest["encoding"]["clean"] == ["html", "spaces"]


def test_a_rule_whose_package_is_missing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    encode(tmp_path, "a\n", "--text", "0", "--clean", "simplified", code=2)
    assert "opencc" in error_line(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------------------- labels


def test_labels_are_those_met_sorted_as_numbers_where_all_are(tmp_path: Path) -> None:
    data = encode(tmp_path, "a\t10\nb\t9\nc\t-1\nd\t10\n", "--text", "0", "--label", "1")
    assert data.manifest["label_names"] == ["-1", "9", "10"]
    assert (data.folder / "labels.txt").read_bytes() == b"-1\n9\n10\n"
    assert [row["label"] for row in data.rows()] == [2, 1, 0, 2]
    data = encode(tmp_path, "a\t10\nb\t9\nc\tx\nd\t新\n", "--text", "0", "--label", "1")
    assert data.manifest["label_names"] == ["10", "9", "x", "新"]


def test_labels_are_trimmed_and_case_matters(tmp_path: Path) -> None:
    data = encode(tmp_path, "a\t pos \nb\tpos\nc\tPos\nd\t \ne\tpos\u3000\n", "--text", "0", "--label", "1")
    assert data.manifest["label_names"] == ["Pos", "pos"]
    assert data.labels() == ["pos", "pos", "Pos", "pos"]
    assert data.reasons == [(4, "empty label")]


@pytest.mark.parametrize(
    "name, content, names, ids",
    [
        ("l.txt", "neg\npos\n", ["neg", "pos"], [1, 0, 1]),
        ("l.txt", "pos\r\nneg", ["pos", "neg"], [0, 1, 0]),
        ("l.txt", "pos\tgood\nneg\tbad\nmeh\tbad\n", ["good", "bad"], [0, 1, 0]),
        ("l.json", '["neg", "pos"]', ["neg", "pos"], [1, 0, 1]),
        ("l.json", '{"pos": "good", "neg": "bad"}', ["good", "bad"], [0, 1, 0]),
        ("l.json", '{"pos": 1, "neg": 0, "meh": 0}', ["neg", "pos"], [1, 0, 1]),
        ("l.json", '{"label": "neg", "label_desc": "b"}\n{"label": "pos", "label_desc": "a"}', ["b", "a"], [1, 0, 1]),
        ("l.jsonl", '\n{"label": "neg"}\n{"label": "pos"}\n', ["neg", "pos"], [1, 0, 1]),
    ],
)  # fmt: skip
def test_label_files(tmp_path: Path, name: str, content: str, names: list[str], ids: list[int]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    data = encode(
        tmp_path, "a\tpos\nb\tneg\nc\tpos\nd\tunk\n", "--text", "0", "--label", "1", "--labels", str(tmp_path / name)
    )
    assert data.manifest["label_names"] == names
    assert [row["label"] for row in data.rows()] == ids
    assert data.reasons == [(4, "unknown label")]


def test_several_labels_a_row(tmp_path: Path) -> None:
    content = "a\tx, y\nb\t\nc\ty,y,\nd\tz,x\n"
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--task", "multilabel")
    assert [row["label"] for row in data.rows()] == [[0, 1], [], [1], [0, 2]]
    assert data.manifest["parts"]["train"]["labels"] == {"x": 2, "y": 2, "z": 1}
    data = encode(
        tmp_path, "a\tx|y\nb\ty\n", "--text", "0", "--label", "1", "--task", "multilabel", "--label_separator", "|"
    )
    assert [row["label"] for row in data.rows()] == [[0, 1], [1]]


def test_several_labels_as_a_json_list(tmp_path: Path) -> None:
    content = '{"t": "a", "l": ["x", "y, z"]}\n{"t": "b", "l": []}\n{"t": "c", "l": "x"}\n{"t": "d", "l": [3]}\n'
    data = encode(tmp_path, content, "--text", "t", "--label", "l", "--task", "multilabel", name="in.jsonl")
    assert data.manifest["label_names"] == ["3", "x", "y, z"]
    assert [row["label"] for row in data.rows()] == [[1, 2], [], [1], [0]]


def test_an_unknown_one_of_several_labels_rejects_the_row(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("x\ny\n", encoding="utf-8")
    flags = ["--text", "0", "--label", "1", "--task", "multilabel", "--labels", str(tmp_path / "l.txt")]
    data = encode(tmp_path, "a\tx,q\nb\ty\n", *flags)
    assert data.reasons == [(1, "unknown label")]
    assert data.texts() == ["b"]


def test_numbers_to_predict(tmp_path: Path) -> None:
    content = "a\t2.5\nb\t-1\nc\tx\nd\tnan\ne\t\nf\t 3 \n"
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--task", "regression")
    assert [row["label"] for row in data.rows()] == [2.5, -1.0, 3.0]
    assert data.reasons == [(3, "label"), (4, "label"), (5, "empty label")]
    assert data.manifest["label_names"] == []


def test_a_label_column_of_texts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preprocess.encode.MAX_LABELS", 5)
    encode(tmp_path, "".join(f"a\ttext {i}\n" for i in range(6)), "--text", "0", "--label", "1", code=2)
    assert "Is '1' the label column?" in error_line(capsys.readouterr().err)


# -------------------------------------------------------------------------------------------- validation and test


def test_validation_and_test_files(tmp_path: Path) -> None:
    (tmp_path / "v.tsv").write_text("c\t2\n", encoding="utf-8")
    (tmp_path / "t.tsv").write_text("d\t0\nx\n", encoding="utf-8")
    flags = ["--val", str(tmp_path / "v.tsv"), "--test", str(tmp_path / "t.tsv"), "--val_fraction", "0.5"]
    data = encode(tmp_path, "a\t0\nb\t1\n", "--text", "0", "--label", "1", *flags)
    assert [data.texts(part) for part in ("train", "val", "test")] == [["a", "b"], ["c"], ["d"]]
    assert data.manifest["label_names"] == ["0", "1", "2"]
    assert data.manifest["split"] is None
    assert {group: read["lines"] for group, read in data.manifest["read"].items()} == {"train": 2, "val": 1, "test": 2}
    assert [Path(row["file"]).name for row in data.rejects] == ["t.tsv"]


def labelled(sizes: dict[str, int]) -> str:
    return "".join(f"{label} {i}\t{label}\n" for label, size in sizes.items() for i in range(size))


def split(folder: Path, content: str, fraction: float, *flags: str, out: str = "data") -> DataSet:
    return encode(
        folder, content, "--text", "0", "--label", "1", "--val_fraction", str(fraction), "--keep", "0", *flags, out=out
    )


def kept(data: DataSet, part: str) -> list[str]:
    return [row["keep"]["0"] for row in data.rows(part)]


def test_the_split_is_stratified_to_the_row(tmp_path: Path) -> None:
    data = split(tmp_path, labelled({"a": 600, "b": 300, "c": 99, "d": 1}), 0.1)
    assert Counter(data.labels("val")) == {"a": 60, "b": 30, "c": 10}  # 99.9 + 0.1 rows: the largest remainder is c's
    assert sorted(kept(data, "train") + kept(data, "val")) == sorted(
        line.split("\t")[0] for line in labelled({"a": 600, "b": 300, "c": 99, "d": 1}).splitlines()
    )


def test_the_split_keeps_the_order_of_the_input(tmp_path: Path) -> None:
    content = labelled({"a": 50, "b": 50})
    data = split(tmp_path, content, 0.3)
    order = {line.split("\t")[0]: i for i, line in enumerate(content.splitlines())}
    for part in ("train", "val"):
        positions = [order[text] for text in kept(data, part)]
        assert positions == sorted(positions)


def test_the_split_is_of_the_text_and_the_seed_alone(tmp_path: Path) -> None:
    content = labelled({"a": 60, "b": 40})
    first = split(tmp_path, content, 0.2)
    backwards = "".join(reversed(content.splitlines(keepends=True)))
    again = split(tmp_path, backwards, 0.2, out="again")
    assert sorted(kept(first, "val")) == sorted(kept(again, "val"))
    other = split(tmp_path, content, 0.2, "--seed", "1", out="other")
    assert sorted(kept(first, "val")) != sorted(kept(other, "val"))
    assert len(kept(first, "val")) == len(kept(other, "val")) == 20


def test_equal_texts_stay_on_one_side(tmp_path: Path) -> None:
    rows = [(f"t {i}", str(i % 2)) for i in range(60)]
    rows = rows + [(f"t {i}", "1") for i in range(0, 60, 3)] + rows[:20]
    content = tsv(rows).decode()
    data = split(tmp_path, content, 0.3)
    assert not set(kept(data, "train")) & set(kept(data, "val"))
    assert len(kept(data, "train")) + len(kept(data, "val")) == len(rows)
    assert kept(data, "val")
    assert data.manifest["conflicts"] == 10


@pytest.mark.parametrize("dedup", [False, True])
def test_groups_stay_on_one_side(tmp_path: Path, dedup: bool) -> None:
    """Case 138: the variants of a row, which are different texts and may even have other labels."""
    rows = [(f"t {i}", str(i // 4 % 2), f"id {i // 4}") for i in range(200)]
    rows += [("t 0", "0", "id 0"), ("alone", "1", ""), ("alone", "1", ""), ("other", "0", "id 3")]
    content = "".join("\t".join(row) + "\n" for row in rows)
    flags = ["--text", "0", "--label", "1", "--group", "2", "--keep", "0,2", "--val_fraction", "0.2"]
    data = encode(tmp_path, content, *flags, *(["--dedup"] if dedup else []))
    found = {part: [(row["keep"]["0"], row["keep"]["2"]) for row in data.rows(part)] for part in ("train", "val")}
    assert len(found["train"]) + len(found["val"]) == len(rows) - 2 * dedup
    assert not {group for _, group in found["train"] if group} & {group for _, group in found["val"]}
    assert not {text for text, _ in found["train"]} & {text for text, _ in found["val"]}
    assert 36 <= len(found["val"]) <= 44
    assert data.manifest["split"]["rule"] == "hash of the group, stratified by label"
    without = encode(tmp_path, content, *flags[:4], *flags[6:], out="without")
    groups = [{row["keep"]["2"] for row in without.rows(part)} for part in ("train", "val")]
    assert groups[0] & groups[1]


def test_groups_do_not_depend_on_workers_and_chunks(tmp_path: Path) -> None:
    content = "".join(f"t {i}\t{i % 3}\tid {i % 37}\n" for i in range(300))
    flags = ["--text", "0", "--label", "1", "--group", "2", "--keep", "2", "--val_fraction", "0.3"]
    one = encode(tmp_path, content, *flags)
    two = encode(tmp_path, content, *flags, "--chunk_bytes", "100", out="two")
    assert {k: v for k, v in one.files.items() if k != "manifest.json"} == {
        k: v for k, v in two.files.items() if k != "manifest.json"
    }


def test_a_label_never_goes_to_validation_whole(tmp_path: Path) -> None:
    content = labelled({"a": 20}) + "same\tb\n" * 3 + "x\tc\ny\tc\n"
    data = split(tmp_path, content, 0.9)
    assert set(data.labels("train")) == {"a", "b", "c"}
    assert len(data.rows("val")) >= 18


def test_without_a_fraction_there_is_no_validation_part(tmp_path: Path) -> None:
    data = split(tmp_path, labelled({"a": 9}), 0)
    assert set(data.manifest["parts"]) == {"train"}
    assert not (data.folder / "val.jsonl").exists()


def test_a_fraction_too_small_for_a_row_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = split(tmp_path, labelled({"a": 9}), 0.01)
    assert set(data.manifest["parts"]) == {"train"}
    assert "no row was set apart for validation" in capsys.readouterr().err


def test_splits_without_labels_and_of_pairs(tmp_path: Path) -> None:
    content = "".join(f"a {i}\tb {i // 2}\n" for i in range(40))
    data = encode(tmp_path, content, "--text", "0", "--text_b", "1", "--val_fraction", "0.25")
    assert (len(data.rows("train")), len(data.rows("val"))) == (30, 10)
    data = encode(tmp_path, content, "--text", "0", "--val_fraction", "0.25", out="single")
    assert (len(data.rows("train")), len(data.rows("val"))) == (30, 10)


# ------------------------------------------------------------------------------------------------------- dedup


def test_dedup_keeps_the_first_and_reports_conflicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "a\t0\nb\t1\na\t0\na\t1\nb\t1\nA\t0\nb\t0\nb\t2\n"
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--dedup", "--max_bad_rows", "0", "--strict")
    assert data.texts() == ["a", "b", "a"]
    assert data.labels() == ["0", "1", "0"]
    assert data.reasons == [(3, "duplicate"), (4, "conflict"), (5, "duplicate"), (7, "conflict"), (8, "conflict")]
    assert data.rejects[1]["text"] == "a\t1"
    assert data.manifest["conflicts"] == 2
    out = capsys.readouterr().out
    assert "8 rows read = 3 kept + 5 rejected" in out
    assert "texts with several labels: 2" in out


@pytest.mark.parametrize("task, same, other", [("regression", "1.50", "2"), ("multilabel", "y,x", "x")])
def test_conflicts_are_found_in_every_task(tmp_path: Path, task: str, same: str, other: str) -> None:
    label = {"regression": "1.5", "multilabel": "x,y"}[task]
    data = encode(
        tmp_path, f"a\t{label}\na\t{same}\na\t{other}\n", "--text", "0", "--label", "1", "--task", task, "--dedup"
    )
    assert data.reasons == [(2, "duplicate"), (3, "conflict")]


def test_dedup_compares_both_texts_of_a_pair(tmp_path: Path) -> None:
    rows = b"a\tb\na\tc\na\tb\na\0\tb\na\t\0b\n"
    data = encode(tmp_path, rows, "--text", "0", "--text_b", "1", "--dedup")
    assert data.reasons == [(3, "duplicate")]


def test_dedup_counts_rows_of_other_parts_that_are_in_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.tsv").write_text("a\t0\nx\t0\nx\t0\n", encoding="utf-8")
    (tmp_path / "t.tsv").write_text("b\t0\na\t0\na\t0\nc\t1\n", encoding="utf-8")
    data = encode(
        tmp_path, "a\t0\nb\t1\na\t0\n", "--text", "0", "--label", "1", "--dedup",
        "--val", str(tmp_path / "v.tsv"), "--test", str(tmp_path / "t.tsv"),
    )  # fmt: skip
    assert data.manifest["leaked"] == {"val": 1, "test": 2}
    assert [len(data.rows(part)) for part in ("train", "val", "test")] == [2, 2, 3]
    assert "rows of test whose text is in train: 2" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------- rejects, limits, summary


@pytest.mark.parametrize("chunk_bytes", ["1", "20", "1000000"])
def test_rejects_name_file_and_line(tmp_path: Path, chunk_bytes: str) -> None:
    first, second, third = tmp_path / "a.tsv", tmp_path / "b.csv", tmp_path / "c.jsonl"
    first.write_bytes(b"text\ty\na\t1\nbad\n\xff\t1\nb\t\n\nc\t1\n")
    second.write_bytes(b'text,y\n"a\n\nb",1\nbad\n"c\nd","1\n"\n\n')
    third.write_bytes(b'\xef\xbb\xbf{"text": "a", "y": "1"}\r\nbad\r\n\r\n{"text": 1}')
    flags = ["--text", "text", "--label", "y", "--chunk_bytes", chunk_bytes]
    data = encode(tmp_path, [first, second, third, first], *flags)
    assert [(Path(row["file"]).name, row["line"], row["reason"]) for row in data.rejects] == [
        ("a.tsv", 3, "columns"), ("a.tsv", 4, "encoding"), ("a.tsv", 5, "empty label"), ("a.tsv", 6, "blank"),
        ("b.csv", 5, "columns"), ("b.csv", 9, "blank"),
        ("c.jsonl", 2, "json"), ("c.jsonl", 3, "blank"), ("c.jsonl", 4, "columns"),
        ("a.tsv", 3, "columns"), ("a.tsv", 4, "encoding"), ("a.tsv", 5, "empty label"), ("a.tsv", 6, "blank"),
    ]  # fmt: skip
    assert [entry["lines"] for entry in data.manifest["inputs"]["train"]] == [6, 4, 4, 6]
    assert data.rejects[0]["text"] == "bad"


def test_the_text_of_a_reject_is_cut(tmp_path: Path) -> None:
    data = encode(tmp_path, "x" * 500 + "\na\t1\n", "--text", "0", "--label", "1")
    assert 10 < len(data.rejects[0]["text"]) < 200


def test_strict_stops_at_the_first_bad_row_in_file_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "\nskip\t0\na\t1\nb\nc\t\n" + "d\t1\n" * 50
    data = encode(
        tmp_path, content, "--text", "0", "--label", "1", "--filter", "0!=skip", "--strict",
        "--chunk_bytes", "1", "--workers", "2", code=2, processes=True,
    )  # fmt: skip
    line = error_line(capsys.readouterr().err)
    assert "in.tsv:4: columns" in line
    assert not data.folder.exists()


@pytest.mark.parametrize("bad, code", [(1, 0), (2, 2)])
def test_more_bad_rows_than_allowed_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: int, code: int
) -> None:
    content = "a\t1\n" * (100 - bad) + "bad\n" * bad
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--max_bad_rows", "0.01", code=code)
    assert data.folder.exists() == (code == 0)
    if code:
        line = error_line(capsys.readouterr().err)
        assert "2 of 100 train rows (columns: 2)" in line
        assert "in.tsv:99: columns" in line


def test_blank_filtered_and_duplicate_rows_are_nobody_s_fault(tmp_path: Path) -> None:
    content = "a\t1\n\n\na\t1\nb\t1\nskip\t1\n"
    flags = ["--text", "0", "--label", "1", "--filter", "0!=skip", "--dedup", "--max_bad_rows", "0"]
    data = encode(tmp_path, content, *flags)
    assert data.manifest["read"]["train"] == {
        "lines": 6, "kept": 2, "rejected": {"blank": 2, "duplicate": 1, "filtered": 1}
    }  # fmt: skip


def test_the_limit_holds_for_every_part(tmp_path: Path) -> None:
    (tmp_path / "v.tsv").write_text("a\t1\nbad\n", encoding="utf-8")
    flags = ["--text", "0", "--label", "1", "--val", str(tmp_path / "v.tsv"), "--max_bad_rows", "0.1"]
    encode(tmp_path, "a\t1\n" * 100, *flags, code=2)


def test_the_summary_adds_up_and_names_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encode(tmp_path, "a b\t1\nbad\nc\t1\n\xff\t0\n".encode("latin-1"), "--text", "0", "--label", "1")
    out = capsys.readouterr().out
    assert "train input: 4 rows read = 2 kept + 2 rejected" in out
    assert "rejected, columns: 1" in out
    assert "rejected, encoding: 1" in out
    assert "train: 2 rows" in out
    assert "50 % 3" in out
    assert str(tmp_path / "data" / "rejects.jsonl") in out


def test_bytes_that_are_not_utf8_can_be_replaced(tmp_path: Path) -> None:
    data = encode(tmp_path, b"a\xffb\t1\nc\t1\n", "--text", "0", "--replace_bad_bytes", "--keep", "0")
    assert data.rows()[0]["keep"] == {"0": "a\ufffdb"}
    assert data.rejects == []


# ------------------------------------------------------------------------------------------------ the data set


def blake(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def test_the_manifest_tells_how_the_data_was_made(tmp_path: Path) -> None:
    content = "id\ttext\ty\n1\ta b\tpos\n2\tc\tneg\n3\t\tpos\nbad\n"
    data = encode(
        tmp_path, content, "--text", "text", "--label", "y", "--keep", "id", "--max_len", "8", "--filter", "id!=9"
    )
    manifest = data.manifest
    files = data.files
    assert set(files) == {
        "train.jsonl", "train.idx", "rejects.jsonl", "labels.txt", "vocab.txt", "manifest.json"
    }  # fmt: skip
    assert manifest["inputs"]["train"] == [
        {
            "name": str(tmp_path / "in.tsv"),
            "bytes": len(content),
            "checksum": blake(content.encode()),
            "lines": 4,
        }
    ]
    assert manifest["read"]["train"] == {"lines": 4, "kept": 3, "rejected": {"columns": 1}}
    assert manifest["columns"]["roles"] == {
        "text": "text", "text_b": None, "label": "y", "type": None, "weight": None, "keep": ["id"],
        "filters": [["id", "9"]], "group": None,
    }  # fmt: skip
    assert manifest["encoding"] == {"max_len": 8, "cased": False, "clean": [], "pair": False, "tokenizer": "wordpiece"}
    assert manifest["vocab_checksum"] == blake((tmp_path / "vocab.txt").read_bytes())
    assert (manifest["vocab_size"], manifest["pad_id"]) == (len(TOKENS), 0)
    assert (manifest["task"], manifest["label_names"]) == ("classify", ["neg", "pos"])
    assert manifest["parts"]["train"] == {
        "rows": 3, "labels": {"neg": 1, "pos": 2}, "length_histogram": {"2": 1, "3": 1, "4": 1}, "truncated": 0,
        "checksum": blake(files["train.jsonl"]), "bytes": len(files["train.jsonl"]),
    }  # fmt: skip
    assert files["vocab.txt"] == (tmp_path / "vocab.txt").read_bytes()
    assert files["labels.txt"] == b"neg\npos\n"
    assert Manifest.load(data.folder / "manifest.json").encoding_settings().max_len == 8


def test_the_index_fits_the_rows(tmp_path: Path) -> None:
    content = "".join(f"{'a ' * (i % 7)}\t{i % 3}\n" for i in range(50))
    data = encode(tmp_path, content, "--text", "0", "--label", "1", "--val_fraction", "0.2", "--chunk_bytes", "30")
    for part in ("train", "val"):
        index = read_index(data.folder / f"{part}.jsonl")
        assert index is not None
        lines = (data.folder / f"{part}.jsonl").read_bytes().splitlines(keepends=True)
        assert index.offsets.tolist() == [0, *np.cumsum([len(line) for line in lines]).tolist()]
        assert index.lengths.tolist() == [len(row["wordids"]) for row in data.rows(part)]
        assert index.labels.tolist() == [row["label"] for row in data.rows(part)]
        store = open_store(data.folder / f"{part}.jsonl")
        assert store.read([3, 0])[0].token_ids == data.rows(part)[3]["wordids"]
        store.close()


def test_a_new_run_replaces_the_data_set_and_nothing_else(tmp_path: Path) -> None:
    data = encode(tmp_path, labelled({"a": 10, "b": 10}), "--text", "0", "--label", "1", "--val_fraction", "0.2")
    assert (data.folder / "val.jsonl").exists()
    (data.folder / "notes.txt").write_text("mine", encoding="utf-8")
    data = encode(tmp_path, "x\ny\n", "--text", "0", name="other.txt")
    assert set(data.files) == {"train.jsonl", "train.idx", "rejects.jsonl", "vocab.txt", "manifest.json", "notes.txt"}
    assert data.texts() == ["x", "y"]


def test_the_target_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    encode(tmp_path, "x\n", "--text", "0", name="a.txt")
    assert (tmp_path / "real" / "manifest.json").exists()
    assert (tmp_path / "data").is_symlink()


MIXED = [
    *((f"word {i} {'长' * (i % 5)}{'标题' * (i % 3)}", str(i % 4)) for i in range(50)),
    *((f"word {i} {'长' * (i % 5)}{'标题' * (i % 3)}", str(i % 3)) for i in range(0, 50, 5)),
    ("", "0"), ("a\rb", "1"), ("x\u2028y", ""), ("y", "1"), ("y", "1"),
]  # fmt: skip


@pytest.mark.parametrize("make, name", [(tsv, "in.tsv"), (tsv, "in.tsv.gz"), (csv_of, "in.csv"), (jsonl, "in.jsonl")])
def test_the_output_does_not_depend_on_workers_or_chunks(tmp_path: Path, make, name: str) -> None:
    content = make(MIXED)
    content = content.replace(b"word 7", b"word \xff")
    (tmp_path / "v.tsv").write_bytes(tsv(MIXED[10:20]) + b"\n\nbad")
    flags = ["--text", "0", "--label", "1", "--test", str(tmp_path / "v.tsv"), "--val_fraction", "0.2"]
    seen = []
    for i, (workers, chunk_bytes) in enumerate([(1, 1 << 20), (2, 1), (7, 40), (1, 333)]):
        data = encode(
            tmp_path, gzip.compress(content) if name.endswith(".gz") else content, *flags, "--dedup",
            "--workers", str(workers), "--chunk_bytes", str(chunk_bytes), name=name, out=f"data{i}", processes=True,
        )  # fmt: skip
        files = data.files
        if name.endswith(".gz"):  # the time of compression is in the checksum of the input
            files["manifest.json"] = orjson.dumps(orjson.loads(files["manifest.json"]) | {"inputs": None})
        seen.append(files)
    assert len(seen[0]["train.jsonl"]) > 1000
    assert len(seen[0]["val.jsonl"]) > 100
    assert len(seen[0]["rejects.jsonl"]) > 100
    for files in seen[1:]:
        assert files == seen[0]


# ------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--workers", "0"], "--workers must be at least 1"),
        (["--val_fraction", "1"], "--val_fraction must be in [0, 1)"),
        (["--max_bad_rows", "2"], "--max_bad_rows"),
        (["--chunk_bytes", "0"], "--chunk_bytes"),
        (["--seed", str(2**63)], "--seed"),
        (["--label_separator", ""], "--label_separator"),
        (["--task", "rank", "--label", "1"], "--task is one of"),
        (["--task", "regression"], "needs --label"),
        (["--labels", "l.txt"], "--labels needs --label"),
        (["--clean", "polish"], "A cleaning rule is one of"),
        (["--max_len", "many"], "max_len"),
        (["--no_such_flag"], "no_such_flag"),
    ],
)
def test_wrong_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    data = encode(tmp_path, "a\t1\n", "--text", "0", *flags, code=2)
    assert message in error_line(capsys.readouterr().err)
    assert not data.folder.exists()


def test_settings_may_come_from_a_file_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        f"text: 0\nlabel: -1\nmax_len: 5\nvocab: {write_vocab(tmp_path)}\nout: {tmp_path / 'data'}\n", encoding="utf-8"
    )
    (tmp_path / "in.tsv").write_text("a b c d e\tx\n", encoding="utf-8")
    common = ["encode", str(tmp_path / "in.tsv"), "--workers", "1"]
    assert main([*common, "--config", str(tmp_path / "c.yaml")]) == 0
    assert DataSet(tmp_path / "data").texts() == ["a b c"]
    assert main([*common, "--max_len", "6", "--config", str(tmp_path / "c.yaml")]) == 0
    data = DataSet(tmp_path / "data")
    assert (data.texts(), data.labels()) == (["a b c d"], ["x"])


def test_columns_may_be_named_like_nothing(tmp_path: Path) -> None:
    data = encode(tmp_path, "null\tNone\ttrue\na\tb\tc\n", "--text", "null", "--label", "None", "--type", "true")
    assert (data.texts(), data.labels(), data.rows()[0]["type"]) == (["a"], ["b"], "c")


def test_real_files_of_many_layouts(tmp_path: Path, shared_data: Path) -> None:
    vocab = str(shared_data / "vocab/bert-base-chinese/vocab.txt")
    layouts = [
        ("zh/weibo_senti/weibo_senti_2400.csv", ["--text", "review", "--label", "label"], 2400),
        ("zh/tnews/dev.json", ["--text", "sentence", "--label", "label"], 4928),
        ("zh/lcqmc/test.tsv", ["--text", "0", "--text_b", "1"], 2000),
        ("zh/iflytek/dev.json", ["--text", "sentence", "--label", "label", "--keep", "id"], 1373),
        ("en/glue/MRPC/dev.tsv", ["--text", "#1 String", "--text_b", "#2 String", "--label", "Quality"], 408),
        ("en/glue/MNLI/train.tsv", ["--text", "8", "--text_b", "9", "--label", "-1", "--header"], 486),
        ("en/glue/STS-B/dev.tsv", ["--text=7", "--text_b=8", "--label=-1", "--header", "--task=regression"], 1500),
        ("en/glue/CoLA/dev.tsv", ["--text", "-1", "--label", "1"], 1043),
        ("text/en_wikitext2_valid.raw", ["--text", "0", "--format", "text"], 3760),
    ]  # fmt: skip
    for path, flags, rows in layouts:
        command = ["encode", str(shared_data / path), *flags_of(tmp_path), "--max_bad_rows", "0", "--vocab", vocab]
        assert main([*command, *flags, "--max_len", "128"]) == 0
        data = DataSet(tmp_path / "data")
        data.check_counts()
        assert (path, len(data.rows())) == (path, rows)
