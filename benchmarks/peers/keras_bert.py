"""Peer: the recipe around keras-bert on legacy Keras: a generator with a buffer, rows padded to a fixed length."""

import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks.batches import arguments, consume, first_rows, load_config, training_arguments
from benchmarks.clock import Clock


class DataGenerator:
    """Refills a buffer from the file when it falls to a minimum, shuffles it, and cuts batches off its front.

    Written from its description, slips left out: the mask and the segments of a batch are those of its rows.
    """

    def __init__(self, json_file, batch_size, min_buffer_size, max_buffer_size, max_len, num_classes=3):
        self.file = open(json_file, encoding="utf-8")  # noqa: PTH123, SIM115
        counted = subprocess.run(["wc", "-l", json_file], check=True, capture_output=True, text=True)
        self.rows = int(counted.stdout.split()[0])
        self.batch_size, self.max_len, self.num_classes = batch_size, max_len, num_classes
        self.min_buffer_size, self.max_buffer_size = min_buffer_size, max_buffer_size
        self.buffer = []

    def __len__(self):
        return -(-self.rows // self.batch_size)

    def _read_line(self):
        line = self.file.readline()
        if not line:
            self.file.seek(0)
            line = self.file.readline()
        return line

    def __iter__(self):
        while True:
            if len(self.buffer) <= self.min_buffer_size:
                while len(self.buffer) < self.max_buffer_size:
                    self.buffer.append(self._read_line())
                random.shuffle(self.buffer)
            lines, self.buffer = self.buffer[: self.batch_size], self.buffer[self.batch_size :]
            yield self._handle(lines)

    def _handle(self, lines):
        ids, segments, labels = [], [], []
        for line in lines:
            row = json.loads(line)
            words = row["wordids"]
            missing = self.max_len - len(words)
            ids.append(words + [0] * missing)
            segments.append(row.get("segmentids", [0] * len(words)) + [0] * missing)
            labels.append([1 if i == row["label"] else 0 for i in range(self.num_classes)])
        return [np.array(ids), np.array(segments)], np.array(labels)


def stream_generator(args):
    clock = Clock()
    rows = DataGenerator(args.source, args.batch, args.window // 3, args.window, args.max_len)
    clock.begin()
    batches = zip(range(len(rows)), rows, strict=False)
    return clock, consume(clock, ((*x, x[0] > 0, y) for _, (x, y) in batches), args.limit)


def train(args):
    """The encoder of keras-bert, maximum beside mean over its tokens, `fit` on the generator."""
    os.environ["TF_USE_LEGACY_KERAS"] = os.environ["TF_KERAS"] = "1"
    import keras_bert
    from tensorflow import keras

    clock = Clock()
    config = load_config(args.config)
    inputs, layer = keras_bert.get_model(
        config["vocab_size"],
        pos_num=config["max_position_embeddings"],
        seq_len=args.max_len,
        embed_dim=config["hidden_size"],
        transformer_num=config["num_hidden_layers"],
        head_num=config["num_attention_heads"],
        feed_forward_dim=config["intermediate_size"],
        training=False,
        trainable=True,
    )
    words = keras.layers.Lambda(lambda x: x[:, 1:])(layer)
    pooled = [keras.layers.GlobalMaxPooling1D()(words), keras.layers.GlobalAveragePooling1D()(words)]
    x = keras.layers.Dense(256, activation="relu")(keras.layers.concatenate(pooled))
    x = keras.layers.Dense(3, activation="softmax")(keras.layers.Dropout(0.1)(x))
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(2e-5), "categorical_crossentropy", ["accuracy"])
    lengths = [len(row["wordids"]) for row in first_rows(args.source, args.rows)]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as rows:
        rows.writelines(json.dumps(row) + "\n" for row in first_rows(args.source, args.rows))
        rows.flush()
        data = DataGenerator(rows.name, args.batch, 0, args.rows, args.max_len)
        mean = sum(lengths) / len(lengths)

        class Count(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                clock.begin()

            def on_train_batch_end(self, batch, logs=None):
                clock.step(args.batch, round(args.batch * mean))

        model.fit(iter(data), steps_per_epoch=len(data), epochs=1, callbacks=[Count()], verbose=0)
    return clock, {}


def main():
    kind = sys.argv[1]
    if kind == "stream_generator":
        clock, told = stream_generator(arguments())
        clock.tell(**told)
    elif kind == "train":
        clock, told = train(training_arguments())
        clock.tell("tensorflow", "tf-keras", "keras-bert", **told)


if __name__ == "__main__":
    random.seed(0)
    main()
