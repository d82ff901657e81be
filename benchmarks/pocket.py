"""Which pocket models the benchmarks use, and cells of them in the sizes a benchmark wants."""

import os
from dataclasses import replace
from pathlib import Path

from palimpsest.config.plan import (
    CellPlan,
    Counts,
    General,
    Injection,
    MethodGrid,
    Panel,
    Plan,
    Replication,
    RoundTrip,
    Unlearning,
)
from palimpsest.config.presets import PAPER_POOL, preset

MODEL = os.environ.get("PALIMPSEST_BENCH_MODEL", "pocket/qwen2-s")
"""A pocket model's name, or a folder of a checkpoint of that size."""


def cell_plan(*, seed: int = 0, draws: int = 3, tiny: bool = False) -> CellPlan:
    """Give a cell of the pocket matrix without its panel, whose models enter no verdict.

    tiny: the same cell with few facts and steps, for checking and not for timing.
    """
    plan = replace(
        preset("demo"),
        models=(MODEL,),
        seeds=(seed,),
        methods=PAPER_POOL,
        panel=Panel(enabled=False),
        replication=Replication(draws=draws, cells="every" if draws > 1 else "none"),
    )
    return CellPlan(MODEL, seed, _tiny(plan) if tiny else plan)


def with_candidates(cell: CellPlan, count: int) -> CellPlan:
    """Give the cell with this many candidates: the paper's pool, cut or made denser."""
    per_method = max(1, count // len(cell.plan.methods))
    weights = tuple(3.0 * (200.0 / 3.0) ** (n / max(1, per_method - 1)) for n in range(per_method))
    coefficients = tuple(0.5 + 1.5 * n / max(1, per_method - 1) for n in range(per_method))
    grids = tuple(
        MethodGrid(
            grid.name,
            ((knob, coefficients if knob == "coefficient" else weights),),
        )
        for grid in cell.plan.methods
        for knob, _ in grid.grid[:1]
    )
    return CellPlan(cell.model, cell.seed, replace(cell.plan, methods=grids))


def _tiny(plan: Plan) -> Plan:
    return replace(
        plan,
        facts=Counts(forget=4, retain=2, probes=6, phrasings=2),
        injection=Injection(steps=3, learning_rate=1.5e-4),
        unlearning=Unlearning(steps=3, learning_rate=1.5e-4, ascent_learning_rate=3.75e-5),
        round_trip=RoundTrip(steps=4, chunks=2, learning_rate=1.5e-4),
        general=General(train_pieces=40, scored_pieces=4),
        methods=tuple(
            MethodGrid(g.name, tuple((k, v[:1]) for k, v in g.grid)) for g in plan.methods
        ),
    )


def run_folder(name: str) -> Path:
    """Give an empty place for the run folders of a benchmark."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"palimpsest-{name}-"))
