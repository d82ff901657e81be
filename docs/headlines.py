"""Our values of the paper's headline figures, computed from a run; the paper's own values are in
``results/paper/figures.csv`` under the same keys. A value is None where the run cannot answer.
"""

import csv
from pathlib import Path

import numpy as np

from palimpsest.analysis import absolute, panel, recalibration, trained_probe
from palimpsest.analysis.replication import median_delta
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.subpanels import sub_panels
from palimpsest.analysis.survivors import survivors
from palimpsest.report.formats import Estimate, Share, number, shown

PAPER = Path(__file__).parents[1] / "results" / "paper" / "figures.csv"
Values = dict[str, str | None]


def paper_figures() -> list[dict[str, str]]:
    """Return the paper's figures: ``key``, ``figure`` (what it is) and ``paper`` (its value)."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ours(results: RunResults) -> Values:
    """Return our value of every figure, by key."""
    return {
        **_trained_probes(results),
        **_screen(results),
        **_absolute(results),
        **_replication(results),
        **_panel(results),
        **_bar(results),
        **_selection(results),
    }


def _trained_probes(results: RunResults) -> Values:
    held = {level: trained_probe.held_out(results, level) for level in trained_probe.LEVELS}
    base, probes = held["base"], held["probes"]
    rollback = None
    if results.cells:
        medians = [
            float(np.median([cell.evaluation[name].need("retain_nll") for cell in results.cells]))
            for name in ("base", "reference")
        ]
        rollback = " and ".join(map(number, medians))
    shares = [
        one.excluded / one.candidates
        for one in trained_probe.by_method(results)
        if one.method == "kl_reversion" or one.method in results.of_kind("suppresses")
    ]
    matched = trained_probe.matched_forgetting(trained_probe.diagnostic(results))
    both = matched.restoration is not None and matched.suppression is not None
    return {
        "trained-probe-mean": base and _estimate(base.interval, base.mean),
        "trained-probe-mean-probes": probes and _estimate(probes.interval, probes.mean),
        "trained-probe-median": base and f"{number(base.median)}, n = {base.facts}",
        "rollback": rollback,
        "loss-based-excluded": f"{min(shares):.0%} to {max(shares):.0%}" if shares else None,
        "diagnostic": f"{number(matched.restoration)} and {number(matched.suppression)}"
        if both
        else None,
    }


def _screen(results: RunResults) -> Values:
    panels = {one.probes: one for one in sub_panels(results)}
    four, sixteen = panels.get(4), panels.get(16)
    alive = survivors(results)
    equivalent = None
    if alive.shares and alive.shares[0].total:
        one = alive.shares[0]
        equivalent = f"{one.equivalent / one.total:.1%}"
        if one.share is not None:
            equivalent += f" [{one.share.low:.1%}, {one.share.high:.1%}]"
    return {
        "n4-vacuous": four and shown(Share(four.excluded, four.candidates)),
        "screen-excluded": sixteen and shown(Share(sixteen.excluded, sixteen.candidates)),
        "at-floor": sixteen and f"{sixteen.at_floor}, {sixteen.smallest_p:.2e}",
        "survivors": _share(alive.survivors, alive.candidates),
        "survivor-gap": _estimate(alive.gap, alive.median_gap),
        "survivor-equivalent": equivalent,
    }


def _absolute(results: RunResults) -> Values:
    audited = absolute.audit_models(results)
    reference, injected = (
        absolute.components([row.bar for row in audited if row.model == name])
        for name in ("reference", "injected")
    )
    everyone = absolute.components(absolute.candidate_bars(results))
    retain = [row.retain_nll for row in audited if row.model == "injected"]
    points = absolute.budget_curve(results)
    first = [next(one for one in points if one.family == family) for family in results.families]
    closing = sum(one.residual.median <= results.rules.residual_limit for one in first)
    named = ", ".join(f"{one.family} {number(one.residual.median)}" for one in first)
    return {
        "injected-retain": _share(injected.total - injected.retain, injected.total),
        "injected-residual": _share(injected.total - injected.residual, injected.total),
        "reference-screen": _share(reference.screen, reference.total),
        "reference-retain": _share(reference.retain, reference.total),
        "reference-residual": _share(reference.residual, reference.total),
        "reference-all": _share(reference.all, reference.total),
        "absolute-candidates": _share(everyone.all, everyone.total),
        "injected-retain-nll": _spread(absolute.summary(retain) if retain else None),
        "floor": _spread(absolute.floors(results)),
        "shortest-budget": f"{closing}/{len(first)} ({named})" if first else None,
    }


def _replication(results: RunResults) -> Values:
    deltas = [one.delta_f for one in results.tolerances.values()]
    middle = median_delta(results.tolerances)
    return {
        "delta-range": f"{number(min(deltas))} to {number(max(deltas))}" if deltas else None,
        "delta-median": None if middle is None else number(middle),
    }


def _panel(results: RunResults) -> Values:
    rows = panel.challenge_panel(results)

    def accepted(name: str, axis: str, *, bound: bool = False) -> str | None:
        one = panel.acceptance(rows, results, name, axis)
        text = _share(one.count, one.total)
        return f"{text} (upper bound {one.upper:.1%})" if bound and text else text

    def rejected(name: str) -> str | None:
        one = panel.acceptance(rows, results, name, "screen")
        return _share(one.total - one.count, one.total)

    path = [name for name in panel.challenges(rows) if name.startswith("panel:interpolate-")]
    path.sort(key=lambda name: float(name.rpartition("-")[2]))
    along = [(name.rpartition("-")[2], accepted(name, "screen")) for name in path]
    attack = "panel:suppression"
    return {
        "panel-injected": rejected("injected"),
        "panel-reference": accepted("reference", "screen"),
        "panel-interpolation": ", ".join(f"{share}: {text}" for share, text in along) or None,
        "panel-router": rejected("panel:router"),
        "panel-suppression-screen": accepted(attack, "screen"),
        "panel-suppression-forward": accepted(attack, "forward", bound=True),
        "panel-suppression-relearning": accepted(attack, "relearning", bound=True),
        "panel-embedding": accepted("panel:embedding", "retain"),
    }


def _bar(results: RunResults) -> Values:
    selected = recalibration.residual_selects_suppression(results)
    values: Values = {"residual-selection": None}
    if selected.upper is not None and selected.upper_clustered is not None:
        values["residual-selection"] = (
            f"{selected.count}/{selected.total} (upper bound {selected.upper:.1%}, by architecture "
            f"{selected.upper_clustered:.1%})"
        )
    versions = recalibration.versions(results)
    if not versions:
        return values
    bare, vetoed, smallest, _ = versions
    cells = len(bare.certified_cells)
    totals = {
        method: sum(len(one.of_method(method)) for one in results.cells if one.id in bare.verdicts)
        for method in results.methods
    }
    noisiest = max(bare.tolerances, key=lambda name: bare.tolerances[name].delta_f)

    def inside(one: recalibration.Certification) -> str:
        passed = shown(Share(len(one.certified), one.candidates))
        return f"{passed} in {len(one.certified_cells)} cells"

    return values | {
        "certified": shown(Share(len(bare.certified), bare.candidates)),
        "certified-cells": shown(Share(cells, bare.cells)),
        "abstaining": shown(Share(bare.cells - cells, bare.cells)),
        "certified-by-method": ", ".join(
            f"{method} {bare.count(method=method) / total:.0%}"
            for method, total in totals.items()
            if total
        ),
        "noisiest-family": f"{bare.count(family=noisiest)}/{len(bare.certified)} ({noisiest})",
        "global-minimum": inside(smallest),
        "with-veto": inside(vetoed),
    }


def _selection(results: RunResults) -> Values:
    versions = recalibration.versions(results)
    quality = recalibration.selection_quality(results, versions[0]) if versions else ()
    axes = ("forget_distance", "retain_damage", "residual_damage", "oracle_kl")
    return {
        f"selection-{one.selector.split()[0]}": ", ".join(
            number(value) for axis in axes if (value := one.mean(axis)) is not None
        )
        or None
        for one in quality
    }


def _share(count: int, total: int) -> str | None:
    return shown(Share(count, total)) if total else None


def _estimate(interval: object, value: float | None) -> str | None:
    found = Estimate.of(interval, value)  # type: ignore[arg-type]
    return None if found is None else shown(found)


def _spread(one: absolute.Summary | None) -> str | None:
    return one and f"{number(one.median)} ({number(one.low)} to {number(one.high)})"
