"""Peer: a training step of transformers' BERT on torch: scaled dot-product attention, torch.compile, fused AdamW."""

import json

from benchmarks.gpu_cases import flags, time_cases


def main():
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    args = flags()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    config = BertConfig(num_labels=3, **json.loads(args.config.read_text(encoding="utf-8")))
    model = BertForSequenceClassification._from_config(config, attn_implementation="sdpa").to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if args.compile else model

    def place(batch):
        return {name: torch.from_numpy(values).long().to(device) for name, values in batch.items()}

    def step(batch):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(
                input_ids=batch["token_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["padding_mask"],
                labels=batch["labels"],
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    time_cases(args, place, step, lambda loss: loss.item(), ("torch", "transformers"))


if __name__ == "__main__":
    main()
