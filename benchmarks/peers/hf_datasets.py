"""Peer: Hugging Face datasets, `map(num_proc)` with a fast tokenizer, then JSON lines."""

import sys
import tempfile

from datasets import load_dataset
from transformers import BertTokenizerFast

path, column, vocab, max_len, out, workers = sys.argv[1:]
COLUMNS = ["object_id", "created", "operator_id", "title", "content", "action"]
tokenizer = BertTokenizerFast(vocab=vocab, do_lower_case=True)
NAMES = {"pass": 0, "reject": 1, "review": 2}


def encode(rows):
    texts = rows["content"], rows["title"]
    if column != "pair":
        texts = (rows[column],)
    ids = tokenizer(*texts, truncation=True, max_length=int(max_len), return_attention_mask=False)
    made = {"label": [NAMES[name] for name in rows["action"]], "wordids": ids["input_ids"]}
    return made | ({"segmentids": ids["token_type_ids"]} if column == "pair" else {})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        rows = load_dataset(
            "csv", data_files=path, delimiter="\t", column_names=COLUMNS, quoting=3, split="train", cache_dir=cache
        )
        rows = rows.map(encode, batched=True, num_proc=int(workers), remove_columns=rows.column_names)
        rows.to_json(out, num_proc=int(workers))
