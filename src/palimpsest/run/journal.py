"""Working on a cell: steps that are wholly done or not at all, and the finished cell.

Only who holds a cell writes to it, and each step's files are on disk before the entry that makes
it done. No entry depends on how often the work was interrupted, so a resumed cell ends with the
bytes of an uninterrupted one. The folder itself is described in stored_cell.py.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError, SealError, StoreError
from palimpsest.run import disk
from palimpsest.run.artifacts import VALUES, part, stem, table_file
from palimpsest.run.chain import Chain, read_chain
from palimpsest.run.lease import Lease, lease, require
from palimpsest.run.repairs import legible_openings, write_repairs
from palimpsest.run.stored_cell import StoredCell
from palimpsest.run.tables import Columns, Table, concatenate, table_bytes

_log = logging.getLogger("palimpsest")


class Cell(StoredCell):
    """One cell of a run, from `Run.cell`; reading needs nothing, writing needs `claim`."""

    def __init__(
        self,
        folder: Path,
        lease_path: Path,
        genesis: str,
        commitment: str,
        note: Callable[..., None],
    ) -> None:
        super().__init__(folder, lease_path, genesis)
        self._commitment = commitment
        self._note = note
        self._lease: Lease | None = None
        self._claimed: Chain | None = None  # the chain, which nobody else changes under this claim
        self._sound: set[str] = set()  # steps whose artifacts were checked under this claim
        self._staged: dict[str, dict[str, str]] = {}

    # -- who works on it ---------------------------------------------------------------------

    @contextlib.contextmanager
    def claim(self, owner: str = "", *, wait: float = 0.0) -> Iterator["Cell"]:
        """Hold the cell for writing; LeaseHeld when another live process does.

        Leftovers of a dead owner are cleared away, and a finished cell that is damaged is begun
        again. Ask `finished()` again after claiming: another process may have been faster.
        """
        with lease(self._lease_path, owner or f"cell {self.id}", wait=wait) as held:
            self._lease = held
            try:
                self._prepare()
                yield self
            finally:
                self._lease = self._claimed = None
                self._sound.clear()
                self._staged.clear()

    def chain(self) -> Chain:
        """The cell's chain: its sound beginning, and what is wrong after it, if anything."""
        return super().chain() if self._claimed is None else self._claimed

    def _prepare(self) -> None:
        """Clear a dead owner's leftovers and make the folder ready for work."""
        disk.make_folder(self.folder)
        for folder in (self.folder, self.parts, self.folder / "models"):
            for path in disk.clean(folder):
                self._note("leftover removed", cell=self.id, file=path.name)
        lost = self.repairs()[1]
        if lost is not None:
            _log.warning("damaged, removed: %s", lost)
            self._note("damaged", cell=self.id, step="", why=lost)
            disk.remove(self.folder / "repairs.json")
        damaged = self.check()
        for damage in damaged:
            _log.warning("damaged, made again: %s", damage.why)
            self._note("damaged", cell=self.id, step=damage.step, why=damage.why)
            if damage.path.is_dir():
                disk.remove(damage.path)
        chain = self.chain()
        if chain.damage is not None or (damaged and chain.find("finished") is not None):
            chain = self._repair(chain, [damage.why for damage in damaged])
        if chain.find("finished") is not None:
            disk.remove(self.parts)
        else:
            disk.make_folder(self.parts)
            if not chain.entries:
                chain = chain.append("started", {"cell": self.id})
                self._note("started", cell=self.id)
        disk.remove(self.folder / "failed.json")
        self._claimed = chain
        self._sound = set(self._steps()) - {damage.step for damage in damaged}

    def _repair(self, chain: Chain, why: list[str]) -> Chain:
        """The chain with its unsound part cut off; empty when a finished cell was damaged."""
        opened = [*self.repairs()[0], *legible_openings(chain.path)]
        write_repairs(self.folder / "repairs.json", opened, why)
        sound = chain.path.read_bytes()[: chain.size] if chain.find("finished") is None else b""
        disk.write_bytes(chain.path, sound)
        return read_chain(chain.path, self._genesis)

    # -- steps -------------------------------------------------------------------------------

    def done(self, step: str) -> bool:
        """Whether a step is done and its artifacts are intact, which is checked once a claim."""
        if step in self._sound:
            return True
        found = super().done(step)
        if found and self._claimed is not None:
            self._sound.add(step)
        return found

    def put(
        self,
        step: str,
        tables: Mapping[str, Columns] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a step: its tables, its values and the files staged for it by `put_file`.

        The step is done when this returns, and not at all if it does not.
        """
        self._require_unfinished(step)
        contents = {part(step, VALUES): disk.canonical(dict(values or {})) + b"\n"}
        for name, columns in (tables or {}).items():
            contents[part(step, table_file(name))] = table_bytes(columns)
        artifacts = {file: disk.digest(data) for file, data in contents.items()}
        artifacts |= self._staged.get(step, {})
        if self.done(step):
            if artifacts != self._steps()[step]:
                raise StoreError(
                    f"cell {self.id}: step {step!r} is already done with other contents; "
                    "expected a step to be put once; ask done() before running a step"
                )
            return
        for file, data in contents.items():
            disk.write_bytes(self.parts / file, data)
        # A damaged step made again with the same bytes is healed: its entry stands as it is.
        if self._steps().get(step) != artifacts:
            self._append("step", {"step": step, "artifacts": artifacts})
        self._staged.pop(step, None)
        self._sound.add(step)
        self._note("step", cell=self.id, step=step)

    def put_file(self, step: str, name: str, content: bytes | Callable[[Path], object]) -> str:
        """Store a file such as model weights for a step; gives back its digest.

        `content` is bytes or a function that writes to the path it is given. The file belongs to
        the step once `put(step, ...)` has recorded it. Names look like "weights.safetensors".
        """
        self._require_unfinished(step)
        if re.fullmatch(r"[a-z0-9_]{1,40}\.(safetensors|bin|npy|txt)", name) is None:
            raise InputError(f"file name {name!r}; expected one like 'weights.safetensors'")
        if self.done(step):
            raise StoreError(f"cell {self.id}: step {step!r} is already done; expected a new one")
        file = part(step, name)
        path = self.parts / file
        found = (
            disk.write_bytes(path, content)
            if isinstance(content, bytes)
            else disk.write_with(path, content)
        )
        self._staged.setdefault(step, {})[file] = found
        return found

    # -- the seal ----------------------------------------------------------------------------

    def open_seal(self, step: str, commitment: str, models: Mapping[str, str]) -> None:
        """Record that the audit pool is opened, once, for the scores that `put(step)` will store.

        `models` maps the name of each model to be scored to its digest. An opening whose scores
        were never stored may be taken up again by the same models; anything else is a second
        scoring and raises SealError.
        """
        self._require_unfinished(step)
        if commitment != self._commitment:
            raise SealError(
                f"cell {self.id}: the audit pool has commitment {commitment}; expected "
                f"{self._commitment}, fixed when the run began; use the pool that was sealed"
            )
        if self.done(step):
            raise SealError(
                f"cell {self.id}: the audit pool was already scored in step {step!r}; "
                "it is scored once in a run; start a new run to score it again"
            )
        opening = {"step": step, "commitment": commitment, "models": dict(sorted(models.items()))}
        recorded = self.chain().find("seal opened")
        for earlier in ([recorded.data] if recorded else []) + self.repairs()[0]:
            if earlier != opening:
                raise SealError(
                    f"cell {self.id}: the audit pool was already opened for {_brief(earlier)}; "
                    f"now asked for {_brief(opening)}; it is opened once in a run; start a new run"
                )
        if recorded is None:
            self._append("seal opened", opening)

    # -- the end -----------------------------------------------------------------------------

    def finish(
        self,
        cell_json: Mapping[str, Any],
        order: Sequence[str],
        *,
        keep: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Merge the steps' tables in `order` and make the cell finished.

        Writes `<table>.parquet` for every table any step stored, then `cell.json`: `cell_json`
        with "cell", "artifacts" (file to digest) and "journal" (the chain's head) added. `keep`
        maps a name to the (step, file) that stays as `models/<name>`; the other parts go.
        """
        if self.finished():
            return
        self._require_unfinished("finish")
        reserved = {"cell", "artifacts", "journal"} & set(cell_json)
        if reserved:
            raise InputError(f"cell.json keys {sorted(reserved)} are the store's own; rename them")
        artifacts: dict[str, str] = {}
        for name, data in self._merge(order).items():
            artifacts[name] = disk.write_bytes(self.folder / name, data)
        for name, (step, file) in (keep or {}).items():
            kept = f"models/{disk.safe_name(name, 'model file')}"
            disk.make_folder(self.folder / "models")
            disk.link_or_copy(self.file(step, file), self.folder / kept)
            artifacts[kept] = self.file_digest(step, file)
        whole = {"cell": self.id, "artifacts": artifacts, "journal": self.chain().head}
        found = disk.write_json(self.folder / "cell.json", whole | dict(cell_json))
        self._append("finished", {"cell.json": found})
        self._note("finished", cell=self.id)
        disk.remove(self.parts)

    def fail(self, reason: str) -> None:
        """Record that this attempt failed; the next claim tries again."""
        require(self._lease, f"cell {self.id}", "use `with cell.claim():`")
        # Where even this cannot be written, the reason that is about to be raised says more.
        with contextlib.suppress(StoreError):
            disk.write_json(self.folder / "failed.json", {"cell": self.id, "reason": reason})
        self._note("failed", cell=self.id, reason=reason)

    def _merge(self, order: Sequence[str]) -> dict[str, bytes]:
        recorded = self._steps()
        missing = [step for step in order if not self.done(step)]
        stray = [
            step
            for step, artifacts in recorded.items()
            if step not in order and any(file.endswith(".parquet") for file in artifacts)
        ]
        if missing or stray or len(set(order)) != len(order):
            raise StoreError(
                f"cell {self.id}: cannot finish: steps not done {missing}, steps with tables but "
                f"outside the order {stray}; expected each step with tables once in the order"
            )
        gathered: dict[str, list[tuple[str, Table]]] = {}
        for step in order:
            for name, table in self.get(step)[0].items():
                gathered.setdefault(name, []).append((step, table))
        return {
            f"{name}.parquet": table_bytes(concatenate(gathered[name], name))
            for name in sorted(gathered)
        }

    # -- behind these ------------------------------------------------------------------------

    def _append(self, event: str, data: Mapping[str, Any]) -> None:
        self._claimed = self.chain().append(event, data)

    def _require_unfinished(self, step: str) -> None:
        require(self._lease, f"cell {self.id}", "use `with cell.claim():` around the work")
        stem(step)
        twin = next((s for s in self._steps() if s != step and s.lower() == step.lower()), None)
        if twin is not None:
            raise InputError(f"steps {twin!r} and {step!r} differ only in case; rename one")
        if self.ended():
            raise StoreError(f"cell {self.id} is finished; expected no further step {step!r}")


def _brief(opening: Mapping[str, Any]) -> str:
    return f"step {opening['step']!r}, models {opening['models']}"
