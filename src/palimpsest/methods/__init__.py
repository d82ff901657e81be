"""Unlearning methods: those of the paper, further published ones, and plug-ins.

A name is looked up among the built-in methods, then among installed packages' entry points in the
group ``palimpsest.methods``, and ``package.module:Class`` names a class directly. Nothing is
registered by import order.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from importlib.metadata import entry_points
from typing import Any, cast

from palimpsest.errors import MethodError, PlanError
from palimpsest.plan import MethodGrid
from palimpsest.schema import build

ENTRY_POINTS = "palimpsest.methods"
RESERVED = (
    "base", "injected", "reference", "forget_only", "general_only", "retraining", "control",
    "panel",
)  # fmt: skip
"""Names of the cell's other models."""
PARTS = ("name", "summary", "needs", "citation", "label", "run")
KINDS = ("restores", "suppresses", "other")
"""What a method aims at; one that declares no kind counts as other."""

PAPER = {
    "kl_reversion": "palimpsest.methods.kl_reversion:KLReversion",
    "gate_mask": "palimpsest.methods.gate_mask:GateMask",
    "task_vector": "palimpsest.methods.task_vector:TaskVector",
    "ga": "palimpsest.methods.gradient_ascent:GradientAscent",
    "npo": "palimpsest.methods.npo:NPO",
    "rollback": "palimpsest.methods.rollback:Rollback",
}
EXTENDED = {
    "facts_vector": "palimpsest.methods.facts_vector:FactsVector",
    "replay": "palimpsest.methods.replay:Replay",
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
    """Return every method that can be named: built-in ones first, then installed ones."""
    installed = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return (*BUILT_IN, *(name for name in installed if name not in BUILT_IN))


def method_class(name: str) -> type[Any]:
    """Return the class behind a method's name."""
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
    module = module.removesuffix(".py")
    if ":" in name and (here := os.getcwd()) not in sys.path:
        # Last, so that a file beside the user can be named but cannot hide an installed package.
        sys.path.append(here)
    try:
        method: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of somebody else's may fail in any way
        raise MethodError(
            f"method {name!r}: {target} cannot be imported ({type(error).__name__}: {error}); "
            "expected package.module:Class of an installed package or of a file in the current "
            f"folder, {os.getcwd()}"
        ) from error
    if bare := _bare_knobs(method):
        raise MethodError(
            f"method {name!r}: {target} has {', '.join(bare)} that the class does not take as "
            "knobs; put @dataclass(frozen=True) above the class"
        )
    missing = [part for part in PARTS if not hasattr(method, part)]
    settings = getattr(method, "__dataclass_params__", None)
    if missing or settings is None or not settings.frozen:
        raise MethodError(
            f"method {name!r}: {target} "
            + (f"lacks {', '.join(missing)}" if missing else "is not a frozen dataclass")
            + f"; expected a frozen dataclass with {', '.join(PARTS[:-1])} and run(context)"
        )
    if not re.fullmatch(r"\w+", str(method.name)) or method.name in RESERVED:
        raise MethodError(
            f"method {name!r}: {target} is called {method.name!r}; expected letters, digits and _, "
            f"and none of {', '.join(RESERVED)}"
        )
    if getattr(method, "kind", "other") not in KINDS:
        raise MethodError(
            f"method {name!r}: its kind is {method.kind!r}; expected one of {', '.join(KINDS)}"
        )
    return cast(type[Any], method)


def _bare_knobs(method: Any) -> list[str]:
    """Return the annotated names of a class that are neither its knobs nor marked ClassVar."""
    own = inspect.get_annotations(method) if isinstance(method, type) else {}
    knobs = getattr(method, "__dataclass_fields__", {})
    return [name for name in own if name not in knobs]


def candidates(grids: Sequence[MethodGrid]) -> tuple[Any, ...]:
    """Return one method per candidate, knobs set, in the order of the plan."""
    methods: dict[str, Any] = {}
    for grid in grids:
        kind = method_class(grid.name)
        for knobs in grid.settings():
            try:
                method = build(kind, knobs, f"methods.{grid.name}")
            except PlanError as error:
                raise MethodError(str(error)) from error
            except Exception as error:  # a class of somebody else's may fail in any way
                raise MethodError(f"methods.{grid.name}: {error}") from error
            name = title(method)
            if name in methods:
                raise MethodError(
                    f"methods: two candidates are called {name}; make their knobs differ"
                )
            if not re.fullmatch(r"[\w.+-]+", name):
                raise MethodError(
                    f"methods: a candidate is called {name!r}; expected letters, digits and "
                    ". + - _, since the name becomes a file's; change its label"
                )
            methods[name] = method
    return tuple(methods.values())


def used(method: Any) -> tuple[str, ...]:
    """Return what a method needs with its knobs set; its class's ``needs`` if it does not say."""
    return tuple(getattr(method, "uses", method.needs))


def title(method: Any) -> str:
    """Return a candidate's name in tables: the method and its knobs."""
    return f"{method.name}-{method.label}"


def describe() -> list[dict[str, Any]]:
    """Return one row per method that can be named, for listing.

    Columns: name, pool (paper, extended or plug-in), kind, summary, needs, knobs (name -> default)
    and citation. An installed method that cannot be imported has the reason as its summary.
    """
    rows = []
    for name in names():
        pool = "paper" if name in PAPER else "extended" if name in EXTENDED else "plug-in"
        row: dict[str, Any] = {"name": name, "pool": pool, "kind": "other", "needs": ()}
        row |= {"knobs": {}, "citation": ""}
        try:
            method = method_class(name)
        except MethodError as error:
            rows.append(row | {"summary": str(error)})
            continue
        row |= {"summary": method.summary, "needs": tuple(method.needs)}
        row |= {"kind": getattr(method, "kind", "other"), "citation": method.citation}
        rows.append(row | {"knobs": {item.name: _default(item) for item in fields(method)}})
    return rows


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return "required" if item.default is MISSING else item.default
