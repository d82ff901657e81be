"""Our values of the paper's headline figures, computed from a run; the paper's own values are in
``results/paper/figures.csv`` under the same keys. A value is None where the run cannot answer.
"""

import csv
from pathlib import Path

import numpy as np

from palimpsest.analysis import absolute, panel, recalibrated, trained_probes
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.table import Estimate, Row, Share, Table, number, shown

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


def _by_first(table: Table) -> dict[object, Row]:
    """Return the rows of a table by the value in their first column."""
    return {row[table.columns[0]]: row for row in table.records()}


def _text(rows: dict[object, Row], key: object, column: str) -> str | None:
    """Return one value of a table as a person reads it; None where there is none."""
    value = rows.get(key, {}).get(column)
    return None if value is None else shown(value)


def _trained_probes(results: RunResults) -> Values:
    held = _by_first(trained_probes.trained_probe_table(results))
    base = held.get("base")
    rollback = None
    if results.cells:
        medians = [
            float(np.median([cell.evaluation[name].need("retain_nll") for cell in results.cells]))
            for name in ("base", "reference")
        ]
        rollback = " and ".join(map(number, medians))
    shares = [
        float(row["share excluded"])  # type: ignore[arg-type]
        for row in trained_probes.dichotomy_table(results).records()
        if row["method"] == "kl_reversion" or row["kind"] == "suppresses"
    ]
    points = trained_probes.diagnostic(results)
    pairs = trained_probes.matched_forgetting(points, results.rules.matched_within)
    median = base and f"{shown(base['median per fact'])}, n = {base['facts']}"
    return {
        "trained-probe-mean": _text(held, "base", "mean per fact"),
        "trained-probe-mean-probes": _text(held, "probes", "mean per fact"),
        "trained-probe-median": median,
        "rollback": rollback,
        "loss-based-excluded": f"{min(shares):.0%} to {max(shares):.0%}" if shares else None,
        "diagnostic": " and ".join(map(number, np.median(pairs, axis=0))) if pairs else None,
    }


def _screen(results: RunResults) -> Values:
    sizes = _by_first(trained_probes.sub_panel_table(results))
    alive = _by_first(trained_probes.survivors_table(results))
    share = alive.get("equivalent at median delta_f", {}).get("estimate")
    equivalent = None
    if isinstance(share, Estimate):
        equivalent = f"{share.value:.1%}"
        if share.low is not None and share.high is not None:
            equivalent += f" [{share.low:.1%}, {share.high:.1%}]"
    full = sizes.get(16)
    return {
        "n4-vacuous": _text(sizes, 4, "excluded"),
        "screen-excluded": _text(sizes, 16, "excluded"),
        "at-floor": full and f"{full['at the smallest p']}, {full['smallest p']:.2e}",
        "survivors": _text(alive, "survivors", "count"),
        "survivor-gap": _text(alive, "median |gap|, nats", "estimate"),
        "survivor-equivalent": equivalent,
    }


def _absolute(results: RunResults) -> Values:
    bars = _by_first(absolute.absolute_table(results))

    def failing(model: str, part: str) -> str | None:
        share = bars.get(model, {}).get(part)
        return shown(Share(share.total - share.count, share.total)) if share else None  # type: ignore[union-attr]

    budget = absolute.budget_table(results).records()
    first = {row["family"]: row for row in reversed(budget)}
    medians = {family: float(first[family]["median residual"]) for family in results.families}  # type: ignore[arg-type]
    closing = sum(value <= results.rules.residual_limit for value in medians.values())
    named = ", ".join(f"{family} {number(value)}" for family, value in medians.items())
    return {
        "injected-retain": failing("injected", "retain"),
        "injected-residual": failing("injected", "residual"),
        "reference-screen": _text(bars, "reference", "screen"),
        "reference-retain": _text(bars, "reference", "retain"),
        "reference-residual": _text(bars, "reference", "residual"),
        "reference-all": _text(bars, "reference", "all three"),
        "absolute-candidates": _text(bars, "all candidates", "all three"),
        "injected-retain-nll": _spread(bars, "retain NLL, median and range"),
        "floor": _spread(bars, "residual, median and range"),
        "shortest-budget": f"{closing}/{len(medians)} ({named})" if medians else None,
    }


def _replication(results: RunResults) -> Values:
    deltas = [tolerances.delta_f for tolerances in results.tolerances.values()]
    return {
        "delta-range": f"{number(min(deltas))} to {number(max(deltas))}" if deltas else None,
        "delta-median": number(float(np.median(deltas))) if deltas else None,
    }


def _panel(results: RunResults) -> Values:
    groups = panel.by_challenge(panel.challenge_panel(results))

    def accepted(label: str, battery: str, *, bound: bool = False) -> str | None:
        rate = panel.acceptance(groups.get(label, ()), battery, results.rules)
        text = shown(rate.share) if rate.share else None
        return f"{text} (upper bound {rate.upper:.1%})" if bound and text else text

    def rejected(label: str) -> str | None:
        rate = panel.acceptance(groups.get(label, ()), "screen", results.rules)
        return shown(Share(rate.total - rate.count, rate.total)) if rate.total else None

    path = sorted(label for label in groups if label.startswith("interpolation-"))
    along = [(f"{label.rpartition('-')[2]} %", accepted(label, "screen")) for label in path]
    return {
        "panel-injected": rejected("injected"),
        "panel-reference": accepted("reference", "screen"),
        "panel-interpolation": ", ".join(f"{share}: {text}" for share, text in along) or None,
        "panel-router": rejected("router"),
        "panel-suppression-screen": accepted("suppression", "screen"),
        "panel-suppression-forward": accepted("suppression", "forward", bound=True),
        "panel-suppression-relearning": accepted("suppression", "relearning", bound=True),
        "panel-embedding": accepted("embedding", "retain"),
    }


def _bar(results: RunResults) -> Values:
    selected = panel.residual_selects_suppression(results)
    values: Values = {"residual-selection": None}
    if selected.upper is not None and selected.upper_clustered is not None:
        values["residual-selection"] = (
            f"{selected.count}/{selected.total} (upper bound {selected.upper:.1%}, by architecture "
            f"{selected.upper_clustered:.1%})"
        )
    versions = recalibrated.versions(results)
    if not versions:
        return values
    bare, vetoed, smallest, _ = versions
    cells, total = len(bare.certified_cells), len(bare.verdicts)
    shares = {method: bare.share(method) for method in results.methods}
    noisiest = max(bare.tolerances, key=lambda name: bare.tolerances[name].delta_f)

    def inside(version: recalibrated.Certification) -> str:
        return f"{shown(version.share())} in {len(version.certified_cells)} cells"

    return values | {
        "certified": shown(bare.share()),
        "certified-cells": shown(Share(cells, total)),
        "abstaining": shown(Share(total - cells, total)),
        "certified-by-method": ", ".join(
            f"{method} {share.count / share.total:.0%}"
            for method, share in shares.items()
            if share.total
        ),
        "noisiest-family": f"{bare.share(None, noisiest).count}/{len(bare.passed)} ({noisiest})",
        "global-minimum": inside(smallest),
        "with-veto": inside(vetoed),
    }


SELECTORS = ("recalibrated certificate pick", "absolute-bar pick", "trained-probe best")


def _selection(results: RunResults) -> Values:
    axes = ("forget distance", "retain damage+", "round-trip damage+", "trained-probe KL")
    values: Values = {}
    for row in recalibrated.selection_table(results).records():
        key = f"selection-{str(row['selector']).split()[0]}"
        # The paper's own version, without the veto, comes first; fallbacks are no part of it.
        if key not in values and row["selector"] in SELECTORS:
            means = [mean for axis in axes if isinstance(mean := row[axis], Estimate)]
            values[key] = ", ".join(number(mean.value) for mean in means) or None
    return values


def _spread(rows: dict[object, Row], column: str) -> str | None:
    value = rows.get("injected", {}).get(column)
    if not isinstance(value, Estimate) or value.low is None or value.high is None:
        return None
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"
