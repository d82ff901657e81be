"""The paper's headline figures beside ours, for any number of runs.

Each run or archive named in the command becomes a column of ``results/fourth-edition/figures.csv``
and of the tables in ``docs/results.md`` and ``results/details.md``, in this order. A name without a
place keeps the column it has; columns that are not named go. The paper's own values are in
``results/paper/figures.csv`` under the same keys. Distances on held-out forget facts are given in
nats and, after a semicolon, in percent of what was taught: of how far below base the injected model
lies on these facts in the same cell. Brackets are limits of a bootstrap over cells, which one cell
does not have.

    python -m palimpsest_trials.headlines pocket=RUN stories15M=RUN SmolLM2=ARCHIVE.tar.xz
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

import numpy as np

from palimpsest.errors import InputError
from palimpsest.paper import tables
from palimpsest.paper.bars import RESIDUAL_LIMIT, paper_references
from palimpsest.paper.study import Candidate, PaperStudy, read_paper, taught
from palimpsest.report.results import read_run
from palimpsest.report.table import Estimate, Row, Share, Table, number, shown
from palimpsest_trials.archive import unpack
from palimpsest_trials.edition import COUNTED, ROOT, lines, publish, read, write

PAPER = ROOT / "results" / "paper" / "figures.csv"
CSV = "figures.csv"
ADEQUATE_SHARE = 237 / 820
"""Of the paper's candidates, by its 948 facts at four a candidate; it does not state its limit."""
SHORT = (
    *("design", "taught", "adequate", "trained-probe-mean", "trained-probe-mean-probes"),
    *("trained-probe-mean-reference", "trained-probe-best", "screen-excluded", "survivor-gap"),
    *("reference-all", "delta-median", "panel-router", "panel-suppression-screen"),
    *("panel-suppression-relearning", "residual-selection", "certified", "certified-cells"),
)
"""Keys of the figures in ``docs/results.md``; ``results/details.md`` has all."""
Values = dict[str, str | None]


def main(arguments: Sequence[str]) -> None:
    """Write the CSV file and put its table into the page."""
    stored = {row["key"]: row for row in read(CSV)} if (COUNTED / CSV).is_file() else {}
    columns: dict[str, Values] = {}
    for name, _, place in (argument.partition("=") for argument in arguments):
        if not place and any(name not in row for row in stored.values()):
            raise InputError(f"{name}: no such column is stored; expected {name}=RUN")
        kept: Values = {key: row[name] for key, row in stored.items() if not place}
        columns[name] = ours(read_place(Path(place))) if place else kept
    rows = (
        (figure["key"], *(values.get(figure["key"]) or "" for values in columns.values()))
        for figure in paper_figures()
    )
    write(CSV, ("key", *columns), rows)
    publish(page_tables())


def read_place(place: Path) -> PaperStudy:
    """Return the study of a run folder or of an archive of one."""
    with TemporaryDirectory() as folder:
        if place.is_file():
            unpack(place, Path(folder))
            (place,) = Path(folder).iterdir()
        study = read_paper(read_run(place))
    if study is None:
        raise InputError(f"{place}: has not the paper's design; expected a study of its methods")
    return study


def page_tables() -> dict[str, str]:
    """Return the whole table and its short form by the names of their marks, from the CSV files."""
    found = {row.pop("key"): row for row in read(CSV)}
    names = list(next(iter(found.values())))
    rows = {
        figure["key"]: (
            figure["figure"],
            figure["paper"],
            *(found[figure["key"]][n] or "–" for n in names),
        )
        for figure in paper_figures()
    }
    short, head = [rows[key] for key in SHORT], ("figure", "paper", *names)
    tables = {"figures": [*rows.values()], "headlines": short}
    return {mark: lines(head, some, left=2 + len(names)) for mark, some in tables.items()}


def paper_figures() -> list[dict[str, str]]:
    """Return the paper's figures: ``key``, ``figure`` (what it is) and ``paper`` (its value)."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ours(study: PaperStudy) -> Values:
    """Return our value of every figure, by key; None where the study cannot answer."""
    parts = (_design, _trained_probes, _screen, _absolute, _known_label, _bar, _selection)
    return {key: value for part in parts for key, value in part(study).items()}


def _both(nats: Estimate | None, share: Estimate | None) -> str | None:
    """Return a distance in nats and in percent of what was taught."""
    if nats is None or share is None:
        return None if nats is None else shown(nats)
    return f"{shown(nats)}; {_percent(share)}"


def _percent(share: Estimate, form: str = ".0%") -> str:
    return shown(share, form).replace(" %", "%")


def _forget_distance(candidates: Sequence[Candidate]) -> str | None:
    """Return how far candidates lie from the same-draw reference on held-out forget facts."""
    distances, cells = [], [cell.id for cell, _ in candidates]
    for cell, name in candidates:
        of = cell.evaluation
        anchor = of[paper_references(of)[0]].median_forget_delta
        distances.append(abs(of[name].median_forget_delta - anchor))
    shares = tables.in_units(distances, [taught(cell) for cell, _ in candidates], cells)
    return _both(Estimate.average(distances, cells), shares)


def _nearest(study: PaperStudy) -> str | None:
    """Return what as many candidates as the paper rates adequate, those of smallest trained-probe
    KL beside the injected model's, score on held-out forget facts below base."""

    def relative(candidate: Candidate) -> float:
        cell, name = candidate
        of = cell.evaluation
        return of[name].need("oracle_kl") / of.injected.need("oracle_kl")

    ranked = sorted(study.candidates(), key=relative)
    near = ranked[: round(ADEQUATE_SHARE * len(ranked))]
    facts = [(cell, delta) for cell, name in near for delta in cell.evaluation[name].forget_deltas]
    deltas, cells = [float(delta) for _, delta in facts], [cell.id for cell, _ in facts]
    shares = tables.in_units(deltas, [taught(cell) for cell, _ in facts], cells)
    return _both(Estimate.average(deltas, cells), shares)


def _ranged(estimate: Estimate) -> str:
    """Return a median with its range, where several cells have one."""
    ends = _ends([estimate.low or 0.0, estimate.high or 0.0])
    return f"{number(estimate.value)} ({ends})" if " to " in ends else ends


def _ends(values: Sequence[float], form: str = ".3f") -> str:
    """Return the smallest and the largest value, or the one that both are."""
    return " to ".join(dict.fromkeys(format(end(values), form) for end in (min, max)))


def _design(study: PaperStudy) -> Values:
    count, drawn = len(study.cells), sum(bool(c.summary.get("beacon")) for c in study.cells)
    schedule = "one fixed AdamW" if not drawn else "drawn" if drawn == count else "of both kinds"
    cells = [cell.id for cell in study.cells]
    return {
        "design": f"{count}, {len(study.candidates())}, {schedule}",
        "taught": shown(Estimate.average([taught(cell) for cell in study.cells], cells)),
        "adequate": shown(Share(len(study.adequate()), len(study.candidates()))),
    }


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
    means = {
        level: _both(row["mean per fact"], row["mean, share of what was taught"])
        for level, row in held.items()
    }
    best = [(cell, study.selected(cell)["trained-probe"]) for cell in study.cells]
    return {
        "trained-probe-mean": means.get("base"),
        "trained-probe-mean-probes": means.get("probes"),
        "trained-probe-mean-reference": means.get("reference"),
        "trained-probe-mean-nearest": _nearest(study),
        "trained-probe-best": _forget_distance([(cell, name) for cell, name in best if name]),
        "trained-probe-median": f"{shown(base['median per fact'])}, n = {base['facts']}"
        if base
        else None,
        "rollback": " and ".join(map(number, levels)),
        "loss-based-excluded": _ends(excluded, ".0%") if excluded else None,
        "diagnostic": " and ".join(map(number, np.median(pairs, axis=0))) if pairs else None,
    }


def _screen(study: PaperStudy) -> Values:
    sizes, alive = _rows(tables.fewer_probes_table(study)), _rows(tables.survivors_table(study))
    share = alive.get("equivalent at median delta_f", {}).get("estimate")
    full = sizes.get(16)
    gaps = ("median |gap|, nats", "median |gap|, share of what was taught")
    return {
        "n4-vacuous": _text(sizes, 4, "excluded"),
        "screen-excluded": _text(sizes, 16, "excluded"),
        "at-floor": f"{full['at the smallest p']}, {full['smallest p']:.2e}" if full else None,
        "survivors": _text(alive, "survivors", "count"),
        "survivor-gap": _both(*(alive[quantity]["estimate"] for quantity in gaps)),
        "survivor-equivalent": _percent(share, ".1%") if isinstance(share, Estimate) else None,
    }


def _absolute(study: PaperStudy) -> Values:
    bars = _rows(tables.absolute_table(study))

    def failing(model: str, part: str) -> str:
        share = bars[model][part]
        return shown(Share(share.total - share.count, share.total))

    first: dict[str, Row] = {}
    for row in tables.budget_table(study).records():
        first.setdefault(row["family"], row)
    floors = {family: row["residual, median and range"].value for family, row in first.items()}
    steps = " and ".join(dict.fromkeys(str(row["steps"]) for row in first.values()))
    closing = Share.of(value <= RESIDUAL_LIMIT for value in floors.values())
    named = ", ".join(f"{family} {number(value)}" for family, value in floors.items())
    deltas = [noise.delta_f for noise in study.tolerances.values()]
    units = [
        noise.delta_f / fmean(taught(cell) for cell in study.cells if cell.family == family)
        for family, noise in study.tolerances.items()
    ]
    return {
        "injected-retain": failing("injected", "retain"),
        "injected-residual": failing("injected", "residual"),
        "reference-screen": _text(bars, "reference", "screen"),
        "reference-retain": _text(bars, "reference", "retain"),
        "reference-residual": _text(bars, "reference", "residual"),
        "reference-all": _text(bars, "reference", "all three"),
        "absolute-candidates": _text(bars, "all candidates", "all three"),
        "injected-retain-nll": _ranged(bars["injected"]["retain NLL, median and range"]),
        "floor": _ranged(bars["injected"]["residual, median and range"]),
        "shortest-budget": f"{shown(closing)} ({named}; {steps} steps)",
        "delta-range": f"{_ends(deltas)}; {_ends(units, '.0%')}" if deltas else None,
        "delta-median": f"{number(median(deltas))}; {median(units):.0%}" if deltas else None,
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

    # They are called after the share of the injected weights, the paper's after the reference's.
    path = sorted((str(m) for m in rows if str(m).startswith("interpolation-")), reverse=True)
    along = [
        f"{1 - int(m.rpartition('-')[2]) / 100:g}: {_text(rows, m, words['screen'])}" for m in path
    ]
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
    values: Values = {}
    if residual["upper bound"] is not None:
        values["residual-selection"] = (
            f"{shown(residual['suppression picked, all cells'])} (upper bound "
            f"{residual['upper bound']:.1%}, by architecture "
            f"{residual['upper bound by architecture']:.1%})"
        )
    if not study.versions:
        return values
    bare, vetoed, smallest, _ = study.versions
    picks = [Share.of(pick is not None for pick in version.picks.values())
             for version in (bare, vetoed, smallest)]  # fmt: skip
    noisiest = max(bare.tolerances, key=lambda family: bare.tolerances[family].delta_f)
    loudest = Share(bare.share(None, noisiest).count, bare.share().count)
    shares = {method: bare.share(method) for method in study.by_method()}
    return values | {
        "certified": shown(bare.share()),
        "certified-cells": shown(picks[0]),
        "abstaining": shown(Share(picks[0].total - picks[0].count, picks[0].total)),
        "certified-by-method": ", ".join(
            f"{method} {share.count / share.total:.0%}"
            for method, share in shares.items()
            if share.total
        ),
        "noisiest-family": f"{shown(loudest)} ({noisiest})" if loudest.total else None,
        "global-minimum": f"{shown(smallest.share())} in {picks[2].count} cells",
        "with-veto": f"{shown(vetoed.share())} in {picks[1].count} cells",
    }


def _selection(study: PaperStudy) -> Values:
    rows = _rows(tables.selection_table(study))
    picks = {cell.id: study.selected(cell) for cell in study.cells}
    same = [cell for cell in study.cells if picks[cell.id]["recalibrated"]]
    axes = ("retain damage+", "re-acquisition damage+", "trained-probe KL")
    names = {"recalibrated": "recalibrated", "absolute-bar": "absolute"}
    names["trained-probe"] = "trained-probe"
    values: Values = {}
    for key, selector in names.items():
        picked = [(cell, name) for cell in same if (name := picks[cell.id][selector])]
        means = [mean for axis in axes if isinstance(mean := rows[selector][axis], Estimate)]
        parts = [_forget_distance(picked), *(number(mean.value) for mean in means)]
        values[f"selection-{key}"] = ", ".join(part for part in parts if part) or None
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
