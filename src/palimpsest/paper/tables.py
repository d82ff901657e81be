"""The paper's tables and figure over a study: counted and shown, and no part of any verdict.

A table is one function of the study; ``TABLES`` lists them in the order of the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palimpsest.paper.bars import (
    ADEQUATE,
    PERCENTILE,
    RESIDUAL_LIMIT,
    RETAIN_LIMIT,
    absolute_bar,
    damage_bar,
    paper_references,
)
from palimpsest.paper.study import Candidate, PaperStudy, read_paper, suppresses, taught
from palimpsest.report import canvas
from palimpsest.report.results import CellResult, RunResults
from palimpsest.report.table import Average, Estimate, Row, Share, Table, number
from palimpsest.stats.intervals import tost
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.multiplicity import certifiability, holm
from palimpsest.stats.ranktest import rank_tests
from palimpsest.stats.screen import screen_alone

MATCHED_WITHIN = 1.0
"""Two candidates of a cell count as equally forgetful if their held-out forget NLLs differ by at
most this many nats."""
EQUIVALENCE_ALPHA = 0.05
"""Level of each of the two one-sided tests of equivalence to never-learned."""

# -- trained probes against held-out facts ---------------------------------------------------------


def trained_probe_table(study: PaperStudy) -> Table:
    """Return what candidates rated adequate on trained probes score on held-out forget facts: NLL
    minus base's (the paper's), minus that of the candidate's own probes, minus the reference's; in
    nats, and in units of what was taught: each fact by the injected model's mean in its cell."""
    rated = study.adequate()
    deltas: dict[str, list[float]] = {"base": [], "probes": [], "reference": []}
    for cell, name in rated:
        model = cell.evaluation[name]
        deltas["base"] += model.forget_deltas.tolist()
        deltas["probes"] += (model.forget_deltas - np.median(model.probe_deltas)).tolist()
        deltas["reference"] += (model.forget_deltas - _reference(cell).forget_deltas).tolist()
    facts = [cell for cell, name in rated for _ in cell.evaluation[name].forget_facts]
    cells, units = [cell.id for cell in facts], [taught(cell) for cell in facts]
    rows: list[Row] = [
        {"never-learned level": level, "mean per fact": Estimate.average(values, cells)}
        | {"mean, share of what was taught": in_units(values, units, cells)}
        | {"median per fact": float(np.median(values)), "facts": len(values)}
        | {"candidates": len(rated), "cells": len(set(cells))}
        for level, values in deltas.items()
        if values
    ]
    reading = (
        f"Candidates rated adequate: {len(rated)}, with an oracle-KL of at most {ADEQUATE:g} of "
        "the injected model's. Below 0 they still know held-out forget facts."
    )
    forms = {"mean, share of what was taught": ".0%"}
    return Table.of("trained-probe", "The trained-probe criterion", reading, rows, forms)


def in_units(
    values: Sequence[float], units: Sequence[float], cells: Sequence[str], kind: Average = "mean"
) -> Estimate | None:
    """Return the average of the values, each in its unit; None where one is not positive, as in a
    cell whose injected model was taught nothing."""
    if min(units, default=0.0) <= 0:
        return None
    return Estimate.average([value / unit for value, unit in zip(values, units)], cells, kind)


def methods_table(study: PaperStudy) -> Table:
    """Return by method what trained probes say of its candidates, and what the held-out screen."""
    adequate = set(study.adequate())
    rows: list[Row] = []
    for method, mine in study.by_method().items():
        models = [(cell.evaluation[name], cell) for cell, name in mine]
        low, middle, high = np.quantile([m.need("oracle_kl") for m, _ in models], [0.25, 0.5, 0.75])
        forget = [m.forget_nll - _reference(cell).forget_nll for m, cell in models]
        retain = [
            m.need("retain_nll") - cell.evaluation.injected.need("retain_nll") for m, cell in models
        ]
        rows.append(
            {"method": method, "author's aim": mine[0][0].models[mine[0][1]].aim}
            | {"rated adequate": Share.of(candidate in adequate for candidate in mine)}
            | {"excluded by the screen": Share.of(not study.survives(*pair) for pair in mine)}
            | {"oracle-KL, median and quartiles": Estimate(*map(float, (middle, low, high)))}
            | {"median gap": float(np.median([m.median_gap for m, _ in models]))}
            | {"forget NLL beyond the reference": float(np.median(forget))}
            | {"retain NLL beyond the injected model": float(np.median(retain))}
        )
    pairs = matched_forgetting(study)
    reading = "No restoring and no suppressing candidate of one cell forget to the same extent."
    if pairs:
        restoration, suppression = np.median(pairs, axis=0).tolist()
        reading = (
            f"In {len(pairs)} pairs that forget to the same extent (held-out forget NLL within "
            f"{MATCHED_WITHIN:g} nat) the median oracle-KL is {number(restoration)} "
            f"for restoration and {number(suppression)} for suppression; restoration is closer in "
            f"{sum(a < b for a, b in pairs)}."
        )
    return Table.of("methods", "Restoration and suppression", reading, rows)


def matched_forgetting(study: PaperStudy) -> list[tuple[float, float]]:
    """Return the oracle-KL of restoration and of suppression in every pair of candidates of a cell
    that forget to the same extent."""
    by_aim: dict[str, list[Candidate]] = {"restores": [], "suppresses": []}
    for cell, name in study.candidates():
        by_aim.setdefault(cell.models[name].aim, []).append((cell, name))
    return [
        (mine.need("oracle_kl"), theirs.need("oracle_kl"))
        for cell, name in by_aim["restores"]
        for other, rival in by_aim["suppresses"]
        if cell is other
        for mine, theirs in [(cell.evaluation[name], cell.evaluation[rival])]
        if abs(theirs.forget_nll - mine.forget_nll) <= MATCHED_WITHIN
    ]


# -- the screen: with fewer probes, and what surviving it means ------------------------------------


def fewer_probes_table(study: PaperStudy) -> Table:
    """Return the screen at every number of probes that all cells have, from the stored items."""
    most = min(len(cell.evaluation.probe_facts) for cell in study.cells)
    alpha = study.results.rules.alpha
    rows: list[Row] = []
    for probes in range(1, most + 1):
        excluded, at_floor, p_values, able = 0, 0, [], []
        for cell in study.cells:
            models = [cell.evaluation[name] for name in study.names[cell.id]]
            tests = rank_tests(
                np.stack([model.forget_deltas for model in models]),
                np.stack([model.probe_deltas[:probes] for model in models]),
            )
            bound = certifiability(len(cell.evaluation.forget_facts), probes, len(models), alpha)
            able.append(bound.certifiable)
            excluded += sum(holm([test.exact_p for test in tests], alpha).rejected)
            at_floor += sum(test.p_value <= bound.min_p for test in tests)
            p_values += [test.p_value for test in tests]
        rows.append(
            {"probes": probes, "cells that can exclude": Share.of(able)}
            | {"excluded": Share(excluded, len(p_values)), "at the smallest p": at_floor}
            | {"smallest p": min(p_values)}
        )
    reading = "Below a number of probes no candidate can be excluded at any effect size."
    return Table.of("fewer-probes", "The screen with fewer probes", reading, rows)


def survivors_table(study: PaperStudy) -> Table:
    """Return how far survivors lie from never-learned, and how many are equivalent to it (two
    one-sided tests) at the median delta_f and at each family's own."""
    alive = [(cell, cell.evaluation[n]) for cell in study.cells for n in study.survivors(cell)]
    gaps = [abs(model.median_gap) for _, model in alive]
    cells = [cell.id for cell, _ in alive]
    middle = Estimate.average(gaps, cells, "median")
    shares = in_units(gaps, [taught(cell) for cell, _ in alive], cells, "median")
    survivors = Share(len(alive), len(study.candidates()))
    rows: list[Row] = [
        {"quantity": "survivors", "count": survivors, "estimate": None, "margin": None},
        {"quantity": "median |gap|, nats", "count": None, "estimate": middle, "margin": None},
        {"quantity": "median |gap|, share of what was taught", "count": None, "estimate": shares}
        | {"margin": None},
    ]
    own = {family: noise.delta_f for family, noise in study.tolerances.items()}
    common = dict.fromkeys(study.results.families, float(np.median([*own.values()] or [0.0])))
    for title, margins in (("median delta_f", common), ("family's delta_f", own)) if own else ():
        tested = [(cell, model) for cell, model in alive if cell.family in margins]
        p_values = [tost(m.forget_deltas, m.probe_deltas, margins[c.family]) for c, m in tested]
        same = [p_value <= EQUIVALENCE_ALPHA for p_value in p_values]
        share = Estimate.average([*map(float, same)], [cell.id for cell, _ in tested])
        rows.append(
            {"quantity": f"equivalent at {title}", "count": Share.of(same)}
            | {"estimate": share, "margin": _spread(list(margins.values()))}
        )
    reading = "Surviving the screen is not equivalence to the never-learned level."
    return Table.of("survivors", "Survivors and equivalence", reading, rows)


# -- the absolute bar, and the noise of retraining -------------------------------------------------


def absolute_table(study: PaperStudy) -> Table:
    """Return reference, injected model and candidates by method under the absolute bar."""
    groups: dict[str, list[Candidate]] = {
        "reference": [(cell, _reference(cell).name) for cell in study.cells],
        "injected": [(cell, "injected") for cell in study.cells],
        **study.by_method(),
        "all candidates": study.candidates(),
    }
    rows: list[Row] = []
    for label, mine in groups.items():
        models = [cell.evaluation[name] for cell, name in mine]
        passed = [_passes(study, cell, name) for cell, name in mine]
        bars = [absolute_bar(model, ok) for model, ok in zip(models, passed)]
        rows.append(
            {"model": label}
            | {part: Share.of(bar[part] for bar in bars) for part in bars[0]}
            | {"retain NLL, median and range": _spread([m.need("retain_nll") for m in models])}
            | {"residual, median and range": _spread([m.need("residual") for m in models])}
        )
    limits = f"{RETAIN_LIMIT:g} and {RESIDUAL_LIMIT:g}"
    reading = f"How many pass the screen and limits of {limits} nats, the bar's own reference too. "
    reading += study.schedule
    return Table.of("absolute-bar", "The absolute bar", reading, rows)


def _passes(study: PaperStudy, cell: CellResult, name: str) -> bool:
    if cell.models[name].role is Role.CANDIDATE:
        return study.survives(cell, name)
    return not screen_alone(cell.evaluation[name], study.results.rules).excluded


def budget_table(study: PaperStudy) -> Table:
    """Return the injected model's own residual at every logged step, by family: re-acquisition is
    one run at a constant rate, so its log after k steps is that of a budget of k steps."""
    found: dict[tuple[str, int], list[float]] = {}
    for cell in study.cells:
        curve = cell.evaluation.injected.need_curve()
        for step, value in zip(curve.step[1:].tolist(), curve.residual[1:].tolist()):
            found.setdefault((cell.family, step), []).append(value)
    rows: list[Row] = [
        {"family": family, "steps": step, "residual, median and range": _spread(values)}
        | {"at most the limit": Share.of(v <= RESIDUAL_LIMIT for v in values)}
        for (family, step), values in found.items()
    ]
    reading = "The floor: the residual of the injected model itself, by re-acquisition budget. "
    reading += study.schedule
    return Table.of("budget", "Re-acquisition floor by budget", reading, rows)


def replication_table(study: PaperStudy) -> Table:
    """Return delta_f and epsilon_f of each family."""
    rows: list[Row] = [
        {"family": family, "replicated cells": len(study.draws[family])}
        | {"draws": sum(map(len, study.draws[family])), "delta_f": noise.delta_f}
        | {"epsilon_f retain": noise.epsilon_retain, "epsilon_f residual": noise.epsilon_residual}
        | {"deviation of first-chunk falls": noise.fall_deviation}
        for family, noise in study.tolerances.items()
    ]
    deltas = [noise.delta_f for noise in study.tolerances.values()]
    reading = "No cell has several reference draws, so there are no tolerances."
    if deltas:
        ends = " to ".join(dict.fromkeys(map(number, (min(deltas), max(deltas)))))
        reading = f"Retraining moves held-out deltas by {ends} nats, at percentile "
        reading += f"{PERCENTILE:g}; the median over families is "
        reading += f"{number(float(np.median(deltas)))}. {study.schedule}"
    return Table.of("replication", "Replication noise of the reference", reading, rows)


# -- known-label models, and the recalibrated bar --------------------------------------------------


BATTERIES = {
    "screen": "screen alone",
    "equivalence": "equivalence",
    "retain": "retain axis",
    "forward": "forward battery",
    "reacquired": "with re-acquisition",
    "relearning": "with re-acquisition and relearn veto",
}
"""In words. The forward battery is the screen with both axes and the gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One model under every battery; None where the cell lacks what the battery needs."""

    cell: CellResult
    label: str
    accepted: dict[str, bool | None]


def judge_known(study: PaperStudy) -> list[Judged]:
    """Return every known-label model, base, injected model and reference on the sealed pool, and
    every candidate of a suppression method on the evaluation pool."""
    judged = []
    for cell in study.cells:
        if (sealed := cell.known_label) is not None:
            for name in sealed:
                passes = not screen_alone(sealed[name], study.results.rules).excluded
                label = name.removeprefix("known-")
                judged.append(_judge(study, cell, sealed, name, label, passes))
        for name in (name for name in study.names[cell.id] if suppresses(cell, name)):
            label, passes = f"{cell.method(name)} candidates", study.survives(cell, name)
            judged.append(_judge(study, cell, cell.evaluation, name, label, passes))
    return judged


def _judge(
    study: PaperStudy, cell: CellResult, measures: CellMeasures, name: str, label: str, passes: bool
) -> Judged:
    accepted: dict[str, bool | None] = dict.fromkeys(BATTERIES) | {"screen": passes}
    noise, model = study.tolerances.get(cell.family), measures[name]
    if noise is not None:
        forward = damage_bar(measures, name, passes, noise, forward_only=True)
        accepted["equivalence"] = forward.forget_distance <= forward.delta_f
        accepted["retain"] = forward.retain_damage <= forward.delta_f
        accepted["forward"] = forward.clears
        if model.residual is not None and model.curve is not None:
            accepted["reacquired"] = damage_bar(measures, name, passes, noise, veto=False).clears
            accepted["relearning"] = damage_bar(measures, name, passes, noise).clears
    return Judged(cell, label, accepted)


def known_label_table(study: PaperStudy) -> Table:
    """Return how many known-label models each battery accepts, over all cells and by family."""
    judged, families = judge_known(study), study.results.families
    rows: list[Row] = []
    for label in dict.fromkeys(model.label for model in judged):
        for family in (None, *(families if len(families) > 1 else ())):
            mine = [m for m in judged if m.label == label and family in (None, m.cell.family)]
            row: Row = {"model": label, "family": family or "all"}
            for battery, words in BATTERIES.items():
                known = [m for m in mine if m.accepted[battery] is not None]
                events = [bool(m.accepted[battery]) for m in known]
                row[words] = Share.of(events)
                if battery in ("forward", "relearning"):
                    upper, by_architecture = study.upper_bounds(events, [m.cell for m in known])
                    row[f"{words}: upper bound"] = upper
                    row[f"{words}: by architecture"] = by_architecture
            rows.append(row)
    reading = f"Models accepted; only the reference should be. {study.schedule}"
    return Table.of("known-label", "Known-label models under the paper's bar", reading, rows)


def recalibrated_table(study: PaperStudy) -> Table:
    """Return the candidates that pass the recalibrated bar, by version, method and family."""
    rows: list[Row] = []
    for version in study.versions:
        for method in (None, *study.by_method()):
            row: Row = {"version": version.title, "method": method or "all methods"}
            for family in (None, *version.tolerances):
                row[family or "all families"] = version.share(method, family)
            picks = Share.of(pick is not None for pick in version.picks.values())
            rows.append(row | {"cells with a pick": None if method else picks})
    reading = "Without replicated references there is no recalibrated bar."
    if rows:
        first, veto, least, _ = (version.share() for version in study.versions)
        reading = (
            f"{first} candidates pass; {veto} with the relearn veto; {least} at the smallest "
            f"delta_f of all families. {study.schedule}"
        )
    return Table.of("recalibrated-bar", "The recalibrated bar", reading, rows)


def selection_table(study: PaperStudy) -> Table:
    """Return where the picks of every selector lie, on the cells in which the paper's bar picks,
    and how often a selector picks suppression, over all cells."""
    bars = study.versions[0].bars if study.versions else {}
    picks = {cell.id: study.selected(cell) for cell in study.cells}
    same = [cell for cell in study.cells if picks[cell.id]["recalibrated"] is not None]
    rows: list[Row] = []
    for selector in picks[study.cells[0].id]:
        # The certificate may be that of a candidate outside the paper's pool.
        chosen = [(cell, picks[cell.id][selector]) for cell in study.cells]
        picked = [(cell, name) for cell, name in chosen if name in study.names[cell.id]]
        mine = [(bars[c.id][n], c.id, c.evaluation[n]) for c, n in picked if c in same]
        axes = {
            "forget distance": [bar.forget_distance for bar, *_ in mine],
            "retain damage+": [max(0.0, bar.retain_damage) for bar, *_ in mine],
            "re-acquisition damage+": [max(0.0, bar.residual_damage or 0) for bar, *_ in mine],
            "trained-probe KL": [model.need("oracle_kl") for *_, model in mine],
        }
        cells = [cell for _, cell, _ in mine]
        events = [suppresses(cell, name) for cell, name in picked]
        upper, by_architecture = study.upper_bounds(events, [cell for cell, _ in picked])
        rows.append(
            {"selector": selector, "same cells": len(mine)}
            | {name: Estimate.average(values, cells) for name, values in axes.items()}
            | {"within delta_f": Share.of(bar.forget_distance <= bar.delta_f for bar, *_ in mine)}
            | {"suppression picked, all cells": Share.of(events), "upper bound": upper}
            | {"upper bound by architecture": by_architecture}
        )
    reading = "No candidate passes the recalibrated bar, so there is nothing to compare."
    if same:
        reading = f"Means where the recalibrated bar picks a candidate ({len(same)} of "
        reading += f"{len(study.cells)} cells); damages below 0 count as 0. {study.schedule}"
    return Table.of("selection", "Selection quality on the same cells", reading, rows)


def _reference(cell: CellResult) -> ModelMeasures:
    """Return the reference of the injected model's own draw."""
    return cell.evaluation[paper_references(cell.evaluation)[0]]


def _spread(values: Sequence[float]) -> Estimate:
    """Return median and range."""
    return Estimate(float(np.median(values)), float(min(values)), float(max(values)))


@canvas.figure()
def diagnostic(results: RunResults) -> canvas.Picture | None:
    """Return oracle-KL against held-out forget NLL, every candidate of every cell by method."""
    study = read_paper(results)
    if study is None:
        return None
    styles = canvas.method_styles(results.methods)
    entries = [canvas.key(style, method) for method, style in styles.items()]
    figure, (axes,) = canvas.sheet((5.6, 3.6), entries, left=0.8)
    for method, mine in study.by_method().items():
        models = [cell.evaluation[name] for cell, name in mine]
        where = [(model.forget_nll, model.need("oracle_kl")) for model in models]
        canvas.points(axes, where, styles[method], size=4 if len(study.candidates()) > 100 else 5)
    levels = [_reference(cell).forget_nll for cell in study.cells]
    axes.axvline(float(np.median(levels)), color=canvas.QUIET, linewidth=0.8, linestyle="--")
    every = [cell.evaluation[name].need("oracle_kl") for cell, name in study.candidates()]
    canvas.bend(axes, every, "y")
    axes.grid(visible=True)
    axes.set_xlabel("held-out forget NLL, nats (dashed: the reference)")
    axes.set_ylabel("trained-probe KL to the reference, nats")
    about = (
        "Each marker is a candidate. Further right it forgets more; lower it answers trained "
        "questions more like the reference."
    )
    title = "Forgetting against closeness to the reference"
    return canvas.Picture("diagnostic", title, methods_table(study).reading, about, figure)


# -- the page --------------------------------------------------------------------------------------


TABLES = (
    *(trained_probe_table, methods_table, fewer_probes_table, survivors_table),
    *(absolute_table, budget_table, replication_table),
    *(known_label_table, recalibrated_table, selection_table),
)


def paper_section(results: RunResults) -> list[Table | canvas.Picture]:
    """Return the paper's tables and its figure of a run that has its design; else nothing."""
    study = read_paper(results)
    if study is None:
        return []
    tables, picture = [table(study) for table in TABLES], diagnostic(results)
    return [*(table for table in tables if table.rows), *([picture] if picture else [])]
