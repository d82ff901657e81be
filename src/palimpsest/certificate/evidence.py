"""The checks of a bundle, in order; each gives back in words what it found to hold, or raises.

Every check may rely on those before it. Nothing a bundle says is believed because another part of
the same bundle says so, if it can be computed instead.
"""

from collections.abc import Callable, Iterator
from typing import Any

from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import (
    CELL,
    ENVELOPE,
    FIXED,
    HEADROOM,
    PREDICATE_TYPE,
    REVEAL,
    STATEMENT,
    STATEMENT_TYPE,
    asked_with_evidence,
    document,
    pool_of,
    rendered,
    rules_of,
    scores,
    statement,
)
from palimpsest.certificate.complete import Planned, planned, require_everybody, require_once
from palimpsest.certificate.judge import MAX_ROWS, differences, read_table, table_rows, verdicts
from palimpsest.certificate.signature import check_envelope, signer_key
from palimpsest.errors import BundleError
from palimpsest.facts.names import shown
from palimpsest.facts.sealed import Commitment, verify
from palimpsest.run.store import (
    ORIGIN,
    Chain,
    canonical,
    digest,
    safe_name,
    seal_problems,
    verify_chain,
)
from palimpsest.run.terms import CREATION, FILES, term

MAX_TEXT_BYTES = 32 * 2**20
"""Largest JSON member."""
MAX_CELLS = 10_000


class Evidence:
    """A bundle under examination: what each check learned is there for the next."""

    def __init__(self, data: bytes, public: bytes | None) -> None:
        self.data = data
        self.public = public
        self.members: dict[str, bytes] = {}
        self.statement: dict[str, Any] = {}
        self.chain: Chain
        self.asked: Planned
        self.cells: tuple[str, ...] = ()
        self.commitment = ""
        self.journals: dict[str, Chain] = {}
        self.summaries: dict[str, dict[str, Any]] = {}

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Every check with its name."""
        yield "archive", self.archive
        yield "digests", self.digests
        yield "signature", self.signature
        yield "terms", self.terms
        yield "rules", self.rules
        yield "cells", self.planned
        yield "order", self.order
        yield "seal", self.seal
        yield "scores", self.scores
        yield "verdicts", self.verdicts
        yield "statement", self.said

    # -- the container -----------------------------------------------------------------------

    def archive(self) -> str:
        self.members = unpack(self.data)
        for name, data in self.members.items():
            if not name.endswith(".parquet") and len(data) > MAX_TEXT_BYTES:
                raise BundleError(f"{name}: {len(data)} bytes; expected at most {MAX_TEXT_BYTES}")
        return (
            f"{len(self.members)} files, each once and in order, packed in the only way that gives "
            "these bytes"
        )

    def digests(self) -> str:
        found = document(self.members, STATEMENT)
        if not isinstance(found, dict) or not isinstance(found.get("predicate"), dict):
            raise BundleError(f"{STATEMENT}: not an in-toto statement")
        kind = (found.get("_type"), found.get("predicateType"))
        if kind != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise BundleError(f"{STATEMENT}: is about {kind}; expected a Palimpsest verdict")
        listed = {}
        for one in found["subject"] if isinstance(found.get("subject"), list) else []:
            try:
                listed[str(one["name"])] = "sha256:" + one["digest"]["sha256"]
            except (KeyError, TypeError) as error:
                raise BundleError(f"{STATEMENT}: a subject without name and sha256") from error
        there = {n: digest(d) for n, d in self.members.items() if n not in (STATEMENT, ENVELOPE)}
        for name in sorted(listed.keys() | there.keys()):
            if name not in there:
                raise BundleError(f"{name} is missing; the statement lists it")
            if name not in listed:
                raise BundleError(f"{name} was added; the statement does not list it")
            if listed[name] != there[name]:
                raise BundleError(f"{name}: digest {there[name]}; expected {listed[name]}")
        self.statement = found
        return f"all {len(there)} files have the SHA-256 that the statement lists, none is missing"

    def signature(self) -> str:
        named = self.statement["predicate"].get("signer")
        if named is None and ENVELOPE not in self.members:
            if self.public is not None:
                raise BundleError(
                    f"the bundle is not signed; expected a signature by key {digest(self.public)}"
                )
            return "unsigned: nothing here says who made the bundle"
        public = signer_key(named)
        envelope = document(self.members, ENVELOPE)
        check_envelope(self.members[ENVELOPE], envelope, self.members[STATEMENT], public)
        if self.public is None:
            return (
                f"valid by key {digest(public)}, which the bundle itself brings along; give the "
                "maker's public key, got elsewhere, to learn whether it is theirs"
            )
        if public != self.public:
            raise BundleError(
                f"signed by key {digest(public)}; expected a signature by {digest(self.public)}"
            )
        return f"valid by the key you gave, {digest(public)}"

    # -- what was fixed before the results ---------------------------------------------------

    def terms(self) -> str:
        for name in FIXED:
            if name not in self.members:
                raise BundleError(f"{name} is missing; expected it in the bundle")
        self.chain = verify_chain(self.members["chain.jsonl"], ORIGIN)
        begun = tuple(entry.event for entry in self.chain.entries[: len(CREATION)])
        again = [e.event for e in self.chain.entries[len(CREATION) :] if e.event in CREATION]
        if begun != CREATION or again:
            raise BundleError(
                f"chain.jsonl: begins with {begun}, later {again}; expected {CREATION}, once each"
            )
        for name in FILES:
            expected = term(self.chain, name.removesuffix(".json")).get("file")
            if digest(self.members[name]) != expected:
                raise BundleError(f"{name}: changed after the chain recorded it as {expected}")
        environment = document(self.members, "environment.json")
        fork = environment.get("fork_of")
        if term(self.chain, "plan").get("format") != 1:
            raise BundleError("chain.jsonl: a format this version does not read")
        if term(self.chain, "environment").get("fork_of") != fork:
            raise BundleError("environment.json and chain.jsonl differ in what was forked")
        told = "plan, rules, cells and seal were fixed in this order, in an unbroken chain"
        if fork is not None:
            told += (
                f"; ATTENTION: the run is a fork of {_named(fork)}, whose results may have been "
                "known when these terms were chosen"
            )
        return told

    def rules(self) -> str:
        stored = document(self.members, "rules.json")
        recorded, plan = term(self.chain, "rules").get("hash"), document(self.members, "plan.json")
        if not isinstance(stored, dict) or set(stored) != {"hash", "rules"}:
            raise BundleError("rules.json: expected the rules and their hash")
        found = digest(canonical(stored["rules"]))
        if not found == stored["hash"] == recorded:
            raise BundleError(f"rules.json: hash to {found}; the chain recorded {recorded}")
        # As text: 1, 1.0 and true are equal to Python.
        if not isinstance(plan, dict) or digest(canonical(plan.get("rules"))) != found:
            raise BundleError("plan.json and rules.json differ in the rules")
        rules_of(self.members)
        return f"every threshold is as fixed before the first result ({found})"

    def planned(self) -> str:
        recorded = term(self.chain, "cells").get("cells")
        self.asked = planned(document(self.members, "plan.json"), MAX_CELLS)
        if recorded != list(self.asked.cells):
            raise BundleError(
                f"the chain recorded other cells than the {len(self.asked.cells)} of the plan"
            )
        for cell_id in self.asked.cells:
            safe_name(cell_id, "cell id")
        expected = {*FIXED, STATEMENT}
        expected |= {f"cells/{cell_id}/{name}" for cell_id in self.asked.cells for name in CELL}
        for cell_id in self.asked.cells:
            if asked_with_evidence(self.members, cell_id):
                expected.add(f"cells/{cell_id}/{HEADROOM}")
        for name in sorted(expected ^ (self.members.keys() - {REVEAL, ENVELOPE})):
            where = "missing" if name in expected else "not part of a certificate"
            raise BundleError(f"{name} is {where}; expected all files of all planned cells")
        self.cells = self.asked.cells
        return f"{len(self.cells)} of {len(self.cells)} planned cells are here, and no other"

    # -- what happened in the cells ----------------------------------------------------------

    def order(self) -> str:
        genesis = self.chain.entries[CREATION.index("seal")].digest
        for cell_id in self.cells:
            name = f"cells/{cell_id}/chain.jsonl"
            journal = verify_chain(self.members[name], genesis, name)
            self.summaries[cell_id] = self._summary(cell_id, journal)
            self.journals[cell_id] = journal
        steps = sum(len(journal.entries) - 2 for journal in self.journals.values())
        return (
            f"every cell's journal begins from the digest of the fixed terms ({genesis}) and is "
            f"unbroken: rules and seal came before all {steps} recorded steps"
        )

    def _summary(self, cell_id: str, journal: Chain) -> dict[str, Any]:
        name = f"cells/{cell_id}/chain.jsonl"
        entries = journal.entries
        events = [entry.event for entry in entries]
        inner = set(events[1:-1])
        if len(events) < 3 or events[0] != "started" or events[-1] != "finished":
            raise BundleError(f"{name}: the cell is not finished; expected a finished cell")
        if inner - {"step", "seal opened"} or entries[0].data != {"cell": cell_id}:
            raise BundleError(
                f"{name}: events {sorted(inner)} of {entries[0].data}; expected steps"
            )
        steps = [entry.data.get("step") for entry in entries if entry.event == "step"]
        if len(set(map(str, steps))) != len(steps):
            raise BundleError(f"{name}: a step was recorded twice; expected each step once")
        file = f"cells/{cell_id}/cell.json"
        summary = document(self.members, file)
        if entries[-1].data != {"cell.json": digest(self.members[file])}:
            raise BundleError(f"{file}: is not the one that the journal ends with")
        tables = {n: digest(self.members[f"cells/{cell_id}/{n}"]) for n in self._tables(cell_id)}
        _require_shape(file, summary)
        if summary["cell"] != cell_id or summary["journal"] != entries[-2].digest:
            raise BundleError(f"{file}: belongs to another cell or journal")
        if {n: summary["artifacts"].get(n) for n in tables} != tables:
            raise BundleError(f"{file}: records other tables than the ones in the bundle")
        return dict(summary)

    def _tables(self, cell_id: str) -> tuple[str, ...]:
        also = (HEADROOM,) if asked_with_evidence(self.members, cell_id) else ()
        return (*_TABLES, *also)

    def seal(self) -> str:
        sealed = document(self.members, "seal.json")
        text = sealed.get("commitment") if isinstance(sealed, dict) else None
        commitment = Commitment.parse(str(text))
        if text != term(self.chain, "seal").get("commitment"):
            raise BundleError("seal.json and chain.jsonl differ in the commitment")
        if self.asked.seal not in ("", text):
            raise BundleError("seal.json holds another commitment than the plan")
        self.commitment = str(text)
        for cell_id in self.cells:
            self._opening(cell_id)
        if not self.asked.panel:
            if REVEAL in self.members:
                raise BundleError(f"{REVEAL}: the audit pool was never opened; expected no reveal")
            if self.asked.audit:
                return f"the held-out prompts were fixed as {text}; they are not in the bundle"
            return f"the audit pool ({text}) was never opened"
        pool, nonce = pool_of(document(self.members, REVEAL))
        if commitment.nonce not in ("", nonce):
            raise BundleError(f"{REVEAL}: another nonce than the commitment's")
        verify(pool, commitment, nonce)
        told = (
            "the revealed audit pool is the one committed to, opened once in each cell, after "
            "every other step"
        )
        return told if self.asked.seal else f"{told} (the built-in pool, which is public)"

    def _opening(self, cell_id: str) -> None:
        journal, name = self.journals[cell_id], f"cells/{cell_id}/chain.jsonl"
        problems = seal_problems(journal, self.commitment)
        if problems:
            raise BundleError(problems[0])
        opened = [entry for entry in journal.entries if entry.event == "seal opened"]
        if len(opened) != int(self.asked.panel):
            raise BundleError(
                f"{name}: the audit pool was opened {len(opened)} times; the plan says "
                f"{int(self.asked.panel)}"
            )
        for opening in opened:
            follow = [(entry.event, entry.data.get("step")) for entry in journal.entries]
            if follow[opening.n + 1 :] != [("step", opening.data.get("step")), ("finished", None)]:
                raise BundleError(
                    f"{name}: the audit pool was opened before other steps; expected it last"
                )
            digests = self.summaries[cell_id]["digests"]
            models = opening.data.get("models")
            if not isinstance(models, dict) or not models:
                raise BundleError(f"{name}: the opening of the seal names no models")
            for model, found in models.items():
                if digests.get(model) != found:
                    raise BundleError(f"{name}: the pool was opened for another {shown(model)}")

    def scores(self) -> str:
        tables = [
            f"cells/{cell_id}/{name}" for cell_id in self.cells for name in self._tables(cell_id)
        ]
        rows = sum(table_rows(self.members[name], name) for name in tables)
        if rows > MAX_ROWS:
            raise BundleError(f"{rows} rows of scores; expected at most {MAX_ROWS}")
        pool = pool_of(document(self.members, REVEAL))[0] if REVEAL in self.members else None
        for cell_id in self.cells:
            name = f"cells/{cell_id}/items.parquet"
            items = read_table(self.members[name], name)
            summary, opening = self.summaries[cell_id], self.journals[cell_id].find("seal opened")
            require_everybody(cell_id, items, summary, self.asked)
            opened = {} if opening is None else opening.data["models"]
            require_once(cell_id, items, summary["facts"], opened, pool)
        told = (
            f"{rows} rows of scores; every planned candidate is scored or listed as failed, and "
            "nobody else is"
        )
        return told if pool is None else f"{told}; the audit pool was scored once, as revealed"

    # -- what follows from it ----------------------------------------------------------------

    def verdicts(self) -> str:
        by_cell = {cell_id: scores(self.members, cell_id) for cell_id in self.cells}
        for cell_id, verdict in verdicts(rules_of(self.members), by_cell).items():
            name = f"cells/{cell_id}/verdict.json"
            recomputed = document({name: rendered(verdict)}, name)
            found = differences(document(self.members, name), recomputed)
            if found:
                raise BundleError(f"{name}: {found[0][:300]}")
        return (
            f"{len(by_cell)} of {len(by_cell)} verdicts, recomputed, follow from the scores under "
            "the frozen rules"
        )

    def said(self) -> str:
        named = self.statement["predicate"].get("signer")
        if statement(self.members, named) != self.members[STATEMENT]:
            raise BundleError(f"{STATEMENT}: says something else than the files in the bundle")
        return "the in-toto statement says what the files say, byte for byte"


_TABLES = ("items.parquet", "curves.parquet")
_SHAPE: dict[str, type] = {
    "cell": str,
    "journal": str,
    "artifacts": dict,
    "family": str,
    "candidates": list,
    "failed": dict,
    "digests": dict,
    "facts": dict,
}


def _require_shape(name: str, summary: Any) -> None:
    if not isinstance(summary, dict):
        raise BundleError(f"{name}: expected the summary of a cell")
    for key, kind in _SHAPE.items():
        if not isinstance(summary.get(key), kind):
            raise BundleError(f"{name}: {key} is missing or not a {kind.__name__}")
    if not all(isinstance(one, str) for one in (*summary["candidates"], *summary["failed"])):
        raise BundleError(f"{name}: candidates are not all named")


def _named(fork: Any) -> str:
    return shown(str(fork.get("run"))) if isinstance(fork, dict) else "another run"
