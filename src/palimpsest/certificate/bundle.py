"""A bundle: what is in it, how it is packed and read within bounds, and what it states.

::

    terms.json  rosters.json                   as in the run: configuration, rules, seal, models
    cells/<id>/cell.json  *.parquet            as in the run: what a verdict is computed from
    reveal.json                                the sealed pool and its nonce, when it was opened
    statement.json                             in-toto Statement v1: digests of all of the above,
                                               and the verdicts, computed from the tables
    statement.dsse.json                        the same statement, signed, when a key was given

The archive is a zip file. It may come from anyone, so sizes are checked before anything is read.
Verdicts are computed by the function that judges a run folder.
"""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.cell.planned import PlannedCell, planned_cell
from palimpsest.certificate.signature import signer_key
from palimpsest.errors import BundleError, InputError, SealError, StoreError
from palimpsest.facts.sealed import AuditPool, builtin_pool, read_pool, verify
from palimpsest.files import read_bytes
from palimpsest.report.documents import verdict_document
from palimpsest.report.results import CellResult, RunResults, judge_cell, read_rules
from palimpsest.run.cell import CELL
from palimpsest.run.files import canonical, digest, parse_digested, read_stored
from palimpsest.run.store import (
    ROSTERS,
    TERMS,
    FixedRoster,
    Run,
    Terms,
    parse_rosters,
    parse_terms,
)
from palimpsest.run.tables import Table, table_from_bytes
from palimpsest.stats.items import ITEM_COLUMNS
from palimpsest.stats.measures import CURVE_COLUMNS, MEASURE_COLUMNS
from palimpsest.stats.models import Role
from palimpsest.stats.rules import CONTROL_MIXTURES, Rules
from palimpsest.stats.words import UNPROVED
from palimpsest.text import shown_path

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v4"
KINDS = ("study", "audit")
"""Runs that have verdicts."""
REVEAL = "reveal.json"
STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
HEADLINE = (
    *("status", "grade", "candidate", "cost", "reason", "p", "at_most", "detection_limit"),
    *("custom_rules", "excluded_references"),
)
"""What the statement repeats of a verdict; no sentences, which versions may word differently."""
# Part of the format: the statement is compared with what its bundle should say.
SCOPE = (
    "An empirical test of models as they were produced. A certified candidate could not be told "
    "from retrainings of the same recipe on the compared axes, and has a bound on the share of the "
    "injected weights that is left in it, unless they are hidden. Retraining is the reference for "
    "removing examples, not concepts.",
    "Alpha is the rate at which the comparison wrongly refuses a retraining. False certification "
    "has no fixed rate: the controls show the power of this audit against these alternatives.",
    UNPROVED,
    "Candidates tried in this run are counted; other runs are not seen.",
    "No deletion, privacy or right-to-erasure guarantee, and no defense against a candidate that "
    "was built to pass this test.",
)

TABLES: dict[str, tuple[str, ...]] = {
    "items": ITEM_COLUMNS,
    "curves": CURVE_COLUMNS,
    "measures": MEASURE_COLUMNS,
    "headroom": ITEM_COLUMNS,
}
"""Columns of the tables that a verdict depends on."""

MAX_BYTES = 256 * 2**20
"""Largest bundle that is written or read, packed or unpacked."""
MAX_TEXT_BYTES = 32 * 2**20
"""Bytes of one JSON file."""
MAX_CELLS = 2_000
MAX_FILES = 5 * MAX_CELLS + 10
MAX_MODELS = 1_000
"""Models of one cell."""
MAX_ROWS = 20_000_000
"""Rows of all tables."""
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


# -- the archive -----------------------------------------------------------------------------------


def read_bundle(path: Path) -> bytes:
    """Return the bytes of a bundle file of bounded size."""
    expected = "a bundle, the file that `palimpsest certify RUN` writes"
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise BundleError(f"{shown_path(path)}: more than {MAX_BYTES} bytes; expected {expected}")
    return read_bytes(path, MAX_BYTES, InputError, expected)


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the archive of some files, given by name; equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name), members[name])  # of 1980, uncompressed
    _at_most(MAX_FILES, len(members), "files")
    _at_most(MAX_BYTES, len(packed.getbuffer()), "bytes")
    return packed.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files in an archive by name; BundleError for what is none, or is too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            sizes = {entry.filename: entry.file_size for entry in entries}
            texts = [size for name, size in sizes.items() if not name.endswith(".parquet")]
            if len(sizes) != len(entries):
                raise BundleError("a file is there twice")
            if any(entry.compress_type not in _PACKED for entry in entries):
                raise BundleError("compressed in a way that bundles are not")
            _at_most(MAX_FILES, len(sizes), "files")
            _at_most(MAX_BYTES, sum(sizes.values()), "bytes in its files")
            _at_most(MAX_TEXT_BYTES, max(texts, default=0), "bytes in a JSON file")
            # No more is unpacked than an entry says.
            return {e.filename: archive.open(e).read(e.file_size + 1) for e in entries}
    except Exception as error:  # bytes from anyone make the library raise what it likes
        raise BundleError(
            f"not a valid bundle ({error}); expected an archive that `palimpsest certify` wrote"
        ) from error


# -- reading ---------------------------------------------------------------------------------------


class Bundle:
    """The files of a bundle; each part is read, and its form checked, when first asked for."""

    def __init__(self, source: bytes | Mapping[str, bytes], public: bytes | None = None) -> None:
        """source: the archive, or the files in it; public: the key it has to be signed with."""
        self.source, self.public = source, public

    @cached_property
    def members(self) -> Mapping[str, bytes]:
        """The files by name."""
        return unpack(self.source) if isinstance(self.source, bytes) else self.source

    def file(self, name: str) -> bytes:
        """Return the bytes of a file; BundleError where the bundle has none of that name."""
        if name not in self.members:
            raise BundleError(f"{name} is missing; expected it in the bundle")
        return self.members[name]

    def document(self, name: str) -> Any:
        """Return the value in a JSON file, which has one spelling: no key twice, no NaN."""
        with contextlib.suppress(ValueError, RecursionError, StoreError):
            value = json.loads(self.file(name))
            if canonical(value) + b"\n" == self.file(name):
                return value
        raise BundleError(f"{name}: not JSON as a run stores it")

    @cached_property
    def stated(self) -> dict[str, Any]:
        """What the statement says."""
        stated: dict[str, Any] = self.document(STATEMENT)
        return stated

    @property
    def signer(self) -> bytes | None:
        """The public key that the statement names; None when unsigned."""
        named = self.stated["predicate"]["signer"]
        return None if named is None else signer_key(named)

    @cached_property
    def terms(self) -> Terms:
        """What was fixed before the first step."""
        terms = parse_terms(self.file(TERMS), TERMS)
        if terms.kind not in KINDS:
            raise BundleError(f"{TERMS}: of kind {terms.kind!r}; expected {', '.join(KINDS)}")
        _at_most(MAX_CELLS, len(terms.cells), "cells")
        return terms

    @cached_property
    def rules(self) -> Rules:
        """The rules of the run, within their bounds."""
        return read_rules(self.terms)

    @cached_property
    def rosters(self) -> tuple[FixedRoster, ...]:
        """The lists of models of the run, oldest first."""
        return parse_rosters(self.file(ROSTERS), ROSTERS, self.terms)

    @property
    def tried(self) -> int:
        """How many candidates any of the lists names."""
        every = {canonical(entry) for roster in self.rosters for entry in roster.models}
        return sum(json.loads(entry)["role"] == Role.CANDIDATE for entry in every)

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """The record of each cell."""
        names = {cell_id: cell_file(cell_id) for cell_id in self.terms.cells}
        return {cell_id: parse_digested(self.file(name), name) for cell_id, name in names.items()}

    @cached_property
    def pool(self) -> AuditPool:
        """The revealed pool with its nonce."""
        value = self.document(REVEAL)
        pool = AuditPool(value["pool"]["phrasings"], value["nonce"])
        if value != revealed(pool):
            raise BundleError(f"{REVEAL}: not a pool with its nonce")
        return pool

    @cached_property
    def tables(self) -> dict[str, dict[str, Table]]:
        """The tables that each cell's verdict depends on."""
        rows = 0
        tables: dict[str, dict[str, Table]] = {cell_id: {} for cell_id in self.summaries}
        for cell_id, summary in self.summaries.items():
            for name, file in table_files(cell_id, summary).items():
                table = table_from_bytes(self.file(file), file)
                if tuple(table) != TABLES[name]:
                    raise BundleError(f"{file}: columns {tuple(table)}; expected {TABLES[name]}")
                rows += len(table["model"])
                _at_most(MAX_ROWS, rows, "rows of scores")
                tables[cell_id][name] = table
        return tables

    @cached_property
    def results(self) -> RunResults:
        """Every cell measured and judged as a run is."""
        # Scores so large that sums overflow are refused as not finite by what reads them.
        with np.errstate(all="ignore"):
            cells = tuple(
                judge_cell(cell_id, summary, self.tables[cell_id], self.terms, self.rules)
                for cell_id, summary in self.summaries.items()
            )
        return RunResults(Path(), self.terms, self.rules, self.rosters, cells, ())

    def plan(self, cell_id: str) -> PlannedCell:
        """Return what a cell should hold, by the terms and the last list of models."""
        terms, listed = self.terms, self.rosters[-1].models
        trained = terms.config["replication"].values() if terms.kind == "study" else ()
        models = len(listed) + sum(trained)
        # Counted before they are listed: their number may be more than memory holds.
        models += len(self.rules.control_shares) * min(CONTROL_MIXTURES, models)
        _at_most(MAX_MODELS, models, f"models in the plan of cell {cell_id}")
        return planned_cell(terms, listed, cell_id)

    def is_sealed(self, cell_id: str) -> bool:
        """Return whether a cell has models that are scored on the sealed pool."""
        return bool(self.plan(cell_id).of(Role.KNOWN_LABEL))


def _at_most(most: int, count: int, what: str) -> None:
    if count > most:
        raise BundleError(f"{count} {what}; expected at most {most}")


def cell_file(cell_id: str) -> str:
    """Return the name of a cell's record in a bundle and in a run."""
    return f"cells/{cell_id}/{CELL}"


def table_files(cell_id: str, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the tables that a cell's verdict depends on, by table."""
    stored = [n for n in TABLES if n == "items" or f"{n}.parquet" in summary["artifacts"]]
    return {name: f"cells/{cell_id}/{name}.parquet" for name in stored}


def revealed(pool: AuditPool) -> dict[str, Any]:
    """Return the contents of reveal.json."""
    phrasings = {key: list(texts) for key, texts in pool.phrasings.items()}
    return {"nonce": pool.nonce, "pool": {"by": "relation", "phrasings": phrasings}}


# -- the statement ---------------------------------------------------------------------------------


def statement(bundle: Bundle, signed_by: Mapping[str, str] | None) -> bytes:
    """Return the in-toto statement about all files but the statements themselves."""
    terms, results = bundle.terms, bundle.results
    predicate = {
        "run": results.name,
        "kind": terms.kind,
        "terms": terms.digest,
        "rules": terms.rules_hash,
        "custom_rules": bundle.rules.differences(),
        "unmeasured_axes": bundle.rules.unmeasured_axes,
        "seal": terms.seal["commitment"],
        "lists": len(bundle.rosters),
        "tried": bundle.tried,
        "reused": origins(bundle.summaries.values()),
        "cells": {cell.id: _stated_cell(cell) for cell in results.cells},
        "scope": SCOPE,
        "signer": signed_by,
    }
    subject = [
        {"name": name, "digest": {"sha256": digest(data).removeprefix("sha256:")}}
        for name, data in sorted(bundle.members.items())
        if name not in (STATEMENT, ENVELOPE)
    ]
    whole = {"_type": STATEMENT_TYPE, "subject": subject}
    return canonical(whole | {"predicateType": PREDICATE_TYPE, "predicate": predicate}) + b"\n"


def _stated_cell(cell: CellResult) -> dict[str, Any]:
    whole = {} if cell.verdict is None else verdict_document(cell.verdict)
    compared = (Role.INJECTED, Role.REFERENCE)
    return {
        "verdict": {key: whole.get(key) for key in HEADLINE},
        "models": {name: model.digest for name, model in cell.models.items()},
        "recipes": {
            name: dict(model.recipe)
            for name, model in cell.models.items()
            if model.role in compared and model.recipe
        },
    }


def origins(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which candidate lists of other runs some steps were made under."""
    steps = (step for summary in summaries for step in summary["steps"])
    return sorted({str(step["origin"]) for step in steps if step["origin"] is not None})


# -- from a run ---------------------------------------------------------------------------------


def gather(run: Run, pool_path: Path | str | None) -> dict[str, bytes]:
    """Return the files of a finished run that go into its bundle; an error if it is not sound."""
    if run.terms.kind not in KINDS:
        raise InputError(
            f"{run.path}: made by {run.terms.kind}, which gives no verdict; expected a run of "
            f"{', '.join(KINDS)}"
        )
    if unfinished := [cell_id for cell_id in run.cells if not run.cell(cell_id).ended()]:
        raise InputError(
            f"{run.path}: {len(unfinished)} of {len(run.cells)} cells are not finished "
            f"({', '.join(unfinished[:3])}); finish them with the command that started the run"
        )
    if problems := run.verify():
        raise BundleError(f"{run.path}: cannot be certified: {problems[0]}")
    names = [TERMS, ROSTERS]
    for cell_id in run.cells:
        names += [cell_file(cell_id), *table_files(cell_id, run.cell(cell_id).summary()).values()]
    members = {name: read_stored(run.path / name) for name in names}
    if any(map(Bundle(members).is_sealed, run.cells)):
        members[REVEAL] = _reveal(run, pool_path)
    return members


def _reveal(run: Run, pool_path: Path | str | None) -> bytes:
    """Return the opened pool and its nonce, checked against the run's commitment."""
    if pool_path is None and run.terms.seal["pool"] == "own":
        raise SealError(
            f"{run.path}: the run sealed a pool of your own, and its certificate reveals it; give "
            "the file that was sealed with --pool"
        )
    pool = builtin_pool() if pool_path is None else read_pool(pool_path)
    return canonical(revealed(verify(pool, run.terms.seal["commitment"]))) + b"\n"
