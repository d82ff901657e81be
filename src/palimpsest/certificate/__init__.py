"""Certificates: a run's evidence in one archive that others can check without torch.

``certify`` writes the archive, ``verify`` recomputes every verdict in it from the scores, and
``keygen`` makes the key pair that a signed certificate needs.

::

    bundle.py        what is in a bundle, bounded reading of it, its in-toto statement, `certify`
    signature.py     Ed25519 signatures in a DSSE envelope
    checks.py        the list of checks, each a function
    verification.py  `verify` in a process of its own, and its answer in plain words
    show.py          the page of a verified bundle, and a section of a model card
"""

from typing import Any

from palimpsest.certificate.signature import keygen
from palimpsest.certificate.verification import Verification, verify

__all__ = ["Verification", "certify", "keygen", "verify"]


def __getattr__(name: str) -> Any:
    """Import `certify` when it is asked for: `verify` needs no numeric library in this process."""
    if name != "certify":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from palimpsest.certificate.bundle import certify

    return certify
