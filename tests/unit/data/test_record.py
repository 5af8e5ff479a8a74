"""The row of a data set, on disk and in code."""

import orjson
import pytest

from tfbert.data.record import Record, columns_of, dump, parse, parse_columns
from tfbert.data.rows import RowColumns
from tfbert.errors import DataError


@pytest.mark.parametrize(
    "record, line",
    [
        (Record([101, 102]), b'{"wordids":[101,102]}\n'),
        (Record([1, 2, 3], [0, 0, 1], 2), b'{"label":2,"wordids":[1,2,3],"segmentids":[0,0,1]}\n'),
        (Record([1], label=[0, 3], type="人"), '{"type":"人","label":[0,3],"wordids":[1]}\n'.encode()),
        (Record([1], label=0.5, weight=0.25), b'{"label":0.5,"weight":0.25,"wordids":[1]}\n'),
        (Record([1], label=0, weight=0.0, keep={"k": ""}), b'{"label":0,"weight":0.0,"wordids":[1],"keep":{"k":""}}\n'),
        (Record([1], label=[], type=""), b'{"type":"","label":[],"wordids":[1]}\n'),
        (Record([1, 2], words="10"), b'{"wordids":[1,2],"words":"10"}\n'),
    ],
)  # fmt: skip
def test_rows_and_lines(record: Record, line: bytes) -> None:
    assert dump(record) == line
    assert parse(line) == record


def plain(columns: RowColumns) -> list:
    segments = columns.segment_ids
    flat = [] if segments is None else [segments.flat().tolist(), segments.lengths.tolist()]
    return [
        columns.token_ids.flat().tolist(), columns.token_ids.lengths.tolist(), *flat, columns.labels,
        columns.weights.tolist(),
        None if columns.words is None else (columns.words.flat().tolist(), columns.words.lengths.tolist()),
    ]  # fmt: skip


def test_many_rows_at_once_are_those_of_each_line() -> None:
    lines = [
        b'{"wordids":[101,102]}',
        b'{"label":2,"wordids":[1,99999999,3],"segmentids":[0,0,1]}\n',
        b'{"label":[],"wordids":[7],"segmentids":[1],"weight":2}\r\n',
        b'{"label":0.5,"weight":0.25,"wordids":[1],"x":{"y":[1.5,null]}}',
        b'{"label":-3,"wordids":[0,0]}',
        b'{"wordids":[1,2,3],"words":"101"}',
        b'{"wordids":[1,2],"segmentids":[0,1],"words":"101"}',  # of someone else: too many
    ]
    for chosen in (lines, lines[::-1], lines[:1], lines[3:], []):
        columns = parse_columns(chosen)
        assert columns is not None
        assert plain(columns) == plain(columns_of([parse(line) for line in chosen]))


@pytest.mark.parametrize(
    "line",
    [
        b'{"wordids":[1,2147483647]}',
        b'{"wordids":[ 1,2 ]}',
        b'{"wordids" : [1,2]}',
        b'{"segmentids":[0],"wordids":[1]}',
        b'{"wordids":[1],"type":"wordids"}',
        b'{"x":{"wordids":[3]},"wordids":[1]}',
        b'{"wordids":[3],"wordids":[1]}',
        b'{"x":{"segmentids":[3]},"wordids":[1]}',
        b'{"wordids":[1],"x":{"words":"1"}}',
        b'{"wordids":[1],"words":"1","words":"0"}',
        b'{"wordids":[1],"words":"one"}',
        b'{"wordids":[1],"words":["one"]}',
    ],
)
def test_unusual_rows_are_left_to_the_other_way(line: bytes) -> None:
    """They are looked at closely, and taken."""
    assert parse_columns([line]) is None
    assert parse(line).token_ids[0] == 1


def test_words_of_another_kind_are_not_ours() -> None:
    """A file of someone else may call anything `words`."""
    for words in (b'"1"', b'"12"', b"[1,0]", b"1", b'"on"', b"null", b"{}"):
        assert parse(b'{"wordids":[1,2],"words":' + words + b"}").words is None


def test_line_ends_inside_texts_are_escaped() -> None:
    line = dump(Record([1], type="a\nb\u2028c\r", keep={"k\n": "\n"}))
    assert line.count(b"\n") == 1
    assert parse(line).type == "a\nb\u2028c\r"


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"wordids": [1, 2', "a row must be JSON"),
        (b"\xff", "a row must be JSON"),
        (b"\0\0\0", "a row must be JSON"),
        (b"[1]", "a row must be a JSON object"),
        (b"{}", "`wordids`"),
        (b'{"wordids": []}', "`wordids`"),
        (b'{"wordids": "12"}', "`wordids`"),
        (b'{"wordids": [1, -2]}', "`wordids`"),
        (b'{"wordids": [1, 2.0]}', "`wordids`"),
        (b'{"wordids": [true]}', "`wordids`"),
        (b'{"wordids": [[1], "a"]}', "`wordids`"),
        (b'{"wordids": [2147483648]}', "`wordids`"),
        (b'{"wordids": [1, 2], "segmentids": [0]}', "`segmentids`"),
        (b'{"wordids": [1], "segmentids": 0}', "`segmentids`"),
        (b'{"wordids": [1], "label": "1"}', "`label`"),
        (b'{"wordids": [1], "label": true}', "`label`"),
        (b'{"wordids": [1], "label": [0, "1"]}', "`label`"),
        (b'{"wordids": [1], "label": 2147483648}', "`label`"),
        (b'{"wordids": [1], "weight": -1}', "`weight`"),
        (b'{"wordids": [1], "weight": null}', "`weight`"),
    ],
)
def test_damaged_rows_are_refused(line: bytes, message: str) -> None:
    with pytest.raises(DataError) as error:
        parse(line)
    assert message in str(error.value)
    assert "Received: " in str(error.value)
    assert parse_columns([b'{"wordids": [1]}', line]) is None


def test_messages_stay_short() -> None:
    with pytest.raises(DataError) as error:
        parse(orjson.dumps({"wordids": [-1] * 10_000}))
    assert len(str(error.value)) < 300


def test_a_row_of_the_old_form_is_read() -> None:
    line = b'{"type": "model", "label": 1, "wordids": [101, 5, 102], "segmentids": [0, 0, 0], "other": {"x": 1}}\r\n'
    assert parse(line) == Record([101, 5, 102], [0, 0, 0], 1, type="model")
