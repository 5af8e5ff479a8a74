"""`preprocess vocab`: files in, vocab.txt out."""

import csv
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import orjson
import pytest

import preprocess.vocab
from preprocess.__main__ import main
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

ROOT = Path(__file__).parents[2]
SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "the lower the newest\nnewer and wider\nlow lower lowest\nthe new widest low\n"


def make(tmp_path: Path, content: str | bytes, *flags: str, name: str = "in.txt") -> list[str]:
    """Writes an input, makes a vocabulary of it, and returns its lines."""
    source, out = tmp_path / name, tmp_path / "vocab.txt"
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["vocab", str(source), "--out", str(out), "--workers", "1", *flags]) == 0
    data = out.read_bytes()
    assert data.endswith(b"\n")
    return data.decode().removesuffix("\n").split("\n")


def fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, *flags: str, name: str = "in.txt") -> str:
    """Runs into an error; returns its one line, and checks that nothing was written."""
    source, out = tmp_path / name, tmp_path / "vocab.txt"
    source.write_bytes(content)
    assert main(["vocab", str(source), "--out", str(out), "--workers", "1", *flags]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    return error[0]


def test_large_vocabularies_have_google_s_layout(tmp_path: Path) -> None:
    tokens = make(tmp_path, TEXT, "--size", "1000")
    assert tokens[0] == "[PAD]"
    assert tokens[1:100] == [f"[unused{i}]" for i in range(1, 100)]
    assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokens[104] == "d"  # the first character met twice


def test_small_vocabularies_begin_with_the_special_tokens_alone(tmp_path: Path) -> None:
    tokens = make(tmp_path, TEXT, "--size", "999")
    assert tokens[:5] == SMALL
    assert "[unused1]" not in tokens


def test_pieces_are_those_of_the_frequent_words(tmp_path: Path) -> None:
    tokens = make(tmp_path, TEXT, "--size", "60")
    assert {"the", "low", "lower"} <= set(tokens)
    assert "lowest" not in tokens  # met once
    assert len(set(tokens)) == len(tokens)


def test_the_size_is_exact_where_there_is_enough_text(tmp_path: Path) -> None:
    words = " ".join(f"{a}{b}{c}" for a in "abcdef" for b in "ghijkl" for c in "mnopqr")
    assert len(make(tmp_path, f"{words}\n{words}\n", "--size", "150")) == 150


def test_every_character_met_often_enough_is_in(tmp_path: Path) -> None:
    """More different characters than trainers keep by default (1,000)."""
    often = [chr(c) for c in range(0x4E00, 0x4E00 + 3000)]
    once = [chr(c) for c in range(0x6000, 0x6000 + 500)]
    tokens = set(make(tmp_path, "".join(often) * 2 + "".join(once) + "\n"))
    assert set(often) <= tokens
    assert not set(once) & tokens


def test_characters_inside_words_get_their_own_token(tmp_path: Path) -> None:
    tokens = make(tmp_path, "qx zx qx zy\n", "--size", "50", "--min_frequency", "2")
    assert {"q", "x", "z", "##x", "qx"} <= set(tokens)
    assert "##y" not in tokens  # met once
    assert "##q" not in tokens  # never inside a word


def test_the_most_frequent_characters_stay_where_there_is_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = make(tmp_path, "一一一一 二二二 三三 四四\n", "--size", "8")
    assert tokens == [*SMALL, "一", "三", "二"]
    assert "without room, left out: 1" in capsys.readouterr().out


def test_the_corpus_it_was_made_of_has_no_unknown_word(tmp_path: Path) -> None:
    """Words are split as our tokenizer splits them: CJK apart, accents dropped, odd blanks, combining marks."""
    lines = [
        "Ｆｕｌｌ width 你好，世界!",
        "naïve Σίσυφος ΟΔΟΣ",
        "a\u2028b\u0085c\u3000d\tе",
        "\u1100\u1161 각 \U00020000",
        "x" * 200,
    ]
    tokens = make(tmp_path, "\n".join(lines) + "\n", "--min_frequency", "1", "--size", "900")
    vocabulary = Vocabulary.load(tmp_path / "vocab.txt")
    assert vocabulary.tokens == tokens
    tokenizer = WordPieceTokenizer(vocabulary)
    assert not any(vocabulary.unk_id in tokenizer.encode(line) for line in lines)


def test_text_that_spells_a_special_token_is_ordinary_text(tmp_path: Path) -> None:
    tokens = make(tmp_path, "[MASK] [MASK] [SEP] [SEP]\n", "--size", "100")
    assert {"[", "]", "mask", "sep"} <= set(tokens)
    assert tokens.count("[MASK]") == 1


def test_cased_keeps_case_and_accents(tmp_path: Path) -> None:
    text = "Élan Élan\n"
    assert "elan" in make(tmp_path, text, "--size", "50")
    assert "Élan" in make(tmp_path, text, "--size", "50", "--cased")


def test_cleaning_rules_apply(tmp_path: Path) -> None:
    text = "see http://qqq.example/qqq\n" * 3
    assert any("q" in token for token in make(tmp_path, text, "--size", "90")[5:])
    assert not any("q" in token for token in make(tmp_path, text, "--size", "90", "--clean", "url_remove")[5:])


ROWS = [("1", "kind words"), ("2", "kind words, truly")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.tsv", "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in ROWS)),
        ("in.csv", "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in ROWS)),
        ("in.jsonl", "".join(orjson.dumps({"id": i, "text": text}).decode() + "\n" for i, text in ROWS)),
    ],
)
def test_columns_of_every_format(tmp_path: Path, name: str, content: str) -> None:
    tokens = make(tmp_path, content, "--text", "text", "--size", "60", name=name)
    assert {"kind", "words"} <= set(tokens)
    assert not {"1", "2", "id"} & set(tokens)


def test_several_columns(tmp_path: Path) -> None:
    content = "aa\tbb\tcc\naa\tbb\tcc\n"
    tokens = make(tmp_path, content, "--text", "0,-1", "--size", "60", name="in.tsv")
    assert {"aa", "cc"} <= set(tokens)
    assert "bb" not in tokens


def test_a_file_of_columns_needs_to_know_its_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "in.tsv: a tsv file needs --text" in fails(tmp_path, capsys, b"a\tb\n", name="in.tsv")
    assert {"a", "b"} <= set(make(tmp_path, "a\tb\na\tb\n", "--format", "text", "--size", "20", name="in.tsv"))


def test_settings_that_cannot_work_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--size must be at least 6" in fails(tmp_path, capsys, b"a\n", "--size", "5")
    assert "--min_frequency" in fails(tmp_path, capsys, b"a\n", "--min_frequency", "0")
    assert "cleaning rule" in fails(tmp_path, capsys, b"a\n", "--clean", "nonsense")


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t \n"])
def test_input_without_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    assert "in.txt: a vocabulary needs text" in fails(tmp_path, capsys, content, "--format", "text")


def test_bad_rows_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = b"good good\n" * 9 + b"\xff\xfe\n"
    assert "Received: 1 of 10 (encoding: 1)" in fails(tmp_path, capsys, content)
    assert "good" in make(tmp_path, content, "--size", "40", "--max_bad_rows", "0.1")
    assert "10 rows read = 9 used + 1 unusable" in capsys.readouterr().out


def test_a_failed_run_keeps_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "vocab.txt"
    out.write_text("old", encoding="utf-8")
    (tmp_path / "in.txt").write_bytes(b"")
    assert main(["vocab", str(tmp_path / "in.txt"), "--out", str(out), "--workers", "1"]) == 2
    assert out.read_text(encoding="utf-8") == "old"


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a a\n", encoding="utf-8")
    assert main(["vocab", str(source), "--out", str(source), "--workers", "1"]) == 2
    assert source.read_text(encoding="utf-8") == "a a\n"


def test_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install tokenizers" in fails(tmp_path, capsys, b"a a\n")


def test_the_summary_tells_the_share_of_unknown_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "known known known rare\n" * 4 + "ŵ once\n"
    make(tmp_path, text, "--size", "40")
    out = capsys.readouterr().out
    vocabulary = Vocabulary.load(tmp_path / "vocab.txt")
    tokenizer = WordPieceTokenizer(vocabulary)
    words = [word for line in text.splitlines() for word in tokenizer.words(line)]
    unknown = sum(vocabulary.unk_id in tokenizer.encode(word) for word in words)
    assert unknown > 0
    assert f"[UNK] with this vocabulary: {unknown / len(words):.2%}" in out
    assert f"words: {len(words)}" in out


def test_rare_words_are_dropped_to_bound_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preprocess.vocab, "MAX_WORDS", 100)
    text = "".join(f"frequent word{i}\n" for i in range(2000))
    tokens = make(tmp_path, text, "--size", "200", "--chunk_bytes", "1000")
    assert "frequent" in tokens
    assert {*"0123456789"} <= {token.removeprefix("##") for token in tokens}  # characters are counted all the same
    assert "rare words dropped to bound memory: " in capsys.readouterr().out


def test_large_counts_are_divided_for_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "often often often rare\n" * 1500
    expected = make(tmp_path, text, "--size", "40", "--min_frequency", "100")
    monkeypatch.setattr(preprocess.vocab, "MAX_TRAINED", 60)
    assert make(tmp_path, text, "--size", "40", "--min_frequency", "100") == expected
    assert {"often", "rare"} <= set(expected)


def test_the_same_bytes_on_every_run(tmp_path: Path) -> None:
    """Equal counts everywhere, so that every tie must be broken by rule."""
    words = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{word}\n" for word in words for _ in range(3)), encoding="utf-8")
    made = set()
    for seed, workers, chunk_bytes in (("0", "1", "1000000"), ("1", "2", "100"), ("2", "1", "7")):
        out = tmp_path / f"vocab{seed}.txt"
        command = [sys.executable, "-m", "preprocess", "vocab", str(source), "--out", str(out), "--size", "70"]
        command += ["--workers", workers, "--chunk_bytes", chunk_bytes]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True)
        made.add(out.read_bytes())
    assert len(made) == 1


def test_real_reviews(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shared_data / "zh/chnsenticorp/dev.tsv"
    out = tmp_path / "vocab.txt"
    assert main(["vocab", str(source), "--text", "text_a", "--out", str(out), "--size", "4000", "--workers", "2"]) == 0
    vocabulary = Vocabulary.load(out)
    tokenizer = WordPieceTokenizer(vocabulary)
    with source.open(encoding="utf-8", newline="\n") as file:
        texts = [row["text_a"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    counts = Counter(char for text in texts for word in tokenizer.words(text) for char in word)
    assert {char for char, count in counts.items() if count >= 2} <= set(vocabulary.tokens)
    ids = [i for text in texts for i in tokenizer.encode(text)]
    assert 0 < ids.count(vocabulary.unk_id) / len(ids) < 0.01
    assert "1,200 rows read = 1,200 used + 0 unusable" in capsys.readouterr().out
