"""The run folder: what was fixed before the first model was trained, and the cells.

::

    RUN/plan.json  rules.json  seal.json  environment.json     written once, when the run is created
    RUN/terms.json                                             their digests and the planned cells
    RUN/record.jsonl                                           hash chain over all of it (chain.py)
    RUN/progress/<worker>.jsonl                                who did what when; not evidence
    RUN/cells/<cell>/                                          see cell.py
    RUN/locks/                                                 see locks.py

Every manifest names the digest of the terms, so a cell carries the proof that plan, rules, seal and
the list of cells came before its results. The record is made from the manifests in the order of the
plan; its bytes do not depend on who finished first. The other names of the store (`write_bytes`,
`write_table`, `canonical`, `digest`, ...) can be imported from here too.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, DriftError, InputError, StoreError
from palimpsest.run import disk, progress
from palimpsest.run.cell import Cell
from palimpsest.run.chain import ORIGIN, Chain, Entry, chain_bytes, verify_chain
from palimpsest.run.damage import Damage
from palimpsest.run.disk import (
    canonical,
    digest,
    file_digest,
    make_folder,
    parse_signed,
    read_json,
    read_signed,
    safe_name,
    write_bytes,
    write_json,
    write_signed,
    write_with,
)
from palimpsest.run.locks import Owner, held_here, holder, lock
from palimpsest.run.tables import (
    Table,
    as_table,
    read_table,
    table_bytes,
    table_from_bytes,
    write_table,
)
from palimpsest.run.terms import (
    FILES,
    SAME_ENVIRONMENT,
    TERMS,
    difference,
    environment,
    file_term,
    fixed_contents,
    read_fixed,
    read_terms,
    terms_digest,
    terms_json,
)

__all__ = [
    "ORIGIN", "Cell", "Chain", "Damage", "Entry", "Owner", "Run", "Table", "as_table", "canonical",
    "digest", "environment", "file_digest", "holder", "make_folder", "parse_signed", "read_json",
    "read_signed", "read_table", "safe_name", "table_bytes", "table_from_bytes", "terms_digest",
    "verify_chain", "write_bytes", "write_json", "write_signed", "write_table", "write_with",
]  # fmt: skip

RECORD = "record.jsonl"
PATIENCE = 30.0
"""Seconds to wait for a worker whose command was killed and that is not quite dead yet."""


class Run:
    """A run folder; from `create`, `open` or `create_or_resume`."""

    def __init__(
        self, path: Path, terms_file: Mapping[str, Any], contents: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.plan: dict[str, Any] = contents["plan.json"]
        self.rules: dict[str, Any] = contents["rules.json"]["rules"]
        self.rules_hash: str = contents["rules.json"]["hash"]
        self.seal: dict[str, Any] = contents["seal.json"]
        self.environment: dict[str, Any] = contents["environment.json"]
        self.cells: tuple[str, ...] = tuple(terms_file["terms"]["cells"])
        self.fork_of: dict[str, Any] | None = terms_file["fork_of"]
        self.terms_digest = terms_digest(terms_file)
        self._planned = frozenset(self.cells)

    # -- making and opening ------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path | str,
        *terms: Mapping[str, Any],
        cells: Sequence[str] = (),
        fork_of: Mapping[str, Any] | None = None,
    ) -> "Run":
        """Return a new run folder at `path`; a creation that was interrupted is completed.

        `terms` are plan, rules, environment and seal; the seal must hold "commitment". `cells` are
        the ids of all planned cells. Of the environment, the keys "code", "packages" and "inputs"
        (digests of models and facts) must be equal for the run to be resumed.
        """
        path = Path(path)
        plan, rules, environment, seal = terms
        _check_cells(cells)
        if "commitment" not in seal:
            raise InputError(f"seal has keys {sorted(seal)}; expected 'commitment' among them")
        contents = fixed_contents(plan, rules, environment, seal, fork_of)
        make_folder(path)
        with lock(_run_lock(path), "creating the run", wait=5.0):
            if (path / TERMS).exists():
                raise StoreError(f"{path}: already a run; expected a new folder; resume it instead")
            disk.clean(path)
            foreign = {child.name for child in path.iterdir()} - {*FILES, "locks"}
            if foreign:
                raise InputError(
                    f"{path}: holds {sorted(foreign)[:3]}, which are not a run's; expected a new "
                    "or empty folder; choose another with --out"
                )
            for name, data in contents.items():
                write_bytes(path / name, data)
            # The terms come last and whole: the folder is a run from this instant on.
            write_signed(path / TERMS, terms_json(contents, cells))
        run = cls.open(path)
        run.note("created")
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Return the run at `path`, its fixed files checked against its terms; write nothing."""
        path = Path(path)
        if not (path / TERMS).exists():
            raise InputError(
                f"{path}: not a run (no {TERMS}); expected a folder made by `palimpsest study` "
                "or `palimpsest audit`; check the path, or run that command to create it"
            )
        fixed = read_terms(path)
        return cls(path, fixed, {name: read_fixed(path, name, fixed) for name in FILES})

    @classmethod
    def create_or_resume(
        cls,
        path: Path | str,
        *terms: Mapping[str, Any],
        cells: Sequence[str] = (),
        fork: bool = False,
    ) -> "Run":
        """Return the run at `path`, created or resumed; DriftError when its terms are others.

        With `fork`, such a run gets a sibling `<path>-fork-<n>` that says where it came from.
        """
        path = Path(path)
        if not (path / TERMS).exists() and not (path / "cells").exists():
            return cls.create(path, *terms, cells=cells)
        _repair(path, terms, cells)
        run = cls.open(path)
        drift = run.drift(*terms, cells=cells)
        if not drift:
            return run
        if not fork:
            shown = "\n  ".join(drift[:20] + ([f"... {len(drift) - 20} more"] * (len(drift) > 20)))
            raise DriftError(
                f"{path}: the run was made under other terms than asked for now:\n  {shown}\n"
                "expected them to be equal; go back to the old terms, or start a new run from "
                "here with --fork"
            )
        origin = {"run": path.name, "terms": run.terms_digest, "drift": drift}
        for n in range(1, 1000):
            sibling = path.with_name(f"{path.name}-fork-{n}")
            if not (sibling / TERMS).exists():
                return cls.create(sibling, *terms, cells=cells, fork_of=origin)
            other = cls.open(sibling)
            if not other.drift(*terms, cells=cells):
                return other
        raise StoreError(f"{path}: 999 forks exist; expected fewer; remove some")

    def drift(self, *terms: Mapping[str, Any], cells: Sequence[str] = ()) -> list[str]:
        """Return the differences between this run's terms and the given ones, one line per key."""
        plan, rules, environment, seal = terms
        pairs: list[tuple[str, Any, Any]] = [
            ("plan", self.plan, plan),
            ("rules", self.rules, rules),
            ("cells", list(self.cells), list(cells)),
            ("seal.commitment", self.seal["commitment"], seal.get("commitment")),
            *((key, self.environment.get(key), environment.get(key)) for key in SAME_ENVIRONMENT),
        ]
        return [
            line
            for key, old, new in pairs
            for line in difference(key, old, json.loads(canonical(new)))
        ]

    # -- working in it -----------------------------------------------------------------------

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
        """Remove what dead processes left in the folder and in its cells."""
        for folder in (self.path, self.path / "locks", self.path / "progress"):
            disk.clean(folder)
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            if cell.folder.is_dir():
                cell.sweep()

    def cell(self, cell_id: str) -> Cell:
        """Return one of the planned cells."""
        if cell_id not in self._planned:
            raise InputError(
                f"{self.path}: no cell {safe_name(cell_id, 'cell id')!r}; expected one of "
                f"{len(self.cells)} planned cells such as {self.cells[:3]}"
            )
        return Cell(self.path, cell_id, self.terms_digest, self.seal["commitment"])

    def record(self) -> bytes:
        """Return the record of what is stored; write it too where this process holds the run."""
        events: list[tuple[str, Mapping[str, Any]]] = [("terms", dict(read_terms(self.path)))]
        for cell_id in self.cells:
            events += _cell_events(self.cell(cell_id))
        data = chain_bytes(events)
        path = self.path / RECORD
        if self.locked_here() and not (path.is_file() and path.read_bytes() == data):
            write_bytes(path, data)
        return data

    def heads(self) -> dict[str, str]:
        """Return the digest of every finished cell's cell.json, by cell id."""
        cells = map(self.cell, self.cells)
        return {cell.id: str(cell.summary()["digest"]) for cell in cells if cell.finished()}

    def note(self, event: str, **data: Any) -> None:
        """Write a dated line to the command's file of progress."""
        progress.note(self.path, progress.COMMAND, event, **data)

    def verify(self) -> tuple[str, ...]:
        """Return what is wrong with the folder, one sentence each; empty when it is sound."""
        problems = []
        try:
            Run.open(self.path)
        except (StoreError, InputError) as error:
            problems.append(str(error))
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            damaged = cell.check()
            problems += [damage.why for damage in damaged]
            if not damaged and not cell.ended() and cell.halted() is None:
                problems.append(f"cell {cell_id}: not finished; expected every planned cell")
        planned = {cell_id.lower() for cell_id in self.cells}
        folder = self.path / "cells"
        for child in sorted(folder.iterdir()) if folder.is_dir() else []:
            if child.name.lower() not in planned:
                problems.append(f"{child}: not a cell of the plan")
        if not problems:
            try:
                data = (self.path / RECORD).read_bytes()
                verify_chain(data, str(self.path / RECORD))
                if data != self.record():
                    problems.append(f"{self.path / RECORD}: not the record of what is stored")
            except (StoreError, OSError) as error:
                problems.append(str(error))
        return tuple(problems)


def _cell_events(cell: Cell) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what the record says of a cell that has ended; nothing of any other."""
    with contextlib.suppress(DamagedArtifact):
        if cell.ended():
            summary = cell.summary()
            opened = [("opened", summary["opening"])] if summary["opening"] else []
            steps = [("step", {"cell": cell.id} | step) for step in summary["steps"]]
            return [*opened, *steps, ("cell", {"cell": cell.id, "digest": summary["digest"]})]
        if cell.halted() is not None:
            return [("halted", disk.read_signed(cell.folder / "halted.json"))]
    return []


def _run_lock(run: Path) -> Path:
    return run / "locks" / "run.lock"


def _check_cells(cells: Sequence[str]) -> None:
    folders = [safe_name(cell_id, "cell id").lower() for cell_id in cells]
    twins = sorted({name for name in folders if folders.count(name) > 1})
    if twins:
        raise InputError(f"cell ids that name one folder: {twins[:3]}; rename all but one of each")


def _repair(path: Path, given: Sequence[Mapping[str, Any]], cells: Sequence[str]) -> None:
    """Write damaged terms or a damaged fixed file again where the given terms are the run's.

    Of damaged terms the witnesses are the cells: each of their files names the terms' digest.
    """
    plan, rules, environment, seal = given
    try:
        fixed = read_terms(path)
    except DamagedArtifact as damage:
        with contextlib.suppress(StoreError):
            environment = read_json(path / "environment.json")
        fixed = terms_json(fixed_contents(plan, rules, environment, seal), cells)
        for witness in sorted(path.glob("cells/*/**/*.json")):
            with contextlib.suppress(DamagedArtifact):
                if disk.read_signed(witness).get("terms", ...) not in (..., terms_digest(fixed)):
                    raise StoreError(
                        f"{damage}; {witness} was made under other terms than asked for now; "
                        f"expected the plan the run was made with; restore {TERMS} from a copy"
                    ) from damage
        with lock(_run_lock(path), "repairing the terms", wait=5.0):
            write_signed(path / TERMS, fixed)
        progress.note(path, progress.COMMAND, "terms repaired", why=str(damage))
    contents = fixed_contents(plan, rules, environment, seal, fixed["fork_of"])
    for name, data in contents.items():
        expected = file_term(fixed, name)
        intact = (path / name).is_file() and file_digest(path / name) == expected
        if not intact and digest(data) == expected:
            with lock(_run_lock(path), "repairing a file", wait=5.0):
                write_bytes(path / name, data)
