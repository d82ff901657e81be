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

HEADROOM = "headroom.parquet"
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
    counts: Mapping[str, tuple[int, ...]]
    """How many models of each role a cell may have."""
    shares: tuple[float, ...]
    """Of the controls."""
    forget: int
    probes: int
    summary: bool
    """Whether the command writes a summary.json."""
    panel: bool = False
    """Whether known-label models are scored on the sealed pool."""
    seal: str = ""
    """Commitment of a pool of the user's own; empty for the built-in one."""
    named: Mapping[str, str] | None = None
    """An audit's models by name, with their roles; None for a study, whose plan counts them."""

    @property
    def audit(self) -> bool:
        return self.named is not None


def planned(plan: Any, most: int) -> Planned:
    """Return what the plan of a study or an audit asks for; BundleError above ``most`` cells."""
    try:
        if plan["models"] and all(isinstance(model, list) for model in plan["models"]):
            return _planned_audit(plan)
        # Counted before the plan is built: models times seeds may be more than memory holds.
        count = len(plan["models"]) * len(plan["seeds"])
        tofu = plan.get("tofu")
        given = None if tofu is None else (int(tofu["references"]),)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"plan.json: not the plan of a study or an audit ({error!r})") from error
    if not 1 <= count <= most:
        raise BundleError(f"the plan has {count} cells; expected 1 to {most}")
    study = plan_from_dict({key: value for key, value in plan.items() if key not in _TOFU})
    replication, panel = study.replication, study.panel
    draws = (replication.draws,) if replication.cells == "every" else (1, replication.draws)
    counts = {
        "candidate": (sum(len(grid.settings()) for grid in study.methods),),
        "reference": given or draws,
        "retraining": (replication.retrainings,),
        "challenge": (len(panel.models) if panel.enabled else 0,),
    }
    return Planned(
        tuple(cell.id for cell in study.cells()),
        counts,
        study.rules.control_shares,
        study.facts.forget,
        study.facts.probes,
        summary=given is not None,
        panel=panel.enabled and bool(panel.models),
        seal=study.seal,
    )


def _planned_audit(plan: Mapping[str, Any]) -> Planned:
    named = {str(name): str(role) for name, role in plan["models"]}
    facts, shares = plan["facts"], tuple(map(float, plan["rules"]["control_shares"]))
    counts = {role: (count,) for role, count in Counter(named.values()).items()}
    forget, probes = int(facts["forget"]), int(facts["probe"])
    return Planned(("audit",), counts, shares, forget, probes, summary=True, named=named)


def require_models(cell_id: str, models: Mapping[str, Any], asked: Planned) -> None:
    """Raise BundleError unless exactly the planned models are listed under their planned roles.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    roles: dict[str, str] = {}
    for name, model in models.items():
        role = model.get("role") if isinstance(model, dict) else None
        by_name = [role for role, names in _NAMES.items() if re.fullmatch(names, name)]
        if role != (*by_name, "candidate")[0]:
            raise BundleError(f"cell {cell_id}: {shown(name)} has the role {shown(str(role))}")
        roles[name] = role
    counts = Counter(roles.values())
    for role, allowed in asked.counts.items():
        if counts[role] not in allowed:
            raise BundleError(
                f"cell {cell_id}: {counts[role]} models have the role {role}; the plan has "
                f"{' or '.join(map(str, allowed))}"
            )
    if asked.named not in (None, {n: role for n, role in roles.items() if role != "control"}):
        raise BundleError(f"cell {cell_id}: other models than the plan names")
    shares = [models[name].get("share") for name, role in roles.items() if role == "control"]
    if Counter(map(repr, shares)) != Counter(map(repr, asked.shares)):
        raise BundleError(
            f"cell {cell_id}: controls with shares {shares}; the rules have {list(asked.shares)}"
        )
    weights: dict[str, str] = {}
    for name in sorted(roles, key=lambda name: roles[name] == "reference"):
        same = weights.setdefault(str(models[name].get("digest")), name)
        if roles[name] == "reference" and same != name:
            raise BundleError(f"cell {cell_id}: {name} has the weights of {shown(same)}")


def require_scores(
    cell_id: str, tables: Mapping[str, Table], models: Mapping[str, Any], asked: Planned
) -> None:
    """Raise BundleError unless the listed models and planned facts are those scored."""
    items = tables["items.parquet"]
    scored = {model for n, table in tables.items() if n != HEADROOM for model in table["model"]}
    failed = {name for name, model in models.items() if model.get("failure") is not None}
    # A model that failed in re-acquisition may have left the scores made before.
    for name in sorted((scored - failed) ^ (models.keys() - failed)):
        raise BundleError(
            f"cell {cell_id}: {shown(name)} is scored but not listed, or the other way round"
        )
    for which, count in (("forget", asked.forget), ("probe", asked.probes)):
        facts = len(set(items["fact"][items["set"] == which]))
        if facts != count:
            raise BundleError(f"cell {cell_id}: scores of {facts} {which} facts; expected {count}")


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
    if pool is None:
        return
    relations = _relations(facts)
    for model, scored in rows.items():
        counts = {key: _phrasings(pool, relations, key) for key in {row[:2] for row in scored}}
        # Counted before they are listed: the numbers may be anything.
        expected = sum(counts.values())
        if len(scored) != expected or set(scored) != {
            (*key, n) for key, count in counts.items() for n in range(count)
        }:
            raise BundleError(
                f"cell {cell_id}: {shown(model)} has {len(scored)} scores on the sealed pool; "
                f"expected one for each of {expected} revealed phrasings"
            )


def _relations(facts: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return the relation of each (set, fact) in a cell's summary."""
    try:
        return {(which, row[0]): row[2] for which, rows in facts.items() for row in rows}
    except (KeyError, TypeError, IndexError) as error:
        raise BundleError("cell.json lists its facts in another way than a run does") from error


def _phrasings(
    pool: AuditPool, relations: Mapping[tuple[str, str], Any], key: tuple[str, str]
) -> int:
    """Return how many phrasings the pool holds of a (set, fact)."""
    name = relations.get(key) if pool.by == "relation" else key[1]
    if not isinstance(name, str) or name not in pool.phrasings:
        raise BundleError(f"{shown(key[1])} was scored on phrasings that the pool does not hold")
    return len(pool.phrasings[name])
