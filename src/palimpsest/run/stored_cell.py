"""A cell's folder as it is on disk: its steps while it runs, and its tables once it is finished.

While a cell runs, each step leaves its artifacts under `parts/` and then one entry in the cell's
chain with their digests; the entry is what makes the step done. When all steps are done the parts
are merged into `items.parquet`, `curves.parquet` and `cell.json`, and one last entry, with the
digest of `cell.json`, makes the cell finished. What is written, and when, is in journal.py.
"""

import json
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run import disk
from palimpsest.run.artifacts import VALUES, Damage, check_file, damages, part, table_file
from palimpsest.run.chain import Chain, read_chain
from palimpsest.run.lease import holder
from palimpsest.run.repairs import Opening, read_repairs
from palimpsest.run.tables import Table, table_from_bytes


class StoredCell:
    """What can be read of a cell, by anybody at any time."""

    def __init__(self, folder: Path, lease_path: Path, genesis: str) -> None:
        self.id = folder.name
        self.folder = folder
        self.parts = folder / "parts"
        self._lease_path = lease_path
        self._genesis = genesis

    # -- how far it is -----------------------------------------------------------------------

    def running(self) -> bool:
        """Whether a live process holds the cell."""
        return holder(self._lease_path) is not None

    def started(self) -> bool:
        """Whether any work on the cell was ever recorded."""
        return bool(self.chain().entries)

    def finished(self) -> bool:
        """Whether the cell is finished and every file of it is what was recorded."""
        chain = self.chain()
        return chain.find("finished") is not None and not self._finished_damage(chain)

    def ended(self) -> bool:
        """Whether the cell says it is finished, without checking its files."""
        return self.chain().find("finished") is not None

    def failure(self) -> str | None:
        """Why the last attempt failed, or None when it did not."""
        path = self.folder / "failed.json"
        try:
            return str(disk.read_json(path)["reason"]) if path.exists() else None
        except (DamagedArtifact, KeyError, TypeError):
            return "unknown"

    # -- its journal -------------------------------------------------------------------------

    def chain(self) -> Chain:
        """The cell's chain: its sound beginning, and what is wrong after it, if anything."""
        chain = read_chain(self.folder / "chain.jsonl", self._genesis)
        if chain.entries and chain.entries[0].data != {"cell": self.id}:
            why = f"{chain.path} line 1: {chain.entries[0].data}; expected cell {self.id!r}"
            return Chain(chain.path, self._genesis, (), 0, why)
        return chain

    def head(self) -> str:
        """The digest of the last entry in the cell's chain."""
        return self.chain().head

    def repairs(self) -> tuple[list[Opening], str | None]:
        """The seal openings of journals that were damaged and begun again; why if unreadable."""
        return read_repairs(self.folder / "repairs.json")

    # -- its steps, until it is finished -----------------------------------------------------

    def steps(self) -> tuple[str, ...]:
        """The names of the recorded steps, in the order they were done."""
        return tuple(self._steps())

    def done(self, step: str) -> bool:
        """Whether a step is done and its artifacts are intact."""
        return step in self._steps() and (self.ended() or not self._damage(step))

    def get(self, step: str) -> tuple[dict[str, Table], dict[str, Any]]:
        """A step's tables and values; DamagedArtifact naming the file when one is not intact."""
        tables: dict[str, Table] = {}
        values: dict[str, Any] = {}
        for file, expected in self._recorded(step).items():
            path = self.parts / file
            if file.endswith(f".{VALUES}"):
                values = json.loads(disk.read_checked(path, expected))
            elif file.endswith(".parquet"):
                data = disk.read_checked(path, expected)
                tables[file.split(".")[-2]] = table_from_bytes(data, str(path))
        return tables, values

    def file(self, step: str, name: str) -> Path:
        """The path of a file stored by `put_file`, after checking its digest."""
        recorded = self._recorded(step)
        file = part(step, name)
        if file not in recorded:
            raise StoreError(f"cell {self.id}: step {step!r} has no file {name!r}")
        check_file(self.parts / file, recorded[file])
        return self.parts / file

    def file_digest(self, step: str, name: str) -> str:
        """The recorded digest of a file stored by `put_file`."""
        return self._recorded(step)[part(step, name)]

    # -- what it holds when it is finished ---------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The contents of a finished cell's `cell.json`."""
        return self._summary(self.chain())

    def table(self, name: str) -> Table:
        """A finished cell's table ("items", "curves"), checked against its digest."""
        file = table_file(name)
        artifacts = self.summary()["artifacts"]
        if file not in artifacts:
            raise StoreError(f"cell {self.id}: no {file}; found {sorted(artifacts)}")
        data = disk.read_checked(self.folder / file, artifacts[file])
        return table_from_bytes(data, str(self.folder / file))

    # -- what is wrong with it ---------------------------------------------------------------

    def check(self) -> tuple[Damage, ...]:
        """Every damaged file, with its step; a damaged step counts as not done."""
        chain = self.chain()
        if chain.find("finished") is not None:
            return tuple(self._finished_damage(chain))
        found = [Damage("", chain.path, chain.damage)] if chain.damage else []
        return (*found, *(damage for step in self._steps() for damage in self._damage(step)))

    def _damage(self, step: str) -> list[Damage]:
        return damages(step, self.parts, self._steps()[step])

    def _finished_damage(self, chain: Chain) -> list[Damage]:
        if chain.damage is not None:
            return [Damage("", chain.path, chain.damage)]
        if chain.torn:  # nothing is ever appended to a finished cell
            return [Damage("", chain.path, f"{chain.path}: bytes after the last entry")]
        try:
            artifacts = self._summary(chain)["artifacts"]
        except DamagedArtifact as error:
            return [Damage("", self.folder / "cell.json", str(error))]
        return damages("", self.folder, artifacts)

    # -- behind these ------------------------------------------------------------------------

    def _steps(self) -> dict[str, dict[str, str]]:
        """The recorded steps, each with its files and their digests."""
        done = [entry.data for entry in self.chain().entries if entry.event == "step"]
        return {data["step"]: data["artifacts"] for data in done}

    def _recorded(self, step: str) -> dict[str, str]:
        recorded = self._steps()
        if step not in recorded:
            raise StoreError(f"cell {self.id}: step {step!r} is not done; found {list(recorded)}")
        return recorded[step]

    def _summary(self, chain: Chain) -> dict[str, Any]:
        end = chain.find("finished")
        if end is None:
            raise StoreError(f"cell {self.id}: not finished; run the study again to finish it")
        data = disk.read_checked(self.folder / "cell.json", end.data["cell.json"])
        result: dict[str, Any] = json.loads(data)
        return result
