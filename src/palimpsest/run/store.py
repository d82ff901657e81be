"""The run folder: what was fixed before the first model was trained, and the cells.

::

    RUN/plan.json  rules.json  seal.json  environment.json     written once, when the run is created
    RUN/chain.jsonl                                            the run's chain (see chain.py)
    RUN/log.jsonl                                              who did what when; not evidence
    RUN/cells/<cell-id>/                                       see stored_cell.py
    RUN/.leases/                                               see lease.py

The chain's first entries fix plan, rules, cells and seal, in that order; their head is the genesis
of every cell's own chain. So a cell carries the proof that rules and seal came before its results,
and parallel workers share no file. The other names of the store (`write_bytes`, `write_table`,
`canonical`, `digest`, `lease`, ...) can be imported from here too.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, DriftError, InputError, LeaseHeld, StoreError
from palimpsest.run import disk
from palimpsest.run.artifacts import Damage
from palimpsest.run.chain import (
    ORIGIN,
    Chain,
    Entry,
    chain_bytes,
    read_chain,
    seal_problems,
    verify_chain,
)
from palimpsest.run.disk import (
    canonical,
    digest,
    file_digest,
    make_folder,
    read_json,
    safe_name,
    write_bytes,
    write_json,
    write_with,
)
from palimpsest.run.journal import Cell
from palimpsest.run.lease import Lease, Owner, holder, lease, require
from palimpsest.run.tables import (
    Table,
    as_table,
    read_table,
    table_bytes,
    table_from_bytes,
    write_table,
)
from palimpsest.run.terms import (
    CREATION,
    FILES,
    SAME_ENVIRONMENT,
    creation_events,
    difference,
    environment,
    fixed_contents,
    read_fixed,
    read_terms,
    term,
)

__all__ = [
    "ORIGIN",
    "Cell",
    "Chain",
    "Damage",
    "Entry",
    "Lease",
    "Owner",
    "Run",
    "Table",
    "as_table",
    "canonical",
    "digest",
    "environment",
    "file_digest",
    "holder",
    "lease",
    "make_folder",
    "read_chain",
    "read_json",
    "read_table",
    "safe_name",
    "seal_problems",
    "table_bytes",
    "table_from_bytes",
    "verify_chain",
    "write_bytes",
    "write_json",
    "write_table",
    "write_with",
]


class Run:
    """A run folder; from `create`, `open` or `create_or_resume`."""

    def __init__(self, path: Path, chain: Chain, contents: Mapping[str, Any]) -> None:
        self.path = path
        self.plan: dict[str, Any] = contents["plan.json"]
        self.rules: dict[str, Any] = contents["rules.json"]["rules"]
        self.rules_hash: str = contents["rules.json"]["hash"]
        self.seal: dict[str, Any] = contents["seal.json"]
        self.environment: dict[str, Any] = contents["environment.json"]
        self.cells: tuple[str, ...] = tuple(term(chain, "cells")["cells"])
        self.fork_of: dict[str, Any] | None = term(chain, "environment")["fork_of"]
        self.genesis = chain.entries[CREATION.index("seal")].digest
        self._lease: Lease | None = None

    # -- making and opening ------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path | str,
        plan_json: Mapping[str, Any],
        rules_json: Mapping[str, Any],
        environment: Mapping[str, Any],
        seal: Mapping[str, Any],
        *,
        cells: Sequence[str] = (),
        fork_of: Mapping[str, Any] | None = None,
    ) -> "Run":
        """A new run folder at `path`; a creation that was interrupted is completed.

        `seal` must hold "commitment". `cells` are the ids of all planned cells. Of `environment`,
        the keys "code", "packages" and "inputs" (digests of models and facts) must be equal for
        the run to be resumed.
        """
        path = Path(path)
        _check_cells(cells)
        if "commitment" not in seal:
            raise InputError(f"seal has keys {sorted(seal)}; expected 'commitment' among them")
        contents = fixed_contents(plan_json, rules_json, environment, seal, fork_of)
        make_folder(path)
        with lease(_lease_path(path), "creating the run", wait=5.0):
            if (path / "chain.jsonl").exists():
                raise StoreError(f"{path}: already a run; expected a new folder; resume it instead")
            foreign = sorted(
                child.name
                for child in path.iterdir()
                if child.name not in (*FILES, ".leases") and not disk.is_temporary(child)
            )
            if foreign:
                raise InputError(
                    f"{path}: holds {foreign[:3]}, which are not a run's; expected a new or empty "
                    "folder; choose another with --out"
                )
            disk.clean(path)
            for name, data in contents.items():
                write_bytes(path / name, data)
            # The chain comes last and whole: the folder is a run from this instant on.
            write_bytes(path / "chain.jsonl", chain_bytes(creation_events(contents, cells)))
        run = cls.open(path)
        run.note("created")
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """The run at `path`, its fixed files checked against its chain; writes nothing."""
        path = Path(path)
        if not (path / "chain.jsonl").exists():
            raise InputError(
                f"{path}: not a run (no chain.jsonl); expected a folder made by `palimpsest study` "
                "or `palimpsest audit`; check the path, or run that command to create it"
            )
        chain = read_terms(path)
        return cls(path, chain, {name: read_fixed(path, name, chain) for name in FILES})

    @classmethod
    def create_or_resume(
        cls,
        path: Path | str,
        plan_json: Mapping[str, Any],
        rules_json: Mapping[str, Any],
        environment: Mapping[str, Any],
        seal: Mapping[str, Any],
        *,
        cells: Sequence[str] = (),
        fork: bool = False,
    ) -> "Run":
        """The run at `path`, created or resumed; DriftError when it was made under other terms.

        With `fork`, a drifted run gets a sibling `<path>-fork-<n>` that says where it came from.
        """
        path = Path(path)
        given = (plan_json, rules_json, environment, seal)
        if not (path / "chain.jsonl").exists() and not (path / "cells").exists():
            return cls.create(path, *given, cells=cells)
        _mend(path, given, cells)
        run = cls.open(path)
        drift = run.drift(*given, cells=cells)
        if not drift:
            return run
        if not fork:
            shown = "\n  ".join(drift[:20] + ([f"... {len(drift) - 20} more"] * (len(drift) > 20)))
            raise DriftError(
                f"{path}: the run was made under other terms than asked for now:\n  {shown}\n"
                "expected them to be equal; go back to the old terms, or start a new run from "
                "here with --fork"
            )
        origin = {"run": path.name, "head": run.chain().head, "drift": drift}
        for n in range(1, 1000):
            sibling = path.with_name(f"{path.name}-fork-{n}")
            if not (sibling / "chain.jsonl").exists():
                return cls.create(sibling, *given, cells=cells, fork_of=origin)
            other = cls.open(sibling)
            if not other.drift(*given, cells=cells):
                return other
        raise StoreError(f"{path}: 999 forks exist; expected fewer; remove some")

    def drift(
        self,
        plan_json: Mapping[str, Any],
        rules_json: Mapping[str, Any],
        environment: Mapping[str, Any],
        seal: Mapping[str, Any],
        *,
        cells: Sequence[str] = (),
    ) -> list[str]:
        """The differences between this run's terms and the given ones, one line a key."""
        mine, asked = self.environment, environment
        pairs: list[tuple[str, Any, Any]] = [
            ("plan", self.plan, plan_json),
            ("rules", self.rules, rules_json),
            ("cells", list(self.cells), list(cells)),
            ("seal.commitment", self.seal["commitment"], seal.get("commitment")),
            *((key, mine.get(key), asked.get(key)) for key in SAME_ENVIRONMENT),
        ]
        return [
            line
            for key, old, new in pairs
            for line in difference(key, old, json.loads(canonical(new)))
        ]

    # -- working in it -----------------------------------------------------------------------

    @contextlib.contextmanager
    def lease(self, owner: str = "palimpsest", *, wait: float = 0.0) -> Iterator["Run"]:
        """Hold the run folder; LeaseHeld when another live command does. Clears leftovers."""
        with lease(_lease_path(self.path), owner, wait=wait) as held:
            self._lease = held
            try:
                self.sweep()
                yield self
            finally:
                self._lease = None

    def sweep(self) -> None:
        """Remove what dead processes left in the folder and in cells nobody works on."""
        disk.clean(self.path)
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            if any(map(disk.is_temporary, _files(cell.folder))) or (
                cell.parts.is_dir() and cell.finished()
            ):
                with contextlib.suppress(StoreError), cell.claim("clearing leftovers"):
                    pass
            # Taking and giving back a dead owner's lease removes its file.
            path = _lease_path(self.path, cell_id)
            if path.exists():
                with contextlib.suppress(LeaseHeld), lease(path, "clearing leftovers"):
                    pass

    def cell(self, cell_id: str) -> Cell:
        """One of the planned cells."""
        safe_name(cell_id, "cell id")
        if cell_id not in self.cells:
            raise InputError(
                f"{self.path}: no cell {cell_id!r}; expected one of {len(self.cells)} planned "
                f"cells such as {self.cells[:3]}"
            )
        return Cell(
            self.path / "cells" / cell_id,
            _lease_path(self.path, cell_id),
            self.genesis,
            self.seal["commitment"],
            self.note,
        )

    def chain(self) -> Chain:
        """The run's chain as it is on disk now."""
        return read_terms(self.path)

    def record(self, event: str, data: Mapping[str, Any]) -> str:
        """Append an event such as a report to the run's chain; gives back the new head."""
        require(self._lease, str(self.path), "use `with run.lease():` around the work")
        return self.chain().append(event, data).head

    def heads(self) -> dict[str, str]:
        """The head of every finished cell's chain, by cell id."""
        found = map(self.cell, self.cells)
        return {cell.id: cell.head() for cell in found if cell.finished()}

    def held(self) -> bool:
        """Whether a live command holds the run folder."""
        return holder(_lease_path(self.path)) is not None

    def note(self, event: str, **data: Any) -> None:
        """Write a dated line to the log."""
        line = {"time": datetime.now(UTC).isoformat(), "pid": os.getpid(), "event": event}
        disk.append_log(self.path / "log.jsonl", line | data)

    def verify(self) -> tuple[str, ...]:
        """What is wrong with the folder, one sentence each; empty when all of it is sound."""
        problems = []
        try:
            Run.open(self.path)
            verify_chain((self.path / "chain.jsonl").read_bytes(), ORIGIN, "chain.jsonl")
        except (StoreError, InputError) as error:
            problems.append(str(error))
        for cell_id in self.cells:
            cell = self.cell(cell_id)
            damaged = cell.check()
            problems += [damage.why for damage in damaged]
            problems += filter(None, [cell.repairs()[1]])
            problems += seal_problems(cell.chain(), self.seal["commitment"])
            if not damaged and not cell.finished():
                problems.append(f"cell {cell_id}: not finished; expected every planned cell")
        planned = {cell_id.lower() for cell_id in self.cells}
        folder = self.path / "cells"
        for child in sorted(folder.iterdir()) if folder.is_dir() else []:
            if child.name.lower() not in planned:
                problems.append(f"{child}: not a cell of the plan")
        return tuple(problems)


def _lease_path(run: Path, cell_id: str | None = None) -> Path:
    return run / ".leases" / ("run" if cell_id is None else f"cell-{cell_id}")


def _check_cells(cells: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for cell_id in cells:
        safe_name(cell_id, "cell id")
        twin = seen.get(cell_id.lower())
        if twin is not None:
            raise InputError(f"cell ids {twin!r} and {cell_id!r} name one folder; rename one")
        seen[cell_id.lower()] = cell_id


def _mend(
    path: Path, given: tuple[Mapping[str, Any], ...], cells: Sequence[str], wait: float = 5.0
) -> None:
    """Write a damaged chain or fixed file again where the given terms are those of the run.

    Of a damaged chain the witnesses are the cells: each was begun from the digest of the terms.
    Later entries of a damaged chain are lost, and the log says so.
    """
    plan, rules, environment, seal = given
    try:
        chain = read_terms(path)
    except DamagedArtifact as damage:
        known = path / "environment.json"
        with contextlib.suppress(StoreError):
            environment = read_json(known) if known.exists() else environment
        contents = fixed_contents(plan, rules, environment, seal, None)
        data = chain_bytes(creation_events(contents, cells))
        genesis = verify_chain(data).entries[CREATION.index("seal")].digest
        for witness in sorted(path.glob("cells/*/chain.jsonl")):
            begun = _first_previous(witness)
            if begun not in (None, genesis):
                raise DamagedArtifact(
                    f"{damage}; {witness} was begun under other terms than asked for now; expected "
                    "the plan the run was made with; restore chain.jsonl from a copy"
                ) from damage
        with lease(_lease_path(path), "mending the chain", wait=wait):
            write_bytes(path / "chain.jsonl", data)
            disk.append_log(path / "log.jsonl", {"event": "chain mended", "why": str(damage)})
        chain = read_terms(path)
    contents = fixed_contents(plan, rules, environment, seal, term(chain, "environment")["fork_of"])
    for name, data in contents.items():
        expected = term(chain, name.removesuffix(".json"))["file"]
        intact = (path / name).is_file() and file_digest(path / name) == expected
        if not intact and digest(data) == expected:
            with lease(_lease_path(path), "mending a file", wait=wait):
                write_bytes(path / name, data)


def _first_previous(path: Path) -> str | None:
    """The digest a chain says it begins from, or None where that is not legible."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        return str(json.loads(path.read_bytes().split(b"\n")[0])["previous"])
    return None


def _files(folder: Path) -> Iterator[Path]:
    for inner in (folder, folder / "parts", folder / "models"):
        if inner.is_dir():
            yield from inner.iterdir()
