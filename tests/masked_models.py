"""Small masked language models with random weights, as Hugging Face folders."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
from safetensors.numpy import save_file

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENGLISH = """
    good bad fine great awful nice film movie plot actor story music watch like love hate today really quite very slow
    fast long short old new bright dark funny sad happy house street city river not never the a of and is was to in
    """.split()
CHINESE = list("最大的文旅产业运营商好坏不没有中国人民电影音乐城市生活今天明天老师学生公司经济发展服务")
PIECES = ["##s", "##ing", "##ed", "##er", "un", "over", "##blown", ",", ".", "!", "1", "2", "[unused1]"]
TOKENS = [*SPECIAL, *ENGLISH, *CHINESE, *PIECES]


def write_masked_lm(folder: Path, tokens: Sequence[str] = TOKENS, positions: int = 64, seed: int = 0) -> Path:
    """Two layers, 16 wide, with the head; scores are far enough apart to be called a choice."""
    draw = np.random.default_rng(seed)
    width, inner = 16, 32
    config = {
        "vocab_size": len(tokens), "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": inner, "max_position_embeddings": positions, "layer_norm_eps": 1e-12,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (len(tokens), width),
        "bert.embeddings.position_embeddings.weight": (positions, width),
        "bert.embeddings.token_type_embeddings.weight": (2, width),
        "cls.predictions.bias": (len(tokens),),
    }
    dense = {"cls.predictions.transform.dense": (width, width)}
    norms = ["bert.embeddings.LayerNorm", "cls.predictions.transform.LayerNorm"]
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            dense[f"{layer}.{name}"] = (width, width)
        dense |= {f"{layer}.intermediate.dense": (inner, width), f"{layer}.output.dense": (width, inner)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors = {name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in norms:
        tensors |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes(orjson.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return folder
