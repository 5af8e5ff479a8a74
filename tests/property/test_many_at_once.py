"""What is done for many rows at once equals what is done for one after the other: ids, packing, lines, columns."""

import string
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfbert.data.columns import FieldReader, Roles
from tfbert.data.labels import LabelReader
from tfbert.data.record import Record, dump, dump_rows
from tfbert.data.source import RowError, chunks, open_source, read_columns, read_rows
from tfbert.text import batch
from tfbert.text.batch import BatchTokenizer
from tfbert.text.row_encoder import EncodingSettings, RowEncoder
from tfbert.text.wordpiece import Vocabulary, WordPieceTokenizer

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *string.printable.strip(),
    *"你好界ßǆςσιаб가ᄀ😀",
    "un",
    "hello",
]
TOKENS += [f"##{token}" for token in TOKENS[5:]] + ["##llo", "##123", "ab", "##ab", "##aaa"]
VOCABULARY = Vocabulary(TOKENS)
ONE_BY_ONE = {cased: WordPieceTokenizer(VOCABULARY, cased) for cased in (False, True)}
AT_ONCE = {cased: BatchTokenizer(WordPieceTokenizer(VOCABULARY, cased)) for cased in (False, True)}

# Blanks of several kinds, characters that vanish, that look at their neighbours, that become several, that stand
# alone with and without a piece; outside of the 16-bit range; halves of surrogate pairs.
NASTY = [
    *"aZb1'.,- \t\n\r\0\x01\x0b\x1c\x85\xa0\xad\u1680\u2028\u2029\u3000\u200b\u200d\ufeff\ufffd",
    *"ΣσςΑΆ\u0345éÅİıẞǅŉ\u0300\u0301\u0327\u093c\u302e\u302f\U0001d165\U0001d16d가각ᄀ",
    *"你好中〇豈﨎\U0002f800\U00020000\U00030000，！＂￥·“”;`´",
    *"\ue000\U0010ffff\U000e0001👩❤\ufe0f\ud83d\ude00\udfff",
    *("hello", "HELLO", "[SEP]", "##ab", "a" * 200, "b" * 201, "Σ" * 3, "ΟΔΥΣΣΕΥΣ"),
]
TEXT = st.lists(st.one_of(st.sampled_from(NASTY), st.characters()), max_size=12).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.lists(TEXT, max_size=8), st.sampled_from([1, 7, 1 << 18]), st.sampled_from([0, 2, 100_000]))
@example(["\ud83d", "\ude00"], 100, 100)
@example(["\ud83d\ude00", "你\ud83d"], 100, 100)
@example(["", "", "Σ", ""], 100, 100)
@example([" Σ", "Σ\n", "Σ你Σ"], 1, 0)
def test_ids(texts: list[str], group_chars: int, cached: int) -> None:
    for cased, tokenizer in ONE_BY_ONE.items():
        expected = [tokenizer.encode(text) for text in texts]
        new = BatchTokenizer(WordPieceTokenizer(VOCABULARY, cased)) if cached < 100 else AT_ONCE[cased]
        with patch.object(batch, "GROUP_CHARS", group_chars), patch.object(batch, "MAX_CACHED_RUNS", cached):
            for _ in range(2):  # the second time everything that is kept is known
                rows = new.encode(texts)
                assert rows.lengths.tolist() == [len(ids) for ids in expected]
                assert rows.token_ids.tolist() == [i for ids in expected for i in ids]
                assert rows.token_ids.dtype == np.int32


@pytest.mark.parametrize("text", ["a" * 300_000, "你" * 300_000, "\u0301" * 300_000, "Σ" * 300_000, "ab你 " * 80_000])
def test_ids_of_a_long_text(text: str) -> None:
    for cased, tokenizer in ONE_BY_ONE.items():
        rows = AT_ONCE[cased].encode(["好", text, text[:10]])
        assert rows.token_ids.tolist() == [i for t in ("好", text, text[:10]) for i in tokenizer.encode(t)]


def test_what_is_kept_of_rare_runs_is_bounded() -> None:
    tokenizer = BatchTokenizer(WordPieceTokenizer(VOCABULARY))
    with patch.object(batch, "MAX_CACHED_RUNS", 100):
        for first in range(0, 5000, 50):
            tokenizer.encode([f"hello{number} {number}" for number in range(first, first + 50)])
    runs = tokenizer._runs
    assert len(runs) == 100
    assert len(runs._pieces) <= 100 + 2 * 50


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=6),
    st.booleans(),
    st.booleans(),
    st.integers(4, 20),
    st.sampled_from(["none", "spaces,fullwidth"]),
)
def test_rows(texts: list[tuple[str, str]], pair: bool, cased: bool, max_len: int, clean: str) -> None:
    encoder = RowEncoder(VOCABULARY, EncodingSettings(max_len, cased, clean, pair))  # type: ignore[arg-type]
    packed = encoder.encode_rows([a for a, _ in texts], [b for _, b in texts] if pair else None)
    expected = [encoder.encode(a, b if pair else None) for a, b in texts]
    assert packed.token_ids.tolist() == [i for ids, _, _ in expected for i in ids]
    assert packed.lengths.tolist() == [len(ids) for ids, _, _ in expected]
    assert packed.full_lengths.tolist() == [length for _, _, length in expected]
    assert packed.first_lengths.tolist() == [len(ids) - sum(segments or []) for ids, segments, _ in expected]


@pytest.mark.parametrize("pair", [False, True])
def test_rows_of_another_kind_are_refused(pair: bool) -> None:
    encoder = RowEncoder(VOCABULARY, EncodingSettings(16, False, (), pair))
    with pytest.raises(ValueError, match="The rows of this encoder are"):
        encoder.encode_rows(["a"], None if pair else ["b"])


def test_pairs_lose_as_one_by_one() -> None:
    for max_len in range(4, 14):
        encoder = RowEncoder(VOCABULARY, EncodingSettings(max_len, False, (), True))
        a, b = zip(*(("a " * i, "b " * j) for i in range(12) for j in range(12)), strict=True)
        packed = encoder.encode_rows(a, b)
        expected = [encoder.encode(*texts) for texts in zip(a, b, strict=True)]
        assert packed.token_ids.tolist() == [i for ids, _, _ in expected for i in ids]
        assert packed.first_lengths.tolist() == [(segments or []).count(0) for _, segments, _ in expected]


IDS = st.one_of(st.integers(0, 12), st.sampled_from([9, 10, 99, 100, 999, 1000, 21127, 99_999, 100_000, 2**31 - 1]))
FIELD = st.text(max_size=4)
LABELS = {
    "classify": st.integers(0, 10_000),
    "regression": st.floats(allow_nan=False, allow_infinity=False),
    "multilabel": st.lists(st.integers(0, 300), max_size=3),
}


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    pair, typed, weighted, kept = (draw(st.booleans()) for _ in range(4))
    label = draw(st.sampled_from([st.none(), *LABELS.values()]))
    made = []
    for _ in range(draw(st.integers(0, 6))):
        ids = draw(st.lists(IDS, min_size=2, max_size=8))
        first = draw(st.integers(1, len(ids) - 1))
        made.append(
            Record(
                ids,
                [0] * first + [1] * (len(ids) - first) if pair else None,
                draw(label),
                draw(st.sampled_from([1.0, 0.0, 0.1, 2.0, 1e300])) if weighted else 1.0,
                draw(FIELD) if typed else None,
                {"k": draw(FIELD), 'n"': draw(FIELD)} if kept else None,
            )
        )
    return made


@settings(max_examples=300, deadline=None)
@given(records())
def test_lines(rows: list[Record]) -> None:
    def column(name: str) -> list[Any] | None:
        values = [getattr(row, name) for row in rows]
        return None if None in values else values

    first = [(row.segment_ids or []).count(0) for row in rows]
    kept = column("keep")
    lines = dump_rows(
        np.array([i for row in rows for i in row.token_ids], np.int32),
        np.array([len(row.token_ids) for row in rows], np.int64),
        np.array(first, np.int64) if column("segment_ids") else None,
        labels=column("label"),
        weights=column("weight"),
        types=column("type"),
        keep={name: [row[name] for row in kept] for name in ("k", 'n"')} if kept else None,
    )
    assert lines == [dump(row) for row in rows]


LINE_PIECES = st.sampled_from([b"a", b"\t", b"\t", b"\n", b"\r", b"\r\n", b" ", "标\u2028".encode(), b"\xff", b"\0"])
LINES = st.one_of(
    st.lists(LINE_PIECES, max_size=20).map(b"".join),
    st.lists(st.tuples(*[st.sampled_from([b"", b"a", b"\r", b" ", "标".encode()])] * 3), max_size=6).map(
        lambda rows: b"\n".join(b"\t".join(row) for row in rows)
    ),
)


@settings(max_examples=500, deadline=None)
@given(
    LINES,
    st.sampled_from([["0"], ["0", "-1"], ["1", "0"], ["-3", "2"], ["-1"], ["3"], ["x", "-1"]]),
    st.sampled_from(["tsv", "text", "csv", "jsonl"]),
    st.sampled_from([None, "x,y,0", "x"]),
    st.booleans(),
    st.booleans(),
)
@example(b"\t\t\r\na\tb\tc\r", ["0", "-1"], "tsv", None, False, False)
@example(b"a\tb\nc", ["0"], "tsv", None, False, True)
@example(b"\n\n", ["0"], "tsv", None, False, True)
@example(b"\n\n", ["x", "-1"], "tsv", "x", False, True)
@example(b"\t\n\n\t", ["0"], "tsv", None, False, True)
def test_columns_of_a_chunk(
    data: bytes, wanted: list[str], format: str, names: str | None, replace: bool, end: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in"
        path.write_bytes(data + b"\n" * end)
        if format in ("text", "jsonl"):
            wanted, names = ["0"], None
        names = "x" if names is None and "x" in wanted else names
        columns = names.split(",") if names else None
        source = open_source(path, wanted, format=format, columns=columns, replace_bad_bytes=replace)
        for chunk in chunks(source, 1 << 20):
            try:
                rows = list(read_rows(chunk))
            except Exception as error:  # noqa: BLE001
                with pytest.raises(type(error)):
                    read_columns(chunk)
                continue
            found = read_columns(chunk)
            used = [(n, raw, fields) for n, raw, fields in rows if not isinstance(fields, RowError)]
            assert list(found.numbers) == [n for n, _, _ in used]
            assert list(found.raws()) == [raw for _, raw, _ in used]
            assert [list(fields) for fields in zip(*found.columns, strict=True)] == [fields for _, _, fields in used]
            assert len(found.columns) == len(source.wanted)
            assert [(n, raw, error.reason, error.detail) for n, raw, error in found.rejects] == [
                (n, raw, fields.reason, fields.detail) for n, raw, fields in rows if isinstance(fields, RowError)
            ]


VALUES = st.sampled_from(["", "a", "b", "1", "0.5", "-1", "nan", " a ", "a,b", '["a"]', "x\ty"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(*[VALUES] * 8), max_size=6), st.sampled_from(["classify", "multilabel", "regression"]))
def test_fields_and_labels(rows: list[tuple[str, ...]], task: str) -> None:
    roles = Roles("t", "t2", "l", weight="w", keep=("k",), filters=(("f", "a"), ("g", "b"), ("f", "b")), group="r")
    reader, labels = FieldReader(roles), LabelReader(task, {"a": 1, "b": 0})
    expected: list[tuple[Any, Any] | tuple[str, str]] = []
    rows = [(*row, row[6]) for row in rows]
    for row in rows:
        try:
            fields = reader(row)
            expected.append((fields, labels(fields.label or "")))
        except RowError as error:
            expected.append((error.reason, error.detail))
    columns, errors = reader.columns([[row[i] for row in rows] for i in range(9)])
    found, bad = labels.column(columns.label or [])
    errors = bad | errors
    assert {i: (error.reason, error.detail) for i, error in errors.items()} == {
        i: pair for i, pair in enumerate(expected) if isinstance(pair[0], str)
    }
    good = [i not in errors for i in range(len(rows))]
    chosen = columns.select(good)
    assert [
        (a, b, label, weight, {"k": k}, group)
        for a, b, label, weight, k, group in zip(
            *chosen[:3], chosen.weight, chosen.keep["k"], chosen.group, strict=True
        )  # type: ignore[arg-type]
    ] == [(f.text, f.text_b, f.label, f.weight, f.keep, f.group) for f, _ in expected if not isinstance(f, str)]
    assert [label for label, is_good in zip(found, good, strict=True) if is_good] == [
        label for f, label in expected if not isinstance(f, str)
    ]
