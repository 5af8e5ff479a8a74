"""Peer: Hugging Face datasets, transformers and their Trainer, on torch."""

import sys
import tempfile

from benchmarks.batches import (
    arguments,
    batch_of,
    consume,
    first_rows,
    load_config,
    prediction_arguments,
    predictions,
    training_arguments,
)
from benchmarks.clock import Clock

COLUMNS = ["object_id", "created", "operator_id", "title", "content", "action"]
NAMES = {"pass": 0, "reject": 1, "review": 2}


def encode(path, column, vocab, max_len, out, workers):
    """`map(num_proc)` with a fast tokenizer, then JSON lines."""
    from datasets import load_dataset
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(vocab=vocab, do_lower_case=True)

    def ids_of(rows):
        texts = (rows["content"], rows["title"]) if column == "pair" else (rows[column],)
        ids = tokenizer(*texts, truncation=True, max_length=int(max_len), return_attention_mask=False)
        made = {"label": [NAMES[name] for name in rows["action"]], "wordids": ids["input_ids"]}
        return made | ({"segmentids": ids["token_type_ids"]} if column == "pair" else {})

    with tempfile.TemporaryDirectory() as cache:
        rows = load_dataset(
            "csv", data_files=path, delimiter="\t", column_names=COLUMNS, quoting=3, split="train", cache_dir=cache
        )
        rows = rows.map(ids_of, batched=True, num_proc=int(workers), remove_columns=rows.column_names)
        rows.to_json(out, num_proc=int(workers))


def stream_json(args):
    """The file is read and parsed while it is shuffled in a buffer."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    clock = Clock()
    rows = load_dataset("json", data_files=args.source, split="train", streaming=True)
    rows = rows.shuffle(seed=0, buffer_size=args.window)
    clock.begin()
    return clock, consume(clock, DataLoader(rows, batch_size=args.batch, collate_fn=batch_of), args.limit)


def prepare_arrow(source):
    from datasets import load_dataset

    with tempfile.TemporaryDirectory() as cache:
        load_dataset("json", data_files=source, split="train", cache_dir=cache).save_to_disk(source + ".hf")


def stream_arrow(args):
    """The rows lie in Arrow files, memory mapped; the whole file is shuffled."""
    from datasets import load_from_disk
    from torch.utils.data import DataLoader

    clock = Clock()
    rows = load_from_disk(args.source + ".hf")
    clock.begin()
    loader = DataLoader(rows, batch_size=args.batch, shuffle=True, collate_fn=batch_of)
    return clock, consume(clock, loader, args.limit)


def train(args):
    """BertForSequenceClassification under the Trainer: fused AdamW, rows grouped by length, clipping, dropout."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    clock = Clock()
    rows = first_rows(args.source, args.rows)
    examples = [{"input_ids": row["wordids"], "row": row} for row in rows]  # the Trainer takes lengths of input_ids
    model = BertForSequenceClassification(BertConfig(num_labels=3, **load_config(args.config)))
    counted = []

    def collate(batch):
        ids, segments, mask, labels = batch_of([example["row"] for example in batch])
        counted.append((len(ids), mask.sum()))
        arrays = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(values).long() for name, values in arrays.items()}

    class Count(TrainerCallback):
        def on_train_begin(self, arguments, state, control, **more):
            clock.begin()

        def on_step_end(self, arguments, state, control, **more):
            clock.step(*counted.pop(0))

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=args.bf16,
            per_device_train_batch_size=args.batch,
            train_sampling_strategy="group_by_length",
            num_train_epochs=1,
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=0,
        )
        Trainer(model, settings, collate, train_dataset=examples, callbacks=[Count()]).train()
    return clock, {}


def prepare_model(config, folder):
    """A classifier with random weights, wide enough that logits differ."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    values = {**load_config(config), "initializer_range": 0.05}
    BertForSequenceClassification(BertConfig(num_labels=3, **values)).save_pretrained(folder)


def predict(args):
    import torch
    from transformers import BertForSequenceClassification

    clock = Clock()
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    model = BertForSequenceClassification.from_pretrained(args.model, dtype=dtype).eval()

    def logits(ids, segments, mask):
        ids, segments, mask = (torch.from_numpy(values).long() for values in (ids, segments, mask))
        with torch.inference_mode():
            return model(input_ids=ids, token_type_ids=segments, attention_mask=mask).logits.float().numpy()

    predictions(args, clock, logits)
    return clock, {}


def main():
    kind, *rest = sys.argv[1:]
    prepare = {"encode": encode, "prepare_arrow": prepare_arrow, "prepare_model": prepare_model}
    measured = {
        "stream_json": (stream_json, arguments),
        "stream_arrow": (stream_arrow, arguments),
        "train": (train, training_arguments),
        "predict": (predict, prediction_arguments),
    }
    if kind in prepare:
        prepare[kind](*rest)
        return
    job, flags = measured[kind]
    clock, told = job(flags())
    clock.tell("torch", "transformers", "datasets", "accelerate", **told)


if __name__ == "__main__":
    main()
