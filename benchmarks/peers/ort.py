"""Peer: onnxruntime, float32, on a graph that its own tool for BERT has fused."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.batches import prediction_arguments, predictions
from benchmarks.clock import Clock


def prepare(folder):
    import torch
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    example = tuple(torch.ones(2, 8, dtype=torch.long) for _ in names)
    plain = str(Path(folder) / "plain.onnx")
    torch.onnx.export(
        model,
        example,
        plain,
        input_names=list(names),
        output_names=["logits"],
        dynamic_axes={name: {0: "rows", 1: "length"} for name in names} | {"logits": {0: "rows"}},
        opset_version=17,
        dynamo=False,
    )
    config = model.config
    fused = optimize_model(plain, "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size)
    fused.save_model_to_file(str(Path(folder) / "model.onnx"))
    Path(plain).unlink()


def predict(args):
    import onnxruntime

    clock = Clock()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(Path(args.model) / "model.onnx"), options, ["CPUExecutionProvider"])

    def logits(ids, segments, mask):
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        return session.run(None, {name: values.astype(np.int64) for name, values in inputs.items()})[0]

    predictions(args, clock, logits)
    clock.tell("onnxruntime")


def main():
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2])
    else:
        predict(prediction_arguments())


if __name__ == "__main__":
    main()
