"""Made-up runs for the report, through the real store: one cell, a matrix, an audit, hostile names.

Every number is planted; no model is trained. In every cell the retrainings scatter around one place
on every axis, ``replay`` is one more draw of them, ``kl_reversion`` lies there too but relearns
faster, ``ga`` over-forgets, ``task_vector`` damages retain facts, and the injected model knows the
forget facts. Controls lie on the line from the retrainings to the injected model.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.criteria.rules import Rules
from palimpsest.run.store import Run

RULES = Rules(bootstrap_resamples=100).without("reversed")
"""Every axis that is read from the tables made here."""
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
METHODS = {
    "replay": "restores",
    "kl_reversion": "restores",
    "task_vector": "restores",
    "ga": "suppresses",
}
STEPS = 75
FACTS, PROBES = 4, 16


@dataclass(frozen=True)
class Made:
    """What a made-up model scores, in nats; deltas are anchored to base."""

    forget: float = 0.1
    probe: float = 0.1
    retain: float = 1.2
    general: float = 2.0
    residual: float | None = 1.0
    early: float = 2.1
    late: float = 1.6
    oracle_kl: float = 0.5
    role: Mapping[str, Any] = field(default_factory=dict)
    sealed: bool = False


SPREAD = {"forget": 0.1, "probe": 0.05, "retain": 0.03, "general": 0.015}
SPREAD |= {"residual": 0.07, "early": 0.06, "late": 0.05}
INJECTED = Made(-2.0, 0.12, 1.21, 2.0, 0.55, 0.7, 0.5, 1.0, {"role": "injected"}, sealed=True)
PLACE = Made()


def retrained(generator: np.random.Generator, **role: Any) -> Made:
    """One more draw of the retrainings."""
    moved = {k: getattr(PLACE, k) + generator.normal(0, sd) for k, sd in SPREAD.items()}
    return replace(PLACE, **moved, role=role)


def kept(share: float, role: Mapping[str, Any]) -> Made:
    """A model between the retrainings and the injected one."""
    moved = {k: (1 - share) * getattr(PLACE, k) + share * getattr(INJECTED, k) for k in (*SPREAD,)}
    return replace(PLACE, **moved, role=role)


def planted(cell: str, references: int, fresh: int = 1, panel: bool = True) -> dict[str, Made]:
    """Every model of a cell, with its role."""
    generator = np.random.default_rng(zlib.crc32(cell.encode()))
    base = Made(0.0, 0.0, 6.0, 2.4, 1.5, 2.4, 1.9, 4.0, {"role": "base"}, sealed=True)
    models = {"base": base, "injected": INJECTED}
    for draw in range(references):
        name = f"reference-{draw}" if draw else "reference"
        one = retrained(generator, role="reference", draw=draw)
        models[name] = replace(one, sealed=not draw, oracle_kl=0.4 if draw else 0.0)
    for draw in range(1, fresh + 1):
        models[f"retraining-{draw}"] = retrained(generator, role="retraining", draw=draw)
    for share in (0.5, 0.25, 0.1, 0.05) if references else ():
        role = {"role": "control", "share": share, "of": "reference"}
        models[f"control-{100 * share:.0f}"] = kept(share, role)
    if panel:
        for entry, made in {
            "suppression": replace(PLACE, early=0.9, late=0.6),
            "router": replace(PLACE, residual=0.0, early=2.3),
        }.items():
            role = {"role": "challenge", "entry": entry, "truth": "suppressed", "knows": "facts"}
            models[f"panel:{entry}"] = replace(made, role=role, sealed=True)
    for k in (1, 2):
        draw = retrained(generator, role="candidate", method="replay", kind="restores")
        models[f"replay-{k}"] = replace(draw, forget=PLACE.forget + 0.02 * k)
    others = {
        "kl_reversion-w3": Made(0.1, early=1.4, late=1.3, oracle_kl=0.2),
        "kl_reversion-w12": Made(-1.5, early=0.9, late=0.8, oracle_kl=0.2),
        "task_vector-c1": Made(0.2, retain=2.4, oracle_kl=0.6),
        "ga-w3": Made(6.0, 0.3, 1.0, 2.2, 2.5, 4.0, 3.0, 3.0),
    }
    for name, made in others.items():
        method = name.rpartition("-")[0]
        role = {"role": "candidate", "method": method, "kind": METHODS[method]}
        models[name] = replace(made, role=role)
    return models


def write_run(
    path: Path,
    cells: Mapping[str, Mapping[str, Made]],
    *,
    planned: Iterable[str] = (),
    name: str = "made",
    methods: Sequence[str] = tuple(METHODS),
    summary: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
) -> Path:
    """The folder of a run in which these models were scored, by cell ``<model>--seed<n>``."""
    plan = {"name": name, "methods": [{"name": one} for one in methods]}
    wanted = [*cells, *(one for one in planned if one not in cells)]
    terms = asdict(rules or RULES)
    run = Run.create(path, plan, terms, {}, {"commitment": "c"}, cells=wanted)
    for cell_id, models in cells.items():
        model, _, seed = cell_id.partition("--seed")
        store = run.cell(cell_id)
        items, curves = tables(cell_id, models)
        store.put("models", {"items": items, "curves": curves})
        told = {"model": model, "seed": int(seed or 0), "family": model.partition("-")[0]}
        told |= {"gated": True, "facts": {}, "models": {n: dict(m.role) for n, m in models.items()}}
        store.finish(told | dict(summary or {}), ["models"])
    return path


def cell_run(path: Path, references: int = 30, panel: bool = True) -> Path:
    """One cell, as the demo makes it."""
    cell = "qwen2-s--seed0"
    return write_run(path, {cell: planted(cell, references, 1 if references else 0, panel)})


def uncertified_run(path: Path) -> Path:
    """One cell in which every candidate can be distinguished from a retraining."""
    cell = "qwen2-s--seed0"
    models = {n: m for n, m in planted(cell, 30).items() if not n.startswith("replay")}
    return write_run(path, {cell: models})


def matrix_run(path: Path, missing: str = "gpt2-s--seed1", references: int = 20) -> Path:
    """Six cells of two families, of which one is missing."""
    ids = [f"{model}--seed{seed}" for model in ("qwen2-s", "qwen2-m", "gpt2-s") for seed in (0, 1)]
    cells = {one: planted(one, references) for one in ids if one != missing}
    return write_run(path, cells, planned=ids)


def large_run(path: Path) -> Path:
    """45 cells of nine models in five families, 810 candidates."""
    names = [f"{family}-{size}" for family in ("qwen2", "llama", "gpt2", "neox") for size in "sm"]
    cells = {}
    for model in (*names, "olmo2-s"):
        for seed in range(5):
            cell = f"{model}--seed{seed}"
            models = planted(cell, 20)
            mine = {n: m for n, m in models.items() if m.role["role"] == "candidate"}
            more = {f"{n}-{k}": m for n, m in mine.items() for k in (1, 2)}
            cells[cell] = models | more
    return write_run(path, cells)


def audit_run(path: Path, names: Sequence[str], references: int = 5) -> Path:
    """One cell with candidates of these names, which no planned method made."""
    models = planted("audit", references, 0, panel=False)
    known = {n: m for n, m in models.items() if m.role["role"] != "candidate"}
    role = {"role": "candidate", "method": None, "kind": "other"}
    mine = {name: Made(0.1 + 0.3 * k, role=role) for k, name in enumerate(names)}
    return write_run(path, {"audit": known | mine}, name="audit", methods=())


def hostile_run(path: Path, names: Mapping[str, str] = HOSTILE) -> Path:
    """One cell in which candidates, methods, facts, model, family and plan have hostile names."""
    models = planted("hostile", 20)
    known = {n: m for n, m in models.items() if m.role["role"] != "candidate"}
    mine = {
        f"{name}-{k}": Made(
            0.1 + 0.2 * k, role={"role": "candidate", "method": name, "kind": "other"}
        )
        for k, name in enumerate(names.values())
    }
    failure = {"kind": "diverged", "reason": names["closing"]}
    failed = {names["svg"]: Made(role={"role": "candidate", "method": "x", "failure": failure})}
    plan = {"name": names["closing"], "methods": []}
    run = Run.create(
        path,
        plan,
        asdict(RULES),
        {"machine": names["handler"]},
        {"commitment": "c"},
        cells=["hostile"],
    )
    items, curves = tables("hostile", known | mine)
    swapped = {"f0": names["closing"], "f1": names["handler"], "p0": names["ansi"]}
    items["fact"] = [swapped.get(fact, fact) for fact in items["fact"]]
    store = run.cell("hostile")
    store.put("models", {"items": items, "curves": curves})
    roles = {n: dict(m.role) for n, m in (known | mine | failed).items()}
    told = {"model": names["svg"], "seed": 0, "family": names["handler"], "gated": True}
    store.finish(told | {"facts": {}, "models": roles}, ["models"])
    return path


def tables(cell_id: str, models: Mapping[str, Made]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Item and curve columns of one cell."""
    generator = np.random.default_rng(zlib.crc32(f"facts of {cell_id}".encode()))
    base = {
        "forget": generator.uniform(2.9, 3.1, FACTS),
        "probe": generator.uniform(2.5, 3.5, PROBES),
    }
    spread = {"forget": np.linspace(-0.05, 0.05, FACTS), "probe": np.linspace(-0.4, 0.4, PROBES)}
    rows: list[tuple[Any, ...]] = []
    log: list[tuple[Any, ...]] = []

    def row(
        model: str, stage: str, which: str, fact: str, pool: str, template: int, nll: float,
        reference: float = np.nan, injected: float = np.nan, tokens: int = 2,
    ) -> None:  # fmt: skip
        kl = (reference * tokens, injected * tokens)
        rows.append((model, stage, which, fact, pool, template, nll * tokens, tokens, *kl))

    for name, made in models.items():
        noise = np.random.default_rng(zlib.crc32(f"{cell_id} {name}".encode()))
        for which, centre in (("forget", made.forget), ("probe", made.probe)):
            values = base[which] + centre
            if name != "base":
                values = values + spread[which] + noise.normal(0, 0.02, len(values))
            for fact, nll in enumerate(values):
                for pool in ("evaluation", *(("audit",) if made.sealed else ())):
                    for template in range(2):
                        wobble = 0.2 * (template - 0.5)  # cancels in the mean
                        row(
                            name,
                            "forward",
                            which,
                            f"{which[0]}{fact}",
                            pool,
                            template,
                            nll + wobble,
                        )
        for which in ("forget", "retain"):
            for fact in range(FACTS):
                nll = made.retain if which == "retain" else 1.0
                label = f"{which[0]}{fact}"
                row(name, "forward", which, label, "cloze", 0, nll, made.oracle_kl, 0.1)
                if which == "retain" and made.residual is not None:
                    row(name, "reacquired", which, label, "cloze", 0, 1.0, injected=made.residual)
        for piece in range(3):
            text = ("general", f"g{piece}", "general", 0)
            row(name, "forward", *text, made.general, tokens=9)
            if made.residual is not None:
                row(name, "reacquired", *text, 2.0, injected=made.residual, tokens=9)
        if made.residual is not None:
            start = 3.0 + made.forget
            levels = [start, *np.linspace(made.early, made.late, 5)]
            for chunk, nll in enumerate(levels):
                part = made.residual * chunk / 5
                log.append((name, chunk, STEPS * chunk // 5, nll, nll, made.retain, part, part))

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
