"""The terms of a run: what is fixed before the first model is trained, and how they differ."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact
from palimpsest.run.chain import Chain, read_chain
from palimpsest.run.disk import canonical, digest, file_digest, read_checked

FILES = ("plan.json", "rules.json", "seal.json", "environment.json")
CREATION = ("plan", "rules", "cells", "seal", "environment")
# The parts of environment.json that must be the same when a run is resumed.
SAME_ENVIRONMENT = ("code", "packages", "inputs")

_PACKAGES = ("numpy", "pyarrow", "safetensors", "scipy", "tokenizers", "torch", "transformers")
_ABSENT = "(nothing)"


def environment(inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a run was made with: code, packages, machine, and digests of models and facts."""
    from importlib import metadata

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    source = Path(__file__).resolve().parents[1]
    # What only shows stored results cannot change them, so mending it must not stop a resume.
    shown = re.compile(r"^(cli|certificate|report)/")
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
    plan: Mapping[str, Any],
    rules: Mapping[str, Any],
    environment: Mapping[str, Any],
    seal: Mapping[str, Any],
    fork_of: Mapping[str, Any] | None,
) -> dict[str, bytes]:
    """The bytes of the fixed files. The rules' hash is that of their canonical JSON."""
    hashed = {"hash": digest(canonical(dict(rules))), "rules": dict(rules)}
    origin = {} if fork_of is None else {"fork_of": dict(fork_of)}
    values = (dict(plan), hashed, dict(seal), dict(environment) | origin)
    return {name: canonical(value) + b"\n" for name, value in zip(FILES, values, strict=True)}


def creation_events(
    contents: Mapping[str, bytes], cells: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The chain's first entries. The machine comes after the seal, outside the cells' genesis."""
    files = {name: digest(data) for name, data in contents.items()}
    rules_hash = json.loads(contents["rules.json"])["hash"]
    commitment = json.loads(contents["seal.json"])["commitment"]
    origin = json.loads(contents["environment.json"]).get("fork_of")
    return [
        ("plan", {"format": 1, "file": files["plan.json"]}),
        ("rules", {"file": files["rules.json"], "hash": rules_hash}),
        ("cells", {"cells": list(cells)}),
        ("seal", {"file": files["seal.json"], "commitment": commitment}),
        ("environment", {"file": files["environment.json"], "fork_of": origin}),
    ]


def read_terms(path: Path) -> Chain:
    """The chain of the run at `path`, known to be sound and to begin with the run's terms."""
    chain = read_chain(path / "chain.jsonl")
    begun = tuple(entry.event for entry in chain.entries[: len(CREATION)])
    if chain.damage is not None or begun != CREATION:
        raise DamagedArtifact(
            (chain.damage or f"{chain.path}: begins with {begun}; expected {CREATION}")
            + "; run the study again with the same plan to mend it"
        )
    return chain


def term(chain: Chain, event: str) -> dict[str, Any]:
    """The data of one of the chain's first entries."""
    return chain.entries[CREATION.index(event)].data


def read_fixed(path: Path, name: str, chain: Chain) -> Any:
    """The contents of one of the fixed files, checked against the chain."""
    expected = term(chain, name.removesuffix(".json"))["file"]
    return json.loads(read_checked(path / name, expected))


def difference(key: str, old: Any, new: Any) -> list[str]:
    """What differs between two values, one line a key, keys joined by dots."""
    if old == new and canonical(old) == canonical(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted(old.keys() | new.keys())
            for line in difference(f"{key}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
        ]
    return [f"{key}: the run has {_shown(old)}, asked for {_shown(new)}"]


def _shown(value: Any) -> str:
    text = value if value is _ABSENT else canonical(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
