"""`preprocess inspect`: a data set in numbers, rows and charts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preprocess.__main__ import main

ROOT = Path(__file__).parents[2]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##b", "好", "坏", *"0123456789"]
PNG = b"\x89PNG\r\n\x1a\n"


def encoded(tmp_path: Path, content: str, *flags: str) -> Path:
    source, vocab, data = tmp_path / "in.tsv", tmp_path / "vocab.txt", tmp_path / "data"
    source.write_text(content, encoding="utf-8")
    vocab.write_text("".join(f"{token}\n" for token in TOKENS), encoding="utf-8")
    command = ["encode", str(source), "--vocab", str(vocab), "--out", str(data), "--text", "0", "--workers", "1"]
    assert main([*command, "--max_len", "16", *flags]) == 0
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """101 rows `a`, `a 1`, ... in three classes."""
    rows = "".join(f"ab {i}\t{('good', 'bad', 'so_so')[i % 3]}\tt{i}\t{1 + i % 2}\n" for i in range(101))
    flags = ["--label", "1", "--type", "2", "--weight", "3", "--clean", "url,spaces", "--val_fraction", "0.1"]
    return encoded(tmp_path_factory.mktemp("inspect"), rows, *flags, "--filter", "1!=none", "--seed", "7")


def look(capsys: pytest.CaptureFixture[str], data: Path, *flags: str) -> list[str]:
    capsys.readouterr()
    assert main(["inspect", str(data), *flags]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


def rows_of(lines: list[str]) -> list[tuple[int, str, str]]:
    """(number, facts, text) of every sample row."""
    at = [i for i, line in enumerate(lines) if line.startswith("    row ")]
    split = [lines[i].removeprefix("    row ").split(": ", 1) for i in at]
    return [(int(n.replace(",", "")), facts, lines[i + 1].strip()) for (n, facts), i in zip(split, at, strict=True)]


def test_the_manifest_in_words(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(look(capsys, data, "--no_charts"))
    for fact in (
        f"train from {data.parent / 'in.tsv'}: 101 lines, ",
        "text 0; label 1; type 2; weight 3; filters 1!=none",
        "wordpiece, uncased; single texts; max_len 16; vocabulary of 28 tokens",
        "cleaning: url, spaces",
        "task: classify, 3 labels",
        "validation split: 10.00% by hash of the text, stratified by label; seed 7",
        "101 rows read = 101 kept + 0 rejected",
    ):
        assert fact in text


def test_rows_are_spread_over_the_part(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = rows_of(look(capsys, data, "--no_charts", "--rows", "4"))
    assert [number for number, _, _ in rows] == [0, (len(lines) - 1) // 3, 2 * (len(lines) - 1) // 3, len(lines) - 1]


def test_rows_are_decoded(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(look(capsys, data, "--no_charts", "--rows", "1000"))
    assert [number for number, _, _ in rows] == list(range(len(rows)))
    texts = {text: facts for _, facts, text in rows}
    number = next(i for i in (9, 3, 5, 7) if f"[CLS] ab {i} [SEP]" in texts)
    label = ("good (id 1)", "bad (id 0)", "so_so (id 2)")[number % 3]
    assert texts[f"[CLS] ab {number} [SEP]"] == f"label {label}, 5 tokens, weight 2, type t{number}"
    assert not rows_of(look(capsys, data, "--no_charts", "--rows", "0"))


def test_another_part(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = {facts for _, facts, _ in rows_of(look(capsys, data, "--no_charts", "--rows", "1000"))}
    val = {facts for _, facts, _ in rows_of(look(capsys, data, "--no_charts", "--rows", "1000", "--part", "val"))}
    assert len(train) + len(val) == 101
    assert not train & val


def test_charts(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    for flags, folder, part in (([], data, "train"), (["--out", str(tmp_path), "--part", "val"], tmp_path, "val")):
        look(capsys, data, *flags)
        for name in ("lengths", "labels"):
            height, width, _ = imread(folder / f"{part}_{name}.png").shape
            assert width > 600
            assert height > 200
    assert sorted(p.name for p in tmp_path.iterdir()) == ["val_labels.png", "val_lengths.png"]


def test_charts_need_matplotlib_alone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["inspect", str(data), "--out", str(tmp_path)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    look(capsys, data, "--out", str(tmp_path), "--no_charts")
    assert not list(tmp_path.iterdir())


def test_label_names_that_are_hard_to_draw(tmp_path: Path) -> None:
    """Chinese, mathematics, a leading underscore, an emoji, and a long one: every warning would be an error."""
    names = ["好评", "$x_{$", "_hidden", "\U0001f600", "very long name " * 9]
    data = encoded(tmp_path, "".join(f"a {i}\t{name}\n" for i, name in enumerate(names * 3)), "--label", "1")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "preprocess", "inspect", str(data)],
        cwd=ROOT, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "好评 3" in done.stdout
    assert (data / "train_labels.png").read_bytes().startswith(PNG)


def test_many_labels_and_a_long_tail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"a {'b ' * (i % 7)}\tname{i}\n" for i in range(150)) + "c " * 5000 + "\tname0\n"
    data = encoded(tmp_path, rows, "--label", "1", "--val_fraction", "0")
    look(capsys, data)
    for name in ("lengths", "labels"):
        assert (data / f"train_{name}.png").read_bytes().startswith(PNG)


def test_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "".join(f"a {i}\tb\t{i / 3}\n" for i in range(9))
    flags = ["--text_b", "1", "--label", "2", "--task", "regression", "--val_fraction", "0"]
    data = encoded(tmp_path, content, *flags)
    lines = look(capsys, data, "--rows", "1")
    assert rows_of(lines) == [(4, f"label {4 / 3}, 6 tokens", "[CLS] a 4 [SEP] b [SEP]")]
    assert "pairs of texts" in "\n".join(lines)
    assert (data / "train_labels.png").read_bytes().startswith(PNG)


def test_several_labels_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--label", "1", "--task", "multilabel", "--val_fraction", "0"]
    data = encoded(tmp_path, "a\tx,y\nb\ty\nc\t\n", *flags)
    lines = look(capsys, data)
    assert "    labels: y 2, x 1" in lines
    facts = [facts for _, facts, _ in rows_of(lines)]
    assert facts == ["labels x (id 0), y (id 1), 3 tokens", "labels y (id 1), 3 tokens", "labels none, 3 tokens"]
    assert (data / "train_labels.png").read_bytes().startswith(PNG)


def test_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = encoded(tmp_path, "a\tk\nb\tl\n", "--keep", "1", "--val_fraction", "0")
    lines = look(capsys, data)
    assert rows_of(lines)[0] == (0, '3 tokens, keep {"1":"k"}', "[CLS] a [SEP]")
    assert "  task: none, there are no labels" in lines
    assert sorted(p.name for p in data.glob("*.png")) == ["train_lengths.png"]


def test_an_empty_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = encoded(tmp_path, "", "--label", "1")
    assert "  no charts: train has no rows" in look(capsys, data)
    assert not list(data.glob("*.png"))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["inspect", *argv]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    return error[0]


def test_what_is_no_data_set_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no data set here" in refused(capsys, str(tmp_path))
    assert "--part is one of train, val. Received: test" in refused(capsys, str(data), "--part", "test")
    assert "--rows must be at least 0" in refused(capsys, str(data), "--rows", "-1")
    assert "--out names an existing folder" in refused(capsys, str(data), "--out", str(tmp_path / "no"))


def test_a_changed_data_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = encoded(tmp_path, "a\tx\nj\ty\nc\tx\n", "--label", "1", "--val_fraction", "0")
    rows = (data / "train.jsonl").read_bytes()
    for other, message in ((b"[2,99,3]", "train.jsonl:2: a token id is a line"), (b"[2,14 3]", "train.jsonl:2: ")):
        changed = rows.replace(b"[2,14,3]", other)
        assert changed != rows
        (data / "train.jsonl").write_bytes(changed)
        assert message in refused(capsys, str(data))
    (data / "train.jsonl").write_bytes(b"".join(rows.splitlines(keepends=True)[:2]))
    (data / "train.idx").unlink()
    assert "2 rows, 3 in the manifest" in refused(capsys, str(data))
    (data / "vocab.txt").write_bytes((data / "vocab.txt").read_bytes() + b"more\n")
    assert "not the vocabulary" in refused(capsys, str(data))


def test_real_titles(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_data / "zh/thucnews"
    vocab = shared_data / "vocab/bert-base-chinese/vocab.txt"
    command = ["encode", str(folder / "dev.txt"), "--vocab", str(vocab), "--out", str(tmp_path / "data")]
    command += ["--text", "0", "--label", "1", "--max_len", "32", "--workers", "2", "--val_fraction", "0"]
    assert main(command) == 0
    rows = rows_of(look(capsys, tmp_path / "data", "--rows", "3"))
    lines = (folder / "dev.txt").read_text(encoding="utf-8").split("\n")
    for number, facts, text in rows:
        title, label = lines[number].split("\t")
        assert facts.startswith(f"label {label}, ")
        assert text.startswith("[CLS] " + title[0].lower())
