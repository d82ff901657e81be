"""A cell's folder: steps that are wholly done or not at all, and the finished cell.

While a cell runs, each step leaves its artifacts under `parts/` and then one entry in the cell's
chain with their digests; the entry is what makes the step done. When all steps are done the parts
are merged into `items.parquet`, `curves.parquet` and `cell.json`, and one last entry, with the
digest of `cell.json`, makes the cell finished. No entry depends on how often the work was
interrupted, so a resumed cell ends with the bytes of an uninterrupted one.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, InputError, SealError, StoreError
from palimpsest.run import disk
from palimpsest.run.chain import Chain, link, read_chain
from palimpsest.run.lease import Lease, holder, lease, require
from palimpsest.run.tables import Columns, Table, concatenate, table_bytes, table_from_bytes

_log = logging.getLogger("palimpsest")


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored file that is not what was recorded, and the step ("" = the cell) it belongs to."""

    step: str
    path: Path
    why: str


class Cell:
    """One cell of a run, from `Run.cell`; reading needs nothing, writing needs `claim`."""

    def __init__(
        self,
        folder: Path,
        lease_path: Path,
        genesis: str,
        commitment: str,
        note: Callable[..., None],
    ) -> None:
        self.id = folder.name
        self.folder = folder
        self.parts = folder / "parts"
        self._lease_path = lease_path
        self._genesis = genesis
        self._commitment = commitment
        self._note = note
        self._lease: Lease | None = None
        self._claimed: Chain | None = None
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

    def running(self) -> bool:
        """Whether a live process holds the cell."""
        return holder(self._lease_path) is not None

    def started(self) -> bool:
        """Whether any work on the cell was ever recorded."""
        return bool(self.chain().entries)

    # -- steps -------------------------------------------------------------------------------

    def steps(self) -> tuple[str, ...]:
        """The names of the recorded steps, in the order they were done."""
        return tuple(self._steps())

    def done(self, step: str) -> bool:
        """Whether a step is done and its artifacts are intact."""
        if step not in self._steps():
            return False
        if self.ended():
            return True
        if step not in self._sound and self._damage(step):
            return False
        if self._claimed is not None:
            self._sound.add(step)
        return True

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
        contents = {f"{_stem(step)}.values.json": disk.canonical(dict(values or {})) + b"\n"}
        for name, columns in (tables or {}).items():
            contents[f"{_stem(step)}.{_word(name)}.parquet"] = table_bytes(columns)
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
        file = f"{_stem(step)}.{name}"
        path = self.parts / file
        found = (
            disk.write_bytes(path, content)
            if isinstance(content, bytes)
            else disk.write_with(path, content)
        )
        self._staged.setdefault(step, {})[file] = found
        return found

    def get(self, step: str) -> tuple[dict[str, Table], dict[str, Any]]:
        """A step's tables and values; DamagedArtifact naming the file when one is not intact."""
        tables: dict[str, Table] = {}
        values: dict[str, Any] = {}
        for file, expected in self._recorded(step).items():
            path = self.parts / file
            if file.endswith(".values.json"):
                values = json.loads(disk.read_checked(path, expected))
            elif file.endswith(".parquet"):
                data = disk.read_checked(path, expected)
                tables[file.split(".")[-2]] = table_from_bytes(data, str(path))
        return tables, values

    def file(self, step: str, name: str) -> Path:
        """The path of a file stored by `put_file`, after checking its digest."""
        recorded = self._recorded(step)
        file = f"{_stem(step)}.{name}"
        if file not in recorded:
            raise StoreError(f"cell {self.id}: step {step!r} has no file {name!r}")
        _check_file(self.parts / file, recorded[file])
        return self.parts / file

    def file_digest(self, step: str, name: str) -> str:
        """The recorded digest of a file stored by `put_file`."""
        return self._recorded(step)[f"{_stem(step)}.{name}"]

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

    def finished(self) -> bool:
        """Whether the cell is finished and every file of it is what was recorded."""
        chain = self.chain()
        return chain.find("finished") is not None and not self._finished_damage(chain)

    def ended(self) -> bool:
        """Whether the cell says it is finished, without checking its files."""
        return self.chain().find("finished") is not None

    def chain(self) -> Chain:
        """The cell's chain: its sound beginning, and what is wrong after it, if anything."""
        if self._claimed is not None:
            return self._claimed
        chain = read_chain(self.folder / "chain.jsonl", self._genesis)
        if chain.entries and chain.entries[0].data != {"cell": self.id}:
            why = f"{chain.path} line 1: {chain.entries[0].data}; expected cell {self.id!r}"
            return Chain(chain.path, self._genesis, (), 0, why)
        return chain

    def head(self) -> str:
        """The digest of the last entry in the cell's chain."""
        return self.chain().head

    def summary(self) -> dict[str, Any]:
        """The contents of a finished cell's `cell.json`."""
        return self._summary(self.chain())

    def table(self, name: str) -> Table:
        """A finished cell's table ("items", "curves"), checked against its digest."""
        file = f"{_word(name)}.parquet"
        artifacts = self.summary()["artifacts"]
        if file not in artifacts:
            raise StoreError(f"cell {self.id}: no {file}; found {sorted(artifacts)}")
        data = disk.read_checked(self.folder / file, artifacts[file])
        return table_from_bytes(data, str(self.folder / file))

    def check(self) -> tuple[Damage, ...]:
        """Every damaged file, with its step; a damaged step counts as not done."""
        chain = self.chain()
        if chain.find("finished") is not None:
            return tuple(self._finished_damage(chain))
        found = [Damage("", chain.path, chain.damage)] if chain.damage else []
        return (*found, *(damage for step in self._steps() for damage in self._damage(step)))

    def fail(self, reason: str) -> None:
        """Record that this attempt failed; the next claim tries again."""
        require(self._lease, f"cell {self.id}", "use `with cell.claim():`")
        # Where even this cannot be written, the reason that is about to be raised says more.
        with contextlib.suppress(StoreError):
            disk.write_json(self.folder / "failed.json", {"cell": self.id, "reason": reason})
        self._note("failed", cell=self.id, reason=reason)

    def failure(self) -> str | None:
        """Why the last attempt failed, or None when it did not."""
        path = self.folder / "failed.json"
        try:
            return str(disk.read_json(path)["reason"]) if path.exists() else None
        except (DamagedArtifact, KeyError, TypeError):
            return "unknown"

    # -- behind these ------------------------------------------------------------------------

    def _append(self, event: str, data: Mapping[str, Any]) -> None:
        self._claimed = self.chain().append(event, data)

    def _steps(self) -> dict[str, dict[str, str]]:
        done = [entry.data for entry in self.chain().entries if entry.event == "step"]
        return {data["step"]: data["artifacts"] for data in done}

    def _recorded(self, step: str) -> dict[str, str]:
        recorded = self._steps()
        if step not in recorded:
            raise StoreError(f"cell {self.id}: step {step!r} is not done; found {list(recorded)}")
        return recorded[step]

    def _damage(self, step: str) -> list[Damage]:
        return _damages(step, self.parts, self._steps()[step])

    def _finished_damage(self, chain: Chain) -> list[Damage]:
        if chain.damage is not None:
            return [Damage("", chain.path, chain.damage)]
        if chain.torn:  # nothing is ever appended to a finished cell
            return [Damage("", chain.path, f"{chain.path}: bytes after the last entry")]
        try:
            artifacts = self._summary(chain)["artifacts"]
        except DamagedArtifact as error:
            return [Damage("", self.folder / "cell.json", str(error))]
        return _damages("", self.folder, artifacts)

    def _summary(self, chain: Chain) -> dict[str, Any]:
        end = chain.find("finished")
        if end is None:
            raise StoreError(f"cell {self.id}: not finished; run the study again to finish it")
        data = disk.read_checked(self.folder / "cell.json", end.data["cell.json"])
        result: dict[str, Any] = json.loads(data)
        return result

    def _require_unfinished(self, step: str) -> None:
        require(self._lease, f"cell {self.id}", "use `with cell.claim():` around the work")
        _stem(step)
        twin = next((s for s in self._steps() if s != step and s.lower() == step.lower()), None)
        if twin is not None:
            raise InputError(f"steps {twin!r} and {step!r} differ only in case; rename one")
        if self.ended():
            raise StoreError(f"cell {self.id} is finished; expected no further step {step!r}")

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
        """The chain with its unsound part cut off; empty when a finished cell was damaged.

        An opened seal is remembered apart, so that the audit pool is scored again only for the
        very same models.
        """
        opened = [*self.repairs()[0], *_salvage(chain.path)]
        unique = [o for i, o in enumerate(opened) if o not in opened[:i]]
        told = {"opened": unique, "why": why}
        whole = told | {"digest": disk.digest(disk.canonical(told))}
        disk.write_json(self.folder / "repairs.json", whole)
        sound = chain.path.read_bytes()[: chain.size] if chain.find("finished") is None else b""
        disk.write_bytes(chain.path, sound)
        return read_chain(chain.path, self._genesis)

    def repairs(self) -> tuple[list[dict[str, Any]], str | None]:
        """The seal openings of journals that were damaged and begun again; why if unreadable."""
        path = self.folder / "repairs.json"
        if not path.exists():
            return [], None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StoreError):
            data = path.read_bytes()
            told = dict(json.loads(data))
            found = told.pop("digest")
            # Byte for byte: the same content spelled another way is a change too.
            spelled = data == disk.canonical(told | {"digest": found}) + b"\n"
            if spelled and found == disk.digest(disk.canonical(told)):
                return list(told["opened"]), None
        return [], f"{path}: not what was written; earlier openings of the audit pool are lost"


def _stem(step: str) -> str:
    # A colon cannot be in a Windows file name; "~" cannot be in a step's name.
    return disk.safe_name(step, "step", also=":").replace(":", "~")


def _word(name: str) -> str:
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", disk.safe_name(name, "table")) is None:
        raise InputError(f"table name {name!r}; expected one lower-case word such as 'items'")
    return name


def _check_file(path: Path, expected: str) -> None:
    try:
        found = disk.file_digest(path)
    except StoreError as error:
        raise DamagedArtifact(f"{path}: cannot be read; expected {expected}") from error
    if found != expected:
        raise DamagedArtifact(f"{path}: digest {found}; expected {expected}")


def _damages(step: str, folder: Path, artifacts: Mapping[str, str]) -> list[Damage]:
    found = []
    for file, expected in artifacts.items():
        try:
            _check_file(folder / file, expected)
        except DamagedArtifact as error:
            found.append(Damage(step, folder / file, str(error)))
    return found


def _salvage(path: Path) -> list[dict[str, Any]]:
    """The seal openings still legible in a chain, sound or not."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError, StoreError):
            entry = json.loads(line)
            same = link(entry["n"], entry["event"], entry["data"], entry["previous"])
            if same.event == "seal opened" and same.digest == entry["digest"]:
                found.append(same.data)
    return found


def _brief(opening: Mapping[str, Any]) -> str:
    return f"step {opening['step']!r}, models {opening['models']}"
