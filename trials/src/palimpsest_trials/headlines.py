"""Our values of the paper's headline figures, computed from a study; the paper's own values are in
``results/paper/figures.csv`` under the same keys. A value is None where the study cannot answer.
"""

import csv
from pathlib import Path

import numpy as np

from palimpsest.paper import tables
from palimpsest.paper.bars import RESIDUAL_LIMIT
from palimpsest.paper.study import PaperStudy
from palimpsest.report.table import Estimate, Row, Share, Table, number, shown

PAPER = Path(__file__).parents[3] / "results" / "paper" / "figures.csv"
Values = dict[str, str | None]


def paper_figures() -> list[dict[str, str]]:
    """Return the paper's figures: ``key``, ``figure`` (what it is) and ``paper`` (its value)."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ours(study: PaperStudy) -> Values:
    """Return our value of every figure, by key."""
    parts = (_trained_probes, _screen, _absolute, _known_label, _bar, _selection)
    return {key: value for part in parts for key, value in part(study).items()}


def _rows(table: Table, key: str | None = None) -> dict[object, Row]:
    """Return the rows of a table by the value in their first column, or in ``key``."""
    return {row[key or table.columns[0]]: row for row in table.records()}


def _text(rows: dict[object, Row], key: object, column: str) -> str | None:
    """Return one value of a table as a person reads it; None where there is none."""
    value = rows.get(key, {}).get(column)
    return None if value is None else shown(value)


def _trained_probes(study: PaperStudy) -> Values:
    held, methods = _rows(tables.trained_probe_table(study)), _rows(tables.methods_table(study))
    base = held.get("base")
    levels = [
        float(np.median([cell.evaluation[name].need("retain_nll") for cell in study.cells]))
        for name in ("base", "reference")
    ]
    excluded = [
        row["excluded by the screen"].count / row["excluded by the screen"].total
        for method, row in methods.items()
        if method == "kl_reversion" or row["author's aim"] == "suppresses"
    ]
    pairs = tables.matched_forgetting(study)
    return {
        "trained-probe-mean": _text(held, "base", "mean per fact"),
        "trained-probe-mean-probes": _text(held, "probes", "mean per fact"),
        "trained-probe-median": f"{shown(base['median per fact'])}, n = {base['facts']}"
        if base
        else None,
        "rollback": " and ".join(map(number, levels)),
        "loss-based-excluded": f"{min(excluded):.0%} to {max(excluded):.0%}" if excluded else None,
        "diagnostic": " and ".join(map(number, np.median(pairs, axis=0))) if pairs else None,
    }


def _screen(study: PaperStudy) -> Values:
    sizes, alive = _rows(tables.fewer_probes_table(study)), _rows(tables.survivors_table(study))
    share = alive.get("equivalent at median delta_f", {}).get("estimate")
    full = sizes.get(16)
    return {
        "n4-vacuous": _text(sizes, 4, "excluded"),
        "screen-excluded": _text(sizes, 16, "excluded"),
        "at-floor": f"{full['at the smallest p']}, {full['smallest p']:.2e}" if full else None,
        "survivors": _text(alive, "survivors", "count"),
        "survivor-gap": _text(alive, "median |gap|, nats", "estimate"),
        "survivor-equivalent": shown(share, ".1%") if isinstance(share, Estimate) else None,
    }


def _absolute(study: PaperStudy) -> Values:
    bars = _rows(tables.absolute_table(study))

    def failing(model: str, part: str) -> str:
        share = bars[model][part]
        return shown(Share(share.total - share.count, share.total))

    first: dict[str, float] = {}
    for row in tables.budget_table(study).records():
        first.setdefault(row["family"], row["residual, median and range"].value)
    closing = Share.of(value <= RESIDUAL_LIMIT for value in first.values())
    named = ", ".join(f"{family} {number(value)}" for family, value in first.items())
    deltas = [noise.delta_f for noise in study.tolerances.values()]
    return {
        "injected-retain": failing("injected", "retain"),
        "injected-residual": failing("injected", "residual"),
        "reference-screen": _text(bars, "reference", "screen"),
        "reference-retain": _text(bars, "reference", "retain"),
        "reference-residual": _text(bars, "reference", "residual"),
        "reference-all": _text(bars, "reference", "all three"),
        "absolute-candidates": _text(bars, "all candidates", "all three"),
        "injected-retain-nll": _text(bars, "injected", "retain NLL, median and range"),
        "floor": _text(bars, "injected", "residual, median and range"),
        "shortest-budget": f"{shown(closing)} ({named})",
        "delta-range": f"{number(min(deltas))} to {number(max(deltas))}" if deltas else None,
        "delta-median": number(float(np.median(deltas))) if deltas else None,
    }


def _known_label(study: PaperStudy) -> Values:
    table = tables.known_label_table(study)
    rows = {row["model"]: row for row in table.records() if row["family"] == "all"}
    words = tables.BATTERIES

    def bounded(battery: str) -> str | None:
        row = rows.get("suppression", {})
        upper = row.get(f"{words[battery]}: upper bound")
        return None if upper is None else f"{shown(row[words[battery]])} (upper bound {upper:.1%})"

    def rejected(model: str) -> str | None:
        share = rows.get(model, {}).get(words["screen"])
        return None if share is None else shown(Share(share.total - share.count, share.total))

    path = sorted(str(model) for model in rows if str(model).startswith("interpolation-"))
    along = [f"{m.rpartition('-')[2]} %: {_text(rows, m, words['screen'])}" for m in path]
    return {
        "panel-injected": rejected("injected"),
        "panel-reference": _text(rows, "reference", words["screen"]),
        "panel-interpolation": ", ".join(along) or None,
        "panel-router": rejected("router"),
        "panel-suppression-screen": _text(rows, "suppression", words["screen"]),
        "panel-suppression-forward": bounded("forward"),
        "panel-suppression-relearning": bounded("relearning"),
        "panel-embedding": _text(rows, "embedding", words["retain"]),
    }


def _bar(study: PaperStudy) -> Values:
    residual = _rows(tables.selection_table(study))["residual"]
    values: Values = {
        "residual-selection": f"{shown(residual['suppression picked, all cells'])} (upper bound "
        f"{residual['upper bound']:.1%}, by architecture "
        f"{residual['upper bound by architecture']:.1%})"
    }
    if not study.versions:
        return values
    bare, vetoed, smallest, _ = study.versions
    picks = [Share.of(pick is not None for pick in version.picks.values())
             for version in (bare, vetoed, smallest)]  # fmt: skip
    noisiest = max(bare.tolerances, key=lambda family: bare.tolerances[family].delta_f)
    shares = {method: bare.share(method) for method in study.by_method()}
    return values | {
        "certified": shown(bare.share()),
        "certified-cells": shown(picks[0]),
        "abstaining": shown(Share(picks[0].total - picks[0].count, picks[0].total)),
        "certified-by-method": ", ".join(
            f"{method} {share.count / share.total:.0%}" for method, share in shares.items()
        ),
        "noisiest-family": f"{bare.share(None, noisiest).count}/{bare.share().count} ({noisiest})",
        "global-minimum": f"{shown(smallest.share())} in {picks[2].count} cells",
        "with-veto": f"{shown(vetoed.share())} in {picks[1].count} cells",
    }


def _selection(study: PaperStudy) -> Values:
    rows = _rows(tables.selection_table(study))
    axes = ("forget distance", "retain damage+", "re-acquisition damage+", "trained-probe KL")
    names = {"recalibrated": "recalibrated", "absolute-bar": "absolute"}
    names["trained-probe"] = "trained-probe"
    values: Values = {}
    for key, selector in names.items():
        means = [mean for axis in axes if isinstance(mean := rows[selector][axis], Estimate)]
        values[f"selection-{key}"] = ", ".join(number(mean.value) for mean in means) or None
    return values
