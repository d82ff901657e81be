"""The second suite's run: frozen picks made again and scored on a pool no choice has used.

The picks are part of the run's plan, which its terms fix before anything is trained or scored. A
pick is made again by the same training from the same seeds; its digest must equal the one that the
first run recorded, so that what is scored is what was chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from palimpsest.analysis.results import SECOND_POOL, read_run
from palimpsest.analysis.second_suite import second_plan
from palimpsest.cell.bench import Bench
from palimpsest.cell.graph import Costs, Task, descendants
from palimpsest.cell.measure import stacked
from palimpsest.cell.sources import State
from palimpsest.errors import StoreError
from palimpsest.methods import title
from palimpsest.methods.context import Method
from palimpsest.methods.running import Failure
from palimpsest.models.load import state_digest
from palimpsest.plan import plan_from_dict
from palimpsest.run.graph import Step
from palimpsest.run.store import Run, environment
from palimpsest.scoring.answers import item_columns, score
from palimpsest.study.matrix import commitment, complete, inputs, planned


class SecondWork(Bench):
    """One cell: the models of the first run that are needed, and its picks."""

    def __init__(self, plan: Any, picks: set[str], first: dict[str, dict[str, Any]]) -> None:
        self.picks, self.first = picks, first
        super().__init__(plan, descendants())

    def tasks(self) -> list[Task]:
        cost = Costs(self.plan.plan)
        needs = self.needs("injected", "reference", "forget_only", "general_only")
        words = "scoring base, injected model and reference"
        known = Step("second-known", words, needs, 3 * cost.forward)
        steps = [*super().tasks(), Task(known, self._known)]
        for name, group in self.method_groups("second"):
            if self.picks & {title(method) for method in group}:
                words = f"making and scoring {group[0].name}"
                expected = len(group) * (cost.unlearn + cost.forward)
                action = partial(self._picks, group)
                steps.append(Task(Step(name, words, needs, expected), action))
        return steps

    def finish(self, cell: Any) -> dict[str, Any]:
        return super().finish(cell) | {"picks": sorted(self.picks)}

    def _known(self, step: str) -> None:
        self._score(step, {name: self.state(name) for name in ("base", "injected", "reference")})

    def _picks(self, group: Sequence[Method], step: str) -> None:
        states = {
            name: result
            for made in self.made(group)
            for name, _, result in made
            if name in self.picks and not isinstance(result, Failure)
        }
        self._score(step, states)

    def _score(self, step: str, states: dict[str, State]) -> None:
        sheet = self.setting.pool_sheet(SECOND_POOL)
        rows, roles = [], {}
        for name, state in states.items():
            digest, recorded = state_digest(state), self.first[name]["digest"]
            if digest != recorded:
                raise StoreError(
                    f"cell {self.plan.id}: {name} made again is {digest}, the first run recorded "
                    f"{recorded}; expected equal bytes; use the code and the kind of machine that "
                    "its environment.json names, or run the study again"
                )
            roles[name] = self.first[name]
            rows.append(item_columns(name, "forward", sheet, score(self.nets([state]), sheet)[0]))
        self.cell.put(step, {"items": stacked(rows)} if rows else {}, {"models": roles})


@dataclass(frozen=True)
class SecondJob:
    """How a worker gets at the cells of the second suite."""

    first: Path
    second: Path

    def cell(self, cell_id: str) -> SecondWork:
        """Return the work of one cell."""
        source, picks = Run.open(self.first), Run.open(self.second).plan["picks"][cell_id]
        models = source.cell(cell_id).summary()["models"]
        return SecondWork(planned(plan_from_dict(source.plan), cell_id), {*picks.values()}, models)


def run_second(first: Path, out: Path, **options: Any) -> Run:
    """Freeze each selector's picks of a finished run, then make and score them again.

    Further options are those of ``matrix.complete``.
    """
    results = read_run(first)
    if results.missing:
        raise StoreError(f"{first}: {len(results.missing)} cells are missing; finish the run first")
    source = Run.open(first)
    plan = plan_from_dict(source.plan)
    run = Run.create_or_resume(
        out,
        second_plan(results),
        source.rules,
        environment(inputs(plan)),
        {"commitment": str(commitment(plan)), "pool": "built-in"},
        cells=list(source.cells),
    )
    return complete(
        run, SecondJob(first.resolve(), run.path.resolve()), "palimpsest second-suite", **options
    )
