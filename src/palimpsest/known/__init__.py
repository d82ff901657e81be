"""Known-label models that put the instruments to the test; adversaries among them try to fool.

Each is built from the models of a cell so that its truth is known: suppressed models still hold the
knowledge, interpolations hold part of it, a rescaled retraining holds none. Most are plain
checkpoints; some are wrapped nets (``wrappers.py``), which score and train like any other.

To add one, write a function that builds it from an ``AdversaryKit`` in a file of ``known/`` and put
its label above it (``known_label``): nothing else lists it. Those files import torch, and what
imports it, inside their functions, because plans name these models where there is no torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from palimpsest.errors import ModelError, PlanError

if TYPE_CHECKING:
    from torch import Tensor as Tensor

    from palimpsest.known.kit import AdversaryKit as AdversaryKit
    from palimpsest.known.kit import Goal as Goal
    from palimpsest.known.kit import Schedule as Schedule
    from palimpsest.known.kit import State as State
    from palimpsest.models.net import Net as Net
else:  # what annotations in ``known/`` name, without importing torch
    Goal = Net = Schedule = State = Tensor = AdversaryKit = object

Build = Callable[[AdversaryKit], State | Net]
"""Gives weights, or a wrapped net where the model is no plain checkpoint."""
TRAINED = ("base", "injected", "forget_only", "general_only")
"""What a known-label model that is trained is built on."""


class Truth(StrEnum):
    """What is known of a model."""

    SUPPRESSED = "suppressed"
    PARTIAL = "partial"
    GRADED = "graded"
    """A dose between suppressed and restored, which has no label of its own."""
    RESTORED = "restored"


class Knows(StrEnum):
    """What an adversary may know of an audit beside the facts."""

    AXES = "axes"
    """Which numbers are compared."""
    SCHEDULE = "schedule"
    """How the model will be re-acquired."""
    REFERENCES = "references"
    """What a reference answers."""


@dataclass(frozen=True)
class KnownLabel:
    """One known-label model."""

    name: str
    truth: Truth
    knows: tuple[Knows, ...]
    builds_on: tuple[str, ...]
    """Models of the cell it is built from, where the cell has them."""
    build: Build
    share: float | None = None
    """Share of the injected weights left, where the model is a mixture; of noise, where graded."""

    @property
    def model(self) -> str:
        """The name of the model in a cell's tables."""
        return f"known-{self.name}"


class Unavailable(ModelError):
    """A known-label model that cannot be built of these weights or facts."""


def known_label(
    truth: Truth, *knows: Knows, builds_on: tuple[str, ...] = TRAINED
) -> Callable[[Build], KnownLabel]:
    """Return what turns a function into the known-label model that it builds, named after it."""
    also = ("reference",) if Knows.REFERENCES in knows else ()

    def label(build: Build) -> KnownLabel:
        name = build.__name__.replace("_", "-")
        return KnownLabel(name, truth, knows, (*builds_on, *also), build)

    return label


@cache
def entries() -> tuple[KnownLabel, ...]:
    """Return every known-label model: files by name, models as they stand there."""
    files = ("basic", "hidden", "penalties", "tampering")
    found = [vars(import_module(f"{__name__}.{file}")).values() for file in files]
    values = [item for some in found for value in some for item in _flat(value)]
    return tuple(dict.fromkeys(value for value in values if isinstance(value, KnownLabel)))


def _flat(value: object) -> Sequence[object]:
    return value if isinstance(value, tuple) else (value,)


def chosen(wanted: str | Sequence[str]) -> tuple[KnownLabel, ...]:
    """Return the known-label models of these names, in their order; ``all`` for every one."""
    by_name = {entry.name: entry for entry in entries()}
    names = tuple(by_name) if wanted == "all" else tuple(wanted)
    for name in names:
        if name not in by_name or names.count(name) > 1:
            raise PlanError(
                f"{name!r} found; expected each once, of {', '.join(by_name)}",
                key="known_label.models",
            )
    return tuple(by_name[name] for name in names)
