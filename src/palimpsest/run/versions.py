"""The versions of code and packages that results depend on: part of a run's terms and step keys.

Code counts by what it does: the digest of a file is that of its syntax tree without comments,
docstrings and layout, so that a run made before such an edit resumes after it. Names, constants,
the words of errors and remarks, and annotations count; classes of settings act on the last.

The digest is taken over the package without the modules that only show, sign or store what was
computed. What ``run`` writes is versioned by the format of the run folder. Data files count by
their digests among the inputs of a run.
"""

import ast
import gc
import re
from functools import cache
from pathlib import Path
from typing import Any

from palimpsest.run.files import canonical, digest

PACKAGES = ("numpy", "pyarrow", "safetensors", "scipy", "tokenizers", "torch", "transformers")
_SHOWING = re.compile(
    r"(certificate|cli|openunlearning|paper|report|run)/|(__main__|api|errors|plots)\.py$"
)
"""Modules that may change without any step being done again."""


@cache
def code_version() -> dict[str, Any]:
    """Return the version of the package and the digest of the code that computes results."""
    source = package_digest(Path(__file__).resolve().parents[1])
    return {"version": _version("palimpsest-audit"), "source": source}


def package_versions() -> dict[str, str | None]:
    """Return the versions of the packages that numbers depend on."""
    return {name: _version(name) for name in PACKAGES}


def package_digest(folder: Path) -> str:
    """Return the digest of the code below a folder that computes results."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    collects = gc.isenabled()
    gc.disable()  # syntax trees are many small objects, all of them in use: twice as fast
    try:
        found = {name: code_digest(files[name]) for name in files if not _SHOWING.match(name)}
    finally:
        if collects:
            gc.enable()
    return digest(canonical(found))


def code_digest(path: Path) -> str:
    """Return the digest of what a file's code does; of its bytes where they are not Python."""
    data = path.read_bytes()
    try:
        return digest(_text(ast.parse(data)).encode("utf-8", "backslashreplace"))
    except (SyntaxError, ValueError):
        return digest(data)


def _text(node: Any) -> str:
    """Return a syntax tree as text without docstrings, nor empty fields, which differ between
    versions of Python: ``ast.dump`` has both."""
    if isinstance(node, list):
        return f"[{' '.join([_text(item) for item in node if not _is_docstring(item)])}]"
    if isinstance(node, ast.AST):
        parts = [f"{name}={_text(v)}" for name, v in ast.iter_fields(node) if v not in (None, [])]
        return f"{type(node).__name__}({' '.join(parts)})"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    """Return whether a statement is text and nothing else: also that below a field counts."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
