"""Forged bundles: changes whose maker knows the format and repairs every digest but those named.

A forger who only edits a file is caught by its digest in the statement. These start where he has
learned that, and recomputes the statement, the cell's record, its manifests, the chain or terms.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from small_run import STUDY

from palimpsest.certificate.archive import pack
from palimpsest.certificate.bundle import (
    ENVELOPE,
    STATEMENT,
    SUMMARY,
    Bundle,
    statement,
    without_prose,
)
from palimpsest.certificate.verification import examine
from palimpsest.report.documents import run_document
from palimpsest.run.files import canonical, digest, digested_json
from palimpsest.run.store import FixedRoster, parse_terms
from palimpsest.run.tables import table_bytes, table_from_bytes

Members = dict[str, bytes]
Summary = dict[str, Any]


def value(members: Mapping[str, bytes], name: str) -> Any:
    return json.loads(members[name])


def written(content: object) -> bytes:
    return canonical(content) + b"\n"


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the digest that it should carry."""
    others = {key: value for key, value in content.items() if key != "digest"}
    return json.loads(digested_json(others))


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


def lists_of(members: Members) -> list[dict[str, Any]]:
    """Return each list of candidates with its digest, oldest first."""
    terms = parse_terms(members["terms.json"], "terms.json")
    rosters = value(members, "rosters.json")["rosters"]
    return [
        {"models": models, "digest": FixedRoster.of(models, terms).digest} for models in rosters
    ]


def terms_digest(members: Members) -> str:
    return digest(canonical(value(members, "terms.json")["terms"]))


def with_cell(
    members: Members,
    change: Callable[[Summary], Any] = lambda summary: summary,
    *,
    cell: str = STUDY,
    terms: str | None = None,
    manifests: bool = True,
) -> Members:
    """Return the members with a cell's record changed, and all that follows from it made again."""
    name = f"cells/{cell}/cell.json"
    summary = value(members, name)
    for table in summary["artifacts"]:
        if f"cells/{cell}/{table}" in members:
            summary["artifacts"][table] = digest(members[f"cells/{cell}/{table}"])
    if terms is not None:
        summary = json.loads(json.dumps(summary).replace(summary["roster"], terms))
    if summary["opening"]:
        summary["opening"] = signed(summary["opening"])
    summary = change(summary)
    if manifests:
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            summary = _with_manifests(cell, summary)
    try:
        return members | {name: written(signed(summary))}
    except (KeyError, TypeError, AttributeError, ValueError):
        return members | {name: written(summary)}


def _with_manifests(cell: str, summary: Summary) -> Summary:
    opening, digests, steps = summary["opening"] or {}, {}, []
    for step in summary["steps"]:
        needs = {need: digests.get(need, made) for need, made in step["needs"].items()}
        others = {key: value for key, value in step.items() if key != "digest"} | {"needs": needs}
        manifest = others | {"cell": cell}
        manifest["opening"] = opening if opening.get("step") == step["step"] else None
        made = digests[step["step"]] = digest(canonical(manifest))
        steps.append(others | {"digest": made})
    return summary | {"steps": steps}


def with_models(members: Members, cell: str = STUDY, **changes: Any) -> Members:
    """Return the members with models of a cell changed: other keys, or None to drop a model."""

    def changed(summary: Summary) -> Summary:
        models = {model["name"]: model for model in summary["models"]}
        for name, change in changes.items():
            if change is None:
                del models[name]
            else:
                known = models.get(name, {"name": name, "roster": summary["roster"]})
                models[name] = {k: v for k, v in (known | change).items() if v is not None}
        return summary | {"models": list(models.values())}

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
        if name in members:
            columns = change(table_from_bytes(members[name], name))
            members = members | {name: table_bytes(columns)}
    return with_cell(members, cell=cell)


def without_model(members: Members, model: str, cell: str = STUDY) -> Members:
    """Return the members without a model's scores and without its entry."""

    def others(columns: dict[str, Any]) -> dict[str, Any]:
        kept = columns["model"] != model
        return {name: values[kept] for name, values in columns.items()}

    rest = with_rows(members, others, cell, ("items", "curves", "measures"))
    return with_verdicts(with_models(rest, cell, **{model: None}))


def with_lists(members: Members, *rosters: list[dict[str, Any]]) -> Members:
    """Return the members with other lists of candidates."""
    lists = {"terms": terms_digest(members), "rosters": list(rosters)}
    return members | {"rosters.json": digested_json(lists)}


def with_terms(members: Members, **changed: Any) -> Members:
    """Return the members with other terms, and the lists and the record that hang on them."""
    sealed = value(members, "terms.json")
    sealed["terms"] |= changed
    rosters = [entry["models"] for entry in lists_of(members)]
    return with_lists(members | {"terms.json": written(signed(sealed))}, *rosters)


def with_rules(members: Members, **changed: Any) -> Members:
    """Return the members with other rules in the terms, in the configuration too."""
    terms = value(members, "terms.json")["terms"]
    rules = terms["rules"] | changed
    config = terms["config"] | ({"rules": rules} if "rules" in terms["config"] else {})
    return with_terms(members, rules=rules, config=config)


def with_verdicts(members: Members) -> Members:
    """Return the members with the verdicts that follow from them now."""
    return members | {SUMMARY: written(without_prose(run_document(Bundle(members).results)))}


def made_up(members: Members, cell: str = STUDY) -> Members:
    """Return the members with everything from the terms on made again."""
    return with_verdicts(with_cell(members, cell=cell, terms=lists_of(members)[-1]["digest"]))


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
