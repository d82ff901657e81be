"""Unlearning methods: the paper's pool, an extended pool, and a door for everyone else's.

A name is looked up among the built-in methods, then among installed packages' entry points in the
group ``palimpsest.methods``, and ``package.module:Class`` names a class directly. Nothing is
registered by import order.
"""

import importlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any

from palimpsest.errors import MethodError
from palimpsest.plan import MethodGrid

ENTRY_POINTS = "palimpsest.methods"

PAPER = {
    "kl_reversion": "palimpsest.methods.kl_reversion:KLReversion",
    "gate_mask": "palimpsest.methods.gate_mask:GateMask",
    "task_vector": "palimpsest.methods.task_vector:TaskVector",
    "ga": "palimpsest.methods.gradient_ascent:GradientAscent",
    "npo": "palimpsest.methods.npo:NPO",
    "rollback": "palimpsest.methods.rollback:Rollback",
}
EXTENDED: dict[str, str] = {}
BUILT_IN = PAPER | EXTENDED


def names() -> tuple[str, ...]:
    """Give every method that can be named: built-in ones first, then installed ones."""
    installed = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return (*BUILT_IN, *(name for name in installed if name not in BUILT_IN))


def method_class(name: str) -> type[Any]:
    """Give the class behind a method's name."""
    target = BUILT_IN.get(name)
    if target is None:
        points = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
        target = points.get(name, name if ":" in name else None)
    if target is None:
        raise MethodError(
            f"method {name!r} is unknown; there are {', '.join(names())}, "
            "or name a class as package.module:Class"
        )
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise MethodError(
            f"method {name!r}: {target} cannot be imported ({error}); "
            "expected an importable package.module:Class"
        ) from error
    missing = [
        part
        for part in ("name", "summary", "needs", "citation", "label", "run")
        if not hasattr(found, part)
    ]
    if missing or not is_dataclass(found):
        raise MethodError(
            f"method {name!r}: {target} is not a method (missing {', '.join(missing) or 'fields'}); "
            "expected a frozen dataclass with name, summary, needs, citation, label and run(context)"
        )
    return found  # type: ignore[no-any-return]


def candidates(grids: Sequence[MethodGrid]) -> tuple[Any, ...]:
    """Give one method per candidate, knobs set, in the order of the plan."""
    made = []
    for grid in grids:
        kind = method_class(grid.name)
        known = {item.name: item.type for item in fields(kind)}
        for knobs in grid.settings():
            unknown = [knob for knob in knobs if knob not in known]
            if unknown:
                raise MethodError(
                    f"methods.{grid.name}: unknown knob {unknown[0]!r}; "
                    f"it takes {', '.join(known) or 'none'}"
                )
            number = {
                knob: float(value)
                if known[knob] in (float, "float") and not isinstance(value, str | bool)
                else value
                for knob, value in knobs.items()
            }
            try:
                made.append(kind(**number))
            except (TypeError, ValueError) as error:
                raise MethodError(f"methods.{grid.name}: {error}") from error
    titles = [title(method) for method in made]
    for name in titles:
        if titles.count(name) > 1:
            raise MethodError(f"methods: two candidates are called {name}; make their knobs differ")
    return tuple(made)


def title(method: Any) -> str:
    """Give a candidate's name in tables: the method and its knobs."""
    return f"{method.name}-{method.label}"
