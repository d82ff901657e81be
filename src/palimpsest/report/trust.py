"""Whether the verdicts of a run can be relied on: power, controls, dose, recipe and headroom.

Each check says what was found or, where nothing was measured, the command that would measure it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import counted, listed, number, percent
from palimpsest.criteria.axes import axis
from palimpsest.criteria.controls import Control
from palimpsest.report.positions import control_label

State = Literal["holds", "with exceptions", "does not hold", "not measured"]
MEASURE_HEADROOM = "palimpsest headroom --base BASE --injected INJECTED --forget FACTS.jsonl"
_REGIMES: Mapping[str, State] = {
    "counterfactual": "holds",
    "inferable": "does not hold",
    "undecided": "with exceptions",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One reason to rely on the verdicts or not."""

    title: str
    state: State
    found: str
    """What was found, in a sentence or two."""
    measure: str = ""
    """The command that would measure what was not."""


def trust_checks(results: RunResults) -> tuple[Check, ...]:
    """Return what supports the verdicts and what does not, in the order a reader asks."""
    if not results.cells:
        return ()
    return (
        _negative(results),
        _positive(results),
        _dose(results),
        _recipe(results),
        _probes(results),
        *_headroom(results),
    )


def _judged(results: RunResults, expected: str) -> list[tuple[CellResult, Control]]:
    return [
        (cell, control)
        for cell, verdict in results.judged
        for control in verdict.controls
        if control.expected == expected and control.comparison is not None
    ]


def _negative(results: RunResults) -> Check:
    """Return whether models known to keep knowledge are rejected."""
    title = "Models that keep knowledge are rejected"
    judged = _judged(results, "reject")
    if not judged:
        few = f"Fewer than {results.rules.minimum_references} retrainings: no control was compared."
        return Check(title, "not measured", few)
    missed = [(cell, control) for cell, control in judged if not control.rejected]
    text = f"{len(judged) - len(missed)} of {len(judged)} are rejected."
    limits = [verdict.detection_limit for _, verdict in results.judged if verdict.controls]
    known = [limit for limit in limits if limit is not None]
    if known:
        text += f" Detection limit: {percent(min(known))}"
        text += "" if min(known) == max(known) else f" to {percent(max(known))}"
        text += " of the injected weights."
    if missed:
        names = list(dict.fromkeys(control_label(cell, control) for cell, control in missed))
        text += f" Not noticed: {listed(names)}."
    bad = len(known) < len(limits) or max(known) > results.rules.detection_limit
    wrong = any(control.kind != "interpolation" for _, control in missed)
    return Check(title, "does not hold" if bad else "with exceptions" if wrong else "holds", text)


def _positive(results: RunResults) -> Check:
    """Return whether retrainings are accepted about as often as the level promises."""
    title = "Retrainings are accepted"
    judged = _judged(results, "accept")
    if not judged:
        return Check(title, "not measured", "No retraining was compared with the others.")
    accepted = sum(not control.rejected for _, control in judged)
    alpha = results.rules.alpha
    expected = (1 - alpha) * len(judged)
    slack = 3 * float(np.sqrt(alpha * (1 - alpha) * len(judged)))
    fresh = [control for _, control in judged if control.kind == "retraining"]
    text = f"{accepted} of {len(judged)} are accepted; about {percent(1 - alpha)} are expected."
    if fresh:
        taken = sum(not control.rejected for control in fresh)
        text += f" Fresh retrainings, never among the references: {taken} of {len(fresh)} accepted."
    return Check(title, "holds" if accepted >= expected - slack else "with exceptions", text)


def _dose(results: RunResults) -> Check:
    """Return whether re-acquisition was strong enough for relearning to show anything."""
    title = "Re-acquisition is strong enough"
    doses = [verdict.dose for _, verdict in results.judged if verdict.dose is not None]
    if not doses:
        return Check(title, "not measured", "No retraining learned the forget facts again.")
    weak = [dose for dose in doses if not dose.enough]
    least = min(doses, key=lambda dose: dose.fraction)
    text = (
        f"Retrainings come at least {percent(least.fraction)} of the way to the injected model in "
        f"{least.steps} steps; {percent(least.required)} is required."
    )
    if weak:
        text += f" Too weak in {len(weak)} of {counted(len(doses), 'cell')}."
        if least.suggested_steps is not None:
            text += f" Try {least.suggested_steps} steps."
    some: State = "with exceptions" if weak else "holds"
    return Check(title, "does not hold" if len(weak) == len(doses) else some, text)


def _recipe(results: RunResults) -> Check:
    """Return whether references and injected model seem to come from one recipe."""
    title = "References share the injected model's recipe"
    known = [verdict.recipe for _, verdict in results.judged if verdict.recipe is not None]
    named = [(recipe.axis, recipe) for recipe in known if recipe.axis is not None]
    if not named:
        return Check(title, "not measured", "There are too few references to tell.")
    name, far = max(named, key=lambda pair: abs(pair[1].z[pair[0]]))
    text = (
        f"On axes that show the recipe, the injected model lies at most {abs(far.z[name]):.1f} "
        f"standard deviations from the references ({axis(name).title}); from {far.limit:g} on "
        "the verdict notes it."
    )
    return Check(title, "with exceptions" if any(recipe.far for recipe in known) else "holds", text)


def _probes(results: RunResults) -> Check:
    """Return whether there are enough probes for the screen to exclude a candidate."""
    title = "Enough probes for the screen"
    bounds = [cell.screen.bound for cell in results.cells if cell.screen is not None]
    if not bounds:
        return Check(title, "not measured", "There is no candidate to screen.")
    least = min(bounds, key=lambda bound: bound.arrangements / bound.required)
    text = (
        f"{least.forget} forget facts among {least.probes} probes can be arranged in "
        f"{least.arrangements:,} ways; Holm's correction over "
        f"{counted(least.candidates, 'candidate')} at α = {least.alpha:g} needs {least.required:,}."
    )
    if least.certifiable:
        return Check(title, "holds", text)
    command = (
        f"palimpsest design --forget {least.forget} --probes {least.min_probes} "
        f"--candidates {least.candidates}"
    )
    text += f" No candidate could be excluded; {least.min_probes} probes would be enough."
    return Check(title, "does not hold", text, command)


def _headroom(results: RunResults) -> tuple[Check, ...]:
    """Return whether the forget facts could be inferred from what is kept."""
    title = "Forget facts cannot be inferred"
    measured = {cell.id: cell.headroom for cell in results.cells if cell.headroom is not None}
    checks = []
    for cell_id, headroom in measured.items():
        where = "" if len(results.planned) == 1 else f"{cell_id}: "
        text = (
            f"{where}with the evidence in context the base model is "
            f"{number(headroom.estimate.estimate)} nats [{number(headroom.estimate.low)}, "
            f"{number(headroom.estimate.high)}] behind the injected one on {headroom.facts} forget "
            f"facts, of {number(headroom.taught)} that injection taught: {headroom.regime}"
            + (f"; {headroom.reason}." if headroom.regime == "undecided" else ".")
        )
        checks.append(Check(title, _REGIMES[headroom.regime], text[0].upper() + text[1:]))
    others = [cell for cell in results.cells if cell.id not in measured]
    known = [gap for cell in others if (gap := _true_headroom(cell)) is not None]
    if known:
        shares = [gap / taught for gap, taught in known if taught > 0]
        kept = sum(share > results.rules.headroom_fraction for share in shares)
        state: State = (
            "holds" if kept == len(others) else "with exceptions" if kept else "does not hold"
        )
        ends = sorted({number(min(gap for gap, _ in known)), number(max(gap for gap, _ in known))})
        text = (
            f"Retrained without them, references are {' to '.join(ends)} nats behind the injected "
            f"model on the forget facts; in {kept} of {counted(len(others), 'cell')} that is more "
            f"than {percent(results.rules.headroom_fraction)} of what injection taught."
        )
        checks.append(Check(title, state, text))
    if not measured and not known:
        text = (
            "It was not measured whether a retrained model could infer the forget facts from "
            'retained data: no fact carries "evidence", and there is no reference.'
        )
        checks.append(Check(title, "not measured", text, MEASURE_HEADROOM))
    return tuple(checks)


def _true_headroom(cell: CellResult) -> tuple[float, float] | None:
    """Return the reference's distance behind the injected model on the forget facts, and what
    injection taught, in nats; None without a reference."""
    if not cell.evaluation.references or "injected" not in cell.evaluation:
        return None
    injected = float(cell.evaluation.injected.forget_deltas.mean())
    reference = float(cell.evaluation[cell.evaluation.references[0]].forget_deltas.mean())
    return reference - injected, -injected
