"""The second suite's run: frozen picks made again and scored on a pool no choice has used.

The picks are part of the run's plan, which its chain fixes before anything is trained or scored. A
pick is made again by the same training from the same seeds; its digest must equal the one that the
first run recorded, so that what is scored is what was chosen.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import StoreError
from palimpsest.methods import title
from palimpsest.methods.running import Failure, groups, run_group
from palimpsest.models.load import state_digest
from palimpsest.plan import plan_from_dict
from palimpsest.run.store import Cell, Run, environment
from palimpsest.scoring.answers import item_columns, score
from palimpsest.study.cell import CellRun, stacked
from palimpsest.study.matrix import commitment, inputs
from palimpsest.study.results import SECOND_POOL, read_run
from palimpsest.study.second_suite import second_plan


class SecondCell(CellRun):
    """One cell of the second suite."""

    def __init__(self, plan: Any, store: Cell, picks: set[str], digests: Mapping[str, str]) -> None:
        super().__init__(plan, store)
        self.picks = picks
        self.digests = digests

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        trained = [step for step in super().steps() if step[0].startswith("train-")]
        return [*trained, ("second", self._second)]

    def _second(self) -> None:
        sheet = self.setting.pool_sheet(SECOND_POOL)
        states = {"base": self.base} | {n: self.state(n) for n in ("injected", "reference")}
        for group in groups(self.methods, self.nets.stack):
            if not self.picks & {title(method) for method in group}:
                continue
            for method, result in zip(group, run_group(self.context, group)):
                if title(method) in self.picks and not isinstance(result, Failure):
                    states[title(method)] = result
        rows = []
        for name, state in states.items():
            found = state_digest(state)
            if self.digests.get(name, found) != found:
                raise StoreError(
                    f"cell {self.plan.id}: {name} made again is {found}, the first run recorded "
                    f"{self.digests[name]}; expected equal bytes; use the code and the kind of "
                    "machine that its environment.json names, or run the study again"
                )
            rows.append(item_columns(name, "forward", sheet, score(self.nets([state]), sheet)[0]))
        self.store.put("second", {"items": stacked(rows)})

    def _summary(self) -> dict[str, Any]:
        return {"model": self.plan.model, "seed": self.plan.seed, "picks": sorted(self.picks)}


def run_second(first: Path, out: Path, tell: Callable[[str], None] = print) -> Run:
    """Freeze each selector's picks of a finished run, then make and score them again."""
    results = read_run(first)
    if results.missing:
        raise StoreError(f"{first}: {len(results.missing)} cells are missing; finish the run first")
    source = Run.open(first)
    plan = plan_from_dict(source.plan)
    frozen = second_plan(results)
    run = Run.create_or_resume(
        out,
        frozen,
        source.rules,
        environment(inputs(plan)),
        {"commitment": str(commitment(plan)), "pool": "built-in"},
        cells=list(source.cells),
    )
    cells = {cell.id: cell for cell in plan.cells()}
    with run.lease("palimpsest second suite"):
        for number, cell_id in enumerate(run.cells):
            cell = run.cell(cell_id)
            if cell.finished():
                continue
            tell(f"{cell_id} ({number + 1}/{len(run.cells)})")
            picks = set(frozen["picks"][cell_id].values())
            digests = source.cell(cell_id).summary()["digests"]
            with cell.claim() as claimed:
                SecondCell(cells[cell_id], claimed, picks, digests).run()
    return run
