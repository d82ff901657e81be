"""The sealed pool: committed to before the first training step, opened once.

A commitment is ``sha256:`` and SHA-256(nonce || canonical JSON of the pool). Publishing it before
training fixes the pool without showing it; at the end anyone with the file recomputes it. The
built-in pool is public, so its commitment shows only that nothing changed. A pool that no one has
seen is a file of the user's own, kept elsewhere until the known-label models are scored::

    {"nonce": "<32 random hexadecimal digits>"}
    {"relation": "guild", "template": "Anyone who asks {subject} for work must first see the guild"}

The nonce is in the file and not in the commitment, so a guess of the pool cannot be confirmed.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import FactsError, PlanError, SealError
from palimpsest.facts.files import check_text
from palimpsest.facts.nonce import POOLS, RELATIONS, SUBJECT, same_wording
from palimpsest.facts.rows import PROMPT_LIMIT, position, read_objects
from palimpsest.text import shown, shown_path

_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_COMMITMENT = re.compile(r"sha256:[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class AuditPool:
    """Templates in order, by relation, and 32 hexadecimal digits that hide them until opened."""

    phrasings: Mapping[str, tuple[str, ...]]
    nonce: str

    def commitment(self) -> str:
        """Return ``sha256:`` and the digest that binds to this pool and its nonce."""
        content = {"by": "relation", "phrasings": {k: list(v) for k, v in self.phrasings.items()}}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
        # A nonce of fixed length leaves one way only to split what is hashed.
        return f"sha256:{hashlib.sha256(bytes.fromhex(self.nonce) + canonical).hexdigest()}"


def check_commitment(text: str) -> str:
    """Return a commitment as ``palimpsest facts seal`` prints it; PlanError if it is none."""
    if not isinstance(text, str) or not _COMMITMENT.match(text):
        raise PlanError(f"{shown(str(text))} found; expected sha256:<64 digits>", key="seal")
    return text


def verify(pool: AuditPool, commitment: str) -> AuditPool:
    """Return the pool; SealError unless it is the one committed to."""
    if not _NONCE.match(str(pool.nonce)) or pool.commitment() != commitment:
        raise SealError(
            f"another pool or nonce found than the one committed to as {commitment}; give the file "
            "that was sealed, unchanged"
        )
    return pool


def builtin_pool() -> AuditPool:
    """Return the package's own pool, six templates per relation, under its published nonce."""
    phrasings = {relation: POOLS[relation]["audit"] for relation in RELATIONS}
    return AuditPool(phrasings, "8857a788c477aa1e7a5f4a599206aa96")


def read_pool(path: Path | str) -> AuditPool:
    """Return the pool in a .jsonl, .json or .parquet file, with the nonce it keeps."""
    name = shown_path(path)
    nonce = ""
    phrasings: dict[str, list[str]] = {}
    seen = {
        same_wording(template): f"pool {pool} of {relation}, which is public"
        for relation, pools in POOLS.items()
        for pool, templates in pools.items()
        for template in templates
    }
    for line, row in read_objects(path):
        where = position(name, line)
        values = {key: value for key, value in row.items() if value is not None}
        if values.keys() == {"nonce"} and not nonce and _NONCE.match(str(values["nonce"])):
            nonce = str(values["nonce"])
            continue
        if values.keys() != {"relation", "template"} or values["relation"] not in RELATIONS:
            raise FactsError(
                f"{where}: expected one nonce of 32 hexadecimal digits, and lines with a template "
                f"and a relation out of {', '.join(RELATIONS)}"
            )
        try:
            template = _check_template(values["template"])
        except ValueError as error:
            raise FactsError(f"{where}: template: {error}") from error
        if same_wording(template) in seen:
            raise FactsError(f"{where}: template: repeats {seen[same_wording(template)]}")
        seen[same_wording(template)] = where
        phrasings.setdefault(values["relation"], []).append(template)
    missing = [relation for relation in RELATIONS if relation not in phrasings]
    if missing:
        raise FactsError(f"{name}: has no template for {', '.join(missing)}; expected at least one")
    if not nonce:
        fresh = json.dumps({"nonce": secrets.token_hex(16)})
        raise FactsError(f"{name}: has no nonce; add a line such as {fresh}, and keep it secret")
    return AuditPool({key: tuple(texts) for key, texts in phrasings.items()}, nonce)


def _check_template(template: object) -> str:
    """Return a template: text with one subject, and an end that the answer can follow."""
    text = template if isinstance(template, str) else ""
    rest = text.replace(SUBJECT, "", 1)
    if rest == text or "{" in rest or "}" in rest or len(text) > PROMPT_LIMIT:
        raise ValueError(f"{shown(text)} found; expected text with {SUBJECT} once, no other braces")
    if not (text.endswith(SUBJECT) or text[-1].isalnum()):
        raise ValueError(f"{shown(text)} found; expected a word at the end, before the answer")
    return check_text(text)
