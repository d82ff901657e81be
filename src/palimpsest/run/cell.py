"""A cell's folder: the results of its steps and, once it is finished, its tables.

A step leaves its files in ``steps/<step>/`` and, last, ``manifest.json`` with the step's key, the
digests of its files, of the list of candidates and of the manifests of the steps it needed; an
intact manifest under the expected key makes the step done. When all steps are done their tables are
merged in plan order into ``items.parquet``, ``curves.parquet`` …, and ``cell.json``, written last,
makes the cell finished. Step results stay, so that a cell can grow; files of transient steps
(weights) are dropped. No byte depends on who did a step, when, or how often the work was
interrupted: two workers that do the same step write the same files, so writing needs no lock.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, DriftError, SealError, StoreError
from palimpsest.run.files import (
    canonical,
    check_file,
    clean,
    digest,
    file_digest,
    link_or_copy,
    make_folder,
    read_checked,
    read_digested,
    remove,
    safe_name,
    write_bytes,
    write_digested,
    write_json,
    write_with,
)
from palimpsest.run.steps import Failure, Step, steps_to_do
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
CELL = "cell.json"
OPENING = "opening.json"
FAILED = "failed.json"


class CellStore:
    """The stored results of one cell, from ``Run.cell``; checks each file's digest once."""

    def __init__(
        self, run_path: Path, cell_id: str, rosters: Sequence[str], commitment: str
    ) -> None:
        self.id = cell_id
        self.folder = run_path / "cells" / cell_id
        self._rosters = tuple(rosters)
        self._commitment = commitment
        self._staged: dict[str, dict[str, str]] = {}
        self._intact: set[tuple[Path, str]] = set()

    # -- steps -------------------------------------------------------------------------------

    def done(self, step: Step) -> bool:
        """Return whether the step is stored under its key with every file intact."""
        return self._stored(step, with_weights=True)

    def recorded(self, step: Step) -> bool:
        """Return whether it is stored but for weights that may be gone: those of a transient step,
        which are made again only where another step needs them."""
        return self._stored(step, with_weights=not step.transient)

    def steps_left(self, steps: Sequence[Step]) -> set[str]:
        """Return the names of the steps to do, those included whose dropped weights are needed."""
        recorded = {step.name for step in steps if self.recorded(step)}
        done = {s.name for s in steps if s.name in recorded and (not s.transient or self.done(s))}
        return steps_to_do(steps, done, recorded)

    def _stored(self, step: Step, *, with_weights: bool) -> bool:
        try:
            manifest = self.manifest(step.name)
            for file, expected in manifest["files"].items():
                if with_weights or not _is_weights(file):
                    self._check_file(self._step(step.name) / file, expected)
            return bool(manifest["key"] == step.key)
        except (StoreError, KeyError, TypeError, AttributeError):
            return False

    def manifest(self, step: str) -> dict[str, Any]:
        """Return what is recorded of a step; DamagedArtifact when it is not what was written."""
        manifest = self._read(f"steps/{step}/{MANIFEST}")
        if manifest.get("step") != step:
            raise DamagedArtifact(f"{self._step(step)}: of step {manifest.get('step')!r}")
        return manifest

    def get(self, step: Step) -> tuple[dict[str, Table], dict[str, Any]]:
        """Return a step's tables and values; DamagedArtifact when a file is not intact."""
        tables: dict[str, Table] = {}
        values: dict[str, Any] = {}
        for file, expected in self.manifest(step.name)["files"].items():
            path = self._step(step.name) / file
            if file == VALUES:
                values = json.loads(read_checked(path, expected))
            elif file.endswith(".parquet"):
                data = read_checked(path, expected)
                tables[file.removesuffix(".parquet")] = table_from_bytes(data, str(path))
        return tables, values

    def file(self, step: Step, name: str) -> Path:
        """Return the path of a file stored by ``put_file``, after checking its digest."""
        path = self._step(step.name) / name
        self._check_file(path, self.manifest(step.name)["files"][name])
        return path

    def put_file(self, step: Step, name: str, content: bytes | Callable[[Path], object]) -> str:
        """Store a file, or what a function writes to a path; return its digest.

        It belongs to the step once ``put`` has recorded it.
        """
        path = self._step(step.name) / safe_name(name, "file")
        make_folder(path.parent)
        if isinstance(content, bytes):
            written = write_bytes(path, content)
        else:
            written = write_with(path, content)
        self._staged.setdefault(step.name, {})[name] = written
        return written

    def put(
        self,
        step: Step,
        tables: Mapping[str, Columns] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a step, with its files of ``put_file``; it is done when this returns, not before.

        DriftError when other bytes are recorded under the same key.
        """
        contents = {VALUES: canonical(dict(values or {})) + b"\n"}
        contents |= {table_file(name): table_bytes(rows) for name, rows in (tables or {}).items()}
        files = {file: digest(data) for file, data in contents.items()}
        files |= self._staged.pop(step.name, {})
        earlier = self._recorded(step, files)
        make_folder(self._step(step.name))
        for file, data in contents.items():
            write_bytes(self._step(step.name) / file, data)
        opening = self.opening()
        manifest = {
            "step": step.name,
            "kind": str(step.kind),
            "key": step.key,
            "files": files,
            "needs": {need: self.manifest(need)["digest"] for need in step.needs},
            "opening": opening if opening and opening["step"] == step.name else None,
            "origin": None,
        }
        # A step that is done again says under which list of candidates it was done first.
        kept = {name: earlier[name] for name in ("needs", "roster", "origin") if name in earlier}
        self._write(f"steps/{step.name}/{MANIFEST}", manifest | kept)

    def take(self, step: Step, other: "CellStore", name: str) -> bool:
        """Take over the result that is stored under the same key elsewhere; False if unsound.

        A result of another run names as its ``origin`` the list of candidates it was made under.
        """
        with contextlib.suppress(StoreError, KeyError):
            manifest = other.manifest(name)
            if manifest["opening"] is not None:
                return False  # a sealed pool is opened in the run that scores it
            sources = {other._step(name) / file: d for file, d in manifest["files"].items()}
            if step.transient:  # weights that a finished cell no longer has are not missed
                sources = {
                    path: d
                    for path, d in sources.items()
                    if path.is_file() or not _is_weights(path.name)
                }
            for path, expected in sources.items():
                check_file(path, expected)
            make_folder(self._step(step.name))
            for path in sources:
                link_or_copy(path, self._step(step.name) / path.name)
            names = ("kind", "key", "files", "needs", "opening", "origin")
            record = {field: manifest[field] for field in names} | {"step": step.name}
            if other.folder.parent == self.folder.parent:
                record["roster"] = manifest["roster"]
            else:
                record["origin"] = manifest["origin"] or manifest["roster"]
            self._write(f"steps/{step.name}/{MANIFEST}", record)
            return True
        return False

    def begin(self, step: Step) -> None:
        """Forget an attempt that never ended; what it wrote is written over.

        Nothing of it is removed: another worker, lost but alive, may be at the same step.
        """
        self._staged.pop(step.name, None)
        for path in self._step(step.name).glob("*/"):
            remove(path)  # a folder cannot be written over

    # -- the seal ----------------------------------------------------------------------------

    def open_seal(self, step: Step, commitment: str, models: Mapping[str, str]) -> None:
        """Record that the sealed pool is opened, once, for the scores that ``put`` will store.

        ``models`` maps the name of each model to be scored to its digest. An opening whose scores
        were never stored may be taken up again for the same models; anything else is a second
        scoring and raises SealError.
        """
        if commitment != self._commitment:
            raise SealError(
                f"cell {self.id}: the sealed pool has commitment {commitment}; expected "
                f"{self._commitment}, fixed when the run was created; use the pool that was sealed"
            )
        asked = {"step": step.name, "commitment": commitment, "models": dict(models)}
        try:
            earlier = self.opening()
        except DamagedArtifact as error:
            raise SealError(
                f"{error}; it says for which models the sealed pool was opened; restore it from a "
                "copy, or start a new run"
            ) from error
        if earlier is None:
            self._write(OPENING, asked)
        elif self.done(step) or any(earlier[key] != asked[key] for key in asked):
            raise SealError(
                f"cell {self.id}: the sealed pool was already opened in step {earlier['step']!r} "
                f"for {len(earlier['models'])} models; it is scored once in a run; start a new run"
            )

    def opening(self) -> dict[str, Any] | None:
        """Return for which models the sealed pool was opened, or None when it was not."""
        return self._read(OPENING) if (self.folder / OPENING).exists() else None

    # -- the finished cell -------------------------------------------------------------------

    def finished(self, steps: Sequence[Step] | None = None) -> bool:
        """Return whether the cell is finished, intact and, if given, made of these steps."""
        if not self.ended() or self._cell_damage():
            return False
        recorded = [(step["step"], step["key"]) for step in self.summary()["steps"]]
        return steps is None or recorded == [(step.name, step.key) for step in steps]

    def ended(self) -> bool:
        """Return whether the cell has a ``cell.json``, without checking any file."""
        return (self.folder / CELL).is_file()

    def finish(
        self,
        summary: Mapping[str, Any],
        steps: Sequence[Step],
        keep: Mapping[str, tuple[Step, str]],
    ) -> None:
        """Merge the steps' tables in order, write ``summary`` to cell.json, drop other weights.

        ``keep`` maps a name to the step and the file that stay as ``models/<name>``.
        """
        tables: dict[str, list[tuple[str, Table]]] = {}
        for step in steps:
            for name, table in self.get(step)[0].items():
                tables.setdefault(name, []).append((step.name, table))
        artifacts: dict[str, str] = {}
        for name in sorted(tables):
            data = table_bytes(concatenate(tables[name], name))
            artifacts[table_file(name)] = write_bytes(self.folder / table_file(name), data)
        for name, (step, file) in keep.items():
            path = self.folder / "models" / safe_name(name, "model file")
            artifacts[f"models/{name}"] = self.manifest(step.name)["files"][file]
            if not path.is_file() or file_digest(path) != artifacts[f"models/{name}"]:
                make_folder(path.parent)
                link_or_copy(self.file(step, file), path)
        parts = ("step", "kind", "key", "files", "needs", "roster", "origin", "digest")
        listed = [self.manifest(step.name) for step in steps]
        own = {
            "artifacts": artifacts,
            "steps": [{key: manifest[key] for key in parts} for manifest in listed],
            "opening": self.opening(),
        }
        remove(self.folder / FAILED)
        self._write(CELL, dict(summary) | own)
        self.drop_transient(steps)

    def drop_transient(self, steps: Sequence[Step]) -> None:
        """Remove the weights that only steps of this cell needed, now that it is finished."""
        for step in steps:
            for path in sorted(self._step(step.name).glob("*")) if step.transient else ():
                if _is_weights(path.name):
                    remove(path)
                    self._intact = {pair for pair in self._intact if pair[0] != path}

    def summary(self) -> dict[str, Any]:
        """Return the contents of a finished cell's ``cell.json``."""
        if not self.ended():
            raise StoreError(f"cell {self.id}: not finished; run the same command to finish it")
        return self._read(CELL)

    def table(self, name: str) -> Table:
        """Return a finished cell's table ("items", "curves"), checked against its digest."""
        file, artifacts = table_file(name), self.summary()["artifacts"]
        if file not in artifacts:
            raise StoreError(f"cell {self.id}: no {file}; found {sorted(artifacts)}")
        return self._table(file, artifacts[file])

    def results(self) -> tuple[dict[str, Any], dict[str, Table]]:
        """Return what ``cell.json`` says, which is parsed once, and every table, by name."""
        summary = self.summary()
        files = {f: d for f, d in summary["artifacts"].items() if f.endswith(".parquet")}
        return summary, {f.removesuffix(".parquet"): self._table(f, d) for f, d in files.items()}

    def _table(self, file: str, expected: str) -> Table:
        data = read_checked(self.folder / file, expected)
        return table_from_bytes(data, str(self.folder / file))

    # -- failures and damage -----------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """Record that this attempt failed; the next one tries again."""
        # Where even this cannot be written, the failure that is reported says more.
        with contextlib.suppress(StoreError):
            self._write(FAILED, asdict(failure))

    def failure(self) -> Failure | None:
        """Return why the last attempt failed, or None when it did not."""
        if not (self.folder / FAILED).exists():
            return None
        try:
            failed = self._read(FAILED)
            return Failure(str(failed["kind"]), str(failed["reason"]), str(failed["step"]))
        except (DamagedArtifact, KeyError) as error:
            return Failure("unknown", str(error), "")

    def check(self) -> dict[Path, str]:
        """Return what is wrong with each damaged file of the cell and its steps.

        Steps that a finished cell was not made of do not count.
        """
        damages = self._cell_damage() if self.ended() else {}
        names, kept = self.step_names(), set[str]()
        with contextlib.suppress(StoreError):
            summary = self.summary()
            names = tuple(step["step"] for step in summary["steps"])
            kept = set(summary["artifacts"].values())
        for name in names:
            with _collected(damages, self._step(name) / MANIFEST):
                for file, expected in self.manifest(name)["files"].items():
                    path = self._step(name) / file
                    # Weights of transient steps are dropped when a cell is finished.
                    if path.exists() or not _is_weights(file) or expected in kept:
                        with _collected(damages, path):
                            self._check_file(path, expected)
        for name in (OPENING, FAILED):
            path = self.folder / name
            if path.exists() and path not in damages:
                with _collected(damages, path):
                    self._read(name)
        return damages

    def step_names(self) -> tuple[str, ...]:
        """Return the names of the steps that have a manifest, whatever their key."""
        return tuple(sorted(path.parent.name for path in self.folder.glob(f"steps/*/{MANIFEST}")))

    def prepare(self) -> dict[Path, str]:
        """Make the cell ready for work; return what is damaged and will be made again."""
        if not self.folder.exists():
            return {}
        damaged = self.check()
        self._restore_opening()
        remove(self.folder / FAILED)
        return damaged

    def sweep(self) -> None:
        """Remove what dead processes left of unfinished writes."""
        for folder in (self.folder, self.folder / "models", *(self.folder / "steps").glob("*")):
            clean(folder)

    # -- behind these ------------------------------------------------------------------------

    def _step(self, name: str) -> Path:
        return self.folder / "steps" / name

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a file with its own digest, which names the cell and the list it was made under."""
        make_folder((self.folder / name).parent)
        named = {"cell": self.id, "roster": self._rosters[-1]}
        write_digested(self.folder / name, named | dict(value))

    def _read(self, name: str) -> dict[str, Any]:
        """Return such a file, known to belong to this cell of this run."""
        value = read_digested(self.folder / name)
        if value.get("cell") != self.id or value.get("roster") not in self._rosters:
            raise DamagedArtifact(
                f"{self.folder / name}: of cell {value.get('cell')!r} under list "
                f"{value.get('roster')}; expected {self.id!r} under a list of this run"
            )
        return value

    def _check_file(self, path: Path, expected: str) -> None:
        if (path, expected) not in self._intact:
            check_file(path, expected)
            self._intact.add((path, expected))

    def _recorded(self, step: Step, files: Mapping[str, str]) -> Mapping[str, Any]:
        """Return what is recorded under the step's key, in its manifest or, where that is damaged,
        in ``cell.json``; empty if nothing. DriftError when other files are."""
        records: list[Mapping[str, Any]] = []
        with contextlib.suppress(StoreError):
            records += self.summary()["steps"]
        with contextlib.suppress(StoreError):
            records.append(self.manifest(step.name))
        asked = (step.name, step.key)
        earlier = [record for record in records if (record["step"], record["key"]) == asked]
        if not earlier:
            return {}
        recorded = earlier[-1]["files"]
        if differing := sorted(name for name in files if files[name] != recorded.get(name)):
            raise DriftError(
                f"cell {self.id}: step {step.name!r} done again gives another "
                f"{', '.join(differing)} than recorded; expected the machine and packages of the "
                "recorded run; start a new run with --out, or keep models with --keep models",
                keys=(f"{step.name}/{name}" for name in differing),
            )
        return earlier[-1]

    def _cell_damage(self) -> dict[Path, str]:
        damages: dict[Path, str] = {}
        path = self.folder / CELL
        with _collected(damages, path):
            record = self._read(CELL)
            for file, expected in record["artifacts"].items():
                with _collected(damages, self.folder / file):
                    self._check_file(self.folder / file, expected)
            with _collected(damages, self.folder / OPENING):
                if self.opening() != record["opening"]:
                    raise DamagedArtifact(
                        f"{self.folder / OPENING}: not the opening that cell.json records"
                    )
        return damages

    def _restore_opening(self) -> None:
        """Write a lost or damaged opening.json again, where cell.json or a step records it."""
        with contextlib.suppress(DamagedArtifact):
            if self.opening() is not None:
                return
        for name in (CELL, *(f"steps/{step}/{MANIFEST}" for step in self.step_names())):
            with contextlib.suppress(DamagedArtifact, KeyError):
                recorded = self._read(name)["opening"]
                if recorded is not None:
                    write_json(self.folder / OPENING, recorded)


def _is_weights(file: str) -> bool:
    return file.endswith(".safetensors")


@contextlib.contextmanager
def _collected(damages: dict[Path, str], path: Path) -> Iterator[None]:
    """Note the damage that is found meanwhile instead of raising it."""
    try:
        yield
    except DamagedArtifact as error:
        damages[path] = str(error)
    except (KeyError, TypeError, AttributeError) as error:
        damages[path] = f"{path}: not what the store writes ({error!r})"
