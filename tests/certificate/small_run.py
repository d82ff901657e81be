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
from tests.made_runs import BASE, FACTS, INJECTED, PLACE, PROBES, SPREAD, Made

from palimpsest.config.load import as_dict
from palimpsest.config.own import TofuConfig
from palimpsest.config.plan import Plan, cell_id
from palimpsest.config.sections import Facts, KnownLabel, MethodGrid, Replication
from palimpsest.engine.study import StudySpecs, study_terms
from palimpsest.facts.sealed import AuditPool, builtin_pool
from palimpsest.run.disk import digest
from palimpsest.run.steps import Step
from palimpsest.run.store import Run, Terms
from palimpsest.stats.beacon import Draw
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
REVERSED = {"place": -6.0, "injected": -1.0}
"""Log-probability of the answers asked the other way round."""


def small_plan(**changes: Any) -> Plan:
    """A study of one cell."""
    settled: dict[str, Any] = {
        "name": "small",
        "models": ("pocket/qwen2-s",),
        "seeds": (0,),
        "facts": Facts(forget=FACTS, retain=FACTS, probes=PROBES),
        "methods": (MethodGrid("ga", (("weight", (3.0, 12.0)),)),),
        "known_label": KnownLabel(models=("suppression",)),
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
            models = study_models(cell, run, bool(plan.known_label.models))
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
) -> Path:
    """Write an audit: one cell of given models. Called again with more candidates, it grows.

    evidence: NLL of forget facts, asked of base with evidence in context.
    """
    rules = rules or Rules().without("reversed")
    names = [*(f"reference-{n}" for n in range(REFERENCES)), *candidates]
    roles = ["reference"] * REFERENCES + ["candidate"] * len(candidates)
    roster = [
        {"name": n, "role": r, "files": source(n), "weights": digest(n.encode())}
        for n, r in zip(names, roles)
    ]
    first = {n: source(n) for n in (*names[:REFERENCES], "good", "bad")}
    config = {"name": "audit", "exclude": list(exclude), "facts": SETS, "remarks": []}
    config["drawn"] = Draw(beacon, first).record()
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
        else replace(made, model=replace(made.model, source=source(name)))
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
    roster = [{"name": "good", "files": source("good")}]
    roster += [{"name": "ga", "grid": {"weight": [12.0]}, "plugin": ""}]
    run = Run.create_or_resume(path, fixed(terms), roster)
    models = cell_models(cell, run, range(REFERENCES), Rules())
    models["good"] = replace(models["reference-0"], model=Model("", Role.CANDIDATE))
    record = Model("", Role.CANDIDATE, method="ga", knobs={"weight": 12.0, "rate": 1.0})
    models["ga-w12"] = replace(left(0.9), model=record)
    write_cell(run, cell, models, {"model": "phi", "seed": 0}, None)
    return recorded(run)


def source(name: str) -> str:
    return digest(f"files of {name}".encode())


def recorded(run: Run) -> Path:
    """Write the record of what is stored, as a command does last, and return the run's folder."""
    with run.lock("test"):
        run.record()
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
        record = Model("", Role.REFERENCE, draw=draw, same_draw=same, recipe=recipe,
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
    models["retraining-1"] = replace(again, model=Model("", Role.RETRAINING, draw=1))
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
        name: replace(made.model, name=name, digest=digest(name.encode()), roster=run.roster_digest)
        for name, made in models.items()
    }
    items, curves = made_runs.tables(cell, models)
    sealed = np.array([row == "audit" for row in items["pool"]])
    known = {name for name, record in records.items() if record.role is Role.KNOWN_LABEL}
    key = digest(" ".join(models).encode())
    steps = [Step("measure", "measure", key, "measuring")]
    plain = ~sealed & np.array([name not in known for name in items["model"]])
    tables = {"items": chosen(items, plain)}
    tables["curves"] = chosen(curves, np.array([name not in known for name in curves["model"]]))
    if run.terms.kind == "study":
        tables["measures"] = asked(cell, [name for name in models if name not in known], models)
    if evidence is not None:
        tables["headroom"] = headroom(evidence)
    store.put(steps[0], tables)
    if origin:
        taken_over(run, cell)
    if known and pool is not None:
        steps.append(Step("known-label", "known_label", digest(b"k"), "opening", ("measure",)))
        opened = [name for name, made in models.items() if made.sealed]
        store.open_seal(steps[1], pool.commitment(), {n: records[n].digest for n in opened})
        rows = chosen(items, ~sealed & ~plain)
        extra = phrased(chosen(items, sealed), len(pool.phrasings[RELATION]))
        rows = {key: [*rows[key], *extra[key]] if isinstance(rows[key], list)
                else np.concatenate([rows[key], extra[key]]) for key in rows}  # fmt: skip
        curve = chosen(curves, np.array([name in known for name in curves["model"]]))
        store.put(steps[1], {"items": rows, "curves": curve,
                             "measures": asked(cell, sorted(known), models)})  # fmt: skip
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
    return {
        key: [value for value, keep in zip(values, rows) if keep]
        if isinstance(values, list)
        else values[rows]
        for key, values in columns.items()
    }


def phrased(items: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the sealed pool's rows with this many phrasings per fact."""
    first = chosen(items, items["template"] == 0)
    whole = {
        key: [value for value in values for _ in range(count)]
        if isinstance(values, list)
        else np.repeat(values, count)
        for key, values in first.items()
    }
    numbers = np.tile(np.arange(count, dtype=np.int32), len(first["template"]))
    return whole | {"template": numbers}


def asked(cell: str, names: list[str], models: Mapping[str, Made]) -> dict[str, Any]:
    """Return the measures of models asked the other way round."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 2)
    spread = dict(zip(models, generator.normal(0, 0.1, len(models))))
    span = PLACE.residual - INJECTED.residual
    values = [
        REVERSED["place"]
        + (REVERSED["injected"] - REVERSED["place"]) * (PLACE.residual - models[n].residual) / span
        + spread[n]
        for n in names
    ]
    return {"model": names, "measure": ["reversed"] * len(names), "value": np.array(values)}


def headroom(evidence: float) -> dict[str, Any]:
    """Return item columns of base, base with evidence and injected, on the forget facts."""
    rows = [
        (model, "forward", "forget", f"f{fact}", "evaluation", 0, 2 * nll + 0.1 * fact, 2)
        for model, nll in (("base", 3.0), ("evidence", evidence), ("injected", 1.0))
        for fact in range(FACTS)
    ]
    names = ("model", "stage", "set", "fact", "pool", "template", "nll_sum", "tokens")
    columns: dict[str, Any] = {name: list(values) for name, values in zip(names, zip(*rows))}
    columns |= {key: np.array(columns[key], np.int32) for key in ("template", "tokens")}
    columns["nll_sum"] = np.array(columns["nll_sum"])
    empty = np.full(len(rows), np.nan)
    return columns | {"kl_reference": empty, "kl_injected": empty}
