"""Count what the code base weighs, beside the most that it may: ``python dev/budgets.py``.

The limits are a budget of concepts. A limit that is passed means that something new should have
been an extension, or that two things do one job; it is no reason to write denser lines.
"""

import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_COUNTED = ("results.md",)
"""Pages of results: they grow with what was measured."""


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below these folders of the repository."""
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def lines(files: list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def audit_flags() -> int:
    """Return the number of different long flags that ``palimpsest audit --help`` names."""
    command = [sys.executable, "-m", "palimpsest", "audit", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown))
    # --no-x and --empty-x are the other side of a flag; every command has --help and --version.
    twins = {flag for flag in flags if flag.startswith(("--no-", "--empty-"))}
    return len(flags - twins - {"--help", "--version"})


def configuration_fields() -> int:
    """Return the number of fields of the configuration classes, counted where they are defined."""
    package = importlib.import_module("palimpsest.config")
    names = [
        f"palimpsest.config.{module.name}" for module in pkgutil.iter_modules(package.__path__)
    ]
    total = 0
    for name in (*names, "palimpsest.stats.rules"):
        module = importlib.import_module(name)
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and value.__module__ == name
                and dataclasses.is_dataclass(value)
            ):
                total += len(vars(value).get("__annotations__", {}))
    return total


def words_of_docs() -> int:
    pages = [page for page in (ROOT / "docs").glob("**/*.md") if page.name not in NOT_COUNTED]
    return sum(len(page.read_text().split()) for page in pages)


def main() -> None:
    source = python_files("src")
    rows = (
        ("lines under src/", lines(source), 26_500),
        ("modules under src/", len(source), 150),
        ("flags of `palimpsest audit`", audit_flags(), 35),
        ("fields of configuration classes", configuration_fields(), 110),
        ("lines of tests, trials/ included", lines(python_files("tests", "trials/tests")), 18_500),
        ("words of docs, without results", words_of_docs(), 15_000),
    )
    for what, count, most in rows:
        print(f"{what:36} {count:7,} {most:7,}  {'' if count <= most else 'above'}")
    inside = [file for file in source if file.is_relative_to(ROOT / "src/palimpsest")]
    packages = sorted({file.relative_to(ROOT / "src/palimpsest").parts[0] for file in inside})
    for package in packages:
        files = [f for f in inside if f.relative_to(ROOT / "src/palimpsest").parts[0] == package]
        print(f"  {package:34} {lines(files):7,}")


if __name__ == "__main__":
    main()
