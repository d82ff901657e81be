"""The one way in: values from flags, a YAML file or Python become one frozen configuration.

Precedence: flags (or Python arguments) > file > preset or default. Paths in a file start at the
file's own folder, all others at the working directory. Everything is validated once, here; a
PlanError carries the key.
"""

import dataclasses
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import docstring_parser

from palimpsest.config.commands import (
    AuditConfig,
    RecipeConfig,
    RetrainConfig,
    UnlearnConfig,
    audit_problems,
    gather_recipe,
    retrain_problems,
    unlearn_problems,
)
from palimpsest.config.plan import Plan, plan_problems
from palimpsest.config.sections import MethodGrid
from palimpsest.errors import PlanError
from palimpsest.files import is_yaml, read_yaml
from palimpsest.plugins import plugin_name
from palimpsest.schema import build, joined
from palimpsest.text import shown

T = TypeVar("T")
CHECKS: dict[type, Callable[[Any], Iterator[PlanError]]] = {
    Plan: plan_problems,
    AuditConfig: audit_problems,
    RetrainConfig: retrain_problems,
    UnlearnConfig: unlearn_problems,
}
"""What is checked beyond types and bounds: that values fit together."""
POCKET = "pocket"
"""Names of generated text and embedded models, which no folder changes."""


def load_config(kind: type[T], values: Mapping[str, Any], file: Path | str | None = None) -> T:
    """Return the configuration of that kind; ``values`` win over the file's, and both over those
    of the preset that a plan names."""
    chosen = {key: plain(value) for key, value in values.items() if value is not None}
    if file is not None:
        chosen = merged(read_values(kind, file), chosen)
    if kind is Plan and "preset" in chosen:
        from palimpsest.config.presets import preset

        chosen = merged(as_dict(preset(chosen.pop("preset"))), chosen)
    if issubclass(kind, RecipeConfig):
        chosen = gather_recipe(chosen)
    config = build(kind, chosen)
    if problems := list(CHECKS[kind](config)) if kind in CHECKS else []:
        raise joined(problems)
    return config


def read_values(kind: type, file: Path | str) -> dict[str, Any]:
    """Return the values of a YAML file, its paths located."""
    known = [field.name for field in dataclasses.fields(cast(Any, kind))]
    read = read_yaml(file, f"keys of {kind.__name__}, such as {', '.join(known[:3])}")
    return _located(kind, read, None if is_yaml(file) else Path(file).resolve().parent)


def read_plan(source: Any, changes: Mapping[str, Any]) -> Plan:
    """Return a plan from a preset's name, a YAML file, a mapping as YAML has it, or a plan."""
    if isinstance(source, Plan | Mapping):
        return load_config(Plan, merged(as_dict(source), as_dict(changes)))
    if not isinstance(source, str | os.PathLike):
        raise PlanError(
            "expected a preset's name, a YAML file, keys and values as in YAML, or a Plan, got "
            f"{shown(source)}",
            key="plan",
        )
    name = os.fspath(source)
    if is_yaml(name) or name.endswith((".yaml", ".yml")) or os.path.exists(name):
        return load_config(Plan, changes, name)
    return load_config(Plan, {"preset": name, **changes})


def changed(config: T, values: Mapping[str, Any]) -> T:
    """Return a configuration with some values replaced, validated again."""
    return load_config(type(config), merged(as_dict(config), values))


def as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON values, in the form ``load_config`` reads."""
    return cast(dict[str, Any], plain(config))


def plain(value: Any) -> Any:
    """Return a value as YAML has it: of a section its keys, of a class its name."""
    if isinstance(value, type) or hasattr(value, "run"):
        return _named(value)
    if isinstance(value, MethodGrid):
        return {"name": value.name, **{knob: list(values) for knob, values in value.grid}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        return {
            field.name: dict(given)
            if _is_mapping(hints[field.name]) and isinstance(given, tuple)
            else plain(given)
            for field in dataclasses.fields(value)
            for given in [getattr(value, field.name)]
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    if getattr(value, "shape", None) == ():  # one number of numpy or torch
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _named(given: Any) -> Any:
    """Return the name of a class that a Python caller has; of a method with its knobs set, those
    too."""
    kind: Any = given if isinstance(given, type) else type(given)
    built_in = kind.__module__.startswith("palimpsest.methods.")
    name = kind.name if built_in else plugin_name(kind)
    if given is kind:
        return name
    known = dataclasses.fields(given) if dataclasses.is_dataclass(given) else ()
    return {"name": name} | {item.name: [plain(getattr(given, item.name))] for item in known}


def _is_mapping(hint: Any) -> bool:
    """Tell a tuple of pairs, which a file writes as a mapping."""
    args = typing.get_args(hint)
    return len(args) == 2 and args[1] is ... and typing.get_origin(args[0]) is tuple


def merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with others over them, section by section."""
    values = dict(below)
    for key, value in over.items():
        known = values.get(key)
        nested = isinstance(known, dict) and isinstance(value, dict)
        values[key] = merged(known, value) if nested else value  # type: ignore[arg-type]
    return values


def _located(kind: type, values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return a file's values with its relative paths starting at the file's folder."""
    hints = typing.get_type_hints(kind, include_extras=True)
    located = dict(values)
    for key, value in values.items():
        hint = hints.get(key)
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            located[key] = _located(cast(type, hint), value, folder)
        elif hint is not None and folder is not None:
            located[key] = _moved(hint, value, folder)
    return located


def _moved(hint: Any, value: Any, folder: Path) -> Any:
    marks = getattr(hint, "__metadata__", ())
    if isinstance(value, str) and value and value != POCKET and len(value) < 4000:
        there = str(folder / os.path.expanduser(value))
        # A model may be a Hugging Face id or a pocket model: only what is there is a path.
        if "path" in marks or ("model" in marks and os.path.exists(there)):
            return there
    inner = [part for part in typing.get_args(hint) if part is not ...]
    if isinstance(value, dict) and inner and len(pair := typing.get_args(inner[0])) == 2:
        return {key: _moved(pair[1], item, folder) for key, item in value.items()}
    if isinstance(value, list) and inner:
        return [_moved(inner[0], item, folder) for item in value]
    return value


# -- the keys, described from the code -------------------------------------------------------------


class Key(NamedTuple):
    """One key of a configuration file, its section's name before it."""

    name: str
    default: str
    meaning: str


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, its own and inherited, on one line."""
    documented = (
        entry
        for parent in reversed(kind.__mro__[:-1])
        for entry in docstring_parser.parse_from_object(parent).params
    )
    return {
        entry.arg_name: " ".join((entry.description or "").split()).replace("``", "`")
        for entry in documented
    }


def config_keys(kind: type = Plan, where: str = "") -> Iterator[Key]:
    """Yield every key of a configuration in the order of its sections."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        hint, name = hints[item.name], f"{where}{item.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from config_keys(hint, f"{name}.")
            continue
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        shown = "–" if default in ((), "", None, dataclasses.MISSING) else _shown(default)
        yield Key(name, shown, meanings(kind).get(item.name, ""))


def config_schema(kind: type = Plan) -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(kind).json_schema()
    parts = {kind.__name__: schema} | schema.get("$defs", {})
    classes = {kind.__name__: kind} | {
        hint.__name__: hint
        for hint in typing.get_type_hints(kind).values()
        if dataclasses.is_dataclass(hint) and isinstance(hint, type)
    }
    for name, section in classes.items():
        parts[name]["additionalProperties"] = False
        for key, hint in typing.get_type_hints(section).items():
            if _is_mapping(hint):  # what ``build`` also takes, and a file writes
                pairs = {"type": "object", "additionalProperties": {"type": "string"}}
                parts[name]["properties"][key] = pairs
        for key, meaning in meanings(section).items():
            parts[name]["properties"][key]["description"] = meaning
    if kind is Plan:
        start = {"type": "string", "description": "Preset; the other keys override its values."}
        schema["properties"] = {"preset": start} | schema["properties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "plan"} | schema


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)
