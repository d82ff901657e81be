"""The checks of a bundle, in order; each returns in words what holds, or raises.

Every check may rely on those before it. Nothing a bundle says is believed because another part of
the same bundle says so, if it can be computed instead.
"""

import json
from typing import Any

from palimpsest.certificate import bundle, complete
from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import CELL, ENVELOPE, FIXED, REVEAL, STATEMENT, VERDICT
from palimpsest.certificate.judge import MAX_ROWS, count_rows, differences, read_tables
from palimpsest.certificate.signature import check_envelope, signer_key
from palimpsest.errors import BundleError
from palimpsest.facts.rows import shown
from palimpsest.facts.sealed import check_commitment, verify
from palimpsest.run.chain import chain_bytes
from palimpsest.run.store import canonical, digest, parse_signed, safe_name, terms_digest
from palimpsest.run.terms import FILES, FORMAT, file_term
from palimpsest.stats import beacon
from palimpsest.stats.verdict import Verdict

MAX_TEXT_BYTES = 32 * 2**20
"""Largest JSON member."""
MAX_CELLS = 10_000
CHECKS: tuple[str, ...] = ("archive", "digests", "signature", "terms", "rules", "cells", "record")
CHECKS += ("models", "seal", "scores", "verdicts", "summary", "statement")
"""In order; each is a method of ``Evidence``."""


class Evidence:
    """A bundle under examination: what one check established is there for the next."""

    def __init__(self, data: bytes, public: bytes | None) -> None:
        self.data = data
        self.public = public
        self.members: dict[str, bytes] = {}
        self.stated: dict[str, Any] = {}
        self.signer: str | None = None
        self.terms_file: dict[str, Any] = {}
        self.terms_digest = ""
        self.asked: complete.Planned
        self.summaries: dict[str, dict[str, Any]] = {}
        self.judged: dict[str, Verdict | None] = {}

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
            f"valid by key {self.signer}, which is in the bundle itself; give the maker's public "
            "key, obtained elsewhere, to check that it is theirs"
        )

    # -- what was fixed before the results ---------------------------------------------------

    def terms(self) -> str:
        for name in FIXED:
            if name not in self.members:
                raise BundleError(f"{name} is missing; expected it in the bundle")
        self.terms_file = parse_signed(self.members["terms.json"], "terms.json")
        if self.terms_file["terms"]["format"] != FORMAT:
            raise BundleError(f"terms.json: not of format {FORMAT}, which this version reads")
        for name in FILES:
            if digest(self.members[name]) != file_term(self.terms_file, name):
                raise BundleError(f"{name}: not the file that terms.json fixed")
        self.terms_digest = terms_digest(self.terms_file)
        fork = self.document("environment.json").get("fork_of")
        if self.terms_file.get("fork_of") != fork:
            raise BundleError("environment.json and terms.json differ in what was forked")
        words = "plan, rules, cells and seal are those fixed before the first step"
        if fork is not None:
            words += f"; ATTENTION: the run is a fork of {shown(str(fork['run']))}, whose results "
            words += "may have been known when these terms were chosen"
        drawn = self.document("plan.json").get("beacon")
        if isinstance(drawn, dict):  # of an audit; a study's is bound to its cells alone
            words += f"; {beacon.checked(drawn, self.document('environment.json')['inputs'])}"
        return words

    def rules(self) -> str:
        stored, plan = self.document("rules.json"), self.document("plan.json")
        expected = digest(canonical(stored["rules"]))
        if stored["hash"] != expected:
            raise BundleError(f"rules.json: hash {stored['hash']}; expected {expected}")
        # As text: 1, 1.0 and true are equal to Python.
        if digest(canonical(plan["rules"])) != expected:
            raise BundleError("plan.json and rules.json differ in the rules")
        bundle.rules_of(self.members)
        return f"every threshold is as fixed before the first result ({expected})"

    def cells(self) -> str:
        self.asked = complete.planned(self.document("plan.json"), MAX_CELLS)
        cells = self.asked.cells
        if self.terms_file["terms"].get("cells") != list(cells):
            raise BundleError(f"terms.json lists other cells than the {len(cells)} of the plan")
        expected = {*FIXED, STATEMENT}
        expected |= {REVEAL} if self.asked.panel else set()
        expected |= {bundle.SUMMARY} if self.asked.summary else set()
        for cell_id in cells:
            summary = self.document(f"cells/{safe_name(cell_id, 'cell id')}/{CELL}")
            names = (CELL, VERDICT, *bundle.files_of(summary))
            expected |= {f"cells/{cell_id}/{name}" for name in names}
        for name in sorted(expected ^ (self.members.keys() - {ENVELOPE})):
            where = "missing" if name in expected else "not part of a certificate"
            raise BundleError(f"{name} is {where}; expected all files of all planned cells")
        return f"{len(cells)} of {len(cells)} planned cells are here, and no other"

    # -- what happened in the cells ----------------------------------------------------------

    def record(self) -> str:
        events: list[tuple[str, Any]] = [("terms", self.terms_file)]
        for cell_id in self.asked.cells:
            summary = self.summaries[cell_id] = self._cell(cell_id)
            events += [("opened", summary["opening"])] if summary["opening"] else []
            events += [("step", {"cell": cell_id} | step) for step in summary["steps"]]
            events.append(("cell", {"cell": cell_id, "digest": summary["digest"]}))
        if self.members["record.jsonl"] != chain_bytes(events):
            raise BundleError("record.jsonl: not the record that follows from terms and cells")
        steps = sum(event == "step" for event, _ in events)
        return f"it follows from the terms and, in plan order, {steps} steps made under these terms"

    def _cell(self, cell_id: str) -> dict[str, Any]:
        """Return a cell's summary, whose tables and manifests are those of these terms."""
        name = f"cells/{cell_id}/{CELL}"
        summary = parse_signed(self.members[name], name)
        if (summary["cell"], summary["terms"]) != (cell_id, self.terms_digest):
            raise BundleError(f"{name}: belongs to another cell or was made under other terms")
        for file, data in bundle.tables_of(self.members, cell_id).items():
            if summary["artifacts"].get(file) != digest(data):
                raise BundleError(f"{name}: records another {file} than the one in the bundle")
        opening = summary["opening"] or {}
        digests: dict[str, str] = {}
        for step in summary["steps"]:
            manifest = {key: step[key] for key in ("step", "files", "needs")}
            manifest |= {"cell": cell_id, "terms": self.terms_digest}
            manifest |= {"opening": opening if opening.get("step") == step["step"] else None}
            where = f"{name}: step {shown(step['step'])}"
            if step["step"] in digests or step["digest"] != digest(canonical(manifest)):
                raise BundleError(f"{where} is there twice, or was not made under these terms")
            if any(digests.get(need) != made for need, made in step["needs"].items()):
                raise BundleError(f"{where} comes before a step it needs")
            digests[step["step"]] = step["digest"]
        return summary

    def models(self) -> str:
        for cell_id, summary in self.summaries.items():
            complete.require_models(cell_id, summary["models"], self.asked)
        allowed = {r: " or ".join(map(str, n)) for r, n in self.asked.counts.items()}
        counts = ", ".join(f"{role} {count}" for role, count in allowed.items())
        return f"all planned models are in every cell, under their roles ({counts}), with controls"

    def seal(self) -> str:
        text = check_commitment(self.document("seal.json")["commitment"])
        if self.asked.seal not in ("", text):
            raise BundleError("seal.json holds another commitment than the plan")
        for cell_id in self.summaries:
            self._opening(cell_id, text)
        if self.asked.summary:
            return f"the held-out prompts were fixed as {text}; they are not in the bundle"
        if not self.asked.panel:
            return f"the sealed pool ({text}) was never opened"
        verify(bundle.pool_of(self.document(REVEAL)), text)
        words = "the revealed pool is the one committed to, opened once per cell, in its last step"
        return words if self.asked.seal else f"{words} (the built-in pool, which is public)"

    def _opening(self, cell_id: str, commitment: str) -> None:
        """Raise BundleError unless the sealed pool was opened as planned, for the cell's models."""
        name, summary = f"cells/{cell_id}/{CELL}", self.summaries[cell_id]
        opening = summary["opening"]
        if (opening is None) == self.asked.panel:
            opened = "not opened" if opening is None else "opened"
            raise BundleError(f"{name}: the sealed pool was {opened}; the plan says otherwise")
        if opening is None:
            return
        if not parse_signed(canonical(opening) + b"\n", f"{name}: opening")["models"]:
            raise BundleError(f"{name}: the sealed pool was opened for no models")
        expected = {"cell": cell_id, "terms": self.terms_digest, "commitment": commitment}
        expected |= {"step": summary["steps"][-1]["step"] if summary["steps"] else ""}
        if {key: opening.get(key) for key in expected} != expected:
            raise BundleError(f"{name}: the sealed pool was not opened as {expected}")
        for model, weights in opening["models"].items():
            if summary["models"].get(model, {}).get("digest") != weights:
                raise BundleError(f"{name}: the sealed pool was opened for another {shown(model)}")

    def scores(self) -> str:
        files = {cell_id: bundle.tables_of(self.members, cell_id) for cell_id in self.summaries}
        rows = sum(count_rows(cell_id, tables) for cell_id, tables in files.items())
        if rows > MAX_ROWS:
            raise BundleError(f"{rows} rows of scores; expected at most {MAX_ROWS}")
        pool = bundle.pool_of(self.document(REVEAL)) if self.asked.panel else None
        for cell_id, summary in self.summaries.items():
            tables = read_tables(cell_id, files[cell_id])
            complete.require_scores(cell_id, tables, summary["models"], self.asked)
            opened = summary["opening"]["models"] if summary["opening"] else {}
            complete.require_once(cell_id, tables["items.parquet"], summary["facts"], opened, pool)
        words = f"{rows} rows of scores; every listed model is scored or failed, and no other"
        return words if pool is None else f"{words}; the sealed pool was scored once, as revealed"

    # -- what follows from it ----------------------------------------------------------------

    def verdicts(self) -> str:
        for cell_id in self.summaries:
            name = f"cells/{cell_id}/{VERDICT}"
            verdict = self.judged[cell_id] = bundle.verdict_of(self.members, cell_id)
            _require_same(name, self.document(name), json.loads(bundle.rendered(verdict)))
        return f"all {len(self.judged)}, recomputed, follow from the scores under these rules"

    def summary(self) -> str:
        if not self.asked.summary:
            return "a study has none"
        from palimpsest.engine.summary import verdict_values

        whole, hashed = self.document(bundle.SUMMARY), self.document("rules.json")["hash"]
        for cell_id, verdict in self.judged.items():
            expected = verdict_values(verdict) if verdict else {}
            if verdict and self.asked.audit:
                expected |= {"exit_code": 0 if verdict.certified else 3, "rules_hash": hashed}
            stored = whole if self.asked.audit else whole["cells"][cell_id]
            part = {key: stored.get(key) for key in expected}
            _require_same(bundle.SUMMARY, part, json.loads(canonical(expected)))
            if verdict and not stored["paragraph"].startswith(verdict.paragraph()):
                raise BundleError(f"{bundle.SUMMARY}: another paragraph than the verdict's")
        return f"the verdict in {bundle.SUMMARY} is the recomputed one"

    def statement(self) -> str:
        signed_by = self.stated["predicate"].get("signer")
        if bundle.statement(self.members, signed_by) != self.members[STATEMENT]:
            raise BundleError(f"{STATEMENT}: says something else than the files in the bundle")
        return "the in-toto statement says what the files say, byte for byte"


def _require_same(name: str, stored: Any, expected: Any) -> None:
    differing = differences(stored, expected)
    if differing:
        raise BundleError(f"{name}: {differing[0][:300]}")
