"""Frozen picks on a second pool: does a choice hold on phrasings that no choice has used?

That a pick scores best on the axes it was chosen by is partly definitional. So every selector names
one candidate per cell from a finished study alone. The picks are part of the second run's terms,
which are fixed before anything is scored; then they are made again by the same training (their
digests must be those recorded) and asked the phrasings of another pool.

    python -m palimpsest_trials.second_suite RUN [--out RUN-second] [--workers 2]
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.plan import CellPlan
from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.errors import InputError, StoreError
from palimpsest.facts.questions import Pool, pool_questions
from palimpsest.methods import title
from palimpsest.paper.study import read_paper
from palimpsest.report.results import RunResults, read_run
from palimpsest.run.store import Roster, Run, Terms

SECOND_POOL = "calibration"
Picks = dict[str, dict[str, str]]
"""The candidate that each selector picks, by cell."""


@dataclass(frozen=True)
class SecondSuite(StudyTask):
    """Cells of the first run with their picks alone, asked in the phrasings of the pool."""

    picks: Picks = field(default_factory=dict)

    def fix(self) -> tuple[Terms, Roster]:
        terms, roster = super().fix()
        config = {**terms.config, "second_suite": {"pool": SECOND_POOL, "picks": self.picks}}
        return replace(terms, config=config), roster

    def build(self, cell_id: str) -> CellPlan:
        plan = super().build(cell_id)
        facts = plan.texts.facts
        second = pool_questions(facts.sets(), SECOND_POOL)
        asked = (replace(question, pool=Pool.EVALUATION) for question in second)
        kept = (q for q in facts.questions if q.pool != Pool.EVALUATION)
        texts = replace(plan.texts, facts=replace(facts, questions=(*kept, *asked)))
        wanted = set(self.picks[cell_id].values())
        methods = tuple(method for method in plan.methods if title(method) in wanted)
        return replace(plan, texts=texts, methods=methods, known_label=(), sealed_pool=None)


def freeze_picks(results: RunResults) -> Picks:
    """Return each selector's pick in each cell, from the first pool alone."""
    paper = read_paper(results)
    if results.missing or paper is None:
        raise InputError(f"{results.path}: expected a finished study with the paper's measures")
    return {
        cell.id: {name: pick for name, pick in paper.selected(cell).items() if pick is not None}
        for cell in results.cells
    }


def run_second(first: RunResults, out: Path, options: RunOptions) -> tuple[RunResults, Picks]:
    """Make the picks of a finished study again, and measure them on the second pool."""
    picks = freeze_picks(first)
    roster = list(Run.open(first.path).rosters[-1].models)
    methods = [{"name": entry["method"], **entry["knobs"]} for entry in roster]
    known = {item.name for item in fields(Plan)} & first.terms.config.keys()
    values = {key: first.terms.config[key] for key in known}
    plan = Plan.read(values, methods=methods)
    second = read_run(launch(SecondSuite(plan, out, picks=picks), options).path)
    for cell in second.cells:
        for name in cell.candidates:
            made, recorded = cell.models[name].digest, first.cell(cell.id).models[name].digest
            if made != recorded:
                raise StoreError(
                    f"cell {cell.id}: {name} made again is {made}, the first run recorded "
                    f"{recorded}; expected equal bytes; use the same code and kind of machine"
                )
    return second, picks


def forget_distances(second: RunResults, picks: Picks) -> Mapping[str, Sequence[float]]:
    """Return how far each selector's picks lie from the references on the second pool, in nats."""
    found: dict[str, list[float]] = {}
    for cell in second.cells:
        of = cell.evaluation
        level = float(np.mean([of[name].median_forget_delta for name in of.references]))
        for selector, name in picks[cell.id].items():
            if name in cell.candidates:
                distance = abs(of[name].median_forget_delta - level)
                found.setdefault(selector, []).append(distance)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    out = given.out or given.run.with_name(f"{given.run.name}-second")
    executor = "local" if given.workers > 1 else "inline"
    second, picks = run_second(read_run(given.run), out, RunOptions(executor, given.workers))
    for selector, distances in forget_distances(second, picks).items():
        print(f"{selector:28} {len(distances)} cells, {np.mean(distances):.3f} nats on average")


if __name__ == "__main__":
    # By its module name, so that worker processes find the classes.
    from palimpsest_trials.second_suite import main as run_main

    run_main()
