"""Unlearning methods: those of the paper, further published ones, and plug-ins.

A built-in method is one file here, called like the method. A name is looked up among these, then
among installed packages' entry points in the group ``palimpsest.methods``, and
``package.module:Class`` names a class directly. Nothing is registered by import order, and nothing
here imports torch.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import entry_points
from typing import Any, cast

from palimpsest.config.sections import Knob, MethodGrid
from palimpsest.errors import InputError, MethodError, PlanError
from palimpsest.plugins import IN_MEMORY, find_plugin, source_digest
from palimpsest.schema import build

ENTRY_POINTS = "palimpsest.methods"
RESERVED = (
    "base", "injected", "reference", "forget_only", "general_only", "retraining", "control",
    "known",
)  # fmt: skip
"""Names of the cell's other models."""
PARTS = ("name", "summary", "needs", "citation", "label", "run")
KINDS = ("restores", "suppresses", "other")
"""What a method's author aims at; one that declares no kind counts as other."""

PAPER = ("kl_reversion", "gate_mask", "task_vector", "ga", "npo", "rollback")
MACHINERY = ("context", "answer_sets", "running")
"""Modules here that are no methods; every other one holds the method of its name."""
EXTENDED = tuple(
    sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in (*PAPER, *MACHINERY))
)
"""Off by default: a plan names the ones it wants."""
BUILT_IN = (*PAPER, *EXTENDED)


@dataclass(frozen=True)
class Description:
    """A method as it is listed; one that cannot be imported has the reason as its summary."""

    name: str
    pool: str
    """paper, extended or plug-in."""
    summary: str
    kind: str = "other"
    needs: tuple[str, ...] = ()
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    """Name of a knob -> its default, or ``required``."""
    citation: str = ""


def names() -> tuple[str, ...]:
    """Return every method that can be named: built-in ones first, then installed ones."""
    installed = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return (*BUILT_IN, *(name for name in installed if name not in BUILT_IN))


def method_class(name: str) -> type[Any]:
    """Return the class behind a method's name."""
    if name in BUILT_IN:
        values = vars(importlib.import_module(f"{__name__}.{name}")).values()
        return next(v for v in values if isinstance(v, type) and getattr(v, "name", "") == name)
    points = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    target = points.get(name, name)
    if ":" not in target:
        raise MethodError(
            f"method {name!r} is unknown; expected one of {', '.join(names())}; for a method of "
            "your own, give module:Class, such as my_method:MyMethod for class MyMethod in the "
            "file my_method.py of the current folder"
        )
    try:
        method = find_plugin(target)
    except InputError as error:
        raise MethodError(f"method {name!r}: {error}") from error
    if problem := _find_problem(method):
        module, _, own = target.partition(":")
        raise MethodError(f"method {own if module in IN_MEMORY else target!r} {problem}")
    return cast(type[Any], method)


def _find_problem(method: Any) -> str | None:
    """Return why a class is not a method; None if it is one."""
    knobs = getattr(method, "__dataclass_fields__", {})
    own = inspect.get_annotations(method) if isinstance(method, type) else {}
    if bare := [name for name in own if name not in knobs]:
        return f"does not take {', '.join(bare)} as knobs; put @dataclass(frozen=True) above it"
    missing = [part for part in PARTS if not hasattr(method, part)]
    settings: Any = getattr(method, "__dataclass_params__", None)
    if missing or settings is None or not settings.frozen:
        found = f"lacks {', '.join(missing)}" if missing else "is not a frozen dataclass"
        return f"{found}; expected a frozen dataclass with {', '.join(PARTS[:-1])} and run(context)"
    if method.name in BUILT_IN:
        name = method.name
        return f"has the name {name!r} of a built-in method; expected another, such as my_{name}"
    if not re.fullmatch(r"\w+", str(method.name)) or method.name in RESERVED:
        expected = f"letters, digits and _, and none of {', '.join(RESERVED)}"
        advice = 'set it in the class, such as name = "my_method"'
        return f"has the name {method.name!r}; expected {expected}; {advice}"
    if getattr(method, "kind", "other") not in KINDS:
        return f"is of kind {method.kind!r}; expected one of {', '.join(KINDS)}"
    return None


def plugin_digests(grids: Iterable[MethodGrid]) -> dict[str, str]:
    """Return the source digest of every plug-in among the methods, by the method's own name."""
    given = [grid.name for grid in grids if grid.name not in BUILT_IN]
    return {method_class(name).name: plugin_digest(name) for name in given}


def plugin_digest(name: str) -> str:
    """Return the digest of a plug-in's source files; empty for a built-in method."""
    if name in BUILT_IN:
        return ""
    try:
        return source_digest(method_class(name))
    except InputError as error:
        raise MethodError(f"method {name!r}: {error}") from error


def candidates(grids: Sequence[MethodGrid]) -> tuple[Any, ...]:
    """Return one method per candidate, knobs set, in the order of the plan."""
    methods: dict[str, Any] = {}
    errors = []
    for grid in grids:
        try:
            for method in _with_knobs(grid):
                _add(method, methods)
        except MethodError as error:
            errors.append(str(error))
    if errors:
        raise MethodError("\n".join(errors))
    return tuple(methods.values())


def _with_knobs(grid: MethodGrid) -> Iterator[Any]:
    """Yield a method with each combination of its knobs."""
    kind = method_class(grid.name)
    for knobs in grid.settings():
        try:
            yield build(kind, knobs, f"methods.{kind.name}")
        except PlanError as error:
            raise MethodError(str(error)) from error
        except Exception as error:  # third-party code may fail in any way
            raise MethodError(f"methods.{kind.name}: {error}") from error


def _add(method: Any, methods: dict[str, Any]) -> None:
    """Add a method to those of a plan by its candidate's name."""
    name, what = title(method), f"methods.{method.name}"
    if any(m.name == method.name and type(m) is not type(method) for m in methods.values()):
        raise MethodError(f"{what}: two classes have this name; expected each once; rename one")
    if name in methods:
        raise MethodError(f"{what}: {name} is there twice; make the candidates' knobs differ")
    if not re.fullmatch(r"[\w.+-]+", name):
        raise MethodError(
            f"{what}: a candidate is called {name!r}; expected letters, digits and . + - _, since "
            "files are named after it; change its label"
        )
    methods[name] = method


def used(method: Any) -> tuple[str, ...]:
    """Return what a method needs with its knobs set; its class's ``needs`` if it does not say."""
    return tuple(getattr(method, "uses", method.needs))


def title(method: Any) -> str:
    """Return a candidate's name in tables: the method and its knobs."""
    return f"{method.name}-{method.label}"


def describe() -> list[Description]:
    """Return one entry per method that can be named, for listing."""
    return [_describe_method(name) for name in names()]


def _describe_method(name: str) -> Description:
    pool = "paper" if name in PAPER else "extended" if name in EXTENDED else "plug-in"
    try:
        method = method_class(name)
    except MethodError as error:
        return Description(name, pool, str(error))
    knobs = {
        item.name: "required" if item.default is MISSING else item.default
        for item in fields(method)
    }
    kind = getattr(method, "kind", "other")
    return Description(
        name, pool, method.summary, kind, tuple(method.needs), knobs, method.citation
    )
