"""The run folder: what was fixed before the first model was trained, and the cells.

::

    RUN/terms.json                 configuration, rules, seal, inputs, code: fixed when created
    RUN/rosters.jsonl              hash chain of the candidate lists; the run may grow, not change
    RUN/record.jsonl               hash chain over all of it (chain.py)
    RUN/cells/<cell>/              see cell.py
    RUN/progress/<worker>.jsonl    who did what when; not evidence
    RUN/locks/                     see disk.py

Every manifest names the roster it was made under, which names the terms: a result carries the proof
that configuration, rules, seal and the list of candidates came before it. The record is made from
the manifests in plan order; its bytes do not depend on which step finished first.
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
from palimpsest.run import disk
from palimpsest.run.cell import CellStore
from palimpsest.run.chain import Entry, chain_bytes, verify_chain
from palimpsest.run.disk import canonical, digest, held_here, holder, lock
from palimpsest.run.versions import code_version, package_versions

TERMS = "terms.json"
ROSTERS = "rosters.jsonl"
RECORD = "record.jsonl"
FORMAT = 3
PATIENCE = 30.0
"""Seconds to wait for a worker whose command was killed and that is not quite dead yet."""
_ABSENT = "(nothing)"


@dataclass(frozen=True)
class Terms:
    """What is fixed about a run before its first step; plain JSON values."""

    kind: str
    """The command: study, audit, tofu, unlearn, retrain."""
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
    rosters: tuple[Entry, ...]

    # -- making and opening ------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Return the run at ``path``, its terms and rosters checked; write nothing."""
        path = disk.folder_path(path)
        if not (path / TERMS).exists():
            raise InputError(
                f"{path}: not a run (no {TERMS}); expected a folder made by `palimpsest study` "
                "or `palimpsest audit`; check the path, or run that command to create it"
            )
        try:
            terms = _read_terms(path)
            rosters = verify_chain(
                disk.read_stored(path / ROSTERS), str(path / ROSTERS), terms.digest
            )
            if not rosters:
                raise DamagedArtifact(f"{path / ROSTERS}: empty")
        except DamagedArtifact as error:
            raise DamagedArtifact(f"{error}; run the same command again to repair it") from error
        return cls(path, terms, rosters)

    @classmethod
    def find(cls, path: Path | str) -> "Run | None":
        """Return the run at ``path``, or None where there is none yet."""
        return cls.open(path) if (disk.folder_path(path) / TERMS).exists() else None

    @classmethod
    def create_or_resume(cls, path: Path | str, terms: Terms, roster: Roster = ()) -> "Run":
        """Return the run at ``path``, created, resumed or grown by the roster's new candidates.

        DriftError when anything but the roster differs from what the run was made with.
        """
        path = disk.folder_path(path)
        new = not (path / TERMS).exists() and not (path / "cells").exists()
        if new:
            _check_new(path, terms)
        disk.make_folder(path)
        with _repairing(path):
            if new or not _check_terms(path, terms):
                sealed = {"format": FORMAT, "terms": asdict(terms), "environment": _environment()}
                disk.write_sealed(path / TERMS, sealed)
            events = [("roster", {"models": list(entry)}) for entry in _rosters(path, terms)]
            plain = json.loads(canonical([dict(model) for model in roster]))
            if not events or events[-1][1]["models"] != plain:
                events.append(("roster", {"models": plain}))
            data = chain_bytes(events, terms.digest)
            if not (path / ROSTERS).is_file() or (path / ROSTERS).read_bytes() != data:
                disk.write_bytes(path / ROSTERS, data)
        return cls.open(path)

    # -- working in it -----------------------------------------------------------------------

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the ids of the planned cells."""
        return self.terms.cells

    def cell(self, cell_id: str) -> CellStore:
        """Return the store of one of the planned cells."""
        if cell_id not in self.cells:
            raise InputError(
                f"{self.path}: no cell {disk.safe_name(cell_id, 'cell id')!r}; expected one of "
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
            disk.clean(folder)
        for cell in map(self.cell, self.cells):
            if cell.folder.is_dir():
                cell.sweep()

    # -- evidence ----------------------------------------------------------------------------

    def record(self) -> bytes:
        """Return the record of what is stored; write it too where this process holds the run."""
        summaries = {}
        for cell in map(self.cell, self.cells):
            with contextlib.suppress(StoreError):
                summaries[cell.id] = cell.summary()
        data = record_bytes(self.terms, self.rosters, summaries)
        path = self.path / RECORD
        if self.locked_here() and not (path.is_file() and path.read_bytes() == data):
            disk.write_bytes(path, data)
        return data

    def verify(self) -> tuple[str, ...]:
        """Return what is wrong with the folder, one sentence each; empty when it is sound."""
        problems: list[str] = []
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            problems += cell.check().values()
            if not cell.ended():
                problems.append(f"cell {cell_id}: not finished; expected every planned cell")
        planned = {cell_id.lower() for cell_id in self.cells}
        folders = sorted(self.path.glob("cells/*"))
        strange = [folder for folder in folders if folder.name.lower() not in planned]
        problems += [f"{folder}: not a cell of the plan" for folder in strange]
        if not problems:
            try:
                data = disk.read_stored(self.path / RECORD)
                verify_chain(data, str(self.path / RECORD), self.terms.digest)
                if data != self.record():
                    problems.append(f"{self.path / RECORD}: not the record of what is stored")
            except (StoreError, OSError) as error:
                problems.append(str(error))
        return tuple(problems)


def _run_lock(run: Path) -> Path:
    return run / "locks" / "run.lock"


def _repairing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the run folder for an instant, unless this process does already."""
    if held_here(_run_lock(path)):
        return contextlib.nullcontext()
    return lock(_run_lock(path), "creating the run", wait=5.0)


def _check_new(path: Path, terms: Terms) -> None:
    folders = [disk.safe_name(cell_id, "cell id").lower() for cell_id in terms.cells]
    if twins := sorted({name for name in folders if folders.count(name) > 1}):
        raise InputError(f"cell ids that name one folder: {twins[:3]}; rename all but one of each")
    ours = {TERMS, ROSTERS, "locks", "progress"}
    found = {child.name for child in path.iterdir()} if path.is_dir() else set()
    if foreign := sorted(name for name in found - ours if not name.startswith(".tmp-")):
        raise InputError(
            f"{path}: holds {foreign[:3]}, which are not a run's; expected a new or empty folder; "
            "choose another with --out"
        )


def parse_terms(data: bytes, name: str) -> Terms:
    """Return the terms in the bytes of terms.json."""
    sealed = disk.parse_sealed(data, name)
    stored = sealed.get("terms", {})
    if sealed.get("format") != FORMAT or stored.keys() != {item.name for item in fields(Terms)}:
        raise StoreError(
            f"{name}: format {sealed.get('format')}; expected {FORMAT}; use the version of "
            "Palimpsest that made the run"
        )
    return Terms(**stored | {"cells": tuple(stored["cells"])})


def record_bytes(
    terms: Terms, rosters: Sequence[Entry], summaries: Mapping[str, Mapping[str, Any]]
) -> bytes:
    """Return the record that follows from terms, rosters and the records of finished cells."""
    events: list[tuple[str, Mapping[str, Any]]] = [
        ("roster", {"models": entry.data["models"], "digest": entry.digest}) for entry in rosters
    ]
    for cell_id, summary in summaries.items():
        events += [("opened", summary["opening"])] if summary["opening"] else []
        events += [("step", {"cell": cell_id} | step) for step in summary["steps"]]
        events.append(("cell", {"cell": cell_id, "digest": summary["digest"]}))
    return chain_bytes(events, terms.digest)


def _read_terms(path: Path) -> Terms:
    return parse_terms(disk.read_stored(path / TERMS), str(path / TERMS))


def _check_terms(path: Path, terms: Terms) -> bool:
    """Refuse terms other than the run's; return False when they are damaged, but the rosters hang
    on the same ones."""
    try:
        known = _read_terms(path)
    except DamagedArtifact as damage:
        try:
            verify_chain(disk.read_stored(path / ROSTERS), str(path / ROSTERS), terms.digest)
        except (OSError, StoreError):
            raise StoreError(
                f"{damage}; it was made under other terms than asked for now; expected the "
                f"configuration the run was made with; restore {TERMS} from a copy"
            ) from damage
        return False
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
    return True


def _rosters(path: Path, terms: Terms) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the rosters that are stored; those of a damaged file are taken from the record."""
    for name in (ROSTERS, RECORD):
        with contextlib.suppress(OSError, DamagedArtifact):
            entries = verify_chain(disk.read_stored(path / name), name, terms.digest)
            yield from (entry.data["models"] for entry in entries if entry.event == "roster")
            return


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
    if isinstance(old, list) and isinstance(new, list):
        gone = [item for item in old if item not in new]
        added = [item for item in new if item not in old]
        if gone or added:
            return [(key, f"only the run has {_shown(item)}") for item in gone] + [
                (key, f"only asked for now: {_shown(item)}") for item in added
            ]
    return [(key, f"the run has {_shown(old)}, asked for {_shown(new)}")]


def _shown(value: Any) -> str:
    text = value if value is _ABSENT else canonical(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
