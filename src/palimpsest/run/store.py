"""The run folder: what was fixed before the first model was trained, and the cells.

::

    RUN/terms.json                 configuration, rules, seal, inputs, code: fixed when created
    RUN/rosters.json               the lists of candidates; the run may grow, not change
    RUN/cells/<cell>/              see cell.py
    RUN/progress/<worker>.jsonl    who did what when; not evidence
    RUN/locks/                     see locks.py

Every manifest names the list of candidates it was made under by its digest, which is also that of
the terms: a result carries the proof that configuration, rules, seal and candidates came before it.
So terms and lists are never made again: a run where they are damaged is refused. Damage in a cell
costs only its steps.
"""

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, DriftError, InputError, StoreError
from palimpsest.run.cell import CellStore
from palimpsest.run.files import (
    canonical,
    clean,
    digest,
    folder_path,
    make_folder,
    parse_digested,
    read_stored,
    safe_name,
    write_digested,
)
from palimpsest.run.locks import held_here, holder, lock
from palimpsest.run.versions import code_version, package_versions

TERMS = "terms.json"
ROSTERS = "rosters.json"
FORMAT = 4
PATIENCE = 30.0
"""Seconds to wait for a worker whose command was killed and that is not quite dead yet."""
_ABSENT = "(nothing)"


@dataclass(frozen=True)
class Terms:
    """What is fixed about a run before its first step; plain JSON values."""

    kind: str
    """The command: study, audit, unlearn, retrain."""
    config: dict[str, Any]
    """Every setting that can change a number, without paths and without the candidates."""
    rules: dict[str, Any]
    seal: dict[str, str]
    """``commitment`` to the held-out or sealed questions, and which ``pool`` that is."""
    inputs: dict[str, str]
    """Digests of base, injected model, facts and texts."""
    cells: tuple[str, ...]
    code: dict[str, Any] = field(default_factory=lambda: code_version())
    packages: dict[str, str | None] = field(default_factory=lambda: package_versions())

    @property
    def digest(self) -> str:
        return digest(canonical(asdict(self)))

    @property
    def rules_hash(self) -> str:
        """Return the SHA-256 of the canonical JSON of the rules alone."""
        return digest(canonical(self.rules))


Roster = Sequence[Mapping[str, Any]]
"""The candidates and references of a run at one time: name, role, and digest or method."""


@dataclass(frozen=True)
class FixedRoster:
    """A list of candidates as it was fixed under the run's terms."""

    models: tuple[dict[str, Any], ...]
    digest: str
    """Of the list and the terms."""

    @classmethod
    def of(cls, models: Roster, terms: Terms) -> "FixedRoster":
        plain = [dict(model) for model in models]
        return cls(tuple(plain), digest(canonical({"terms": terms.digest, "models": plain})))


def _environment() -> dict[str, Any]:
    """Return the machine on which a run is created: for people, not part of its terms."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


@dataclass(frozen=True)
class Run:
    """A run folder; from ``create_or_resume`` or ``open``."""

    path: Path
    terms: Terms
    rosters: tuple[FixedRoster, ...]

    # -- making and opening ------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Return the run at ``path``, its terms and rosters checked; write nothing."""
        path = folder_path(path)
        if not _is_run(path):
            raise InputError(
                f"{path}: not a run (no {ROSTERS}); expected a folder made by `palimpsest study` "
                "or `palimpsest audit`; check the path, or run that command to create it"
            )
        return cls(path, *_read_fixed(path))

    @classmethod
    def find(cls, path: Path | str) -> "Run | None":
        """Return the run at ``path``, or None where there is none yet."""
        return cls.open(path) if _is_run(folder_path(path)) else None

    @classmethod
    def create_or_resume(cls, path: Path | str, terms: Terms, roster: Roster = ()) -> "Run":
        """Return the run at ``path``, created, resumed or grown by the roster's new candidates.

        DriftError when anything but the roster differs from what the run was made with.
        """
        path = folder_path(path)
        if not _is_run(path):
            _check_new(path, terms)
        make_folder(path)
        with _held_for_an_instant(path):
            lists: list[Any] = []
            if _is_run(path):
                known, rosters = _read_fixed(path)
                _check_terms(path, known, terms)
                lists = [list(fixed.models) for fixed in rosters]
            else:
                record = {"format": FORMAT, "terms": asdict(terms), "environment": _environment()}
                write_digested(path / TERMS, record)
            plain = json.loads(canonical([dict(model) for model in roster]))
            if lists[-1:] != [plain]:
                write_digested(path / ROSTERS, {"terms": terms.digest, "rosters": [*lists, plain]})
        return cls.open(path)

    # -- working in it -----------------------------------------------------------------------

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the ids of the planned cells."""
        return self.terms.cells

    @property
    def device(self) -> str:
        """Return what the run computes on, such as cpu or cuda."""
        return str(self.terms.config.get("engine", {}).get("device", "cpu"))

    def cell(self, cell_id: str) -> CellStore:
        """Return the store of one of the planned cells."""
        if cell_id not in self.cells:
            raise InputError(
                f"{self.path}: no cell {safe_name(cell_id, 'cell id')!r}; expected one of "
                f"{len(self.cells)} planned cells such as {', '.join(self.cells[:3])}"
            )
        rosters = [entry.digest for entry in self.rosters]
        return CellStore(self.path, cell_id, rosters, self.terms.seal["commitment"])

    @contextlib.contextmanager
    def lock(self, owner: str = "palimpsest", *, wait: float = 0.0) -> Iterator["Run"]:
        """Hold the run folder, cleared of leftovers; FolderLocked when another command does."""
        with lock(_run_lock(self.path), owner, wait=wait):
            # A worker of a command that was killed may live on for an instant.
            for path in sorted((self.path / "locks").glob("*.lock")):
                if path != _run_lock(self.path) and holder(path) is not None:
                    with lock(path, owner, wait=PATIENCE):
                        pass
            self.sweep()
            yield self

    def locked_here(self) -> bool:
        """Return whether this process holds the run folder."""
        return held_here(_run_lock(self.path))

    def held(self) -> bool:
        """Return whether a live command holds the run folder."""
        return holder(_run_lock(self.path)) is not None

    def sweep(self) -> None:
        """Remove what dead processes left of unfinished writes."""
        for folder in (self.path, self.path / "locks", self.path / "progress"):
            clean(folder)
        for cell in map(self.cell, self.cells):
            if cell.folder.is_dir():
                cell.sweep()

    # -- evidence ----------------------------------------------------------------------------

    def verify(self) -> tuple[str, ...]:
        """Return what is wrong with the folder, one sentence each; empty when it is sound."""
        problems: list[str] = []
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            problems += cell.check().values()
            if not cell.ended():
                problems.append(f"cell {cell_id}: not finished; expected every planned cell")
        folders = sorted(self.path.glob("cells/*"))
        strange = [folder for folder in folders if folder.name not in self.cells]
        return (*problems, *(f"{folder}: not a cell of the plan" for folder in strange))


def _run_lock(run: Path) -> Path:
    return run / "locks" / "run.lock"


def _is_run(path: Path) -> bool:
    """Return whether a run was created here: the lists of candidates are written last, and before
    any cell."""
    return (path / ROSTERS).exists() or (path / "cells").exists()


def _held_for_an_instant(path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the run folder for an instant, unless this process does already."""
    if held_here(_run_lock(path)):
        return contextlib.nullcontext()
    return lock(_run_lock(path), "creating the run", wait=5.0)


def _check_new(path: Path, terms: Terms) -> None:
    for cell_id in terms.cells:
        safe_name(cell_id, "cell id")
    ours = {TERMS, ROSTERS, "locks", "progress"}
    found = {child.name for child in path.iterdir()} if path.is_dir() else set()
    if foreign := sorted(name for name in found - ours if not name.startswith(".tmp-")):
        raise InputError(
            f"{path}: holds {foreign[:3]}, which are not a run's; expected a new or empty folder; "
            "choose another with --out"
        )


def parse_terms(data: bytes, name: str) -> Terms:
    """Return the terms in the bytes of terms.json."""
    record = parse_digested(data, name)
    stored = record.get("terms", {})
    if record.get("format") != FORMAT or stored.keys() != {item.name for item in fields(Terms)}:
        raise StoreError(
            f"{name}: format {record.get('format')}; expected {FORMAT}; use the version of "
            "Palimpsest that made the run"
        )
    return Terms(**stored | {"cells": tuple(stored["cells"])})


def parse_rosters(data: bytes, name: str, terms: Terms) -> tuple[FixedRoster, ...]:
    """Return the lists of candidates in the bytes of rosters.json, oldest first."""
    stored = parse_digested(data, name)
    lists = stored.get("rosters")
    if stored.get("terms") != terms.digest or not isinstance(lists, list) or not lists:
        raise DamagedArtifact(f"{name}: not the lists of candidates of a run with these terms")
    return tuple(FixedRoster.of(models, terms) for models in lists)


def _read_fixed(path: Path) -> tuple[Terms, tuple[FixedRoster, ...]]:
    """Return the terms and the lists of candidates of a run."""
    try:
        terms = parse_terms(read_stored(path / TERMS), str(path / TERMS))
        return terms, parse_rosters(read_stored(path / ROSTERS), str(path / ROSTERS), terms)
    except DamagedArtifact as error:
        raise DamagedArtifact(
            f"{error}; what was fixed before the first step is not made again afterwards; restore "
            "the file from a copy, or start a new run with another --out"
        ) from error


def _check_terms(path: Path, known: Terms, terms: Terms) -> None:
    """Raise DriftError when the run has other terms."""
    before, now = (json.loads(canonical(asdict(each))) for each in (known, terms))
    found = [change for key in before for change in differences(key, before[key], now[key])]
    if found:
        lines = [f"{key}: {what}" for key, what in found]
        shown = "\n  ".join(lines[:20] + ([f"... {len(lines) - 20} more"] * (len(lines) > 20)))
        raise DriftError(
            f"{path}: the run was made under other terms than asked for now:\n  {shown}\n"
            "expected them to be equal; go back to the old terms, or give another --out (with "
            f"--reuse {path} what both have in common is taken from there)",
            keys=(key for key, _ in found),
        )


def differences(key: str, old: Any, new: Any) -> list[tuple[str, str]]:
    """Return where two JSON values differ, as pairs of a dotted key and what differs there."""
    if old == new and canonical(old) == canonical(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            change
            for name in sorted(old.keys() | new.keys())
            for change in differences(
                f"{key}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT)
            )
        ]
    return [(key, f"the run has {_shown(old)}, asked for {_shown(new)}")]


def _shown(value: Any) -> str:
    text = value if value is _ABSENT else canonical(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
