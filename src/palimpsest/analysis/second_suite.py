"""The untouched second suite: picks frozen on the first pool, compared on one no choice ever saw.

That the recalibrated pick scores best on the axes it was chosen by is partly definitional. So each
selector names one candidate per cell from the evaluation pool alone, and the choice becomes the
plan of a second run (``second_plan``), which that run's chain fixes before anything is scored. The
second run makes the picks again, scores base, reference and picks on the second pool, and
``second_suite_table`` reads it, refusing scores of a run that was planned with other picks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.analysis.counts import averaged
from palimpsest.analysis.recalibrated import (
    absolute_pick,
    nearest_pick,
    residual_pick,
    trained_probe_pick,
    with_veto,
)
from palimpsest.analysis.results import SECOND_POOL, RunResults, read_run
from palimpsest.analysis.table import Estimate, Row, Share, Table, counted, listed, number, row
from palimpsest.criteria.bars import damage_bar
from palimpsest.criteria.intervals import spearman
from palimpsest.criteria.measures import CellMeasures, measure_cell
from palimpsest.criteria.screen import screen_alone
from palimpsest.errors import DriftError
from palimpsest.run.store import Run

SELECTORS = ("certificate", "recalibrated", "nearest", "residual", "absolute", "trained-probe")
"""certificate: the certified candidate, absent where the verdict is uncertified. The others are the
paper's. recalibrated: the pick of its bar, absent where no candidate passes. nearest: the survivor
with the smallest worst axis of that bar, passing or not, so that every cell has one. residual: the
survivor with the smallest residual. absolute: the same among candidates that clear the absolute
bar, absent where none does. trained-probe: the smallest oracle-KL."""


def frozen_picks(results: RunResults) -> dict[str, dict[str, str]]:
    """Return each cell's pick by each selector, from the first pool alone; absent where there is
    none."""
    rules, verdicts, picks = results.rules, with_veto(results).verdicts, {}
    for cell in results.cells:
        bars = {}
        if cell.tolerances is not None and cell.evaluation.references:
            bars = {
                name: damage_bar(cell.evaluation, name, True, cell.tolerances, rules)
                for name in cell.survivors
            }
        named = {
            "certificate": cell.verdict.candidate if cell.verdict else None,
            "recalibrated": verdicts[cell.id].candidate if cell.id in verdicts else None,
            "nearest": nearest_pick(bars),
            "residual": residual_pick(cell),
            "absolute": absolute_pick(cell, rules),
            "trained-probe": trained_probe_pick(cell),
        }
        picks[cell.id] = {selector: name for selector, name in named.items() if name is not None}
    return picks


def second_plan(results: RunResults) -> dict[str, Any]:
    """Return the plan of the second run: which candidate each selector froze in each cell."""
    return {
        "name": f"{results.name}, second suite",
        "pool": SECOND_POOL,
        "rules_hash": results.rules_hash,
        "picks": frozen_picks(results),
    }


def read_second(path: Path | str, results: RunResults) -> dict[str, CellMeasures]:
    """Return the scores of a second run, by cell; refused when it was planned for other picks."""
    run = Run.open(path)
    plan = second_plan(results)
    different = [key for key in ("pool", "rules_hash", "picks") if run.plan.get(key) != plan[key]]
    if different:
        raise DriftError(
            f"{path}: the second run was planned with another {', '.join(different)} than these "
            "results give; expected the picks that were frozen before it was scored"
        )
    cells = [run.cell(cell_id) for cell_id in run.cells]
    return {
        cell.id: measure_cell(cell.table("items"), pool=SECOND_POOL)
        for cell in cells
        if cell.ended()
    }


def second_suite_table(results: RunResults, scores: Mapping[str, CellMeasures]) -> Table:
    """Return every selector's frozen picks against the trained-probe best on the cells where both
    were scored on the second pool (``read_second``); no rows when none was."""
    # Distance from the reference on the second pool, whether within delta_f, whether excluded.
    placed: dict[str, dict[str, tuple[float, bool, bool]]] = {name: {} for name in SELECTORS}
    for cell_id, picks in frozen_picks(results).items():
        cell, second = results.cell(cell_id), scores.get(cell_id)
        if second is None or "reference" not in second:
            continue
        for selector, name in picks.items():
            if name in second:
                reference = second["reference"].median_forget_delta
                distance = abs(second[name].median_forget_delta - reference)
                within = cell.tolerances is not None and distance <= cell.tolerances.delta_f
                excluded = screen_alone(second[name], results.rules).excluded
                placed[selector][cell_id] = (distance, within, excluded)
    rival = placed["trained-probe"]
    rows: list[Row] = []
    reading = "No certified candidate was scored on the second pool."
    for selector, mine in placed.items():
        cells = [cell for cell in mine if cell in rival]
        if not cells:
            continue
        ours, theirs = (float(np.mean([some[cell][0] for cell in cells])) for some in (mine, rival))
        gaps = [mine[cell][0] - rival[cell][0] for cell in cells]
        nearer = [gap < 0 for gap in gaps]
        near, out = ([bool(mine[cell][k]) for cell in cells] for k in (1, 2))
        shares = [Share(sum(events), len(cells)) for events in (nearer, near, out)]
        rows.append(
            row("selector|cells|forget distance", selector, len(cells), ours)
            | row("trained-probe best's", theirs)
            | row("difference", averaged(gaps, cells, results.rules))
            | row("nearer|within delta_f|excluded by the screen", *shares)
        )
        if selector == "certificate":
            reading = (
                f"On a pool that no choice used, the certified candidates of "
                f"{counted(len(cells), 'cell')} lie {number(ours)} nats from the reference and the "
                f"trained-probe best {number(theirs)}."
            )
    return Table.of("second-suite", "Frozen picks on a second pool", reading, rows)


def regret_table(results: RunResults) -> Table:
    """Return whether selectors do worse where there is less headroom, over the cells.

    Headroom is what retraining without the forget facts loses on them against the injected model;
    regret is the distance of a selector's pick from the references' mean forget delta minus that of
    the cell's nearest candidate.
    """
    headroom: dict[str, list[float]] = {selector: [] for selector in SELECTORS}
    regret: dict[str, list[float]] = {selector: [] for selector in SELECTORS}
    for cell_id, picks in frozen_picks(results).items():
        cell = results.cell(cell_id).evaluation
        level = float(np.mean([cell[name].median_forget_delta for name in cell.references]))
        taught = float(np.mean([cell[name].forget_deltas.mean() for name in cell.references]))
        candidates = results.cell(cell_id).candidates
        away = {name: abs(cell[name].median_forget_delta - level) for name in candidates}
        for selector, name in picks.items():
            headroom[selector].append(taught - float(cell.injected.forget_deltas.mean()))
            regret[selector].append(away[name] - min(away.values()))
    rows: list[Row] = []
    related = []
    for selector, lost in regret.items():
        if len(lost) >= 4 and np.ptp(lost) > 0 and np.ptp(headroom[selector]) > 0:
            rank = spearman(headroom[selector], lost, results.rules.confidence)
            related += [selector] * (not rank.low <= 0 <= rank.high)
            rows.append(
                row("selector|cells", selector, len(lost))
                | row("mean headroom, nats", float(np.mean(headroom[selector])))
                | row("mean regret, nats", float(np.mean(lost)))
                | row("Spearman of headroom and regret", Estimate.of(rank))
            )
    reading = "There are too few cells to correlate headroom and regret."
    if rows:
        reading = "Headroom does not go with the regret of any selector."
        if related:
            reading = f"Headroom goes with the regret of {listed(related)}."
    return Table.of("regret", "Headroom and selection regret", reading, rows)


def compared(first: Path | str, second: Path | str) -> Table:
    """Return what the second run at ``second`` found about the picks of the run at ``first``."""
    results = read_run(first)
    return second_suite_table(results, read_second(second, results))
