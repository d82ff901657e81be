"""A method added to a finished run: a new run that carries the old results and makes the rest.

The old run stays as it is. The new one has its plan with the further methods, names the run it came
from, and stores the old rows as they are beside those of the new candidates. Only what the new
candidates need is trained: nothing that the old run kept (``engine.keep_models``), else the
injected model, one reference and what the vectors are made of, whose weights must turn out to be
the recorded ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file

from palimpsest.cell.bench import Bench, Roles
from palimpsest.cell.graph import Costs, Descendant, Task, descendants
from palimpsest.cell.sources import Given, State
from palimpsest.cell.work import DESCRIBED, FROM_PARTS, StudyWork
from palimpsest.errors import DriftError, InputError
from palimpsest.models.load import Loaded
from palimpsest.models.stored import stored_state
from palimpsest.plan import CellPlan, MethodGrid, Plan, plan_from_dict
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell, Run
from palimpsest.study.matrix import (
    check_inputs,
    check_plan,
    commitment,
    complete,
    planned,
    terms,
)

CARRIED = "carried"
"""The step that stores what the old run found; the last, as it stands for the opened seal."""


@dataclass(frozen=True)
class AddedJob:
    """How a worker gets at the cells of a run with added methods."""

    run_path: Path
    old: Path

    def cell(self, cell_id: str) -> "AddedWork":
        run, old = Run.open(self.run_path), Run.open(self.old)
        if (run.fork_of or {}).get("terms") != old.terms_digest:
            raise DriftError(
                f"{self.old}: not the run that methods were added to; expected terms "
                f"{(run.fork_of or {}).get('terms')}, found {old.terms_digest}"
            )
        plan, before = plan_from_dict(run.plan), plan_from_dict(old.plan)
        check_inputs(plan, run.environment["inputs"])
        new = plan.methods[len(before.methods) :]
        return AddedWork(planned(replace(plan, methods=new), cell_id), old.cell(cell_id), plan, run)


def start_added(old: Run, names: Sequence[str], out: Path | None = None) -> tuple[Run, AddedJob]:
    """Return the run of a finished study with further methods, created or resumed, and its job."""
    unfinished = [cell for cell in old.cells if not old.cell(cell).finished()]
    if unfinished:
        raise InputError(f"{old.path}: {unfinished[0]} is not finished; finish the run first")
    before = plan_from_dict(old.plan)
    plan = replace(before, methods=(*before.methods, *(MethodGrid(name) for name in names)))
    check_plan(plan)
    fixed = terms(plan)
    same = ("code", "packages")
    for key in same:
        if old.environment[key] != fixed[2][key]:
            raise DriftError(
                f"{old.path}: {key} differ from those the run was made with; expected the same, "
                "so that old and new candidates can be compared; run the whole study again"
            )
    words = "-".join(name.rpartition(":")[2].lower() for name in names)
    path = out or old.path.with_name(f"{old.path.name}-with-{words}")
    origin = {"run": old.path.name, "terms": old.terms_digest, "added": list(names)}
    cells = [cell.id for cell in plan.cells()]
    if (path / "terms.json").exists():
        run = Run.create_or_resume(path, *fixed, cells=cells)
    else:
        run = Run.create(path, *fixed, cells=cells, fork_of=origin)
    return run, AddedJob(run.path.resolve(), old.path.resolve())


def run_added(old: Run, names: Sequence[str], **options: Any) -> Run:
    """Run what is left of a study with added methods; options are those of ``complete``."""
    run, job = start_added(old, names)
    return complete(run, job, "palimpsest study", **options)


@dataclass(frozen=True, slots=True)
class Kept:
    """Weights that the old run kept."""

    path: Path

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def state(self, cell: Cell, expected: Loaded, *, in_memory: bool) -> State:
        return load_file(self.path) if in_memory else stored_state(self.path)


class AddedWork(StudyWork):
    """The new candidates of a cell, and what was found before."""

    def __init__(self, cell: CellPlan, old: Cell, whole: Plan, run: Run) -> None:
        self.old, self.whole = old, whole
        self.found = old.summary()
        kept = old.folder / "models"
        names = [model.name for model in descendants()] + ["general_only"]
        paths = {name: kept / f"{name}.safetensors" for name in names}
        given = {name: Kept(path) for name, path in paths.items() if path.is_file()}
        inputs = run.environment["inputs"]
        super().__init__(cell, given=cast(Mapping[str, Given], given), inputs=inputs)

    def tasks(self) -> list[Task]:
        """Return the trainings that are needed, the new candidates, and what is carried over."""
        cost = Costs(self.plan.plan)
        tasks = Bench.tasks(self)
        needs = self.needs("injected", "reference", *FROM_PARTS)
        if "general_only" in self.sources and "general_only" not in self.found["models"]:
            step = Step("score-general_only", "measuring general_only", needs, cost.forward)
            tasks.append(Task(step, self._general_only))
        for name, methods in self.method_groups("added"):
            words = f"{methods[0].name}: making and measuring {len(methods)}"
            expected = len(methods) * (cost.measure + cost.unlearn)
            step = Step(name, words, needs, expected)
            tasks.append(Task(step, partial(self._candidates, methods)))
        before = tuple(task.step.name for task in tasks)
        tasks.append(Task(Step(CARRIED, "carrying over the old results", before), self._carry))
        return tasks

    def roles(self, cell: Cell) -> Roles:
        """Return what is recorded of each model, the old ones first."""
        carried: Roles = cell.get(CARRIED)[1]["models"]
        return carried | super().roles(cell)

    def _train(self, model: Descendant, step: str) -> None:
        super()._train(model, step)
        made = self.cell.get(step)[1]["models"][model.name]["digest"]
        recorded = self.found["models"].get(model.name, {}).get("digest", made)
        if made != recorded:
            raise DriftError(
                f"{model.name} of cell {self.plan.id}: trained again it has the weights {made}, "
                f"recorded are {recorded}; expected the machine and packages of the old run; or "
                "keep models there with engine.keep_models"
            )

    def _general_only(self, step: str) -> None:
        results = self._through({"general_only": self.state("general_only")}, round_trip=False)
        self._store(step, results, {})

    def _carry(self, step: str) -> None:
        """Store the old rows and roles, under the opening of the seal that they were scored in."""
        roles: Roles = {name: dict(role) for name, role in self.found["models"].items()}
        roles["base"] |= {name: self.found[name] for name in DESCRIBED}
        if self.found["opening"] is not None:
            opened = self.found["opening"]["models"]
            self.cell.open_seal(step, str(commitment(self.whole)), opened)
        names = [name for name in self.found["artifacts"] if name.endswith(".parquet")]
        tables = {
            name: self.old.table(name) for name in (n.removesuffix(".parquet") for n in names)
        }
        self.cell.put(step, tables, {"models": roles})
