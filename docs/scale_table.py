"""Print the tables of docs/gpu.md and docs/scale.md from the cost model."""

import math
from typing import NamedTuple

from palimpsest.engine import cost
from palimpsest.engine.cost import GB, Memory, Size, Step, duration

SIZES = {
    "1 billion (Llama-3.2-1B)": Size(1_240_000_000, 16, 2048, 128_256),
    "7 billion (Llama-2-7B)": Size(6_740_000_000, 32, 4096, 32_000),
    "8 billion (Llama-3.1-8B)": Size(8_030_000_000, 32, 4096, 128_256),
    "70 billion (Llama-3.1-70B)": Size(70_550_000_000, 80, 8192, 128_256),
}
INJECTION = Step(448, 448)
"""The texts of one step of the preset `paper`: 16 of 28 tokens."""


class Audit(NamedTuple):
    """An audit as docs/scale.md has it: bytes, operations, bytes on disk, seconds on one GPU."""

    memory: Memory
    operations: float
    storage: float
    seconds: float


def audit(
    size: Size,
    *,
    references: int,
    candidates: int = 1,
    controls: int = 4,
    steps: int = 75,
    items: int = 4,
    chunks: int = 5,
    questions: int = 400,
    tokens: int = 20,
    device: str = "cuda",
    dtype: str = "bfloat16",
    checkpointing: bool = True,
    optimizer: str = "device",
) -> Audit:
    """Return what auditing given checkpoints takes; all are scored and re-acquired.

    questions: with general text, of so many tokens each, a fifth of them scored.
    """
    models = 2 + references + candidates + controls
    sheet, step = float(questions * tokens), Step(items * tokens, items * tokens)
    page = min(sheet, 8192.0)
    memory = cost.training(
        size, step, device=device, dtype=dtype, checkpointing=checkpointing, optimizer=optimizer
    )
    asked = cost.scoring(size, Step(page, page / 5), device=device, dtype=dtype)
    kept = 2 * cost.answers(size, sheet / 5)
    needed = Memory(max(memory.device, asked.device), memory.host + kept)
    # Once before, at the start of the way back, and after each chunk; half the sheet is asked then.
    forward = sheet * (1 + 0.5 * (chunks + 1))
    trained = steps * items * tokens
    passes = 3 + checkpointing
    spent = cost.seconds(
        size, forward, device=device, batches=math.ceil(sheet / page) * (chunks + 2)
    )
    spent += cost.seconds(size, trained, device=device, batches=steps, passes=passes)
    if optimizer == "host":  # gradients over, AdamW, weights back: 40 bytes a parameter at 50 GB/s
        spent += steps * size.parameters * 40 / 5e10
    operations = models * 2.0 * size.parameters * (forward + passes * trained)
    storage = (3 + references + candidates - 1) * size.parameters * cost.WIDTHS[dtype]
    loads = 2 * cost.loading(size, device=device, dtype=dtype)
    return Audit(needed, operations, float(storage), models * (spent + loads))


def retraining(size: Size, *, steps: int = 200, items: int = 16, tokens: int = 28) -> float:
    """Return the seconds that one reference's training takes on one GPU."""
    return steps * cost.seconds(size, items * tokens, device="cuda", passes=4)


def commands() -> list[str]:
    """Return the rows of docs/gpu.md: memory of a worker and time of one unit of each command."""
    lines = [
        "| parameters | command | GPU, optimizer: device | GPU + host, optimizer: host | time |",
        "|---|---|---|---|---|",
    ]
    for name, size in list(SIZES.items())[:3]:
        for command, (there, away, time) in _commands(size).items():
            both = "–" if away is None else f"{away.device / GB:.0f} + {away.host / GB:.0f} GB"
            lines.append(
                f"| {name} | {command} | {there.device / GB:.0f} GB | {both} | {duration(time)} |"
            )
    return lines


def _commands(size: Size) -> dict[str, tuple[cost.Memory, cost.Memory | None, float]]:
    settings = {"device": "cuda", "dtype": "bfloat16"}
    page = cost.scoring(size, Step(8192, 8192 / 5), **settings)  # type: ignore[arg-type]
    asked = cost.seconds(size, 8000, device="cuda") + cost.loading(
        size, device="cuda", dtype="bfloat16"
    )
    trained, away = (
        cost.training(size, INJECTION, checkpointing=True, optimizer=place, **settings)  # type: ignore[arg-type]
        for place in ("device", "host")
    )
    two = cost.training(size, INJECTION, checkpointing=True, nets=2, **settings)  # type: ignore[arg-type]
    near, far = (audit(size, references=19, optimizer=place) for place in ("device", "host"))
    return {
        "`headroom`, scoring one model": (page, None, asked),
        "`study`, `tofu --train`, `retrain`: one training": (trained, away, retraining(size)),
        "`study` with the router of the panel": (two, None, 2 * retraining(size)),
        "`audit`, 19 references": (near.memory, far.memory, near.seconds),
    }


def audits() -> list[str]:
    """Return the rows of docs/scale.md: an audit with K references."""
    lines = [
        "| parameters | K | GPU | host | operations | checkpoints | 1 GPU | 4 GPUs | 8 GPUs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, size in SIZES.items():
        if name.startswith("8"):
            continue
        for references in (5, 19):
            near = audit(size, references=references)
            times = " | ".join(duration(near.seconds / gpus) for gpus in (1, 4, 8))
            lines.append(
                f"| {name} | {references} | {near.memory.device / GB:.0f} GB | "
                f"{near.memory.host / GB:.0f} GB | {near.operations:.1e} | "
                f"{near.storage / GB:.0f} GB | {times} |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(["docs/gpu.md", *commands(), "", "docs/scale.md", *audits()]))
