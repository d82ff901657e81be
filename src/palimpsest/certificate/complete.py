"""What a run was planned to hold, and whether its scores are all of that and nothing else."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.config.plan import plan_from_dict
from palimpsest.errors import BundleError
from palimpsest.facts.rows import shown
from palimpsest.facts.sealed import AuditPool
from palimpsest.run.store import Table

_ROLES = {name: name for name in ("base", "injected", "forget_only", "general_only")} | {
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
    facts: Mapping[str, int]
    """How many of each set."""
    summary: bool
    """Whether it is an audit or a TOFU study, with a summary.json and held-out prompts as seal."""
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
    if plan["models"] and all(isinstance(model, list) for model in plan["models"]):
        return _planned_audit(plan)
    # Counted before the plan is built: models times seeds may be more than memory holds.
    count = len(plan["models"]) * len(plan["seeds"])
    given = (int(plan["tofu"]["references"]),) if "tofu" in plan else None
    if not 1 <= count <= most:
        raise BundleError(f"the plan has {count} cells; expected 1 to {most}")
    # A TOFU study's plan is a study's with one more key.
    study = plan_from_dict({key: value for key, value in plan.items() if key != "tofu"})
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
        {"forget": study.facts.forget, "probe": study.facts.probes},
        summary=given is not None,
        panel=panel.enabled and bool(panel.models),
        seal=study.seal,
    )


def _planned_audit(plan: Mapping[str, Any]) -> Planned:
    named = {str(name): str(role) for name, role in plan["models"]}
    counts = {role: (count,) for role, count in Counter(named.values()).items()}
    facts = {name: int(plan["facts"][name]) for name in ("forget", "probe")}
    shares = tuple(map(float, plan["rules"]["control_shares"]))
    return Planned(("audit",), counts, shares, facts, summary=True, named=named)


def require_models(cell_id: str, models: Mapping[str, Any], asked: Planned) -> None:
    """Raise BundleError unless exactly the planned models are listed under their planned roles.

    One candidate less would loosen Holm's correction for the others, one reference less would
    change the bag, and one control less could hide that the audit notices nothing.
    """
    roles: dict[str, str] = {}
    for name, model in models.items():
        role = model.get("role") if isinstance(model, dict) else None
        by_name = [role for role, names in _ROLES.items() if re.fullmatch(names, name)]
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
        raise BundleError(f"cell {cell_id}: controls of {shares}; the rules have {asked.shares}")
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
    own = [table for name, table in tables.items() if name != "headroom.parquet"]
    # A model that failed in re-acquisition may have left the scores made before.
    failed = {name for name, model in models.items() if model.get("failure") is not None}
    for name in sorted(({n for table in own for n in table["model"]} ^ models.keys()) - failed):
        raise BundleError(
            f"cell {cell_id}: {shown(name)} is scored but not listed, or the other way round"
        )
    for which, count in asked.facts.items():
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

    ``facts`` are those of the cell's summary, ``opened`` the models the pool was opened for, and
    ``pool`` the revealed one, None when it was never opened.
    """
    sealed = items["pool"] == "audit"
    columns = [
        items[name][sealed].tolist() for name in ("model", "stage", "set", "fact", "template")
    ]
    rows: dict[str, list[tuple[str, str, int]]] = {}
    for model, stage, *where in zip(*columns):
        if stage != "forward":
            raise BundleError(f"cell {cell_id}: the sealed pool was scored when {shown(stage)}")
        rows.setdefault(model, []).append((where[0], where[1], where[2]))
    if set(rows) != set(opened):
        raise BundleError(
            f"cell {cell_id}: {len(rows)} models were scored on the sealed pool; it was opened for "
            f"{len(opened)}; expected the same ones"
        )
    if pool is None:
        return
    relations = {(which, row[0]): row[2] for which, listed in facts.items() for row in listed}
    for model, scored in rows.items():
        counts = {}
        for which, fact, _ in scored:
            counts[which, fact] = len(pool.phrasings.get(str(relations.get((which, fact))), ()))
        # Counted before they are listed: the numbers may be anything.
        expected = sum(counts.values())
        if len(scored) != expected or set(scored) != {
            (*key, n) for key, count in counts.items() for n in range(count)
        }:
            raise BundleError(
                f"cell {cell_id}: {shown(model)} has {len(scored)} scores on the sealed pool; "
                f"expected one for each of {expected} revealed phrasings"
            )
