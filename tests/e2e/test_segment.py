"""`preprocess segment`: one column cut into words, every row in its place."""

import csv
import gzip
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import preprocess.pool
from preprocess.__main__ import main

ROOT = Path(__file__).parents[2]
TEXTS = [
    "a\nb",
    "",
    "c\r",
    "  d",
    "我来到北京清华大学",
    "小明硕士毕业于\t中国科学院\r\n计算所",
    "他说：“杭研 大厦”",
    "x\u2028y\u0085z",
]
Cut = Callable[[str], str]


@pytest.fixture(scope="module")
def jieba_module() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(60)
    return jieba


@pytest.fixture(scope="module")
def cut(jieba_module: Any) -> Cut:
    """Each text alone, by jieba itself."""
    tokenizer = jieba_module.Tokenizer()
    return lambda text: " ".join(tokenizer.cut(text))


def run(tmp_path: Path, content: bytes, name: str, *flags: str, out: str = "") -> bytes:
    source, target = tmp_path / name, tmp_path / (out or f"out.{name}")
    source.write_bytes(content)
    assert main(["segment", str(source), "--out", str(target), "--workers", "1", *flags]) == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    return target.read_bytes()


def jsonl(texts: list[str]) -> bytes:
    return b"".join(orjson.dumps({"id": i, "text": text}) + b"\n" for i, text in enumerate(texts))


def csv_of(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode()


@pytest.mark.parametrize(("workers", "chunk_bytes"), [("1", "100000"), ("1", "1"), ("2", "20")])
def test_jsonl_rows_stay_in_their_place(tmp_path: Path, cut: Cut, workers: str, chunk_bytes: str) -> None:
    """Case 030: line ends inside texts, empty texts, blanks; equal for every worker count and chunk size."""
    data = run(tmp_path, jsonl(TEXTS), "in.jsonl", "--text", "text", "--workers", workers, "--chunk_bytes", chunk_bytes)
    assert data == jsonl([cut(text) for text in TEXTS])


@pytest.mark.parametrize("chunk_bytes", ["100000", "1"])
def test_csv_rows_stay_in_their_place(tmp_path: Path, cut: Cut, chunk_bytes: str) -> None:
    """Case 030, with line ends inside quotes."""
    rows = [["id", "text", "more"], *([str(i), text, f'"{text}",'] for i, text in enumerate(TEXTS))]
    data = run(tmp_path, csv_of(rows), "in.csv", "--text", "text", "--chunk_bytes", chunk_bytes)
    assert data == csv_of([rows[0], *([i, cut(text), more] for i, text, more in rows[1:])])


def test_tsv_keeps_every_other_byte(tmp_path: Path, cut: Cut) -> None:
    """Byte-order mark, header, quotes, blanks at the ends, CRLF, blank lines, a last line without its end."""
    before = (
        b'\xef\xbb\xbfid\ttext\tmore \r\n1\t\xe6\x88\x91\xe6\x9d\xa5\xe5\x88\xb0\xe5\x8c\x97\xe4\xba\xac\t"a\r\n\r\n'
    )
    before += b' 2\t"x"y\t\n3\t\ta\rb\r\n4\tend\t \xc2\xa0'
    data = run(tmp_path, before, "in.tsv", "--text", "text")
    expected = before.replace("我来到北京".encode(), cut("我来到北京").encode()).replace(b'"x"y', cut('"x"y').encode())
    assert data == expected != before


def test_tsv_columns_by_number(tmp_path: Path, cut: Cut) -> None:
    content = "北京大学\t北京大学\t1\n".encode()
    assert run(tmp_path, content, "in.txt", "--text", "-2") == f"北京大学\t{cut('北京大学')}\t1\n".encode()


def test_text_files_are_cut_line_by_line(tmp_path: Path, cut: Cut) -> None:
    lines = ["我来到北京清华大学", "", "  d", "a\tb", "x\u2028y"]
    data = run(tmp_path, "\n".join(lines).encode(), "in.txt", "--text", "0", "--format", "text")
    assert data == "\n".join(cut(line) for line in lines).encode()


def test_jsonl_keeps_every_other_byte(tmp_path: Path, cut: Cut) -> None:
    r"""Large numbers, escapes, spaces, equal keys, the same key deeper down."""
    text = "我来到北京"
    line = (
        '{ "n":123456789012345678901234567890, "e": 1e5,"text" : "old", "deep": {"text": [1, {"text": "我来到北京"}]}, '
    )
    line += r'"s":"\u4e2d\"\\", "text":  "\u6211\u6765\u5230北京" , "z": null}' + " \r\n"
    data = run(tmp_path, line.encode(), "in.jsonl", "--text", "text")
    assert data.decode() == line.replace(r'"\u6211\u6765\u5230北京"', f'"{cut(text)}"')


def test_rows_that_cannot_be_cut_pass_unchanged(tmp_path: Path, cut: Cut, capsys: pytest.CaptureFixture[str]) -> None:
    good = "北京大学"
    rows = [f"1\t{good}".encode(), b"2\t\xff\xfe", b"3", b"", f"5\t{good}".encode()]
    data = run(tmp_path, b"\n".join(rows) + b"\n", "in.tsv", "--text", "1")
    changed = f"\t{cut(good)}".encode()
    assert data.split(b"\n") == [b"1" + changed, *rows[1:4], b"5" + changed, b""]
    out = capsys.readouterr().out
    assert "5 rows = 2 cut into" in out
    assert "3 passed through unchanged" in out
    for reason in ("encoding: 1", "columns: 1", "blank: 1"):
        assert f"unchanged, {reason}" in out


def test_jsonl_rows_that_cannot_be_cut_pass_unchanged(
    tmp_path: Path, cut: Cut, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [
        b"{broken",
        b'{"id": 1}',
        b'{"text": 12}',
        b'{"text": null}',
        b"[1]",
        b'{"text": "\\ud800"}',
        b" ",
        b'{"text": "\xff"}',
    ]
    data = run(tmp_path, b"\n".join([*odd, jsonl(["北京大学"])]), "in.jsonl", "--text", "text")
    assert data == b"\n".join([*odd, jsonl([cut("北京大学")])])
    assert "8 passed through unchanged" in capsys.readouterr().out


def test_csv_rows_that_cannot_be_cut_pass_unchanged(tmp_path: Path, cut: Cut) -> None:
    odd = b'1,"\xff\n\xfe",x\r\n\r\n2\r\n'
    data = run(tmp_path, b"id,text,more\n" + odd + "3,北京大学,'\n".encode(), "in.csv", "--text", "text")
    assert data == b"id,text,more\n" + odd + f"3,{cut('北京大学')},'\n".encode()


def test_words_of_the_user_dictionary_stay_whole(tmp_path: Path, jieba_module: Any) -> None:
    """Case 032: every worker loads the dictionary before its first text."""
    words = tmp_path / "words.txt"
    words.write_text("\ufeff石墨烯电池 100 n\n\n云计算服务\n", encoding="utf-8")
    tokenizer = jieba_module.Tokenizer()
    tokenizer.load_userdict(str(words))
    texts = ["石墨烯电池很好", "买云计算服务"] * 20
    flags = ["--text", "0", "--format", "text", "--user_dict", str(words), "--workers", "2", "--chunk_bytes", "50"]
    data = run(tmp_path, "\n".join(texts).encode(), "in.txt", *flags)
    assert data.decode().split("\n") == [" ".join(tokenizer.cut(text)) for text in texts]
    assert "石墨烯电池 " in data.decode()


def test_without_the_hidden_markov_model(tmp_path: Path, jieba_module: Any, cut: Cut) -> None:
    text = "他来到了网易杭研大厦"
    expected = " ".join(jieba_module.Tokenizer().cut(text, HMM=False))
    assert expected != cut(text)
    flags = ["--text", "0", "--format", "text"]
    assert run(tmp_path, text.encode(), "in.txt", *flags, "--no_hmm").decode() == expected


def test_many_texts_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 031: the pool is asked about once a chunk, not once a text."""
    tasks = 0

    class Counting(preprocess.pool.ProcessPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal tasks
            tasks += 1
            return super().submit(*args, **kwargs)

    monkeypatch.setattr(preprocess.pool, "ProcessPoolExecutor", Counting)
    run(tmp_path, "短文\n".encode() * 1000, "in.txt", "--text", "0", "--format", "text")
    assert 0 < tasks < 20


def test_jieba_s_own_parallel_mode_is_not_needed(tmp_path: Path, cut: Cut) -> None:
    """Case 033: a platform on which jieba cannot fork, without the hidden Markov model; quietly."""
    (tmp_path / "sitecustomize.py").write_text(
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    import jieba\n"
        "def refuse(*_):\n    raise NotImplementedError('jieba: parallel mode only supports posix system')\n"
        "jieba.enable_parallel = jieba.disable_parallel = refuse\n",
        encoding="utf-8",
    )
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("我来到北京清华大学\n", encoding="utf-8")
    command = [sys.executable, "-m", "preprocess", "segment", str(source), "--out", str(out), "--text", "0"]
    done = subprocess.run(
        [*command, "--format", "text", "--workers", "2", "--no_hmm"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_text(encoding="utf-8") == cut("我来到北京清华大学") + "\n"


def test_compressed_files(tmp_path: Path, cut: Cut) -> None:
    content = gzip.compress(b"\xef\xbb\xbfid\ttext\n" + "1\t北京大学\n".encode())
    expected = f"\ufeffid\ttext\n1\t{cut('北京大学')}\n".encode()
    assert run(tmp_path, content, "in.tsv.gz", "--text", "text", out="out.tsv") == expected
    compressed = run(tmp_path, content, "in.tsv.gz", "--text", "text", out="out.tsv.gz")
    assert gzip.decompress(compressed) == expected
    assert compressed[3:8] == bytes(5)  # no name and no time in it: the same input gives the same bytes


def test_the_second_segmenter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in with the interface of rjieba, found by the workers on the path."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "rjieba.py").write_text("def cut(text, hmm=True):\n    return [*text, str(hmm)]\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    flags = ["--text", "0", "--format", "text", "--segmenter", "rjieba"]
    assert run(tmp_path, b"ab\n", "in.txt", *flags, "--no_hmm") == b"a b False\n"
    command = ["segment", str(tmp_path / "in.txt"), "--out", str(tmp_path / "o"), *flags]
    assert main([*command, "--user_dict", str(tmp_path / "in.txt")]) == 2
    assert "rjieba takes no user dictionary" in capsys.readouterr().err


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, name: str, *flags: str) -> str:
    """Runs into an error; returns its one line, and checks that an older output is still there, alone."""
    source, out = tmp_path / name, tmp_path / "out"
    source.write_bytes(content)
    out.write_bytes(b"old")
    before = sorted(tmp_path.iterdir())
    assert main(["segment", str(source), "--out", str(out), "--workers", "1", *flags]) == 2
    assert sorted(tmp_path.iterdir()) == before
    assert (source.read_bytes(), out.read_bytes()) == (content, b"old")
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    return error[0]


@pytest.mark.parametrize("package", ["jieba", "rjieba"])
def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(tmp_path, capsys, b"a\n", "in.txt", "--text", "0", "--segmenter", package)
    assert f"pip install {package}" in error


def test_what_cannot_work_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = b"a\tb\n"
    words = tmp_path / "words"
    words.write_bytes(b"ok\n\xff\xfe\n")
    assert "no column 'body'" in refused(tmp_path, capsys, row, "in.tsv", "--text", "body")
    assert "no row has a text in column '5'" in refused(tmp_path, capsys, row, "in.tsv", "--text", "5")
    assert "--segmenter is one of" in refused(tmp_path, capsys, row, "in.tsv", "--text", "0", "--segmenter", "x")
    assert "words: a user dictionary" in refused(
        tmp_path, capsys, row, "in.tsv", "--text", "0", "--user_dict", str(words)
    )
    assert "nowhere" in refused(tmp_path, capsys, row, "in.tsv", "--text", "0", "--user_dict", "nowhere")
    for target, message in (
        ("in.tsv", "another file"),
        ("no/where", "existing folder"),
        ("x.csv", "has the format"),
        ("x.zst", "plain or .gz"),
    ):
        error = refused(tmp_path, capsys, row, "in.tsv", "--text", "0", "--out", str(tmp_path / target))
        assert message in error


def test_an_empty_file_stays_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, b"", "in.tsv", "--text", "0") == b""
    assert run(tmp_path, b"id\ttext\n", "in.tsv", "--text", "text") == b"id\ttext\n"
    assert "no text to cut" in capsys.readouterr().err


def test_real_titles(tmp_path: Path, shared_data: Path, cut: Cut) -> None:
    lines = (shared_data / "zh/thucnews/dev.txt").read_bytes().split(b"\n")[:1000]
    data = run(tmp_path, b"\n".join(lines), "in.txt", "--text", "0", "--workers", "2", "--chunk_bytes", "5000")
    rows = [line.decode().split("\t") for line in lines]
    assert data.decode().split("\n") == [f"{cut(title)}\t{label}" for title, label in rows]
