"""The digests of methods that are not built in: part of what their steps depend on."""

from collections.abc import Iterable

from palimpsest.config.sections import MethodGrid
from palimpsest.errors import InputError, MethodError
from palimpsest.methods import BUILT_IN, method_class
from palimpsest.plugins import source_digest


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
