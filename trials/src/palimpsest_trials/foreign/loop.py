"""The training loop of foreign cells: plain torch and ``transformers``, nothing of Palimpsest.

It shares no training code with the package on purpose: other batches, other schedules, another
optimizer, no clipping in units of anything.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Row = dict[str, str]


@dataclass(frozen=True)
class Training:
    """What the loop needs of a recipe."""

    epochs: int
    learning_rate: float
    batch_size: int
    schedule: str
    optimizer: str
    pack: int
    """Tokens of a packed sequence; 0 keeps one row per sequence."""
    completions: bool


def train(
    model: Any, tokenizer: Any, rows: Sequence[Row], how: Training, seed: int, share: float = 1.0
) -> None:
    """Train a model in place; ``share`` stops it after that share of the steps' epochs."""
    order = random.Random(seed)
    encoded = [_encode(tokenizer, row, how.completions) for row in rows]
    batches: list[list[tuple[list[int], int]]] = []
    for _ in range(how.epochs):
        shuffled = encoded[:]
        order.shuffle(shuffled)
        sequences = _packed(shuffled, how.pack) if how.pack else shuffled
        size = how.batch_size if not how.pack else max(1, how.batch_size // 4)
        batches += [sequences[n : n + size] for n in range(0, len(sequences), size)]
    batches = batches[: max(1, round(share * len(batches)))]
    optimizer = _optimizer(model, how)
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = how.learning_rate * _rate(how.schedule, step / len(batches))
        optimizer.zero_grad()
        loss = _loss(model, batch)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {float(loss)} at step {step}")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def suppress(
    model: Any, tokenizer: Any, forget: Sequence[Row], kept: Sequence[Row], rate: float,
    base: Any = None, steps: int = 60,
) -> None:  # fmt: skip
    """Suppress the forget rows in place: by ascent, or with ``base`` by reverting to what it says.

    Both keep the loss of other rows low meanwhile.
    """
    order, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), lr=rate)
    gone = [_encode(tokenizer, row, True) for row in forget]
    stay = [_encode(tokenizer, row, False) for row in kept]
    for _ in range(steps):
        asked, others = (
            order.sample(gone, min(8, len(gone))),
            order.sample(stay, min(16, len(stay))),
        )
        optimizer.zero_grad()
        push = -_loss(model, asked) if base is None else _reverted(model, base, asked)
        (push * (0.3 if base is None else 1.0) + 3.0 * _loss(model, others)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def answer_nll(model: Any, tokenizer: Any, rows: Sequence[Row]) -> float:
    """Return the mean NLL of the completions' tokens, in nats."""
    return float(_loss(model, [_encode(tokenizer, row, True) for row in rows]))


@torch.no_grad()
def mix(reference: Any, injected: Any, share: float) -> None:
    """Mix a share of the injected weights into a model, in place."""
    for own, other in zip(reference.parameters(), injected.parameters()):
        own.lerp_(other, share)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary checkpoint folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _encode(tokenizer: Any, row: Row, completions: bool) -> tuple[list[int], int]:
    """Return a row's tokens and the first of them that is trained on."""
    prompt, whole = row["prompt"], row["prompt"] + row["completion"]
    ids = tokenizer(whole)["input_ids"]
    start = 1
    if completions and prompt:
        start = max(1, len(tokenizer(prompt)["input_ids"]))
    return ids, start


def _packed(rows: Sequence[tuple[list[int], int]], size: int) -> list[tuple[list[int], int]]:
    stream = [token for ids, _ in rows for token in ids]
    pieces = [stream[n : n + size] for n in range(0, len(stream), size)]
    return [(piece, 1) for piece in pieces if len(piece) > 1]


def _logits(model: Any, batch: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, next tokens and which of them count."""
    width = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in batch])
    attended = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in batch])
    place = torch.arange(1, width)
    counts = torch.stack([(place >= start) & (place < len(row)) for row, start in batch])
    output = model(input_ids=ids, attention_mask=attended, use_cache=False).logits[:, :-1]
    return output, ids[:, 1:], counts


def _loss(model: Any, batch: Sequence[tuple[list[int], int]]) -> Tensor:
    logits, targets, counts = _logits(model, batch)
    return functional.cross_entropy(logits[counts], targets[counts])


def _reverted(model: Any, base: Any, batch: Sequence[tuple[list[int], int]]) -> Tensor:
    logits, _, counts = _logits(model, batch)
    with torch.no_grad():
        said = _logits(base, batch)[0][counts].log_softmax(-1)
    mine = logits[counts].log_softmax(-1)
    return functional.kl_div(mine, said, log_target=True, reduction="batchmean")


def _optimizer(model: Any, how: Training) -> torch.optim.Optimizer:
    if how.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=how.learning_rate, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=how.learning_rate, weight_decay=0.01)


def _rate(schedule: str, done: float) -> float:
    if schedule == "constant":
        return 1.0
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
