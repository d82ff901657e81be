"""What a plan names as ``package.module:Name``: finding it, and the digest of its source.

Whatever a plug-in makes depends on its source, so the digest is part of the key of its steps: an
edited plug-in has another one, and what it made is made again. A file counts with every file beside
it that it imports, a package with all its modules.
"""

import ast
import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError
from palimpsest.run.files import canonical, digest
from palimpsest.run.versions import code_digest


def find_plugin(name: str) -> Any:
    """Return what ``package.module:Name`` names, of an installed package or of a file in the
    current folder."""
    module, _, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        # Last, so that a file beside the user can be named but cannot hide an installed package.
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module.removesuffix(".py")), attribute)
    except Exception as error:  # third-party code may fail in any way
        raise InputError(
            f"{name} cannot be imported ({type(error).__name__}: {error}); expected "
            "package.module:Name of an installed package or of a file in the current folder, "
            f"{here}"
        ) from error


def source_digest(found: Any) -> str:
    """Return the digest of the source files of a plug-in's class or function."""
    module = found.__module__
    spec, package = (importlib.util.find_spec(n) for n in (module, module.partition(".")[0]))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise InputError(
            f"the source of {module} cannot be found; expected a module in a file, so that the run "
            "can record what it was made with"
        )
    files = {path.name: path for path in sorted(_imported(Path(spec.origin).resolve(), set()))}
    for folder in (package and package.submodule_search_locations) or ():
        files = {str(p.relative_to(folder)): p for p in sorted(Path(folder).rglob("*.py"))}
    return digest(canonical({name: code_digest(path) for name, path in files.items()}))


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
