"""Certificates: a run's evidence in one archive that others can check without torch.

``certify`` writes the archive, ``verify`` recomputes every verdict in it from the scores, and
``keygen`` makes the key pair that a signed certificate needs.

::

    archive.py    the one way to pack files, so that every byte of a bundle counts
    signature.py  Ed25519 signatures in a DSSE envelope
    bundle.py     what is in a bundle, bounded reading of it, its in-toto statement, and `certify`
    planned.py    what the terms ask for, and whether models and scores are all of it
    evidence.py   one check after another: terms, rules, lists, record, models, seal, verdicts
    verification.py  `verify` in a process of its own, and its answer in plain words
    show.py       the page of a verified bundle, and a section of a model card
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.certificate.bundle import certify, read_verdicts
    from palimpsest.certificate.signature import keygen
    from palimpsest.certificate.verification import Check, Verification, verify

__all__ = ["Check", "Verification", "certify", "keygen", "read_verdicts", "verify"]
_PLACES = {"certify": "bundle", "read_verdicts": "bundle", "keygen": "signature"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: `verify` waits for another process and needs no numeric library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'verification')}"), name)
