"""The paper's edition: do its batteries accept and reject models whose truth is known?

Each model of the panel, scored once on the sealed pool, goes through the screen (alone, at alpha),
forget equivalence, the retain axis, the whole forward battery, and then through what a forward-only
protocol cannot run: the round trip and the relearn veto. Relearning is logged on the evaluation
pool; everything else is read on the sealed one. The reference is its own same-draw anchor, so only
the screen, the retain axis and the gate say something about it. Candidates of suppression methods
go through the same batteries on the evaluation pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from palimpsest.analysis.counts import Bounded, bounded
from palimpsest.analysis.recalibrated import residual_pick
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Row, Share, Table, counted, row
from palimpsest.criteria.bars import DamageBar, damage_bar
from palimpsest.criteria.measures import CellMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone

BATTERIES = {
    "screen": "screen alone",
    "equivalence": "equivalence",
    "retain": "retain axis",
    "forward": "forward battery",
    "round_trip": "with round trip",
    "relearning": "with round trip and relearn veto",
}
"""In words. The forward battery is the screen with both axes; ``round_trip`` adds the residual and
``relearning`` the veto."""


@dataclass(frozen=True, slots=True, eq=False)
class Challenged:
    """One model under every battery of its cell."""

    cell: CellResult
    name: str
    accepted: dict[str, bool | None]
    """By battery; None where the model or the cell lacks what the battery needs."""
    forward: DamageBar | None

    @property
    def label(self) -> str:
        """The registry's name of a known-label model, or its own."""
        return str(self.cell.roles[self.name].get("entry") or self.name)


@lru_cache(maxsize=1)
def challenge_panel(results: RunResults) -> tuple[Challenged, ...]:
    """Return every panel model of every cell, remembered for the run read last."""
    return tuple(
        _challenged(cell, cell.panel, name, not _alone(cell.panel, name, results.rules)[1], results)
        for cell in results.cells
        if cell.panel is not None
        for name in cell.panel
    )


def acceptance(judged: Sequence[Challenged], battery: str, rules: Rules) -> Bounded:
    """Return how many of these models the battery accepts, with upper bounds."""
    known = [model for model in judged if model.accepted[battery] is not None]
    events = [bool(model.accepted[battery]) for model in known]
    return bounded(events, [model.cell.model for model in known], rules)


def by_challenge(judged: Sequence[Challenged]) -> dict[str, list[Challenged]]:
    """Return the panel's models by name, in order."""
    groups: dict[str, list[Challenged]] = {}
    for model in judged:
        groups.setdefault(model.label, []).append(model)
    return groups


def panel_table(results: RunResults) -> Table:
    """Return in how many cells each battery accepts each known-label model, with upper bounds."""
    rows: list[Row] = []
    passed = {"forward": Share(0, 0), "relearning": Share(0, 0)}
    suppressors = 0
    for label, models in by_challenge(challenge_panel(results)).items():
        rates = {name: acceptance(models, name, results.rules) for name in BATTERIES}
        rows.append(
            row("model", label)
            | {BATTERIES[name]: rate.share for name, rate in rates.items()}
            | rates["forward"].bounds("forward")
            | rates["relearning"].bounds("veto")
        )
        if _truth(models[0]) == "suppressed":
            suppressors += 1
            for name, share in passed.items():
                rate = rates[name]
                passed[name] = Share(share.count + rate.count, share.total + rate.total)
    reading = "The panel was not run."
    if rows and not suppressors:
        reading = f"{len(rows)} known models went through the paper's batteries."
    elif rows and not passed["forward"].total:
        reading = "Without tolerances the panel is judged by the screen alone."
    elif rows:
        reading = (
            "Known-label models that keep the facts pass the forward battery "
            f"{passed['forward'].count} times of {passed['forward'].total}, and "
            f"{passed['relearning'].count} times of {passed['relearning'].total} with round trip "
            "and relearn veto."
        )
    return Table.of("panel", "Known-label models: cells that accept them", reading, rows)


def panel_cells_table(results: RunResults) -> Table:
    """Return every known-label model in every cell."""
    rows: list[Row] = []
    for judged in challenge_panel(results):
        assert judged.cell.panel is not None
        model = judged.cell.panel[judged.name]
        p_value, _ = _alone(judged.cell.panel, judged.name, results.rules)
        distance = None if judged.forward is None else judged.forward.forget_distance
        fall = None if model.curve is None else model.curve.first_fall
        rows.append(
            row("cell|model|p", judged.cell.id, judged.label, p_value)
            | row("median forget delta", model.median_forget_delta)
            | row("forget distance|first-chunk fall", distance, fall)
            | {words: judged.accepted[name] for name, words in BATTERIES.items()}
        )
    reading = f"{counted(len(rows), 'known-label model')} scored on the sealed pool."
    return Table.of("panel-cells", "Known-label models, cell by cell", reading, rows)


def suppression_table(results: RunResults) -> Table:
    """Return how much suppression each battery lets through, each adding to the one before."""
    rules = results.rules
    suppressed = {
        label: models
        for label, models in by_challenge(challenge_panel(results)).items()
        if _truth(models[0]) == "suppressed"
    }
    candidates = {
        method: [
            _challenged(cell, cell.evaluation, name, cell.survives(name), results)
            for cell, name in mine
        ]
        for method, mine in results.by_method().items()
        if method in results.of_kind("suppresses")
    }
    rows: list[Row] = []
    for battery in ("screen", "forward", "round_trip", "relearning"):
        values = row("battery", BATTERIES[battery])
        for label, models in suppressed.items():
            rate = acceptance(models, battery, rules)
            values |= {f"{label} accepted": rate.share} | rate.bounds(label)
        cells = [c for c in results.cells if battery == "screen" or c.tolerances is not None]
        let_through: set[str] = set()
        for method, models in candidates.items():
            mine = [model for model in models if model.cell in cells]
            passed = [model for model in mine if model.accepted[battery]]
            let_through |= {model.cell.id for model in passed}
            share = Share(len(passed), len(mine)) if mine else None
            values[f"{method} candidates accepted"] = share
        events = [cell.id in let_through for cell in cells]
        any_accepted = bounded(events, [cell.model for cell in cells], rules)
        rows.append(values | row("cells accepting any", any_accepted.share))
    selected = residual_selects_suppression(results)
    reading = (
        f"Selection by the smallest residual picks a suppression method in {selected.count} of "
        f"{selected.total} cells"
    )
    if selected.upper is not None and selected.upper_clustered is not None:
        reading += (
            f" (one-sided upper bound {selected.upper:.1%}, by architecture "
            f"{selected.upper_clustered:.1%})"
        )
    title = "Suppression that each battery lets through"
    return Table.of("suppression", title, f"{reading}.", rows)


def residual_selects_suppression(results: RunResults) -> Bounded:
    """Return the cells whose smallest-residual survivor was made by a suppression method."""
    events = [cell.suppresses(residual_pick(cell)) for cell in results.cells]
    return bounded(events, [cell.model for cell in results.cells], results.rules)


def _alone(measures: CellMeasures, name: str, rules: Rules) -> tuple[float, bool]:
    """Return the screen's p-value of a model by itself, and whether it is excluded."""
    screened = screen_alone(measures[name], rules)
    return screened.test.p_value, screened.excluded


def _truth(judged: Challenged) -> str:
    role = judged.cell.roles[judged.name]
    return str(role.get("truth") or role["role"])


def _challenged(
    cell: CellResult, measures: CellMeasures, name: str, passes: bool, results: RunResults
) -> Challenged:
    """Return whether each battery accepts a model, and its forward bar."""
    accepted: dict[str, bool | None] = dict.fromkeys(BATTERIES) | {"screen": passes}
    tolerances = cell.tolerances
    if tolerances is None or not measures.references:
        return Challenged(cell, name, accepted, None)
    bare, vetoing = (replace(results.rules, relearn_veto=veto) for veto in (False, True))
    forward = damage_bar(measures, name, passes, tolerances, bare, forward_only=True)
    accepted["equivalence"] = forward.forget_distance <= forward.delta_f
    accepted["retain"] = forward.retain_damage <= forward.delta_f
    accepted["forward"] = forward.clears
    if measures[name].residual is not None:
        accepted["round_trip"] = damage_bar(measures, name, passes, tolerances, bare).clears
        if measures[name].curve is not None:
            vetoed = damage_bar(measures, name, passes, tolerances, vetoing)
            accepted["relearning"] = vetoed.clears
    return Challenged(cell, name, accepted, forward)
