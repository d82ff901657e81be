"""What a run was planned to hold, and whether its scores are all of that and nothing else."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import BundleError
from palimpsest.facts.names import shown
from palimpsest.facts.sealed import AuditPool
from palimpsest.plan import plan_from_dict
from palimpsest.run.store import Table

_TOFU = ("tofu", "reference_must_pass")
"""Keys that a TOFU study's plan has beside a study's."""
_NAMES = {
    "base": "base",
    "injected": "injected",
    "forget_only": "forget_only",
    "general_only": "general_only",
    "reference": r"reference(-[0-9]{1,6})?",
    "retraining": r"retraining-[0-9]{1,6}",
    "control": r"control-[0-9.]{1,8}",
    "challenge": r"panel:.+",
}
"""How models of each role are named; candidates have any other name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan asks for, as far as a certificate can tell whether it is there."""

    cells: tuple[str, ...]
    counts: Mapping[str, int]
    """Models of each role in every cell."""
    shares: tuple[float, ...]
    """Of the controls."""
    forget: int
    probes: int
    panel: bool
    """Whether known-label models are scored on the sealed pool."""
    seal: str
    """Commitment of a pool of the user's own; empty for the built-in one."""
    named: Mapping[str, str] | None = None
    """An audit's models by name, with their roles; None for a study, whose plan counts them."""

    @property
    def audit(self) -> bool:
        return self.named is not None


def planned(plan: Any, most: int) -> Planned:
    """Return what a study's plan or an audit's asks for; BundleError above ``most`` cells."""
    if not isinstance(plan, dict) or not isinstance(plan.get("models"), list):
        raise BundleError("plan.json: neither a study's plan nor an audit's")
    if plan["models"] and all(isinstance(model, list) for model in plan["models"]):
        return _planned_audit(plan)
    # Counted before the plan is built: models times seeds may be more than memory holds.
    seeds = plan.get("seeds")
    count = len(plan["models"]) * (len(seeds) if isinstance(seeds, list) else 0)
    if not 1 <= count <= most:
        raise BundleError(f"the plan has {count} cells; expected 1 to {most}")
    study = plan_from_dict({key: value for key, value in plan.items() if key not in _TOFU})
    counts = {
        "candidate": sum(len(grid.settings()) for grid in study.methods),
        "reference": study.replication.draws,
        "control": len(study.rules.control_shares),
    }
    return Planned(
        tuple(cell.id for cell in study.cells()),
        counts,
        study.rules.control_shares,
        study.facts.forget,
        study.facts.probes,
        study.panel.enabled,
        study.seal,
    )


def _planned_audit(plan: Mapping[str, Any]) -> Planned:
    try:
        named = {str(name): str(role) for name, role in plan["models"]}
        forget, probes = int(plan["facts"]["forget"]), int(plan["facts"]["probe"])
        shares = tuple(map(float, plan["rules"]["control_shares"]))
        counts = Counter(named.values()) | Counter({"control": len(shares)})
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError("plan.json: not the plan of an audit") from error
    return Planned(("audit",), counts, shares, forget, probes, False, "", named)


def require_models(cell_id: str, models: Mapping[str, Any], asked: Planned) -> None:
    """Raise BundleError unless the planned models, under their planned roles, are all listed.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    roles: dict[str, str] = {}
    for name, model in models.items():
        role = model.get("role") if isinstance(model, dict) else None
        by_name = [r for r, pattern in _NAMES.items() if re.fullmatch(pattern, name)]
        if role not in (*_NAMES, "candidate") or by_name != [role] * (role != "candidate"):
            raise BundleError(f"cell {cell_id}: {shown(name)} has the role {shown(str(role))}")
        roles[name] = role
    counts = Counter(roles.values())
    for role, count in asked.counts.items():
        if counts[role] != count:
            raise BundleError(f"cell {cell_id}: {counts[role]} models with the role {role}; the plan has {count}")
    if asked.named is not None and asked.named != {n: r for n, r in roles.items() if r != "control"}:
        raise BundleError(f"cell {cell_id}: other models than the plan names")
    shares = sorted(models[name].get("share", -1.0) for name, role in roles.items() if role == "control")
    if shares != sorted(asked.shares):
        raise BundleError(f"cell {cell_id}: controls with shares {shares}; the rules have {asked.shares}")
    _require_different(cell_id, models, roles)


def _require_different(cell_id: str, models: Mapping[str, Any], roles: Mapping[str, str]) -> None:
    """Raise BundleError when a reference has the weights of another model."""
    first: dict[str, str] = {}
    for name in sorted(roles, key=lambda name: roles[name] == "reference"):
        weights = str(models[name].get("digest"))
        if roles[name] == "reference" and weights in first:
            raise BundleError(f"cell {cell_id}: {name} has the weights of {shown(first[weights])}")
        first.setdefault(weights, name)


def require_scores(
    cell_id: str, tables: Mapping[str, Table], models: Mapping[str, Any], asked: Planned
) -> None:
    """Raise BundleError unless the listed models and planned facts are those scored."""
    items = tables["items.parquet"]
    scored = set(items["model"].tolist())
    also = {m for n in ("curves.parquet", "measures.parquet") if n in tables for m in tables[n]["model"]}
    failed = {name for name, model in models.items() if model.get("failure") is not None}
    # One that failed in re-acquisition may have left the scores made before.
    for name in sorted((scored | also) ^ (models.keys() - failed)):
        if name not in failed or name not in models:
            raise BundleError(
                f"cell {cell_id}: {shown(name)} is scored but not listed, or the other way round"
            )
    facts: dict[str, set[str]] = {}
    for which, fact in zip(items["set"].tolist(), items["fact"].tolist()):
        facts.setdefault(which, set()).add(fact)
    for which, count in (("forget", asked.forget), ("probe", asked.probes)):
        if len(facts.get(which, ())) != count:
            raise BundleError(
                f"cell {cell_id}: scores of {len(facts.get(which, ()))} {which} facts; the plan "
                f"has {count}"
            )


def require_once(
    cell_id: str,
    items: Table,
    facts: Mapping[str, Any],
    opened: Mapping[str, Any],
    pool: AuditPool | None,
) -> None:
    """Raise BundleError unless the sealed pool's rows are those of its one opening.

    ``facts`` are those of the cell's summary, ``opened`` the models the seal was opened for, and
    ``pool`` the revealed one, None when it was never opened.
    """
    rows: dict[str, list[tuple[str, str, int]]] = {}
    columns = ("model", "stage", "set", "fact", "pool", "template")
    for model, stage, which, fact, name, template in zip(*(items[c].tolist() for c in columns)):
        if name == "audit":
            if stage != "forward":
                raise BundleError(f"cell {cell_id}: the sealed pool was scored when {shown(stage)}")
            rows.setdefault(model, []).append((which, fact, template))
    if set(rows) != set(opened):
        raise BundleError(
            f"cell {cell_id}: {len(rows)} models were scored on the sealed pool; it was opened for "
            f"{len(opened)}; expected the same ones"
        )
    if rows and pool is None:
        raise BundleError(f"cell {cell_id}: the sealed pool was scored, but is not revealed")
    for model, scored in rows.items():
        assert pool is not None
        counts = {key: _phrasings(pool, facts, key) for key in {row[:2] for row in scored}}
        # Counted before they are listed: the numbers may be anything.
        expected = sum(counts.values())
        if len(scored) != expected or set(scored) != {
            (*key, n) for key, count in counts.items() for n in range(count)
        }:
            raise BundleError(
                f"cell {cell_id}: {shown(model)} has {len(scored)} scores on the sealed pool; "
                f"expected one for each of {expected} revealed phrasings"
            )


def _phrasings(pool: AuditPool, facts: Mapping[str, Any], key: tuple[str, str]) -> int:
    """Return how many phrasings the pool holds of a (set, fact)."""
    which, fact = key
    try:
        relation = next((row[2] for row in facts[which] if row[0] == fact), None)
    except (KeyError, TypeError, IndexError) as error:
        raise BundleError("cell.json lists its facts in another way than a run does") from error
    name = relation if pool.by == "relation" else fact
    if not isinstance(name, str) or name not in pool.phrasings:
        raise BundleError(f"{shown(fact)} was scored on phrasings that the pool does not hold")
    return len(pool.phrasings[name])
