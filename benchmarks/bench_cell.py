"""A whole cell, from injection to verdict, against the plain pipeline.

The cell is of a pocket model with 20 candidates, or, with ``--cell stories15m``, of a model of 15
million parameters with five. Both sides make the same models from the same texts in the same order
and end with a verdict. Known-label models are left out: they test the instruments and enter no
verdict. Every turn is a process of its own with one thread, warmed up by a tiny cell, so that
neither side inherits the other's heap. The bars are 4 times and 2.5 times.
"""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import pocket
import straightforward
import torch
from pocket import PocketCell

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.planned import planned_cell
from palimpsest.cell.study import StudyTask
from palimpsest.report.results import read_run
from palimpsest.stats.measures import measure_cell
from palimpsest.stats.models import Model
from palimpsest.stats.verdict import Verdict, decide

CELLS = {"pocket": (pocket.cell_plan, 4.0), "stories15m": (pocket.stories_cell, 2.5)}
"""What makes the cell, and the bar."""
MADE_FROM_BASE = ("base", "injected", "reference", "forget_only", "control")
AMPLIFIED = ("kl_reversion", "gate_mask")
"""Methods that amplify rounding: a large retain weight, and a mask, which is a choice of ranks."""
UNTRAINED, INJECTED, CANDIDATE, MIDDLE, MOST = 1e-4, 2e-3, 0.1, 0.02, 0.15
"""Nats per answer token that items may be apart.

Base is the same forward and must agree to rounding. Training lets rounding grow: AdamW's first
steps are signs of gradients. Every item of other candidates must lie within CANDIDATE; they were at
most 0.05 apart. Of amplified ones nine tenths of the items must lie within MOST and the middle item
within MIDDLE; they were 0.12 and 0.018 apart, single items up to 0.5, on the processor where the
pipelines differ most.
"""

Tables = tuple[dict[str, Any], Verdict]


def engine(cell: PocketCell) -> Tables:
    """Give the items and the verdict of a cell as ``palimpsest study`` makes them."""
    folder = pocket.run_folder("cell")
    try:
        run = launch(StudyTask(cell.plan, folder / "run"), RunOptions())
        verdict = read_run(run.path).cells[0].verdict
        assert verdict is not None
        return dict(run.cell(cell.id).table("items")), verdict
    finally:
        shutil.rmtree(folder)


def plain(cell: PocketCell) -> Tables:
    """Give the same by the straightforward pipeline."""
    torch.use_deterministic_algorithms(False)  # the engine's choice, which it makes anew each time
    items, curves = straightforward.run_cell(cell)
    rules = cell.plan.rules
    measures = measure_cell(items, curves, records=records(cell))
    verdict = decide(measures, rules)
    assert verdict is not None
    return items, verdict


def records(cell: PocketCell) -> dict[str, Model]:
    """Return what each model of the cell is, as the engine records it."""
    models = planned_cell(*StudyTask(cell.plan).fixed, cell.id).models
    return {model.name: model for model in models}


def check(ours: Tables, theirs: Tables) -> dict[str, float]:
    """Give how far apart the sides are; raise if it is too far or the verdicts differ."""
    found: dict[str, float] = {}
    mine, other = _by_row(ours[0]), _by_row(theirs[0])
    if mine.keys() != other.keys():
        raise measuring.Disagreement(f"rows differ: {sorted(mine.keys() ^ other.keys())[:3]}")
    for model in dict.fromkeys(key[0] for key in mine):
        trained = INJECTED if model.startswith(MADE_FROM_BASE) else CANDIDATE
        for column, name in enumerate(("nll", "kl_reference", "kl_injected")):
            for stage in ("forward", "reacquired"):
                chosen = [key for key in mine if key[:2] == (model, stage)]
                one, two = (np.array([side[k][column] for k in chosen]) for side in (mine, other))
                untrained = (model, stage, name) == ("base", "forward", "nll")
                where = f"{name} of {model}, {stage}"
                bound = UNTRAINED if untrained else trained
                if model.startswith(AMPLIFIED):
                    bound = np.inf
                apart = measuring.agree(where, one, two, bound)
                known = np.abs(one - two)[~np.isnan(one)]
                if len(known) and np.median(known) > MIDDLE:
                    raise measuring.Disagreement(f"{where}: the middle item is too far apart")
                if len(known) and np.quantile(known, 0.9) > MOST:
                    raise measuring.Disagreement(f"{where}: most items are too far apart")
                kind = "base" if untrained else "injected" if trained == INJECTED else "candidates"
                found[f"{kind}_{name}"] = max(apart, found.get(f"{kind}_{name}", 0.0))
    one, two = ours[1], theirs[1]
    if (one.status, one.candidate, one.reason) != (two.status, two.candidate, two.reason):
        raise measuring.Disagreement(f"verdicts differ: {one.paragraph()} / {two.paragraph()}")
    return found


def _by_row(items: dict[str, Any]) -> dict[tuple[str, ...], tuple[float, ...]]:
    keys = ("model", "stage", "set", "fact", "pool", "template")
    numbers = [items[name] / items["tokens"] for name in ("nll_sum", "kl_reference", "kl_injected")]
    rows = zip(*(items[key] for key in keys))
    return {tuple(map(str, row)): tuple(n) for row, n in zip(rows, np.stack(numbers, axis=1))}


SIDES = {"engine": engine, "plain": plain}


def turn(side: str, cell: PocketCell, into: Path) -> None:
    """Do one side's cell in this process; print its seconds, leave what came out in ``into``."""
    SIDES[side](pocket.cell_plan(tiny=True))
    begun, busy = time.perf_counter(), time.process_time()
    items, verdict = SIDES[side](cell)
    seconds = {"wall": time.perf_counter() - begun, "processor": time.process_time() - busy}
    into.write_bytes(pickle.dumps((items, verdict)))
    print(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    parser.add_argument("--cell", choices=CELLS, default="pocket")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell, bar = CELLS[options.cell][0](), CELLS[options.cell][1]
    if options.side:
        turn(options.side, cell, options.into)
        return
    tiny = pocket.cell_plan(tiny=True)
    apart = check(engine(tiny), plain(tiny))
    print("tiny cell agrees:", json.dumps(apart), flush=True)
    if options.tiny:
        return
    turns = measuring.Turns({side: [] for side in SIDES}, {side: [] for side in SIDES})
    last: dict[str, Tables] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.repeats):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                into = Path(name) / side
                command = [sys.executable, __file__, "--cell", options.cell]
                command += ["--side", side, "--into", str(into)]
                child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(child.stdout.splitlines()[-1])
                turns.seconds[side].append(found["wall"])
                turns.processor[side].append(found["processor"])
                last[side] = pickle.loads(into.read_bytes())
                print(f"{side}: {found}", flush=True)
    ratio = turns.ratio("plain", "engine")
    measuring.say("whole cell, times faster", ratio)
    apart = check(last["engine"], last["plain"])
    print("whole cell agrees:", json.dumps(apart))
    measuring.write(
        "cell" if options.cell == "pocket" else f"cell_{options.cell}",
        {
            "model": Path(cell.model).name,
            "candidates": len(last["engine"][1].findings),
            "seconds": turns.spreads(),
            "ratio": ratio,
            "apart": apart,
            "verdict": last["engine"][1].paragraph(),
            "bar": bar,
            "outcome": measuring.verdict_on(bar, ratio["wall"]["median"]),
        },
    )


if __name__ == "__main__":
    main()
