"""Where a method that is not built in comes from: its source belongs to the terms of a run.

A file of the user's counts with every file beside it that it imports, an installed package with
its distribution's name, version and files. An edited plug-in therefore has another digest, and a
run that was begun with the old one is not resumed with the new one.
"""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

from palimpsest.errors import MethodError
from palimpsest.methods import BUILT_IN, method_class
from palimpsest.plan import MethodGrid
from palimpsest.run.disk import canonical, digest, file_digest


def plugin_digests(grids: Iterable[MethodGrid]) -> dict[str, str]:
    """Return the source digest of every plug-in among the methods, as ``method NAME``."""
    names = dict.fromkeys(grid.name for grid in grids if grid.name not in BUILT_IN)
    return {f"method {name}": plugin_digest(name) for name in names}


def plugin_digest(name: str) -> str:
    """Return the digest of a plug-in's source; with its distribution, where it is installed."""
    method = method_class(name)
    spec = importlib.util.find_spec(method.__module__)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise MethodError(
            f"method {name!r}: the source of {method.__module__} cannot be found; expected a "
            "module in a file, so that the run can record what it was made with"
        )
    file = Path(spec.origin).resolve()
    top = method.__module__.partition(".")[0]
    for owner in packages_distributions().get(top, ()):
        found = distribution(owner)
        files = {str(path): path for path in _installed(found)}
        if file in files.values():
            return f"{owner} {found.version} {_digest(files)}"
    package = importlib.util.find_spec(top)
    for folder in package.submodule_search_locations or () if package else ():
        paths = sorted(Path(folder).rglob("*.py"))
        return _digest({str(path.relative_to(folder)): path for path in paths})
    return _digest({path.name: path for path in sorted(_with_imports(file, set()))})


def _installed(found: Distribution) -> Iterator[Path]:
    """Yield a distribution's source files; those of an editable installation are elsewhere."""
    for entry in found.files or ():
        path = Path(str(found.locate_file(entry))).resolve()
        if path.suffix in (".py", ".so", ".pyd") and path.is_file():
            yield path


def _with_imports(file: Path, seen: set[Path]) -> set[Path]:
    """Return a file and the files beside it that it imports, directly or not."""
    if file in seen:
        return seen
    seen.add(file)
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            beside = file.parent / name.partition(".")[0]
            if beside.with_suffix(".py").is_file():
                _with_imports(beside.with_suffix(".py"), seen)
            elif (beside / "__init__.py").is_file():
                seen.update(beside.rglob("*.py"))
    return seen


def _digest(files: dict[str, Path]) -> str:
    return digest(canonical({name: file_digest(path) for name, path in files.items()}))
