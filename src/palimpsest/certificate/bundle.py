"""What is in a certificate bundle, how it is read, the statement that binds it, and ``certify``.

::

    terms.json  rosters.json    as in the run
    cells/<id>/cell.json  *.parquet            as in the run: what a verdict is computed from
    summary.json                               the verdicts, computed from the tables
    reveal.json                                the sealed pool and its nonce, when it was opened
    statement.json                             in-toto Statement v1 over all of the above
    statement.dsse.json                        the same statement, signed, when a key was given

Tables may come from anyone: their sizes are checked before anything is read, and so is the work
that the tests would take. Verdicts are computed by the function that judges a run folder.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.signature import envelope, public_of, read_private, signer
from palimpsest.errors import BundleError, InputError, PlanError, SealError, StoreError
from palimpsest.facts.sealed import AuditPool, builtin_pool, read_pool, verify
from palimpsest.report.documents import run_document, verdict_document
from palimpsest.report.results import CellResult, RunResults, judge_cell
from palimpsest.run.cell import CELL
from palimpsest.run.files import (
    canonical,
    digest,
    disk_errors,
    make_folder,
    read_stored,
    write_bytes,
)
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
from palimpsest.schema import build
from palimpsest.stats.intervals import RESAMPLES
from palimpsest.stats.items import ITEM_COLUMNS
from palimpsest.stats.measures import CURVE_COLUMNS, MEASURE_COLUMNS
from palimpsest.stats.models import Model, Role
from palimpsest.stats.ranktest import EXACT_PAIRS
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import UNPROVED

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v3"
KINDS = ("study", "audit", "tofu")
"""Runs that have verdicts."""
FIXED = (TERMS, ROSTERS)
SUMMARY, REVEAL = "summary.json", "reveal.json"
PROSE = ("paragraph", "conditions")
"""Keys of the summary that only say in words what its other keys say."""
STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
HEADLINE = (
    *("status", "grade", "candidate", "reason", "p", "detection_limit", "custom_rules"),
    "excluded_references",
)
"""What the statement repeats of a verdict; no sentences, which versions may word differently."""

NO_VERDICT = "There is no verdict, since no candidate could be made."
# Part of the format: a statement is compared byte for byte with what its bundle should say.
SCOPE = (
    "An empirical test of models as they were produced. A certified candidate could not be told "
    "from retrainings of the same recipe on the compared axes.",
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
_TYPES = dict.fromkeys(("model", "stage", "set", "fact", "pool", "measure"), "object")
_TYPES |= dict.fromkeys(("template", "tokens", "chunk", "step"), "int32")

MAX_ROWS = 20_000_000
"""Rows of all tables."""
MAX_TABLE_BYTES = 256 * 2**20
"""Bytes of one table once decompressed."""
MAX_MODELS = 1_000
MAX_REFERENCES = 200
MAX_FACTS = 2_000
MAX_PAIRS = 2_000_000
"""Exact tests of a cell, counted by the pairs of facts they compare."""
MAX_RESAMPLED = 100_000_000
"""Numbers that a bootstrap draws."""


# -- writing ---------------------------------------------------------------------------------------


def certify(
    run_path: Path | str,
    out_path: Path | str | None = None,
    key_path: Path | str | None = None,
    pool_path: Path | str | None = None,
) -> Path:
    """Write the certificate of a finished run and return its path (RUN/certificate.zip).

    ``key_path`` is an Ed25519 private key in PEM form; ``pool_path`` the file of a sealed pool of
    the user's own, which the certificate reveals. Nothing is written unless the bundle passes every
    check of ``verify``, and a signed bundle is replaced only by another signed one.
    """
    from palimpsest.certificate.verification import examine

    run = Run.open(run_path)
    key = None if key_path is None else read_private(key_path)
    out = run.path / "certificate.zip" if out_path is None else Path(out_path)
    if out.is_dir():
        raise InputError(f"{out}: a folder; expected the name of a file to write")
    if key is None and _is_signed(out):
        raise InputError(
            f"{out}: holds a signed certificate, and no key was given to sign the new one; sign it "
            "with --key, or write it elsewhere with --out"
        )
    members = gather(run, pool_path)
    bundle = Bundle(members)
    public = None if key is None else public_of(key)
    members[SUMMARY] = canonical(without_prose(run_document(bundle.results))) + b"\n"
    members[STATEMENT] = statement(bundle, None if public is None else signer(public))
    members |= {} if key is None else {ENVELOPE: envelope(members[STATEMENT], key)}
    data = pack(members)
    examine(data, public).require(str(run.path))
    make_folder(out.parent)
    write_bytes(out, data)
    return out


def without_prose(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's document without its sentences, which each version may word in its own way."""
    kept = {key: value for key, value in document.items() if key not in PROSE}
    if "cells" in kept:
        kept["cells"] = {cell: without_prose(part) for cell, part in kept["cells"].items()}
    return kept


def gather(run: Run, pool_path: Path | str | None = None) -> dict[str, bytes]:
    """Return the files of a finished run that go into its bundle; BundleError if not finished."""
    _require_finished(run)
    summaries = {cell_id: run.cell(cell_id).summary() for cell_id in run.cells}
    names = [*FIXED]
    for cell_id, summary in summaries.items():
        names += [cell_file(cell_id), *table_files(cell_id, summary).values()]
    members = {name: read_stored(run.path / name) for name in names}
    if any(summary["opening"] for summary in summaries.values()):
        members[REVEAL] = _reveal(run, pool_path)
    return members


def _require_finished(run: Run) -> None:
    if run.terms.kind not in KINDS:
        raise InputError(
            f"{run.path}: made by {run.terms.kind}, which gives no verdict; expected a run of "
            f"{', '.join(KINDS)}"
        )
    unfinished = [cell_id for cell_id in run.cells if not run.cell(cell_id).ended()]
    if unfinished:
        raise InputError(
            f"{run.path}: {len(unfinished)} of {len(run.cells)} cells are not finished "
            f"({', '.join(unfinished[:3])}); a certificate covers every planned cell; finish them "
            "with the command that started the run, then certify"
        )
    problems = run.verify()
    if problems:
        raise BundleError(f"{run.path}: cannot be certified: {problems[0]}")


def _reveal(run: Run, pool_path: Path | str | None) -> bytes:
    """Return the opened pool and its nonce, checked against the run's commitment."""
    if pool_path is not None:
        pool = read_pool(pool_path)
    elif run.terms.seal["pool"] == "own":
        raise SealError(
            f"{run.path}: the run sealed a pool of your own, and its certificate reveals it; give "
            "the file that was sealed with --pool"
        )
    else:
        pool = builtin_pool()
    return canonical(revealed(verify(pool, run.terms.seal["commitment"]))) + b"\n"


def _is_signed(path: Path) -> bool:
    """Return whether a file holds a signed bundle, even a damaged one."""
    with disk_errors(path, "read"):
        return path.is_file() and ENVELOPE.encode() in path.read_bytes()


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """A candidate or reference of a list: a given model, or a method with values of its knobs."""

    name: str
    files: str = ""
    """Digest of a given model's files; empty for a method."""
    weights: str = ""
    """Digest of an audited model's tensors."""
    knobs: str = "{}"
    """Canonical JSON of the knobs that the list sets."""
    plugin: str = ""
    role: Role = Role.CANDIDATE


class Bundle:
    """The files of a bundle; each part is read, and its form checked, when first asked for."""

    def __init__(self, members: Mapping[str, bytes]) -> None:
        self.members = members

    def document(self, name: str) -> Any:
        """Return the value in a JSON member; BundleError unless it is written as a run writes."""
        if name not in self.members:
            raise BundleError(f"{name} is missing; expected it in the bundle")
        try:
            value = json.loads(self.members[name])
            # One spelling only: no repeated keys, no NaN, no second way to write a number.
            plain = canonical(value) + b"\n" == self.members[name]
        except (ValueError, RecursionError, StoreError) as error:
            raise BundleError(f"{name}: not the JSON that a run stores") from error
        if not plain:
            raise BundleError(f"{name}: written in another way than a run stores JSON")
        return value

    @cached_property
    def terms(self) -> Terms:
        """What was fixed before the first step."""
        terms = parse_terms(self.members[TERMS], TERMS)
        if terms.kind not in KINDS:
            raise BundleError(f"{TERMS}: of kind {terms.kind!r}; expected {', '.join(KINDS)}")
        return terms

    @cached_property
    def rules(self) -> Rules:
        """The rules of the run, within their bounds."""
        return read_rules(self.terms.rules)

    @cached_property
    def rosters(self) -> tuple[FixedRoster, ...]:
        """The candidate lists of the run, which hang on its terms, oldest first."""
        return parse_rosters(self.members[ROSTERS], ROSTERS, self.terms)

    @cached_property
    def lists(self) -> list[tuple[Listed, ...]]:
        """The same, every setting of a method by itself."""
        return [tuple(read_list(roster.models)) for roster in self.rosters]

    @property
    def tried(self) -> int:
        """How many candidates any of the lists names."""
        every = {entry for listed in self.lists for entry in listed}
        return sum(entry.role is Role.CANDIDATE for entry in every)

    @cached_property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """The record of each cell."""
        return {cell_id: self.document(cell_file(cell_id)) for cell_id in self.terms.cells}

    @cached_property
    def pool(self) -> AuditPool | None:
        """The revealed pool with its nonce; None when nothing is revealed."""
        if REVEAL not in self.members:
            return None
        value = self.document(REVEAL)
        phrasings = {key: tuple(texts) for key, texts in value["pool"]["phrasings"].items()}
        pool = AuditPool(phrasings, value["nonce"])
        if value != revealed(pool):
            raise BundleError(f"{REVEAL}: not a pool with its nonce")
        return pool

    @cached_property
    def tables(self) -> dict[str, dict[str, Table]]:
        """The tables that each cell's verdict depends on."""
        rows = 0
        tables: dict[str, dict[str, Table]] = {}
        for cell_id, summary in self.summaries.items():
            tables[cell_id] = {}
            for name, file in table_files(cell_id, summary).items():
                table = read_table(file, self.members[file], TABLES[name])
                rows += len(table["model"])
                if rows > MAX_ROWS:
                    raise BundleError(f"{rows} rows of scores; expected at most {MAX_ROWS}")
                tables[cell_id][name] = table
        return tables

    @cached_property
    def results(self) -> RunResults:
        """Every cell measured and judged as a run is."""
        # Scores so large that sums overflow are refused as not finite by what reads them.
        with np.errstate(all="ignore"):
            cells = tuple(self._judge(cell_id) for cell_id in self.terms.cells)
        return RunResults(Path(), self.terms, self.rules, len(self.rosters), cells, ())

    def _judge(self, cell_id: str) -> CellResult:
        """Return a cell judged, after checking how much work that takes."""
        summary, tables = self.summaries[cell_id], self.tables[cell_id]
        items = tables["items"]
        models = len({*items["model"], *(record["name"] for record in summary["models"])})
        forget, probe = (len(set(items["fact"][items["set"] == s])) for s in ("forget", "probe"))
        references = sum(record["role"] == Role.REFERENCE for record in summary["models"])
        asked = len(set(tables["headroom"]["fact"])) if "headroom" in tables else 0
        for what, count, most in (
            ("models", models, MAX_MODELS),
            ("references", references, MAX_REFERENCES),
            ("facts", len(set(items["fact"])), MAX_FACTS),
            ("pairs of facts", models * min(forget * probe, EXACT_PAIRS), MAX_PAIRS),
            ("resampled numbers", asked * RESAMPLES, MAX_RESAMPLED),
        ):
            if count > most:
                raise BundleError(f"cell {cell_id}: {count} {what}; expected at most {most}")
        return judge_cell(cell_id, summary, tables, self.terms, self.rules)


def cell_file(cell_id: str) -> str:
    """Return the name of a cell's record in a bundle and in a run."""
    return f"cells/{cell_id}/{CELL}"


def table_files(cell_id: str, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the tables that a cell's verdict depends on, by table."""
    stored = [n for n in TABLES if n == "items" or f"{n}.parquet" in summary["artifacts"]]
    return {name: f"cells/{cell_id}/{name}.parquet" for name in stored}


def read_table(name: str, data: bytes, expected: tuple[str, ...]) -> Table:
    """Return the columns of a table, after checking the sizes that its footer says.

    Pages that ask for more than that meet the memory limit of the process that examines.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise BundleError(f"{name}: not a parquet table ({error})") from error
    columns, rows = tuple(footer.schema.names), footer.num_rows
    size = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    bounded = 0 <= size <= MAX_TABLE_BYTES and 0 <= rows <= MAX_ROWS
    if columns != expected or not bounded:
        raise BundleError(
            f"{name}: {rows} rows of {columns} with {size} bytes once decompressed; expected "
            f"{expected}, at most {MAX_ROWS} rows and {MAX_TABLE_BYTES} bytes"
        )
    table = table_from_bytes(data, name)
    for column, values in table.items():
        kind = _TYPES.get(column, "float64")
        if values.dtype.name != kind:
            raise BundleError(f"{name}: {column} holds {values.dtype}; expected {kind}")
    return table


def read_rules(values: Mapping[str, Any]) -> Rules:
    """Return rules within their bounds; BundleError for any that no run could be made under."""
    try:
        rules = build(Rules, dict(values), "rules")
    except PlanError as error:
        raise BundleError(
            f"{error}; expected rules that this version allows; verify with the version that made "
            "the run"
        ) from error
    # As text: 1, 1.0 and true are equal to Python.
    if canonical(asdict(rules)) != canonical(values):
        raise BundleError("rules: not written as a run stores them; expected every rule")
    return rules


def read_list(entries: Sequence[Mapping[str, Any]]) -> Iterator[Listed]:
    """Yield the references and candidates of one list, every setting of a method by itself."""
    for entry in entries:
        model = Model.from_json({k: v for k, v in entry.items() if k not in ("uses", "plugin")})
        knobs = canonical(dict(model.knobs)).decode()
        plugin = entry.get("plugin", "")
        name = model.method or model.name
        yield Listed(name, model.source, model.weights, knobs, plugin, model.role)


def revealed(pool: AuditPool) -> dict[str, Any]:
    """Return the contents of reveal.json."""
    phrasings = {key: list(texts) for key, texts in pool.phrasings.items()}
    return {"nonce": pool.nonce, "pool": {"by": "relation", "phrasings": phrasings}}


# -- the statement ---------------------------------------------------------------------------------


def statement(bundle: Bundle, signed_by: Mapping[str, str] | None) -> bytes:
    """Return the in-toto statement about all members but the statements themselves."""
    terms, results, members = bundle.terms, bundle.results, bundle.members
    predicate = {
        "run": results.name,
        "kind": terms.kind,
        "terms": terms.digest,
        "rules": terms.rules_hash,
        "custom_rules": bundle.rules.differences(),
        "unmeasured_axes": bundle.rules.unmeasured_axes,
        "seal": terms.seal["commitment"],
        "lists": len(bundle.lists),
        "tried": bundle.tried,
        "reused": origins(bundle.summaries.values()),
        "cells": {cell.id: _stated_cell(cell) for cell in results.cells},
        "scope": SCOPE,
        "signer": signed_by,
    }
    subject = [
        {"name": name, "digest": {"sha256": digest(members[name]).removeprefix("sha256:")}}
        for name in sorted(members)
        if name not in (STATEMENT, ENVELOPE)
    ]
    whole = {"_type": STATEMENT_TYPE, "subject": subject}
    return canonical(whole | {"predicateType": PREDICATE_TYPE, "predicate": predicate}) + b"\n"


def _stated_cell(cell: CellResult) -> dict[str, Any]:
    verdict = cell.verdict
    whole = {} if verdict is None else verdict_document(verdict)
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
    steps: Sequence[Any] = [step for summary in summaries for step in summary["steps"]]
    return sorted({str(step["origin"]) for step in steps if step["origin"] is not None})


def read_verdicts(bundle: Path | str) -> dict[str, dict[str, Any]]:
    """Return what a bundle's statement says of each cell's verdict, without verifying anything."""
    with disk_errors(Path(bundle), "read"):
        stated = Bundle(unpack(Path(bundle).read_bytes())).document(STATEMENT)
    return {cell_id: cell["verdict"] for cell_id, cell in stated["predicate"]["cells"].items()}
