"""Forged bundles: changes whose maker knows the format and mends every digest but those named.

A forger who only edits a file is caught by its digest in the statement. These start where he has
learned that, and recomputes the statement, the cell's summary and journal, or the run's chain.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.certificate.archive import pack
from palimpsest.certificate.bundle import ENVELOPE, STATEMENT, recompute, statement
from palimpsest.errors import PalimpsestError
from palimpsest.run.chain import ORIGIN, Chain, chain_bytes, verify_chain
from palimpsest.run.store import canonical, digest, table_bytes, table_from_bytes
from palimpsest.run.terms import creation_events

Members = dict[str, bytes]
Events = list[tuple[str, dict[str, Any]]]


def value(members: Mapping[str, bytes], name: str) -> Any:
    return json.loads(members[name])


def written(content: object) -> bytes:
    return canonical(content) + b"\n"


def mended(members: Members) -> bytes:
    """The archive, with a statement that fits it as well as can be."""
    members = {name: data for name, data in members.items() if name != ENVELOPE}
    try:
        members[STATEMENT] = statement(members, None)
    except (PalimpsestError, KeyError, TypeError, ValueError, AttributeError, StopIteration):
        # Nothing the format can say: at least the digests are right.
        told = json.loads(members[STATEMENT])
        told["subject"] = [
            {"name": name, "digest": {"sha256": digest(data)[7:]}}
            for name, data in sorted(members.items())
            if name != STATEMENT
        ]
        members[STATEMENT] = written(told)
    return pack(members)


def journal(members: Members, cell: str = "m--seed0") -> Chain:
    genesis = verify_chain(members["chain.jsonl"], ORIGIN).entries[3].digest
    return verify_chain(members[f"cells/{cell}/chain.jsonl"], genesis)


def recorded(chain: Chain) -> Events:
    return [(entry.event, entry.data) for entry in chain.entries]


def with_journal(
    members: Members,
    change: Callable[[Events], Events] = lambda events: events,
    *,
    summary: Callable[[dict[str, Any]], Any] = lambda summary: summary,
    cell: str = "m--seed0",
    genesis: str | None = None,
) -> Members:
    """The members with a cell's journal and summary rewritten from the genesis on."""
    chain = journal(members, cell)
    begin = genesis or chain.genesis
    events = change(recorded(chain)[:-1])
    told = value(members, f"cells/{cell}/cell.json")
    for name in ("items.parquet", "curves.parquet"):
        told["artifacts"][name] = digest(members[f"cells/{cell}/{name}"])
    told["journal"] = verify_chain(chain_bytes(events, begin), begin).head
    told = written(summary(told))
    events = [*events, ("finished", {"cell.json": digest(told)})]
    return members | {
        f"cells/{cell}/cell.json": told,
        f"cells/{cell}/chain.jsonl": chain_bytes(events, begin),
    }


def with_items(
    members: Members, change: Callable[[dict[str, Any]], Mapping[str, Any]], cell: str = "m--seed0"
) -> Members:
    """The members with a cell's scores changed, and everything after them recomputed."""
    name = f"cells/{cell}/items.parquet"
    items = change(table_from_bytes(members[name], name))
    return with_journal(members | {name: table_bytes(items)}, cell=cell)


def with_terms(members: Members, cells: Sequence[str] | None = None) -> Members:
    """The members with the run's chain made again from the fixed files as they are now."""
    names = ("plan.json", "rules.json", "seal.json", "environment.json")
    old = verify_chain(members["chain.jsonl"], ORIGIN).entries[2].data["cells"]
    events = creation_events({name: members[name] for name in names}, cells or old)
    return members | {"chain.jsonl": chain_bytes(events)}


def with_rules(members: Members, **changed: Any) -> Members:
    """The members with other thresholds, hashed as they should be, in the plan too."""
    rules = value(members, "rules.json")["rules"] | changed
    plan = value(members, "plan.json") | {"rules": rules}
    hashed = {"hash": digest(canonical(rules)), "rules": rules}
    return members | {"rules.json": written(hashed), "plan.json": written(plan)}


def with_verdicts(members: Members, cells: tuple[str, ...] = ("m--seed0",)) -> Members:
    """The members with the verdicts that follow from them now."""
    return members | recompute(members, cells)
