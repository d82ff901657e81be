"""The terms of a run: what is fixed before the first model is trained, and how they differ."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact
from palimpsest.run.disk import canonical, digest, file_digest, read_signed

FILES = ("plan.json", "rules.json", "seal.json", "environment.json")
TERMS = "terms.json"
FORMAT = 2
# The parts of environment.json that must be the same when a run is resumed.
SAME = ("code", "packages", "inputs")

_PACKAGES = ("numpy", "pyarrow", "safetensors", "scipy", "tokenizers", "torch", "transformers")
_ABSENT = "(nothing)"


def environment(inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what a run was made with: code, packages, machine, and digests of models and facts."""
    from importlib import metadata

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    source = Path(__file__).resolve().parents[1]
    # Code that only shows stored results cannot change them: it may change before a resume.
    shown = re.compile(r"^(analysis|certificate|cli|report)/")
    files = {
        name: file_digest(path)
        for path in sorted(source.rglob("*.py"))
        if not shown.match(name := path.relative_to(source).as_posix())
    }
    return {
        "code": {"version": version("palimpsest-audit"), "source": digest(canonical(files))},
        "packages": {name: version(name) for name in _PACKAGES},
        "inputs": dict(inputs or {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def fixed_contents(
    given: Sequence[Mapping[str, Any]], fork_of: Mapping[str, Any] | None = None
) -> dict[str, bytes]:
    """Return the bytes of the fixed files, given plan, rules, environment and seal."""
    plan, rules, environment, seal = map(dict, given)
    hashed = {"hash": digest(canonical(rules)), "rules": rules}
    origin = {} if fork_of is None else {"fork_of": dict(fork_of)}
    values = (plan, hashed, seal, environment | origin)
    return {name: canonical(value) + b"\n" for name, value in zip(FILES, values, strict=True)}


def terms_json(contents: Mapping[str, bytes], cells: Sequence[str]) -> dict[str, Any]:
    """Return what terms.json holds, but for the digest it carries.

    "terms" is what results depend on; the machine, and the run it was forked from, stay outside it.
    """
    files = {name.removesuffix(".json"): digest(data) for name, data in contents.items()}
    machine = files.pop("environment")
    origin = json.loads(contents["environment.json"]).get("fork_of")
    terms = {"format": FORMAT, **files, "cells": list(cells)}
    return {"terms": terms, "environment": machine, "fork_of": origin}


def terms_digest(terms_file: Mapping[str, Any]) -> str:
    """Return the digest every manifest names, from the contents of terms.json."""
    return digest(canonical(terms_file["terms"]))


def read_terms(path: Path) -> dict[str, Any]:
    """Return the contents of terms.json of the run at `path`, known to be sound."""
    try:
        terms_file = read_signed(path / TERMS)
    except DamagedArtifact as error:
        raise DamagedArtifact(f"{error}; run the same command again to repair it") from error
    if terms_file["terms"]["format"] != FORMAT:
        raise DamagedArtifact(
            f"{path / TERMS}: format {terms_file['terms']['format']}; expected {FORMAT}; use the "
            "version of Palimpsest that made the run"
        )
    return terms_file


def file_term(terms_file: Mapping[str, Any], name: str) -> str:
    """Return the digest that one of the fixed files must have."""
    key = name.removesuffix(".json")
    return str(terms_file[key] if key == "environment" else terms_file["terms"][key])


def difference(key: str, old: Any, new: Any) -> list[str]:
    """Return what differs between two values, one line per key, keys joined by dots."""
    if old == new and canonical(old) == canonical(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted(old.keys() | new.keys())
            for line in difference(f"{key}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
        ]
    if isinstance(old, list) and isinstance(new, list):
        gone = [one for one in old if one not in new]
        added = [one for one in new if one not in old]
        if gone or added:
            return [f"{key}: only the run has {_shown(one)}" for one in gone] + [
                f"{key}: only asked for now: {_shown(one)}" for one in added
            ]
    return [f"{key}: the run has {_shown(old)}, asked for {_shown(new)}"]


def _shown(value: Any) -> str:
    text = value if value is _ABSENT else canonical(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
