"""Peer: tf.data, from TFRecord files and through a py_function."""

import sys

from benchmarks.batches import arguments, batch_of, consume, parse
from benchmarks.clock import Clock


def prepare_tfrecord(source):
    import tensorflow as tf

    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with open(source, "rb") as lines, tf.io.TFRecordWriter(source + ".tfrecord") as out:  # noqa: PTH123
        for line in lines:
            row = parse(line)
            features = {"label": ints([row["label"]]), "wordids": ints(row["wordids"])}
            if "segmentids" in row:
                features["segmentids"] = ints(row["segmentids"])
            out.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def stream_tfrecord(args):
    """Serialised rows are shuffled, parsed a batch at a time, and padded as ragged tensors."""
    import tensorflow as tf

    clock = Clock()
    ragged = tf.io.RaggedFeature(tf.int64)
    with open(args.source, "rb") as lines:  # noqa: PTH123
        pairs = "segmentids" in parse(lines.readline())
    features = {"label": tf.io.FixedLenFeature([], tf.int64), "wordids": ragged}
    if pairs:
        features["segmentids"] = ragged

    def parsed(lines):
        rows = tf.io.parse_example(lines, features)
        ids = tf.cast(rows["wordids"].to_tensor(), tf.int32)
        segments = tf.cast(rows["segmentids"].to_tensor(), tf.int32) if pairs else tf.zeros_like(ids)
        mask = tf.sequence_mask(rows["wordids"].row_lengths(), dtype=tf.int32)
        return ids, segments, mask, tf.cast(rows["label"], tf.int32)

    rows = tf.data.TFRecordDataset(args.source + ".tfrecord").shuffle(args.window, seed=0).batch(args.batch)
    rows = rows.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    clock.begin()
    return clock, consume(clock, rows.as_numpy_iterator(), args.limit)


def stream_py_function(args):
    """Lines are shuffled, and parsed and padded in Python a batch at a time."""
    import tensorflow as tf

    clock = Clock()

    def parsed(lines):
        return batch_of([parse(line) for line in lines.numpy()])

    rows = tf.data.TextLineDataset(args.source).shuffle(args.window, seed=0).batch(args.batch)
    rows = rows.map(lambda lines: tf.py_function(parsed, [lines], [tf.int32] * 4), num_parallel_calls=tf.data.AUTOTUNE)
    clock.begin()
    return clock, consume(clock, rows.prefetch(tf.data.AUTOTUNE).as_numpy_iterator(), args.limit)


def main():
    kind = sys.argv[1]
    if kind == "prepare_tfrecord":
        prepare_tfrecord(sys.argv[2])
    else:
        streams = {"stream_tfrecord": stream_tfrecord, "stream_py_function": stream_py_function}
        clock, told = streams[kind](arguments())
        clock.tell("tensorflow", **told)


if __name__ == "__main__":
    main()
