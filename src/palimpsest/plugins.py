"""What a plan names as ``package.module:Name``: finding it, and the digest of its source.

Whatever a plug-in makes depends on its source, so the digest is part of the key of its steps: an
edited plug-in has another one, and what it made is made again. A file counts with every file beside
it that it imports, a package with all its modules.

No worker process can import a class of a notebook or a script. Its text, with the text of all that
it uses there, becomes a module of its own, which a task takes along to its workers.
"""

import __future__

import ast
import builtins
import importlib
import importlib.util
import inspect
import linecache
import os
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from palimpsest.errors import InputError
from palimpsest.run.files import canonical, digest
from palimpsest.run.versions import code_digest

IN_MEMORY: dict[str, str] = {}
"""The text of every module that was made of a class in memory, by the module's name."""
_LITERALS = (bool, int, float, str, bytes, tuple, list, dict, set, type(None))
_read: dict[str, dict[str, float]] = {}
"""By module of a plug-in, its files with their times when they were imported."""


def find_plugin(name: str) -> Any:
    """Return what ``package.module:Name`` names, of an installed package or of a file in the
    current folder; files that were edited since they were imported are imported again."""
    module, _, attribute = name.partition(":")
    module = module.removesuffix(".py")
    if (here := os.getcwd()) not in sys.path:
        # Last, so that a file beside the user can be named but cannot hide an installed package.
        sys.path.append(here)
    try:
        if module in IN_MEMORY:
            return getattr(sys.modules.get(module) or _define(module), attribute)
        importlib.import_module(module)
        times = {str(path): path.stat().st_mtime for path in _files(module).values()}
        if _read.setdefault(module, times) != times:
            for other, loaded in list(sys.modules.items()):
                if getattr(loaded, "__file__", None) in times:
                    del sys.modules[other]
            _read[module] = times
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # third-party code may fail in any way
        raise InputError(
            f"{name} cannot be imported ({type(error).__name__}: {error}); expected "
            "package.module:Name of an installed package or of a file in the current folder, "
            f"{here}, or in Python the class itself"
        ) from error


def defined_at(function: Any) -> str:
    """Return the name of a plug-in's function, with its file and line where it is in one."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    if code is None or function.__module__ in IN_MEMORY:
        return f"{name}"
    return f"{name} ({Path(code.co_filename).name} line {code.co_firstlineno})"


def source_digest(found: Any) -> str:
    """Return the digest of the source files of a plug-in's class or function."""
    module = found.__module__
    if module in IN_MEMORY:
        return digest(IN_MEMORY[module].encode())
    files = _files(module)
    if not files:
        raise InputError(
            f"the source of {module} cannot be found; expected a module in a file, so that the run "
            "can record what it was made with"
        )
    return digest(canonical({name: code_digest(path) for name, path in files.items()}))


def _files(module: str) -> dict[str, Path]:
    """Return the source files of a module, by name; none where it is in no file."""
    spec, package = (importlib.util.find_spec(n) for n in (module, module.partition(".")[0]))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return {}
    files = {path.name: path for path in sorted(_imported(Path(spec.origin).resolve(), set()))}
    for folder in (package and package.submodule_search_locations) or ():
        files = {str(p.relative_to(folder)): p for p in sorted(Path(folder).rglob("*.py"))}
    return files


def _imported(file: Path, seen: set[Path]) -> set[Path]:
    """Return a file and the files beside it that it imports, directly or not."""
    if file in seen:
        return seen
    seen.add(file)
    if file.parent == Path(sysconfig.get_path("purelib")).resolve():
        return seen  # beside an installed module lies every other installed package
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            beside = file.parent / name.partition(".")[0]
            if beside.with_suffix(".py").is_file():
                _imported(beside.with_suffix(".py"), seen)
            elif (beside / "__init__.py").is_file():
                seen.update(beside.rglob("*.py"))
    return seen


# -- classes in memory -----------------------------------------------------------------------------


def plugin_name(given: type) -> str:
    """Return ``module:Name``, by which every process of a run finds a class that a caller has."""
    module, name = given.__module__, given.__qualname__
    home = sys.modules[module]
    if module in IN_MEMORY or (
        module not in ("__main__", "__mp_main__")
        and getattr(home, "__file__", None)
        and hasattr(home, name)
    ):
        return f"{module}:{name}"
    text = _own_text(given)
    made = f"in_memory_{digest(text.encode())[7:19]}"
    IN_MEMORY[made] = text
    return f"{made}:{given.__name__}"


def _define(name: str) -> ModuleType:
    """Return the module of a text in memory, made."""
    module, text, file = ModuleType(name), IN_MEMORY[name], f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    code = compile(text, file, "exec", dont_inherit=True)
    sys.modules[name] = module  # a dataclass looks its module up
    exec(code, vars(module))
    return module


def _own_text(given: type) -> str:
    """Return Python text that defines a class and whatever of its module it uses."""
    home = vars(sys.modules[given.__module__])
    future = home.get("annotations") is __future__.annotations
    parts: dict[str, str] = {}

    def add(name: str, text: str) -> None:
        parts[name] = text  # one that uses itself comes to an end
        for used in _global_names(text):
            if used in parts or used.startswith("__"):
                continue
            # Annotations that are never evaluated may name what only a type checker has.
            if used in home or not (future or hasattr(builtins, used)):
                add(used, _statement(used, home, given))
        parts[name] = parts.pop(name)  # after what it uses

    add(given.__name__, _definition(given))
    head = ["from __future__ import annotations"] if future else []
    return "\n\n".join([*head, *parts.values()]) + "\n"


def _global_names(text: str) -> Iterator[str]:
    """Yield the names that a text takes from its module."""
    tables = [symtable.symtable(text, "", "exec")]
    for table in tables:  # which grows meanwhile
        tables += table.get_children()
        whole = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (whole or symbol.is_global()):
                yield symbol.get_name()


def _statement(name: str, home: dict[str, Any], user: type) -> str:
    """Return a statement that gives a module the value that this name has at home."""
    found = "which is not in its module"
    if name in home:
        value = home[name]
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}"
        module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
        if module == user.__module__ and (inspect.isclass(value) or inspect.isfunction(value)):
            return _definition(value) + (f"\n{name} = {own}" if own != name else "")
        if type(value) in _LITERALS and _is_literal(repr(value)):
            return f"{name} = {value!r}"
        # As it was imported; an alias of a type has the module of what it stands for, or none.
        for other in sorted(sys.modules, key=lambda other: other != module):
            names = vars(sys.modules[other])
            for known in (own, name):
                if names is not home and names.get(known) is value:
                    return f"from {other} import {known} as {name}"
        found = f"a {type(value).__name__} in memory"
    raise InputError(
        f"{user.__name__} uses {name}, {found}; expected functions, classes, imports and plain "
        "values, which alone can be taken to worker processes; make it a knob, or put "
        f"{user.__name__} into a file with all that it uses and import it from there"
    )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True


def _definition(given: Any) -> str:
    """Return the text that defines a class or function, its decorators included."""
    several = [given, *vars(given).values()] if isinstance(given, type) else [given]
    codes = (getattr(getattr(one, "fget", one), "__code__", None) for one in several)
    for code in filter(None, codes):
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == given.__name__:
                first = min(n.lineno for n in (node, *node.decorator_list))
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    try:
        return textwrap.dedent(inspect.getsource(given)).rstrip()
    except (OSError, TypeError) as error:
        raise InputError(
            f"the text of {given.__name__} cannot be found; expected a file, or a notebook's cell "
            "that defines it with a function in it; put it into a file and import it from there"
        ) from error
