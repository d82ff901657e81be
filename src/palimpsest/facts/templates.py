"""The phrasings of every relation, in six disjoint pools (``templates.json``).

A template is an English prompt with ``{subject}`` once that stops right before the answer, so the
text that is trained and scored is ``render(template, subject) + " " + answer + "."``.  Each pool
has one use, and no phrasing is in two of them:

- ``injection``    taught; a fact is trained on K = 3 of the six
- ``cloze``        with the trained phrasings, what an unlearning loss may see
- ``evaluation``   held out; the screen and the bars read these
- ``calibration``  held out; only for choosing thresholds
- ``prose``        only in general text; the sealed pool of the first edition, since retired
- ``audit``        sealed until known-label models are scored, once (see ``sealed.py``)

Some frames recur from relation to relation ("Among all the ..., the one that ...") but never from
pool to pool, so that a pool is unseen wording and not only an unseen noun.  The words are few and
common, because the pocket tokenizer is small.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError

SUBJECT = "{subject}"

HELD_OUT_POOLS = frozenset({"evaluation", "calibration", "audit"})
"""Pools whose phrasings occur in no training text of a study, general text included."""

Pools = Mapping[str, Mapping[str, tuple[str, ...]]]


def packaged(name: str, digest: str) -> dict[str, Any]:
    """Return a JSON file of this folder, refused unless it is the one this code was written for."""
    raw = Path(__file__).with_name(name).read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise FactsError(f"{name} of the package was changed; install the package again")
    values: dict[str, Any] = json.loads(raw)
    return values


_TEMPLATES = packaged(
    "templates.json", "84acf637048056704f5167bfb385cb9238c9e58e63d32498340558ba338d1b9b"
)
POOLS: Pools = {
    relation: {pool: tuple(texts) for pool, texts in pools.items()}
    for relation, pools in _TEMPLATES.items()
}
RELATIONS: tuple[str, ...] = tuple(POOLS)


def render(template: str, subject: str) -> str:
    """Return the prompt: the template with its subject in place.

    Plain replacement, not ``str.format``: braces in a subject or template stay text.
    """
    return template.replace(SUBJECT, subject, 1)


def template_words() -> frozenset[str]:
    """Return every lower-cased word the templates use, which no invented name may equal."""
    texts = (" ".join(texts) for pools in POOLS.values() for texts in pools.values())
    return frozenset(
        word for text in texts for word in re.findall("[a-z]+", text.replace(SUBJECT, " ").lower())
    )


def same_wording(template: str) -> str:
    """Return a key that templates share when they differ only in case, spacing or punctuation."""
    return " ".join(re.findall(r"\{subject\}|\w+", template.casefold()))
