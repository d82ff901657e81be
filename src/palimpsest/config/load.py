"""The one way in: values from flags, a YAML file or Python become one frozen configuration.

Precedence: flags (or Python arguments) > file > preset or default. Paths in a file start at the
file's own folder, all others at the working directory. Everything is validated once, here; a
PlanError carries the key.
"""

import ast
import dataclasses
import inspect
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from palimpsest.config.audit import AuditConfig, check_audit
from palimpsest.config.plan import Plan, check_plan
from palimpsest.config.schema import build, json_schema, read_yaml
from palimpsest.config.sections import MethodGrid
from palimpsest.config.tofu import TofuConfig, check_tofu

T = TypeVar("T")
CHECKS: dict[type, Callable[[Any], Any]] = {
    Plan: check_plan,
    AuditConfig: check_audit,
    TofuConfig: check_tofu,
}
"""What is checked beyond types and bounds: that values fit together."""
POCKET = "pocket"
"""Names of generated text and embedded models, which no folder changes."""


def load_config(kind: type[T], values: Mapping[str, Any], file: Path | str | None = None) -> T:
    """Return the configuration of that kind; ``values`` win over the file's."""
    layers = [{key: _plain(value) for key, value in values.items() if value is not None}]
    if file is not None:
        read = read_yaml(file, f"keys of {kind.__name__}, such as {_first_keys(kind)}")
        preset = read.pop("preset", None) if kind is Plan else None
        folder = Path(file).resolve().parent if _is_file(file) else None
        layers.insert(0, _located(kind, read, folder))
        if preset is not None:
            from palimpsest.config.presets import preset as named

            layers.insert(0, as_dict(named(str(preset))))
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    config = build(kind, merged)
    return cast(T, CHECKS.get(kind, lambda checked: checked)(config))


def changed(config: T, values: Mapping[str, Any]) -> T:
    """Return a configuration with some values replaced, validated again."""
    return load_config(type(config), _merge(as_dict(config), dict(values)))


def as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON values, in the form ``load_config`` reads."""
    return cast(dict[str, Any], _plain(config))


def _plain(value: Any) -> Any:
    if isinstance(value, MethodGrid):
        return {"name": value.name, **{knob: list(values) for knob, values in value.grid}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        return {
            field.name: dict(given)
            if _is_mapping(hints[field.name]) and isinstance(given, tuple)
            else _plain(given)
            for field in dataclasses.fields(value)
            for given in [getattr(value, field.name)]
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _is_mapping(hint: Any) -> bool:
    """Tell a tuple of pairs, which a file writes as a mapping."""
    args = typing.get_args(hint)
    return bool(args) and len(args) == 2 and args[1] is ... and len(typing.get_args(args[0])) == 2


def _merge(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in over.items():
        known = merged.get(key)
        nested = isinstance(known, dict) and isinstance(value, dict) and key != "local_models"
        merged[key] = _merge(known, value) if nested else value  # type: ignore[arg-type]
    return merged


def _is_file(source: Path | str) -> bool:
    return isinstance(source, Path) or not ("\n" in source or ": " in source)


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


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a configuration file, its section's name before it."""

    name: str
    type: str
    default: str
    meaning: str


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    described: dict[str, str] = {}
    for parent in kind.__bases__:
        described |= meanings(parent) if dataclasses.is_dataclass(parent) else {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for node, below in zip(body.body, body.body[1:]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    described[node.target.id] = re.sub(r"\s+", " ", text).replace("``", "`")
    return described


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
        yield Key(name, _type(hint), shown, meanings(kind).get(item.name, ""))


def config_schema(kind: type = Plan) -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors."""
    schema = json_schema(kind)
    parts = {kind.__name__: schema} | schema.get("$defs", {})
    classes = {kind.__name__: kind} | {
        hint.__name__: hint
        for hint in typing.get_type_hints(kind).values()
        if dataclasses.is_dataclass(hint) and isinstance(hint, type)
    }
    for name, section in classes.items():
        parts[name]["additionalProperties"] = False
        for key, meaning in meanings(section).items():
            parts[name]["properties"][key]["description"] = meaning
    if kind is Plan:
        start = {"type": "string", "description": "Preset; the other keys replace its values."}
        schema["properties"] = {"preset": start} | schema["properties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "plan"} | schema


def _first_keys(kind: type) -> str:
    return ", ".join(item.name for item in dataclasses.fields(cast(Any, kind))[:3])


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _type(hint: Any) -> str:
    if hint in _WORDS:
        return _WORDS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        bounds = [
            f"{words} {getattr(mark, sign):g}"
            for mark in args[1:]
            for sign, words in _BOUNDS.items()
            if hasattr(mark, sign)
        ]
        return ", ".join([_type(args[0]), *bounds])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin is tuple:
        if _is_mapping(hint):
            return "mapping of text to text"
        return "list of methods" if args[0] is MethodGrid else f"list of {_type(args[0])}s"
    return " or ".join(_type(arg) for arg in args if arg is not type(None))
