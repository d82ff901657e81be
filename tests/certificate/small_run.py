"""Small runs that can be certified, written through the real store: no model is trained.

Terms of studies are the engine's own, and so are the lists of what each cell should hold. Seven
references (one with the injected model's draw), their controls, and two candidates: ``ga-w3`` or
``good`` is one more retraining, ``ga-w12`` or ``bad`` still knows the facts.
"""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests import made_runs
from tests.made_runs import AUDIT_SETTINGS, BASE, FACTS, INJECTED, PLACE, PROBES, SPREAD, Made

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.planned import planned_cell
from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.config.sections import Facts, MethodGrid, Replication
from palimpsest.facts.sealed import AuditPool, builtin_pool
from palimpsest.run.files import digest
from palimpsest.run.steps import Step
from palimpsest.run.store import Run, Terms
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules

NONCE = "0123456789abcdef" * 2
STUDY, AUDIT = "pocket-qwen2-s--seed0", "audit"
RELATION = "guild"
REFERENCES = 6
SETS = {"forget": FACTS, "retain": FACTS, "probe": PROBES}
ORIGIN = "sha256:" + "e" * 64
RECIPE = {"steps": 130, "learning_rate": 1e-4, "data": "sha256:" + "d" * 64}


def write_small(
    path: Path,
    *,
    pool: AuditPool | None = None,
    skip: tuple[str, ...] = (),
    origin: bool = False,
    **changes: Any,
) -> Path:
    """Write a study of one cell and return its folder; ``pool`` seals a pool of the user's own."""
    settled: dict[str, Any] = {
        "name": "small",
        "models": ("pocket/qwen2-s",),
        "seeds": (0,),
        "facts": Facts(forget=FACTS, retain=FACTS, probes=PROBES),
        "methods": (MethodGrid("ga", (("weight", (3.0, 12.0)),)),),
        "known_label": ("suppression",),
        "replication": Replication(draws=REFERENCES, retrainings=1),
        "seal": "" if pool is None else pool.commitment(),
    }
    plan = Plan(**settled | changes)
    terms, roster = StudyTask(plan).fixed
    run = Run.create_or_resume(path, fixed(terms), roster)
    for cell in run.cells:
        if cell not in skip:
            write_cell(run, cell, pool or builtin_pool(), origin=origin)
    return run.path


def write_audit(
    path: Path,
    *,
    rules: Rules | None = None,
    candidates: tuple[str, ...] = ("good", "bad"),
    exclude: tuple[str, ...] = (),
    evidence: float | None = None,
    beacon: str = "",
    **settings: Any,
) -> Path:
    """Write an audit: one cell of given models. Called again with more candidates, it grows.

    evidence: NLL of forget facts, asked of base with evidence in context.
    """
    references = [f"reference-{n}" for n in range(REFERENCES)]
    roster = [
        {"name": n, "role": role, "source": source(n), "weights": digest(n.encode())}
        for role, names in (("reference", references), ("candidate", candidates))
        for n in names
    ]
    first = {n: digest(n.encode()) for n in (*references, "good", "bad")}
    config = {"name": "audit", "exclude": list(exclude), "fact_counts": SETS, "remarks": []}
    config |= AUDIT_SETTINGS | {"drawn": Beacon(beacon, first).record()} | settings
    terms = Terms(
        kind="audit",
        config=config,
        rules=asdict(rules or Rules().without("reversed")),
        seal={"commitment": "sha256:" + "5" * 64, "pool": "held-out questions"},
        inputs={"base": source("base"), "injected": source("injected")},
        cells=(AUDIT,),
    )
    run = Run.create_or_resume(path, fixed(terms), roster)
    write_cell(run, AUDIT, None, evidence=evidence)
    return run.path


def fixed(terms: Terms) -> Terms:
    """Return the terms without what differs between machines, so that bundles are comparable."""
    return replace(terms, code={"version": "0", "source": "sha256:0"}, packages={"numpy": "x"})


def source(name: str) -> str:
    return digest(f"files of {name}".encode())


# -- models ----------------------------------------------------------------------------------------


def left(share: float, start: Made = PLACE) -> Made:
    """Return a model with this share of the injected weights left."""
    moved = {k: getattr(start, k) + share * (getattr(INJECTED, k) - getattr(start, k))
             for k in SPREAD}  # fmt: skip
    return replace(PLACE, **moved)


def made_models(run: Run, cell: str) -> dict[str, Made]:
    """Return every model that the cell should hold, at its place."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 1)
    models: dict[str, Made] = {}
    for model in planned_cell(run.terms, run.rosters[-1].models, cell).models:
        made = _placed(model, models, generator)
        given = run.terms.kind == "audit" and model.role in (Role.INJECTED, Role.REFERENCE)
        record = replace(
            model,
            digest=digest(model.name.encode()),
            roster=run.rosters[-1].digest,
            recipe=RECIPE if given else {},
        )
        models[model.name] = replace(made, model=record)
    return models


def _placed(model: Model, models: Mapping[str, Made], generator: np.random.Generator) -> Made:
    match model.role:
        case Role.BASE:
            return BASE
        case Role.INJECTED:
            return INJECTED
        case Role.REFERENCE:
            moved = {k: getattr(PLACE, k) + generator.normal(0, sd) for k, sd in SPREAD.items()}
            return replace(PLACE, **moved, sealed=model.same_draw)
        case Role.CONTROL:
            return left(model.share or 0.0, models[model.of])
        case Role.KNOWN_LABEL:
            return replace(left(1.0), forget=0.1, sealed=True)
        case Role.FORGET_ONLY:
            return left(0.5)
        case Role.RETRAINING:
            return replace(PLACE, forget=0.09)
    if model.name == "good":
        return models["reference-0"]
    if model.knobs.get("weight") == 3.0:
        return replace(PLACE, forget=0.11)
    return replace(left(0.9), forget=left(0.9).forget + 0.01 * (model.name == "bad"))


# -- files -----------------------------------------------------------------------------------------


def write_cell(
    run: Run,
    cell: str,
    pool: AuditPool | None,
    *,
    evidence: float | None = None,
    origin: bool = False,
) -> None:
    """Write one cell: a step that measures, and one that opens the sealed pool."""
    store, models = run.cell(cell), made_models(run, cell)
    plan = planned_cell(run.terms, run.rosters[-1].models, cell)
    whole, curves = made_runs.tables(cell, models)
    items = {name: np.array(values) for name, values in whole.items()}
    sealed = items["pool"] == "audit"
    steps = [Step("measure", "measure", digest(" ".join(models).encode()), "measuring")]
    tables: dict[str, Any] = {"items": chosen(items, ~sealed), "curves": curves}
    if run.terms.kind == "study":
        tables["measures"] = asked(cell, models)
    if evidence is not None:
        tables["headroom"] = headroom(items, evidence)
    store.put(steps[0], tables)
    if origin:
        manifest = store.manifest("measure") | {"origin": ORIGIN}
        manifest.pop("digest")
        store._write("steps/measure/manifest.json", manifest)
    if pool is not None and plan.of(Role.KNOWN_LABEL):
        steps.append(Step("known-label", "known_label", digest(b"k"), "opening", ("measure",)))
        opened = {name: made.model.digest for name, made in models.items() if made.sealed}
        store.open_seal(steps[1], pool.commitment(), opened)
        first = chosen(items, sealed & (items["template"] == 0))
        count = len(pool.phrasings[RELATION])
        rows = {name: np.repeat(values, count) for name, values in first.items()}
        numbers = np.tile(np.arange(count, dtype=np.int32), len(first["template"]))
        store.put(steps[1], {"items": rows | {"template": numbers}})
    facts = {
        which: [[f"{which[0]}{n}", RELATION] for n in range(count)] for which, count in SETS.items()
    }
    summary = {"model": plan.title, "seed": plan.seed, "family": "qwen2", "gated": True}
    summary |= {"facts": facts, "beacon": plan.beacon, "dose": None}
    store.finish(summary | {"models": [m.model.to_json() for m in models.values()]}, steps, {})


def chosen(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Return some rows of a table."""
    return {name: values[rows] for name, values in columns.items()}


def asked(cell: str, models: Mapping[str, Made]) -> dict[str, Any]:
    """Return the measures of models asked the other way round: along the way to the injected."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 2)
    moved = np.array([PLACE.residual - made.residual for made in models.values()])
    values = -6.0 + 5.0 * moved / (PLACE.residual - INJECTED.residual)
    values += generator.normal(0, 0.1, len(models))
    return {"model": list(models), "measure": ["reversed"] * len(models), "value": values}


def headroom(items: Mapping[str, Any], evidence: float) -> dict[str, Any]:
    """Return the forget rows of base, injected, and base with evidence in context."""
    plain = (items["set"] == "forget") & (items["pool"] == "evaluation") & (items["template"] == 0)
    base, injected = (chosen(items, plain & (items["model"] == n)) for n in ("base", "injected"))
    nll = 2 * evidence + 0.1 * np.arange(FACTS)
    told = base | {"model": np.array(["evidence"] * FACTS), "nll_sum": nll}
    return {name: np.concatenate([base[name], told[name], injected[name]]) for name in base}
