"""Peer: KerasHub on TensorFlow."""

import json
import random
import sys

from benchmarks.batches import batch_of, first_rows, load_config, training_arguments
from benchmarks.clock import Clock

COLUMNS = ["object_id", "created", "operator_id", "title", "content", "action"]
NAMES = {"pass": 0, "reject": 1, "review": 2}
CHUNK = 1_000


def encode(path, column, vocab, max_len, out, workers):
    """Its tokenizer and packer as one graph over batches of rows in tf.data, then JSON lines."""
    import keras_hub
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(int(workers))
    with open(vocab, encoding="utf-8") as file:  # noqa: PTH123
        words = file.read().rstrip("\n").split("\n")
    tokenizer = keras_hub.tokenizers.BertTokenizer(words, lowercase=True)
    pairs = column == "pair"
    packer = keras_hub.layers.MultiSegmentPacker(
        int(max_len), start_value=tokenizer.cls_token_id, end_value=tokenizer.sep_token_id, truncate="round_robin"
    )

    def ids_of(lines):
        columns = tf.strings.split(lines, "\t").to_tensor()
        texts = [columns[:, COLUMNS.index(name)] for name in (("content", "title") if pairs else (column,))]
        ids, segments = packer(tuple(tokenizer(text) for text in texts))
        return ids, segments, columns[:, COLUMNS.index("action")]

    rows = tf.data.TextLineDataset(path).batch(CHUNK).map(lambda lines: ids_of(lines), num_parallel_calls=int(workers))
    with open(out, "w", encoding="utf-8") as written:  # noqa: PTH123
        for ids, segments, actions in rows.as_numpy_iterator():
            lengths = (ids != tokenizer.pad_token_id).sum(axis=1)
            for i, length in enumerate(lengths.tolist()):
                row = {"label": NAMES[actions[i].decode()], "wordids": ids[i, :length].tolist()}
                if pairs:
                    row["segmentids"] = segments[i, :length].tolist()
                written.write(json.dumps(row) + "\n")


def train(args):
    """BertTextClassifier under Keras' `fit`, in batches of rows of about one length."""
    import keras
    import keras_hub
    import tensorflow as tf

    if args.bf16:
        keras.config.set_dtype_policy("mixed_bfloat16")
    clock = Clock()
    config = load_config(args.config)
    rows = sorted(first_rows(args.source, args.rows), key=lambda row: len(row["wordids"]))
    batches = [batch_of(rows[i : i + args.batch]) for i in range(0, len(rows), args.batch)]
    random.Random(0).shuffle(batches)
    counts = [(len(ids), mask.sum()) for ids, _, mask, _ in batches]

    def arrays():
        for ids, segments, mask, labels in batches:
            yield {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}, labels

    inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), tf.TensorSpec((None, None), tf.int32))
    data = tf.data.Dataset.from_generator(arrays, output_signature=(inputs, tf.TensorSpec((None,), tf.int32)))
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    model = keras_hub.models.BertTextClassifier(backbone, 3, preprocessor=None)
    model.compile(
        keras.optimizers.AdamW(2e-5, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # on a CPU it loses
    )

    class Count(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            clock.begin()

        def on_train_batch_end(self, batch, logs=None):
            clock.step(*counts[batch])

    model.fit(data, epochs=1, callbacks=[Count()], verbose=0)
    return clock


def main():
    kind, *rest = sys.argv[1:]
    if kind == "encode":
        encode(*rest)
    elif kind == "train":
        train(training_arguments()).tell("tensorflow", "keras", "keras-hub")


if __name__ == "__main__":
    main()
