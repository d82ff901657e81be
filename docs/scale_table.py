"""Print the tables of docs/gpu.md and docs/scale.md from the cost model."""

from palimpsest import cost
from palimpsest.cost import GB, Size, Step, duration

SIZES = {
    "1 billion (Llama-3.2-1B)": Size(1_240_000_000, 16, 2048, 128_256),
    "7 billion (Llama-2-7B)": Size(6_740_000_000, 32, 4096, 32_000),
    "8 billion (Llama-3.1-8B)": Size(8_030_000_000, 32, 4096, 128_256),
    "70 billion (Llama-3.1-70B)": Size(70_550_000_000, 80, 8192, 128_256),
}
INJECTION = Step(448, 448)
"""The texts of one step of the preset `paper`: 16 of 28 tokens."""


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
    near, far = (cost.audit(size, references=19, optimizer=place) for place in ("device", "host"))
    return {
        "`headroom`, scoring one model": (page, None, asked),
        "`study`, `tofu --train`, `retrain`: one training": (trained, away, cost.retraining(size)),
        "`study` with the router of the panel": (two, None, 2 * cost.retraining(size)),
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
            near = cost.audit(size, references=references)
            times = " | ".join(duration(near.seconds / gpus) for gpus in (1, 4, 8))
            lines.append(
                f"| {name} | {references} | {near.memory.device / GB:.0f} GB | "
                f"{near.memory.host / GB:.0f} GB | {near.operations:.1e} | "
                f"{near.storage / GB:.0f} GB | {times} |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(["docs/gpu.md", *commands(), "", "docs/scale.md", *audits()]))
