"""Peer: flash-tokenizer (single texts alone), in processes over chunks of lines, JSON lines by orjson."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import orjson

CHUNK = 20_000
COLUMNS = ["object_id", "created", "operator_id", "title", "content", "action"]
NAMES = {"pass": 0, "reject": 1, "review": 2}


def start(vocab, max_len, column):
    global tokenizer, longest, place
    from flash_tokenizer import BertTokenizerFlash

    tokenizer, longest, place = BertTokenizerFlash(vocab, do_lower_case=True), max_len, COLUMNS.index(column)


def encode(lines):
    rows = [line.split("\t") for line in lines]
    written = []
    for row in rows:
        ids = tokenizer.tokenizer.encode(row[place], "longest", longest)
        written.append(orjson.dumps({"label": NAMES[row[5]], "wordids": ids}, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(written)


def chunks(file):
    lines = []
    for line in file:
        lines.append(line.rstrip("\n"))
        if len(lines) == CHUNK:
            yield lines
            lines = []
    yield lines


if __name__ == "__main__":
    _, path, column, vocab, max_len, out, workers = sys.argv[1:]
    with (
        open(path, encoding="utf-8", newline="\n") as file,  # noqa: PTH123
        open(out, "wb") as written,  # noqa: PTH123
        ProcessPoolExecutor(int(workers), get_context("spawn"), start, (vocab, int(max_len), column)) as pool,
    ):
        for data in pool.map(encode, chunks(file)):
            written.write(data)
