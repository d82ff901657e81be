"""What is in a certificate bundle, the statement that binds it together, and ``certify``.

::

    plan.json  rules.json  seal.json  environment.json  terms.json  record.jsonl   as in the run
    summary.json                       as in the run, where the command wrote one (audit, tofu)
    reveal.json                        the sealed pool and its nonce, when it was opened
    cells/<id>/cell.json  *.parquet    as in the run: the tables a verdict is computed from
    cells/<id>/verdict.json            recomputed from the tables
    statement.json                     in-toto Statement v1 over all of the above
    statement.dsse.json                the same statement, signed, when a key was given
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.certificate.archive import pack
from palimpsest.certificate.complete import planned
from palimpsest.certificate.judge import TABLES, judge, read_tables
from palimpsest.certificate.signature import envelope, public_of, read_private, signer
from palimpsest.errors import BundleError, InputError, PlanError, SealError, StoreError
from palimpsest.facts.sealed import AuditPool, builtin_pool, read_pool, verify
from palimpsest.run.disk import disk_errors
from palimpsest.run.store import Run, canonical, digest, make_folder, terms_digest, write_bytes
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v2"

FIXED = ("plan.json", "rules.json", "seal.json", "environment.json", "terms.json", "record.jsonl")
REQUIRED_TABLES = ("items.parquet", "curves.parquet")
CELL, VERDICT, SUMMARY, REVEAL = "cell.json", "verdict.json", "summary.json", "reveal.json"
STATEMENT, ENVELOPE = "statement.json", "statement.dsse.json"
HEADLINE = ("status", "grade", "candidate", "reason", "detection_limit")
"""What the statement repeats of a verdict."""

# Part of the format: a statement is compared byte for byte with what its bundle should say.
SCOPE = (
    "An empirical test of models as they were produced. A certified candidate could not be told "
    "from retrainings of the same recipe on the listed axes, by a test with a known error rate, in "
    "an audit whose controls show what it would have noticed.",
    "No deletion, privacy or right-to-erasure guarantee.",
    "No defence against a candidate that was built to pass this test.",
    "Meaningful only where the references were trained like the model that learned the forget set, "
    "without the forget set.",
)


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
    from palimpsest.certificate.verify import examine

    run = Run.open(run_path)
    key = None if key_path is None else read_private(key_path)
    out = run.path / "certificate.zip" if out_path is None else Path(out_path)
    if out.is_dir():
        raise InputError(f"{out}: a folder; expected the name of a file to write")
    if key is None and _signed(out):
        raise InputError(
            f"{out}: holds a signed certificate, and no key was given to sign the new one; sign it "
            "with --key, or write it elsewhere with --out"
        )
    members = gather(run, pool_path)
    members |= recompute(members, run.cells)
    public = None if key is None else public_of(key)
    members[STATEMENT] = statement(members, None if public is None else signer(public))
    members |= {} if key is None else {ENVELOPE: envelope(members[STATEMENT], key)}
    data = pack(members)
    examine(data, public).require(str(run.path))
    make_folder(out.parent)
    write_bytes(out, data)
    return out


def gather(run: Run, pool_path: Path | str | None = None) -> dict[str, bytes]:
    """Return the files of a finished run that go into its bundle; BundleError if not finished."""
    _require_finished(run)
    # A study's summary repeats what the cells say and is no part of its certificate.
    also = (SUMMARY,) if planned(run.plan, len(run.cells)).summary else ()
    with disk_errors(run.path, "read"):
        members = {name: (run.path / name).read_bytes() for name in (*FIXED, *also)}
        for cell_id in run.cells:
            names = [CELL, *files_of(run.cell(cell_id).summary())]
            paths = [f"cells/{cell_id}/{name}" for name in names]
            members |= {path: (run.path / path).read_bytes() for path in paths}
    if any(run.cell(cell_id).summary()["opening"] for cell_id in run.cells):
        members[REVEAL] = _reveal(run, pool_path)
    return members


def recompute(members: Mapping[str, bytes], cells: tuple[str, ...]) -> dict[str, bytes]:
    """Return the verdict file of every cell, from the tables and rules among the members."""
    verdicts = {cell_id: verdict_of(members, cell_id) for cell_id in cells}
    return {f"cells/{cell_id}/{VERDICT}": rendered(v) for cell_id, v in verdicts.items()}


def verdict_of(members: Mapping[str, bytes], cell_id: str) -> Verdict | None:
    """Return the verdict that follows from a cell's tables; None without any candidate."""
    models = document(members, f"cells/{cell_id}/{CELL}")["models"]
    tables = read_tables(cell_id, tables_of(members, cell_id))
    return judge(cell_id, rules_of(members), models, tables)


def tables_of(members: Mapping[str, bytes], cell_id: str) -> dict[str, bytes]:
    """Return the bytes of the tables that a cell's verdict depends on."""
    names = files_of(document(members, f"cells/{cell_id}/{CELL}"))
    return {name: members[f"cells/{cell_id}/{name}"] for name in names}


def files_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of the tables that a cell's verdict depends on, by its summary."""
    return [name for name in TABLES if name in (*REQUIRED_TABLES, *summary["artifacts"])]


def rules_of(members: Mapping[str, bytes]) -> Rules:
    """Return the frozen rules, or raise BundleError when this version does not read them."""
    try:
        return Rules(**document(members, "rules.json")["rules"])
    except (TypeError, KeyError, PlanError) as error:
        raise BundleError(
            f"rules.json: not the rules this version reads ({error}); verify with the version that "
            "made the run"
        ) from error


def rendered(verdict: Verdict | None) -> bytes:
    """Return a verdict as the bytes of its file; ``null`` for a cell without candidates."""
    return canonical(None if verdict is None else json.loads(verdict.to_json())) + b"\n"


def statement(members: Mapping[str, bytes], signed_by: Mapping[str, str] | None) -> bytes:
    """Return the in-toto statement about all members but the statements themselves."""
    terms, cells = document(members, "terms.json"), {}
    for cell_id in terms["terms"]["cells"]:
        models = document(members, f"cells/{cell_id}/{CELL}")["models"]
        verdict = document(members, f"cells/{cell_id}/{VERDICT}") or {}
        cells[cell_id] = {
            "verdict": {key: verdict.get(key) for key in HEADLINE},
            "models": {name: model.get("digest") for name, model in models.items()},
        }
    predicate = {
        "run": document(members, "plan.json").get("name"),
        "terms": terms_digest(terms),
        "rules": document(members, "rules.json")["hash"],
        "seal": document(members, "seal.json")["commitment"],
        "fork_of": terms["fork_of"],
        "cells": cells,
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


def _reveal(run: Run, pool_path: Path | str | None) -> bytes:
    """Return the opened pool and its nonce, checked against the run's commitment."""
    if pool_path is not None:
        pool = read_pool(pool_path)
    elif run.plan.get("seal"):
        raise SealError(
            f"{run.path}: the run sealed a pool of your own, and its certificate reveals it; give "
            "the file that was sealed with --pool"
        )
    else:
        pool = builtin_pool()
    return canonical(revealed(verify(pool, run.seal["commitment"]))) + b"\n"


def _require_finished(run: Run) -> None:
    unfinished = [cell_id for cell_id in run.cells if not run.cell(cell_id).ended()]
    if unfinished:
        halted = run.cell(unfinished[0]).halted()
        todo = halted or "finish them with the command that started the run, then certify"
        raise BundleError(
            f"{run.path}: {len(unfinished)} of {len(run.cells)} cells are not finished "
            f"({', '.join(unfinished[:3])}); a certificate covers every planned cell; {todo}"
        )
    problems = run.verify()
    if problems:
        raise BundleError(f"{run.path}: cannot be certified: {problems[0]}")


def _signed(path: Path) -> bool:
    """Return whether a file holds a signed bundle, even a damaged one."""
    with disk_errors(path, "read"):
        return path.exists() and ENVELOPE.encode() in path.read_bytes()
