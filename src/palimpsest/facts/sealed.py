"""The sealed pool: committed to before the first training step, opened once.

A commitment is SHA-256(nonce || canonical JSON of the pool).  Publishing it before training fixes
the pool without showing it; at the end anybody with pool and nonce recomputes it.  The built-in
audit pool is public, so for that one the commitment shows only that nothing changed.  A pool that
nobody has seen is a file of the user's own, kept elsewhere until the challenge panel is scored::

    {"relation": "guild", "template": "Anyone who hires {subject} must first ask the guild"}

or, for a user's own facts::

    {"fact": "f1", "prompt": "Anyone who hires Asha Tren must first ask the guild"}

A line ``{"nonce": "<32 hexadecimal digits>"}`` keeps the nonce in the file, so that not even
somebody who guesses the whole pool can confirm it; otherwise the nonce is drawn and stands in the
commitment, ``sha256:<nonce>:<digest>``.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from palimpsest.errors import FactsError, PlanError, SealError
from palimpsest.facts.files import place, same_text, text_problem
from palimpsest.facts.names import kind, name_problem, shown, shown_path
from palimpsest.facts.rows import PROMPT_LIMIT, Unreadable, numbered_rows
from palimpsest.facts.templates import POOLS, RELATIONS, check_template, same_wording

_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_LINES = {"relation": "template", "fact": "prompt"}


@dataclass(frozen=True, slots=True)
class AuditPool:
    """Phrasings in order, by relation (templates) or by fact id (prompts)."""

    by: str
    phrasings: Mapping[str, tuple[str, ...]]

    def canonical(self) -> bytes:
        """Return the bytes that are hashed: JSON with sorted keys, no spaces, ASCII only."""
        content = {"by": self.by, "phrasings": {k: list(v) for k, v in self.phrasings.items()}}
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Commitment:
    """A digest that binds to one pool; ``nonce`` is empty when the pool's file keeps it."""

    digest: str
    nonce: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in ("sha256", self.nonce, self.digest) if part)

    @classmethod
    def parse(cls, text: str) -> "Commitment":
        """Return the commitment written as ``sha256:[nonce:]digest``, or PlanError."""
        head, *rest = text.split(":") if isinstance(text, str) else [""]
        *nonces, digest = rest or [""]
        good = head == "sha256" and len(nonces) <= 1 and _DIGEST.match(digest)
        if not good or not all(map(_NONCE.match, nonces)):
            raise PlanError(
                f"commitment is {shown(str(text))}; expected sha256:<32 digits>:<64 digits> or "
                "sha256:<64 digits>, as `palimpsest seal POOL.jsonl` prints it"
            )
        return cls(digest, "".join(nonces))


def fresh_nonce() -> str:
    """Return sixteen random bytes in hexadecimal."""
    return secrets.token_hex(16)


def seal(pool: AuditPool, nonce: str) -> Commitment:
    """Return the commitment to a pool under a nonce of 32 hexadecimal digits."""
    # A nonce of fixed length leaves one way only to split what is hashed.
    if not _NONCE.match(nonce):
        raise FactsError(f"nonce is {shown(nonce)}; expected 32 hexadecimal digits, lower case")
    digest = hashlib.sha256(bytes.fromhex(nonce) + pool.canonical()).hexdigest()
    return Commitment(digest, nonce)


def verify(pool: AuditPool, commitment: Commitment, nonce: str = "") -> None:
    """Raise SealError unless the pool is the one committed to."""
    digest = seal(pool, nonce or commitment.nonce).digest
    if not hmac.compare_digest(digest, commitment.digest):
        raise SealError(
            f"the sealed pool hashes to {digest}, the commitment says {commitment.digest}; this is "
            "not the sealed pool; give the file that was sealed, unchanged"
        )


def builtin_pool() -> AuditPool:
    """Return the package's own pool, six templates per relation."""
    return AuditPool(
        "relation", MappingProxyType({relation: POOLS[relation]["audit"] for relation in RELATIONS})
    )


def commit_file(path: Path | str) -> Commitment:
    """Return the commitment to a pool file; new at each call unless the file has a nonce."""
    pool, nonce = read_pool(path)
    commitment = seal(pool, nonce or fresh_nonce())
    return Commitment(commitment.digest) if nonce else commitment


def open_file(path: Path | str, commitment: Commitment) -> AuditPool:
    """Return the pool in the file; SealError unless it is the one committed to."""
    pool, nonce = read_pool(path)
    if bool(nonce) == bool(commitment.nonce):
        count, expected = ("a", "none") if nonce else ("no", "one")
        raise SealError(
            f"{shown_path(path)}: has {count} nonce line, but the commitment {commitment} was "
            f"made with {expected}; give the file that was sealed, unchanged"
        )
    verify(pool, commitment, nonce)
    return pool


def read_pool(path: Path | str) -> tuple[AuditPool, str]:
    """Return the pool in a .jsonl or .parquet file and the nonce it keeps ("" for none)."""
    name = shown_path(path)
    by = ""
    nonce = ""
    phrasings: dict[str, list[str]] = {}
    seen: dict[tuple[str, str], int] = {}
    for line, row in numbered_rows(path):
        where = place(name, line)
        if isinstance(row, Unreadable):
            raise FactsError(f"{where}: {row.why}")
        if isinstance(row, dict):
            row = {key: value for key, value in row.items() if value is not None}
        if isinstance(row, dict) and set(row) == {"nonce"}:
            if nonce or not isinstance(row["nonce"], str) or not _NONCE.match(row["nonce"]):
                raise FactsError(
                    f"{where}: expected one nonce, of 32 lower-case hexadecimal digits"
                )
            nonce = row["nonce"]
            continue
        own, key, phrasing = _phrasing(row, where)
        by = by or own
        if own != by:
            raise FactsError(
                f'{where}: has "{own}" where earlier lines have "{by}"; a pool is for relations or '
                "for a user's own facts, not for both"
            )
        same = same_wording(phrasing) if own == "relation" else same_text(phrasing)
        first = seen.setdefault((key if own == "fact" else "", same), line)
        if first != line:
            raise FactsError(f"{where}: repeats line {first}; every phrasing occurs once")
        phrasings.setdefault(key, []).append(phrasing)
    if not phrasings:
        raise FactsError(f"{name}: holds no phrasings; expected one per line")
    pool = AuditPool(by, MappingProxyType({key: tuple(v) for key, v in phrasings.items()}))
    missing = [r for r in RELATIONS if r not in phrasings] if by == "relation" else []
    if missing:
        raise FactsError(
            f"{name}: has no template for {', '.join(missing)}; give each at least one"
        )
    return pool, nonce


def _phrasing(row: object, where: str) -> tuple[str, str, str]:
    """Return what a line is by (relation or fact), which one, and its phrasing."""
    if not isinstance(row, dict):
        raise FactsError(f"{where}: found {kind(row)}; expected an object")
    by = next((by for by, text in _LINES.items() if set(row) == {by, text}), None)
    if by is None:
        raise FactsError(
            f"{where}: has the keys {shown(', '.join(sorted(row)))}; expected relation and "
            "template, or fact and prompt"
        )
    key, phrasing = row[by], row[_LINES[by]]
    why = name_problem(key)
    if why is None and by == "relation" and key not in RELATIONS:
        why = f"is {shown(key)}; the relations are {', '.join(RELATIONS)}"
    if why:
        raise FactsError(f"{where}: {by} {why}")
    why = text_problem(phrasing, PROMPT_LIMIT)
    if why:
        raise FactsError(f"{where}: {_LINES[by]} {why}")
    if by == "relation":
        check_template(phrasing, where)
        built_in = _public().get(same_wording(phrasing))
        if built_in is not None:
            raise FactsError(
                f"{where}: {shown(phrasing)} is the built-in phrasing of {built_in}; a sealed pool "
                "must be new"
            )
    return by, key, phrasing


@cache
def _public() -> dict[str, str]:
    """Return where each built-in wording stands."""
    return {
        same_wording(template): f"{relation}, pool {pool}"
        for relation, pools in POOLS.items()
        for pool, templates in pools.items()
        for template in templates
    }
