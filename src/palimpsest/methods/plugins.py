"""Where a method that is not built in comes from: its source is part of what its steps depend on.

A file counts with every file beside it that it imports, a package with all its modules. An edited
plug-in therefore has another digest, and what it made is made again.
"""

import ast
import importlib.util
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from palimpsest.config.sections import MethodGrid
from palimpsest.errors import MethodError
from palimpsest.methods import BUILT_IN, method_class
from palimpsest.run.disk import canonical, digest, file_digest


def plugin_digests(grids: Iterable[MethodGrid]) -> dict[str, str]:
    """Return the source digest of every plug-in among the methods, by the method's own name."""
    given = [grid.name for grid in grids if grid.name not in BUILT_IN]
    return {method_class(name).name: plugin_digest(name) for name in given}


def plugin_digest(name: str) -> str:
    """Return the digest of a plug-in's source files; empty for a built-in method."""
    if name in BUILT_IN:
        return ""
    module = method_class(name).__module__
    spec, package = (importlib.util.find_spec(n) for n in (module, module.partition(".")[0]))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise MethodError(
            f"method {name!r}: the source of {module} cannot be found; expected a module in a "
            "file, so that the run can record what it was made with"
        )
    files = {path.name: path for path in sorted(_imported(Path(spec.origin).resolve(), set()))}
    for folder in (package and package.submodule_search_locations) or ():
        files = {str(p.relative_to(folder)): p for p in sorted(Path(folder).rglob("*.py"))}
    return digest(canonical({name: file_digest(path) for name, path in files.items()}))


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
