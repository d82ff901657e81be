"""The checks of a bundle, in order; each returns in words what holds, or raises.

Every check may rely on those before it. Nothing a bundle says is believed because another part of
the same bundle says so, if it can be computed instead.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.certificate import bundle, planned
from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import ENVELOPE, FIXED, REVEAL, STATEMENT, SUMMARY
from palimpsest.certificate.planned import Listed, Planned
from palimpsest.certificate.signature import check_envelope, signer_key
from palimpsest.config.plan import cell_id as cell_name
from palimpsest.errors import BundleError
from palimpsest.facts.rows import shown
from palimpsest.facts.sealed import check_commitment, verify
from palimpsest.report.documents import run_document, verdict_document
from palimpsest.report.results import RunResults
from palimpsest.run.cell import CELL
from palimpsest.run.chain import Entry, chain_bytes
from palimpsest.run.disk import canonical, digest, parse_sealed, safe_name
from palimpsest.run.store import RECORD, Terms
from palimpsest.run.tables import Table
from palimpsest.stats.models import Model, models_from_json
from palimpsest.stats.rules import Rules

MAX_TEXT_BYTES = 32 * 2**20
"""Largest JSON member."""
MANIFEST = ("step", "kind", "key", "files", "needs", "terms", "origin")
"""What a cell's record repeats of a step's manifest."""


class Evidence:
    """A bundle under examination: what one check established is there for the next."""

    terms_fixed: Terms
    rules_fixed: Rules
    entries: Sequence[Entry]
    lists: Sequence[Sequence[Listed]]
    asked: Planned
    results: RunResults

    def __init__(self, data: bytes, public: bytes | None) -> None:
        self.data = data
        self.public = public
        self.members: dict[str, bytes] = {}
        self.stated: dict[str, Any] = {}
        self.signer: str | None = None
        self.summaries: dict[str, dict[str, Any]] = {}
        self.records: dict[str, dict[str, Model]] = {}
        self.tables: dict[str, dict[str, Table]] = {}

    def document(self, name: str) -> Any:
        return bundle.document(self.members, name)

    # -- the container -----------------------------------------------------------------------

    def archive(self) -> str:
        self.members = unpack(self.data)
        for name, data in self.members.items():
            if not name.endswith(".parquet") and len(data) > MAX_TEXT_BYTES:
                raise BundleError(f"{name}: {len(data)} bytes; expected at most {MAX_TEXT_BYTES}")
        return f"{len(self.members)} files, each once, packed in the one way that gives these bytes"

    def digests(self) -> str:
        stated = self.document(STATEMENT)
        kinds = {"_type": bundle.STATEMENT_TYPE, "predicateType": bundle.PREDICATE_TYPE}
        if {key: stated[key] for key in kinds} != kinds:
            raise BundleError(f"{STATEMENT}: of another type or version; expected {kinds}")
        listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
        there = {n: digest(d) for n, d in self.members.items() if n not in (STATEMENT, ENVELOPE)}
        for name in sorted(listed.keys() | there.keys()):
            stored, expected = there.get(name, "no such file"), listed.get(name, "no such file")
            if stored != expected:
                raise BundleError(f"{name}: {stored}; the statement lists {expected}")
        self.stated = stated
        return f"all {len(there)} files have the SHA-256 that the statement lists, none is missing"

    def signature(self) -> str:
        signed_by = self.stated["predicate"].get("signer")
        expected = "" if self.public is None else digest(self.public)
        if signed_by is None and ENVELOPE not in self.members:
            if expected:
                raise BundleError(f"the bundle is not signed; expected a signature by {expected}")
            return "nothing here says who made the bundle"
        public = signer_key(signed_by)
        envelope = self.document(ENVELOPE)
        check_envelope(self.members[ENVELOPE], envelope, self.members[STATEMENT], public)
        if expected not in ("", digest(public)):
            raise BundleError(f"signed by key {digest(public)}; expected {expected}")
        self.signer = digest(public)
        if expected:
            return f"valid by the key you gave, {expected}"
        return (
            f"signed by a key that nobody named, {self.signer}, which is in the bundle itself; "
            "give the maker's public key, obtained elsewhere, with --key"
        )

    # -- what was fixed before the results ---------------------------------------------------

    def terms(self) -> str:
        for name in FIXED:
            if name not in self.members:
                raise BundleError(f"{name} is missing; expected it in the bundle")
        self.terms_fixed = bundle.read_terms(self.members)
        self.entries = bundle.read_rosters(self.members, self.terms_fixed)
        kind = self.terms_fixed.kind
        self.lists = [tuple(planned.read_list(kind, e.data["models"])) for e in self.entries]
        drawn = planned.check_draw(self.terms_fixed, self.lists)
        return f"configuration, rules, cells and seal were fixed before the first list{drawn}"

    def rules(self) -> str:
        self.rules_fixed = planned.check_rules(self.terms_fixed)
        fixed = f"fixed before the first result ({self.terms_fixed.rules_hash})"
        if custom := describe_rules(self.rules_fixed):
            return f"CUSTOM RULES: {custom}; {fixed}"
        return f"every rule has its default, {fixed}"

    def rosters(self) -> str:
        return planned.describe_lists(self.lists)

    def cells(self) -> str:
        self.asked = planned.plan_cells(self.terms_fixed, self.lists)
        cells = self.asked.cells
        expected = {*FIXED, SUMMARY, STATEMENT} | ({REVEAL} if self.asked.sealed else set())
        for cell_id in cells:
            summary = self.document(f"cells/{safe_name(cell_id, 'cell id')}/{CELL}")
            names = (CELL, *(f"{name}.parquet" for name in bundle.tables_of(summary)))
            expected |= {f"cells/{cell_id}/{name}" for name in names}
        for name in sorted(expected ^ (self.members.keys() - {ENVELOPE})):
            where = "missing" if name in expected else "not part of a certificate"
            raise BundleError(f"{name} is {where}; expected all files of all planned cells")
        return f"{len(cells)} of {len(cells)} planned cells are here, and no other"

    # -- what happened in the cells ----------------------------------------------------------

    def record(self) -> str:
        events: list[tuple[str, Any]] = [
            ("roster", {"models": entry.data["models"], "digest": entry.digest})
            for entry in self.entries
        ]
        for cell_id in self.asked.cells:
            summary = self.summaries[cell_id] = self._cell(cell_id)
            events += [("opened", summary["opening"])] if summary["opening"] else []
            events += [("step", {"cell": cell_id} | step) for step in summary["steps"]]
            events.append(("cell", {"cell": cell_id, "digest": summary["digest"]}))
        if self.members[RECORD] != chain_bytes(events, self.terms_fixed.digest):
            raise BundleError(f"{RECORD}: not the record that follows from terms, lists and cells")
        steps = [data for event, data in events if event == "step"]
        words = f"it follows from the terms and, in plan order, {len(steps)} steps, each under one "
        words += "of the lists"
        if taken := bundle.origins(self.summaries.values()):
            count = sum(step["origin"] is not None for step in steps)
            words += (
                f"; {count} steps were taken over from another run (--reuse), where they were made "
                f"under the list {', '.join(taken[:3])}"
            )
        return words

    def _cell(self, cell_id: str) -> dict[str, Any]:
        """Return a cell's record, whose tables and steps were made under lists of these terms."""
        name = f"cells/{cell_id}/{CELL}"
        summary = parse_sealed(self.members[name], name)
        self._require_listed(name, summary)
        if summary["cell"] != cell_id:
            raise BundleError(f"{name}: belongs to another cell")
        for table, data in bundle.table_members(self.members, cell_id).items():
            if summary["artifacts"].get(f"{table}.parquet") != digest(data):
                raise BundleError(f"{name}: records another table {table} than the bundle's")
        opening = summary["opening"] or {}
        digests: dict[str, str] = {}
        for step in summary["steps"]:
            where = f"{name}: step {shown(step['step'])}"
            self._require_listed(where, step)
            manifest = {key: step[key] for key in MANIFEST} | {"cell": cell_id}
            manifest |= {"opening": opening if opening.get("step") == step["step"] else None}
            if step["step"] in digests or step["digest"] != digest(canonical(manifest)):
                raise BundleError(f"{where} is there twice, or is not what its manifest says")
            needs = step["needs"].items() if step["origin"] is None else ()
            if any(digests.get(need) != made for need, made in needs):
                raise BundleError(f"{where} comes before a step it needs")
            digests[step["step"]] = step["digest"]
        return summary

    def _require_listed(self, where: str, made: Mapping[str, Any]) -> None:
        if made["terms"] not in [entry.digest for entry in self.entries]:
            raise BundleError(f"{where}: made under other terms or another list than these")

    def models(self) -> str:
        rosters = {entry.digest for entry in self.entries}
        for cell_id, summary in self.summaries.items():
            records = summary["models"]
            models = models_from_json(records) if isinstance(records, list) else {}
            if len(models) != len(records):
                raise BundleError(f"cell {cell_id}: expected a list of models, each name once")
            for model in models.values():
                if model.roster not in rosters:
                    raise BundleError(f"cell {cell_id}: {shown(model.name)} is under no list here")
            planned.require_models(cell_id, models, self.asked, self.rules_fixed)
            if canonical(summary["beacon"]) != canonical(self.asked.draws[cell_id]):
                raise BundleError(f"cell {cell_id}: not measured by the schedule that was drawn")
            named = cell_name(summary["model"], summary["seed"])
            if self.terms_fixed.kind != "audit" and named != cell_id:
                raise BundleError(f"cell {cell_id}: its record is of {shown(named)}")
            self.records[cell_id] = models
        words = "every planned model is in its cell, in its role, and no other"
        return words + planned.describe_recipes(next(iter(self.records.values())))

    def seal(self) -> str:
        sealed = self.terms_fixed.seal
        text = check_commitment(sealed["commitment"])
        own = self.terms_fixed.config.get("seal") if self.terms_fixed.kind == "study" else ""
        if own and own != text:
            raise BundleError("the seal is another one than the configuration names")
        for cell_id in self.summaries:
            self._opening(cell_id, text)
        if self.terms_fixed.kind != "study":
            return f"the held-out questions were fixed as {text}; they are not in the bundle"
        if not self.asked.sealed:
            return f"the sealed pool ({text}) was never opened"
        verify(bundle.pool_of(self.document(REVEAL)), text)
        words = "the revealed pool is the one committed to, opened once per cell, in its last step"
        return words if own else f"{words} (the built-in pool, which is public)"

    def _opening(self, cell_id: str, commitment: str) -> None:
        """Raise BundleError unless the sealed pool was opened as planned, for the cell's models."""
        name, summary = f"cells/{cell_id}/{CELL}", self.summaries[cell_id]
        opening = summary["opening"]
        if (opening is None) == self.asked.sealed:
            opened = "not opened" if opening is None else "opened"
            raise BundleError(f"{name}: the sealed pool was {opened}; the terms say otherwise")
        if opening is None:
            return
        if not parse_sealed(canonical(opening) + b"\n", f"{name}: opening")["models"]:
            raise BundleError(f"{name}: the sealed pool was opened for no models")
        self._require_listed(f"{name}: opening", opening)
        expected = {"cell": cell_id, "commitment": commitment}
        expected |= {"step": summary["steps"][-1]["step"] if summary["steps"] else ""}
        if {key: opening.get(key) for key in expected} != expected:
            raise BundleError(f"{name}: the sealed pool was not opened as {expected}")
        for model, weights in opening["models"].items():
            known = self.records[cell_id].get(model)
            if known is None or known.digest != weights:
                raise BundleError(f"{name}: the sealed pool was opened for another {shown(model)}")

    def scores(self) -> str:
        pool = bundle.pool_of(self.document(REVEAL)) if self.asked.sealed else None
        rows = 0
        for cell_id, summary in self.summaries.items():
            tables = self.tables[cell_id] = bundle.read_tables(self.members, cell_id)
            rows += sum(len(table["model"]) for table in tables.values())
            if rows > bundle.MAX_ROWS:
                raise BundleError(f"{rows} rows of scores; expected at most {bundle.MAX_ROWS}")
            records = self.records[cell_id]
            planned.require_scores(cell_id, summary, tables, records, self.asked, self.rules_fixed)
            opened = summary["opening"]["models"] if summary["opening"] else {}
            planned.require_once(cell_id, tables["items"], summary["facts"], opened, pool)
        words = f"{rows} rows of scores; every listed model is scored or failed, and no other"
        return words if pool is None else f"{words}; the sealed pool was scored once, as revealed"

    # -- what follows from it ----------------------------------------------------------------

    def verdicts(self) -> str:
        cells = tuple(
            bundle.judge(cell_id, summary, self.tables[cell_id], self.terms_fixed, self.rules_fixed)
            for cell_id, summary in self.summaries.items()
        )
        count = len(self.lists)
        self.results = RunResults(Path(), self.terms_fixed, self.rules_fixed, count, cells, ())
        stored = self.document(SUMMARY)
        for cell, verdict in self.results.judged:
            expected = plain(bundle.without_prose(verdict_document(verdict)))
            mine = stored if self.terms_fixed.kind == "audit" else stored["cells"][cell.id]
            _require_same(SUMMARY, {key: mine[key] for key in expected}, expected)
        return f"all {len(self.results.judged)}, recomputed, follow from the scores by these rules"

    def summary(self) -> str:
        _require_same(
            SUMMARY, self.document(SUMMARY), plain(bundle.without_prose(run_document(self.results)))
        )
        return f"{SUMMARY} says what was recomputed, and nothing else"

    def statement(self) -> str:
        signed_by = self.stated["predicate"].get("signer")
        expected = bundle.statement(self.members, self.results, signed_by)
        _require_same(STATEMENT, self.stated, json.loads(expected))
        return "the in-toto statement says what the files say"


def describe_rules(rules: Rules) -> str:
    """Return the rules that differ from the default in words; empty when none does."""
    parts = [
        f"{name} {json.dumps(own)} (default {json.dumps(default)})"
        for name, (default, own) in rules.differences().items()
    ]
    return ", ".join(parts)


def plain(value: object) -> Any:
    """Return a value as it is read back from a bundle's JSON."""
    return json.loads(canonical(value))


def differences(stored: Any, expected: Any, where: str = "") -> list[str]:
    """Return where two JSON values differ: numbers by more than rounding, all else at all.

    Libraries add up in different orders on different machines, so the last digits of a mean may
    differ there; a decision may not.
    """
    parts: list[tuple[str, Any, Any]] | None = None
    if isinstance(stored, dict) and isinstance(expected, dict) and stored.keys() == expected.keys():
        parts = [(f"{where}.{key}".lstrip("."), stored[key], expected[key]) for key in expected]
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        parts = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(stored, expected))]
    if parts is not None:
        return [line for at, mine, theirs in parts for line in differences(mine, theirs, at)]
    if type(stored) is float and type(expected) is float:
        same = math.isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12)
    else:
        same = type(stored) is type(expected) and stored == expected
    return [] if same else [f"{where}: recorded {stored!r}, recomputed {expected!r}"]


def _require_same(name: str, stored: Any, expected: Any) -> None:
    differing = differences(stored, expected)
    if differing:
        raise BundleError(f"{name}: {differing[0][:300]}")
