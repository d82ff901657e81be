"""Certificates: a run's evidence in one archive that others can check without torch.

``certify`` writes the archive, ``verify`` recomputes every verdict in it from the scores, and
``keygen`` makes the key pair that a signed certificate needs.

::

    archive.py    the one way to pack files, so that every byte of a bundle counts
    signature.py  Ed25519 signatures in a DSSE envelope
    judge.py      bounded tables, and verdicts from them
    bundle.py     what is in a bundle, its in-toto statement, and `certify`
    complete.py   what was planned, and whether models and scores are all of it
    evidence.py   one check after another: terms, rules, record, models, seal, scores, verdicts
    apart.py      all of this in a process of its own
    verify.py     `verify`, and its answer in plain words
"""

from palimpsest.certificate.bundle import certify
from palimpsest.certificate.signature import keygen
from palimpsest.certificate.verify import Check, Verification, verify

__all__ = ["Check", "Verification", "certify", "keygen", "verify"]
