"""Forged bundles: changes whose maker knows the format and repairs every digest but those named.

A forger who only edits a file is caught by its digest in the statement. These start where he has
learned that, and recomputes the statement, the cell's record, the lists or the terms.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.made_runs import STUDY

from palimpsest.certificate.bundle import ENVELOPE, STATEMENT, Bundle, pack, statement
from palimpsest.certificate.checks import examine
from palimpsest.run.files import canonical, digest, digested_json
from palimpsest.run.store import FixedRoster, parse_terms
from palimpsest.run.tables import table_bytes, table_from_bytes

Members = dict[str, bytes]
Summary = dict[str, Any]


def value(members: Mapping[str, bytes], name: str) -> Any:
    return json.loads(members[name])


def written(content: object) -> bytes:
    return canonical(content) + b"\n"


def digested(content: Mapping[str, Any]) -> bytes:
    """Return an object with the digest that it should carry."""
    return digested_json({key: value for key, value in content.items() if key != "digest"})


def repaired(members: Members) -> bytes:
    """Return the archive, with a statement that fits it as well as can be."""
    members = {name: data for name, data in members.items() if name != ENVELOPE}
    try:
        members[STATEMENT] = statement(Bundle(members), None)
    except Exception:
        # Nothing the format can say: at least the digests are right.
        stated = json.loads(members[STATEMENT])
        stated["subject"] = [
            {"name": name, "digest": {"sha256": digest(data)[7:]}}
            for name, data in sorted(members.items())
            if name != STATEMENT
        ]
        members[STATEMENT] = written(stated)
    return pack(members)


def with_statement(members: Members, cell: str = "", **changes: Any) -> Members:
    """Return the members with a predicate changed, or the verdict that it states of a cell."""
    stated = value(members, STATEMENT)
    place = stated["predicate"]["cells"][cell]["verdict"] if cell else stated["predicate"]
    place |= changes
    return members | {STATEMENT: written(stated)}


def with_cell(
    members: Members,
    change: Callable[[Summary], Any] = lambda summary: summary,
    *,
    cell: str = STUDY,
) -> Members:
    """Return the members with a cell's record changed; it records the tables as they are now."""
    name = f"cells/{cell}/cell.json"
    summary = value(members, name)
    for table in summary["artifacts"]:
        if f"cells/{cell}/{table}" in members:
            summary["artifacts"][table] = digest(members[f"cells/{cell}/{table}"])
    summary = change(summary)
    return members | {name: digested(summary) if isinstance(summary, dict) else written(summary)}


def with_models(members: Members, cell: str = STUDY, **changes: Any) -> Members:
    """Return the members with models of a cell changed: other keys, or None to drop a model."""

    def changed(summary: Summary) -> Summary:
        models = {model["name"]: model for model in summary["models"]}
        for name, change in changes.items():
            if change is None:
                del models[name]
            else:
                known = models.get(name, {"name": name})
                models[name] = {k: v for k, v in (known | change).items() if v is not None}
        return summary | {"models": list(models.values())}

    return with_cell(members, changed, cell=cell)


def with_rows(
    members: Members,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
    cell: str = STUDY,
    tables: Sequence[str] = ("items",),
) -> Members:
    """Return the members with a cell's scores changed, and its record made again."""
    for table in tables:
        name = f"cells/{cell}/{table}.parquet"
        if name in members:
            columns = change(table_from_bytes(members[name], name))
            members = members | {name: table_bytes(columns)}
    return with_cell(members, cell=cell)


def without_model(members: Members, model: str, cell: str = STUDY) -> Members:
    """Return the members without a model's scores and without its record."""

    def others(columns: dict[str, Any]) -> dict[str, Any]:
        kept = columns["model"] != model
        return {name: values[kept] for name, values in columns.items()}

    rest = with_rows(members, others, cell, ("items", "curves", "measures"))
    return with_models(rest, cell, **{model: None})


def rosters(members: Members) -> list[list[dict[str, Any]]]:
    """Return the lists of models, oldest first."""
    lists: list[list[dict[str, Any]]] = value(members, "rosters.json")["rosters"]
    return lists


def with_rosters(members: Members, *lists: list[dict[str, Any]]) -> Members:
    """Return the members with other lists of models."""
    terms = parse_terms(members["terms.json"], "terms.json")
    content = {"terms": terms.digest, "rosters": list(lists)}
    return members | {"rosters.json": digested_json(content)}


def with_terms(members: Members, **changed: Any) -> Members:
    """Return the members with other terms, and the lists that hang on them."""
    stored = value(members, "terms.json")
    stored["terms"] |= changed
    return with_rosters(members | {"terms.json": digested(stored)}, *rosters(members))


def with_rules(members: Members, **changed: Any) -> Members:
    """Return the members with other rules in the terms, in the configuration too."""
    terms = value(members, "terms.json")["terms"]
    rules = terms["rules"] | changed
    config = terms["config"] | ({"rules": rules} if "rules" in terms["config"] else {})
    return with_terms(members, rules=rules, config=config)


def made_up(members: Members, cell: str = STUDY) -> Members:
    """Return the members with a cell's record made under the terms and lists as they are now."""
    terms = parse_terms(members["terms.json"], "terms.json")
    roster = FixedRoster.of(rosters(members)[-1], terms).digest
    return with_cell(members, lambda summary: summary | {"roster": roster}, cell=cell)


def failed(data: bytes, where: str = "") -> str:
    """Return why a bundle fails, which it must (at the check named)."""
    verification = examine(data)
    assert verification.answer == "failed" and not verification.ok
    assert not verification.verdicts
    failure = verification.failure
    assert failure is not None
    if where:
        assert failure.name == where, failure
    return failure.what


def failed_apart(data: bytes) -> bool:
    """Return whether a bundle fails in a process of its own, which it may break."""
    child = os.fork()
    if child == 0:
        ended = 2
        try:
            ended = 0 if examine(data).ok else 1
        finally:
            os._exit(ended)
    _, state = os.waitpid(child, 0)
    assert not os.WIFEXITED(state) or os.WEXITSTATUS(state) != 2
    return state != 0
