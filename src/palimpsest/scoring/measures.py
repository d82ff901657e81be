"""Further measures of every model, which a plan names as ``package.module:Class``.

The class is called with a ``MeasuredCell`` and gives an object that is called with a net and
returns, for each model in the net, its numbers by name. They are stored and reported, and no
verdict depends on them. ``examples/my_measures.py`` is one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from palimpsest.errors import PlanError
from palimpsest.facts.questions import Testbed
from palimpsest.models.net import Net
from palimpsest.plugins import find_plugin

Take = Callable[[Net], Sequence[Mapping[str, float]]]
"""Takes measures of each member of a net, and leaves their weights alone."""
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class MeasuredCell:
    """What a measure may know of a cell: its texts and its frozen models."""

    tokenizer: Any
    facts: Testbed
    general: tuple[str, ...]
    """General text of the training stream."""
    piece_tokens: int
    learning_rate: float
    """Of re-acquisition."""
    reference: str
    """Name of the reference that measures may use."""
    seed_key: str
    net: Callable[[Sequence[State]], Net]
    """Returns a net of some models' weights."""
    read: Callable[[str], State]
    states: dict[str, State] = field(default_factory=dict)

    def state(self, name: str) -> State:
        """Return the weights of ``base``, ``injected`` or the reference, read once."""
        if name not in self.states:
            self.states[name] = self.read(name)
        return self.states[name]


def find_measures(name: str) -> Callable[[MeasuredCell], Take]:
    """Return the class that a plan names."""
    found = find_plugin(name)
    if not isinstance(found, type):
        raise PlanError(
            f"{name} is {type(found).__name__}; expected a class that is called with a "
            "MeasuredCell; see examples/my_measures.py",
            key="measures",
        )
    return found


def build(name: str, cell: MeasuredCell) -> Take:
    """Return what takes the measures of a plug-in in this cell; errors name the plug-in."""
    try:
        take = find_measures(name)(cell)
    except Exception as error:  # third-party code may fail in any way
        raise _failed(name, error) from error

    def taken(net: Net) -> Sequence[Mapping[str, float]]:
        try:
            values = [{str(k): float(v) for k, v in one.items()} for one in take(net)]
            if len(values) != net.stack:
                raise ValueError(f"returned {len(values)} mappings for {net.stack} models")
        except Exception as error:  # third-party code may fail in any way
            raise _failed(name, error) from error
        return values

    return taken


def take_all(takes: Mapping[str, Take], net: Net) -> list[dict[str, float]]:
    """Return the measures of each member of a net; those that are no number are left out."""
    merged: list[dict[str, float]] = [{} for _ in range(net.stack)] if takes else []
    for name, take in takes.items():
        for values, new in zip(merged, take(net)):
            if twice := sorted(values.keys() & new.keys()):
                raise PlanError(
                    f"{name} measures {twice[0]!r}, which another one measures too; expected names "
                    "of its own; rename one",
                    key="measures",
                )
            values |= {key: value for key, value in new.items() if math.isfinite(value)}
    return merged


def _failed(name: str, error: Exception) -> PlanError:
    return PlanError(
        f"{name} failed: {type(error).__name__}: {error}; expected one mapping of names to numbers "
        "for each model of the net",
        key="measures",
    )
