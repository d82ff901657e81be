"""The phrasings of every relation, in six disjoint pools (``templates.json``).

A template is an English prompt with ``{subject}`` once that stops right before the answer, so the
text that is trained and scored is ``render(template, subject) + " " + answer + "."``.  Each pool
has one use, and no phrasing is in two of them:

- ``injection``    taught; a fact is trained on K = 3 of the six
- ``cloze``        with the trained phrasings, what an unlearning loss may see
- ``evaluation``   held out; the screen and the bars read these
- ``calibration``  held out; only for choosing thresholds
- ``prose``        only in general text; the sealed pool of the first edition, since retired
- ``audit``        sealed until the challenge panel is scored, once (see ``sealed.py``)

Some frames recur from relation to relation ("Among all the ..., the one that ...") but never from
pool to pool, so that a pool is unseen wording and not only an unseen noun.  The words are few and
common, because the pocket tokenizer is small.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

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
    return cast(dict[str, Any], json.loads(raw))


POOLS: Pools = MappingProxyType(
    {
        relation: MappingProxyType({pool: tuple(texts) for pool, texts in pools.items()})
        for relation, pools in packaged(
            "templates.json", "84acf637048056704f5167bfb385cb9238c9e58e63d32498340558ba338d1b9b"
        ).items()
    }
)
RELATIONS: tuple[str, ...] = tuple(POOLS)


def render(template: str, subject: str) -> str:
    """Return the prompt: the template with its subject in place.

    Plain replacement, not ``str.format``: braces in a subject or template stay text.
    """
    return template.replace(SUBJECT, subject, 1)


def template_words() -> frozenset[str]:
    """Return every lower-cased word the templates use, which no invented name may equal."""
    return frozenset(
        word
        for by_pool in POOLS.values()
        for templates in by_pool.values()
        for template in templates
        for word in re.findall(r"[a-z]+", template.replace(SUBJECT, " ").lower())
    )


def same_wording(template: str) -> str:
    """Return a key that templates share when they differ only in case, spacing or punctuation."""
    return " ".join(re.findall(r"\{subject\}|\w+", template.casefold()))


def check_template(template: str, where: str) -> None:
    """Refuse, as FactsError, a template without exactly one subject or not ending at the answer."""
    if template.count(SUBJECT) != 1:
        raise FactsError(
            f"{where}: {template!r} has {template.count(SUBJECT)} times {SUBJECT}; "
            "write it exactly once"
        )
    rest = template.replace(SUBJECT, "")
    if "{" in rest or "}" in rest:
        raise FactsError(
            f"{where}: {template!r} has another placeholder than {SUBJECT}; the answer is not "
            "written in a template, it is added after it, so it must come last"
        )
    if not (template.endswith(SUBJECT) or template[-1].isalnum()):
        raise FactsError(
            f"{where}: {template!r} ends with {template[-1]!r}; the answer comes last, after one "
            "space, so a template must end with a word, without space or punctuation after it"
        )
