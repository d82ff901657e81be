"""What is in a certificate bundle, how it is read, the statement that binds it, and ``certify``.

::

    terms.json  rosters.jsonl  record.jsonl    as in the run
    cells/<id>/cell.json  *.parquet            as in the run: what a verdict is computed from
    summary.json                               the verdicts, computed from the tables
    reveal.json                                the sealed pool and its nonce, when it was opened
    statement.json                             in-toto Statement v1 over all of the above
    statement.dsse.json                        the same statement, signed, when a key was given

Tables may come from anyone: their sizes are checked before anything is read, and so is the work
that the tests would take. Verdicts are computed by the function that judges a run folder.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
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
from palimpsest.run.chain import Entry, verify_chain
from palimpsest.run.disk import (
    canonical,
    digest,
    disk_errors,
    make_folder,
    parse_sealed,
    write_bytes,
)
from palimpsest.run.store import FORMAT, RECORD, ROSTERS, TERMS, Run, Terms
from palimpsest.run.tables import Table, table_from_bytes
from palimpsest.schema import build
from palimpsest.stats.items import ITEM_COLUMNS
from palimpsest.stats.measures import CURVE_COLUMNS, MEASURE_COLUMNS
from palimpsest.stats.models import Role
from palimpsest.stats.ranktest import EXACT_PAIRS
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import UNPROVED

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v3"
KINDS = ("study", "audit", "tofu")
"""Runs that have verdicts."""
FIXED = (TERMS, ROSTERS, RECORD)
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
"""Rows of one table."""
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
    public = None if key is None else public_of(key)
    results = read_results(members)
    members[SUMMARY] = canonical(without_prose(run_document(results))) + b"\n"
    members[STATEMENT] = statement(members, results, None if public is None else signer(public))
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
    with disk_errors(run.path, "read"):
        members = {name: (run.path / name).read_bytes() for name in FIXED}
        for cell_id in run.cells:
            names = [CELL, *(f"{name}.parquet" for name in tables_of(run.cell(cell_id).summary()))]
            paths = [f"cells/{cell_id}/{name}" for name in names]
            members |= {path: (run.path / path).read_bytes() for path in paths}
    if any(run.cell(cell_id).summary()["opening"] for cell_id in run.cells):
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
        return path.exists() and ENVELOPE.encode() in path.read_bytes()


# -- reading ---------------------------------------------------------------------------------------


def document(members: Mapping[str, bytes], name: str) -> Any:
    """Return the value in a JSON member; BundleError unless it is written as a run writes it."""
    if name not in members:
        raise BundleError(f"{name} is missing; expected it in the bundle")
    try:
        value = json.loads(members[name])
        # One spelling only: no repeated keys, no NaN, no second way to write a number.
        plain = canonical(value) + b"\n" == members[name]
    except (ValueError, RecursionError, StoreError) as error:
        raise BundleError(f"{name}: not the JSON that a run stores") from error
    if not plain:
        raise BundleError(f"{name}: written in another way than a run stores JSON")
    return value


def read_terms(members: Mapping[str, bytes]) -> Terms:
    """Return what was fixed before the first step; BundleError when not in the known format."""
    sealed = parse_sealed(members[TERMS], TERMS)
    stored = sealed["terms"]
    if sealed["format"] != FORMAT or stored.keys() != {item.name for item in fields(Terms)}:
        raise BundleError(f"{TERMS}: not of format {FORMAT}, which this version reads")
    terms = Terms(**stored | {"cells": tuple(stored["cells"])})
    if terms.kind not in KINDS:
        raise BundleError(f"{TERMS}: of kind {terms.kind!r}; expected one of {', '.join(KINDS)}")
    return terms


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


def read_rosters(members: Mapping[str, bytes], terms: Terms) -> tuple[Entry, ...]:
    """Return the candidate lists of the run, which hang on its terms, oldest first."""
    rosters = verify_chain(members[ROSTERS], ROSTERS, terms.digest)
    if not rosters or any(entry.event != "roster" for entry in rosters):
        raise BundleError(f"{ROSTERS}: expected at least one candidate list, and nothing else")
    return rosters


def tables_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of the tables that a cell's verdict depends on, by its record."""
    return [name for name in TABLES if name == "items" or f"{name}.parquet" in summary["artifacts"]]


def table_members(members: Mapping[str, bytes], cell_id: str) -> dict[str, bytes]:
    """Return the bytes of the tables that a cell's verdict depends on."""
    names = tables_of(document(members, f"cells/{cell_id}/{CELL}"))
    return {name: members[f"cells/{cell_id}/{name}.parquet"] for name in names}


def read_tables(members: Mapping[str, bytes], cell_id: str) -> dict[str, Table]:
    """Return the columns of a cell's tables, after checking the sizes that their footers say.

    Pages that ask for more than that meet the memory limit of the process that examines.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = {}
    for name, data in table_members(members, cell_id).items():
        where = f"cells/{cell_id}/{name}.parquet"
        try:
            footer = pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise BundleError(f"{where}: not a parquet table ({error})") from error
        columns, rows = tuple(footer.schema.names), footer.num_rows
        size = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
        bounded = 0 <= size <= MAX_TABLE_BYTES and 0 <= rows <= MAX_ROWS
        if columns != TABLES[name] or not bounded:
            raise BundleError(
                f"{where}: {rows} rows of {columns} with {size} bytes once decompressed; expected "
                f"{TABLES[name]}, at most {MAX_ROWS} rows and {MAX_TABLE_BYTES} bytes"
            )
        tables[name] = table_from_bytes(data, where)
        for column, values in tables[name].items():
            kind = _TYPES.get(column, "float64")
            if values.dtype.name != kind:
                raise BundleError(f"{where}: {column} holds {values.dtype}; expected {kind}")
    return tables


def judge(
    cell_id: str,
    summary: Mapping[str, Any],
    tables: Mapping[str, Table],
    terms: Terms,
    rules: Rules,
) -> CellResult:
    """Return a cell measured and judged as a run is, after checking how much work that takes."""
    items = tables["items"]
    models = len({*items["model"], *(record["name"] for record in summary["models"])})
    sets = {
        name: len(set(items["fact"][items["set"] == name].tolist())) for name in ("forget", "probe")
    }
    references = sum(record["role"] == Role.REFERENCE for record in summary["models"])
    asked = tables["headroom"]["fact"].tolist() if "headroom" in tables else []
    for what, count, most in (
        ("models", models, MAX_MODELS),
        ("references", references, MAX_REFERENCES),
        ("facts", len(set(items["fact"].tolist())), MAX_FACTS),
        ("pairs of facts", models * min(sets["forget"] * sets["probe"], EXACT_PAIRS), MAX_PAIRS),
        ("resampled numbers", len(set(asked)) * rules.bootstrap_resamples, MAX_RESAMPLED),
    ):
        if count > most:
            raise BundleError(f"cell {cell_id}: {count} {what}; expected at most {most}")
    # Scores so large that sums overflow are refused as not finite by what reads them.
    with np.errstate(all="ignore"):
        return judge_cell(cell_id, summary, tables, terms, rules)


def read_results(members: Mapping[str, bytes], path: Path = Path()) -> RunResults:
    """Return the results in a bundle's files; ``path`` is where a page of them is to be written."""
    terms = read_terms(members)
    rules = read_rules(terms.rules)
    cells = []
    for cell_id in terms.cells:
        summary = document(members, f"cells/{cell_id}/{CELL}")
        cells.append(judge(cell_id, summary, read_tables(members, cell_id), terms, rules))
    count = len(read_rosters(members, terms))
    return RunResults(path, terms, rules, count, tuple(cells), ())


def pool_of(value: Any) -> AuditPool:
    """Return the pool with its nonce in the contents of reveal.json, or raise BundleError."""
    phrasings = {key: tuple(texts) for key, texts in value["pool"]["phrasings"].items()}
    pool = AuditPool(phrasings, value["nonce"])
    if value != revealed(pool):
        raise BundleError(f"{REVEAL}: not a pool with its nonce")
    return pool


def revealed(pool: AuditPool) -> dict[str, Any]:
    """Return the contents of reveal.json."""
    phrasings = {key: list(texts) for key, texts in pool.phrasings.items()}
    return {"nonce": pool.nonce, "pool": {"by": "relation", "phrasings": phrasings}}


# -- the statement ---------------------------------------------------------------------------------


def statement(
    members: Mapping[str, bytes], results: RunResults, signed_by: Mapping[str, str] | None
) -> bytes:
    """Return the in-toto statement about all members but the statements themselves."""
    from palimpsest.certificate.planned import count_tried, read_list

    terms = results.terms
    rosters = [entry.data["models"] for entry in read_rosters(members, terms)]
    tried = count_tried([tuple(read_list(terms.kind, models)) for models in rosters])
    predicate = {
        "run": results.name,
        "kind": terms.kind,
        "terms": terms.digest,
        "rules": terms.rules_hash,
        "custom_rules": custom_rules(results.rules),
        "unmeasured_axes": list(results.rules.unmeasured_axes),
        "seal": terms.seal["commitment"],
        "lists": len(rosters),
        "tried": tried,
        "reused": origins(cell.summary for cell in results.cells),
        "cells": {cell.id: _stated_cell(cell) for cell in results.cells},
        "scope": list(SCOPE),
        "signer": None if signed_by is None else dict(signed_by),
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


def custom_rules(rules: Rules) -> dict[str, list[Any]]:
    """Return the rules that differ from the default: default and own value, by name."""
    return {name: list(pair) for name, pair in rules.differences().items()}


def origins(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which candidate lists of other runs some steps were made under."""
    steps: Sequence[Any] = [step for summary in summaries for step in summary["steps"]]
    return sorted({str(step["origin"]) for step in steps if step["origin"] is not None})


def read_verdicts(bundle: Path | str) -> dict[str, dict[str, Any]]:
    """Return what a bundle's statement says of each cell's verdict, without verifying anything."""
    with disk_errors(Path(bundle), "read"):
        stated = document(unpack(Path(bundle).read_bytes()), STATEMENT)
    return {cell_id: cell["verdict"] for cell_id, cell in stated["predicate"]["cells"].items()}
