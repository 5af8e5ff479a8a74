"""`preprocess corpus`: from plain text to rows for pretraining."""

import gzip
import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from encode_runs import DataSet, InlineExecutor, decode, error_line, write_vocab

from preprocess import documents
from preprocess.__main__ import main
from preprocess.encode import CUT
from tfbert.data.dataset import DataSet as OpenedDataSet
from tfbert.data.store import open_store

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Corpus(DataSet):
    """What a run wrote."""

    @property
    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.manifest["corpus"]["read"]
        return counts

    def check_counts(self) -> None:
        """Read = kept + dropped; every kept token is in one row; the manifest counts the files."""
        manifest = self.manifest
        special = 2 if manifest["corpus"]["pairs"] == "none" else 3
        rows = [row for part in manifest["parts"] for row in self.rows(part)]
        for counts in self.counts.values():
            assert counts["read"] == counts["kept"] + sum(counts["dropped"].values())
        in_rows = sum(len(row["wordids"]) - special for row in rows)
        assert in_rows == self.counts["tokens"]["kept"] + manifest["corpus"]["borrowed_tokens"]
        assert all(len(row["wordids"]) <= manifest["encoding"]["max_len"] for row in rows)
        for part, counts in manifest["parts"].items():
            assert counts["rows"] == len(self.rows(part))
            store = open_store(self.folder / f"{part}.jsonl")
            assert store.lengths.tolist() == [len(row["wordids"]) for row in self.rows(part)]
            assert store.labels.tolist() == [row.get("label", -1) for row in self.rows(part)]
            store.close()
        whats = Counter(reject["what"] for reject in self.rejects)
        assert whats["document"] == sum(self.counts["documents"]["dropped"].values())

    def sides(self, part: str = "train") -> list[tuple[str, str]]:
        """The two texts of the rows, decoded without blanks."""
        found = []
        for row in self.rows(part):
            first, second = decode(row["wordids"]).removeprefix("[CLS]").removesuffix("[SEP]").split("[SEP]")
            found.append((first.replace(" ", ""), second.replace(" ", "")))
        return found


def run(folder: Path, content: Any, *flags: str, name: str = "in.txt", out: str = "data", code: int = 0) -> Corpus:
    """Writes the content (or takes the files given), makes the data set and checks its counts."""
    if isinstance(content, list):
        inputs = content
    else:
        inputs = [folder / name]
        inputs[0].write_bytes(content.encode() if isinstance(content, str) else content)
    if not (folder / "vocab.txt").exists():
        write_vocab(folder)
    common = ["--vocab", str(folder / "vocab.txt"), "--out", str(folder / out), "--workers", "1", "--val_fraction", "0"]
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        assert main(["corpus", *map(str, inputs), *common, *flags]) == code
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".encode")]
    data = Corpus(folder / out)
    if code == 0:
        data.check_counts()
    return data


def book(documents: int, sentences: int, seed: int = 0) -> str:
    """Documents apart by blank lines, a sentence a line; the words of a document begin with a name of its own."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(documents):
        name = LETTERS[number // 26 % 26] + LETTERS[number % 26]
        lines = []
        for i in range(sentences):
            lines.append(" ".join(f"{name}{i}{LETTERS[k]}" for k in range(int(rng.integers(2, 4)))))
        made.append("\n".join(lines))
    return "\n\n".join(made) + "\n"


def test_sentences_are_packed_document_by_document(tmp_path: Path) -> None:
    text = "one two. Three\nfour!\n\n\nfive six seven\n"
    data = run(tmp_path, text, "--max_len", "64", "--short_fraction", "0")
    assert sorted(data.texts()) == ["five six seven", "one two . three four !"]
    assert data.counts["documents"] == {"read": 2, "kept": 2, "dropped": {}}
    assert data.counts["sentences"]["read"] == 4
    assert data.manifest["task"] is None
    assert data.manifest["label_names"] == []
    assert not data.rejects


def test_a_row_ends_where_a_sentence_does(tmp_path: Path) -> None:
    data = run(tmp_path, "abcd\nefgh\nij\nklmnop\n", "--max_len", "12", "--short_fraction", "0")
    assert sorted(data.texts()) == ["abcd efgh ij", "klmnop"]
    data = run(tmp_path, "abcd\nefgh\nij\nklmnopqrst\n", "--max_len", "7", "--short_fraction", "0")
    assert sorted(data.texts()) == ["abcd", "efgh", "ij", "klmno", "pqrst"]


def test_words_of_the_rows(tmp_path: Path) -> None:
    data = run(tmp_path, "abc d! ef", "--short_fraction", "0", "--sentences", "lines")
    (row,) = data.rows()
    assert decode(row["wordids"]) == "[CLS] abc d ! ef [SEP]"
    assert row["words"] == "1" + "100" + "1" + "1" + "10" + "1"
    data = run(tmp_path, "abc d! ef", "--whole_words", "none")
    assert "words" not in data.rows()[0]


def test_a_word_that_is_cut_begins_in_every_row(tmp_path: Path) -> None:
    data = run(tmp_path, "abcdefgh", "--max_len", "5", "--short_fraction", "0")
    assert sorted(row["words"] for row in data.rows()) == ["11001", "11001", "1101"]


def test_chinese_words(tmp_path: Path) -> None:
    """case 154: words of jieba, with a dictionary of one's own."""
    text = "新闻标题内容"
    plain = run(tmp_path, text, "--whole_words", "jieba").rows()[0]["words"]
    own = tmp_path / "words.txt"
    own.write_text("标题内容 100000\n", encoding="utf-8")
    with_dictionary = run(tmp_path, text, "--whole_words", "jieba", "--user_dict", str(own)).rows()[0]["words"]
    assert plain == "1" + "100010" + "1"
    assert with_dictionary == "1" + "101000" + "1"


@pytest.mark.parametrize("documents, count", [("blank", 2), ("line", 4), ("file", 1)])
def test_what_a_document_is(tmp_path: Path, documents: str, count: int) -> None:
    data = run(tmp_path, "a\nb\n \nc\nd\n", "--documents", documents, "--short_fraction", "0")
    assert data.counts["documents"]["kept"] == len(data.rows()) == count


def test_a_file_without_blank_lines_is_pointed_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines, ends, told in ((150, "blank", True), (150, "line", False), (9, "blank", False)):
        run(tmp_path, "a\n" * lines, "--documents", ends)
        assert ("--documents line" in capsys.readouterr().err) == told


def test_json_lines_of_an_extracted_encyclopedia(tmp_path: Path) -> None:
    """{"id", "title", "text"}: a document a line, whatever line ends are in it."""
    rows = [
        {"id": "1", "title": "A", "text": "A\n\none. two\u2028three\n"},
        {"id": "2", "title": "B", "text": ""},
        {"id": "3", "title": "C"},
        {"id": "4", "text": "four"},
    ]
    content = "".join(orjson.dumps(row).decode() + "\n" for row in rows)
    flags = ["--max_bad_rows", "0.5", "--short_fraction", "0"]
    data = run(tmp_path, content + "{broken\n", *flags, name="wiki_00.json")
    assert sorted(data.texts()) == ["a one . two three", "four"]
    assert data.counts["documents"] == {"read": 5, "kept": 2, "dropped": {"columns": 1, "empty": 1, "json": 1}}
    assert [(row["line"], row["reason"]) for row in data.rejects] == [(2, "empty"), (3, "columns"), (5, "json")]
    other = run(tmp_path, content, *flags, "--text", "title", "--format", "jsonl", name="wiki_01")
    assert sorted(other.texts()) == ["a", "b", "c"]


def test_tables_are_documents_a_row(tmp_path: Path) -> None:
    data = run(tmp_path, "id\tbody\n1\ta b\n2\tc\n", "--text", "body", name="in.tsv")
    assert sorted(data.texts()) == ["a b", "c"]
    data = run(tmp_path, "tab\tin prose\nmore\n", name="in.txt", out="prose")
    assert data.texts() == ["tab in prose more"]


def test_compressed_and_several_files(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\ufeffone\n", encoding="utf-8")
    packed.write_bytes(gzip.compress(b"two\r\n\r\nthree"))
    data = run(tmp_path, [plain, packed])
    assert sorted(data.texts()) == ["one", "three", "two"]
    assert [entry["lines"] for entry in data.manifest["inputs"]["train"]] == [1, 2]


def test_what_is_dropped_is_counted_and_listed(tmp_path: Path) -> None:
    content = b"good one\n\xff bad\n\xe2\x80\x8b\nmore\n\n\xe2\x80\x8b\n\n" + b"x" * 300 + b"\n"
    data = run(tmp_path, content, "--max_bad_rows", "0.5", "--short_fraction", "0")
    assert sorted(data.texts()) == ["[UNK]", "good one more"]
    assert data.counts["sentences"] == {"read": 6, "kept": 3, "dropped": {"empty": 2, "encoding": 1}}
    assert data.counts["documents"] == {"read": 3, "kept": 2, "dropped": {"empty": 1}}
    assert [(row["line"], row["what"], row["reason"]) for row in data.rejects] == [
        (2, "line", "encoding"), (3, "sentence", "empty"), (6, "sentence", "empty"), (6, "document", "empty")
    ]  # fmt: skip
    assert all(len(row["text"]) <= CUT for row in data.rejects)


def test_too_much_that_is_unusable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, b"one\n\xff\n\ntwo\n", code=2)
    assert "At most 1.00% of the sentences may be unusable" in (error := error_line(capsys.readouterr().err))
    assert f"{tmp_path / 'in.txt'}:2: encoding" in error
    assert not (tmp_path / "data").exists()
    run(tmp_path, "one\n\n\xff\ntwo\n".encode("latin-1"), "--replace_bad_bytes")


@pytest.mark.parametrize("content", ["", "\n\n \n", "\u200b\n"])
def test_nothing_to_read(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, content, code=2)
    assert "a corpus needs documents with text" in error_line(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------------- split and shuffle


def test_validation_is_of_whole_documents(tmp_path: Path) -> None:
    content = book(50, 8)
    data = run(tmp_path, content, "--val_fraction", "0.2", "--max_len", "12")
    sides = {part: {text[:2] for text in data.texts(part)} for part in ("train", "val")}
    assert len(sides["val"]) == 10
    assert not sides["val"] & sides["train"]
    assert len(sides["train"]) == 40
    again = run(tmp_path, content, "--val_fraction", "0.2", "--max_len", "20", out="again")
    assert {text[:2] for text in again.texts("val")} == sides["val"]  # by the text alone
    other = run(tmp_path, content, "--val_fraction", "0.2", "--seed", "1", out="other")
    assert {text[:2] for text in other.texts("val")} != sides["val"]


def test_equal_documents_are_on_one_side(tmp_path: Path) -> None:
    content = "\n\n".join(["same text"] * 10 + [f"other {LETTERS[i]}" for i in range(20)])
    data = run(tmp_path, content, "--val_fraction", "0.5")
    assert len({"same text" in data.texts(part) for part in ("train", "val")}) == 2
    dropped = run(tmp_path, content, "--dedup", out="dropped")
    assert Counter(dropped.texts())["same text"] == 1
    assert dropped.counts["documents"] == {"read": 30, "kept": 21, "dropped": {"duplicate": 9}}
    assert dropped.counts["tokens"]["dropped"] == {"duplicate": 9 * 8}
    assert [row["line"] for row in dropped.rejects] == [3 + 2 * i for i in range(9)]


def test_few_documents_end_in_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases 151 and 152: two documents, one document; any share for validation."""
    for content, count in (("one\n", 1), ("one\n\ntwo\n", 2)):
        for share in ("0", "0.01", "0.5", "0.99"):
            data = run(tmp_path, content, "--val_fraction", share)
            parts = {part: len(data.rows(part)) for part in data.manifest["parts"]}
            assert sum(parts.values()) == count
            assert parts["train"] >= 1
            assert set(OpenedDataSet.open(data.folder).parts) == set(parts)
    run(tmp_path, "one\n", "--val_fraction", "1", code=2)
    assert "--val_fraction" in error_line(capsys.readouterr().err)


def shuffled(
    folder: Path, content: str, *flags: str, chunk_bytes: int = 200, bucket_bytes: int = 400, out: str = "data"
) -> Corpus:
    with (
        patch.object(documents, "_REACH", 400),
        patch("preprocess.corpus_documents.BUCKET_BYTES", bucket_bytes),
    ):
        return run(folder, content, "--chunk_bytes", str(chunk_bytes), *flags, out=out)


def test_rows_are_shuffled_over_the_whole_corpus(tmp_path: Path) -> None:
    """Not only inside a chunk or a bucket: where a row ends up does not depend on where it was."""
    content = "".join(f"{LETTERS[i // 26]}{LETTERS[i % 26]}\n" for i in range(676))
    data = shuffled(tmp_path, content, "--documents", "line")
    before = {f"{LETTERS[i // 26]}{LETTERS[i % 26]}": i for i in range(676)}
    places = np.array([before[text] for text in data.texts()])
    assert sorted(places) == list(range(676))
    assert abs(np.corrcoef(places, np.arange(676))[0, 1]) < 4 / math.sqrt(676)
    assert np.mean(np.abs(np.diff(places)) == 1) < 0.02
    thirds = np.bincount(places[:225] // 226, minlength=3)  # each third of the output holds each third of the input
    assert thirds.min() > 45


def test_the_size_of_chunks_does_not_matter(tmp_path: Path) -> None:
    content = book(60, 3)
    for pairs in ("none", "nsp", "sop"):
        flags = ["--max_len", "20", "--val_fraction", "0.2", "--pairs", pairs]
        first = shuffled(tmp_path, content, *flags, chunk_bytes=100).files
        second = shuffled(tmp_path, content, *flags, chunk_bytes=777).files
        assert {name: data for name, data in first.items() if name != "manifest.json"} == {
            name: data for name, data in second.items() if name != "manifest.json"
        }


def test_seeds_change_rows_and_order(tmp_path: Path) -> None:
    content = book(40, 6)
    rows = {seed: run(tmp_path, content, "--max_len", "20", "--seed", seed).texts() for seed in ("0", "1", "-1")}
    assert len({tuple(texts) for texts in rows.values()}) == 3
    assert len({tuple(sorted(texts)) for texts in rows.values()}) == 3


def test_a_document_larger_than_a_chunk(tmp_path: Path) -> None:
    """It is cut, and its pieces still are one document: on one side of the split, and no lender to itself."""
    long = " ".join(f"zz{LETTERS[i % 26]}." for i in range(400))
    content = "\n\n".join([long, *(f"x{LETTERS[i]}. y. z" for i in range(9))])
    data = shuffled(tmp_path, content, "--val_fraction", "0.3", "--max_len", "20")
    assert data.counts["documents"]["read"] == 10
    holders = [part for part in ("train", "val") if any("zz" in text for text in data.texts(part))]
    assert len(holders) == 1
    joined = "".join(text.replace(" ", "") for part in ("train", "val") for text in data.texts(part))
    assert Counter(joined) == Counter(content.replace(" ", "").replace("\n", ""))
    nsp = shuffled(tmp_path, content, "--pairs", "nsp", "--max_len", "20")
    for row, (first, second) in zip(nsp.rows(), nsp.sides(), strict=True):
        assert not (row["label"] == 1 and "zz" in first and "zz" in second)


# -------------------------------------------------------------------------------------------------------------- pairs


def test_next_sentences(tmp_path: Path) -> None:
    """case 153: a random text is never of the same document, nor of the other part."""
    data = run(tmp_path, book(60, 12), "--pairs", "nsp", "--max_len", "64", "--val_fraction", "0.2")
    assert data.manifest["label_names"] == ["next", "random"]
    names = {part: {first[:2] for first, _ in data.sides(part)} for part in ("train", "val")}
    for part in ("train", "val"):
        labels = []
        for row, (first, second) in zip(data.rows(part), data.sides(part), strict=True):
            assert row["segmentids"] == sorted(row["segmentids"])
            assert (first[:2] == second[:2]) == (row["label"] == 0)
            assert any(name.startswith(second[:2]) for name in names[part])
            labels.append(row["label"])
        assert 0.2 < np.mean(labels) < 0.8
        counts = data.manifest["parts"][part]["labels"]
        assert counts == {"next": labels.count(0), "random": labels.count(1)}


def test_sentence_order(tmp_path: Path) -> None:
    data = run(tmp_path, book(40, 12), "--pairs", "sop", "--max_len", "64")
    assert data.manifest["label_names"] == ["ordered", "swapped"]

    def number(text: str) -> int:
        return int("".join(c for c in text[2:4] if c.isdigit()))

    labels = []
    for row, (first, second) in zip(data.rows(), data.sides(), strict=True):
        assert first[:2] == second[:2]
        labels.append(row["label"])
        if number(first) != number(second):
            assert (number(first) > number(second)) == bool(row["label"])
    assert 0.35 < np.mean(labels) < 0.65


@pytest.mark.parametrize("content", ["one. two\n", "one\n", "one\n\n\n\n"])
def test_pairs_of_one_document(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """case 153: a clear error, at once."""
    run(tmp_path, content, "--pairs", "nsp", code=2)
    assert "--pairs nsp takes random texts from other documents" in error_line(capsys.readouterr().err)
    run(tmp_path, "same\n\nsame\n", "--pairs", "nsp", code=2)
    assert "one document" in error_line(capsys.readouterr().err)
    run(tmp_path, content, "--pairs", "sop")


def test_documents_that_make_no_pair(tmp_path: Path) -> None:
    data = run(tmp_path, "a\n\nb. c\n", "--pairs", "sop")
    assert data.counts["documents"]["dropped"] == {"short": 1}
    assert data.counts["tokens"]["dropped"] == {"short": 1}
    assert data.counts["sentences"]["dropped"] == {"short": 1}


# ----------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--pairs", "both"], "--pairs is one of none, nsp, sop"),
        (["--max_len", "2"], "--max_len counts the special tokens and must be at least 3"),
        (["--max_len", "4", "--pairs", "sop"], "must be at least 5 with --pairs sop"),
        (["--whole_words", "letters"], "--whole_words is one of none, pieces, jieba, rjieba"),
        (["--user_dict", "x"], "--user_dict is a dictionary of jieba"),
        (["--whole_words", "jieba", "--user_dict", "nowhere"], "nowhere: a user dictionary"),
        (["--documents", "page"], "--documents is one of blank, line, file"),
        (["--short_fraction", "2"], "--short_fraction is a share"),
        (["--clean", "polish"], "polish"),
        (["--format", "jsonl", "--header"], "--header"),
        (["--vocab", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_flags_that_make_no_sense(
    tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "one\n", *flags, code=2)
    assert message in error_line(capsys.readouterr().err)


def test_a_vocabulary_without_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", encoding="utf-8")
    run(tmp_path, "one\n", code=2)
    assert "[MASK]" in error_line(capsys.readouterr().err)


def test_cleaning_and_case(tmp_path: Path) -> None:
    data = run(tmp_path, "<b>Aa</b> see https://a.example/x now\n", "--clean", "html,url_remove", "--max_len", "64")
    assert data.texts() == ["aa see now"]
    data = run(tmp_path, "Aa b\n", "--cased")
    assert data.texts() == ["[UNK] b"]


def test_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, book(20, 5), "--pairs", "nsp", "--val_fraction", "0.2")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "data"), "--rows", "2", "--no_charts"]) == 0
    shown = capsys.readouterr().out
    for words in ("made for pretraining", "documents: 20 read = 20 kept + 0 dropped", "pairs: nsp", "words: [CLS] "):
        assert words in shown
    assert "label next (id 0)" in shown or "label random (id 1)" in shown


# ----------------------------------------------------------------------------------------------------------- real data


def test_real_text_loses_nothing(tmp_path: Path, shared_data: Path) -> None:
    """Every token that the tokenizer gives for the lines of the file is in one row."""
    from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

    source = tmp_path / "wiki.txt"
    lines = (shared_data / "text/zh_wiki_cmrc2018_dev.txt").read_text(encoding="utf-8").split("\n")[:60]
    source.write_text("\n".join(lines), encoding="utf-8")
    vocab = shared_data / "vocab/bert-base-chinese/vocab.txt"
    data = run(tmp_path, [source], "--vocab", str(vocab), "--documents", "line", "--whole_words", "jieba")
    tokenizer = WordPieceTokenizer(Vocabulary.load(vocab))
    expected = Counter(i for line in lines for i in tokenizer.encode(line))
    assert Counter(i for row in data.rows() for i in row["wordids"][1:-1]) == expected
    flags = "".join(row["words"][1:-1] for row in data.rows())
    assert 0.5 < flags.count("1") / len(flags) < 0.8  # a Chinese word has 1.5 characters or so


@pytest.mark.parametrize("pairs", ["none", "sop"])
def test_arrow_holds_the_same_rows(tmp_path: Path, pairs: str) -> None:
    flags = ["--pairs", pairs, "--max_len", "24", "--val_fraction", "0.2"]
    plain = shuffled(tmp_path, book(40, 6), *flags, out="plain")
    with patch.object(Corpus, "check_counts"):
        other = shuffled(tmp_path, book(40, 6), *flags, "--store", "arrow", out="arrow")
    assert sorted(path.name for path in other.folder.iterdir()) == [
        "manifest.json", "rejects.jsonl", "train.arrow", "train.idx", "val.arrow", "val.idx", "vocab.txt"
    ]  # fmt: skip
    for part in ("train", "val"):
        rows = OpenedDataSet.open(other.folder).store(part)
        expected = OpenedDataSet.open(plain.folder).store(part)
        numbers = np.arange(len(expected))
        assert rows.read(numbers) == expected.read(numbers)
        got, want = rows.columns(numbers), expected.columns(numbers)
        assert got.words is not None and want.words is not None
        assert np.array_equal(got.words.padded(24, 9), want.words.padded(24, 9))
        assert np.array_equal(rows.labels, expected.labels)
        rows.close()
        expected.close()
