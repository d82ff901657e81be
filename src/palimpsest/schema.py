"""Plain values in, frozen dataclasses out: how plans, requests and knobs are read.

``build`` lets pydantic check the values against the annotations of nested dataclasses, bounds of
``annotated_types`` included. It is strict with three exceptions that YAML makes necessary: a list
may stand for a tuple, a mapping for a tuple of pairs, and text for a number (YAML reads 2e-5 as
text, since its floats need a dot). A PlanError has the key, what is expected and what was found:
"seeds: expected a list, got 100".
"""

import contextlib
import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, cast

from palimpsest.errors import PlanError
from palimpsest.text import is_unicode, shown

T = TypeVar("T")

MOST = 9
"""Errors that are named beside the first."""
_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "keys and values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {"ge": "at least", "gt": "a number above", "le": "at most", "lt": "a number below"}
_BOUNDS |= {"min_length": "a length of at least", "max_length": "a length of at most"}


def shown_key(key: str) -> str:
    """Return a key for an error, in full where nothing in it could act on a terminal."""
    return key if key.isprintable() and len(key) <= 80 else shown(key)


def build(kind: type[T], data: Any, where: str = "") -> T:
    """Return the dataclass ``kind`` that plain values describe; PlanError has the wrong key.

    where: the key that the values stand under, put before every key of an error.
    """
    import pydantic_core

    try:
        return cast(T, _validator(cast(Any, kind)).validate_python(data))
    except pydantic_core.ValidationError as error:
        found = error.errors(include_url=False)
    raise joined([_error(kind, where, each) for each in found])


def _error(kind: Any, where: str, found: Any) -> PlanError:
    """Return what pydantic found as an error with its key."""
    key = where
    for part in found["loc"]:
        key += f"[{part}]" if isinstance(part, int) else f".{shown_key(part)}"
    key = key.lstrip(".") or kind.__name__.lower()
    if found["type"] in ("unexpected_keyword_argument", "invalid_key"):
        return unknown_key(key, _known_keys(kind, found["loc"]))
    return PlanError(_problem(found), key=key)


def joined(errors: Sequence[PlanError]) -> PlanError:
    """Return one error that says all of these, with the key of the first."""
    first, *others = errors
    more = [str(error) for error in others[:MOST]] + ["..."] * (len(others) > MOST)
    return PlanError("\n".join([first.problem, *more]), key=first.key)


def unknown_key(key: str, known: Sequence[str]) -> PlanError:
    """Return the error about a key that is not known, with the one that was probably meant."""
    key = shown_key(key)
    near = difflib.get_close_matches(key.rpartition(".")[2], known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    listed = f"known here are {', '.join(known)}" if known else "it has none"
    return PlanError(f"unknown key; {meant}{listed}", key=key)


@cache
def _validator(kind: type) -> Any:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_strict(TypeAdapter(kind).core_schema))


def _strict(schema: Any) -> Any:
    """Return a core schema made strict, with the exceptions named at the top of this file."""
    from pydantic_core import core_schema

    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict: Any = {key: _strict(part) for key, part in schema.items()}
    kind = strict.get("type")
    if kind in ("dataclass", "typed-dict"):
        strict["config"] = {"extra_fields_behavior": "forbid", "allow_inf_nan": False}
    elif kind in ("bool", "float", "int", "str", "tuple"):
        strict |= {"strict": True, "fail_fast": True} if kind == "tuple" else {"strict": True}
        if kind == "tuple" and schema["items_schema"][0]["type"] == "tuple":
            kind = "pairs"
        return core_schema.no_info_before_validator_function(partial(_convert, kind), strict)
    return strict


def _convert(kind: str, value: Any) -> Any:
    """Return the tuple or number that a list, mapping, text or whole float stands for."""
    if kind == "str" and isinstance(value, str) and not is_unicode(value):
        raise ValueError(f"expected Unicode text, got {shown(value)}")
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    if kind == "pairs" and isinstance(value, Mapping):
        return tuple(value.items())
    if kind in ("tuple", "pairs") and isinstance(value, list):
        return tuple(value)
    if kind in ("float", "int"):
        with contextlib.suppress(ValueError):
            value = float(value) if isinstance(value, str) else value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return math.inf if isinstance(value, int) and abs(value) >= 2**1023 else value
    return value


def _problem(error: Any) -> str:
    """Return what was found under a key and what is expected there, of an error of pydantic's."""
    context = error.get("ctx", {})
    if error["type"] == "missing":
        return "missing; expected a value"
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    expected = _EXPECTED.get(error["type"]) or context.get("expected") or error["msg"].lower()
    for sign, words in _BOUNDS.items():
        expected = f"{words} {context[sign]:g}" if sign in context else expected
    return f"expected {expected}, got {shown(error['input'])}"


def _known_keys(kind: Any, loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are known where an unknown one was found."""
    for part in loc[:-1]:
        hints = typing.get_type_hints(kind) if isinstance(part, str) else {}
        kind = hints[part] if isinstance(part, str) else typing.get_args(kind)[0]
    # A plan may also name the preset that it starts from.
    return [*getattr(kind, "starts", ()), *(field.name for field in dataclasses.fields(kind))]
