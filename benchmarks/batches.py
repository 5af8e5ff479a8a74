"""What the peers' streams share: padding with NumPy, and counting what comes out."""

import argparse
import json

import numpy as np


def arguments():
    """Flags of a stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("source")
    parser.add_argument("--window", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max_len", type=int, default=256)
    parser.add_argument("--limit", type=int, help="stop after so many rows")
    return parser.parse_args()


def padded(rows, length=None):
    """Lists of ids -> int32 (rows, length of the longest), padded with 0."""
    length = length or max(map(len, rows))
    out = np.zeros((len(rows), length), np.int32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def batch_of(rows):
    """Parsed lines -> ids, segments, mask and labels, as a BERT takes them."""
    ids = padded([row["wordids"] for row in rows])
    segments = np.zeros_like(ids)
    if rows[0].get("segmentids"):
        segments = padded([row["segmentids"] for row in rows])
    lengths = np.array([len(row["wordids"]) for row in rows])
    mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int32)
    return ids, segments, mask, np.array([row["label"] for row in rows], np.int32)


def parse(line):
    return json.loads(line)


def consume(clock, batches, limit=None):
    """Runs through batches of (ids, segments, mask, labels); returns the sum of the ids and whether it was an epoch."""
    total = 0
    for ids, _segments, mask, _labels in batches:
        clock.add(len(ids), np.count_nonzero(mask))
        total += int(ids.sum())
        if limit and clock.rows >= limit:
            return {"sum_of_ids": total, "whole": False}
    return {"sum_of_ids": total, "whole": True}


def training_arguments():
    """Flags of a training run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("source", help="JSON lines of token ids")
    parser.add_argument("--config", required=True, help="bert_config.json")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max_len", type=int, default=256)
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def first_rows(path, count):
    """Parsed lines from the beginning of a file."""
    with open(path, "rb") as lines:  # noqa: PTH123
        return [parse(line) for _, line in zip(range(count), lines, strict=False)]


def load_config(path):
    """A BERT config as a dict."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return json.load(file)


def prediction_arguments():
    """Flags of a prediction."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("source", help="JSON lines of token ids")
    parser.add_argument("--model", required=True, help="folder of config.json and model.safetensors")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", required=True, help=".npy of the logits, in the order of the rows")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def predictions(args, clock, logits):
    """Runs `logits(ids, segments, mask)` over batches of rows sorted by length, once before it counts."""
    rows = first_rows(args.source, args.rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["wordids"]))
    batches = [order[i : i + args.batch] for i in range(0, len(order), args.batch)]
    logits(*batch_of([rows[i] for i in batches[0]])[:3])
    clock.first()
    outputs = None
    clock.begin()
    for numbers in batches:
        ids, segments, mask, _ = batch_of([rows[i] for i in numbers])
        made = logits(ids, segments, mask)
        if outputs is None:
            outputs = np.zeros((len(rows), made.shape[1]), np.float32)
        outputs[numbers] = made
        clock.add(len(ids), mask.sum())
    np.save(args.out, outputs)
