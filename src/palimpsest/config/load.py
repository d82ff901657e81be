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
from typing import Any, TypeVar, cast

from palimpsest.config.commands import (
    AuditConfig,
    RetrainConfig,
    TofuConfig,
    UnlearnConfig,
    check_audit,
    check_retrain,
    check_tofu,
    check_unlearn,
)
from palimpsest.config.plan import Plan, check_plan
from palimpsest.config.sections import MethodGrid
from palimpsest.errors import PlanError
from palimpsest.files import read_bytes
from palimpsest.schema import build, json_schema, unknown_key
from palimpsest.text import shown

T = TypeVar("T")
CHECKS: dict[type, Callable[[Any], Any]] = {
    Plan: check_plan,
    AuditConfig: check_audit,
    TofuConfig: check_tofu,
    RetrainConfig: check_retrain,
    UnlearnConfig: check_unlearn,
}
"""What is checked beyond types and bounds: that values fit together."""
YAML_LIMIT = 2**20
"""Largest document, in bytes."""
WEIGHT_LIMIT = 2**21
"""Largest weight of a document; see ``_weigh``."""
POCKET = "pocket"
"""Names of generated text and embedded models, which no folder changes."""


def load_config(kind: type[T], values: Mapping[str, Any], file: Path | str | None = None) -> T:
    """Return the configuration of that kind; ``values`` win over the file's."""
    layers = [{key: _plain(value) for key, value in values.items() if value is not None}]
    if file is not None:
        read = read_yaml(file, f"keys of {kind.__name__}, such as {_first_keys(kind)}")
        preset = read.pop("preset", None) if kind is Plan else None
        known = [field.name for field in dataclasses.fields(cast(Any, kind))]
        unknown = [str(key) for key in read if key not in known]
        if unknown and kind is Plan:
            raise unknown_key(unknown[0], ["preset", *known])
        folder = Path(file).resolve().parent if _is_file(file) else None
        layers.insert(0, _located(kind, read, folder))
        if preset is not None:
            from palimpsest.config.presets import preset as named

            layers.insert(0, as_dict(named(preset)))
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


def read_yaml(source: Path | str, expected: str) -> dict[str, Any]:
    """Return the keys and values of YAML; ``expected`` says what a message asks for.

    source: a path, or the text itself, which has a line end or a colon before a space.
    """
    import yaml

    inside = isinstance(source, str) and ("\n" in source or ": " in source)
    name = "the text" if inside else str(source)
    try:
        text = str(source) if inside else read_bytes(source, YAML_LIMIT, PlanError).decode()
        data = parse_yaml(text)
    except (PlanError, yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).removeprefix(f"{name}: ").split())[:400]
        raise PlanError(f"{name}: cannot be read ({problem}); expected {expected}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PlanError(f"{name}: contains {type(data).__name__}; expected {expected}")
    return data


def parse_yaml(text: str) -> Any:
    """Return what YAML holds; ValueError where its aliases or tags make it more than it says."""
    import yaml

    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    try:
        return loader.construct_document(node) if node and _weigh(node, {}) else None
    except (IndexError, KeyError, AttributeError, TypeError) as error:  # a tag on what it is not
        raise ValueError(f"a value does not fit its tag ({type(error).__name__})") from error


def _weigh(node: Any, weights: dict[int, int]) -> int:
    """Return the weight of a YAML node with its aliases written out; ValueError if too heavy.

    A few hundred bytes of aliases can stand for gigabytes, so nodes are weighed before any value
    is made. A level doubles the weight of what it holds: one number bounds both size and depth.
    weights: of the nodes weighed before; an alias is the same node as its anchor.
    """
    if id(node) not in weights:
        weights[id(node)] = WEIGHT_LIMIT  # of a node inside itself
        keys = set()
        for part in node.value if node.id == "mapping" else ():
            key = part[0].value
            if isinstance(key, str) and key in keys:
                line = part[0].start_mark.line + 1
                raise ValueError(f"line {line}: the key {shown(key)} occurs twice")
            keys.add(key if isinstance(key, str) else None)
        parts = [part for pair in node.value for part in pair] if keys else node.value
        inner = sum(1 if isinstance(part, str) else 2 * _weigh(part, weights) for part in parts)
        weights[id(node)] = 1 + inner
    if weights[id(node)] > WEIGHT_LIMIT:
        raise ValueError("is too large or nested too deeply with its aliases written out")
    return weights[id(node)]


# -- the keys, described from the code -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a configuration file, its section's name before it."""

    name: str
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
        yield Key(name, shown, meanings(kind).get(item.name, ""))


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


def _first_keys(kind: type) -> str:
    return ", ".join(item.name for item in dataclasses.fields(cast(Any, kind))[:3])


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)
