"""What a run was planned to hold, and whether its scores are all of that and nothing else."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.errors import BundleError
from palimpsest.facts.names import shown
from palimpsest.facts.sealed import AuditPool
from palimpsest.plan import plan_from_dict
from palimpsest.run.store import Table

_OWN_MODELS = re.compile(r"base|injected|forget_only|reference(-[0-9]{1,6})?|panel:.*", re.DOTALL)
_TOFU = ("tofu", "reference_must_pass")
"""Keys that a TOFU study's terms have beside a plan's."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan asks for, as far as a certificate can tell whether it is there."""

    cells: tuple[str, ...]
    candidates: int
    forget: int
    probes: int
    panel: bool
    """Whether known-label models are scored on the sealed pool."""
    seal: str
    """Commitment of a pool of the user's own; empty for the built-in one."""
    named: tuple[str, ...] | None = None
    """An audit's candidates, which its terms name; None for a study, whose plan counts them."""

    @property
    def audit(self) -> bool:
        return self.named is not None


def planned(plan: Any, most: int) -> Planned:
    """What a study's plan or an audit's terms ask for, if at most ``most`` cells."""
    if not isinstance(plan, dict) or not isinstance(plan.get("models"), list):
        raise BundleError("plan.json: neither a study's plan nor an audit's terms")
    if plan["models"] and all(isinstance(model, list) for model in plan["models"]):
        return _planned_audit(plan)
    # Counted before the plan is built: models times seeds may be more than memory holds.
    seeds = plan.get("seeds")
    count = len(plan["models"]) * (len(seeds) if isinstance(seeds, list) else 0)
    if not 1 <= count <= most:
        raise BundleError(f"the plan has {count} cells; expected 1 to {most}")
    study = plan_from_dict({key: value for key, value in plan.items() if key not in _TOFU})
    return Planned(
        tuple(cell.id for cell in study.cells()),
        sum(math.prod(len(values) for _, values in grid.grid) for grid in study.methods),
        study.facts.forget,
        study.facts.probes,
        study.panel.enabled,
        study.seal,
    )


def _planned_audit(plan: Mapping[str, Any]) -> Planned:
    try:
        named = tuple(str(name) for name, role in plan["models"] if role == "candidate")
        forget, probes = int(plan["facts"]["forget"]), int(plan["facts"]["probe"])
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError("plan.json: not the terms of an audit") from error
    return Planned(("audit",), len(named), forget, probes, False, "", named)


def require_everybody(
    cell_id: str, items: Table, summary: Mapping[str, Any], asked: Planned
) -> None:
    """Nothing, when planned candidates and facts are those scored; BundleError otherwise.

    A candidate less would loosen Holm's correction for the others, and so would a hidden one that
    was tried and not told.
    """
    candidates, failed = summary["candidates"], summary["failed"]
    listed = [*candidates, *failed]
    if len(set(listed)) != len(listed) or len(listed) != asked.candidates:
        raise BundleError(
            f"cell {cell_id}: {len(listed)} candidates; the plan has {asked.candidates}"
        )
    if asked.named is not None and set(listed) != set(asked.named):
        raise BundleError(f"cell {cell_id}: other candidates than the plan names")
    others = {name for name in set(items["model"].tolist()) if not _OWN_MODELS.fullmatch(name)}
    # In an audit, one that failed on its way back has left the scores of its way there.
    excused = set(failed) if asked.audit else set()
    if set(candidates) != others - excused:
        odd = shown(sorted((others - excused) ^ set(candidates))[0])
        raise BundleError(
            f"cell {cell_id}: {odd} is scored but not a candidate, or the other way round"
        )
    facts: dict[str, set[str]] = {}
    for which, fact in zip(items["set"].tolist(), items["fact"].tolist()):
        facts.setdefault(which, set()).add(fact)
    for which, count in (("forget", asked.forget), ("probe", asked.probes)):
        found = len(facts.get(which, ()))
        if found != count:
            raise BundleError(
                f"cell {cell_id}: scores of {found} {which} facts; the plan has {count}"
            )


def require_once(
    cell_id: str,
    items: Table,
    facts: Mapping[str, Any],
    opened: Mapping[str, Any],
    pool: AuditPool | None,
) -> None:
    """Nothing, when the sealed pool's rows are those of its one opening; BundleError otherwise.

    ``facts`` are those of the cell's summary, ``opened`` the models the seal was opened for, and
    ``pool`` the revealed one, None when it was never opened.
    """
    rows: dict[str, list[tuple[str, str, int]]] = {}
    names = ("model", "stage", "set", "fact", "pool", "template")
    for model, stage, which, fact, own, template in zip(*(items[n].tolist() for n in names)):
        if own == "audit":
            if stage != "forward":
                raise BundleError(f"cell {cell_id}: the audit pool was scored when {shown(stage)}")
            rows.setdefault(model, []).append((which, fact, template))
    if set(rows) != set(opened):
        raise BundleError(
            f"cell {cell_id}: the audit pool was scored by {len(rows)} models; it was opened for "
            f"{len(opened)}; expected the same ones"
        )
    if not rows:
        return
    if pool is None:
        raise BundleError(f"cell {cell_id}: the audit pool was scored, but is not revealed")
    relations = _relations(facts)
    for model, found in rows.items():
        counts = {key: _phrasings(pool, relations, key) for key in {row[:2] for row in found}}
        # Counted before they are listed: a stranger's numbers may be anything.
        expected = sum(counts.values())
        if len(found) != expected or set(found) != {
            (*key, n) for key, count in counts.items() for n in range(count)
        }:
            raise BundleError(
                f"cell {cell_id}: {shown(model)} has {len(found)} scores on the audit pool; "
                f"expected one for each of {expected} revealed phrasings"
            )


def _relations(facts: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The relation of each (set, fact) in a cell's summary."""
    try:
        return {(which, row[0]): row[2] for which, rows in facts.items() for row in rows}
    except (KeyError, TypeError, IndexError) as error:
        raise BundleError("cell.json lists its facts in another way than a run does") from error


def _phrasings(
    pool: AuditPool, relations: Mapping[tuple[str, str], str], key: tuple[str, str]
) -> int:
    """How many phrasings the pool holds of a (set, fact)."""
    name = relations.get(key) if pool.by == "relation" else key[1]
    if not isinstance(name, str) or name not in pool.phrasings:
        raise BundleError(f"{shown(key[1])} was scored on phrasings that the pool does not hold")
    return len(pool.phrasings[name])
