"""Every error Palimpsest raises on purpose, as one tree.

::

    PalimpsestError                 anything below; the command line ends with 1
    ├── InputError                  what the user gave cannot be used; ends with 2
    │   ├── PlanError               a plan or its rules (names the key)
    │   ├── FactsError              a facts, pool or text file (names file and line)
    │   ├── ModelError              a checkpoint or tokenizer that is refused or does not fit
    │   ├── MethodError             an unknown method, or knobs it does not take
    │   └── DriftError              a run folder made under another plan, rules, facts or code
    ├── SealError                   the audit pool: opened twice, too early, or not the sealed one
    ├── StoreError                  the run folder
    │   ├── DamagedArtifact         bytes that do not match their recorded digest
    │   └── LeaseHeld               another live process owns the folder
    ├── ScoreError                  scores that are missing, too few or not finite
    ├── TrainingDiverged            a loss or weight that is not finite (carries the step)
    └── BundleError                 a certificate bundle that does not verify

A message says what was found, what was expected and what to do.
"""


class PalimpsestError(Exception):
    """Base of every deliberate error."""

    exit_code = 1


class InputError(PalimpsestError):
    """Something the user gave cannot be used."""

    exit_code = 2


class PlanError(InputError):
    """A plan, or the rules inside it, cannot be run."""


class FactsError(InputError):
    """A file of facts, templates or text cannot be used."""


class ModelError(InputError):
    """A checkpoint or tokenizer is refused or does not fit."""


class MethodError(InputError):
    """A method is unknown, does not apply, or got knobs it does not take."""


class DriftError(InputError):
    """A run folder was made under other conditions than the ones asked for now."""


class SealError(PalimpsestError):
    """The sealed audit pool was opened twice, too early, or is not the sealed one."""


class StoreError(PalimpsestError):
    """The run folder cannot be read or written as asked."""


class DamagedArtifact(StoreError):
    """A stored file does not match its recorded digest."""


class LeaseHeld(StoreError):
    """Another live process is working on this run folder."""


class ScoreError(PalimpsestError):
    """Scores are missing, too few, or not finite."""


class TrainingDiverged(PalimpsestError):
    """A loss or a weight stopped being finite while training."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"training diverged at step {step}: {what}")
        self.step = step
        self.what = what

    def __reduce__(self) -> tuple[type["TrainingDiverged"], tuple[int, str]]:
        return (TrainingDiverged, (self.step, self.what))


class BundleError(PalimpsestError):
    """A certificate bundle does not verify."""
