"""A whole pocket cell, 20 candidates, from injection to verdict, against the plain pipeline.

Both sides make the same models from the same texts in the same order and end with a verdict. The
panel is left out: it puts the instruments to the test and enters no verdict. One process, one
thread. The bar is 4 times.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import pocket
import straightforward
import torch

from palimpsest.criteria.measures import measure_cell
from palimpsest.plan import CellPlan
from palimpsest.study.matrix import run_cell, start
from palimpsest.study.results import read_run
from palimpsest.verdict import Verdict, decide

BAR = 4.0
NLL_TOLERANCE = 1e-4
"""Nats per answer token, on models that were not trained: the same forward."""
TRAINED_TOLERANCE = 0.02
"""Nats per answer token, on models that were: AdamW's first steps are signs of gradients, so that
rounding in the last digit moves a weight whose gradient is nearly zero, and this grows."""

Tables = tuple[dict[str, Any], Verdict]


def engine(cell: CellPlan) -> Tables:
    """Give the items and the verdict of a cell as ``palimpsest run`` makes them."""
    folder = pocket.run_folder("cell")
    try:
        run = start(cell.plan, folder / "run")
        run_cell(run.path, cell.id)
        verdict = read_run(run.path).cells[0].verdict
        assert verdict is not None
        return dict(run.cell(cell.id).table("items")), verdict
    finally:
        shutil.rmtree(folder)


def plain(cell: CellPlan) -> Tables:
    """Give the same by the straightforward pipeline."""
    items, curves = straightforward.run_cell(cell, cell.plan.replication.draws)
    rules = cell.plan.rules
    measures = measure_cell(items, curves, rules.screen_pool)
    others = ("base", "injected", "reference", "forget_only")
    names = [name for name in dict.fromkeys(items["model"]) if not name.startswith(others)]
    return items, decide(measures, rules, [str(name) for name in names])


def check(ours: Tables, theirs: Tables) -> dict[str, float]:
    """Give how far apart the sides are; raise if it is too far or the verdicts differ."""
    found = {}
    mine, other = _by_row(ours[0]), _by_row(theirs[0])
    if mine.keys() != other.keys():
        raise measuring.Disagreement(f"rows differ: {sorted(mine.keys() ^ other.keys())[:3]}")
    for what, chosen, tolerance in (
        ("base", [k for k in mine if k[:2] == ("base", "forward")], NLL_TOLERANCE),
        ("trained", [k for k in mine if k[:2] != ("base", "forward")], TRAINED_TOLERANCE),
    ):
        for column, name in enumerate(("nll", "kl_reference", "kl_injected")):
            limit = TRAINED_TOLERANCE if column else tolerance  # teachers were trained
            found[f"{what}_{name}"] = measuring.agree(
                f"{name} of {what}",
                [mine[key][column] for key in chosen],
                [other[key][column] for key in chosen],
                limit,
            )
    one, two = ours[1], theirs[1]
    if (one.status, one.candidate, one.reason) != (two.status, two.candidate, two.reason):
        raise measuring.Disagreement(f"verdicts differ: {one.paragraph()} / {two.paragraph()}")
    return found


def _by_row(items: dict[str, Any]) -> dict[tuple[str, ...], tuple[float, ...]]:
    keys = ("model", "stage", "set", "fact", "pool", "template")
    numbers = [items[name] / items["tokens"] for name in ("nll_sum", "kl_reference", "kl_injected")]
    rows = zip(*(items[key] for key in keys))
    return {tuple(map(str, row)): tuple(n) for row, n in zip(rows, np.stack(numbers, axis=1))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="check only that both sides agree")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell = pocket.cell_plan(tiny=options.tiny)
    last: dict[str, Tables] = {}

    def side(name: str, do: Any) -> Any:
        return lambda: last.__setitem__(name, do(cell))

    # The full cell is its own check: the first, uncounted turn of a tiny one warms both sides up.
    tiny = pocket.cell_plan(tiny=True)
    apart = check(engine(tiny), plain(tiny))
    print("tiny cell agrees:", json.dumps(apart))
    if options.tiny:
        return
    sides = {"engine": side("engine", engine), "plain": side("plain", plain)}
    seconds = measuring.interleaved(sides, options.repeats, warm=0)
    apart = check(last["engine"], last["plain"])
    print("whole cell agrees:", json.dumps(apart))
    ratio = measuring.ratios(seconds["plain"], seconds["engine"])
    measuring.say("whole cell, times faster", ratio)
    measuring.write(
        "cell",
        {
            "model": Path(cell.model).name,
            "candidates": len(last["engine"][1].findings),
            "seconds": {name: measuring.spread(values) for name, values in seconds.items()},
            "ratio": ratio,
            "apart": apart,
            "verdict": last["engine"][1].paragraph(),
            "bar": BAR,
            "outcome": measuring.verdict_on(BAR, ratio["median"]),
        },
    )


if __name__ == "__main__":
    main()
