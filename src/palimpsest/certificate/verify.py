"""``verify``: everything that can be checked about a bundle, and in plain words what that means."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.certificate.archive import MAX_BYTES
from palimpsest.certificate.bundle import SCOPE, document
from palimpsest.certificate.evidence import Evidence
from palimpsest.certificate.signature import read_public
from palimpsest.errors import BundleError, InputError, PalimpsestError

CHECKS = tuple(name for name, _ in Evidence(b"", None).checks())
"""Their names, in order."""

_LINE = 600

MEANS = (
    "The files are unchanged since the bundle was made, the verdicts follow from the stored scores "
    "under rules that the run's hash chain places before them, {sealed}, and no planned cell or "
    "candidate is left out."
)
SEALED = {
    True: "the held-out prompts were committed to before them (they are not in the bundle)",
    False: "the audit pool is the one committed to",
}
"""By whether the run is an audit of somebody's own models."""
MEANS_NOT = (
    *SCOPE,
    "The scores themselves were not measured again: whoever makes a bundle could invent models, "
    "scores and chain together. Order is shown by hashes, not by a clock.",
)
UNSIGNED = "It is not signed, so it says nothing about who ran it."
SELF_SIGNED = "Its signature was checked with the key it brings along, which anybody could make."
SIGNED = "It was signed with the key you gave; whose key that is, you must know from elsewhere."
FAILED = (
    "The bundle does not verify: something in it is missing, changed, not signed as asked, or does "
    "not follow. Rely on nothing in it, and ask its maker for another copy."
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found to hold, or what was wrong."""

    name: str
    passed: bool
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a bundle verifies, check by check, and what that does and does not mean."""

    ok: bool
    checks: tuple[Check, ...]
    """Up to the first that failed; later ones rest on it."""
    what_it_means: str
    verdicts: tuple[tuple[str, str], ...] = ()
    """Each cell and its verdict in a sentence; none unless everything holds."""
    terms: str = ""
    """The digest of plan, rules, cells and seal; compare it with one published beforehand."""
    signer: str = ""
    """The signing key's digest; empty when unsigned."""

    @property
    def failure(self) -> Check | None:
        """The check that failed."""
        return next((check for check in self.checks if not check.passed), None)

    def require(self, name: str) -> None:
        """Nothing, when everything holds; BundleError saying what does not."""
        failed = self.failure
        if failed is not None or not self.ok:
            what = "not checked" if failed is None else f"{failed.name}: {failed.what}"
            raise BundleError(f"{name} does not verify: {what}")

    def lines(self) -> list[str]:
        """The answer for a person, one line at a time."""
        lines = [f"{'ok    ' if c.passed else 'FAILED'}  {c.name}: {c.what}" for c in self.checks]
        left = len(CHECKS) - len(self.checks)
        if left:
            lines.append(f"        not reached: {', '.join(CHECKS[-left:])}")
        lines.append("")
        lines += [f"{cell}: {sentence}" for cell, sentence in self.verdicts]
        if self.terms:
            lines.append(f"Terms fixed before the first step: {self.terms}")
        lines += [*([""] if self.verdicts else []), *self.what_it_means.splitlines()]
        return [_inert(line) for line in lines]

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Verification":
        """The verification that ``to_json`` told."""
        return cls(
            bool(told["ok"]),
            tuple(Check(**check) for check in told["checks"]),
            str(told["what_it_means"]),
            tuple(told["verdicts"].items()),
            str(told["terms"]),
            str(told["signer"] or ""),
        )

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON values."""
        return {
            "ok": self.ok,
            "checks": [
                {"name": c.name, "passed": c.passed, "what": _inert(c.what)} for c in self.checks
            ],
            "not_reached": list(CHECKS[len(self.checks) :]),
            "verdicts": {cell: _inert(sentence) for cell, sentence in self.verdicts},
            "terms": self.terms,
            "signer": self.signer or None,
            "what_it_means": self.what_it_means,
        }


def verify(bundle_path: Path | str, public_key: Path | str | None = None) -> Verification:
    """What can be said about the bundle in a file; InputError only when there is nothing to read.

    ``public_key`` is a PEM file with the key that the bundle must be signed with. The work is done
    by a process of its own, so that a bundle which breaks it, or is never done, has an answer too.
    """
    public = None if public_key is None else read_public(public_key)
    data = _read(Path(bundle_path))
    from palimpsest.certificate.apart import examine_apart

    return examine_apart(data, public)


def broken(why: str) -> Verification:
    """What can be said when the examination itself did not come to an end."""
    return Verification(False, (Check("archive", False, _inert(why)),), FAILED)


def examine(data: bytes, public: bytes | None = None) -> Verification:
    """What can be said about the bytes of a bundle, given the 32 bytes of a public key or none."""
    evidence = Evidence(data, public)
    checks: list[Check] = []
    for name, check in evidence.checks():
        try:
            checks.append(Check(name, True, check()))
        except PalimpsestError as error:
            checks.append(Check(name, False, _inert(str(error))))
        except Exception as error:
            # A stranger's bytes: whatever they manage to break, the answer is that they fail.
            why = f"cannot be checked ({type(error).__name__}: {error})"
            checks.append(Check(name, False, _inert(why)))
        if not checks[-1].passed:
            return Verification(False, tuple(checks), FAILED)
    predicate = evidence.statement["predicate"]
    signer = predicate["signer"]
    who = UNSIGNED if signer is None else SELF_SIGNED if public is None else SIGNED
    shown = MEANS.format(sealed=SEALED[evidence.asked.audit])
    means = "\n".join([f"What was shown. {shown}", "What it is, and is not.", *MEANS_NOT, who])
    return Verification(
        True,
        tuple(checks),
        means,
        tuple((cell_id, _sentence(evidence, cell_id)) for cell_id in evidence.cells),
        str(predicate["terms"]),
        "" if signer is None else str(signer["keyid"]),
    )


def _sentence(evidence: Evidence, cell_id: str) -> str:
    verdict = document(evidence.members, f"cells/{cell_id}/verdict.json")
    if verdict is None:
        return "no verdict, since no candidate could be made"
    if verdict["candidate"] is not None:
        return f"certified, {_inert(verdict['candidate'])} ({verdict['mode']})"
    return f"uncertified, {verdict['reason']} ({verdict['mode']})"


def _read(path: Path) -> bytes:
    try:
        about = path.stat()
        # Pipes and devices would make us wait for ever.
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path}: not a file; expected a bundle")
        with open(path, "rb") as file:
            # One byte more than allowed is enough to see that it is too large.
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{_inert(str(path))}: cannot be read ({error}); expected a bundle that "
            "`palimpsest certify` wrote"
        ) from error
    if len(data) > MAX_BYTES:
        raise BundleError(f"{path}: more than {MAX_BYTES} bytes; no bundle is that large")
    return data


def _inert(text: str) -> str:
    """The text with everything escaped that could act on a terminal, and bounded."""
    kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return kept if len(kept) <= _LINE else f"{kept[:_LINE]}..."
