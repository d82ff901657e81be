"""The plan described from its own code: a JSON schema for editors, and rows for the documentation.

A key's meaning is the docstring under its field, so there is one place to change.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from palimpsest.plan import FACT_FILES, MethodGrid, Plan
from palimpsest.schema import json_schema

_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Key:
    """One key of a plan file, its section's name before it."""

    name: str
    type: str
    default: str
    meaning: str


def plan_keys(kind: type = Plan, where: str = "") -> Iterator[Key]:
    """Yield every key of a plan in the order of its sections."""
    hints = typing.get_type_hints(kind, include_extras=True)
    described = meanings(kind)
    for item in dataclasses.fields(kind):
        hint, name = hints[item.name], f"{where}{item.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from plan_keys(hint, f"{name}.")
            continue
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        yield Key(name, _type(hint), _value(default), described.get(item.name, ""))


def plan_schema() -> dict[str, Any]:
    """Return the JSON schema of a plan file: of the plan, a preset to start from, fact files."""
    schema = json_schema(Plan)
    for kind in (Plan, *_sections(Plan)):
        part = schema if kind is Plan else schema["$defs"][kind.__name__]
        part["additionalProperties"] = False
        described = meanings(kind)
        for name, value in part["properties"].items():
            if name in described:
                value["description"] = described[name]
    schema["properties"] = {
        "preset": {"type": "string", "description": "Preset; the other keys replace its values."}
    } | schema["properties"]
    facts = schema["$defs"]["Counts"]["properties"]
    for name in FACT_FILES:
        number = {key: facts[name].pop(key) for key in ("type", "minimum")}
        facts[name]["anyOf"] = [number, {"type": "string"}]
    for part, name in ((schema, "local_models"), (schema["$defs"]["Counts"], "files")):
        pairs = {"type": "object", "additionalProperties": {"type": "string"}}
        part["properties"][name] = pairs | {"description": part["properties"][name]["description"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "plan"} | schema


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


def _sections(kind: type) -> Iterator[type]:
    for hint in typing.get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield hint


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
    if origin is typing.Union:
        return " or ".join(map(_type, args))
    if hint == tuple[tuple[str, str], ...]:
        return "mapping of text to text"
    return "list of methods" if args[0] is MethodGrid else f"list of {_type(args[0])}s"


def _value(default: Any) -> str:
    if default in ((), "", dataclasses.MISSING):
        return "–"
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)
