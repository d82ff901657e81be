"""A cell's folder: its steps while it is worked on, its tables once it is finished.

A step leaves its files in `steps/<step>/` and, last, `manifest.json` with their digests, the digest
of the run's terms and the manifests of the steps it needed; the manifest makes the step done. When
all steps are done their tables are merged into `items.parquet`, `curves.parquet` ..., and
`cell.json`, written last, makes the cell finished; then `steps/` is removed. No byte depends on who
did a step, when, or how often the work was interrupted: two workers that do the same step write the
same files, so writing needs no lock of its own.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, InputError, SealError, StoreError
from palimpsest.run import disk
from palimpsest.run.graph import Failure, check_name
from palimpsest.run.tables import (
    Columns,
    Table,
    concatenate,
    table_bytes,
    table_file,
    table_from_bytes,
)

VALUES = "values.json"
MANIFEST = "manifest.json"
_OWN_KEYS = {"cell", "terms", "artifacts", "steps", "opening", "digest"}


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored file that is not what was recorded, and the step ("" = the cell) it belongs to."""

    step: str
    path: Path
    why: str


class Cell:
    """One cell of a run, from `Run.cell`."""

    def __init__(self, run_path: Path, cell_id: str, terms: str, commitment: str) -> None:
        self.id = cell_id
        self.folder = run_path / "cells" / cell_id
        self._terms = terms
        self._commitment = commitment
        self._needs: Mapping[str, tuple[str, ...]] = {}
        self._staged: dict[str, dict[str, str]] = {}
        self._remember = False
        self._sound: set[tuple[Path, str]] = set()
        self._manifests: dict[str, dict[str, Any]] = {}

    def for_work(self, needs: Mapping[str, tuple[str, ...]]) -> "Cell":
        """Return this cell for a worker: told what each step needs, checking each file once."""
        self._needs, self._remember = needs, True
        return self

    # -- how far it is -----------------------------------------------------------------------

    def finished(self) -> bool:
        """Return whether the cell is finished and every file of it is what was recorded."""
        return self.ended() and not self._damage("")

    def ended(self) -> bool:
        """Return whether the cell says it is finished, without checking its files."""
        return (self.folder / "cell.json").is_file()

    def halted(self) -> str | None:
        """Return why the cell was ended on purpose, or None when it was not."""
        try:
            return str(self._read("halted.json")["reason"])
        except DamagedArtifact:
            return None

    def halt_values(self) -> dict[str, Any] | None:
        """Return what was stored when the cell was ended on purpose, or None when it was not."""
        return None if self.halted() is None else dict(self._read("halted.json")["values"])

    def failure(self) -> Failure | None:
        """Return why the last attempt failed, or None when it did not."""
        try:
            failed = self._read("failed.json")
            return Failure(str(failed["kind"]), str(failed["reason"]), str(failed["step"]))
        except DamagedArtifact as error:
            exists = (self.folder / "failed.json").exists()
            return Failure("unknown", str(error), "") if exists else None

    def check(self) -> tuple[Damage, ...]:
        """Return every damaged file, with its step; a damaged step counts as not done."""
        steps = ("",) if self.ended() else self.steps()
        damages = [damage for step in steps for damage in self._damage(step)]
        for name in ("opening.json", "halted.json", "failed.json"):
            path = self.folder / name
            if path.exists() and not any(damage.path == path for damage in damages):
                with _collected(damages, "", path):
                    self._read(name)
        return tuple(damages)

    # -- its steps, until it is finished -----------------------------------------------------

    def steps(self) -> tuple[str, ...]:
        """Return the steps recorded as done: in plan order once finished, else by name."""
        if self.ended():
            with contextlib.suppress(DamagedArtifact):
                return tuple(step["step"] for step in self._read("cell.json")["steps"])
        return tuple(sorted(path.parent.name for path in self.folder.glob(f"steps/*/{MANIFEST}")))

    def done(self, step: str) -> bool:
        """Return whether a step is done and its files are intact."""
        if self.ended():
            return step in self.steps()
        return (self._folder(step) / MANIFEST).exists() and not self._damage(step)

    def manifest(self, step: str) -> dict[str, Any]:
        """Return a step's manifest; DamagedArtifact when it is not what was written."""
        path = self._folder(step) / MANIFEST
        if self._remember and step in self._manifests:
            return self._manifests[step]
        if not path.exists():
            raise StoreError(f"cell {self.id}: step {step!r} is not done; found {self.steps()}")
        manifest = self._manifests[step] = self._read(f"steps/{step}/{MANIFEST}")
        if manifest.get("step") != step:
            raise DamagedArtifact(f"{path}: of step {manifest.get('step')!r}; expected {step!r}")
        return manifest

    def get(self, step: str) -> tuple[dict[str, Table], dict[str, Any]]:
        """Return a step's tables and values; DamagedArtifact when a file is not intact."""
        tables: dict[str, Table] = {}
        values: dict[str, Any] = {}
        for file, expected in self.manifest(step)["files"].items():
            path = self._folder(step) / file
            if file == VALUES:
                values = json.loads(disk.read_checked(path, expected))
            elif file.endswith(".parquet"):
                data = disk.read_checked(path, expected)
                tables[file.removesuffix(".parquet")] = table_from_bytes(data, str(path))
        return tables, values

    def file(self, step: str, name: str) -> Path:
        """Return the path of a file stored by `put_file`, after checking its digest."""
        files = self.manifest(step)["files"]
        if name not in files:
            raise StoreError(f"cell {self.id}: step {step!r} has no file {name!r}")
        self._check_file(self._folder(step) / name, files[name])
        return self._folder(step) / name

    def begin(self, step: str) -> None:
        """Forget an attempt at the step that never ended; what it wrote is written over.

        Nothing of it is removed: another worker, lost but alive, may be at the same step.
        """
        self._staged.pop(step, None)
        self._manifests.pop(step, None)
        for path in self._folder(step).glob("*/"):
            disk.remove(path)  # a folder cannot be written over

    def put(
        self,
        step: str,
        tables: Mapping[str, Columns] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a step, with its files of `put_file`; it is done when this returns, not before."""
        folder = self._writable(step)
        contents = {VALUES: disk.canonical(dict(values or {})) + b"\n"}
        for name, columns in (tables or {}).items():
            contents[table_file(name)] = table_bytes(columns)
        files = {file: disk.digest(data) for file, data in contents.items()}
        files |= self._staged.get(step, {})
        if self.done(step):
            if files != self.manifest(step)["files"]:
                raise StoreError(
                    f"cell {self.id}: step {step!r} is already done with other contents; "
                    "expected a step to be put once; ask done() before doing a step"
                )
            return
        disk.make_folder(folder)
        for file, data in contents.items():
            disk.write_bytes(folder / file, data)
        needs = {need: self.manifest(need)["digest"] for need in self._needs.get(step, ())}
        opening = self.opening()
        own = opening if opening and opening["step"] == step else None
        manifest = {"step": step, "files": files, "needs": needs, "opening": own}
        self._write(f"steps/{step}/{MANIFEST}", manifest)
        self._staged.pop(step, None)

    def put_file(self, step: str, name: str, content: bytes | Callable[[Path], object]) -> str:
        """Store a file, or what a function writes to a path; return its digest.

        It belongs to the step once `put(step, ...)` has recorded it.
        """
        folder = self._writable(step)
        if re.fullmatch(r"[a-z0-9_]{1,40}\.(safetensors|bin|npy|txt)", name) is None:
            raise InputError(f"file name {name!r}; expected one like 'weights.safetensors'")
        if self.done(step):
            raise StoreError(f"cell {self.id}: step {step!r} is already done; expected a new one")
        disk.make_folder(folder)
        if isinstance(content, bytes):
            written = disk.write_bytes(folder / name, content)
        else:
            written = disk.write_with(folder / name, content)
        self._staged.setdefault(step, {})[name] = written
        return written

    # -- the seal ----------------------------------------------------------------------------

    def open_seal(self, step: str, commitment: str, models: Mapping[str, str]) -> None:
        """Record that the sealed pool is opened, once, for the scores that `put(step)` will store.

        `models` maps the name of each model to be scored to its digest. An opening whose scores
        were never stored may be taken up again for the same models; anything else is a second
        scoring and raises SealError.
        """
        self._writable(step)
        if commitment != self._commitment:
            raise SealError(
                f"cell {self.id}: the sealed pool has commitment {commitment}; expected "
                f"{self._commitment}, fixed when the run began; use the pool that was sealed"
            )
        if self.done(step):
            raise SealError(
                f"cell {self.id}: the sealed pool was already scored in step {step!r}; "
                "it is scored once in a run; start a new run to score it again"
            )
        opening = {"step": step, "commitment": commitment, "models": dict(sorted(models.items()))}
        try:
            earlier = self.opening()
        except DamagedArtifact as error:
            raise SealError(
                f"{error}; it says for which models the sealed pool was opened; restore it from a "
                "copy, or start a new run"
            ) from error
        if earlier is None:
            self._write("opening.json", opening)
        elif any(earlier[key] != opening[key] for key in opening):
            raise SealError(
                f"cell {self.id}: the sealed pool was already opened for {_brief(earlier)}; "
                f"now asked for {_brief(opening)}; it is opened once in a run; start a new run"
            )

    def opening(self) -> dict[str, Any] | None:
        """Return for which models the sealed pool was opened, or None when it was not."""
        exists = (self.folder / "opening.json").exists()
        return self._read("opening.json") if exists else None

    # -- the end -----------------------------------------------------------------------------

    def finish(
        self,
        summary: Mapping[str, Any],
        order: Sequence[str],
        *,
        keep: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Merge the steps' tables in `order`, write `summary` to cell.json, remove the steps.

        `keep` maps a name to the (step, file) that stays as `models/<name>`.
        """
        if self.ended():
            return
        reserved = _OWN_KEYS & set(summary)
        if reserved:
            raise InputError(f"cell.json keys {sorted(reserved)} are the store's own; rename them")
        for name in keep or {}:
            disk.safe_name(name, "model file")
        artifacts: dict[str, str] = {}
        for file, data in self._merge(order).items():
            artifacts[file] = disk.write_bytes(self.folder / file, data)
        for name, (step, file) in (keep or {}).items():
            disk.make_folder(self.folder / "models")
            disk.link_or_copy(self.file(step, file), self.folder / "models" / name)
            artifacts[f"models/{name}"] = self.manifest(step)["files"][file]
        parts = ("step", "files", "needs", "digest")
        steps = [{key: self.manifest(step)[key] for key in parts} for step in order]
        own = {"artifacts": artifacts, "steps": steps, "opening": self.opening()}
        disk.remove(self.folder / "failed.json")
        self._write("cell.json", dict(summary) | own)
        disk.remove(self.folder / "steps")

    def fail(self, failure: Failure) -> None:
        """Record that this attempt failed; the next one tries again."""
        # Where even this cannot be written, the failure that is reported says more.
        with contextlib.suppress(StoreError):
            self._write("failed.json", asdict(failure))

    def halt(self, step: str, reason: str, values: Mapping[str, Any] | None = None) -> None:
        """Record that the cell ended on purpose in a step, without results."""
        own = {"step": step, "reason": reason, "values": dict(values or {})}
        self._write("halted.json", own)

    def sweep(self) -> None:
        """Remove what dead processes left: unfinished writes, steps of a cell that has ended."""
        for folder in (self.folder, self.folder / "models", *(self.folder / "steps").glob("*")):
            disk.clean(folder)
        if self.ended() or self.halted() is not None:
            disk.remove(self.folder / "steps")

    def prepare(self) -> tuple[Damage, ...]:
        """Make the cell ready for work; return what was damaged and will be made again.

        A finished cell that is damaged is begun again, and a failed one is tried again.
        """
        if not self.folder.exists():
            return ()
        damaged = self.check()
        self._restore_opening()
        if self.ended() and self._damage(""):
            disk.remove(self.folder / "cell.json")
        if not self.ended() and self.halted() is None:
            disk.remove(self.folder / "halted.json")
            disk.remove(self.folder / "failed.json")
        return damaged

    # -- what it holds when it is finished ---------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the contents of a finished cell's `cell.json`."""
        if not self.ended():
            raise StoreError(f"cell {self.id}: not finished; run the same command to finish it")
        return self._read("cell.json")

    def table(self, name: str) -> Table:
        """Return a finished cell's table ("items", "curves"), checked against its digest."""
        file = table_file(name)
        artifacts = self.summary()["artifacts"]
        if file not in artifacts:
            raise StoreError(f"cell {self.id}: no {file}; found {sorted(artifacts)}")
        data = disk.read_checked(self.folder / file, artifacts[file])
        return table_from_bytes(data, str(self.folder / file))

    # -- behind these ------------------------------------------------------------------------

    def _folder(self, step: str) -> Path:
        return self.folder / "steps" / step

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a signed file of this cell, which names the cell and the run's terms."""
        disk.make_folder((self.folder / name).parent)
        disk.write_signed(self.folder / name, {"cell": self.id, "terms": self._terms} | dict(value))

    def _read(self, name: str) -> dict[str, Any]:
        """Return a signed file of this cell, known to belong to this cell and this run."""
        signed = disk.read_signed(self.folder / name)
        if (signed.get("cell"), signed.get("terms")) != (self.id, self._terms):
            raise DamagedArtifact(
                f"{self.folder / name}: of cell {signed.get('cell')!r} under terms "
                f"{signed.get('terms')}; expected {self.id!r} under {self._terms}"
            )
        return signed

    def _writable(self, step: str) -> Path:
        if self.ended():
            raise StoreError(f"cell {self.id} is finished; expected no further step {step!r}")
        return self._folder(check_name(step))

    def _check_file(self, path: Path, expected: str) -> None:
        """Raise DamagedArtifact when a file has not the digest that was recorded."""
        if not self._remember or (path, expected) not in self._sound:
            disk.check_file(path, expected)
            self._sound.add((path, expected))

    def _damage(self, step: str) -> list[Damage]:
        """Return what is damaged of a step, or of the finished cell where `step` is ""."""
        damages: list[Damage] = []
        path = self._folder(step) / MANIFEST if step else self.folder / "cell.json"
        with _collected(damages, step, path):
            record = self.manifest(step) if step else self._read("cell.json")
            for file, expected in record["files" if step else "artifacts"].items():
                with _collected(damages, step, path.parent / file):
                    self._check_file(path.parent / file, expected)
            if not step:
                opening = self.folder / "opening.json"
                with _collected(damages, "", opening):
                    if self.opening() != record["opening"]:
                        raise DamagedArtifact(f"{opening}: not the opening that cell.json records")
                return damages
            for need, expected in record["needs"].items():
                # A need whose manifest is lost is made again, and compared when this cell ends.
                with contextlib.suppress(StoreError):
                    if self.manifest(need)["digest"] != expected:
                        why = f"{path.parent}: made from another {need!r} than the one stored now"
                        damages.append(Damage(step, path, why))
        return damages

    def _restore_opening(self) -> None:
        """Write a lost or damaged opening.json again, where cell.json or a step records it."""
        with contextlib.suppress(DamagedArtifact):
            if self.opening() is not None:
                return
        for name in ("cell.json", *(f"steps/{step}/{MANIFEST}" for step in self.steps())):
            with contextlib.suppress(DamagedArtifact, KeyError):
                recorded = self._read(name)["opening"]
                if recorded is not None:
                    disk.write_json(self.folder / "opening.json", recorded)

    def _merge(self, order: Sequence[str]) -> dict[str, bytes]:
        missing = [step for step in order if not self.done(step)]
        stray = sorted(set(self.steps()) - set(order))
        if missing or stray or len(set(order)) != len(order):
            raise StoreError(
                f"cell {self.id}: cannot finish: steps not done {missing}, steps done but outside "
                f"the order {stray}; expected every step once in the order"
            )
        tables: dict[str, list[tuple[str, Table]]] = {}
        for step in order:
            for name, table in self.get(step)[0].items():
                tables.setdefault(name, []).append((step, table))
        return {
            table_file(name): table_bytes(concatenate(tables[name], name))
            for name in sorted(tables)
        }


@contextlib.contextmanager
def _collected(damages: list[Damage], step: str, path: Path) -> Iterator[None]:
    """Add the damage that is found meanwhile to the list instead of raising it."""
    try:
        yield
    except DamagedArtifact as error:
        damages.append(Damage(step, path, str(error)))
    except (KeyError, TypeError, AttributeError) as error:
        damages.append(Damage(step, path, f"{path}: not what the store writes ({error!r})"))


def _brief(opening: Mapping[str, Any]) -> str:
    return f"step {opening['step']!r}, models {opening['models']}"
