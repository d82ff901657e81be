"""The smallest run that can be certified, written through the real store: no model is trained.

Two forget facts, eight probes, two candidates, three reference draws; one phrasing a pool, but the
audit pool, which is the real one. ``a-w1`` is restored, ``a-w2`` still knows the forget set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.facts.sealed import AuditPool, builtin_pool, seal
from palimpsest.plan import Counts, MethodGrid, Panel, Plan, Replication
from palimpsest.run.store import Run

NONCE = "0123456789abcdef" * 2
FACTS = {"forget": 2, "retain": 2, "probe": 8}
RELATION = "guild"

# Held-out forget delta, retain NLL, residual, first-chunk fall, scored on the audit pool.
MODELS: dict[str, tuple[float, float, float, float, bool]] = {
    "base": (0.0, 6.0, 1.5, 0.3, True),
    "injected": (-2.0, 1.2, 0.9, 0.6, True),
    "reference": (0.1, 1.2, 1.0, 0.30, True),
    "reference-1": (0.5, 1.3, 1.05, 0.35, False),
    "reference-2": (0.9, 1.4, 1.1, 0.40, False),
    "a-w1": (0.2, 1.2, 1.0, 0.3, False),
    "a-w2": (-1.5, 1.2, 0.9, 0.9, False),
    "panel:suppression": (0.1, 1.2, 0.9, 1.8, True),
}


def small_plan(seeds: int = 1, panel: bool = True, sealed: str = "") -> Plan:
    return Plan(
        name="small",
        models=("m",),
        seeds=tuple(range(seeds)),
        facts=Counts(forget=2, retain=2, probes=8, phrasings=1),
        methods=(MethodGrid("a", (("weight", (1.0, 2.0)),)),),
        panel=Panel(enabled=panel),
        replication=Replication(draws=3),
        seal=sealed,
    )


def write_small(
    path: Path,
    seeds: int = 1,
    *,
    panel: bool = True,
    pool: AuditPool | None = None,
    hide_nonce: bool = False,
    skip: tuple[str, ...] = (),
) -> Path:
    """The folder of the run; ``pool`` seals a pool of one's own."""
    commitment = str(seal(pool or builtin_pool(), NONCE))
    if hide_nonce:
        commitment = commitment.replace(f"{NONCE}:", "")
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
            write_small_cell(run, cell.id, pool or builtin_pool(), panel)
    return path


def write_small_audit(path: Path, evidence: float | None = None, **terms: Any) -> Path:
    """The folder of an audit: one cell, no panel, and terms that name the candidates.

    ``evidence`` is the NLL of forget facts, asked of base with evidence in context.
    """
    plan = small_plan().as_dict()
    roles = {"a-w1": "candidate", "a-w2": "candidate"}
    terms |= {
        "name": "audit",
        "methods": [],
        "models": [[n, roles.get(n, n.partition("-")[0])] for n in MODELS if ":" not in n],
        "facts": FACTS,
        "rules": plan["rules"],
    }
    commitment = "sha256:" + "5" * 64
    run = Run.create(path, terms, plan["rules"], {}, {"commitment": commitment}, cells=["audit"])
    write_small_cell(run, "audit", builtin_pool(), panel=False, evidence=evidence)
    return path


def write_small_cell(
    run: Run, cell_id: str, pool: AuditPool, panel: bool, evidence: float | None = None
) -> None:
    models = {n: m for n, m in MODELS.items() if panel or not n.startswith("panel:")}
    first = {name: made for name, made in models.items() if not name.startswith("panel:")}
    digests = {name: f"sha256:{name}" for name in models}
    judged = [name for name, made in models.items() if made[4]]
    steps = ["models"]
    with run.cell(cell_id).claim() as cell:
        if evidence is not None:
            steps.insert(0, "headroom")
            cell.put("headroom", {"headroom": headroom(evidence)})
        cell.put("models", tables(first))
        if panel:
            cell.open_seal("panel", run.seal["commitment"], {n: digests[n] for n in judged})
            rest = {name: made for name, made in models.items() if name not in first}
            cell.put("panel", tables(rest, judged, len(pool.phrasings[RELATION])))
            steps.append("panel")
        told = summary(list(models), digests)
        if evidence is not None:
            told["headroom"] = {"measured": True}
        cell.finish(told, steps)


def summary(models: list[str], digests: Mapping[str, str]) -> dict[str, Any]:
    return {
        "model": "m",
        "seed": 0,
        "family": "f",
        "gated": False,
        "base_digest": "sha256:base",
        "draws": sum(name.startswith("reference") for name in models),
        "candidates": [name for name in models if name.startswith("a-")],
        "failed": {},
        "digests": dict(digests),
        "facts": {
            which: [[f"{which[0]}{n}", "S", RELATION, "O"] for n in range(count)]
            for which, count in FACTS.items()
        },
    }


def headroom(evidence: float) -> dict[str, Any]:
    """Item columns of base, base with evidence and injected, on the forget facts."""
    nan = float("nan")
    rows = [
        (model, "forward", "forget", f"f{fact}", "evaluation", 0, 2 * nll + 0.1 * fact, 2, nan, nan)
        for model, nll in (("base", 3.0), ("evidence", evidence), ("injected", 1.0))
        for fact in range(FACTS["forget"])
    ]
    names = ("model", "stage", "set", "fact", "pool", "template", "nll_sum", "tokens")
    return _columns((*names, "kl_reference", "kl_injected"), rows)


def tables(
    models: Mapping[str, tuple[float, float, float, float, bool]],
    audited: list[str] | None = None,
    phrasings: int = 0,
) -> dict[str, dict[str, Any]]:
    """Item and curve columns of some models, and the audit rows of others."""
    rows: list[tuple[Any, ...]] = []
    log: list[tuple[Any, ...]] = []
    nan = float("nan")

    def held_out(name: str, pool: str, count: int) -> None:
        forget = MODELS[name][0]
        for which, delta in (("forget", forget), ("probe", 0.1 if name != "base" else 0.0)):
            for fact in range(FACTS[which]):
                nll = 3.0 + delta + (0.01 * fact if name != "base" else 0.0)
                for template in range(count):
                    where = (name, "forward", which, f"{which[0]}{fact}", pool, template)
                    rows.append((*where, 2 * nll, 2, nan, nan))

    for name, (forget, retain, residual, fall, _) in models.items():
        held_out(name, "evaluation", 1)
        for fact in range(FACTS["retain"]):
            where = ("retain", f"r{fact}", "cloze", 0)
            rows.append((name, "forward", *where, 2 * retain, 2, 1.0, 0.2))
            rows.append((name, "reacquired", *where, 2.0, 2, nan, 2 * residual))
        rows.append((name, "reacquired", "general", "g0", "general", 0, 18.0, 9, nan, 9 * residual))
        for chunk in range(3):
            nll = 3.0 + forget - fall * (chunk > 0)
            log.append((name, chunk, 5 * chunk, nll, nll, retain, residual, residual))
    for name in audited or []:
        held_out(name, "audit", phrasings)
    item_names = ("model", "stage", "set", "fact", "pool", "template", "nll_sum", "tokens")
    item_names += ("kl_reference", "kl_injected")
    curve_names = ("model", "chunk", "step", "forget_trained_nll", "forget_heldout_nll")
    curve_names += ("retain_nll", "residual_retain", "residual_general")
    found = {"items": _columns(item_names, rows)}
    return found | ({"curves": _columns(curve_names, log)} if log else {})


def _columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    whole = {"template", "tokens", "chunk", "step"}
    return {
        name: list(values)
        if isinstance(values[0], str)
        else np.array(values, dtype=np.int32 if name in whole else np.float64)
        for name, values in zip(names, zip(*rows))
    }
