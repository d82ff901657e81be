"""The checks of a bundle, in order; each returns in words what holds, or raises.

Every check may rely on those before it. Nothing a bundle says is believed because another part of
the same bundle says so, if it can be computed instead.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from palimpsest.certificate import planned
from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import (
    ENVELOPE,
    FIXED,
    PREDICATE_TYPE,
    REVEAL,
    STATEMENT,
    STATEMENT_TYPE,
    SUMMARY,
    Bundle,
    cell_file,
    origins,
    statement,
    table_files,
    without_prose,
)
from palimpsest.certificate.planned import Planned
from palimpsest.certificate.signature import check_envelope, signer_key
from palimpsest.config.plan import cell_id as cell_name
from palimpsest.errors import BundleError
from palimpsest.facts.sealed import check_commitment, verify
from palimpsest.report.documents import run_document, verdict_document
from palimpsest.run.files import canonical, digest, parse_digested, safe_name
from palimpsest.stats.models import Model, models_from_json
from palimpsest.stats.rules import Rules
from palimpsest.text import shown

MAX_TEXT_BYTES = 32 * 2**20
"""Largest JSON member."""
MANIFEST = ("step", "kind", "key", "files", "needs", "roster", "origin")
"""What a cell's record repeats of a step's manifest."""


class Evidence:
    """A bundle under examination: what one check established is there for the next."""

    bundle: Bundle
    stated: dict[str, Any]
    asked: Planned

    def __init__(self, data: bytes, public: bytes | None) -> None:
        self.data = data
        self.public = public
        self.signer: str | None = None
        self.models_of: dict[str, dict[str, Model]] = {}

    # -- the container -----------------------------------------------------------------------

    def archive(self) -> str:
        self.bundle = Bundle(unpack(self.data))
        for name, data in self.bundle.members.items():
            if not name.endswith(".parquet") and len(data) > MAX_TEXT_BYTES:
                raise BundleError(f"{name}: {len(data)} bytes; expected at most {MAX_TEXT_BYTES}")
        count = len(self.bundle.members)
        return f"{count} files, each once, packed in the one way that gives these bytes"

    def digests(self) -> str:
        stated = self.stated = self.bundle.document(STATEMENT)
        kinds = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}
        if {key: stated[key] for key in kinds} != kinds:
            raise BundleError(f"{STATEMENT}: of another type or version; expected {kinds}")
        listed = {file["name"]: "sha256:" + file["digest"]["sha256"] for file in stated["subject"]}
        members = self.bundle.members.items()
        there = {name: digest(data) for name, data in members if name not in (STATEMENT, ENVELOPE)}
        for name in sorted(listed.keys() | there.keys()):
            stored, expected = there.get(name, "no such file"), listed.get(name, "no such file")
            if stored != expected:
                raise BundleError(f"{name}: {stored}; the statement lists {expected}")
        return f"all {len(there)} files have the SHA-256 that the statement lists, none is missing"

    def signature(self) -> str:
        signed_by, members = self.stated["predicate"].get("signer"), self.bundle.members
        expected = "" if self.public is None else digest(self.public)
        if signed_by is None and ENVELOPE not in members:
            if expected:
                raise BundleError(f"the bundle is not signed; expected a signature by {expected}")
            return "nothing here says who made the bundle"
        public = signer_key(signed_by)
        envelope = self.bundle.document(ENVELOPE)
        check_envelope(members[ENVELOPE], envelope, members[STATEMENT], public)
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
            if name not in self.bundle.members:
                raise BundleError(f"{name} is missing; expected it in the bundle")
        drawn = planned.check_draw(self.bundle.terms, self.bundle.lists)
        return f"configuration, rules, cells and seal were fixed before the first list{drawn}"

    def rules(self) -> str:
        planned.check_rules(self.bundle)
        fixed = f"fixed before the first result ({self.bundle.terms.rules_hash})"
        if custom := describe_rules(self.bundle.rules):
            return f"CUSTOM RULES: {custom}; {fixed}"
        return f"every rule has its default, {fixed}"

    def rosters(self) -> str:
        return planned.describe_lists(self.bundle)

    def cells(self) -> str:
        bundle = self.bundle
        self.asked = planned.plan_cells(bundle.terms, bundle.lists[-1])
        expected = {*FIXED, SUMMARY, STATEMENT} | ({REVEAL} if self.asked.sealed else set())
        for cell_id in bundle.terms.cells:
            safe_name(cell_id, "cell id")
            summary = bundle.document(cell_file(cell_id))
            expected |= {cell_file(cell_id), *table_files(cell_id, summary).values()}
        for name in sorted(expected ^ (bundle.members.keys() - {ENVELOPE})):
            where = "missing" if name in expected else "not part of a certificate"
            raise BundleError(f"{name} is {where}; expected all files of all planned cells")
        count = len(bundle.terms.cells)
        return f"{count} of {count} planned cells are here, and no other"

    # -- what happened in the cells ----------------------------------------------------------

    def record(self) -> str:
        summaries = self.bundle.summaries
        for cell_id, summary in summaries.items():
            self._check_cell(cell_id, summary)
        steps = [step for summary in summaries.values() for step in summary["steps"]]
        words = f"it follows from the terms and, in plan order, {len(steps)} steps, each under one "
        words += "of the lists"
        if taken := origins(summaries.values()):
            count = sum(step["origin"] is not None for step in steps)
            words += (
                f"; {count} steps were taken over from another run (--reuse), where they were made "
                f"under the list {', '.join(taken[:3])}"
            )
        return words

    def _check_cell(self, cell_id: str, summary: Mapping[str, Any]) -> None:
        """Raise BundleError unless a cell's tables and steps were made under lists of its terms."""
        name, members = cell_file(cell_id), self.bundle.members
        parse_digested(members[name], name)
        self._require_listed(name, summary)
        if summary["cell"] != cell_id:
            raise BundleError(f"{name}: belongs to another cell")
        for table, file in table_files(cell_id, summary).items():
            if summary["artifacts"].get(f"{table}.parquet") != digest(members[file]):
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

    def _require_listed(self, where: str, made: Mapping[str, Any]) -> None:
        if made["roster"] not in [roster.digest for roster in self.bundle.rosters]:
            raise BundleError(f"{where}: made under other terms or another list than these")

    def models(self) -> str:
        rosters = {roster.digest for roster in self.bundle.rosters}
        for cell_id, summary in self.bundle.summaries.items():
            records = summary["models"]
            models = models_from_json(records) if isinstance(records, list) else {}
            if len(models) != len(records):
                raise BundleError(f"cell {cell_id}: expected a list of models, each name once")
            for model in models.values():
                if model.roster not in rosters:
                    raise BundleError(f"cell {cell_id}: {shown(model.name)} is under no list here")
            planned.require_models(cell_id, models, self.asked, self.bundle.rules)
            if canonical(summary["beacon"]) != canonical(self.asked.draws[cell_id]):
                raise BundleError(f"cell {cell_id}: not measured by the schedule that was drawn")
            named = cell_name(summary["model"], summary["seed"])
            if self.bundle.terms.kind != "audit" and named != cell_id:
                raise BundleError(f"cell {cell_id}: its record is of {shown(named)}")
            self.models_of[cell_id] = models
        words = "every planned model is in its cell, in its role, and no other"
        return words + planned.describe_recipes(next(iter(self.models_of.values())))

    def seal(self) -> str:
        terms = self.bundle.terms
        text = check_commitment(terms.seal["commitment"])
        own = terms.config.get("seal") if terms.kind == "study" else ""
        if own and own != text:
            raise BundleError("the seal is another one than the configuration names")
        for cell_id, summary in self.bundle.summaries.items():
            self._check_opening(cell_id, summary, text)
        if terms.kind != "study":
            return f"the held-out questions were fixed as {text}; they are not in the bundle"
        if self.bundle.pool is None:
            return f"the sealed pool ({text}) was never opened"
        verify(self.bundle.pool, text)
        words = "the revealed pool is the one committed to, opened once per cell, in its last step"
        return words if own else f"{words} (the built-in pool, which is public)"

    def _check_opening(self, cell_id: str, summary: Mapping[str, Any], commitment: str) -> None:
        """Raise BundleError unless the sealed pool was opened as planned, for the cell's models."""
        name, opening = cell_file(cell_id), summary["opening"]
        if (opening is None) == self.asked.sealed:
            opened = "not opened" if opening is None else "opened"
            raise BundleError(f"{name}: the sealed pool was {opened}; the terms say otherwise")
        if opening is None:
            return
        if not parse_digested(canonical(opening) + b"\n", f"{name}: opening")["models"]:
            raise BundleError(f"{name}: the sealed pool was opened for no models")
        self._require_listed(f"{name}: opening", opening)
        expected = {"cell": cell_id, "commitment": commitment}
        expected |= {"step": summary["steps"][-1]["step"] if summary["steps"] else ""}
        if {key: opening.get(key) for key in expected} != expected:
            raise BundleError(f"{name}: the sealed pool was not opened as {expected}")
        for model, weights in opening["models"].items():
            known = self.models_of[cell_id].get(model)
            if known is None or known.digest != weights:
                raise BundleError(f"{name}: the sealed pool was opened for another {shown(model)}")

    def scores(self) -> str:
        bundle = self.bundle
        for cell_id, models in self.models_of.items():
            planned.require_scores(cell_id, bundle, models, self.asked)
            planned.require_once(cell_id, bundle)
        tables = [table for cell in bundle.tables.values() for table in cell.values()]
        rows = sum(len(table["model"]) for table in tables)
        words = f"{rows} rows of scores; every listed model is scored or failed, and no other"
        if bundle.pool is None:
            return words
        return f"{words}; the sealed pool was scored once, as revealed"

    # -- what follows from it ----------------------------------------------------------------

    def verdicts(self) -> str:
        results, stored = self.bundle.results, self.bundle.document(SUMMARY)
        for cell, verdict in results.judged:
            expected = plain(without_prose(verdict_document(verdict)))
            mine = stored if results.kind == "audit" else stored["cells"][cell.id]
            _require_same(SUMMARY, {key: mine[key] for key in expected}, expected)
        return f"all {len(results.judged)}, recomputed, follow from the scores by these rules"

    def summary(self) -> str:
        expected = plain(without_prose(run_document(self.bundle.results)))
        _require_same(SUMMARY, self.bundle.document(SUMMARY), expected)
        return f"{SUMMARY} says what was recomputed, and nothing else"

    def statement(self) -> str:
        signed_by = self.stated["predicate"].get("signer")
        _require_same(STATEMENT, self.stated, json.loads(statement(self.bundle, signed_by)))
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
