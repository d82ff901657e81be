"""The smallest run that can be certified, written through the real store: no model is trained.

Two forget facts, eight probes, two candidates, five references and their controls; one phrasing in
each pool except the sealed one, which is the real one. ``a-w1`` is one more retraining, ``a-w2``
still knows the forget set.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.config.plan import Counts, MethodGrid, Panel, Plan, Replication
from palimpsest.engine.summary import verdict_values
from palimpsest.facts.sealed import AuditPool, builtin_pool
from palimpsest.report.results import read_run
from palimpsest.run.store import Run, write_json
from palimpsest.stats.rules import Rules

NONCE = "0123456789abcdef" * 2
FACTS = {"forget": 2, "retain": 2, "probe": 8}
RELATION = "guild"
SHARES = (0.5, 0.25, 0.1, 0.05)
REFERENCES = 5

# Held-out forget delta, probe delta, retain NLL, general NLL, residual, relearned early and late.
BASE = np.array([0.0, 0.0, 6.0, 4.0, 1.5, 2.0, 1.4])
RETRAINED = np.array([0.5, 0.1, 1.2, 3.0, 1.0, 1.8, 1.2])
INJECTED = np.array([-2.0, 0.1, 1.2, 3.0, 0.1, 0.5, 0.4])
# Retraining noise of seven retrainings, in units of 0.01.
NOISE = np.random.default_rng(7).normal(size=(7, 7)).round(2) * 0.03


def left(share: float) -> np.ndarray[Any, Any]:
    """Return the measures of a model with this share of the injected weights left."""
    return RETRAINED + NOISE[0] + share * (INJECTED - RETRAINED)


def model_values() -> dict[str, np.ndarray[Any, Any]]:
    """Return the measures of every model of a cell."""
    values = {"base": BASE, "injected": INJECTED}
    for draw in range(REFERENCES):
        values[f"reference-{draw}" if draw else "reference"] = RETRAINED + NOISE[draw]
    values |= {f"control-{100 * share:g}": left(share) for share in SHARES}
    return values | {
        "a-w1": RETRAINED + NOISE[6],
        "a-w2": left(0.9),
        "panel:suppression": left(1.0) + np.array([2.5, 0, 0, 0, 0, 0, 0]),
    }


MODELS = model_values()
SEALED = ("base", "injected", "reference", "panel:suppression")
"""Scored on the sealed pool."""


def role_of(name: str) -> dict[str, Any]:
    """Return what cell.json says of a model."""
    kind, _, number = name.partition("-")
    role: dict[str, Any] = {"role": kind}
    if kind == "reference":
        role |= {"draw": int(number or 0)}
    elif kind == "control":
        role |= {"share": float(number) / 100, "of": "reference"}
    elif kind == "a":
        knobs = {"weight": float(number[1:])}
        role = {"role": "candidate", "method": "a", "knobs": knobs, "kind": "other"}
    elif name.startswith("panel:"):
        role = {"role": "challenge", "entry": name[6:], "truth": "suppressed", "knows": ""}
    return role | {"digest": f"sha256:{name}"}


def small_plan(seeds: int = 1, panel: bool = True, sealed: str = "") -> Plan:
    return Plan(
        name="small",
        models=("m",),
        seeds=tuple(range(seeds)),
        facts=Counts(forget=2, retain=2, probes=8, phrasings=1),
        methods=(MethodGrid("a", (("weight", (1.0, 2.0)),)),),
        panel=Panel(enabled=panel, models=("suppression",)),
        replication=Replication(draws=REFERENCES),
        rules=Rules().without("reversed"),  # which is no column of these tables
        seal=sealed,
    )


def write_small(
    path: Path,
    seeds: int = 1,
    *,
    panel: bool = True,
    pool: AuditPool | None = None,
    skip: tuple[str, ...] = (),
    measure: str = "",
) -> Path:
    """Write the run and return its folder.

    ``pool`` seals a pool of the user's own; ``measure`` names one more number per model.
    """
    commitment = (pool or builtin_pool()).commitment()
    plan = small_plan(seeds, panel, commitment if pool else "")
    run = Run.create(
        path,
        plan.as_dict(),
        plan.as_dict()["rules"],
        {"code": {"version": "0", "source": "sha256:0"}},
        {"commitment": commitment, "pool": "own" if pool else "built-in"},
        cells=[cell.id for cell in plan.cells()],
    )
    for cell in plan.cells():
        if cell.id not in skip:
            write_small_cell(run, cell.id, pool or builtin_pool(), panel, measure=measure)
    return recorded(run)


def write_small_audit(path: Path, evidence: float | None = None) -> Path:
    """Write the run of an audit: one cell, no panel, and a plan that names the models.

    ``evidence`` is the NLL of forget facts, asked of base with evidence in context.
    """
    rules = small_plan().as_dict()["rules"]
    given = [name for name in MODELS if not name.startswith(("panel:", "control-"))]
    plan = {
        "name": "audit",
        "methods": [],
        "models": [[name, role_of(name)["role"]] for name in given],
        "facts": FACTS,
        "rules": rules,
    }
    seal = {"commitment": "sha256:" + "5" * 64}
    run = Run.create(path, plan, rules, {}, seal, cells=["audit"])
    write_small_cell(run, "audit", builtin_pool(), panel=False, evidence=evidence)
    verdict = read_run(recorded(run)).cells[0].verdict
    assert verdict is not None
    answer = {"paragraph": verdict.paragraph(), "rules_hash": run.rules_hash}
    answer["exit_code"] = 0 if verdict.certified else 3
    write_json(path / "summary.json", verdict_values(verdict) | answer)
    return path


def recorded(run: Run) -> Path:
    """Write the record of what is stored, as a command does last, and return the run's folder."""
    with run.lock("test"):
        run.record()
    return run.path


def write_small_cell(
    run: Run,
    cell_id: str,
    pool: AuditPool,
    panel: bool,
    evidence: float | None = None,
    measure: str = "",
) -> None:
    names = [name for name in MODELS if panel or not name.startswith("panel:")]
    roles = {name: role_of(name) for name in names}
    first = [name for name in names if not name.startswith("panel:")]
    steps = ["models"]
    cell = run.cell(cell_id)
    if evidence is not None:
        steps.insert(0, "headroom")
        cell.put("headroom", {"headroom": headroom(evidence)})
    extra = {"model": names, "measure": [measure] * len(names)}
    extra |= {"value": np.array([float(MODELS[name].sum()) for name in names])}
    cell.put("models", tables(first) | ({"measures": extra} if measure else {}))
    if panel:
        opened = {name: roles[name]["digest"] for name in SEALED}
        cell.open_seal("panel", run.seal["commitment"], opened)
        rest = [name for name in names if name not in first]
        cell.put("panel", tables(rest, SEALED, len(pool.phrasings[RELATION])))
        steps.append("panel")
    cell.finish(
        summary(roles) | {"headroom": None if evidence is None else {"measured": True}}, steps
    )


def summary(roles: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": "m",
        "seed": 0,
        "family": "f",
        "gated": False,
        "base_digest": "sha256:base",
        "models": dict(roles),
        "facts": {
            which: [[f"{which[0]}{n}", "S", RELATION, "O"] for n in range(count)]
            for which, count in FACTS.items()
        },
    }


def headroom(evidence: float) -> dict[str, Any]:
    """Return item columns of base, base with evidence and injected, on the forget facts."""
    nan = float("nan")
    rows = [
        (model, "forward", "forget", f"f{fact}", "evaluation", 0, 2 * nll + 0.1 * fact, 2, nan, nan)
        for model, nll in (("base", 3.0), ("evidence", evidence), ("injected", 1.0))
        for fact in range(FACTS["forget"])
    ]
    return _columns(ITEMS, rows)


ITEMS = ("model", "stage", "set", "fact", "pool", "template", "nll_sum", "tokens")
ITEMS += ("kl_reference", "kl_injected")
CURVES = ("model", "chunk", "step", "forget_trained_nll", "forget_heldout_nll", "retain_nll")
CURVES += ("residual_retain", "residual_general")


def tables(
    names: Sequence[str], sealed: Sequence[str] = (), phrasings: int = 0
) -> dict[str, dict[str, Any]]:
    """Return item and curve columns of some models, and the sealed pool's rows of others."""
    rows: list[tuple[Any, ...]] = []
    curves: list[tuple[Any, ...]] = []
    nan = float("nan")

    def held_out(name: str, pool: str, count: int) -> None:
        forget, probe = MODELS[name][:2]
        for which, delta in (("forget", forget), ("probe", probe)):
            for fact in range(FACTS[which]):
                nll = 3.0 + delta + (0.01 * fact if name != "base" else 0.0)
                for template in range(count):
                    where = (name, "forward", which, f"{which[0]}{fact}", pool, template)
                    rows.append((*where, 2 * nll, 2, nan, nan))

    for name in names:
        forget, _, retain, general, residual, early, late = MODELS[name]
        held_out(name, "evaluation", 1)
        for fact in range(FACTS["retain"]):
            where = ("retain", f"r{fact}", "cloze", 0)
            rows.append((name, "forward", *where, 2 * retain, 2, 1.0, 0.2))
            rows.append((name, "reacquired", *where, 2.0, 2, nan, 2 * residual))
        where = ("general", "g0", "general", 0)
        rows.append((name, "forward", *where, 9 * general, 9, nan, 0.2))
        rows.append((name, "reacquired", *where, 18.0, 9, nan, 9 * residual))
        for chunk, nll in enumerate((3.0 + forget, early, late)):
            curves.append((name, chunk, 5 * chunk, nll, nll, retain, residual, residual))
    for name in sealed:
        held_out(name, "audit", phrasings)
    made = {"items": _columns(ITEMS, rows)}
    return made | ({"curves": _columns(CURVES, curves)} if curves else {})


def _columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    whole = {"template", "tokens", "chunk", "step"}
    return {
        name: list(values)
        if isinstance(values[0], str)
        else np.array(values, dtype=np.int32 if name in whole else np.float64)
        for name, values in zip(names, zip(*rows))
    }
