"""Does this method restore? One line per method, over the cells of one run or of several.

In every cell a method is represented by its best candidate: one that passes if there is any, then
the one that lies as far from retrainings as the smallest mixture. That is the
best of a method's settings, chosen after the fact; the claim about a method by ranks is therefore
made for every setting by itself and corrected over all settings (Holm), and a method is
distinguishable from retraining when every one of its settings is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from palimpsest.errors import InputError, PalimpsestError
from palimpsest.report.results import CellResult, RunResults, read_run, refuse_damage
from palimpsest.report.table import P_VALUE, Estimate, Row, Share, Table
from palimpsest.stats.axes import axis
from palimpsest.stats.controls import reference_bag
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.ranksum import RankSum, rank_sum
from palimpsest.stats.verdict import Finding, Verdict
from palimpsest.stats.words import certified_cells

Runs = Mapping[str, RunResults]
"""The runs compared, by a name of their own."""
MethodSetting = tuple[str, str]
"""A method and the name of a candidate, with the knobs that two of this name differ in."""
FRESH = "fresh retraining"
FORMS = {
    **dict.fromkeys(("p", "p (Holm)", "p over cells"), P_VALUE),
    **dict.fromkeys(("worst axis, sd", "expected rank sum"), ".1f"),
    "distance": ".0%",
    "cost, retrainings": ".2f",
}


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A method in one cell: its candidates that were compared, the best first."""

    run: str
    cell: CellResult
    findings: tuple[Finding, ...]

    @property
    def best(self) -> Finding:
        return self.findings[0]


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """A method over the cells in which it was tried."""

    method: str
    entries: tuple[Entry, ...]
    """Of the cells in which a candidate was compared."""
    settings: int
    """How many settings were tried, the best of which stands for it in each cell."""
    failed: int
    """In how many further cells it failed: no candidate could be made or measured."""

    @property
    def cells(self) -> int:
        """In how many cells it was tried."""
        return len(self.entries) + self.failed

    @property
    def restores(self) -> Share:
        """In how many cells a candidate passes: no test tells it from a retraining."""
        return Share(sum(entry.best.clears for entry in self.entries), self.cells)

    @property
    def labels(self) -> list[tuple[str, int]]:
        """The labels of its best candidates, the most frequent first."""
        found = Counter(entry.best.label for entry in self.entries)
        return (found + Counter({"failed": self.failed})).most_common()

    @property
    def label(self) -> str:
        """The most frequent label; all that are equally frequent."""
        most = self.labels[0][1]
        return " / ".join(label for label, number in self.labels if number == most)

    @property
    def axes(self) -> tuple[str, ...]:
        """The two most frequent worst axes of its best candidates."""
        compared = [entry.best.comparison for entry in self.entries]
        names = [comparison.worst.axis for comparison in compared if comparison is not None]
        return tuple(axis(name).title for name, _ in Counter(names).most_common(2))

    @property
    def setting(self) -> str | None:
        """The most frequent of its best candidates."""
        found = Counter(entry.best.name for entry in self.entries).most_common(1)
        return found[0][0] if found else None

    @property
    def cost(self) -> float | None:
        """Median cost of its best candidates in retrainings; None where none was recorded."""
        return median_cost((entry.cell, entry.best.name) for entry in self.entries)

    @property
    def scale(self) -> float | None:
        """Median over cells: as far from retrainings as a mixture of this share; infinite beyond
        the injected model, None where no cell has a scale."""
        scales = [entry.best.scale for entry in self.entries]
        return middle([scale.share for scale in scales if scale is not None])

    @property
    def distances(self) -> list[float]:
        """Of its best candidates, in standard deviations of retraining."""
        return [distance(entry.best) or 0.0 for entry in self.entries]


def middle(shares: Sequence[float]) -> float | None:
    """Return the upper median, which is a share even where some are infinite; None of none."""
    return sorted(shares)[len(shares) // 2] if shares else None


def distance(finding: Finding) -> float | None:
    """Return how far a candidate lies from retraining on its worst axis, in standard deviations;
    None where it was not compared, or retrainings do not vary there."""
    sd = None if finding.comparison is None else finding.comparison.worst.sd
    return None if sd is None else abs(sd)


def closeness(finding: Finding) -> tuple[bool, float, float]:
    """Return the order of candidates: those that pass, then by the scale, then by the worst axis,
    which alone orders them where the audit has no scale."""
    share = math.inf if finding.scale is None else finding.scale.share
    return not finding.clears, share, distance(finding) or math.inf


def standings(runs: Runs) -> list[Standing]:
    """Return every method that was compared or failed in some cell, the nearest to retraining
    first."""
    found: dict[str, list[Entry]] = {}
    failed: Counter[str] = Counter()
    tried: dict[str, set[str]] = {}
    for run, results in runs.items():
        for cell in results.cells:
            made = {cell.method(name) for name in cell.candidates}
            failed.update({cell.method(name) for name in cell.failed} - made)
            for name in (*cell.candidates, *cell.failed):
                tried.setdefault(cell.method(name), set()).add(name)
        for cell, verdict in results.judged:
            groups: dict[str, list[Finding]] = {}
            for finding in verdict.findings:
                if distance(finding) is not None:
                    groups.setdefault(cell.method(finding.name), []).append(finding)
            for method, mine in groups.items():
                mine.sort(key=closeness)
                found.setdefault(method, []).append(Entry(run, cell, tuple(mine)))
    several = [
        Standing(method, tuple(found.get(method, ())), len(tried[method]), failed[method])
        for method in dict.fromkeys([*found, *failed])
    ]

    def order(one: Standing) -> tuple[int, float, float]:
        far = fmean(one.distances) if one.entries else math.inf
        return -one.restores.count, math.inf if one.scale is None else one.scale, far

    return sorted(several, key=order)


def by_closeness(verdict: Verdict) -> list[Finding]:
    """Return the findings, those that pass first, then the nearest to retraining."""
    return sorted(verdict.findings, key=closeness)


def leaderboard_table(runs: Runs) -> Table:
    """Return one row per method, the nearest to retraining first."""
    adjusted = adjusted_p(rank_tests(runs), next(iter(runs.values())).rules.alpha)
    rows: list[Row] = []
    several = standings(runs)
    for number, mine in enumerate(several, 1):
        findings = [finding for entry in mine.entries for finding in entry.findings]
        cells = [f"{entry.run}/{entry.cell.id}" for entry in mine.entries]
        p_values = [p for (method, _), p in adjusted.items() if method == mine.method]
        aims = {e.cell.models[e.best.name].aim for e in mine.entries}
        rows.append(
            {"rank": number, "method": mine.method, "author's aim": ", ".join(sorted(aims))}
            | {"settings": mine.settings, "most frequent best setting": mine.setting}
            | {"restores in": mine.restores, "most frequent label": mine.label}
            | {"distance": None if mine.scale is None else min(mine.scale, 1.0)}
            | {"worst axis, sd": Estimate.average(mine.distances, cells)}
            | {"most frequent worst axis": mine.axes[0] if mine.axes else None}
            | {"cost, retrainings": mine.cost}
            | {"p over cells": max(p_values, default=None), "candidates": len(findings)}
            | {"survive the screen": Share.of(not finding.excluded for finding in findings)}
        )
    certified = sum(results.certified for results in runs.values())
    judged = sum(len(results.judged) for results in runs.values())
    reading = certified_cells(certified, judged)
    if len({results.terms.rules_hash for results in runs.values()}) > 1:
        reading += " The runs were judged under different rules."
    return Table.of("leaderboard", "Which methods restore", reading, rows, FORMS)


def median_cost(candidates: Iterable[tuple[CellResult, str]]) -> float | None:
    """Return the median cost in retrainings; None where none was recorded."""
    spent = [cell.models[name].cost for cell, name in candidates]
    known = [cost.retrainings for cost in spent if cost is not None]
    return median(known) if known else None


# -- every setting, and claims about methods by ranks over cells -----------------------------------


def settings_of(runs: Runs) -> dict[tuple[str, str, str], MethodSetting]:
    """Return the setting of every candidate, by run, cell and name."""
    every: dict[tuple[str, str, str], Model] = {}
    for run, results in runs.items():
        every |= {(run, cell.id, name): cell.models[name] for cell, name in results.candidates()}
    named: dict[str, list[Model]] = {}
    for model in every.values():
        named.setdefault(model.name, []).append(model)
    found = {}
    for place, model in every.items():
        alike = [other.knobs for other in named[model.name]]
        differing = {k: v for k, v in model.knobs.items() if any(o.get(k) != v for o in alike)}
        more = f" ({knob_words(differing)})" if differing else ""
        found[place] = (model.method or model.name, f"{model.name}{more}")
    return found


def knob_words(knobs: Mapping[str, object]) -> str:
    """Return knobs with their values: ``share=0.1, start=facts_vector``."""
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in knobs.items())


def rank_tests(runs: Runs, role: Role = Role.CANDIDATE) -> dict[MethodSetting, RankSum]:
    """Return the rank test over cells of every candidate, or of the fresh retrainings, its positive
    controls."""
    ranks: dict[MethodSetting, list[tuple[int, int]]] = {}
    settings = settings_of(runs)
    for run, results in runs.items():
        for cell in results.cells:
            bag = reference_bag(cell.evaluation, results.rules)
            for name in cell.evaluation.of_role(role):
                key = settings.get((run, cell.id, name), (FRESH, name))
                if (rank := bag.rank(cell.evaluation[name])) is not None:
                    ranks.setdefault(key, []).append((rank, len(bag.names)))
    return {key: rank_sum(*zip(*pairs)) for key, pairs in ranks.items()}


def adjusted_p(tests: Mapping[MethodSetting, RankSum], alpha: float) -> dict[MethodSetting, float]:
    """Return the p-value of every candidate's ranks, Holm-corrected over all of them; nothing where
    the cells are too few for any of them to be significant."""
    least = len(tests) * min((test.least_p for test in tests.values()), default=1)
    if not tests or least > alpha:
        return {}
    return dict(zip(tests, holm([test.exact_p for test in tests.values()], alpha).adjusted))


def settings_table(runs: Runs) -> Table:
    """Return every setting of every method over all cells: distance, cost, and its rank test."""
    alpha = next(iter(runs.values())).rules.alpha
    found: dict[MethodSetting, list[tuple[CellResult, Finding]]] = {}
    settings = settings_of(runs)
    for run, results in runs.items():
        for cell, verdict in results.judged:
            for finding in verdict.findings:
                key = settings[run, cell.id, finding.name]
                found.setdefault(key, []).append((cell, finding))
    models = {key: cell.models[f.name] for key, ((cell, f), *_) in found.items()}
    tests, fresh = rank_tests(runs), rank_tests(runs, Role.RETRAINING)
    adjusted, every = adjusted_p(tests, alpha), tests | fresh
    rows: list[Row] = []
    for key in (*found, *fresh):
        mine, test = found.get(key, []), every.get(key)
        sds = [sd for _, finding in mine if (sd := distance(finding)) is not None]
        rows.append(
            {"method": key[0], "candidate": key[1]}
            | {"knobs that vary": (mine and knobs_that_vary(models[key], models.values())) or None}
            | {"cells": len(mine) or (test and test.cells)}
            | {"restores in": Share.of(f.clears for _, f in mine) if mine else None}
            | {"distance": middle([min(f.scale.share, 1.0) for _, f in mine if f.scale])}
            | {"worst axis, sd": median(sds) if sds else None}
            | {"cost, retrainings": median_cost((cell, finding.name) for cell, finding in mine)}
            | {"rank sum": test and test.total, "expected rank sum": test and test.expected}
            | {"p": test and test.p_value, "p (Holm)": adjusted.get(key)}
        )
    reading = "Medians over cells; there are too few cells for a rank test over cells."
    if adjusted:
        told = Share.of(p <= alpha for p in adjusted.values())
        reading = (
            f"Medians over cells. By the rank test over cells, {told} candidates lie further from "
            "the mean retraining than retrainings do."
        )
    return Table.of("settings", "Every setting over all cells", reading, rows, FORMS)


def knobs_that_vary(model: Model, others: Iterable[Model]) -> str | None:
    """Return the knobs of a candidate in which another one of its method differs."""
    alike = [other.knobs for other in others if other.method == model.method]
    own = {k: v for k, v in model.knobs.items() if any(o.get(k) != v for o in alike)}
    return knob_words(own) or None


# -- several runs side by side ---------------------------------------------------------------------

WORST = "worst sd"
HEADS = {
    "method": "method",
    "settings": "best of",
    "restores in": "restores",
    "most frequent label": "label",
    "distance": "distance",
    "worst axis, sd": WORST,
    "cost, retrainings": "cost",
    "p over cells": "p",
}
"""Columns of the leaderboard on a terminal, and what they are called there."""


def compare_runs(paths: Sequence[Path]) -> list[Table]:
    """Return the leaderboard of these runs, and every setting over all of their cells.

    Runs are named by their folders, with the folder above where two are called the same.
    """
    full = [path.resolve() for path in paths]
    names = [path.name for path in full]
    labels = [p.name if names.count(p.name) == 1 else f"{p.parent.name}/{p.name}" for p in full]
    if len(set(labels)) < len(labels):
        raise InputError(f"{', '.join(labels)}: one is given twice; expected every run once")
    runs, unread = dict[str, RunResults](), list[PalimpsestError]()
    for label, path in zip(labels, full):
        try:
            runs[label] = read_run(path)
            refuse_damage(runs[label])
        except PalimpsestError as error:
            unread.append(error)
    if unread:
        raise type(unread[0])("\n".join(map(str, unread)))
    if not any(results.judged for results in runs.values()):
        failed = [
            f for results in runs.values() for cell in results.cells for f in cell.failed.items()
        ]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed) or "no cell is finished"
        raise InputError(
            f"{', '.join(labels)}: no candidate was measured ({reasons}); expected one at least; "
            "correct what failed, or finish a run"
        )
    return [leaderboard_table(runs), settings_table(runs)]


def short_board(board: Table, *, paper: bool = False) -> Table:
    """Return the leaderboard with the columns that fit a terminal, or a paper, and hold anything;
    and what they mean."""
    heads = HEADS if paper else {name: head for name, head in HEADS.items() if head != WORST}
    kept = [name for name in heads if any(row[name] is not None for row in board.records())]
    about = [
        f"{board.reading} Each method is shown by the best of its settings in each cell. distance: "
        "as far from retrainings as a mixture with this share of the injected weights, median over "
        "cells (100 %: as far as the injected model, or further)",
        f"{WORST}: distance on the worst axis, mean over cells with its interval" * paper,
        "cost: in retrainings",
        "p: rank test over cells, where a small value means that the method does not restore"
        * ("p over cells" in kept),
    ]
    columns = tuple(heads[name] for name in kept)
    forms = {heads.get(column, column): form for column, form in board.forms.items()}
    reading = f"{'; '.join(filter(None, about))}."
    return replace(board.only(kept), reading=reading, columns=columns, forms=forms)


def comparison_page(tables: Sequence[Table]) -> str:
    """Return the tables as one page that needs nothing else."""
    from palimpsest.report.page import Section, tables_page  # which import matplotlib

    sections = [Section(table.title, table.reading, [table]) for table in tables]
    return tables_page("Which methods restore?", "", sections)
