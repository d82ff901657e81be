"""``verify``: every check of a bundle, and in plain words what the result means."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palimpsest.certificate.archive import MAX_BYTES
from palimpsest.certificate.bundle import SCOPE
from palimpsest.certificate.evidence import Evidence
from palimpsest.certificate.signature import read_public
from palimpsest.errors import BundleError, InputError, PalimpsestError

CHECKS = tuple(name for name, _ in Evidence(b"", None).checks())
"""Their names, in order."""

State = Literal["ok", "unsigned", "failed"]

MEANS = (
    "The files are unchanged since the bundle was made, the verdicts follow from the stored scores "
    "under rules that were fixed before the first result, {sealed}, and no planned cell, "
    "candidate, reference or control is left out."
)
SEALED = {
    True: "the held-out prompts were committed to before them (they are not in the bundle)",
    False: "the sealed pool is the one committed to",
}
"""By whether the run is an audit of the user's own models."""
MEANS_NOT = (
    *SCOPE,
    "The scores themselves were not measured again: whoever makes a bundle could invent models, "
    "scores and record together. Order is shown by hashes, not by a clock.",
)
UNSIGNED = "It is unsigned, so it says nothing about who ran it."
SELF_SIGNED = "Its signature was checked with the key inside the bundle, which anybody could make."
SIGNED = "It was signed with the key you gave; whose key that is, you must know from elsewhere."
FAILED = (
    "The bundle does not verify: something in it is missing, changed, not signed as asked, or does "
    "not follow. Do not rely on any of it; ask its maker for another copy."
)
NO_VERDICT = "There is no verdict, since no candidate could be made."
_LINE = 2_000


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what holds, or what is wrong."""

    name: str
    state: State
    what: str

    @property
    def passed(self) -> bool:
        return self.state != "failed"


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a bundle verifies, check by check, and what that does and does not mean."""

    checks: tuple[Check, ...]
    """Up to the first that failed; later ones depend on it."""
    what_it_means: str
    verdicts: tuple[tuple[str, str], ...] = ()
    """Each cell and its verdict in words; empty unless everything holds."""
    terms: str = ""
    """The digest of plan, rules, cells and seal; compare it with one published beforehand."""
    signer: str = ""
    """The signing key's digest; empty when unsigned."""

    @property
    def answer(self) -> State:
        """``ok`` only for a signed bundle; ``unsigned`` when everything but a signature holds."""
        if self.failure is not None or len(self.checks) != len(CHECKS):
            return "failed"
        return "ok" if self.signer else "unsigned"

    @property
    def ok(self) -> bool:
        """Whether no check failed, signed or not; ``answer`` tells the two apart."""
        return self.answer != "failed"

    @property
    def failure(self) -> Check | None:
        """The check that failed."""
        return next((check for check in self.checks if not check.passed), None)

    def require(self, name: str) -> None:
        """Raise BundleError, saying what is wrong, unless everything holds."""
        failure = self.failure
        if not self.ok:
            what = "not checked" if failure is None else f"{failure.name}: {failure.what}"
            raise BundleError(f"{name} does not verify: {what}")

    def lines(self) -> list[str]:
        """Return the result for a person, one line at a time."""
        lines = [f"{_MARK[c.state]:8}  {c.name}: {c.what}" for c in self.checks]
        if len(self.checks) < len(CHECKS):
            lines.append(f"{'':8}  not reached: {', '.join(CHECKS[len(self.checks) :])}")
        lines += ["", *(f"{cell}: {words}" for cell, words in self.verdicts)]
        if self.terms:
            lines.append(f"Terms fixed before the first step: {self.terms}")
        lines += [*([""] if self.verdicts else []), *self.what_it_means.splitlines()]
        return [_inert(line) for line in [*lines, f"Answer: {_MARK[self.answer]}"]]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Verification":
        """Return the verification that ``to_json`` wrote; ValueError when its answer differs."""
        verification = cls(
            tuple(Check(**check) for check in values["checks"]),
            str(values["what_it_means"]),
            tuple(values["verdicts"].items()),
            str(values["terms"]),
            str(values["signer"] or ""),
        )
        if verification.answer != values["answer"]:
            raise ValueError(f"answer {values['answer']!r} does not follow from the checks")
        return verification

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "answer": self.answer,
            "checks": [{"name": c.name, "state": c.state, "what": c.what} for c in self.checks],
            "not_reached": list(CHECKS[len(self.checks) :]),
            "verdicts": dict(self.verdicts),
            "terms": self.terms,
            "signer": self.signer or None,
            "what_it_means": self.what_it_means,
        }


_MARK: dict[State, str] = {"ok": "ok", "unsigned": "unsigned", "failed": "FAILED"}


def verify(bundle_path: Path | str, public_key: Path | str | None = None) -> Verification:
    """Return the verification of the bundle in a file; InputError when it cannot be read at all.

    ``public_key`` is a PEM file with the key that the bundle must be signed with. The work is done
    in a separate process, so a bundle that crashes it or never finishes is answered too.
    """
    public = None if public_key is None else read_public(public_key)
    data = _read(Path(bundle_path))
    from palimpsest.certificate.apart import examine_apart

    return examine_apart(data, public)


def broken(why: str) -> Verification:
    """Return the verification of a bundle whose examination did not finish."""
    return Verification((Check("archive", "failed", _inert(why)),), FAILED)


def examine(data: bytes, public: bytes | None = None) -> Verification:
    """Return the verification of a bundle's bytes, given the 32 bytes of a public key or None."""
    evidence = Evidence(data, public)
    checks: list[Check] = []
    for name, check in evidence.checks():
        try:
            what = check()
            unsigned = name == "signature" and evidence.signer is None
            checks.append(Check(name, "unsigned" if unsigned else "ok", _inert(what)))
        except PalimpsestError as error:
            checks.append(Check(name, "failed", _inert(str(error))))
        except Exception as error:
            # The bytes may come from anybody: whatever they break, the answer is that they fail.
            why = f"cannot be checked ({type(error).__name__}: {error})"
            checks.append(Check(name, "failed", _inert(why)))
        if not checks[-1].passed:
            return Verification(tuple(checks), FAILED)
    who = UNSIGNED if evidence.signer is None else SELF_SIGNED if public is None else SIGNED
    shown = MEANS.format(sealed=SEALED[evidence.asked.audit])
    return Verification(
        tuple(checks),
        "\n".join([f"What was shown: {shown}", "What it is, and is not:", *MEANS_NOT, who]),
        tuple((c, _inert(v.paragraph() if v else NO_VERDICT)) for c, v in evidence.judged.items()),
        evidence.terms_digest,
        evidence.signer or "",
    )


def _read(path: Path) -> bytes:
    try:
        # Pipes and devices would never end.
        if not stat.S_ISREG(path.stat().st_mode):
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
    """Return the text, bounded, with everything escaped that could act on a terminal."""
    kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return kept if len(kept) <= _LINE else f"{kept[:_LINE]}..."
