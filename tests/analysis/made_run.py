"""A made-up run with planted effects, written through the real store: no model is trained.

Every number a criterion reads is planted here, so tests compare with hand computations. In every
cell (in nats; deltas are anchored to base):

- the injected model knows the forget set (deltas near -2) and drifts on probes (near +0.1);
- the reference does not know it (deltas near +0.1);
- ``kl_reversion`` fits trained probes (oracle-KL 0.2 of the injected model's 1.0) and still knows
  held-out facts (-1.5);
- ``gate_mask`` (gated architectures only) is restored: near the reference on every axis;
- ``task_vector`` forgets and damages retain facts; ``ga`` over-forgets by 6 nats;
- ``npo`` lies where the reference lies and relearns at once: only the relearn veto sees it;
- on the sealed pool suppression lies at the reference's place and relearns at once, the router is
  exactly base on forget facts and the injected model on probes, embedding corruption breaks retain.

References lie in a row here, as the paper's bars are tested with. ``calibrated`` plants a cell for
the comparison with retrainings instead: twenty noisy references, controls, and candidates of which
one is a retraining.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.criteria.rules import Rules
from palimpsest.plan import MethodGrid, Plan, Replication
from palimpsest.run.store import Run

FAMILIES = {"qwen2-s": ("qwen2", True), "qwen2-m": ("qwen2", True), "gpt2-s": ("gpt2", False)}
WEIGHTS = (3.0, 12.0)
CHUNKS = 5
STEPS = 75
DRAW_GAP = {"qwen2": 0.6, "gpt2": 0.4}
"""Distance between neighbouring reference draws on every held-out forget fact."""

METHODS = (
    MethodGrid("kl_reversion", (("weight", WEIGHTS),)),
    MethodGrid("gate_mask", (("weight", WEIGHTS),)),
    MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
    MethodGrid("ga", (("weight", WEIGHTS),)),
    MethodGrid("npo", (("weight", WEIGHTS),)),
)


@dataclass(frozen=True)
class Made:
    """What a made-up model scores."""

    forget: float = 0.1
    """Centre of its held-out forget deltas."""
    probe: float = 0.1
    retain: float = 1.2
    oracle_kl: float = 0.5
    residual: float | None = 0.9
    fall: float = 0.3
    """First-chunk fall when re-acquired."""
    audit: bool = False
    exact: bool = False
    """Forget deltas exactly at the centre, without spread."""
    general: float = 2.0
    late: float | None = None
    """Held-out forget NLL after the last chunk; None lets it follow from the fall."""


def planted(family: str, gated: bool, draws: int) -> dict[str, Made]:
    """Every model of a cell."""
    models = {
        "base": Made(0.0, 0.0, retain=6.0, oracle_kl=4.0, residual=1.5, audit=True, exact=True),
        "injected": Made(-2.0, oracle_kl=1.0, fall=0.6, audit=True),
        "reference": Made(oracle_kl=0.0, residual=1.0, audit=True),
        "forget_only": Made(-2.0, retain=6.0, residual=None),
    }
    for draw in range(1, draws):
        models[f"reference-{draw}"] = Made(
            0.1 + DRAW_GAP[family] * draw,
            retain=1.2 + 0.1 * draw,
            residual=1.0 + 0.05 * draw,
            fall=0.3 + 0.05 * draw,
        )
    for weight in WEIGHTS:
        models[f"kl_reversion-w{weight:g}"] = Made(-1.5, oracle_kl=0.2, fall=0.9)
    for weight in WEIGHTS if gated else ():
        models[f"gate_mask-w{weight:g}"] = Made(0.2, oracle_kl=0.7, residual=1.0)
    for coefficient in (0.5, 1.0):
        models[f"task_vector-c{coefficient:g}"] = Made(0.3, retain=4.0, oracle_kl=0.6)
    for weight in WEIGHTS:
        models[f"ga-w{weight:g}"] = Made(6.0, retain=1.0, oracle_kl=3.0, residual=2.5, fall=2.0)
        models[f"npo-w{weight:g}"] = Made(0.15, oracle_kl=2.0, residual=0.8, fall=1.5)
    models["panel:suppression"] = Made(0.1, fall=1.8, audit=True)
    models["panel:router"] = Made(0.0, fall=0.1, audit=True, exact=True)
    models["panel:embedding"] = Made(4.0, retain=8.0, residual=3.0, audit=True)
    for share in (0.25, 0.5, 0.75):
        models[f"panel:interpolate-{share:g}"] = Made(-2.0 + 2.1 * share, audit=True)
    return models


def calibrated(references: int = 20, seed: int = 0) -> dict[str, Made]:
    """Every model of a cell for the comparison with retrainings."""
    generator = np.random.default_rng(seed)

    def made(share: float = 0.0, noise: float = 1.0, **planted: Any) -> Made:
        z = noise * generator.standard_normal(7)
        usual = {
            "forget": 0.1 - 2.1 * share + 0.03 * z[0],
            "probe": 0.1 + 0.02 * z[1],
            "retain": 1.2 + 0.03 * z[2],
            "general": 2.0 + 0.015 * z[3],
            "residual": 0.9 - 0.4 * share + 0.05 * z[4],
            "fall": 1.0 + 0.05 * z[5] - 0.9 * share,
            "late": 1.2 - 0.6 * share + 0.05 * z[6],
        }
        return Made(**(usual | planted))

    flat = {"forget": 0.0, "probe": 0.0, "retain": 6.0, "general": 3.0, "residual": 2.0}
    models = {"base": made(noise=0, exact=True, audit=True, **flat)}
    models["injected"] = made(1.0, audit=True)
    for draw in range(references):
        models[f"reference-{draw}" if draw else "reference"] = made(audit=not draw)
    models |= {f"retraining-{number}": made() for number in (1, 2)}
    models |= {f"control-{100 * share:g}": made(share) for share in (0.5, 0.25, 0.1, 0.05)}
    models["kl_reversion-w3"] = made(0.7)
    models["task_vector-c1"] = made()
    models["ga-w3"] = made(forget=6.0, retain=0.4, fall=0.1, late=5.0)
    models["npo-w3"] = made(fall=2.4, late=0.6)
    models["panel:suppression"] = made(fall=2.4, late=0.6, audit=True)
    models["panel:embedding"] = made(forget=4.0, retain=8.0, residual=3.0, audit=True)
    models["panel:interpolate-0.25"] = made(0.75, audit=True)
    return models


KINDS = {"kl_reversion": "restores", "task_vector": "restores", "ga": "suppresses",
         "npo": "suppresses"}  # fmt: skip


def role_of(name: str) -> dict[str, Any]:
    """The role of a planted model, as the runner of a cell writes it."""
    head, _, tail = name.partition("-")
    if name.startswith("panel:"):
        partial = name.startswith("panel:interpolate")
        truth = {"truth": "partial", "of": "reference"} if partial else {"truth": "suppressed"}
        return {"role": "challenge", "entry": name.removeprefix("panel:"), **truth}
    if head in ("reference", "retraining"):
        return {"role": head, "draw": int(tail or 0)}
    if head == "control":
        return {"role": "control", "share": float(tail) / 100, "of": "reference"}
    if name in ("base", "injected", "forget_only"):
        return {"role": name}
    return {"role": "candidate", "method": head, "kind": KINDS.get(head, "other")}


def made_plan(models: Iterable[str] = tuple(FAMILIES), seeds: Iterable[int] = (0, 1)) -> Plan:
    return Plan(
        name="made",
        models=tuple(models),
        seeds=tuple(seeds),
        methods=METHODS,
        replication=Replication(draws=3),
        rules=Rules().without("reversed"),  # which is no column of these tables
    )


def write_run(
    path: Path,
    plan: Plan | None = None,
    *,
    change: Callable[[str, dict[str, Made]], dict[str, Made]] = lambda cell, models: models,
    skip: Iterable[str] = (),
) -> Path:
    """The folder of a run in which the planted models were scored."""
    plan = plan or made_plan()
    cells = plan.cells()
    rules = plan.as_dict()["rules"]
    run = Run.create(
        path, plan.as_dict(), rules, {}, {"commitment": "c"}, cells=[cell.id for cell in cells]
    )
    seen: set[str] = set()
    for cell in cells:
        family, gated = FAMILIES[cell.model]
        draws = plan.replication.draws if family not in seen else 1
        seen.add(family)
        if cell.id in tuple(skip):
            continue
        models = change(cell.id, planted(family, gated, draws))
        write_cell(run, cell.id, cell.model, cell.seed, models, plan)
    return path


def write_cell(
    run: Run, cell_id: str, model: str, seed: int, models: dict[str, Made], plan: Plan
) -> None:
    family, gated = FAMILIES[model]
    titles = [
        f"{grid.name}-{'c' if grid.name == 'task_vector' else 'w'}{value:g}"
        for grid in plan.methods
        for value in grid.grid[0][1]
    ]
    refused = {"kind": "not_applicable", "reason": "gated MLPs only"}
    roles = {name: {**role_of(name), "digest": "d"} for name in models}
    roles |= {n: {**role_of(n), "failure": refused} for n in titles if n not in models}
    items, curves = tables(cell_id, models, plan.facts.probes)
    store = run.cell(cell_id)
    store.put("models", {"items": items, "curves": curves})
    summary = {"model": model, "seed": seed, "family": family, "gated": gated, "models": roles}
    store.finish(summary | {"facts": {}}, ["models"])


def tables(
    cell_id: str, models: dict[str, Made], probes: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Item and curve columns of one cell."""
    generator = np.random.default_rng(zlib.crc32(cell_id.encode()))
    base = {"forget": generator.uniform(2.5, 3.5, 4), "probe": generator.uniform(2.5, 3.5, probes)}
    # Spread of deltas over facts, shared by all models, symmetric about its centre.
    spread = {"forget": np.linspace(-0.05, 0.05, 4), "probe": np.linspace(-0.09, 0.09, probes)}
    rows: list[tuple[Any, ...]] = []
    log: list[tuple[Any, ...]] = []

    def row(
        model: str, stage: str, which: str, fact: str, pool: str, template: int, nll: float,
        reference: float = np.nan, injected: float = np.nan, tokens: int = 2,
    ) -> None:  # fmt: skip
        rows.append(
            (
                *(model, stage, which, fact, pool, template, nll * tokens, tokens),
                *(reference * tokens, injected * tokens),
            )
        )

    for name, made in models.items():
        centre = {"forget": made.forget, "probe": made.probe}
        pools = {"evaluation": 4} | ({"audit": 6} if made.audit else {})
        for which in ("forget", "probe"):
            values = base[which] + centre[which]
            if not (made.exact and (which == "forget" or name == "base")):
                values = values + spread[which]
            for fact, nll in enumerate(values):
                for pool, count in pools.items():
                    for template in range(count):
                        wobble = 0.2 * (template - (count - 1) / 2)  # cancels in the mean
                        label = f"{which[0]}{fact}"
                        row(name, "forward", which, label, pool, template, nll + wobble)
        for which in ("forget", "retain"):
            for fact in range(4):
                nll = made.retain if which == "retain" else 1.0
                label = f"{which[0]}{fact}"
                row(name, "forward", which, label, "cloze", 0, nll, made.oracle_kl, 0.1)
                if which == "retain" and made.residual is not None:
                    row(name, "reacquired", which, label, "cloze", 0, 1.0, injected=made.residual)
        for piece in range(3):
            row(name, "forward", "general", f"g{piece}", "general", 0, made.general, tokens=9)
            if made.residual is not None:
                row(
                    name, "reacquired", "general", f"g{piece}", "general", 0, 2.0,
                    injected=made.residual, tokens=9,
                )  # fmt: skip
        if made.residual is not None:
            start = float(base["forget"].mean()) + made.forget
            for chunk in range(CHUNKS + 1):
                nll = start - made.fall * (chunk > 0) - 0.05 * chunk * (chunk > 1)
                if made.late is not None and chunk == CHUNKS:
                    nll = made.late
                part = made.residual * chunk / CHUNKS
                log.append(
                    (name, chunk, STEPS * chunk // CHUNKS, nll, nll, made.retain, part, part)
                )

    text = ("model", "stage", "set", "fact", "pool")
    item_names = (*text, "template", "nll_sum", "tokens", "kl_reference", "kl_injected")
    curve_names = ("model", "chunk", "step", "forget_trained_nll", "forget_heldout_nll")
    curve_names += ("retain_nll", "residual_retain", "residual_general")
    return _columns(item_names, rows), _columns(curve_names, log)


def _columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    small = {"template", "tokens", "chunk", "step"}
    return {
        name: list(values) if isinstance(values[0], str)
        else np.array(values, dtype=np.int32 if name in small else np.float64)
        for name, values in zip(names, zip(*rows))
    }  # fmt: skip
