"""Whether a cell's scores are all of them: nobody left out or slipped in, the sealed pool once."""

import math
import re
from collections.abc import Mapping
from typing import Any

from palimpsest.errors import BundleError
from palimpsest.facts.names import shown
from palimpsest.facts.sealed import AuditPool
from palimpsest.plan import Plan
from palimpsest.run.store import Table

_OWN_MODELS = re.compile(r"base|injected|forget_only|reference(-[0-9]{1,6})?|panel:.*", re.DOTALL)


def require_everybody(cell_id: str, items: Table, summary: Mapping[str, Any], plan: Plan) -> None:
    """Nothing, when planned candidates and facts are those scored; BundleError otherwise.

    A candidate less would loosen Holm's correction for the others, and so would a hidden one that
    was tried and not told.
    """
    candidates = summary["candidates"]
    listed = [*candidates, *summary["failed"]]
    asked = sum(math.prod(len(values) for _, values in grid.grid) for grid in plan.methods)
    if len(set(listed)) != len(listed) or len(listed) != asked:
        raise BundleError(f"cell {cell_id}: {len(listed)} candidates; the plan has {asked}")
    others = {name for name in set(items["model"].tolist()) if not _OWN_MODELS.fullmatch(name)}
    if others != set(candidates):
        odd = shown(sorted(others ^ set(candidates))[0])
        raise BundleError(
            f"cell {cell_id}: {odd} is scored but not a candidate, or the other way round"
        )
    facts: dict[str, set[str]] = {}
    for which, fact in zip(items["set"].tolist(), items["fact"].tolist()):
        facts.setdefault(which, set()).add(fact)
    for which, planned in (("forget", plan.facts.forget), ("probe", plan.facts.probes)):
        found = len(facts.get(which, ()))
        if found != planned:
            raise BundleError(
                f"cell {cell_id}: scores of {found} {which} facts; the plan has {planned}"
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
