"""One step of KL reversion on SmolLM2-135M against the plain loop: time, and peak memory.

The plain loop keeps base and injected models beside the student and asks them in every step, with
logits at every position; the engine asks them once, before the first step. Time is measured in one
process, in alternating blocks of steps; peak memory in a process of its own for each side, from the
models being loaded to the last step, so that the engine pays for asking the teachers. The bars: 1.4
times faster, at most 0.7 times the memory.
"""

import argparse
import copy
import ctypes
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import pocket
import straightforward
import torch
from pocket import PocketCell
from safetensors.torch import load_file, save_file

from palimpsest.methods.answer_sets import make_answer_set
from palimpsest.methods.context import Context, StepView, UnlearnBatch, descend
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.models.checkpoint import checkpoint_state, load, stored_state
from palimpsest.models.net import Nets

TIME_BAR, MEMORY_BAR = 1.4, 0.7
LOSS_TOLERANCE = 1e-4
TRAINED_TOLERANCE = 1e-2  # AdamW's first steps turn rounding of tiny gradients into signs
METHOD = KLReversion(weight=12.0)


class ClockedContext(Context):
    """A context whose batches note when each step begins and the last one ends."""

    def batches(self) -> Iterator[UnlearnBatch]:
        yield from _clocked(super().batches())


class ClockedUnlearner(straightforward.Unlearner):
    """The plain loop, noting the same."""

    def batches(self) -> Iterator[Any]:
        yield from _clocked(super().batches())


STAMPS: list[tuple[float, float]] = []
OWNED: list[float] = []


def _clocked(steps: Iterator[Any]) -> Iterator[Any]:
    for step in steps:
        STAMPS.append((time.perf_counter(), time.process_time()))
        OWNED.append(_resident("RssAnon"))
        yield step
    STAMPS.append((time.perf_counter(), time.process_time()))


def bench_cell(model: str, steps: int, items: int) -> PocketCell:
    """Give a cell of this model with a short budget."""
    cell = pocket.cell_plan()
    budget = replace(
        cell.plan.unlearning,
        steps=steps,
        forget_items=items,
        retain_items=items,
        learning_rate=2e-5,
    )
    return PocketCell(replace(cell.plan, models=(model,), unlearning=budget))


def injected_like(model: Any) -> dict[str, Any]:
    """Give weights a little away from base: an injected model for timing needs no knowledge."""
    order = torch.Generator().manual_seed(0)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for value in moved.parameters():
            value += torch.randn(value.shape, generator=order) * 0.05 * value.std().nan_to_num()
    return {name: value.clone().contiguous() for name, value in moved.state_dict().items()}


def engine_context(cell: PocketCell, folder: Path) -> Context:
    """Give the context of the cell as a cell run makes it: injected weights lie in a file."""
    loaded = load(cell.model)
    setting = cell.setting(loaded.tokenizer)
    nets = Nets(loaded)
    base = checkpoint_state(cell.model, loaded)
    injected = stored_state(folder / "injected.safetensors")
    forget, retain = setting.seen("forget"), setting.seen("retain")
    arguments = (loaded.tokenizer, forget)
    said_base = make_answer_set(*arguments, {"base": nets([base])})
    frozen = {"injected": nets([injected])}
    said_injected = make_answer_set(*arguments, frozen)
    return ClockedContext(
        base=base,
        injected=injected,
        forget_only=base,
        forget=replace(said_injected, teachers={**said_base.teachers, **said_injected.teachers}),
        retain=make_answer_set(loaded.tokenizer, retain, frozen),
        budget=cell.plan.unlearning,
        seed_key=cell.id,
        gated=loaded.gated,
        net=nets,
        whole=nets.whole,
        tokenizer=loaded.tokenizer,
    )


def plain_unlearner(cell: PocketCell, folder: Path) -> straightforward.Unlearner:
    """Give the plain loop of the cell with its two teachers in memory."""
    loaded = load(cell.model)
    injected = load(cell.model).model
    injected.load_state_dict(load_file(folder / "injected.safetensors"))
    setting = cell.setting(loaded.tokenizer)
    return ClockedUnlearner(setting, cell.plan.unlearning, loaded.model, injected, loaded.model)


def check(context: Context, unlearner: straightforward.Unlearner) -> dict[str, float]:
    """Give how far the losses are apart, of the first batches and after the last step."""
    net = context.net([context.injected])
    batches = list(zip(context.batches(), unlearner.batches()))
    ours, theirs = [], []
    with torch.no_grad():
        for part, (forget, retain) in batches:
            logp = torch.log_softmax(net.logits(part.tokens), dim=-1)[0]
            ours.append(METHOD.loss(StepView(logp, part)).item())
            theirs.append(unlearner.reversion(unlearner.injected, forget, retain, METHOD).item())
    before = measuring.agree("loss of a step", ours, theirs, LOSS_TOLERANCE)
    (state,) = descend(context, [METHOD])
    trained = unlearner.run(METHOD)
    student = copy.deepcopy(unlearner.injected)
    student.load_state_dict(state)
    with torch.no_grad():
        ours, theirs = (
            [unlearner.reversion(one, f, r, METHOD).item() for _, (f, r) in batches]
            for one in (student, trained)
        )
    after = measuring.agree("loss after the steps", ours, theirs, TRAINED_TOLERANCE)
    return {"first_loss": theirs[0], "before": before, "after": after}


def block(do: Any) -> tuple[float, float]:
    """Give the seconds of one step by either clock: the median over a block without its first."""
    STAMPS.clear()
    do()
    pairs = list(itertools.pairwise(STAMPS))[1:]
    wall, busy = ([later[n] - earlier[n] for earlier, later in pairs] for n in (0, 1))
    return measuring.spread(wall)["median"], measuring.spread(busy)["median"]


def peak_memory(side: str, cell: PocketCell, folder: Path) -> dict[str, float]:
    """Give the peak resident memory in MiB of one side's steps, in this process.

    Resident memory counts everything: pages of its own and pages of files it has mapped, among them
    some 300 MiB of libraries. ``owned`` is the part that is not of files, looked at while a step
    begins, when weights, gradients and both moments are there.
    """
    prepare = engine_context if side == "engine" else plain_unlearner
    made = prepare(cell, folder)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    if isinstance(made, Context):
        descend(made, [METHOD])
    else:
        made.run(METHOD)
    return {"before": before, "peak": _resident("VmHWM"), "owned": max(OWNED)}


def _resident(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps in a block; the first is free")
    parser.add_argument("--items", type=int, default=4, help="forget texts, and retain texts")
    parser.add_argument("--model", default="runs/models/smollm2")
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--side", choices=("engine", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell = bench_cell(options.model, options.steps, options.items)
    if options.side:
        print(json.dumps(peak_memory(options.side, cell, options.folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file(injected_like(load(cell.model).model), folder / "injected.safetensors")
        context, unlearner = engine_context(cell, folder), plain_unlearner(cell, folder)
        apart = check(context, unlearner)
        print("losses agree:", json.dumps(apart))
        if options.tiny:
            return
        sides = {
            "engine": lambda: descend(context, [METHOD]),
            "plain": lambda: unlearner.run(METHOD),
        }
        turns = measuring.Turns({side: [] for side in sides}, {side: [] for side in sides})
        for turn in range(options.repeats):
            for side in sides if turn % 2 == 0 else reversed(sides):
                wall, busy = block(sides[side])
                turns.seconds[side].append(wall)
                turns.processor[side].append(busy)
        ratio = turns.ratio("plain", "engine")
        measuring.say("a step, times faster", ratio)
        memory: dict[str, list[float]] = {side: [] for side in sides}
        before: dict[str, list[float]] = {side: [] for side in sides}
        owned: dict[str, list[float]] = {side: [] for side in sides}
        again = ["--steps", str(options.steps), "--items", str(options.items)]
        for _ in range(2):
            for side in memory:
                command = [sys.executable, __file__, "--side", side, "--folder", name]
                child = subprocess.run(
                    [*command, "--model", options.model, *again],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found = json.loads(child.stdout.splitlines()[-1])
                memory[side].append(found["peak"])
                before[side].append(found["before"])
                owned[side].append(found["owned"])
    share = measuring.ratios(memory["engine"], memory["plain"])
    measuring.say("peak memory, engine over plain", share)
    measuring.write(
        "step",
        {
            "model": options.model,
            "forget_and_retain_texts": options.items,
            "apart": apart,
            "seconds": turns.spreads(),
            "ratio": ratio,
            "bar": TIME_BAR,
            "outcome": measuring.verdict_on(TIME_BAR, ratio["wall"]["median"]),
            "peak_mib": {side: measuring.spread(values) for side, values in memory.items()},
            "mib_before_the_steps": {side: measuring.spread(v) for side, v in before.items()},
            "owned_mib_at_a_step": {side: measuring.spread(v) for side, v in owned.items()},
            "memory_ratio": share,
            "owned_ratio": measuring.ratios(owned["engine"], owned["plain"]),
            "memory_bar": MEMORY_BAR,
            "memory_outcome": measuring.verdict_on(MEMORY_BAR, share["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
