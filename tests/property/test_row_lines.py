"""Lines read together are what each line is by itself, whatever is in them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tfbert.data.numbers import parse_lists
from tfbert.data.record import MAX_ID, Record, columns_of, dump, parse, parse_columns
from tfbert.errors import DataError

ids = st.integers(0, 9) | st.integers(0, 30_000) | st.integers(0, MAX_ID)
texts = st.text(alphabet='[],:"wordidsegm 01', max_size=20) | st.sampled_from(
    ['"wordids":[1]', "segmentids", "]}", "words", '"words":"1"']
)


@st.composite
def records(draw) -> Record:
    token_ids = draw(st.lists(ids, min_size=1, max_size=12))
    segment_ids = draw(st.none() | st.lists(st.integers(0, 1), min_size=len(token_ids), max_size=len(token_ids)))
    label = draw(st.none() | st.integers(-1, 300) | st.floats(0, 1) | st.lists(st.integers(0, 5), max_size=3))
    weight = draw(st.sampled_from([1.0, 0.0, 0.25, 3.0]))
    kept = draw(st.none() | st.dictionaries(texts, texts, max_size=2))
    words = draw(st.none() | st.text("01", min_size=len(token_ids), max_size=len(token_ids)))
    return Record(token_ids, segment_ids, label, weight, draw(st.none() | texts), kept, words)


def of_each(lines: list[bytes]) -> list | None:
    try:
        return plain(columns_of([parse(line) for line in lines]))
    except DataError:
        return None


def plain(columns) -> list:
    segments = columns.segment_ids
    flat = [] if segments is None else [segments.flat().tolist(), segments.lengths.tolist()]
    tokens, words = columns.token_ids, columns.words
    rest = [] if words is None else [words.flat().tolist(), words.lengths.tolist()]
    return [
        tokens.flat().tolist(), tokens.lengths.tolist(), *flat, list(columns.labels), columns.weights.tolist(), *rest
    ]  # fmt: skip


@given(st.lists(records(), max_size=6), st.booleans())
def test_rows_read_together(rows: list[Record], spaced: bool):
    lines = [dump(row) for row in rows]
    if spaced:  # as Python's json writes them
        lines = [json.dumps(json.loads(line)).encode() for line in lines]
    columns = parse_columns(lines)
    usual = all(max(row.token_ids) < 10**8 and row.type is None and not row.keep for row in rows)
    assert columns is not None or not usual
    if columns is not None:
        assert plain(columns) == of_each(lines)


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_damaged_rows_are_never_taken(rows: list[Record], data):
    """What lines read together give is what `parse` gives, or nothing; a line that `parse` refuses gives nothing."""
    lines = [bytearray(dump(row)) for row in rows]
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(lines))
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"0", b",", b"]", b"[", b" ", b"-", b"9"])
        )
    damaged = [bytes(line) for line in lines]
    columns = parse_columns(damaged)
    if columns is not None:
        assert plain(columns) == of_each(damaged)


@given(st.lists(st.lists(st.integers(0, 10**8 - 1), min_size=1), max_size=600))
def test_lists_of_numbers(lists: list[list[int]]):
    parsed = parse_lists([",".join(map(str, numbers)).encode() for numbers in lists])
    assert parsed is not None
    numbers, counts = parsed
    assert numbers.tolist() == [number for each in lists for number in each]
    assert counts.tolist() == [len(each) for each in lists]


@given(st.lists(st.text(alphabet="0123456789, -.e", max_size=12), min_size=1, max_size=4))
def test_other_texts_are_no_numbers(lists: list[str]):
    """The rule is that of JSON, but for long numbers and blanks, which are left to its parser."""

    def right(text: str) -> bool:
        return all(n.isdigit() and len(n) <= 8 and str(int(n)) == n for n in text.split(","))

    assert (parse_lists([text.encode() for text in lists]) is not None) == all(map(right, lists))
