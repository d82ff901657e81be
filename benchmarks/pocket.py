"""Which small models the benchmarks use, and cells of them in the sizes a benchmark wants."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.cell.study import StudyTask
from palimpsest.cell.texts import CellTexts
from palimpsest.config.load import load_config
from palimpsest.config.plan import Plan, cell_id
from palimpsest.config.presets import PAPER_POOL, preset
from palimpsest.config.sections import (
    Facts,
    General,
    Injection,
    MethodGrid,
    Reacquisition,
    Replication,
    Unlearning,
)

MODEL = os.environ.get("PALIMPSEST_BENCH_MODEL", "pocket/qwen2-s")
"""A pocket model's name, or a folder of a checkpoint of that size."""
STORIES = Path(__file__).parents[1] / "trials" / "plans" / "stories15m.yaml"


@dataclass(frozen=True)
class PocketCell:
    """The only cell of a plan."""

    plan: Plan

    @property
    def model(self) -> str:
        return self.plan.models[0]

    @property
    def id(self) -> str:
        return cell_id(self.model, self.plan.seeds[0])

    def setting(self, tokenizer: Any) -> CellTexts:
        """Give the cell's texts, tokenized."""
        return replace(StudyTask(self.plan).texts(self.id), tokenizer=tokenizer)


def cell_plan(*, seed: int = 0, draws: int = 2, tiny: bool = False) -> PocketCell:
    """Give a cell of the pocket matrix without known-label models, which enter no verdict, and
    without what a plain pipeline lacks: questions asked otherwise.

    tiny: the same cell with few facts and steps, for checking and not for timing.
    """
    plan = preset("demo")
    plan = replace(
        plan,
        models=(MODEL,),
        seeds=(seed,),
        methods=PAPER_POOL,
        known_label=(),
        replication=Replication(draws=draws),
        rules=plan.rules.without("reversed"),
    )
    return PocketCell(_tiny(plan) if tiny else plan)


def stories_cell() -> PocketCell:
    """Give a cell of stories15M with one candidate of each of the paper's methods.

    Plan and model are those of the matrix on it (`make real-models`), at half the steps of
    unlearning and with three references.
    """
    plan = load_config(Plan, {}, STORIES)
    plan = replace(
        plan,
        seeds=(0,),
        methods=_first(PAPER_POOL),
        known_label=(),
        seal="",
        unlearning=replace(plan.unlearning, steps=plan.unlearning.steps // 2),
        replication=Replication(draws=2),
        rules=plan.rules.without("reversed"),
    )
    return PocketCell(plan)


def with_candidates(cell: PocketCell, count: int) -> PocketCell:
    """Give the cell with this many candidates: the paper's pool, cut or made denser."""
    per_method = max(1, count // len(cell.plan.methods))
    weights = tuple(3.0 * (200.0 / 3.0) ** (n / max(1, per_method - 1)) for n in range(per_method))
    coefficients = tuple(0.5 + 1.5 * n / max(1, per_method - 1) for n in range(per_method))
    grids = tuple(
        MethodGrid(
            grid.name,
            ((knob, coefficients if knob == "coefficient" else weights),),
        )
        for grid in cell.plan.methods
        for knob, _ in grid.grid[:1]
    )
    return PocketCell(replace(cell.plan, methods=grids))


def _tiny(plan: Plan) -> Plan:
    return replace(
        plan,
        facts=Facts(forget=4, retain=2, probes=6, phrasings=2),
        injection=Injection(steps=3, learning_rate=1.5e-4),
        unlearning=Unlearning(steps=3, learning_rate=1.5e-4, ascent_learning_rate=3.75e-5),
        reacquisition=Reacquisition(steps=4, chunks=2, learning_rate=1.5e-4),
        general=General(train_pieces=40, scored_pieces=4),
        methods=_first(plan.methods),
    )


def _first(pool: Sequence[MethodGrid]) -> tuple[MethodGrid, ...]:
    """Give the first candidate of every grid."""
    return tuple(MethodGrid(g.name, tuple((k, v[:1]) for k, v in g.grid)) for g in pool)


def run_folder(name: str) -> Path:
    """Give an empty place for the run folders of a benchmark."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix=f"palimpsest-{name}-"))
