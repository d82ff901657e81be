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

from palimpsest.certificate.archive import MAX_BYTES, pack
from palimpsest.certificate.judge import TABLES, judge
from palimpsest.certificate.signature import envelope, public_of, read_private, signer
from palimpsest.criteria.rules import Rules
from palimpsest.errors import BundleError, InputError, PlanError, SealError, StoreError
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, read_pool, verify
from palimpsest.run.store import Run, canonical, digest, make_folder, terms_digest, write_bytes
from palimpsest.verdict import Verdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v2"
FORMAT = 2

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

    ``key_path`` is an Ed25519 private key in PEM form to sign with; ``pool_path`` the file of a
    sealed pool of the user's own, which the certificate reveals. Nothing is written unless the
    bundle passes every check that ``verify`` makes, and a signed bundle is replaced only by another
    signed one.
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
    members[STATEMENT] = statement(members, None if key is None else signer(public_of(key)))
    if key is not None:
        members[ENVELOPE] = envelope(members[STATEMENT], key)
    data = pack(members)
    examine(data, None if key is None else public_of(key)).require(f"{run.path}")
    make_folder(out.parent)
    write_bytes(out, data)
    return out


def gather(run: Run, pool_path: Path | str | None = None) -> dict[str, bytes]:
    """Return the files of a finished run that go into its bundle; BundleError if not finished."""
    _require_finished(run)
    also = (SUMMARY,) if (run.path / SUMMARY).exists() else ()
    members = {name: _read(run.path / name) for name in (*FIXED, *also)}
    for cell_id in run.cells:
        folder = run.path / "cells" / cell_id
        members[f"cells/{cell_id}/{CELL}"] = _read(folder / CELL)
        for name in files_of(members, cell_id):
            members[f"cells/{cell_id}/{name}"] = _read(folder / name)
    if any(run.cell(cell_id).summary()["opening"] for cell_id in run.cells):
        members[REVEAL] = _reveal(run, pool_path)
    return members


def recompute(members: Mapping[str, bytes], cells: tuple[str, ...]) -> dict[str, bytes]:
    """Return the verdict file of every cell, from the tables and rules among the members."""
    verdicts = {cell_id: verdict_of(members, cell_id) for cell_id in cells}
    return {f"cells/{cell_id}/{VERDICT}": rendered(v) for cell_id, v in verdicts.items()}


def verdict_of(members: Mapping[str, bytes], cell_id: str) -> Verdict | None:
    """Return the verdict that follows from a cell's tables; None without any candidate."""
    tables = {n: members[f"cells/{cell_id}/{n}"] for n in files_of(members, cell_id)}
    models = document(members, f"cells/{cell_id}/{CELL}")["models"]
    return judge(cell_id, rules_of(members), models, tables)


def files_of(members: Mapping[str, bytes], cell_id: str) -> tuple[str, ...]:
    """Return the names of the tables that a cell's verdict depends on, as its summary lists them."""
    summary = document(members, f"cells/{cell_id}/{CELL}")
    artifacts = summary.get("artifacts") if isinstance(summary, dict) else None
    listed = artifacts if isinstance(artifacts, dict) else {}
    return tuple(name for name in TABLES if name in listed or name in REQUIRED_TABLES)


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
        "format": FORMAT,
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


def pool_of(value: Any) -> tuple[AuditPool, str]:
    """Return the pool and nonce in the contents of reveal.json, or raise BundleError."""
    try:
        by, phrasings = value["pool"]["by"], value["pool"]["phrasings"]
        pool = AuditPool(by, {str(key): tuple(map(str, t)) for key, t in phrasings.items()})
        nonce = str(value["nonce"])
        if value == revealed(pool, nonce) and by in ("relation", "fact"):
            return pool, nonce
    except (KeyError, TypeError, AttributeError):
        pass
    raise BundleError(f"{REVEAL}: not a pool with its nonce")


def revealed(pool: AuditPool, nonce: str) -> dict[str, Any]:
    """Return the contents of reveal.json."""
    phrasings = {key: list(texts) for key, texts in pool.phrasings.items()}
    return {"nonce": nonce, "pool": {"by": pool.by, "phrasings": phrasings}}


def _reveal(run: Run, pool_path: Path | str | None) -> bytes:
    """Return the opened pool and its nonce, checked against the run's commitment."""
    commitment = Commitment.parse(run.seal["commitment"])
    if pool_path is not None:
        pool, nonce = read_pool(pool_path)
    elif run.plan.get("seal"):
        raise SealError(
            f"{run.path}: the run sealed a pool of your own, and its certificate reveals it; give "
            "the file that was sealed with --pool"
        )
    else:
        pool, nonce = builtin_pool(), ""
    verify(pool, commitment, nonce)
    return canonical(revealed(pool, nonce or commitment.nonce)) + b"\n"


def _require_finished(run: Run) -> None:
    unfinished = [cell_id for cell_id in run.cells if not run.cell(cell_id).ended()]
    if unfinished:
        halted = run.cell(unfinished[0]).halted()
        todo = "run the same command again to finish them" if halted is None else halted
        raise BundleError(
            f"{run.path}: {len(unfinished)} of {len(run.cells)} cells are not finished "
            f"({', '.join(unfinished[:3])}{', ...' if len(unfinished) > 3 else ''}); a certificate "
            f"covers every planned cell; {todo}"
        )
    problems = run.verify()
    if problems:
        raise BundleError(f"{run.path}: cannot be certified: {problems[0]}")


def _signed(path: Path) -> bool:
    """Return whether a file holds a signed bundle, even a damaged one."""
    try:
        with open(path, "rb") as file:
            return ENVELOPE.encode() in file.read(MAX_BYTES)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{path}: cannot be replaced ({error.strerror})") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); finish the run") from error
