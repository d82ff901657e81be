"""Made-up runs, written through the real store: every number is planted, no model is trained.

Three designs. *Compared* cells are for the verdict and the report: the retrainings scatter around
one place on every axis, ``replay`` is one more draw of them, ``kl_reversion`` lies there too but
relearns faster, ``ga`` over-forgets, ``task_vector`` damages retain facts, and the injected model
knows the forget facts; mixtures lie on the line from the retrainings to it. *Paper* cells are for
the paper's bars, with round numbers: see ``paper_cell``. *Planned* cells hold what the terms of a
study or an audit ask for, and can be certified: see ``write_study`` and ``write_audit``.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.planned import planned_cell
from palimpsest.cell.study import StudyTask
from palimpsest.config.commands import AuditConfig
from palimpsest.config.plan import Plan
from palimpsest.config.sections import Engine, Facts, MethodGrid, Prompt, Replication
from palimpsest.facts.sealed import AuditPool, builtin_pool
from palimpsest.paper.study import PaperStudy, read_paper
from palimpsest.report.results import MEASURED, read_run
from palimpsest.run.files import digest
from palimpsest.run.steps import Step
from palimpsest.run.store import Run, Terms
from palimpsest.stats.models import Cost, Model, ModelFailure, Role
from palimpsest.stats.rules import Rules

RULES = Rules().without("reversed")
"""Every axis that is read from the tables made here."""
AUDIT_SETTINGS = {name: getattr(AuditConfig, name) for name in MEASURED}
AUDIT_SETTINGS |= {"engine": asdict(Engine()), "prompt": asdict(Prompt())}
"""What the terms of an audit say of its measurement, at the default."""
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
AIMS = {"replay": "restores", "kl_reversion": "restores", "task_vector": "restores"}
AIMS |= {"ga": "suppresses", "npo": "suppresses", "gate_mask": "other"}
FACTS, PROBES, CHUNKS, STEPS = 4, 16, 5, 75


@dataclass(frozen=True)
class Made:
    """What a made-up model scores, in nats; deltas are anchored to base."""

    forget: float = 0.1
    probe: float = 0.1
    retain: float = 1.2
    general: float = 2.0
    residual: float = 1.0
    """Each of its two parts."""
    early: float = 2.1
    late: float = 1.6
    oracle_kl: float = 0.5
    noise: float = 0.0
    """Standard deviation of every held-out fact."""
    exact: bool = False
    """Forget deltas exactly at their center, without spread."""
    sealed: bool = False
    model: Model = field(default_factory=lambda: Model("", Role.CANDIDATE))


def candidate(name: str, **more: Any) -> Model:
    """The record of a candidate whose name begins with its method."""
    method = name.partition("-")[0]
    return Model(name, Role.CANDIDATE, method=method, aim=AIMS.get(method, "other"), **more)


# -- cells for the comparison ----------------------------------------------------------------------

SPREAD = {"forget": 0.03, "probe": 0.02, "retain": 0.03, "general": 0.015}
SPREAD |= {"residual": 0.07, "early": 0.06, "late": 0.05}
PLACE = Made(noise=0.15)
INJECTED = Made(-2.0, 0.12, 1.21, 2.0, 0.55, 0.7, 0.5, 1.0, noise=0.15, sealed=True)
BASE = Made(0.0, 0.0, 6.0, 2.4, 1.5, 2.4, 1.9, 4.0, exact=True, sealed=True)


def left(share: float, start: Made = PLACE) -> Made:
    """A model with this share of the injected weights left."""
    moved = {k: getattr(start, k) + share * (getattr(INJECTED, k) - getattr(start, k))
             for k in SPREAD}  # fmt: skip
    return replace(PLACE, **moved)


def scattered(generator: np.random.Generator) -> Made:
    """One more retraining."""
    moved = {k: getattr(PLACE, k) + generator.normal(0, sd) for k, sd in SPREAD.items()}
    return replace(PLACE, **moved)


def compared_cell(cell: str, references: int = 20, fresh: int = 1) -> dict[str, Made]:
    """Every model of a cell, by name."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()))

    def drawn(model: Model) -> Made:
        return replace(scattered(generator), model=model)

    models = {"base": replace(BASE, model=Model("base", Role.BASE))}
    models["injected"] = replace(INJECTED, model=Model("injected", Role.INJECTED))
    own = drawn(Model("reference", Role.REFERENCE, seed_no=0, same_draw=True))
    models["reference"] = replace(own, sealed=True, oracle_kl=0.0)
    for draw in range(1, references + 1):
        models[f"reference-{draw}"] = drawn(Model("", Role.REFERENCE, seed_no=draw))
    for draw in range(1, fresh + 1):
        models[f"retraining-{draw}"] = drawn(Model("", Role.RETRAINING, seed_no=draw))
    for share in (0.5, 0.25, 0.1, 0.05) if references else ():
        for n in (1, 2):
            record = Model("", Role.CONTROL, share=share, of=f"reference-{n}")
            models[f"control-{100 * share:g}-reference-{n}"] = replace(left(share), model=record)
    for name, made in {"suppression": replace(PLACE, early=0.9, late=0.6),
                       "router": replace(PLACE, residual=0.0, early=2.9)}.items():  # fmt: skip
        record = Model("", Role.KNOWN_LABEL, truth="suppressed", knows=("axes",))
        models[f"known-{name}"] = replace(made, sealed=True, model=record)
    for k in (1, 2):
        models[f"replay-{k}"] = replace(drawn(candidate(f"replay-{k}")), forget=0.1 + 0.02 * k)
    others = {
        "kl_reversion-w3": Made(0.1, early=1.2, late=1.1, oracle_kl=0.2),
        "kl_reversion-w12": Made(-1.5, early=0.9, late=0.8, oracle_kl=0.2),
        "task_vector-c1": Made(0.2, retain=2.4, oracle_kl=0.6),
        "ga-w3": Made(6.0, 0.3, 1.0, 2.2, 2.5, 4.0, 3.0, 3.0),
    }
    cost = Cost(10, 100, 0, 1e9, 0.5, 0.0)
    for name, made in others.items():
        models[name] = replace(made, noise=0.15, model=candidate(name, cost=cost))
    return models


def cell_run(path: Path, references: int = 20, **options: Any) -> Path:
    """One cell, as the demo makes it."""
    cell = "qwen2-s--seed0"
    return write_run(path, {cell: compared_cell(cell, references)}, **options)


def uncertified_run(path: Path) -> Path:
    """One cell in which every candidate can be distinguished from a retraining."""
    cell = "qwen2-s--seed0"
    models = {n: m for n, m in compared_cell(cell).items() if not n.startswith("replay")}
    return write_run(path, {cell: models})


def matrix_run(path: Path, missing: str = "gpt2-s--seed1", references: int = 20) -> Path:
    """Four cells of two families, of which one is missing."""
    ids = [f"{model}--seed{seed}" for model in ("qwen2-s", "gpt2-s") for seed in (0, 1)]
    cells = {cell: compared_cell(cell, references) for cell in ids if cell != missing}
    return write_run(path, cells, planned=ids)


def hostile_run(path: Path) -> Path:
    """A run in which candidates, methods, facts, base, family and plan have hostile names."""
    whole = compared_cell("hostile")
    models = {n: m for n, m in whole.items() if m.model.role is not Role.CANDIDATE}
    for k, name in enumerate(HOSTILE.values()):
        record = Model("", Role.CANDIDATE, method=name, aim="other")
        models[f"{name}-{k}"] = Made(0.1 + 0.2 * k, noise=0.15, model=record)
    failure = ModelFailure("diverged", HOSTILE["closing"])
    failed = Model(HOSTILE["svg"], Role.CANDIDATE, method="x", failure=failure)
    questions = ("model", "set", "fact", "prompt", "truth", "answer")
    said = [(m, "forget", "f0", HOSTILE["handler"], HOSTILE["svg"], HOSTILE["closing"])
            for m in models]  # fmt: skip
    answers = dict(zip(questions, map(list, zip(*said))))
    answers |= {"rank": np.ones(len(said), np.int32), "probability": np.full(len(said), 0.5)}
    about = {"model": HOSTILE["svg"], "family": HOSTILE["handler"]}
    return write_run(path, {"hostile": models}, name=HOSTILE["closing"], failed=(failed,),
                     facts={"f0": HOSTILE["closing"], "p0": HOSTILE["ansi"]}, about=about,
                     answers=answers)  # fmt: skip


# -- cells for the paper ---------------------------------------------------------------------------

FAMILIES = {"qwen2-s": ("qwen2", True), "qwen2-m": ("qwen2", True), "gpt2-s": ("gpt2", False)}
DRAW_GAP = {"qwen2": 0.6, "gpt2": 0.4}
"""Distance between neighboring reference draws on every held-out forget fact."""


def paper_made(forget: float = 0.1, *, fall: float = 0.3, **more: Any) -> Made:
    """A model by the fall of its held-out forget NLL in the first chunk."""
    values = {"forget": forget, "residual": 0.9, "early": 3.0 + forget - fall}
    return Made(**(values | {"late": 3.0 + forget - fall - 0.25} | more))


def paper_cell(family: str, gated: bool, draws: int) -> dict[str, Made]:
    """Every model of a cell for the paper's bars:

    - the injected model knows the forget set (deltas near -2), the reference does not (+0.1);
    - ``kl_reversion`` fits trained probes (oracle-KL 0.2 of the injected model's 1.0) and still
      knows held-out facts (-1.5); ``gate_mask`` (gated only) is near the reference everywhere;
    - ``task_vector`` forgets and damages retain facts; ``ga`` over-forgets by 6 nats;
    - ``npo`` lies where the reference lies and relearns at once: only the relearn veto sees it;
    - on the sealed pool suppression lies at the reference's place and relearns at once, the router
      is exactly base on forget facts, embedding corruption breaks retain.
    """
    made = paper_made
    models = {"base": replace(BASE, model=Model("", Role.BASE))}
    record = Model("", Role.INJECTED)
    models["injected"] = made(-2.0, oracle_kl=1.0, fall=0.6, sealed=True, model=record)
    for draw in range(draws):
        record = Model("", Role.REFERENCE, seed_no=draw, same_draw=not draw)
        models[f"reference-{draw}" if draw else "reference"] = made(
            0.1 + DRAW_GAP[family] * draw,
            retain=1.2 + 0.1 * draw,
            residual=1.0 + 0.05 * draw,
            fall=0.3 + 0.05 * draw,
            oracle_kl=0.0 if not draw else 0.4,
            sealed=not draw,
            model=record,
        )
    planted = {"kl_reversion-w": made(-1.5, oracle_kl=0.2, fall=0.9)}
    planted |= {"gate_mask-w": made(0.2, oracle_kl=0.7, residual=1.0)} if gated else {}
    planted |= {"task_vector-c": made(0.3, retain=4.0, oracle_kl=0.6)}
    planted |= {"ga-w": made(6.0, retain=1.0, oracle_kl=3.0, residual=2.5, fall=2.0)}
    planted |= {"npo-w": made(0.15, oracle_kl=2.0, residual=0.8, fall=1.5)}
    for head, one in planted.items():
        for setting in (1, 2):
            models[f"{head}{setting}"] = replace(one, model=candidate(f"{head}{setting}"))
    known = {"suppression": made(0.1, fall=1.8), "router": made(0.0, fall=0.1, exact=True)}
    known["embedding"] = made(4.0, retain=8.0, residual=3.0)
    for name, one in known.items():
        record = Model("", Role.KNOWN_LABEL, truth="suppressed")
        models[f"known-{name}"] = replace(one, sealed=True, model=record)
    for share in (0.75, 0.5):
        record = Model("", Role.KNOWN_LABEL, truth="partial", share=share)
        models[f"known-left-{100 * share:g}"] = made(0.1 - 2.1 * share, sealed=True, model=record)
    return models


def paper_run(
    path: Path,
    models: Iterable[str] = tuple(FAMILIES),
    seeds: Iterable[int] = (0, 1),
    *,
    draws: int = 4,
    change: Callable[[str, dict[str, Made]], dict[str, Made]] = lambda cell, models: models,
    skip: Iterable[str] = (),
) -> Path:
    """A study in which the first cell of each family has so many reference draws, one of them the
    injected model's own."""
    cells: dict[str, dict[str, Made]] = {}
    seen: set[str] = set()
    for model in models:
        for seed in seeds:
            family, gated = FAMILIES[model]
            planted = paper_cell(family, gated, draws if family not in seen else 1)
            cells[f"{model}--seed{seed}"] = change(f"{model}--seed{seed}", planted)
            seen.add(family)
    kept = {cell: planted for cell, planted in cells.items() if cell not in tuple(skip)}
    return write_run(path, kept, planned=cells)


def read_study(path: Path) -> PaperStudy:
    """A study with the paper's design, read."""
    study = read_paper(read_run(path))
    assert study is not None
    return study


# -- planned cells ---------------------------------------------------------------------------------

STUDY, AUDIT = "pocket-qwen2-s--seed0", "audit"
NONCE = "0123456789abcdef" * 2
REFERENCES = 6
SETS = {"forget": FACTS, "retain": FACTS, "probe": PROBES}
RECIPE = {"steps": 130, "learning_rate": 1e-4, "data": "sha256:" + "d" * 64}


def write_study(
    path: Path, *, pool: AuditPool | None = None, skip: tuple[str, ...] = (), **changes: Any
) -> Path:
    """A study of one cell. Seven references (one with the injected model's draw), their controls;
    ``ga-w3`` is one more retraining, ``ga-w12`` still knows the facts.

    pool: a sealed pool of the user's own.
    """
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
    terms, roster = StudyTask(Plan(**settled | changes)).fixed
    run = Run.create_or_resume(path, machineless(terms), roster)
    for cell in run.cells:
        if cell not in skip:
            write_planned(run, cell, pool=pool or builtin_pool())
    return run.path


def write_audit(
    path: Path,
    candidates: Sequence[str] = ("good", "bad"),
    *,
    references: int = REFERENCES,
    rules: Rules = RULES,
    exclude: tuple[str, ...] = (),
    evidence: float | None = None,
    beacon: str = "",
    **settings: Any,
) -> Path:
    """An audit: one cell of given models. Called again with more candidates, it grows.

    evidence: NLL of forget facts, asked of base with evidence in context.
    """
    names = [f"reference-{n}" for n in range(references)]
    roster = [
        {"name": n, "role": role, "source": source(n), "weights": digest(n.encode())}
        for role, some in (("reference", names), ("candidate", candidates))
        for n in some
    ]
    first = {n: digest(n.encode()) for n in (*names, "good", "bad")}
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
    run = Run.create_or_resume(path, machineless(terms), roster)
    write_planned(run, AUDIT, evidence=evidence)
    return run.path


def machineless(terms: Terms) -> Terms:
    """The terms without what differs between machines, so that bundles are comparable."""
    return replace(terms, code={"version": "0", "source": "sha256:0"}, packages={"numpy": "x"})


def source(name: str) -> str:
    return digest(f"files of {name}".encode())


def write_planned(
    run: Run, cell: str, *, pool: AuditPool | None = None, evidence: float | None = None
) -> None:
    """Write every model that the cell should hold, each at its place."""
    plan = planned_cell(run.terms, run.rosters[-1].models, cell)
    pool = pool if plan.of(Role.KNOWN_LABEL) else None
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 1)
    models: dict[str, Made] = {}
    for model in plan.models:
        made = placed(model, models, generator)
        given = run.terms.kind == "audit" and model.role in (Role.INJECTED, Role.REFERENCE)
        known = {"digest": digest(model.name.encode()), "roster": run.rosters[-1].digest}
        record = replace(model, **known, recipe=RECIPE if given else {})
        models[model.name] = replace(made, sealed=made.sealed and pool is not None, model=record)
    facts = {
        which: [[f"{which[0]}{n}", "guild"] for n in range(count)] for which, count in SETS.items()
    }
    about = {"model": plan.title, "seed": plan.seed, "facts": facts, "beacon": plan.beacon}
    more = {"measures": asked(cell, models)} if run.terms.kind == "study" else {}
    if evidence is not None:
        more["headroom"] = headroom(cell, models, evidence)
    write_cell(run, cell, models, pool=pool, about=about, **more)


def placed(model: Model, models: Mapping[str, Made], generator: np.random.Generator) -> Made:
    match model.role:
        case Role.BASE:
            return BASE
        case Role.INJECTED:
            return INJECTED
        case Role.REFERENCE:
            return replace(scattered(generator), sealed=model.same_draw)
        case Role.CONTROL:
            return left(model.share or 0.0, models[model.of])
        case Role.KNOWN_LABEL:
            return replace(left(1.0), forget=0.1, sealed=True)
        case Role.FORGET_ONLY:
            return left(0.5)
        case Role.RETRAINING:
            return replace(PLACE, forget=0.09)
    if model.name == "good":
        return models.get("reference-0", PLACE)
    if model.knobs.get("weight") == 3.0:
        return replace(PLACE, forget=0.11)
    return replace(left(0.9), forget=left(0.9).forget + 0.01 * (model.name == "bad"))


def asked(cell: str, models: Mapping[str, Made]) -> dict[str, Any]:
    """The measures of models asked the other way round: along the way to the injected."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()) + 2)
    moved = np.array([PLACE.residual - made.residual for made in models.values()])
    values = -6.0 + 5.0 * moved / (PLACE.residual - INJECTED.residual)
    values += generator.normal(0, 0.1, len(models))
    return {"model": list(models), "measure": ["reversed"] * len(models), "value": values}


def headroom(cell: str, models: Mapping[str, Made], evidence: float) -> dict[str, Any]:
    """The forget rows of base, injected, and base with evidence in context."""
    items = {name: np.array(values) for name, values in tables(cell, models)[0].items()}
    plain = (items["set"] == "forget") & (items["pool"] == "evaluation") & (items["template"] == 0)
    base, injected = (chosen(items, plain & (items["model"] == n)) for n in ("base", "injected"))
    nll = 2 * evidence + 0.1 * np.arange(FACTS)
    told = base | {"model": np.array(["evidence"] * FACTS), "nll_sum": nll}
    return {name: np.concatenate([base[name], told[name], injected[name]]) for name in base}


# -- files -----------------------------------------------------------------------------------------


def write_run(
    path: Path,
    cells: Mapping[str, Mapping[str, Made]],
    *,
    planned: Iterable[str] = (),
    name: str = "made",
    **options: Any,
) -> Path:
    """A study in which these models were scored, by cell ``<model>--seed<n>``."""
    wanted = tuple(dict.fromkeys([*planned, *cells]))
    seal = {"commitment": "sha256:c", "pool": "built-in"}
    terms = Terms("study", {"name": name}, asdict(RULES), seal, {}, wanted)
    run = Run.create_or_resume(path, machineless(terms))
    for cell, models in cells.items():
        named = {n: replace(made, model=replace(made.model, name=n)) for n, made in models.items()}
        write_cell(run, cell, named, **options)
    return path


def write_cell(
    run: Run,
    cell: str,
    models: Mapping[str, Made],
    *,
    pool: AuditPool | None = None,
    failed: Sequence[Model] = (),
    facts: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
    **more: Mapping[str, Any],
) -> None:
    """Write one cell: a step that measures and, given a sealed pool, one that opens it.

    facts: other names of facts. more: further tables, by name.
    """
    store, (items, curves) = run.cell(cell), tables(cell, models)
    items["fact"] = [(facts or {}).get(fact, fact) for fact in items["fact"]]
    steps = [Step("measure", "measure", digest(" ".join(models).encode()), "measuring")]
    if pool is None:
        store.put(steps[0], {"items": items, "curves": curves} | more)
    else:
        items = {name: np.array(values) for name, values in items.items()}
        sealed = items["pool"] == "audit"
        store.put(steps[0], {"items": chosen(items, ~sealed), "curves": curves} | more)
        steps.append(Step("known-label", "known_label", digest(b"k"), "opening", ("measure",)))
        opened = {name: made.model.digest for name, made in models.items() if made.sealed}
        store.open_seal(steps[1], pool.commitment(), opened)
        first = chosen(items, sealed & (items["template"] == 0))
        count = len(pool.phrasings["guild"])
        rows = {name: np.repeat(values, count) for name, values in first.items()}
        numbers = np.tile(np.arange(count, dtype=np.int32), len(first["template"]))
        store.put(steps[1], {"items": rows | {"template": numbers}})
    model, _, seed = cell.partition("--seed")
    summary = {"model": model, "seed": int(seed or 0), "family": model.partition("-")[0]}
    summary |= {"gated": True, "facts": {}, "dose": None} | dict(about or {})
    records = [made.model for made in models.values()]
    store.finish(summary | {"models": [m.to_json() for m in (*records, *failed)]}, steps, {})


def chosen(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Some rows of a table."""
    return {name: values[rows] for name, values in columns.items()}


def tables(cell_id: str, models: Mapping[str, Made]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Item and curve columns of one cell."""
    generator = np.random.default_rng(zlib.crc32(f"facts of {cell_id}".encode()))
    base = {"forget": np.linspace(2.9, 3.1, FACTS), "probe": generator.uniform(2.5, 3.5, PROBES)}
    spread = {"forget": np.linspace(-0.05, 0.05, FACTS), "probe": np.linspace(-0.09, 0.09, PROBES)}
    rows: list[tuple[Any, ...]] = []
    log: list[tuple[Any, ...]] = []

    def add(
        model: str, stage: str, which: str, fact: str, pool: str, template: int, nll: float,
        reference: float = np.nan, injected: float = np.nan, tokens: int = 2,
    ) -> None:  # fmt: skip
        kl = (reference * tokens, injected * tokens)
        rows.append((model, stage, which, fact, pool, template, nll * tokens, tokens, *kl))

    for name, made in models.items():
        noise = np.random.default_rng(zlib.crc32(f"{cell_id} {name}".encode()))
        for which, center in (("forget", made.forget), ("probe", made.probe)):
            values = base[which] + center + noise.normal(0, made.noise, len(base[which]))
            if not (made.exact and (which == "forget" or name == "base")):
                values = values + spread[which]
            for fact, nll in enumerate(values):
                for pool in ("evaluation", *(("audit",) if made.sealed else ())):
                    for template in range(2):
                        wobble = 0.2 * (template - 0.5)  # cancels in the mean
                        label = f"{which[0]}{fact}"
                        add(name, "forward", which, label, pool, template, nll + wobble)
        for which in ("forget", "retain"):
            for fact in range(FACTS):
                nll, label = made.retain if which == "retain" else 1.0, f"{which[0]}{fact}"
                add(name, "forward", which, label, "cloze", 0, nll, made.oracle_kl, 0.1)
                if which == "retain":
                    add(name, "reacquired", which, label, "cloze", 0, 1.0, injected=made.residual)
        for piece in range(3):
            text = ("general", f"g{piece}", "general", 0)
            add(name, "forward", *text, made.general, tokens=9)
            add(name, "reacquired", *text, 2.0, injected=made.residual, tokens=9)
        levels = [3.0 + made.forget, *np.linspace(made.early, made.late, CHUNKS)]
        for chunk, nll in enumerate(levels):
            part, retain = made.residual * chunk / CHUNKS, made.retain + 0.01 * chunk
            log.append((name, chunk, STEPS * chunk // CHUNKS, nll, nll, retain, part, part))
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
