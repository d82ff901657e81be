"""Does this method restore? One line per method, over the cells of one run or of several.

In every cell a method is represented by its nearest candidate: the one whose worst axis lies the
fewest standard deviations from the mean retraining. That is the best of a method's settings, chosen
after the fact; the claim about a method by ranks is therefore made for every setting by itself and
corrected over all settings (Holm), and a method is distinguishable from retraining when every one
of its settings is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from palimpsest.analysis.counts import averaged
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Row, Share, Table, counted, listed, row
from palimpsest.criteria.controls import reference_bag
from palimpsest.criteria.multiplicity import holm
from palimpsest.criteria.ranksum import RankSum, rank_in_bag, rank_sum
from palimpsest.verdict import Finding

Runs = Mapping[str, RunResults]
"""The runs compared, by a name of their own."""
Ranks = dict[tuple[str, str], RankSum]
"""The rank test over cells of every candidate, by method and name."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A method in one cell: its candidates that were compared, the nearest first."""

    run: str
    cell: CellResult
    method: str
    findings: tuple[Finding, ...]

    @property
    def key(self) -> str:
        """The cell, over all runs."""
        return f"{self.run}/{self.cell.id}"

    @property
    def distance(self) -> float:
        """Of the nearest candidate, in standard deviations of retraining."""
        return _distance(self.findings[0])

    @property
    def axis(self) -> str:
        """The worst axis of the nearest candidate, in words."""
        comparison = self.findings[0].comparison
        return "" if comparison is None else comparison.worst.axis.replace("_", " ")

    @property
    def cost(self) -> float | None:
        """Of the nearest candidate, in retrainings; None where it was not recorded."""
        cost = self.cell.roles[self.findings[0].name].get("cost")
        return None if cost is None else float(cost["retrainings"])

    @property
    def restores(self) -> bool:
        """Whether a candidate survives the screen and is indistinguishable from a retraining."""
        return any(finding.clears for finding in self.findings)

    @property
    def certified(self) -> bool:
        """Whether the cell's certificate names a candidate of this method."""
        verdict = self.cell.verdict
        return verdict is not None and verdict.candidate in [f.name for f in self.findings]


def entries(runs: Runs) -> dict[str, list[Entry]]:
    """Return every method in every cell in which it was compared, by method."""
    found: dict[str, list[Entry]] = {}
    for run, results in runs.items():
        for cell in results.cells:
            for method in dict.fromkeys(cell.methods.values()):
                mine = [
                    finding
                    for finding in (cell.verdict.findings if cell.verdict else ())
                    if cell.methods[finding.name] == method
                    and finding.comparison is not None
                    and finding.comparison.worst.sd is not None
                ]
                if mine:
                    nearest_first = tuple(sorted(mine, key=_distance))
                    found.setdefault(method, []).append(Entry(run, cell, method, nearest_first))
    return found


def leaderboard_table(runs: Runs) -> Table:
    """Return one row per method, the nearest to retraining first."""
    rules = next(iter(runs.values())).rules
    tests = method_ranks(runs)
    adjusted = _adjusted(tests, rules.alpha) if _least(tests) <= rules.alpha else {}
    rows: list[Row] = []
    told: list[str] = []
    methods = entries(runs)
    mean = {m: float(np.mean([entry.distance for entry in mine])) for m, mine in methods.items()}
    for place, method in enumerate(sorted(methods, key=lambda method: mean[method]), 1):
        mine = methods[method]
        findings = [finding for entry in mine for finding in entry.findings]
        costs = [cost for entry in mine if (cost := entry.cost) is not None]
        worst = Counter(entry.axis for entry in mine)
        survive = sum(not finding.excluded for finding in findings)
        largest = max((p for (name, _), p in adjusted.items() if name == method), default=None)
        if largest is not None and largest <= rules.alpha and any(e.restores for e in mine):
            told.append(method)
        rows.append(
            row("rank|method", place, method)
            | row("kind", mine[0].cell.kind(mine[0].findings[0].name))
            | row("restores in", Share(sum(entry.restores for entry in mine), len(mine)))
            | row("certified in", Share(sum(entry.certified for entry in mine), len(mine)))
            | row(
                "worst axis, sd",
                averaged([entry.distance for entry in mine], [entry.key for entry in mine], rules),
            )
            | row("most frequent worst axis", worst.most_common(1)[0][0])
            | row("cost, retrainings", median(costs) if costs else None)
            | row("p over cells", largest)
            | row("candidates|survive the screen", len(findings), Share(survive, len(findings)))
        )
    forms = {"p over cells": ".2g", "cost, retrainings": ".2f", "worst axis, sd": ".1f"}
    reading = _reading(runs, methods, told)
    return Table.of("leaderboard", "Leaderboard: does this method restore?", reading, rows, forms)


def _reading(runs: Runs, methods: Mapping[str, list[Entry]], told: Sequence[str]) -> str:
    """Return the answer over all methods in a few sentences.

    told: methods that restore in single cells, and of which every setting is distinguishable from
    retraining over all cells together.
    """
    restoring = {m: sum(entry.restores for entry in mine) for m, mine in methods.items()}
    named = [f"{m} in {n} of {counted(len(methods[m]), 'cell')}" for m, n in restoring.items() if n]
    if not methods:
        return "No candidate was compared with retrainings."
    reading = "No method makes a candidate that is indistinguishable from a retraining."
    if named:
        reading = f"Candidates indistinguishable from a retraining: {listed(named)}."
    if told:
        reading += (
            f" Over all cells together, every setting of {listed(told)} can be told from a "
            "retraining."
        )
    if len({results.rules_hash for results in runs.values()}) > 1:
        reading += " The runs were judged under different rules."
    return reading


def leaderboard_cells_table(runs: Runs) -> Table:
    """Return every method in every cell: its nearest candidate."""
    rows: list[Row] = []
    for method, mine in entries(runs).items():
        for entry in mine:
            finding, cell = entry.findings[0], entry.cell
            assert finding.comparison is not None
            rows.append(
                row("method|run|model|seed", method, entry.run, cell.model, cell.seed)
                | row("nearest candidate|worst axis, sd", finding.name, entry.distance)
                | row("worst axis", entry.axis)
                | row("p|restores|certified", finding.comparison.p, entry.restores, entry.certified)
                | row("cost, retrainings", entry.cost)
            )
    reading = f"{counted(len(rows), 'pair')} of a method and a cell, each by its nearest candidate."
    forms = {"p": ".2g", "cost, retrainings": ".2f", "worst axis, sd": ".1f"}
    return Table.of("leaderboard-cells", "Methods, cell by cell", reading, rows, forms)


# -- claims about methods, by ranks over cells ----------------------------------------------------


FRESH = "fresh retraining"


def method_ranks(runs: Runs, fresh: bool = False) -> Ranks:
    """Return the rank test over cells of every candidate, by method and name; or of the fresh
    retrainings, its positive controls."""
    ranks: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for results in runs.values():
        for cell in results.cells:
            bag = reference_bag(cell.evaluation, cell.roles, results.rules)
            methods = cell.methods
            if fresh:
                methods = dict.fromkeys(cell.evaluation.of_role("retraining"), FRESH)
            for name, method in methods.items():
                rank = rank_in_bag(cell.evaluation[name], bag)
                if rank is not None:
                    ranks.setdefault((method, name), []).append((rank, len(bag.names)))
    return {key: rank_sum(*zip(*pairs)) for key, pairs in ranks.items()}


def _adjusted(tests: Ranks, alpha: float) -> dict[tuple[str, str], float]:
    """Return the p-value of every candidate's ranks, Holm-corrected over all of them."""
    return dict(zip(tests, holm([test.exact_p for test in tests.values()], alpha).adjusted))


def _least(tests: Ranks) -> float:
    """Return the smallest corrected p-value that the cells and references can give."""
    return float(len(tests) * min((test.least_p for test in tests.values()), default=1))


def ranks_table(runs: Runs) -> Table:
    """Return whether every setting of every method is distinguishable from retraining."""
    alpha = next(iter(runs.values())).rules.alpha
    tests, fresh = method_ranks(runs), method_ranks(runs, fresh=True)
    adjusted = _adjusted(tests, alpha)
    rows: list[Row] = [
        row("method|candidate|cells", method, name, test.cells)
        | row("sum of ranks|expected", test.total, test.expected)
        | row("p|p (Holm)", test.p_value, adjusted.get((method, name)))
        | row("distinguishable", adjusted.get((method, name), test.p_value) <= alpha)
        for (method, name), test in (tests | fresh if tests else {}).items()
    ]
    rejected = {(method, name) for method, name in tests if adjusted[method, name] <= alpha}
    methods = dict.fromkeys(method for method, _ in tests)
    kept = [m for m in methods if any(key[0] == m and key not in rejected for key in tests)]
    reading = "There are no ranks to add: no cell has references."
    if rows and (least := _least(tests)) > alpha:
        reading = (
            f"Too few cells for a claim about methods: with {counted(len(tests), 'candidate')} the "
            f"smallest corrected p-value is {min(1.0, least):.2g}, and {alpha:g} is needed."
        )
    elif rows:
        reading = (
            f"Over all cells {len(rejected)} of {counted(len(tests), 'candidate')} lie further out "
            "than retrainings do; "
            + (f"some setting of {listed(kept)} does not." if kept else "every method does.")
        )
        if fresh:
            out = sum(test.p_value <= alpha for test in fresh.values())
            reading += f" Of {counted(len(fresh), FRESH)} in the same test, {out} do."
    forms = {"p": ".2g", "p (Holm)": ".2g", "expected": ".1f"}
    return Table.of("ranks", "Ranks within cells, added over cells", reading, rows, forms)


def _distance(finding: Finding) -> float:
    assert finding.comparison is not None and finding.comparison.worst.sd is not None
    return abs(finding.comparison.worst.sd)
