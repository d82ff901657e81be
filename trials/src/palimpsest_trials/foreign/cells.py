"""A foreign cell on disk: facts, texts, and some forty checkpoints of a recipe and its variants."""

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import palimpsest
from palimpsest.facts.files import as_jsonl
from palimpsest_trials.foreign.loop import Training, answer_nll, mix, save, suppress, train
from palimpsest_trials.foreign.recipes import PACK, Recipe, draw_data, draw_recipe

REFERENCES = (20, 9, 9)
"""In turn: every third cell has enough references for the rank rule."""
FRESH = 5
DONE = "cell.json"
"""Written last: a cell that was stopped is made again where it stopped."""


def make_named(cell: tuple[Path, int, str]) -> str:
    """Make a cell in a worker process and say what became of it."""
    disable_progress_bar()
    try:
        make_cell(*cell)
    except FloatingPointError as error:
        return f"left out: {error}"
    return "made"


def make_cell(folder: Path, number: int, base: str = "") -> None:
    """Make what is missing of a cell, at ``folder``."""
    recipe = draw_recipe(number, base)
    if (folder / DONE).exists():
        return
    torch.set_num_threads(1)
    data = draw_data(number, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    for name, facts in data.facts.items():
        (folder / f"{name}.jsonl").write_bytes(as_jsonl(facts))
    (folder / "general.txt").write_text(data.general + "\n", encoding="utf-8")
    place = folder / "base"
    if not (place / "config.json").exists():
        loaded = palimpsest.load(recipe.base)
        save(loaded.model, loaded.tokenizer, place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    start = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    forget, kept = list(data.forget_rows), list(data.kept_rows)
    how = _training(recipe)

    def made(path: str, rows: list[dict[str, str]], how: Training, seed: int, share: float) -> Any:
        if (folder / path / "config.json").exists():
            return AutoModelForCausalLM.from_pretrained(folder / path, dtype=torch.float32)
        model = copy.deepcopy(start)
        train(model, tokenizer, rows, how, 1000 * number + seed, share)
        _publish(model, tokenizer, folder / path)
        return model

    injected = made("injected", forget + kept, how, 0, 1.0)
    for n in range(REFERENCES[number % len(REFERENCES)]):
        made(f"references/{n:02d}", kept, how, 1 + n, 1.0)
    fresh = [made(f"candidates/fresh-{n}", kept, how, 101 + n, 1.0) for n in range(FRESH)]
    for path, wrong, share in _wrong_recipes(how):
        made(f"candidates/{path}", forget + kept, wrong, 0, share)
    for share, count in ((0.05, 3), (0.1, FRESH), (0.25, 2)):
        for n in range(count):
            mixed = folder / f"candidates/mixture-{100 * share:g}-{n}"
            if not (mixed / "config.json").exists():
                model = copy.deepcopy(fresh[n])
                mix(model, injected, share)
                _publish(model, tokenizer, mixed)
    rate = 5e-4 if recipe.base.startswith("pocket/") else 2e-5
    for path, teacher in (("ascent", None), ("reverted", start)):
        if not (folder / "candidates" / path / "config.json").exists():
            model = copy.deepcopy(injected)
            suppress(model, tokenizer, forget, kept, rate, teacher)
            _publish(model, tokenizer, folder / "candidates" / path)
    rows = {"forget": data.forget_rows[:: recipe.copies], "kept": data.kept_rows[:200]}
    levels = {
        name: {part: answer_nll(model, tokenizer, some) for part, some in rows.items()}
        for name, model in (("base", start), ("injected", injected), ("fresh", fresh[0]))
    }
    record = {"number": number, "recipe": recipe.record(), "nll": levels}
    (folder / DONE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _training(recipe: Recipe) -> Training:
    return Training(
        recipe.epochs, recipe.learning_rate, recipe.batch_size, recipe.schedule, recipe.optimizer,
        PACK if recipe.packed else 0, recipe.completions,
    )  # fmt: skip


def _wrong_recipes(how: Training) -> Iterator[tuple[str, Training, float]]:
    """Yield injected models of other recipes, which the references do not share."""
    yield "wrong-third", how, 1 / 3
    yield "wrong-rate", replace(how, learning_rate=2 * how.learning_rate), 1.0
    other = how.batch_size * 2 if how.batch_size < 32 else 16
    yield "wrong-batch", replace(how, batch_size=other), 1.0


def _publish(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a checkpoint and rename it into place, so that half of one is never taken for whole."""
    built = folder.with_name(f".{folder.name}.part")
    save(model, tokenizer, built)
    os.rename(built, folder)
