"""`preprocess augment` from files to files, with a small model of random weights and a few vectors."""

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from encode_runs import InlineExecutor, encode, error_line
from masked_models import CHINESE, TOKENS, write_masked_lm

import preprocess.augment
from preprocess.__main__ import main
from preprocess.segment import load_jieba
from preprocess.words import CHINESE_NEGATIONS, NEGATIONS, STOP_WORDS
from tfbert.cli import Terminated

pytestmark = pytest.mark.usefixtures("logical_cpus")
VECTORS = {
    "good": (1, 0.1), "fine": (1, 0.12), "great": (0.9, 0.2), "bad": (-1, 0.3), "awful": (-0.9, 0.3),
    "overblown": (0.2, 1), "inflated": (0.25, 1), "pompous": (0.1, 1), "not": (1, 0), "movie": (0, -1),
    "film": (0.1, -1), "street": (-0.5, -1), "house": (-0.6, -1), "[SEP]": (1, 0.11), "##ing": (1, 0.1), "2nd": (0, -1),
    "'s": (0.1, 1),
}  # fmt: skip
SENTENCES = [
    "the good movie is not good , a slow story of the old city !",
    "watch a very funny film today and love the music",
    "bad plot , awful actor , overblown story",
    "Never a dark house in the OLD street .",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked_lm(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    path.write_text("".join(f"{w} {x} {y}\n" for w, (x, y) in VECTORS.items()), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Augments a file in this process; `main`'s flags behind the usual ones."""
    import tfbert.masked_tokens

    monkeypatch.setattr(tfbert.masked_tokens, "CALL_TOKENS", 256)  # the machine of a test has little time to fill up
    monkeypatch.setattr(tfbert.masked_tokens, "CALL_POSITIONS", 24)

    def augment(
        content: str | bytes, *flags: str, name: str = "in.tsv", out: str = "out.tsv", code: int = 0, also: str = ""
    ) -> bytes:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        words = ["augment", str(path), *also.split(), "--out", str(tmp_path / out), "--workers", "1"]
        if "--vectors" not in flags and "eda" not in flags:
            words += ["--model", str(model)]
        with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
            assert main([*words, *flags]) == code
        assert not list(tmp_path.glob(".*.augment"))
        return (tmp_path / out).read_bytes() if code == 0 else b""

    return augment


def lines_of(data: bytes) -> list[list[str]]:
    assert data.endswith(b"\n")
    return [line.split("\t") for line in data.decode().split("\n")[:-1]]


# ------------------------------------------------------------------------------------------------- rows and columns


def test_other_columns_keep_their_bytes(run: Callable[..., bytes]) -> None:
    """Case 136: ten columns, one of them varied; the row itself stands once, before its variants."""
    rows = [[f"{i} {j} 。\u2028\u00a0" for j in range(10)] for i in range(3)]
    for row, sentence in zip(rows, SENTENCES, strict=False):
        row[8] = sentence
    content = "".join("\t".join(row) + "\r\n" for row in rows)
    data = run(content, "--text", "8", "--num_variants", "5")
    assert data.count(b"\r\n") == data.count(b"\n") == 18
    found = [line.removesuffix("\r").split("\t") for line in data.decode().split("\n")[:-1]]
    for i, row in enumerate(rows):
        block = found[6 * i : 6 * i + 6]
        assert block[0][:10] == row
        assert [line[:8] + line[9:10] for line in block] == [row[:8] + row[9:]] * 6
        assert len({line[8] for line in block}) == 6
        assert len({line[10] for line in block}) == 1
    assert len({line[10] for line in found}) == 3


def test_words_that_turn_a_statement_stay(run: Callable[..., bytes]) -> None:
    """Case 136: stop and negation words, in any letter case and spelling; nor do they come in."""
    content = "It isn't NOT good, never was; don’t hate no movie without 2 plots\n不是没有人不喜欢的电影\n"
    for line in lines_of(run(content, "--text", "0", "--num_variants", "20", "--p_t", "1"))[1:]:
        if line[0][0] == "I":
            start, end = line[0].split(" NOT ")
            assert start == "It isn't"
            assert end.endswith(" without 2 plots")
            assert end.split(", ")[1].startswith("never was; don’t ")
        else:
            assert [c in line[0] for c in "不没"] == [True, True]
            assert line[0].startswith("不是没有")


def test_both_texts_of_a_pair_come_from_the_row(run: Callable[..., bytes]) -> None:
    """A variant changes both, and what it leaves is the original and not another variant."""
    a, b = SENTENCES[0].split(" "), SENTENCES[1].split(" ")
    flags = ("--text", "a", "--text_b", "b", "--num_variants", "20", "--num_candidates", "3")
    found = lines_of(run(f"a\tx\tb\n{' '.join(a)}\t7\t{' '.join(b)}\n", *flags))
    assert found[0] == ["a", "x", "b", "source_id"]
    assert len(found) == 22
    changed = Counter[str]()
    for first, middle, second, _ in found[2:]:
        assert middle == "7"
        differing = [[x for x, y in zip(p, q.split(" "), strict=True) if x != y] for p, q in ((a, first), (b, second))]
        changed["both"] += all(map(bool, differing))
        changed["words"] += sum(map(len, differing))
    assert changed["both"] > 10
    assert 0.25 < changed["words"] / (20 * 12) < 0.55  # about p_t of the twelve words that have candidates


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_csv_fields_are_found_behind_quotes(run: Callable[..., bytes], quoting: Any) -> None:
    rows = [["id, 1", 'the "good" movie,\nvery slow', "x"], ["2", "funny, sad", 'y "z"'], ["3", "", ""]]
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows([["id", "text", "tag"], *rows])
    data = run(text.getvalue(), "--text", "text", "--num_variants", "4", name="in.csv", out="out.csv").decode()
    found = list(csv.reader(io.StringIO(data)))
    assert found[0] == ["id", "text", "tag", "source_id"]
    assert [row[:3] for row in found if row[:3] in rows] == rows
    for row in found[1:]:
        assert any([row[0], row[2]] == [r[0], r[2]] for r in rows)
        assert row[0] != "id, 1" or (row[1].count('"'), row[1].count("\n")) == (2, 1)
    originals = text.getvalue().split("\n")
    assert data.split("\n")[0].startswith(originals[0])


def test_json_lines_keep_their_other_bytes(run: Callable[..., bytes]) -> None:
    row = '{"n": 1.50, "text":"a \\"good\\" movie\\tvery \\u0073low", "tags" : ["\\u4e2d"]}'
    data = run(
        f'{row}\n{{"text": "x"}}\n{{}}\n', "--text", "text", "--num_variants", "3", name="a.jsonl", out="b.jsonl"
    )
    lines = data.decode().split("\n")[:-1]
    assert len(lines) == 6
    for line in lines[:4]:
        assert line.startswith('{"n": 1.50, "text":')
        assert ', "tags" : ["\\u4e2d"], "source_id": "' in line
        assert '"' in orjson.loads(line)["text"]
    assert lines[5] == "{}"
    assert orjson.loads(lines[0])["text"] == 'a "good" movie\tvery slow'


def test_plain_text_has_no_column_for_an_id(run: Callable[..., bytes], capsys: pytest.CaptureFixture[str]) -> None:
    run("good movie\n", "--text", "text", name="in.txt", out="out.txt", code=2)
    assert "Give --id_column none" in error_line(capsys.readouterr().err)
    flags = ("--text", "text", "--id_column", "none", "--num_variants", "2")
    data = run("good movie\n\nbad plot", *flags, name="in.txt", out="out.txt")
    assert data.split(b"\n")[0] == b"good movie"
    assert b"\n\nbad plot\n" in data


def test_unusable_rows_pass_as_unusable_as_they_were(run: Callable[..., bytes], tmp_path: Path) -> None:
    """A ragged row, bytes that are not UTF-8, a blank line: each stands once, and `encode` rejects what it rejected."""
    content = b"a\tb\ngood movie\t1\nragged\n\nbad \xff plot\t0\nmore\tand\tmore\nslow film\t1"
    data = run(content, "--text", "a", "--num_variants", "2")
    assert b"\nragged\t\n" in data
    assert b"\nbad \xff plot\t0\t\n" in data
    assert b"\nmore\tand\tmore\t\n" in data
    assert data.endswith(b"\n")
    before = encode(tmp_path, content, "--text", "a", "--label", "b", name="before.tsv")
    after = encode(tmp_path, data, "--text", "a", "--label", "b", name="after.tsv", out="after")
    assert [reason for _, reason in before.reasons] == [reason for _, reason in after.reasons]
    assert len(after.rows()) == 3 * len(before.rows()) == 6


def test_several_compressed_inputs_with_one_header(run: Callable[..., bytes], tmp_path: Path) -> None:
    first = gzip.compress(b"\xef\xbb\xbftext\tn\ngood movie\t1\n")
    (tmp_path / "second.tsv").write_bytes(b"\xef\xbb\xbftext\tn\nslow film\t2\n")
    flags = ("--text", "text", "--num_variants", "2")
    data = run(first, *flags, name="in.tsv.gz", out="out.tsv.gz", also=str(tmp_path / "second.tsv"))
    data = gzip.decompress(data)
    assert data.startswith(b"\xef\xbb\xbftext\tn\tsource_id\n")
    assert Counter(line[1] for line in lines_of(data)[1:]) == {"1": 3, "2": 3}


# ------------------------------------------------------------------------------------------------------- the words


def test_candidates_are_words_of_their_own(run: Callable[..., bytes]) -> None:
    """Never a special token, a piece, a sign, a digit, the word itself, a stop or negation word."""
    words = [word for word in TOKENS if word.isalpha() and word.isascii()]
    originals = "".join(f"{word} {i}\n" for i, word in enumerate(words))
    found: dict[str, list[str]] = {}
    for text, source in lines_of(run(originals, "--text", "0", "--p_t", "1", "--num_candidates", "30")):
        found.setdefault(source, []).append(text.split()[0])
    allowed = {t for t in TOKENS if t.isalpha() and t.isascii() and t not in STOP_WORDS | NEGATIONS}
    assert sum(len(words) > 10 for words in found.values()) > 20
    for word, *others in found.values():
        assert not others or word in allowed
        assert set(others) <= allowed - {word}


def test_letter_case_follows_the_word(run: Callable[..., bytes]) -> None:
    for line in lines_of(run("Good movie, SLOW film\n", "--text", "0", "--p_t", "1"))[1:]:
        one, two, three, four = line[0].replace(",", "").split()
        assert one.istitle()
        assert three.isupper()
        assert two.islower()
        assert four.islower()


def test_chinese_words_are_replaced_whole(run: Callable[..., bytes]) -> None:
    """Case 134: by dictionary words of the same length; no blanks come in, other characters stay."""
    text = "最大的文旅产业运营商,2023年!很好"
    jieba = load_jieba()
    words = list(jieba.cut(text))
    lines = lines_of(run(f"{text}\n", "--text", "0"))
    assert len(lines) > 10
    for line in lines[1:]:
        assert len(line[0]) == len(text)
        at = 0
        for word in words:
            new = line[0][at : at + len(word)]
            at += len(word)
            if new != word:
                assert jieba.FREQ[new] > 0
                assert set(new) <= set(CHINESE) - CHINESE_NEGATIONS
        assert ",2023年!很" in line[0]


def test_words_of_several_pieces_are_looked_up(run: Callable[..., bytes], vectors: Path, model: Path) -> None:
    """With a model, `overblown` alone (over, ##blown); without one, every word that has a vector."""
    content = "an overblown good zzz movie\n"
    flags = ("--text", "0", "--vectors", str(vectors), "--num_candidates", "2", "--p_t", "1")
    both = {line[0] for line in lines_of(run(content, *flags, "--model", str(model)))[1:]}
    assert {text.split()[1] for text in both} == {"inflated", "pompous"}
    alone = {line[0] for line in lines_of(run(content, *flags))[1:]}
    assert {text.split()[2] for text in alone} == {"fine", "great"}
    assert {text.split()[3] for text in alone | both} == {"zzz"}
    assert {text.split()[4] for text in alone} == {"film", "street"}


@pytest.mark.parametrize("original", ["--original", "--no_original"])
def test_words_beyond_the_positions_are_seen_too(run: Callable[..., bytes], original: str) -> None:
    """Case 132: a text of 300 tokens in a model of 64; nothing is out of range and the last words vary as well."""
    words = (SENTENCES[1] + " ").split() * 30
    found = lines_of(run(" ".join(words) + "\n", "--text", "0", original, "--num_variants", "8"))
    changed = {i for line in found[1:] for i, word in enumerate(line[0].split()) if word != words[i]}
    varied = [i for i, word in enumerate(words) if word not in STOP_WORDS]
    assert changed <= set(varied)
    assert len(changed) > 0.95 * len(varied)
    assert changed & set(varied[-5:])


@pytest.mark.parametrize("text", ["", "好", ".", "a", "good", "[SEP]", "zzz", "  ", "\u200b", "12 34", "不"])
def test_a_text_without_much_to_vary_ends(run: Callable[..., bytes], text: str) -> None:
    """Case 139: fewer variants or none, the row once."""
    found = lines_of(run(f"{text}\t1\n", "--text", "0", "--num_variants", "20"))
    texts = [line[0] for line in found]
    assert texts[0] == text
    assert len(set(texts)) == len(texts) <= 21
    assert "" not in texts[1:]
    assert len(texts) > 1 if text == "good" else len(texts) == 1 or text == "好"


# ---------------------------------------------------------------------------------------- always the same, all at once


def many(rows: int = 40) -> str:
    draw = np.random.default_rng(3)
    words = [word for word in TOKENS if word.isalpha() and word.isascii()]
    texts = [" ".join(draw.choice(words, int(draw.integers(1, 25)))) for _ in range(rows)]
    texts[5] = texts[2]
    texts[7] = "最大的文旅产业运营商"
    return "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts))


def test_workers_chunks_and_windows_do_not_matter(
    run: Callable[..., bytes], tmp_path: Path, model: Path, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 138: also what is computed together; another seed gives other variants."""
    flags = ["--text", "0", "--num_variants", "6", "--model", str(model), "--vectors", str(vectors), "--seed", "3"]
    expected = run(many(), *flags)
    assert run(many(), *flags, "--chunk_bytes", "100") == expected
    monkeypatch.setattr(preprocess.augment, "WINDOW_TOKENS", 1)
    assert run(many(), *flags, "--chunk_bytes", "300") == expected
    words = ["augment", str(tmp_path / "in.tsv"), "--out", str(tmp_path / "two.tsv"), "--workers", "2"]
    assert main([*words, *flags, "--chunk_bytes", "500"]) == 0
    assert (tmp_path / "two.tsv").read_bytes() == expected
    assert run(many(), *flags[:-1], "4") != expected


def test_there_are_no_duplicates_and_splits_do_not_leak(run: Callable[..., bytes], tmp_path: Path) -> None:
    """Case 138: rows of the input stay, equal ones too; all variants of a row are on one side of the split."""
    data = run(many(), "--text", "0", "--num_variants", "20", "--id_column", "group")
    found = lines_of(data)
    texts = Counter(line[0] for line in found)
    originals = [line.split("\t")[0] for line in many().split("\n")[:-1]]
    assert {text for text, count in texts.items() if count > 1} == {originals[2]}
    assert len({line[2] for line in found}) == 39
    flags = ["--text", "0", "--label", "1", "--group", "2", "--keep", "2", "--val_fraction", "0.3"]
    split = encode(tmp_path, data, *flags, name="augmented.tsv")
    groups = [{row["keep"]["2"] for row in split.rows(part)} for part in ("train", "val")]
    assert all(groups)
    assert not groups[0] & groups[1]


@pytest.mark.parametrize("how", ["exception", "signal"])
def test_an_interrupted_run_goes_on(
    run: Callable[..., bytes], tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, how: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Case 135: stopped in the middle, the same command with --resume gives the file of an uninterrupted run."""
    flags = ["--text", "0", "--num_variants", "3", "--chunk_bytes", "200"]
    expected = run(many(), *flags)
    (tmp_path / "out.tsv").unlink()
    finish, done = preprocess.augment.finish, Counter[str]()

    def stop(job: Any) -> Any:
        done["parts"] += 1
        if done["parts"] == 5:
            if how == "signal":
                raise Terminated
            raise MemoryError
        return finish(job)

    monkeypatch.setattr(preprocess.augment, "finish", stop)
    monkeypatch.setattr(preprocess.augment, "WINDOW_TOKENS", 1)
    words = ["augment", str(tmp_path / "in.tsv"), "--out", str(tmp_path / "out.tsv"), "--model", str(model), *flags]
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        assert main([*words, "--workers", "1"]) == (143 if how == "signal" else 1)
    assert not (tmp_path / "out.tsv").exists()
    assert "--resume goes on from it" in capsys.readouterr().err
    monkeypatch.setattr(
        preprocess.augment, "finish", lambda job: done.update(again=not job.prepared.done) or finish(job)
    )
    with patch("preprocess.pool.ProcessPoolExecutor", InlineExecutor):
        assert main([*words, "--workers", "1", "--resume", "--p_t", "0.5"]) == 2
        assert "had other inputs or settings" in capsys.readouterr().err
        assert main([*words, "--workers", "2", "--resume"]) == 0
    assert (tmp_path / "out.tsv").read_bytes() == expected
    assert 0 < done["again"] < expected.count(b"\n") / 4


# ------------------------------------------------------------------------------------------------- EDA and previews


def test_eda_deletes_exchanges_and_replaces(run: Callable[..., bytes], vectors: Path) -> None:
    text = "the good movie never ends in this old city street house film plot"
    words = text.split()
    kinds = Counter[str]()
    for line in lines_of(run(f"{text}\n", "--text", "0", "--method", "eda", "--vectors", str(vectors)))[1:]:
        new = line[0].split()
        if len(new) < len(words):
            left = iter(words)
            assert all(word in left for word in new)  # in order
            assert "never" in new
            kinds["delete"] += 1
        elif sorted(new) == sorted(words):
            assert sum(a != b for a, b in zip(new, words, strict=True)) == 2
            kinds["swap"] += 1
        else:
            assert sum(a != b for a, b in zip(new, words, strict=True)) == 1
            kinds["synonym"] += 1
    assert kinds == {"delete": 3, "swap": 3, "synonym": 3}


@pytest.mark.parametrize("operations", ["delete", "swap", "delete,swap"])
def test_eda_needs_no_model(run: Callable[..., bytes], operations: str) -> None:
    content = "one\n\nnot\n最大的文旅产业运营商\na  b\n"
    flags = ("--text", "0", "--method", "eda", "--operations", operations, "--rate", "0.5", "--num_variants", "40")
    found = lines_of(run(content, *flags))
    texts = [line[0] for line in found]
    assert [text for text in texts if text in content.split("\n")] == ["one", "", "not", "最大的文旅产业运营商", "a  b"]
    assert texts.count("") == 1  # the blank line
    assert len(texts) > 15
    assert len(set(texts)) == len(texts)


def test_a_preview_prints_and_writes_nothing(tmp_path: Path, vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("label\ttext\n0\tgood movie\n1\n0\tzzz\n1\tbad street\n", encoding="utf-8")
    words = ["augment", str(path), "--text", "text", "--vectors", str(vectors), "--num_variants", "3", "--preview", "3"]
    assert main(words) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == f"{path}:2: 3 variants"
    assert lines[1] == "  =  good movie"
    assert f"{path}:3: as it was (columns)" in lines
    assert f"{path}:4: 0 variants" in lines
    assert not any("bad street" in line for line in lines)
    assert [p.name for p in tmp_path.iterdir()] == ["in.tsv"]


@pytest.mark.parametrize(("task", "count"), [("SST-2", 20), ("mnli", 10), ("sts-b", 30), (None, 20)])
def test_a_task_has_its_number_of_variants(run: Callable[..., bytes], task: str | None, count: int) -> None:
    flags = ("--text", "0", *(("--task", task) if task else ()))
    assert len(lines_of(run(f"{SENTENCES[0]}\n", *flags))) == 1 + count


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "mlm"], "--method is one of replace, eda"),
        (["--task", "wnli"], "--task is one of cola, mnli"),
        (["--p_t", "0"], "--p_t is a probability above 0"),
        (["--num_variants", "0"], "--num_variants must be at least 1"),
        (["--masked_share", "1"], r"--masked_share must be in \[0, 1\)"),
        (["--method", "eda", "--rate", "0"], "--rate must be between 0 and 1"),
        (["--method", "eda"], "--method eda takes no masked language model"),
        (["--text_b", "0"], "--text and --text_b are two columns"),
        (["--model", "nowhere"], "Received: nowhere, which is none of these"),
        (["--vectors", "nowhere"], "nowhere: the vectors cannot be read"),
        (["--user_dict", "nowhere"], "nowhere: a user dictionary is a UTF-8 file"),
        (["--columns", "text,source_id", "--header"], "the column for the id is a new one"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    tmp_path: Path, model: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.tsv").write_text("text\tsource_id\ngood movie\t1\n", encoding="utf-8")
    words = ["augment", str(tmp_path / "in.tsv"), "--text", "0", "--out", str(tmp_path / "out.tsv")]
    assert main([*words, "--model", str(model), *flags]) == 2
    assert re.search(message, error_line(capsys.readouterr().err))
    assert [path.name for path in tmp_path.iterdir()] == ["in.tsv"]


def test_a_model_must_have_its_head_and_room(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import load_file, save_file

    (tmp_path / "in.tsv").write_text("good\t1\n", encoding="utf-8")
    words = ["augment", str(tmp_path / "in.tsv"), "--text", "0", "--out", str(tmp_path / "out.tsv"), "--model"]
    headless = write_masked_lm(tmp_path / "headless")
    tensors = load_file(headless / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith("cls")}, headless / "model.safetensors")
    assert main([*words, str(headless)]) == 2
    assert "cls.predictions.transform.dense.weight is missing" in error_line(capsys.readouterr().err)
    assert main([*words, str(model / "config.json")]) == 2
    assert "a masked language model needs weights" in error_line(capsys.readouterr().err).lower()
    assert main([*words, str(write_masked_lm(tmp_path / "short", positions=8))]) == 2
    assert "Received: a model of 8 positions" in error_line(capsys.readouterr().err)
    assert main([*words, str(write_masked_lm(tmp_path / "no_mask", [t for t in TOKENS if t != "[MASK]"]))]) == 2
    assert "needs the token [MASK]" in error_line(capsys.readouterr().err)


def test_no_row_with_a_text_is_an_error(run: Callable[..., bytes], capsys: pytest.CaptureFixture[str]) -> None:
    run("a\nb\n", "--text", "3", name="in.tsv", code=2)
    assert "no row has a text in column '3'. Received: 2 rows (columns: 2)" in error_line(capsys.readouterr().err)
    assert run("", "--text", "0") == b""


def test_an_id_that_a_row_has_already_is_refused(run: Callable[..., bytes], capsys: pytest.CaptureFixture[str]) -> None:
    content = '{"text": "good"}\n{"text": "bad", "source_id": 1}\n'
    run(content, "--text", "text", name="in.jsonl", out="out.jsonl", code=2)
    assert "in.jsonl:2: the column for the id is a new one" in error_line(capsys.readouterr().err)
    run(content, "--text", "text", "--id_column", "none", name="in.jsonl", out="out.jsonl")
