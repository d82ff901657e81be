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
plan; its bytes do not depend on who finished first.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, DriftError, InputError, StoreError
from palimpsest.run import disk, progress
from palimpsest.run import terms as fixed
from palimpsest.run.cell import Cell
from palimpsest.run.chain import Entry, chain_bytes, verify_chain
from palimpsest.run.disk import (
    canonical,
    digest,
    file_digest,
    make_folder,
    parse_signed,
    read_json,
    safe_name,
    write_bytes,
    write_json,
    write_with,
)
from palimpsest.run.locks import held_here, holder, lock
from palimpsest.run.tables import Table, table_bytes, table_from_bytes
from palimpsest.run.terms import FILES, TERMS, environment, terms_digest

__all__ = [
    "Cell", "Entry", "Run", "Table", "canonical", "digest", "environment", "file_digest",
    "make_folder", "parse_signed", "read_json", "safe_name", "table_bytes", "table_from_bytes",
    "terms_digest", "verify_chain", "write_bytes", "write_json", "write_with",
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
        the ids of all planned cells.
        """
        path = Path(path)
        _check_cells(cells)
        if "commitment" not in terms[3]:
            raise InputError(f"seal has keys {sorted(terms[3])}; expected 'commitment' among them")
        contents = fixed.fixed_contents(terms, fork_of)
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
            disk.write_signed(path / TERMS, fixed.terms_json(contents, cells))
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
        terms_file = fixed.read_terms(path)
        digests = {name: fixed.file_term(terms_file, name) for name in FILES}
        data = {name: disk.read_checked(path / name, digests[name]) for name in FILES}
        return cls(path, terms_file, {name: json.loads(data[name]) for name in FILES})

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
        _restore(path, terms, cells)
        run = cls.open(path)
        drift = run.drift(*terms, cells=cells)
        if not drift:
            return run
        if not fork:
            shown = "\n  ".join(drift[:20] + ([f"... {len(drift) - 20} more"] * (len(drift) > 20)))
            raise DriftError(
                f"{path}: the run was made under other terms than asked for now:\n  {shown}\n"
                "expected them to be equal; go back to the old terms, give another --out, or "
                f"start a new run from here with --fork{_advice(path, drift)}"
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
            *((key, self.environment.get(key), environment.get(key)) for key in fixed.SAME),
        ]
        plain = ((key, old, json.loads(canonical(new))) for key, old, new in pairs)
        return [line for pair in plain for line in fixed.difference(*pair)]

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
        for cell in map(self.cell, self.cells):
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
        events: list[tuple[str, Mapping[str, Any]]] = [("terms", fixed.read_terms(self.path))]
        for cell_id in self.cells:
            events += _cell_events(self.cell(cell_id))
        data = chain_bytes(events)
        path = self.path / RECORD
        if self.locked_here() and not (path.is_file() and path.read_bytes() == data):
            write_bytes(path, data)
        return data

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
        folders = sorted(self.path.glob("cells/*"))
        strange = [folder for folder in folders if folder.name.lower() not in planned]
        problems += [f"{folder}: not a cell of the plan" for folder in strange]
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


def _advice(path: Path, drift: Sequence[str]) -> str:
    """Return how else to go on where the run's methods are not those asked for."""
    if not any(line.startswith(("plan.methods", "inputs.method ")) for line in drift):
        return ""
    return (
        "; a method is added to a finished run by `palimpsest study PLAN --out "
        f"{path} --add-method NAME`, with everything else as it was; an edited method needs a new "
        "name for that"
    )


def _restore(path: Path, given: Sequence[Mapping[str, Any]], cells: Sequence[str]) -> None:
    """Write damaged terms or a damaged fixed file again where the given terms are the run's.

    Of damaged terms the witnesses are the cells: each of their files names the terms' digest.
    """
    damaged: dict[str, bytes] = {}
    try:
        terms_file = fixed.read_terms(path)
    except DamagedArtifact as damage:
        plan, rules, environment, seal = given
        with contextlib.suppress(StoreError):
            environment = read_json(path / "environment.json")
        contents = fixed.fixed_contents((plan, rules, environment, seal))
        terms_file = fixed.terms_json(contents, cells)
        for witness in sorted(path.glob("cells/*/**/*.json")):
            with contextlib.suppress(DamagedArtifact, KeyError):
                if disk.read_signed(witness)["terms"] != terms_digest(terms_file):
                    raise StoreError(
                        f"{damage}; {witness} was made under other terms than asked for now; "
                        f"expected the plan the run was made with; restore {TERMS} from a copy"
                    ) from damage
        damaged[TERMS] = disk.signed(terms_file)
    for name, data in fixed.fixed_contents(given, terms_file["fork_of"]).items():
        expected = fixed.file_term(terms_file, name)
        intact = (path / name).is_file() and file_digest(path / name) == expected
        if not intact and digest(data) == expected:
            damaged[name] = data
    if damaged:
        with lock(_run_lock(path), "repairing the run", wait=5.0):
            for name, data in damaged.items():
                write_bytes(path / name, data)
        progress.note(path, progress.COMMAND, "repaired", files=sorted(damaged))
