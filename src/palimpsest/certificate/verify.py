"""``verify``: every check of a bundle, and in plain words what the result means."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from palimpsest.certificate.archive import MAX_BYTES
from palimpsest.certificate.bundle import SCOPE
from palimpsest.certificate.evidence import CHECKS, Evidence
from palimpsest.certificate.signature import read_public
from palimpsest.errors import BundleError, InputError, PalimpsestError

State = Literal["ok", "unsigned", "failed"]
_MARK: dict[State, str] = {"ok": "ok", "unsigned": "unsigned", "failed": "FAILED"}
_ANSWERS: dict[State, str] = {
    "ok": "ok (all checks passed, and the signature is valid)",
    "unsigned": "unsigned (all checks passed; nobody signed it)",
    "failed": "FAILED",
}

MEANS = (
    "What was shown: the files are unchanged since the bundle was made, the verdicts follow from "
    "the stored scores under rules that were fixed before the first result, and so was {sealed}; "
    "no planned cell, candidate, reference or control is left out."
)
MEANS_NOT = (
    "The scores themselves were not measured again: whoever makes a bundle could invent models, "
    "scores and record together. Order is shown by hashes, not by a clock."
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
# What JSON values of another shape than expected raise.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what holds, or what is wrong."""

    name: str
    state: State
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a bundle verifies, check by check, and what that does and does not mean."""

    checks: tuple[Check, ...]
    """Up to the first that failed; later ones depend on it."""
    what_it_means: str
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """Each cell's verdict in words; empty unless everything holds."""
    terms: str = ""
    """The digest of plan, rules, cells and seal; compare it with one published beforehand."""
    signer: str | None = None
    """The signing key's digest; None when unsigned."""

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
        return next((check for check in self.checks if check.state == "failed"), None)

    def require(self, name: str) -> None:
        """Raise BundleError, saying what is wrong, unless everything holds."""
        if not self.ok:
            failure = self.failure or Check("archive", "failed", "not every check was made")
            raise BundleError(f"{name} does not verify: {failure.name}: {failure.what}")

    def lines(self) -> list[str]:
        """Return the result for a person, one line at a time."""
        lines = [f"{_MARK[c.state]:8}  {c.name}: {c.what}" for c in self.checks]
        if len(self.checks) < len(CHECKS):
            lines.append(f"{'':8}  not reached: {', '.join(CHECKS[len(self.checks) :])}")
        lines += ["", *(f"{cell}: {words}" for cell, words in self.verdicts.items())]
        lines += [f"Terms fixed before the first step: {self.terms}", ""] if self.terms else []
        lines += [*self.what_it_means.splitlines(), f"Answer: {_ANSWERS[self.answer]}"]
        return [_inert(line) for line in lines]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Verification":
        """Return the verification that ``to_json`` wrote; ValueError when its answer differs."""
        own = {item.name: values[item.name] for item in fields(cls)}
        checks = tuple(Check(**check) for check in values["checks"])
        verification = cls(**own | {"checks": checks})
        if verification.answer != values["answer"]:
            raise ValueError(f"answer {values['answer']!r} does not follow from the checks")
        return verification

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        own = {"answer": self.answer, "not_reached": list(CHECKS[len(self.checks) :])}
        return own | asdict(self) | {"checks": [asdict(check) for check in self.checks]}


def verify(bundle_path: Path | str, public_key: Path | str | None = None) -> Verification:
    """Return the verification of the bundle in a file; InputError when it cannot be read at all.

    ``public_key`` is a PEM file with the key that the bundle must be signed with. The work is done
    in a separate process, so a bundle that crashes it or never finishes is answered too.
    """
    from palimpsest.certificate.apart import examine_apart

    public = None if public_key is None else read_public(public_key)
    return examine_apart(_read(Path(bundle_path)), public)


def broken(why: str) -> Verification:
    """Return the verification of a bundle whose examination did not finish."""
    return Verification((Check("archive", "failed", _inert(why)),), FAILED)


def examine(data: bytes, public: bytes | None = None) -> Verification:
    """Return the verification of a bundle's bytes, given the 32 bytes of a public key or None."""
    evidence = Evidence(data, public)
    checks: list[Check] = []
    for name in CHECKS:
        state: State = "ok"
        try:
            what = getattr(evidence, name)()
            if name == "signature" and evidence.signer is None:
                state = "unsigned"
        except PalimpsestError as error:
            what, state = str(error), "failed"
        except _MALFORMED as error:
            what, state = f"not in the form that a run stores ({error!r})", "failed"
        except Exception as error:
            # The bytes may come from anybody: whatever they break, the answer is that they fail.
            what, state = f"cannot be checked ({error!r})", "failed"
        checks.append(Check(name, state, _inert(what)))
        if state == "failed":
            return Verification(tuple(checks), FAILED)
    who = UNSIGNED if evidence.signer is None else SELF_SIGNED if public is None else SIGNED
    held_out = "the digest of the held-out prompts (which are not in the bundle)"
    shown = MEANS.format(sealed=held_out if evidence.asked.summary else "the sealed pool")
    paragraphs = {c: v.paragraph() if v else NO_VERDICT for c, v in evidence.judged.items()}
    return Verification(
        tuple(checks),
        "\n".join([shown, "What it is, and is not:", *SCOPE, MEANS_NOT, who]),
        {cell_id: _inert(words) for cell_id, words in paragraphs.items()},
        evidence.terms_digest,
        evidence.signer,
    )


def _read(path: Path) -> bytes:
    # Pipes and devices are not files: they would never end.
    if path.is_dir():
        raise InputError(
            f"{_inert(str(path))}: a folder; expected a bundle, the file that `palimpsest certify "
            "RUN` writes"
        )
    if not path.is_file():
        raise InputError(f"{_inert(str(path))}: no such file; expected a bundle")
    try:
        with open(path, "rb") as file:
            # One byte more than allowed is enough to see that it is too large.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); expected a bundle") from error
    if len(data) > MAX_BYTES:
        raise BundleError(f"{path}: more than {MAX_BYTES} bytes; no bundle is that large")
    return data


def _inert(text: str) -> str:
    """Return the text, bounded, with everything escaped that could act on a terminal."""
    kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return kept if len(kept) <= _LINE else f"{kept[:_LINE]}..."
