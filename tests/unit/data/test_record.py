"""The row of a data set, on disk and in code."""

import orjson
import pytest

from tfbert.data.record import Record, dump, parse
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
    ],
)  # fmt: skip
def test_rows_and_lines(record: Record, line: bytes) -> None:
    assert dump(record) == line
    assert parse(line) == record


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


def test_messages_stay_short() -> None:
    with pytest.raises(DataError) as error:
        parse(orjson.dumps({"wordids": [-1] * 10_000}))
    assert len(str(error.value)) < 300


def test_a_row_of_the_old_form_is_read() -> None:
    line = b'{"type": "model", "label": 1, "wordids": [101, 5, 102], "segmentids": [0, 0, 0], "other": {"x": 1}}\r\n'
    assert parse(line) == Record([101, 5, 102], [0, 0, 0], 1, type="model")
