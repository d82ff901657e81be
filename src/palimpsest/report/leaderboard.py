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
from palimpsest.stats.models import Role
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.ranksum import RankSum, rank_sum
from palimpsest.stats.verdict import Finding, Verdict
from palimpsest.stats.words import why

Runs = Mapping[str, RunResults]
"""The runs compared, by a name of their own."""
MethodSetting = tuple[str, str]
"""A method and the name of a candidate."""
FRESH = "fresh retraining"
FORMS = {
    **dict.fromkeys(("p", "p (Holm)", "p over cells"), P_VALUE),
    **dict.fromkeys(("worst axis, sd", "expected rank sum"), ".1f"),
    "≙ mixture": ".0%",
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
    """A method over the cells in which it was compared."""

    method: str
    entries: tuple[Entry, ...]

    @property
    def restores(self) -> Share:
        """In how many cells a candidate passes: no test tells it from a retraining."""
        return Share.of(entry.best.clears for entry in self.entries)

    @property
    def labels(self) -> list[tuple[str, int]]:
        """The labels of its best candidates, the most frequent first."""
        return Counter(entry.best.label for entry in self.entries).most_common()

    @property
    def axis(self) -> str:
        """The most frequent worst axis of its best candidates."""
        compared = [entry.best.comparison for entry in self.entries]
        names = [comparison.worst.axis for comparison in compared if comparison is not None]
        return axis(Counter(names).most_common(1)[0][0]).title

    @property
    def scale(self) -> float:
        """Median over cells: as far from retrainings as a mixture of this share; infinite beyond
        the injected model, and where no cell has a scale."""
        scales = [entry.best.scale for entry in self.entries]
        share = middle([scale.share for scale in scales if scale is not None])
        return math.inf if share is None else share

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
    """Return every method that was compared in some cell, the nearest to retraining first."""
    found: dict[str, list[Entry]] = {}
    for run, results in runs.items():
        for cell, verdict in results.judged:
            groups: dict[str, list[Finding]] = {}
            for finding in verdict.findings:
                if distance(finding) is not None:
                    groups.setdefault(cell.method(finding.name), []).append(finding)
            for method, mine in groups.items():
                mine.sort(key=closeness)
                found.setdefault(method, []).append(Entry(run, cell, tuple(mine)))
    several = [Standing(method, tuple(mine)) for method, mine in found.items()]
    return sorted(several, key=lambda one: (-one.restores.count, one.scale, fmean(one.distances)))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the answer: a candidate, or a method by its best setting."""

    name: str
    label: str
    sentence: str
    finding: Finding | None = None
    """Of the best setting; None over several cells."""
    settings: int = 1
    """Of the method, in one cell."""


def answer_lines(results: RunResults, most: int = 2) -> list[Line]:
    """Return one line per candidate, or per method where methods made them, the best first;
    ``most`` failing axes are in words, the others named."""
    if len(results.planned) > 1:
        return [_over_cells(standing) for standing in standings({results.name: results})]
    groups: dict[str, list[Finding]] = {}
    for cell, verdict in results.judged:
        for finding in by_closeness(verdict):
            groups.setdefault(cell.method(finding.name), []).append(finding)
    lines = []
    for name, mine in groups.items():
        lines.append(Line(name, mine[0].label, as_sentence(mine[0], most), mine[0], len(mine)))
    return lines


def as_sentence(finding: Finding, most: int = 99) -> str:
    """Return what was found about a candidate, to stand beside its name and label."""
    text = why(finding, most).removeprefix("is ")
    return f"{text[0].upper()}{text[1:]}."


def by_closeness(verdict: Verdict) -> list[Finding]:
    """Return the findings, those that pass first, then the nearest to retraining."""
    return sorted(verdict.findings, key=closeness)


def _over_cells(mine: Standing) -> Line:
    labels = [f"{label} in {n} of {len(mine.entries)} cells" for label, n in mine.labels]
    sentence = f"Its best setting is {'; '.join(labels)}; most often furthest on {mine.axis}."
    return Line(mine.method, mine.labels[0][0], sentence)


def leaderboard_table(runs: Runs) -> Table:
    """Return one row per method, the nearest to retraining first."""
    adjusted = adjusted_p(rank_tests(runs), next(iter(runs.values())).rules.alpha)
    rows: list[Row] = []
    several = standings(runs)
    for number, mine in enumerate(several, 1):
        findings = [finding for entry in mine.entries for finding in entry.findings]
        cells = [f"{entry.run}/{entry.cell.id}" for entry in mine.entries]
        p_values = [p for (method, _), p in adjusted.items() if method == mine.method]
        first = mine.entries[0]
        rows.append(
            {"rank": number, "method": mine.method}
            | {"author's aim": first.cell.models[first.best.name].aim}
            | {"restores in": mine.restores, "most frequent label": mine.labels[0][0]}
            | {"≙ mixture": min(mine.scale, 1.0)}
            | {"worst axis, sd": Estimate.average(mine.distances, cells)}
            | {"most frequent worst axis": mine.axis}
            | {"cost, retrainings": median_cost((e.cell, e.best.name) for e in mine.entries)}
            | {"p over cells": max(p_values, default=None), "candidates": len(findings)}
            | {"survive the screen": Share.of(not finding.excluded for finding in findings)}
        )
    restoring = [f"{s.method} in {s.restores} cells" for s in several if s.restores.count]
    reading = f"Methods with a restored candidate: {', '.join(restoring) or 'none'}."
    if len({results.terms.rules_hash for results in runs.values()}) > 1:
        reading += " The runs were judged under different rules."
    return Table.of("leaderboard", "Which methods restore", reading, rows, FORMS)


def median_cost(candidates: Iterable[tuple[CellResult, str]]) -> float | None:
    """Return the median cost in retrainings; None where none was recorded."""
    spent = [cell.models[name].cost for cell, name in candidates]
    known = [cost.retrainings for cost in spent if cost is not None]
    return median(known) if known else None


# -- every setting, and claims about methods by ranks over cells -----------------------------------


def rank_tests(runs: Runs, role: Role = Role.CANDIDATE) -> dict[MethodSetting, RankSum]:
    """Return the rank test over cells of every candidate, or of the fresh retrainings, its positive
    controls."""
    ranks: dict[MethodSetting, list[tuple[int, int]]] = {}
    for results in runs.values():
        for cell in results.cells:
            bag = reference_bag(cell.evaluation, results.rules)
            for name in cell.evaluation.of_role(role):
                method = cell.method(name) if role is Role.CANDIDATE else FRESH
                if (rank := bag.rank(cell.evaluation[name])) is not None:
                    ranks.setdefault((method, name), []).append((rank, len(bag.names)))
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
    for cell, verdict in (pair for results in runs.values() for pair in results.judged):
        for finding in verdict.findings:
            key = (cell.method(finding.name), finding.name)
            found.setdefault(key, []).append((cell, finding))
    tests, fresh = rank_tests(runs), rank_tests(runs, Role.RETRAINING)
    adjusted, every = adjusted_p(tests, alpha), tests | fresh
    rows: list[Row] = []
    for key in (*found, *fresh):
        mine, test = found.get(key, []), every.get(key)
        sds = [sd for _, finding in mine if (sd := distance(finding)) is not None]
        rows.append(
            {"method": key[0], "candidate": key[1], "cells": len(mine) or (test and test.cells)}
            | {"restores in": Share.of(f.clears for _, f in mine) if mine else None}
            | {"≙ mixture": middle([min(f.scale.share, 1.0) for _, f in mine if f.scale])}
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


# -- several runs side by side ---------------------------------------------------------------------

HEADS = {
    "restores in": "restores",
    "most frequent label": "label",
    "≙ mixture": "≙ mix",
    "worst axis, sd": "worst sd",
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


def short_board(board: Table) -> Table:
    """Return the leaderboard with the columns that fit a terminal or a paper, and what they
    mean."""
    kept = board.only(["rank", "method", *HEADS])
    about = (
        f"{board.reading} Each method is shown by its best setting in each cell. ≙ mix: as far "
        "from retrainings as a mixture with this share of the injected weights, median over cells "
        "(100 %: as far as the injected model, further, or no scale). worst sd: "
        "distance from the mean retraining on the worst axis, mean over cells with its interval; "
        "cost: in retrainings; p: rank test over cells, where a small value means that the method "
        "does not restore."
    )
    columns = tuple(HEADS.get(column, column) for column in kept.columns)
    forms = {HEADS.get(column, column): form for column, form in board.forms.items()}
    return replace(kept, reading=about, columns=columns, forms=forms)


def comparison_page(tables: Sequence[Table]) -> str:
    """Return the tables as one page that needs nothing else."""
    from palimpsest.report.page import Section, tables_page  # which import matplotlib

    sections = [Section(table.title, table.reading, [table]) for table in tables]
    return tables_page("Which methods restore?", "", sections)
