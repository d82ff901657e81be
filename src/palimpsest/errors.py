"""Every error Palimpsest raises on purpose, as one tree.

::

    PalimpsestError                 anything below; the command line ends with 1
    ├── InputError                  what the user gave cannot be used; ends with 2
    │   ├── PlanError               a plan or its rules (carries the key)
    │   ├── FactsError              a facts, pool or text file (names file and line)
    │   ├── ModelError              a checkpoint or tokenizer that is refused or does not fit
    │   ├── MethodError             an unknown method, or knobs it does not take
    │   └── DriftError              a run folder made under another plan, rules, facts or code
    ├── SealError                   the audit pool: opened twice, too early, or not the sealed one
    ├── StoreError                  the run folder
    │   ├── DamagedArtifact         bytes that do not match their recorded digest
    │   └── FolderLocked            another live process works on the folder
    ├── ScoreError                  scores that are missing, too few or not finite
    ├── MachineError                out of memory or a fault of the device; ends the run, not stored
    ├── StudyFailed                 some cells failed; the others are finished and kept
    ├── TrainingDiverged            a loss or weight that is not finite (carries the step)
    └── BundleError                 a certificate bundle that does not verify

A message says what was found, what was expected and what to do.
"""

import os
import traceback
from collections.abc import Iterable

TRACEBACK = "PALIMPSEST_TRACEBACK"
"""The environment variable by which ``--traceback`` reaches workers."""


def show_traceback(error: BaseException) -> None:
    """Write the lines of code that led to an error to stderr, if ``--traceback`` asks for them."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


class PalimpsestError(Exception):
    """Base of every deliberate error."""

    exit_code = 1
    kind = "error"
    """What a step that raised it is recorded as having failed of."""


class InputError(PalimpsestError):
    """Something the user gave cannot be used."""

    exit_code = 2
    kind = "input"


class PlanError(InputError):
    """A setting cannot be used; ``key`` is its dotted path, such as ``rules.alpha``, or empty."""

    def __init__(self, problem: str, *, key: str = "") -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key, self.problem = key, problem


class FactsError(InputError):
    """A file of facts, templates or text cannot be used."""


class ModelError(InputError):
    """A checkpoint or tokenizer is refused or does not fit."""

    kind = "model_error"


class MethodError(InputError):
    """A method is unknown, does not apply, or got knobs it does not take."""

    kind = "not_applicable"


class DriftError(InputError):
    """A run folder was made under other conditions than the ones asked for now.

    ``keys`` are the dotted keys that differ, such as ``rules.alpha``.
    """

    kind = "drift"

    def __init__(self, problem: str, *, keys: Iterable[str] = ()) -> None:
        super().__init__(problem)
        self.keys = tuple(keys)


class SealError(PalimpsestError):
    """The sealed audit pool was opened twice, too early, or is not the sealed one."""

    kind = "seal"


class StoreError(PalimpsestError):
    """The run folder cannot be read or written as asked."""

    kind = "store"


class DamagedArtifact(StoreError):
    """A stored file does not match its recorded digest."""

    kind = "damaged"


class FolderLocked(StoreError):
    """Another live process is working on this run folder."""

    kind = "locked"


class ScoreError(PalimpsestError):
    """Scores are missing, too few, or not finite."""

    kind = "score"


class MachineError(PalimpsestError):
    """The machine failed, not a model or a method: the run ends and the step is not recorded."""

    kind = "machine"


class StudyFailed(PalimpsestError):
    """Some cells failed; the others are finished and kept."""


class TrainingDiverged(PalimpsestError):
    """A loss or a weight stopped being finite while training."""

    kind = "diverged"

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"training diverged at step {step}: {what}")
        self.step = step
        self.what = what

    def __reduce__(self) -> tuple[type["TrainingDiverged"], tuple[int, str]]:
        return (TrainingDiverged, (self.step, self.what))


class BundleError(PalimpsestError):
    """A certificate bundle does not verify."""
