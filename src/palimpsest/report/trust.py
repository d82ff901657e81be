"""Whether the instrument can be trusted on this run: panel, certifiability, headroom and noise.

Each check says what it found or, where nothing was measured, the command that would measure it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from palimpsest.report.formats import counted, number
from palimpsest.study.panel import challenge_panel
from palimpsest.study.results import CellResult, RunResults

State = Literal["holds", "with exceptions", "does not hold", "not measured"]
MEASURE_HEADROOM = "palimpsest headroom --base BASE --injected INJECTED --forget FACTS.jsonl"
REGIMES = {
    "counterfactual": "counterfactual",
    "inferable": "inferable",
    "undecided": "neither clearly counterfactual nor clearly inferable",
}
_AXES = {"relearning": "the whole battery", "screen": "the screen, all there is without tolerances"}


@dataclass(frozen=True, slots=True)
class Check:
    """One reason to trust the verdicts or not."""

    title: str
    state: State
    found: str
    """What was found, in a sentence or two."""
    measure: str = ""
    """The command that would measure what was not."""


def trust_checks(results: RunResults) -> tuple[Check, ...]:
    """What speaks for and against the instrument here, in the order a reader asks."""
    if not results.cells:
        return ()
    return (_panel(results), _certifiability(results), *_headroom(results), _noise(results))


def _panel(results: RunResults) -> Check:
    """Known-label models under the battery in force: only the reference should be accepted."""
    rows = challenge_panel(results)
    if not rows:
        return Check(
            "Models whose truth is known",
            "not measured",
            "No model with a known label went through the battery in this run. A study sends them "
            "with panel.enabled, and palimpsest demo shows it on a pocket model.",
        )
    axis = "screen" if all(row.relearning is None for row in rows) else "relearning"
    answers: dict[str, list[bool]] = {}
    for row in rows:
        answer = getattr(row, axis)
        if answer is not None:
            answers.setdefault(row.challenge.removeprefix("panel:"), []).append(answer)
    reference = answers.pop("reference", [])
    taken = {name: sum(found) for name, found in answers.items() if any(found)}
    total = len({row.cell for row in rows})
    known = len(answers)
    everywhere = "" if total == 1 else " in every cell"
    told = f"Of {known} models known not to be restored {_AXES[axis]} rejects "
    if taken:
        told += f"{known - len(taken)}{everywhere} and accepts {_and(_often(taken, total))}."
    else:
        told += f"all{everywhere}."
    if reference:
        accepted = sum(reference)
        told += f" It {'accepts' if accepted else 'rejects'} the retrained reference"
        if total > 1 and accepted:
            told += f" in {accepted} of {len(reference)} cells"
        told += "." if accepted == len(reference) else ": it is stricter than retraining itself."
    sound = not taken and all(reference)
    return Check("Models whose truth is known", "holds" if sound else "with exceptions", told)


def _certifiability(results: RunResults) -> Check:
    """Proposition 1: whether there are enough probes for anybody to be excluded."""
    title = "Enough probes to exclude anybody"
    bounds = [cell.screen.bound for cell in results.cells if cell.screen is not None]
    if not bounds:
        return Check(title, "not measured", "There is no candidate to screen.")
    least = min(bounds, key=lambda one: one.arrangements / one.required)
    found = (
        f"{least.forget} forget facts among {least.probes} probes can be arranged in "
        f"{least.arrangements:,} ways; Holm's correction over {least.candidates} candidates at "
        f"α = {least.alpha:g} needs {least.required:,}."
    )
    if least.certifiable:
        return Check(title, "holds", found)
    found += f" Nobody could be excluded; {least.min_probes} probes would do."
    return Check(
        title,
        "does not hold",
        found,
        f"palimpsest design --forget {least.forget} --probes {least.min_probes} "
        f"--candidates {least.candidates}",
    )


def _headroom(results: RunResults) -> tuple[Check, ...]:
    """Whether the facts could be inferred: with evidence in context, and from the reference."""
    measured = {cell.id: one for cell in results.cells if (one := cell.headroom) is not None}
    checks: list[Check] = []
    for cell, one in measured.items():
        where = "" if len(results.planned) == 1 else f"{cell}: "
        states: Mapping[str, State] = {
            "counterfactual": "holds",
            "inferable": "does not hold",
            "undecided": "with exceptions",
        }
        checks.append(
            Check(
                "Facts that cannot be inferred (headroom)",
                states[one.regime],
                f"{where}The facts are {REGIMES[one.regime]}: with the evidence in context the "
                f"base model is {number(one.estimate.estimate)} nats [{number(one.estimate.low)}, "
                f"{number(one.estimate.high)}] behind the injected one on {one.facts} forget "
                f"facts, of {number(one.taught)} that injection gained"
                + (f"; {one.reason}." if one.regime == "undecided" else "."),
            )
        )
    true = [_true_headroom(cell) for cell in results.cells if cell.id not in measured]
    known = [one for one in true if one is not None]
    if known:
        checks.append(_from_reference(results, known, len(true)))
    if not measured and not known:
        checks.append(
            Check(
                "Facts that cannot be inferred (headroom)",
                "not measured",
                "Nothing here tells whether retained data let a retrained model infer the forget "
                'facts: no fact carries "evidence", and there is no retrained reference.',
                MEASURE_HEADROOM,
            )
        )
    return tuple(checks)


def _from_reference(results: RunResults, known: Sequence[tuple[float, float]], total: int) -> Check:
    """The true headroom G where a reference was retrained; its estimate needs evidence."""
    shares = np.array([gap / taught for gap, taught in known if taught > 0])
    gaps = np.array([gap for gap, _ in known])
    fraction = results.rules.headroom_fraction
    kept = int((shares > fraction).sum())
    if total == 1:
        gap, taught = known[0]
        found = (
            f"On the forget facts injection gained {number(taught)} nats over base; the reference, "
            f"retrained without them, is {number(gap)} nats behind the injected model."
        )
    else:
        found = (
            f"On the forget facts references, retrained without them, are "
            f"{number(float(gaps.min()))} to {number(float(gaps.max()))} nats behind the injected "
            f"model (median {number(float(np.median(gaps)))}); in {kept} of {total} cells that is "
            f"more than {fraction:.0%} of what injection gained over base."
        )
    state: State = "holds" if kept == total else "with exceptions" if kept else "does not hold"
    return Check(
        "Facts that cannot be inferred (headroom)",
        state,
        f"{found} The estimate that needs no reference was not measured here: no fact carries "
        '"evidence".',
        MEASURE_HEADROOM,
    )


def _true_headroom(cell: CellResult) -> tuple[float, float] | None:
    """G and what injection taught, in nats, held-out; None without a reference."""
    if not cell.evaluation.references:
        return None
    injected = float(cell.evaluation.injected.forget_deltas.mean())
    reference = float(cell.evaluation[cell.evaluation.references[0]].forget_deltas.mean())
    return reference - injected, -injected


def _noise(results: RunResults) -> Check:
    """The unit of every distance: how much two retrainings differ."""
    title = "Retraining noise"
    deltas = {family: one.delta_f for family, one in results.tolerances.items()}
    if not deltas:
        return Check(
            title,
            "not measured",
            "There are too few independent references to say how much retraining alone moves a "
            f"model ({results.rules.minimum_draws} are needed), so the bar has fixed limits. Give "
            "--reference more than once in an audit, or replication.draws in a study.",
        )
    if len(deltas) == 1:
        found = f"Two retrainings differ by δ_f = {number(next(iter(deltas.values())))} nats"
    else:
        found = (
            f"Two retrainings differ by δ_f = {number(min(deltas.values()))} to "
            f"{number(max(deltas.values()))} nats, by family"
        )
    draws = [
        one.tolerances.draws for family in results.replication.values() for one in family.cells
    ]
    found += f", measured on {sum(draws)} references of {counted(len(draws), 'cell')}."
    absent = [family for family in results.families if family not in deltas]
    if absent:
        found += f" Not measured for {_and(absent)}."
    return Check(title, "with exceptions" if absent else "holds", found)


def _often(counts: Mapping[str, int], total: int) -> list[str]:
    if total == 1:
        return [f"the {name}" for name in counts]
    return [f"the {name} in {count} of {total} cells" for name, count in counts.items()]


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
