"""Small runs that can be certified, written through the real store: no model is trained.

Terms of studies are the engine's own. Seven references (one with the injected model's draw), their
controls, and two candidates: ``ga-w3`` is one more retraining, ``ga-w12`` still knows the facts.
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
from palimpsest.cell.study import StudySpecs, study_terms
from palimpsest.config.commands import TofuConfig
from palimpsest.config.load import as_dict
from palimpsest.config.plan import Plan, cell_id
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
SHARES = Rules().control_shares
ORIGIN = "sha256:" + "e" * 64
RECIPE = {"steps": 130, "learning_rate": 1e-4, "data": "sha256:" + "d" * 64}


def small_plan(**changes: Any) -> Plan:
    """A study of one cell."""
    settled: dict[str, Any] = {
        "name": "small",
        "models": ("pocket/qwen2-s",),
        "seeds": (0,),
        "facts": Facts(forget=FACTS, retain=FACTS, probes=PROBES),
        "methods": (MethodGrid("ga", (("weight", (3.0, 12.0)),)),),
        "known_label": ("suppression",),
        "replication": Replication(draws=REFERENCES, retrainings=1),
    }
    return Plan(**settled | changes)


def write_small(
    path: Path,
    *,
    pool: AuditPool | None = None,
    skip: tuple[str, ...] = (),
    origin: bool = False,
    **changes: Any,
) -> Path:
    """Write a study and return its folder; ``pool`` seals a pool of the user's own."""
    plan = small_plan(**changes)
    if pool is not None:
        plan = replace(plan, seal=pool.commitment())
    terms, roster = study_terms(plan, StudySpecs(plan))
    run = Run.create_or_resume(path, fixed(terms), roster)
    for cell, (model, seed) in plan.cell_ids().items():
        if cell not in skip:
            models = study_models(cell, run, bool(plan.known_label))
            about = {"model": model, "seed": seed}
            write_cell(run, cell, models, about, pool or builtin_pool(), origin=origin)
    return recorded(run)


def fixed(terms: Terms) -> Terms:
    """Return the terms without what differs between machines, so that bundles are comparable."""
    return replace(terms, code={"version": "0", "source": "sha256:0"}, packages={"numpy": "x"})


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
    rules = rules or Rules().without("reversed")
    names = [*(f"reference-{n}" for n in range(REFERENCES)), *candidates]
    roles = ["reference"] * REFERENCES + ["candidate"] * len(candidates)
    roster = [
        {"name": n, "role": r, "source": source(n), "weights": weights(n)}
        for n, r in zip(names, roles)
    ]
    first = {n: weights(n) for n in (*names[:REFERENCES], "good", "bad")}
    config = {"name": "audit", "exclude": list(exclude), "fact_counts": SETS, "remarks": []}
    config |= AUDIT_SETTINGS | {"drawn": Beacon(beacon, first).record()} | settings
    terms = Terms(
        kind="audit",
        config=config,
        rules=asdict(rules),
        seal={"commitment": "sha256:" + "5" * 64, "pool": "held-out questions"},
        inputs={"base": source("base"), "injected": source("injected")},
        cells=(AUDIT,),
    )
    run = Run.create_or_resume(path, fixed(terms), roster)
    models = cell_models(AUDIT, run, range(REFERENCES), rules, exclude)
    for n, name in enumerate(candidates):
        place = models["reference-0"] if name == "good" else left(0.9)
        moved = place.forget + 0.01 * n
        models[name] = replace(place, forget=moved, model=Model("", Role.CANDIDATE))
    models = {
        name: made
        if made.model.role is Role.CONTROL
        else replace(
            made, model=replace(made.model, source=source(name), weights=digest(name.encode()))
        )
        for name, made in models.items()
    }
    about = {"model": "audit", "seed": 0, "beacon": config["drawn"]}
    write_cell(run, AUDIT, models, about, None, evidence=evidence)
    return recorded(run)


def write_tofu(path: Path) -> Path:
    """Write a TOFU study of one seed with given models, a given candidate and one of a method."""
    config = TofuConfig(forget_items=FACTS, retain_items=FACTS, probes=PROBES, seeds=1)
    values = as_dict(config)
    for key in ("data", "base", "full", "retain", "general", "out", "candidates", "methods"):
        values.pop(key)
    given = ("injected", *(f"reference-{n}" for n in range(REFERENCES)))
    cell = cell_id("phi", 0)
    terms = Terms(
        kind="tofu",
        config=values,
        rules=asdict(Rules().without("reversed")),
        seal={"commitment": "sha256:" + "5" * 64, "pool": "held-out questions"},
        inputs={"base": source("base")} | {f"given {n}": source(m) for n, m in enumerate(given)},
        cells=(cell,),
    )
    roster = [{"name": "good", "role": "candidate", "source": source("good")}]
    made = {"name": "ga-w12", "role": "candidate", "method": "ga", "plugin": ""}
    roster.append(made | {"knobs": {"weight": 12.0}})
    run = Run.create_or_resume(path, fixed(terms), roster)
    models = cell_models(cell, run, range(REFERENCES), Rules())
    models["good"] = replace(models["reference-0"], model=Model("", Role.CANDIDATE))
    record = Model("", Role.CANDIDATE, method="ga", knobs={"weight": 12.0, "rate": 1.0})
    models["ga-w12"] = replace(left(0.9), model=record)
    write_cell(run, cell, models, {"model": "phi", "seed": 0}, None)
    return recorded(run)


def weights(name: str) -> str:
    """Return the digest of a model's tensors."""
    return digest(name.encode())


def source(name: str) -> str:
    return digest(f"files of {name}".encode())


def recorded(run: Run) -> Path:
    """Write the record of what is stored, as a command does last, and return the run's folder."""
    with run.lock("test"):
        pass
    return run.path


# -- models ----------------------------------------------------------------------------------------


def left(share: float, start: Made = PLACE) -> Made:
    """Return a model with this share of the injected weights left."""
    moved = {k: getattr(start, k) + share * (getattr(INJECTED, k) - getattr(start, k))
             for k in SPREAD}  # fmt: skip
    return replace(PLACE, **moved)


def cell_models(
    cell: str, run: Run, draws: range, rules: Rules, exclude: tuple[str, ...] = ()
) -> dict[str, Made]:
    """Return base, injected model, references and their controls."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 1)
    files = next(iter(run.terms.inputs.values()))
    models = {"base": replace(BASE, sealed=True, model=Model("", Role.BASE, source=files))}
    recipe = RECIPE if run.terms.kind == "audit" else {}
    models["injected"] = replace(INJECTED, model=Model("", Role.INJECTED, recipe=recipe))
    for draw in draws:
        moved = {k: getattr(PLACE, k) + generator.normal(0, sd) for k, sd in SPREAD.items()}
        name = f"reference-{draw}"
        same = run.terms.kind == "study" and draw == 0
        record = Model("", Role.REFERENCE, seed_no=draw, same_draw=same, recipe=recipe,
                       excluded=name in exclude)  # fmt: skip
        models[name] = replace(PLACE, **moved, sealed=same, model=record)
    bag = [name for name, made in models.items()
           if made.model.role is Role.REFERENCE and not made.model.excluded]  # fmt: skip
    for share in rules.control_shares:
        for name in bag[: rules.control_mixtures]:
            record = Model("", Role.CONTROL, share=share, of=name)
            models[f"mixture-{share:g}-{name}"] = replace(left(share, models[name]), model=record)
    return models


def study_models(cell: str, run: Run, known_label: bool) -> dict[str, Made]:
    """Return every model of a study's cell."""
    models = cell_models(cell, run, range(REFERENCES + 1), Rules())
    models["forget_only"] = replace(left(0.5), model=Model("", Role.FORGET_ONLY))
    again = replace(PLACE, forget=0.09)
    models["retraining-1"] = replace(again, model=Model("", Role.RETRAINING, seed_no=1))
    if known_label:
        record = Model("", Role.KNOWN_LABEL, truth="suppressed")
        hidden = replace(left(1.0), forget=0.1, sealed=True, model=record)
        models["known-suppression"] = hidden
    for weight, place in ((3.0, replace(PLACE, forget=0.11)), (12.0, left(0.9))):
        knobs = {"weight": weight, "rate": 1.0}
        record = Model("", Role.CANDIDATE, method="ga", knobs=knobs, aim="suppresses")
        models[f"ga-w{weight:g}"] = replace(place, model=record)
    return models


# -- files -----------------------------------------------------------------------------------------


def write_cell(
    run: Run,
    cell: str,
    models: Mapping[str, Made],
    about: Mapping[str, Any],
    pool: AuditPool | None,
    *,
    evidence: float | None = None,
    origin: bool = False,
) -> None:
    """Write one cell: a step that measures, and one that opens the sealed pool."""
    store = run.cell(cell)
    records = {
        name: replace(
            made.model, name=name, digest=digest(name.encode()), roster=run.rosters[-1].digest
        )
        for name, made in models.items()
    }
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
        taken_over(run, cell)
    if pool is not None and any(r.role is Role.KNOWN_LABEL for r in records.values()):
        steps.append(Step("known-label", "known_label", digest(b"k"), "opening", ("measure",)))
        opened = {name: records[name].digest for name, made in models.items() if made.sealed}
        store.open_seal(steps[1], pool.commitment(), opened)
        first, count = (
            chosen(items, sealed & (items["template"] == 0)),
            len(pool.phrasings[RELATION]),
        )
        rows = {name: np.repeat(values, count) for name, values in first.items()}
        numbers = np.tile(np.arange(count, dtype=np.int32), len(first["template"]))
        store.put(steps[1], {"items": rows | {"template": numbers}})
    summary = {
        "family": "qwen2",
        "gated": True,
        "models": [record.to_json() for record in records.values()],
        "facts": {
            which: [[f"{which[0]}{n}", RELATION] for n in range(count)]
            for which, count in SETS.items()
        },
        "beacon": None,
        "dose": None,
    }
    store.finish(summary | dict(about), steps, {})


def taken_over(run: Run, cell: str) -> None:
    """Make the first step one that was taken over from another run."""
    store = run.cell(cell)
    manifest = store.manifest("measure") | {"origin": ORIGIN, "needs": {"train": "sha256:other"}}
    manifest.pop("digest")
    store._write("steps/measure/manifest.json", manifest)


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
