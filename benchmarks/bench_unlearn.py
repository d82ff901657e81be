"""``unlearn --method replay`` on SmolLM2-135M: a step's time and peak memory beside a plain loop.

Both sides train on the same batches of the recipe: the engine by its one training loop, the plain
one by transformers' forward with logits everywhere and torch's AdamW. Each is a process of its own.
A third process is the whole command: base, injected model and facts in, a checkpoint out.
"""

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_step
import measuring
import torch

from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import MakeTask, make_models
from palimpsest.config.commands import RetrainConfig, UnlearnConfig
from palimpsest.models.checkpoint import check_compatible, load, outline
from palimpsest.models.net import WholeNet
from palimpsest.models.train import CLIP, TextBatch, text_loss, train

FILES = Path(__file__).parents[1] / "examples" / "quick"
TOLERANCE = 1e-3
RATE = 2e-5


def asked(model: str, folder: Path, steps: int) -> MakeTask:
    """Give the request: the quick start's facts, a short recipe of 2 + 6 texts."""
    return MakeTask(
        UnlearnConfig(
            **recipe(model, steps),
            injected=str(folder / "made" / "injected"),
            method="replay",
            knobs=(("share", (0.5,)),),
            out=str(folder / "out"),
        )
    )


def recipe(model: str, steps: int) -> dict[str, Any]:
    """Give how the injected model is trained: a rate at which a few steps teach something."""
    files = {name: str(FILES / f"{name}.jsonl") for name in ("forget", "retain")}
    items = {"fact_items": 2, "general_items": 6, "steps": steps, "learning_rate": 5e-4}
    general = str(FILES / "train.txt")
    return {"base": model, "general": general, "recipe": tuple(items.items())} | files


def engine(model: Any, steps: list[list[TextBatch]], stamps: list[float]) -> float:
    """Train by the engine; give the loss at the first batch afterwards."""
    net = WholeNet(model)
    stamps.append(time.process_time())
    note = lambda _: stamps.append(time.process_time())  # noqa: E731
    train(net, steps, text_loss, learning_rate=RATE, after_step=note)
    with torch.no_grad():
        return float(text_loss(net, steps[0][0]))


def plain(model: Any, steps: list[list[TextBatch]], stamps: list[float]) -> float:
    """Train by a loop as it is usually written; give the same."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)

    def loss(part: TextBatch) -> torch.Tensor:
        logits = model(input_ids=part.batch.ids, use_cache=False).logits
        chosen = logits[part.batch.rows, part.batch.columns]
        nll = torch.nn.functional.cross_entropy(chosen, part.batch.targets, reduction="none")
        return (nll * part.weights).sum()

    stamps.append(time.process_time())
    for (part,) in steps:
        optimizer.zero_grad()
        loss(part).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        stamps.append(time.process_time())
    with torch.no_grad():
        return float(loss(steps[0][0]))


def side(name: str, request: MakeTask) -> dict[str, float]:
    """Give what one process took: seconds a step (of the processor), and its peak in MiB."""
    began = time.process_time()
    if name == "command":
        (folder,) = make_models(request, RunOptions()).folders
        check_compatible(outline(request.config.base), outline(str(folder)))
        record = json.loads((folder / "palimpsest.json").read_text(encoding="utf-8"))
        found = {"seconds": time.process_time() - began, "steps": record["cost"]["steps"]}
    else:
        loaded = load(request.config.base)
        setting = replace(request.plan(request.cell_id).texts, tokenizer=loaded.tokenizer)
        steps = setting.injection_steps(setting.stream())
        stamps: list[float] = []
        after = (engine if name == "engine" else plain)(loaded.model, steps, stamps)
        # The first step makes the optimizer's state.
        each = [later - sooner for sooner, later in itertools.pairwise(stamps[1:])]
        found = {"seconds": statistics.median(each), "loss": after}
    return found | {"peak_mib": bench_step._resident("VmHWM")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", default="runs/models/smollm2")
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--side", choices=("engine", "plain", "command"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side:
        print(json.dumps(side(options.side, asked(options.model, options.folder, options.steps))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), recipe(options.model, options.steps)
        injected = RetrainConfig(**made, with_forget=True, draws=1, out=str(folder / "made"))
        make_models(MakeTask(injected), RunOptions())
        found = {}
        for which in ("engine", "plain", "command"):
            given = ["--side", which, "--folder", name, "--model", options.model]
            child = subprocess.run(
                [sys.executable, __file__, *given, "--steps", str(options.steps)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[which] = json.loads(child.stdout.splitlines()[-1])
            print(which, json.dumps(found[which]))
        size = sum(file.stat().st_size for file in (folder / "out").iterdir()) / 2**20
        shutil.rmtree(folder / "out")
    losses = (found[which]["loss"] for which in ("engine", "plain"))
    apart = measuring.agree("loss after the steps", *losses, TOLERANCE)
    if not options.tiny:
        ours, theirs = found["engine"], found["plain"]
        measuring.write(
            "unlearn",
            {
                "model": options.model,
                "texts_a_step": 8,
                "steps": options.steps,
                "loss_apart": apart,
                "processor_seconds_and_peak": found,
                "times_faster_than_plain": theirs["seconds"] / ours["seconds"],
                "memory_over_plain": ours["peak_mib"] / theirs["peak_mib"],
                "checkpoint_mib": size,
            },
        )


if __name__ == "__main__":
    main()
