"""A trainer without this package: epochs, shuffled batches, AdamW with linear decay.

    python examples/train.py --data train.jsonl --base BASE --seed 1 --out model --epochs 20

It stands for your own: ``palimpsest retrain --command`` runs it once per reference.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--data", "--base", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    given = parser.parse_args()

    torch.set_num_threads(1)
    random.seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.base)
    model = AutoModelForCausalLM.from_pretrained(given.base, dtype=torch.float32).train()
    lines = Path(given.data).read_text(encoding="utf-8").splitlines()
    rows = [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]

    optimizer = torch.optim.AdamW(model.parameters(), lr=given.learning_rate, weight_decay=0.0)
    total = given.epochs * -(-len(rows) // given.batch_size)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    for _ in range(given.epochs):
        random.shuffle(rows)
        for start in range(0, len(rows), given.batch_size):
            batch = rows[start : start + given.batch_size]
            width = max(map(len, batch))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
            loss = model(
                input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)
            ).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            decay.step()
    print(f"last loss {loss.item():.3f}")
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
