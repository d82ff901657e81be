"""Made-up runs for the report, through the real store: one cell, a matrix, hostile names."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import made_run
import numpy as np
from made_run import Made, made_plan, write_run

from palimpsest.plan import MethodGrid, Plan, Replication
from palimpsest.run.store import Run

HOSTILE = {
    "closing": "</script><script>window.hurt=1</script>",
    "handler": '"><img src=x onerror="window.hurt=1">',
    "svg": "<svg onload=window.hurt=1><title>x</title></svg>",
    "ansi": "\x1b[31mred\x1b[0m\x07",
    "markup": "[bold red]loud[/] {{ 7*7 }} $\\alpha$ &amp; %s",
    "long": "n" * 300,
    "comment": "--><!-- ]]>",
    "bidi": "abc\u202edef",
}
"""Names that a page, a figure or a terminal might obey."""


def cell_run(path: Path, draws: int = 3, panel: bool = True) -> Path:
    """One cell, as the demo makes it."""
    plan = replace(made_plan(("qwen2-s",), (0,)), replication=Replication(draws=draws))

    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        if panel:
            return models
        kept = {name: made for name, made in models.items() if not name.startswith("panel:")}
        return {name: replace(made, audit=False) for name, made in kept.items()}

    return write_run(path, plan, change=change)


def large_run(path: Path) -> Path:
    """45 cells of nine models in five families, 820 candidates."""
    weights = (3.0, 12.0, 50.0, 200.0)
    knobs = {"task_vector": ("c", (0.5, 1.0, 1.5, 2.0))}
    families = {
        **{f"{name}-{size}": (name, True) for name in ("qwen2", "llama") for size in "sm"},
        **{f"{name}-{size}": (name, False) for name in ("gpt2", "neox") for size in "sm"},
        "olmo2-s": ("olmo2", True),
    }
    made_run.FAMILIES.update(families)
    made_run.DRAW_GAP.update(llama=0.5, olmo2=0.3, neox=0.7)

    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        generator = np.random.default_rng(zlib.crc32(cell.encode()))
        out = {}
        for name, made in models.items():
            method = name.rpartition("-")[0]
            if method not in {grid.name for grid in made_run.METHODS}:
                out[name] = made
                continue
            sign, values = knobs.get(method, ("w", weights))
            for value in values:
                shifted = replace(made, forget=made.forget + float(generator.normal(0, 0.5)))
                out.setdefault(f"{method}-{sign}{value:g}", shifted)
        return out

    methods = tuple(
        MethodGrid(grid.name, ((grid.grid[0][0], knobs.get(grid.name, ("w", weights))[1]),))
        for grid in made_run.METHODS
    )
    return write_run(path, Plan("large", tuple(families), (0, 1, 2, 3, 4), methods=methods,
                                replication=Replication(draws=3)), change=change)  # fmt: skip


def audit_run(path: Path, names: Sequence[str]) -> Path:
    """One cell with candidates of these names, which no planned method made."""
    plan = made_plan(("qwen2-s",), (0,))
    cell = plan.cells()[0]
    terms = plan.as_dict() | {"name": "audit", "methods": []}
    run = Run.create(path, terms, terms["rules"], {}, {"commitment": "c"}, cells=[cell.id])
    models = made_run.planted("qwen2", True, 3)
    known = {name: made for name, made in models.items() if not made_run_candidate(name)}
    mine = {name: Made(0.1 * k) for k, name in enumerate(names)}
    items, curves = made_run.tables(cell.id, known | mine, 16)
    summary = {"model": "audit", "seed": 0, "family": "qwen2", "gated": True, "draws": 3}
    summary |= {"candidates": list(mine), "failed": {}, "digests": {}, "facts": {}}
    with run.cell(cell.id).claim() as claimed:
        claimed.put("models", {"items": items, "curves": curves})
        claimed.finish(summary, ["models"])
    return path


def hostile_run(path: Path, names: Mapping[str, str] = HOSTILE) -> Path:
    """One cell in which candidates, methods, facts, model, family and plan have hostile names."""
    plan = replace(made_plan(("qwen2-s",), (0,)), name=names["closing"])
    cell = plan.cells()[0]
    run = Run.create(
        path,
        plan.as_dict(),
        plan.as_dict()["rules"],
        {"machine": names["handler"]},
        {"commitment": "c"},
        cells=[cell.id],
    )
    models = made_run.planted("qwen2", True, 3)
    known = {name: made for name, made in models.items() if not made_run_candidate(name)}
    mine = {f"{name}-{k}": Made(0.1 * k) for k, name in enumerate(names.values())}
    items, curves = made_run.tables(cell.id, known | mine, 16)
    swapped = {"f0": names["closing"], "f1": names["handler"], "p0": names["ansi"]}
    items["fact"] = [swapped.get(fact, fact) for fact in items["fact"]]
    with run.cell(cell.id).claim() as claimed:
        claimed.put("models", {"items": items, "curves": curves})
        claimed.finish(
            {
                "model": names["svg"],
                "seed": 0,
                "family": names["handler"],
                "gated": True,
                "draws": 3,
                "candidates": list(mine),
                "failed": {names["svg"]: names["closing"]},
                "digests": {},
                "facts": {},
            },
            ["models"],
        )
    return path


def made_run_candidate(name: str) -> bool:
    return name.rpartition("-")[0] in {grid.name for grid in made_run.METHODS}
