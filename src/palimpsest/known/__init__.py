"""Known-label models, which put the instruments to the test: the paper's panel, and plug-ins.

Each is built from the models of a cell so that its truth is known: a suppressed model still holds
the knowledge, an interpolation holds part of it. Most are plain checkpoints; some are wrapped nets
(``wrappers.py``), which score and train like any other.

A plan names those of the panel as they are called, and any other as ``package.module:name``, where
``name`` is a function of an ``AdversaryKit`` below ``@known_label(...)``::

    @known_label(Truth.SUPPRESSED, builds_on=("injected",))
    def noise(kit: AdversaryKit) -> State:
        return {name: 1.01 * value for name, value in kit.state("injected").items()}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

from palimpsest.errors import InputError, ModelError, PlanError
from palimpsest.plugins import find_plugin, source_digest

if TYPE_CHECKING:
    from palimpsest.known.kit import AdversaryKit, State
    from palimpsest.models.net import Net

TRAINED = ("base", "injected", "forget_only", "general_only")
"""What a known-label model that is trained is built on."""
KEY = "known_label"


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
    build: Callable[[AdversaryKit], State | Net]
    """Gives weights, or a wrapped net where the model is no plain checkpoint."""
    share: float | None = None
    """Share of the injected weights left, where the model is a mixture; of noise, where graded."""

    @property
    def model(self) -> str:
        """The name of the model in a cell's tables."""
        return model_name(self.name)


class Unavailable(ModelError):
    """A known-label model that cannot be built of these weights or facts."""


def known_label(
    truth: Truth, *knows: Knows, builds_on: tuple[str, ...] = TRAINED
) -> Callable[[Callable[[AdversaryKit], State | Net]], KnownLabel]:
    """Return what turns a function into the known-label model that it builds, named after it."""
    also = ("reference",) if Knows.REFERENCES in knows else ()

    def label(build: Callable[[AdversaryKit], State | Net]) -> KnownLabel:
        return KnownLabel(_name(build.__name__), truth, knows, (*builds_on, *also), build)

    return label


def model_name(name: str) -> str:
    """Return what a known-label model of a plan is called in tables; no plug-in is imported."""
    return f"known-{_name(name)}"


def is_plugin(name: str) -> bool:
    """Tell whether a plan names a plug-in."""
    return ":" in name


def chosen(names: Sequence[str]) -> tuple[KnownLabel, ...]:
    """Return the known-label models that a plan names, in its order.

    Plug-ins are imported, so this is called for a plan that the user runs and for no other.
    """
    entries = tuple(map(_entry, names))
    models = [entry.model for entry in entries]
    for name, model in zip(names, models):
        if models.count(model) > 1:
            raise PlanError(f"{name!r} is there twice; expected each name once", key=KEY)
    return entries


def plugin_digests(names: Sequence[str]) -> dict[str, str]:
    """Return the digest of the source of each plug-in among the names, by name."""
    built = {name: _entry(name).build for name in names if is_plugin(name)}
    return {name: source_digest(getattr(build, "func", build)) for name, build in built.items()}


def _name(name: str) -> str:
    return name.rpartition(":")[2].replace("_", "-")


def _entry(name: str) -> KnownLabel:
    """Return the known-label model of this name: of the panel, or a plug-in."""
    if not is_plugin(name):
        panel = {entry.name: entry for entry in import_module(f"{__name__}.panel").PANEL}
        if name in panel:
            return panel[name]
        raise PlanError(
            f"{name!r} found; expected some of {', '.join(panel)}, or package.module:name for a "
            "model of your own",
            key=KEY,
        )
    try:
        entry = find_plugin(name)
    except InputError as error:
        raise PlanError(str(error), key=KEY) from error
    if not isinstance(entry, KnownLabel) or entry.name != _name(name):
        raise PlanError(
            f"{name} is {entry!r:.80}; expected a function below @known_label(...), of that name",
            key=KEY,
        )
    return entry
