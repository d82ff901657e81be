"""``verify``: the checks of a bundle in a process of its own, and what they mean in plain words.

Tables are read by a native library, which allocates what a table asks for and ends the process on
some that contradict themselves. A hostile bundle therefore breaks that process only, and fails.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from palimpsest.certificate.signature import read_public
from palimpsest.errors import BundleError, InputError
from palimpsest.text import escaped, shown_path

MAX_BYTES = 256 * 2**20
"""Largest bundle that is written or read, packed or unpacked."""
SECONDS = 1_800
"""Longest examination; the largest runs take minutes."""
MEMORY = 8 * 2**30
"""Address space of the process, in bytes, where the system can bound it."""

State = Literal["ok", "self-signed", "unsigned", "failed"]
_ANSWERS: dict[State, str] = {
    "ok": "ok (all checks passed, and it is signed with the key you gave)",
    "self-signed": "self-signed (all checks passed; signed by a key that nobody named)",
    "unsigned": "unsigned (all checks passed; it carries no signature)",
    "failed": "FAILED",
}
FAILED = (
    "The bundle does not verify: something in it is missing, changed, not signed as asked, or does "
    "not follow. Do not rely on any of it; ask its maker for another copy."
)
_LONGEST_LINE = 2_000


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
    not_reached: tuple[str, ...] = ()
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """Each cell's verdict in words; empty unless everything holds."""
    terms: str = ""
    """The digest of configuration, rules, cells and seal; compare it with one published before."""
    signer: str | None = None
    """The signing key's digest; None when unsigned."""
    custom_rules: Mapping[str, list[Any]] = field(default_factory=dict)
    """Rules that differ from the default: default and own value, by name."""
    data: bytes = field(default=b"", repr=False, compare=False)
    """The bundle as it was read and verified; no part of the JSON document."""

    @property
    def answer(self) -> State:
        """``ok`` only when signed with the key that the reader gave; else the weakest of all."""
        states = {check.state for check in self.checks} or {"failed"}
        weakest: tuple[State, ...] = ("failed", "unsigned", "self-signed")
        return next((state for state in weakest if state in states), "ok")

    @property
    def ok(self) -> bool:
        """Whether no check failed, signed or not; ``answer`` tells which."""
        return self.answer != "failed"

    @property
    def failure(self) -> Check | None:
        """The check that failed, after which none was made."""
        return next((check for check in self.checks if check.state == "failed"), None)

    def require(self, name: str) -> None:
        """Raise BundleError, saying what is wrong, unless everything holds."""
        if self.failure is not None:
            raise BundleError(f"{name} does not verify: {self.failure.name}: {self.failure.what}")

    def lines(self) -> list[str]:
        """Return the result for a person, one line at a time."""
        lines = [
            f"{'FAILED' if check.state == 'failed' else check.state:11}  {check.name}: {check.what}"
            for check in self.checks
        ]
        lines += [f"not reached: {', '.join(self.not_reached)}"] if self.not_reached else []
        lines += ["", *(f"{cell}: {words}" for cell, words in self.verdicts.items())]
        lines += [f"Terms of the run: {self.terms}", ""] if self.terms else []
        lines += [*self.what_it_means.splitlines(), f"Answer: {_ANSWERS[self.answer]}"]
        return [inert(line) for line in lines]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        whole = {key: value for key, value in asdict(self).items() if key != "data"}
        lists = {"checks": list(whole["checks"]), "not_reached": list(self.not_reached)}
        return {"answer": self.answer} | whole | lists

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Verification":
        """Return the verification that ``to_json`` wrote."""
        values = {key: value for key, value in values.items() if key != "answer"}
        checks = tuple(Check(**check) for check in values["checks"])
        return cls(**values | {"checks": checks, "not_reached": tuple(values["not_reached"])})


def verify(bundle_path: Path | str, public_key: Path | str | None = None) -> Verification:
    """Return the verification of the bundle in a file; InputError when it cannot be read at all.

    ``public_key`` is a PEM file with the key that the bundle must be signed with. The work is done
    in a separate process, so a bundle that crashes it or never finishes is answered too.
    """
    public = None if public_key is None else read_public(public_key)
    data = read_bundle(Path(bundle_path))
    return replace(_examine_apart(data, public), data=data)


def _examine_apart(data: bytes, public: bytes | None) -> Verification:
    """Return what ``examine`` returns, or a failure when it crashes or takes too long."""
    # -P and a path without empty entries: a module beside the bundle must not be run.
    program = f"from {__name__} import main; main()"
    command = [sys.executable, "-P", "-c", program, "" if public is None else public.hex()]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if os.path.isabs(path)),
        # Every thread of a numeric library takes address space, and one is enough.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    try:
        process = subprocess.run(
            command, input=data, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
        answer = json.loads(process.stdout)
        missing = answer.get("missing")
        if missing is None:
            return Verification.from_json(answer)
    except subprocess.TimeoutExpired:
        return _broken(f"the examination was not done within {SECONDS} seconds")
    except (ValueError, KeyError, TypeError, AttributeError):
        errors = process.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        return _broken(
            f"the examination broke off (exit code {process.returncode}; {errors}); not a valid "
            "bundle, or too little memory"
        )
    raise InputError(
        f"{missing} cannot be imported here, so the bundle was not examined; expected the packages "
        "that verification needs; install them with: pip install palimpsest-audit"
    )


def _broken(why: str) -> Verification:
    """Return the verification of a bundle whose examination did not finish."""
    return Verification((Check("archive", "failed", inert(why)),), FAILED)


def main() -> None:
    """Examine the bundle on the standard input and print the verification as JSON."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, OSError, ValueError):
        pass  # not supported on this system: the time limit and the bounds of sizes remain
    public = bytes.fromhex(sys.argv[1]) if sys.argv[1] else None
    try:
        # Here, not above: the command that waits for this process needs no numeric library.
        from palimpsest.certificate.checks import examine

        answer = examine(sys.stdin.buffer.read(), public).to_json()
    except ImportError as error:
        answer = {"missing": (error.name or str(error)).partition(".")[0]}
    sys.stdout.write(json.dumps(answer))


def read_bundle(path: Path) -> bytes:
    """Return the bytes of a bundle file of bounded size."""
    # Pipes and devices are not files: they would never end.
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise InputError(
            f"{shown_path(path)}: {found}; expected a bundle, the file that `palimpsest certify "
            "RUN` writes"
        )
    try:
        with open(path, "rb") as file:
            # One byte more than allowed is enough to see that it is too large.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); expected a bundle") from error
    if len(data) > MAX_BYTES:
        raise BundleError(f"{path}: more than {MAX_BYTES} bytes; no bundle is that large")
    return data


def inert(text: str) -> str:
    """Return the text, bounded, with everything escaped that could act on a terminal."""
    kept = escaped(text)
    return kept if len(kept) <= _LONGEST_LINE else f"{kept[:_LONGEST_LINE]}..."
