"""What is in a certificate bundle, the statement that binds it together, and ``certify``.

::

    plan.json  rules.json  seal.json  environment.json  chain.jsonl     as in the run folder
    reveal.json                        the audit pool and its nonce, when the seal was opened
    cells/<id>/cell.json  chain.jsonl  items.parquet  curves.parquet    as in the run folder
    cells/<id>/headroom.parquet        the same, where forget facts carried evidence
    cells/<id>/verdict.json            recomputed from the tables
    statement.json                     in-toto Statement v1 over all of the above
    statement.dsse.json                the same statement, signed, when a key was given
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.certificate.archive import pack
from palimpsest.certificate.judge import Scores, verdicts
from palimpsest.certificate.signature import envelope, public_of, read_private, signer
from palimpsest.criteria.rules import Rules
from palimpsest.errors import BundleError, InputError, PlanError, SealError, StoreError
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, read_pool, verify
from palimpsest.run.status import status
from palimpsest.run.store import (
    ORIGIN,
    Run,
    canonical,
    digest,
    make_folder,
    verify_chain,
    write_bytes,
)
from palimpsest.verdict import Verdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://github.com/palimpsest-audit/palimpsest/verdict/v1"
FORMAT = 1

FIXED = ("plan.json", "rules.json", "seal.json", "environment.json", "chain.jsonl")
CELL = ("cell.json", "chain.jsonl", "items.parquet", "curves.parquet", "verdict.json")
HEADROOM = "headroom.parquet"
REVEAL, STATEMENT, ENVELOPE = "reveal.json", "statement.json", "statement.dsse.json"

# Part of the format: a statement is compared byte for byte with what its bundle should say.
SCOPE = (
    "An empirical, selective test of unlearning methods as they were produced: it chooses among a "
    "fixed pool of candidates, and abstains where it cannot choose.",
    "No deletion, privacy or right-to-erasure guarantee, and no statement about one model alone.",
    "No defence against a candidate that was built to pass this test.",
    "Sound only where the forget set's never-learned level can be read off never-learned probes.",
)


def certify(
    run_path: Path | str,
    out_path: Path | str | None = None,
    key_path: Path | str | None = None,
    pool_path: Path | str | None = None,
) -> Path:
    """Write the certificate of a finished run and give back its path (RUN/certificate.zip).

    ``key_path`` is an Ed25519 private key in PEM form to sign with; ``pool_path`` the file of a
    sealed pool of the user's own, which the certificate reveals. Nothing is written unless the
    bundle passes every check that ``verify`` makes.
    """
    from palimpsest.certificate.verify import examine

    run = Run.open(run_path)
    key = None if key_path is None else read_private(key_path)
    out = run.path / "certificate.zip" if out_path is None else Path(out_path)
    if out.is_dir():
        raise InputError(f"{out}: a folder; expected the name of a file to write")
    members = gather(run, pool_path)
    members |= recompute(members, run.cells)
    named = None if key is None else signer(public_of(key))
    members[STATEMENT] = statement(members, named)
    if key is not None:
        members[ENVELOPE] = envelope(members[STATEMENT], key)
    data = pack(members)
    examine(data, None if key is None else public_of(key)).require(f"{run.path}")
    make_folder(out.parent)
    write_bytes(out, data)
    return out


def gather(run: Run, pool_path: Path | str | None = None) -> dict[str, bytes]:
    """The files of a finished run that go into its bundle; BundleError when it is not finished."""
    _require_finished(run)
    members = {name: _read(run.path / name) for name in FIXED}
    # A run's chain may end in the torn line of an interrupted append, which is no part of it.
    members["chain.jsonl"] = members["chain.jsonl"][: run.chain().size]
    for cell_id in run.cells:
        folder = run.path / "cells" / cell_id
        for name in CELL[:-1]:
            members[f"cells/{cell_id}/{name}"] = _read(folder / name)
        if asked_with_evidence(members, cell_id):
            members[f"cells/{cell_id}/{HEADROOM}"] = _read(folder / HEADROOM)
    if any(run.cell(cell_id).chain().find("seal opened") for cell_id in run.cells):
        members[REVEAL] = _reveal(run, pool_path)
    return members


def recompute(members: Mapping[str, bytes], cells: tuple[str, ...]) -> dict[str, bytes]:
    """The verdict file of every cell, from the tables and rules among the members."""
    found = verdicts(rules_of(members), {cell_id: scores(members, cell_id) for cell_id in cells})
    return {f"cells/{cell_id}/verdict.json": rendered(one) for cell_id, one in found.items()}


def rules_of(members: Mapping[str, bytes]) -> Rules:
    """The frozen rules, or BundleError when this version does not read them."""
    try:
        return Rules(**document(members, "rules.json")["rules"])
    except (TypeError, KeyError, PlanError) as error:
        raise BundleError(
            f"rules.json: not the rules this version reads ({error}); verify with the version that "
            "made the run"
        ) from error


def scores(members: Mapping[str, bytes], cell_id: str) -> Scores:
    """What the verdict on a cell is computed from."""
    summary = document(members, f"cells/{cell_id}/cell.json")
    try:
        family, candidates = str(summary["family"]), tuple(map(str, summary["candidates"]))
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"cells/{cell_id}/cell.json: lists no family and candidates; expected a cell in which "
            "candidates were judged; certify the run of a study"
        ) from error
    items, curves = (members[f"cells/{cell_id}/{name}.parquet"] for name in ("items", "curves"))
    headroom = None
    if asked_with_evidence(members, cell_id):
        headroom = members[f"cells/{cell_id}/{HEADROOM}"]
    must_pass = bool(document(members, "plan.json").get("reference_must_pass"))
    return Scores(family, candidates, items, curves, headroom, must_pass)


def asked_with_evidence(members: Mapping[str, bytes], cell_id: str) -> bool:
    """Whether a headroom is part of the verdict on a cell, as its summary says."""
    summary = document(members, f"cells/{cell_id}/cell.json")
    return isinstance(summary, dict) and bool(summary.get("headroom"))


def rendered(verdict: Verdict | None) -> bytes:
    """A verdict as the bytes of its file; a cell without candidates has none: null."""
    return canonical(None if verdict is None else json.loads(verdict.to_json())) + b"\n"


def statement(members: Mapping[str, bytes], named: Mapping[str, str] | None) -> bytes:
    """The in-toto statement about all members but the statements themselves.

    ``named`` is the signer, or None for a bundle that is not signed.
    """
    rules, seal = document(members, "rules.json"), document(members, "seal.json")
    environment = document(members, "environment.json")
    chain = verify_chain(members["chain.jsonl"], ORIGIN)
    genesis = next(entry.digest for entry in chain.entries if entry.event == "seal")
    planned = next(entry.data["cells"] for entry in chain.entries if entry.event == "cells")
    cells = {}
    for cell_id in planned:
        summary = document(members, f"cells/{cell_id}/cell.json")
        own = verify_chain(members[f"cells/{cell_id}/chain.jsonl"], genesis, f"{cell_id}/chain")
        verdict = document(members, f"cells/{cell_id}/verdict.json") or {}
        cells[cell_id] = {
            "verdict": {name: verdict.get(name) for name in _TOLD},
            "chain": own.head,
            "base": summary.get("base_digest"),
            "models": summary.get("digests", {}),
        }
    subject = [
        {"name": name, "digest": {"sha256": digest(members[name]).removeprefix("sha256:")}}
        for name in sorted(members)
        if name not in (STATEMENT, ENVELOPE)
    ]
    predicate = {
        "format": FORMAT,
        "run": document(members, "plan.json").get("name"),
        "plan": digest(members["plan.json"]),
        "rules": rules["hash"],
        "seal": {"commitment": seal["commitment"], "opened": REVEAL in members},
        "terms": genesis,
        "chain": chain.head,
        "code": environment.get("code"),
        "fork_of": environment.get("fork_of"),
        "cells": cells,
        "scope": list(SCOPE),
        "signer": None if named is None else dict(named),
    }
    whole = {
        "_type": STATEMENT_TYPE,
        "subject": subject,
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return canonical(whole) + b"\n"


_TOLD = ("status", "candidate", "reason", "mode")


def document(members: Mapping[str, bytes], name: str) -> Any:
    """The value in one of the JSON members, which must be written in the one canonical way."""
    try:
        data = members[name]
    except KeyError:
        raise BundleError(f"{name} is missing; expected it in the bundle") from None
    try:
        value = json.loads(data)
        # One spelling only: no repeated keys, no NaN, no second way to write a number.
        plain = canonical(value) + b"\n" == data
    except (ValueError, RecursionError, StoreError) as error:
        raise BundleError(f"{name}: not the JSON that a run stores") from error
    if not plain:
        raise BundleError(f"{name}: written in another way than a run stores JSON")
    return value


def pool_of(value: Any) -> tuple[AuditPool, str]:
    """The pool and nonce in the contents of reveal.json, or BundleError."""
    try:
        pool, nonce = value["pool"], value["nonce"]
        phrasings = {key: tuple(texts) for key, texts in pool["phrasings"].items()}
        plain = all(isinstance(text, str) for texts in phrasings.values() for text in texts)
        whole = {"nonce": nonce, "pool": {"by": pool["by"], "phrasings": pool["phrasings"]}}
        if not plain or value != whole or pool["by"] not in ("relation", "fact"):
            raise TypeError
        return AuditPool(pool["by"], phrasings), str(nonce)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{REVEAL}: not a pool with its nonce") from error


def _reveal(run: Run, pool_path: Path | str | None) -> bytes:
    """The opened pool and its nonce, checked against the run's commitment."""
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
    nonce = nonce or commitment.nonce
    verify(pool, commitment, nonce)
    phrasings = {key: list(texts) for key, texts in pool.phrasings.items()}
    return canonical({"nonce": nonce, "pool": {"by": pool.by, "phrasings": phrasings}}) + b"\n"


def _require_finished(run: Run) -> None:
    now = status(run)
    left = (*now.running, *now.failed, *now.waiting)
    if left:
        raise BundleError(
            f"{run.path}: {len(left)} of {len(run.cells)} cells are not finished "
            f"({', '.join(sorted(left)[:3])}{', ...' if len(left) > 3 else ''}); a certificate "
            "covers every planned cell; run the same study again to finish them"
        )
    problems = run.verify()
    if problems:
        raise BundleError(f"{run.path}: cannot be certified: {problems[0]}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); finish the run") from error
