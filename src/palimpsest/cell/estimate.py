"""What a run will take, from a short measured step: time, memory and disk, within a factor of two.

One step of training and one page of scoring are timed on the model itself; the rest is counted.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from palimpsest.cell.plan import CellPlan, Commanded, Trained
from palimpsest.cell.steps import Effort, StepList
from palimpsest.cell.work import CellWork
from palimpsest.models.checkpoint import outline
from palimpsest.models.device import check_room
from palimpsest.models.tokenizer import token_ids
from palimpsest.models.train import text_loss, train
from palimpsest.run.cell import CellStore
from palimpsest.run.executor import stored_steps
from palimpsest.run.local import gpus
from palimpsest.run.status import duration
from palimpsest.run.steps import Step, steps_to_do
from palimpsest.run.store import Run
from palimpsest.scoring.answers import score

GB = 1e9
RUNTIME = 6e8
"""Bytes that Python, torch and a tokenizer take before any model."""
ACTIVATIONS = 20
"""Values that a layer keeps for the backward pass, per token and unit of the model's width."""


@dataclass(frozen=True)
class Estimate:
    """What the steps of a run take."""

    seconds: float
    """Of all steps, on one worker."""
    memory: float
    """Bytes of one worker, on its device."""
    disk: float
    """Bytes of weights in the run folder while a cell is worked on."""
    steps: int
    """To do, as are the seconds."""
    stored: int
    """Steps that the run folder holds already."""
    model: float
    """Seconds to measure one model, on one worker."""

    def line(self, workers: int) -> str:
        """Return the estimate as one line."""
        if not self.steps:
            return f"nothing is left to do; all {self.stored} steps are stored"
        left = f" left, {self.stored} already stored" if self.stored else ""
        return (
            f"about {duration(self.seconds / workers)} with {workers} "
            f"worker{'' if workers == 1 else 's'}, {self.memory / GB:.1f} GB of memory per worker, "
            f"{self.disk / GB:.1f} GB of disk; {self.steps} steps{left}"
        )


@dataclass(frozen=True)
class Speed:
    """What is measured on a model: seconds of a training step per text, and of scoring a page."""

    per_text: float
    page: float

    def seconds(self, effort: Effort) -> float:
        """Return the time that work takes on one worker."""
        return effort.trained * self.per_text + effort.pages * self.page


def estimate_cells(
    specs: Mapping[str, CellPlan], out: Path | None = None, reuse: str = ""
) -> Estimate:
    """Return what is left of these cells takes, by their ids; one cell of each base is tried.

    out: the run folder, if there is one already; reuse: another run, whose steps are taken over.
    """
    seconds, memory, disk, model, steps, stored = 0.0, 0.0, 0.0, 0.0, 0, 0
    run = Run.find(out) if out is not None else None
    elsewhere = stored_steps(Run.open(reuse) if reuse else None, run)
    tried: dict[str, tuple[CellWork, Speed]] = {}
    for cell, plan in specs.items():
        if plan.base.place not in tried:
            work = CellWork(plan)
            tried[plan.base.place] = (work, _measure(work))
        work, speed = tried[plan.base.place]
        listed = work.listed if work.plan is plan else StepList(plan)
        left = planned = work.steps if listed is work.listed else listed.build()
        own = run.cell(cell) if run is not None and cell in run.cells else None
        names = _steps_left(planned, own, elsewhere)
        left = tuple(step for step in planned if step.name in names)
        seconds += sum(speed.seconds(listed.efforts[step.name]) for step in left)
        memory = max(memory, worker_memory(plan))
        made = sum(isinstance(entry.source, Trained | Commanded) for entry in plan.models)
        trained = made + (0 if plan.measured else made + 2 * len(plan.methods))
        disk = max(disk, trained * work.loaded.parameters * 4.0)
        steps, stored = steps + len(left), stored + len(planned) - len(left)
        model = speed.seconds(listed.measuring)
    return Estimate(seconds, memory, disk, steps, stored, model)


def _steps_left(
    planned: Sequence[Step],
    own: CellStore | None,
    elsewhere: Mapping[str, tuple[CellStore, str]],
) -> set[str]:
    """Return the names of the steps to do, those included whose dropped weights are needed."""
    recorded, done = set[str](), set[str]()
    for step in planned:
        places = [(own, step)] if own is not None else []
        if step.key in elsewhere:
            store, name = elsewhere[step.key]
            if store.manifest(name)["opening"] is None:  # else the pool is opened again
                places.append((store, replace(step, name=name)))
        recorded |= {step.name for store, there in places if store.recorded(there)}
        done |= {step.name for store, there in places if store.done(there)}
    return steps_to_do(planned, done, recorded)


def _measure(work: CellWork) -> Speed:
    """Return the speed of one training step and one scored page."""
    texts = work.plain_texts
    batches = texts.reacquisition_steps[:2] if texts.facts.questions else []
    if texts.examples is not None and not texts.examples.texts:
        return Speed(0.0, 0.0)  # a user's own trainer takes what it takes
    if texts.general_train or not work.plan.measured:
        batches = texts.injection_steps(texts.stream())[:2]
    count = sum(part.batch.ids.shape[0] for part in batches[0])

    net = work.nets([work.base])

    def one_step() -> None:
        train(net, batches[:1], text_loss, learning_rate=1e-9)

    one_step()  # the first one also compiles and allocates
    step = _timed(one_step) / max(1, count)
    if not work.plan.measured:
        return Speed(step, 0.0)
    return Speed(step, _timed(lambda: score(net, texts.sheet)))


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def worker_memory(plan: CellPlan) -> float:
    """Return the bytes that one worker takes at most: a model in training and its batch."""
    texts, engine = plan.texts, plan.texts.engine
    base = outline(plan.base.place)
    parameters = base.parameters
    width = base.number("hidden_size", "n_embd", default=768)
    layers = base.number("num_hidden_layers", "n_layer", default=12)
    vocabulary = base.number("vocab_size", default=50_000)
    each = 4 if engine.dtype == "float32" else 2
    # Weights, gradients and AdamW's two moments; master weights where the weights are not float32.
    state = parameters * (2 * each + 8 + (4 if each == 2 else 0))
    if engine.lora:
        state = parameters * each + 24 * engine.lora * layers * width * 16
    injection = texts.injection
    items = max(injection.fact_items + injection.general_items, texts.reacquisition.items)
    tokens = items * texts.general.piece_tokens / engine.accumulate
    if texts.examples is not None and texts.examples.texts:
        longest = max(map(len, token_ids(base.tokenizer, [t.text for t in texts.examples.texts])))
        tokens = texts.examples.recipe.batch_size * longest / engine.accumulate
    kept = ACTIVATIONS if not engine.checkpointing else 2 + ACTIVATIONS / layers
    activations = tokens * layers * width * kept * each
    logits = 3 * 4 * vocabulary * max(tokens, min(engine.batch_tokens, 1024))
    return float(RUNTIME + state + activations + logits)


def suitable_workers(plan: CellPlan, most: int | None = None) -> int:
    """Return as many workers as there are cores and memory for; one for each GPU."""
    import psutil

    device = plan.texts.engine.device
    if device != "cpu":
        return max(1, len(gpus())) if device == "cuda" else 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    room = int(psutil.virtual_memory().available // worker_memory(plan))
    return max(1, min(cores or 1, most or cores or 1, room))


def check_memory(plan: CellPlan) -> None:
    """Refuse a run that its device cannot hold, before anything is computed."""
    check_room(worker_memory(plan), plan.texts.engine.device, "one worker")
