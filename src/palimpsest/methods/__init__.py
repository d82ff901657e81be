"""Unlearning methods: the paper's pool, an extended pool, and a door for everyone else's.

A name is looked up among the built-in methods, then among installed packages' entry points in the
group ``palimpsest.methods``, and ``package.module:Class`` names a class directly. Nothing is
registered by import order.
"""

import importlib
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from palimpsest.errors import MethodError
from palimpsest.plan import Knob, MethodGrid

ENTRY_POINTS = "palimpsest.methods"
RESERVED = ("base", "injected", "reference", "forget_only", "panel")
"""Names of the cell's other models."""
PARTS = ("name", "summary", "needs", "citation", "label", "run")

PAPER = {
    "kl_reversion": "palimpsest.methods.kl_reversion:KLReversion",
    "gate_mask": "palimpsest.methods.gate_mask:GateMask",
    "task_vector": "palimpsest.methods.task_vector:TaskVector",
    "ga": "palimpsest.methods.gradient_ascent:GradientAscent",
    "npo": "palimpsest.methods.npo:NPO",
    "rollback": "palimpsest.methods.rollback:Rollback",
}
EXTENDED = {
    "graddiff": "palimpsest.methods.graddiff:GradDiff",
    "simnpo": "palimpsest.methods.simnpo:SimNPO",
    "rmu": "palimpsest.methods.rmu:RMU",
    "scrub": "palimpsest.methods.scrub:SCRUB",
    "ssd": "palimpsest.methods.ssd:SSD",
    "whp": "palimpsest.methods.whp:WHP",
    "dpo": "palimpsest.methods.dpo:DPO",
}
"""Off by default: a plan names the ones it wants."""
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
    if ":" in name and (here := os.getcwd()) not in sys.path:
        # Last, so that a file beside the user can be named but cannot hide an installed package.
        sys.path.append(here)
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of somebody else's may fail in any way
        raise MethodError(
            f"method {name!r}: {target} cannot be imported ({type(error).__name__}: {error}); "
            "expected an importable package.module:Class"
        ) from error
    missing = [part for part in PARTS if not hasattr(found, part)]
    frozen = isinstance(found, type) and is_dataclass(found) and _frozen(found)
    if missing or not frozen:
        raise MethodError(
            f"method {name!r}: {target} "
            + (f"lacks {', '.join(missing)}" if missing else "is not a frozen dataclass")
            + f"; expected a frozen dataclass with {', '.join(PARTS[:-1])} and run(context)"
        )
    if not re.fullmatch(r"\w+", str(found.name)) or found.name in RESERVED:
        raise MethodError(
            f"method {name!r}: {target} is called {found.name!r}; expected letters, digits and _, "
            f"and none of {', '.join(RESERVED)}"
        )
    return cast(type[Any], found)


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
            try:
                made.append(kind(**{knob: _fit(knob, knobs[knob], known[knob]) for knob in knobs}))
            except (TypeError, ValueError) as error:
                raise MethodError(f"methods.{grid.name}: {error}") from error
    titles = [title(method) for method in made]
    for name in titles:
        if titles.count(name) > 1:
            raise MethodError(f"methods: two candidates are called {name}; make their knobs differ")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise MethodError(
                f"methods: a candidate is called {name!r}; expected letters, digits and . + - _, "
                "since the name becomes a file's; change its label"
            )
    return tuple(made)


def title(method: Any) -> str:
    """Give a candidate's name in tables: the method and its knobs."""
    return f"{method.name}-{method.label}"


def describe() -> list[dict[str, Any]]:
    """Give one row per method that can be named, for listing.

    Columns: name, pool (paper, extended or plug-in), summary, needs, knobs (name -> default) and
    citation. An installed method that cannot be imported has its reason as summary.
    """
    rows = []
    for name in names():
        pool = "paper" if name in PAPER else "extended" if name in EXTENDED else "plug-in"
        row: dict[str, Any] = {"name": name, "pool": pool}
        try:
            kind = method_class(name)
            knobs = {item.name: _default(item) for item in fields(kind)}
            row |= {"summary": kind.summary, "needs": tuple(kind.needs)}
            rows.append(row | {"knobs": knobs, "citation": kind.citation})
        except MethodError as error:
            rows.append(row | {"summary": str(error), "needs": (), "knobs": {}, "citation": ""})
    return rows


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return "required" if item.default is MISSING else item.default


def _frozen(kind: type[Any]) -> bool:
    return bool(kind.__dataclass_params__.frozen)


def _fit(knob: str, value: Knob, declared: Any) -> Knob:
    """Give a plan's value as the type its knob is declared with; other types pass unchanged."""
    kind = getattr(declared, "__name__", str(declared))
    if kind not in _EXPECTED:
        return value
    if kind == type(value).__name__ and kind != "float":
        return value
    if kind in ("float", "int") and not isinstance(value, bool):
        try:  # YAML reads 2e-5 as text: its floats need a dot.
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number) and (kind == "float" or number.is_integer()):
            return number if kind == "float" else int(number)
    raise ValueError(f"{knob} is {value!r}; expected {_EXPECTED[kind]}")


_EXPECTED = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false"}
