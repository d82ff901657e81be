"""Forged bundles: changes whose maker knows the format and mends every digest but those named.

A forger who only edits a file is caught by its digest in the statement. These start where he has
learned that, and recomputes the statement, the cell's summary, its manifests, the record or terms.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.certificate.archive import pack
from palimpsest.certificate.bundle import ENVELOPE, STATEMENT, recompute, statement
from palimpsest.certificate.verify import examine
from palimpsest.errors import PalimpsestError
from palimpsest.run.chain import chain_bytes
from palimpsest.run.store import canonical, digest, table_bytes, table_from_bytes, terms_digest
from palimpsest.run.terms import FILES, terms_json

Members = dict[str, bytes]
Summary = dict[str, Any]
STUDY = "m--seed0"


def value(members: Mapping[str, bytes], name: str) -> Any:
    return json.loads(members[name])


def written(content: object) -> bytes:
    return canonical(content) + b"\n"


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the digest that it should carry."""
    others = {key: value for key, value in content.items() if key != "digest"}
    return others | {"digest": digest(canonical(others))}


def mended(members: Members) -> bytes:
    """Return the archive, with a statement that fits it as well as can be."""
    members = {name: data for name, data in members.items() if name != ENVELOPE}
    try:
        members[STATEMENT] = statement(members, None)
    except (PalimpsestError, KeyError, TypeError, ValueError, AttributeError):
        # Nothing the format can say: at least the digests are right.
        stated = json.loads(members[STATEMENT])
        stated["subject"] = [
            {"name": name, "digest": {"sha256": digest(data)[7:]}}
            for name, data in sorted(members.items())
            if name != STATEMENT
        ]
        members[STATEMENT] = written(stated)
    return pack(members)


def with_record(
    members: Members, change: Callable[[list[Any]], list[Any]] = lambda events: events
) -> Members:
    """Return the members with the record made again from terms and cells as they are now."""
    terms = value(members, "terms.json")
    events: list[tuple[str, Any]] = [("terms", terms)]
    for cell_id in terms["terms"]["cells"]:
        if f"cells/{cell_id}/cell.json" in members:
            summary = value(members, f"cells/{cell_id}/cell.json")
            events += [("opened", summary["opening"])] if summary["opening"] else []
            events += [("step", {"cell": cell_id} | step) for step in summary["steps"]]
            events.append(("cell", {"cell": cell_id, "digest": summary["digest"]}))
    return members | {"record.jsonl": chain_bytes(change(events))}


def with_cell(
    members: Members,
    change: Callable[[Summary], Any] = lambda summary: summary,
    *,
    cell: str = STUDY,
    terms: str | None = None,
    manifests: bool = True,
) -> Members:
    """Return the members with a cell's summary changed, and all that follows from it made again."""
    name = f"cells/{cell}/cell.json"
    summary = value(members, name)
    for table in summary["artifacts"]:
        if f"cells/{cell}/{table}" in members:
            summary["artifacts"][table] = digest(members[f"cells/{cell}/{table}"])
    summary["terms"] = terms or summary["terms"]
    if summary["opening"]:
        summary["opening"] = signed(summary["opening"] | {"terms": summary["terms"]})
    summary = change(summary)
    if manifests:
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            summary = _with_manifests(cell, summary)
    try:
        return with_record(members | {name: written(signed(summary))})
    except (KeyError, TypeError, AttributeError):
        return members | {name: written(summary)}


def _with_manifests(cell: str, summary: Summary) -> Summary:
    opening, digests, steps = summary["opening"] or {}, {}, []
    for step in summary["steps"]:
        needs = {need: digests.get(need, made) for need, made in step["needs"].items()}
        manifest = {"cell": cell, "terms": summary["terms"], "step": step["step"], "needs": needs}
        manifest["files"] = step["files"]
        manifest["opening"] = opening if opening.get("step") == step["step"] else None
        made = digest(canonical(manifest))
        digests[step["step"]] = made
        steps.append({"step": step["step"], "files": step["files"], "needs": needs, "digest": made})
    return summary | {"steps": steps}


def with_models(members: Members, cell: str = STUDY, **changes: Any) -> Members:
    """Return the members with models of a cell changed: other keys, or None to drop a model."""

    def changed(summary: Summary) -> Summary:
        models = dict(summary["models"])
        for name, change in changes.items():
            if change is None:
                del models[name]
            else:
                models[name] = models.get(name, {}) | change
        return summary | {"models": models}

    return with_cell(members, changed, cell=cell)


def with_rows(
    members: Members,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
    cell: str = STUDY,
    tables: Sequence[str] = ("items",),
) -> Members:
    """Return the members with a cell's scores changed, and everything after them made again."""
    for table in tables:
        name = f"cells/{cell}/{table}.parquet"
        columns = change(table_from_bytes(members[name], name))
        members = members | {name: table_bytes(columns)}
    return with_cell(members, cell=cell)


def without_model(members: Members, model: str, cell: str = STUDY) -> Members:
    """Return the members without a model's scores and without its entry."""

    def others(columns: dict[str, Any]) -> dict[str, Any]:
        kept = columns["model"] != model
        return {name: values[kept] for name, values in columns.items()}

    rest = with_rows(members, others, cell, ("items", "curves"))
    return with_verdicts(with_models(rest, cell, **{model: None}), (cell,))


def with_terms(members: Members, cells: Sequence[str] | None = None) -> Members:
    """Return the members with terms.json made again from the fixed files as they are now."""
    old = value(members, "terms.json")["terms"]["cells"]
    terms = terms_json({name: members[name] for name in FILES}, cells or old)
    return with_record(members | {"terms.json": written(signed(terms))})


def with_rules(members: Members, **changed: Any) -> Members:
    """Return the members with other thresholds, hashed as they should be, in the plan too."""
    rules = value(members, "rules.json")["rules"] | changed
    plan = value(members, "plan.json") | {"rules": rules}
    hashed = {"hash": digest(canonical(rules)), "rules": rules}
    return members | {"rules.json": written(hashed), "plan.json": written(plan)}


def with_verdicts(members: Members, cells: tuple[str, ...] = (STUDY,)) -> Members:
    """Return the members with the verdicts that follow from them now."""
    return members | recompute(members, cells)


def made_up(members: Members, cells: tuple[str, ...] = (STUDY,)) -> Members:
    """Return the members with everything from the terms on made again."""
    members = with_terms(members)
    for cell in cells:
        members = with_cell(members, cell=cell, terms=terms_digest(value(members, "terms.json")))
    return with_verdicts(members, cells)


def failed(data: bytes, where: str = "") -> str:
    """Return why a bundle fails, which it must (at the check named)."""
    verification = examine(data)
    assert verification.answer == "failed" and not verification.ok
    assert not verification.verdicts
    failure = verification.failure
    assert failure is not None
    assert "cannot be checked" not in failure.what, failure
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
