"""Plain values in, frozen dataclasses out: how plans, requests and knobs are read.

``build`` lets pydantic check the values against the annotations of nested dataclasses, bounds of
``annotated_types`` included. It is strict with three exceptions that YAML makes necessary: a list
may stand for a tuple, a mapping for a tuple of pairs, and text for a number (YAML reads 2e-5 as
text, since its floats need a dot). A PlanError names the key, what was found and what is expected.
"""

import dataclasses
import difflib
import functools
import math
import reprlib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from palimpsest.errors import PlanError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

T = TypeVar("T")

# Few lines of YAML with aliases can stand for a value that would fill the memory if written out.
_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxtuple, _short.maxdict = 3, 6, 6, 6
_short.maxstring = _short.maxother = _short.maxlong = 80

_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {"ge": "at least", "gt": "a number above", "le": "at most", "lt": "a number below"}


def shorten(value: object) -> str:
    """Return a bounded ASCII representation of any value, for an error message."""
    try:
        return _short.repr(value).encode("ascii", "backslashreplace").decode()
    except ValueError:  # an int of more digits than Python writes
        return f"a huge {type(value).__name__}"


def build(kind: type[T], data: Any, where: str = "") -> T:
    """Return the dataclass ``kind`` that plain values describe; PlanError names the wrong key.

    ``where`` is the key the values stand under, put before every key in a message.
    """
    import pydantic_core

    try:
        return cast(T, _validator(cast(Any, kind)).validate_python(data))
    except pydantic_core.ValidationError as error:
        details = error.errors(include_url=False)
    except RecursionError as error:
        raise PlanError(f"{where or kind.__name__}: nested too deeply") from error
    raise PlanError(_message(details[0], kind, where))


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of what ``build`` reads."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).json_schema()


def read_yaml(source: Path | str, expected: str) -> dict[str, Any]:
    """Return the keys and values of YAML; ``expected`` says what a message asks for.

    source: a path, or the text itself, which has a line end or a colon before a space.
    """
    import yaml

    inside = isinstance(source, str) and ("\n" in source or ": " in source)
    name = "the text" if inside else str(source)

    class Loader(yaml.SafeLoader):
        """Refuses a key that occurs twice, of which YAML would silently keep the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value != "<<":
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        raise PlanError(
                            f"{name} line {line}: the key {shorten(key.value)} occurs twice"
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        text = str(source) if inside else Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlanError(f"{name}: cannot be read ({error}); expected {expected}") from error
    try:
        data = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlanError(f"{name}: is not YAML: {' '.join(str(error).split())[:400]}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PlanError(f"{name}: holds {type(data).__name__}; expected {expected}")
    return data


@functools.cache
def _validator(kind: type) -> "SchemaValidator":
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_adapted(TypeAdapter(kind).core_schema))


def _adapted(schema: Any) -> Any:
    """Return a core schema made strict, with the exceptions named at the top of this file."""
    from pydantic_core import core_schema

    if isinstance(schema, list):
        return [_adapted(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    adapted: Any = {key: _adapted(part) for key, part in schema.items()}
    kind = adapted.get("type")
    if kind in ("dataclass", "typed-dict"):
        adapted["config"] = {"extra_fields_behavior": "forbid", "allow_inf_nan": False}
    elif kind in ("bool", "float", "int", "str", "tuple"):
        adapted |= {"strict": True, "fail_fast": True} if kind == "tuple" else {"strict": True}
    before = {"float": _number, "int": _number, "str": _text, "tuple": _tuple}.get(kind)
    return core_schema.no_info_before_validator_function(before, adapted) if before else adapted


def _number(value: Any) -> Any:
    """Return the number that text or a whole float denotes; anything else as it is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, int) and abs(value) >= 2**1023:
        return math.inf if value > 0 else -math.inf
    return value


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no lone surrogates."""
    return text.encode("utf-8", "replace").decode() == text


def _text(value: Any) -> Any:
    if isinstance(value, str) and not is_unicode(value):
        raise ValueError(f"{shorten(value)} found; expected Unicode text")
    return value


def _tuple(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


def unknown_key(place: str, key: str, known: Sequence[str]) -> str:
    """Return the message about a key that is not known, with the one that was probably meant."""
    near = difflib.get_close_matches(key, known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{place}: unknown key; {meant}" + (
        f"known here are {', '.join(known)}" if known else "it has none"
    )


def _message(error: "ErrorDetails", kind: type, where: str) -> str:
    loc, name, context = error["loc"], error["type"], error.get("ctx", {})
    place = where
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            key = part if part.isprintable() and len(part) <= 80 else shorten(part)
            place += f".{key}" if place else key
    place = place or kind.__name__.lower()
    if name in ("unexpected_keyword_argument", "invalid_key"):
        return unknown_key(place, str(loc[-1]), _keys(kind, loc))
    if name == "missing":
        return f"{place}: missing; expected a value"
    if name == "value_error":
        return f"{place}: {error['msg'].removeprefix('Value error, ')}"
    expected = _EXPECTED.get(name) or context.get("expected") or error["msg"]
    for sign, words in _BOUNDS.items():
        if sign in context:
            expected = f"{words} {context[sign]:g}"
    return f"{place}: {shorten(error['input'])} found; expected {expected}"


def _keys(kind: Any, loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are known where an unknown one was found."""
    for part in loc[:-1]:
        if isinstance(part, str):
            kind = typing.get_type_hints(kind)[part]
        else:
            kind = typing.get_args(kind)[0]
    return [field.name for field in dataclasses.fields(kind)]
