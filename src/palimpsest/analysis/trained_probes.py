"""The paper's edition: what trained probes promise, and what the held-out screen finds.

A candidate is rated adequate when its oracle-KL on trained probes is at most a fraction of the
injected model's (``rules.adequate_fraction``). What such candidates still know is read on the
held-out pool, per fact, against three statements of the never-learned level (``LEVELS``). Not being
excluded by the screen is not equivalence, and below the certifiability bound it is nothing at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from palimpsest.analysis.counts import averaged
from palimpsest.analysis.replication import median_delta
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Estimate, Row, Share, Table, number, row
from palimpsest.criteria.bars import rated_adequate
from palimpsest.criteria.intervals import tost
from palimpsest.criteria.measures import ModelMeasures
from palimpsest.criteria.multiplicity import certifiability, holm
from palimpsest.criteria.ranktest import rank_tests

LEVELS: Mapping[str, Callable[[CellResult, ModelMeasures], Any]] = {
    "base": lambda cell, model: 0.0,
    "probes": lambda cell, model: np.median(model.probe_deltas),
    "reference": lambda cell, model: cell.evaluation["reference"].forget_deltas,
}
"""What is taken off a forget fact's NLL minus base's. Base never learned the facts: this is the
paper's delta. The candidate's own probes take out drift common to everything it was never taught.
The reference gives the matched retraining's level."""


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate of the diagnostic figure."""

    cell: str
    candidate: str
    method: str
    kind: str
    """What its method does: restores, suppresses or other."""
    oracle_kl: float
    forget_nll: float
    retain_nll: float
    reference_forget_nll: float
    reference_retain_nll: float


@dataclass(frozen=True, slots=True)
class SubPanel:
    """The screen over all cells with the first ``probes`` probes of each."""

    probes: int
    cells: int
    certifiable: int
    """Cells in which the screen could exclude anybody."""
    candidates: int
    excluded: int
    at_floor: int
    """Candidates at the smallest p-value their cell's lattice allows."""
    smallest_p: float

    @property
    def vacuous(self) -> bool:
        return self.certifiable == 0


def adequate(results: RunResults) -> tuple[tuple[CellResult, str], ...]:
    """Return the candidates that the trained-probe criterion rates adequate."""
    return tuple(
        (cell, name)
        for cell, name in results.candidates()
        if rated_adequate(cell.evaluation[name], cell.evaluation.injected, results.rules)
    )


def trained_probe_table(results: RunResults) -> Table:
    """Return what candidates rated adequate on trained probes score on held-out forget facts."""
    rated = adequate(results)
    rows: list[Row] = []
    reading = "No candidate is rated adequate on trained probes."
    for level, never_learned in LEVELS.items() if rated else ():
        models = [(cell, cell.evaluation[name]) for cell, name in rated]
        deltas = [model.forget_deltas - never_learned(cell, model) for cell, model in models]
        values = np.concatenate(deltas)
        cells = [cell.id for (cell, _), some in zip(rated, deltas) for _ in some]
        mean, median = averaged(values.tolist(), cells, results.rules), float(np.median(values))
        rows.append(
            row("never-learned level|mean per fact|median per fact", level, mean, median)
            | row("facts|candidates|cells", len(values), len(rated), len(set(cells)))
        )
        if level == "base":
            side = "below" if values.mean() < 0 else "above"
            reading = (
                f"The {len(rated)} candidates rated adequate score held-out forget facts "
                f"{number(abs(float(values.mean())))} nats {side} base, which never learned them."
            )
    title = "The trained-probe criterion on held-out facts"
    return Table.of("trained-probe", title, reading, rows)


def dichotomy_table(results: RunResults) -> Table:
    """Return what the held-out screen excludes, by method."""
    rated = {(cell.id, name) for cell, name in adequate(results)}
    rows: list[Row] = []
    shares: dict[str, Share] = {}
    for method, mine in results.by_method().items():
        models = [(cell.evaluation[name], cell.evaluation.injected) for cell, name in mine]
        gap, kl, rise = np.median(
            [
                (m.median_gap, m.need("oracle_kl"), m.need("retain_nll") - i.need("retain_nll"))
                for m, i in models
            ],
            axis=0,
        ).tolist()
        fine = Share(sum((cell.id, name) in rated for cell, name in mine), len(mine))
        out = shares[method] = Share(sum(not c.survives(name) for c, name in mine), len(mine))
        rows.append(
            row(
                "method|kind|rated adequate|excluded",
                method,
                mine[0][0].kind(mine[0][1]),
                fine,
                out,
            )
            | row("share excluded|median gap|median oracle-KL", out.count / out.total, gap, kl)
            | row("median rise of retain NLL", rise)
        )
    excluded, total = (sum(getattr(s, key) for s in shares.values()) for key in ("count", "total"))
    reading = f"The held-out screen excludes {excluded} of {total} candidates"
    most = max(shares, key=lambda method: shares[method].count / shares[method].total, default="")
    if excluded:
        reading += f", most often those of {most} ({shares[most].count} of {shares[most].total})"
    return Table.of("dichotomy", "Candidates the screen excludes", f"{reading}.", rows)


# -- the diagnostic figure -------------------------------------------------------------------------


def diagnostic(results: RunResults) -> tuple[Point, ...]:
    """Return every candidate's oracle-KL, held-out forget NLL and retain NLL."""
    points = []
    for cell, name in results.candidates():
        model, reference = cell.evaluation[name], cell.evaluation["reference"]
        labels = (cell.id, name, cell.methods[name], cell.kind(name))
        mine = (model.need("oracle_kl"), model.forget_nll, model.need("retain_nll"))
        points.append(Point(*labels, *mine, reference.forget_nll, reference.need("retain_nll")))
    return tuple(points)


def diagnostic_table(results: RunResults) -> Table:
    """Return restoration against suppression: oracle-KL by method, and at matched forgetting."""
    points = diagnostic(results)
    rows: list[Row] = []
    for method in results.methods:
        mine = [point for point in points if point.method == method]
        low, middle, high = np.quantile([p.oracle_kl for p in mine], [0.25, 0.5, 0.75]).tolist()
        forget = [point.forget_nll - point.reference_forget_nll for point in mine]
        retain = [point.retain_nll - point.reference_retain_nll for point in mine]
        rows.append(
            row("method|kind|candidates", method, mine[0].kind, len(mine))
            | row("oracle-KL, median and quartiles", Estimate(middle, low, high))
            | row("forget NLL beyond the reference", float(np.median(forget)))
            | row("retain NLL beyond the reference", float(np.median(retain)))
        )
    reading = matched_sentence(points, results.rules.matched_within)
    return Table.of("diagnostic", "Restoration and suppression", reading, rows)


def matched_forgetting(points: Sequence[Point], within: float) -> list[tuple[float, float]]:
    """Return the oracle-KL of restoration and of suppression in every pair of a cell whose held-out
    forget NLLs lie within so many nats of each other."""
    return [
        (point.oracle_kl, other.oracle_kl)
        for point in points
        if point.kind == "restores"
        for other in points
        if other.kind == "suppresses"
        and other.cell == point.cell
        and abs(other.forget_nll - point.forget_nll) <= within
    ]


def matched_sentence(points: Sequence[Point], within: float) -> str:
    """Return the comparison of restoration and suppression at matched forgetting, in words."""
    pairs = matched_forgetting(points, within)
    if not pairs:
        return "No restoring and no suppressing candidate of one cell forget to the same extent."
    restoration, suppression = np.median(pairs, axis=0).tolist()
    return (
        f"In {len(pairs)} pairs that forget to the same extent (held-out forget NLL within "
        f"{within:g} nat) the median oracle-KL is {number(restoration)} for restoration and "
        f"{number(suppression)} for suppression; restoration is closer in "
        f"{sum(a < b for a, b in pairs)}."
    )


def points_table(results: RunResults) -> Table:
    """Return every candidate of the diagnostic figure."""
    rows: list[Row] = [
        row("cell|candidate|method|kind", point.cell, point.candidate, point.method, point.kind)
        | row("oracle-KL|held-out forget NLL", point.oracle_kl, point.forget_nll)
        | row("retain NLL|reference forget NLL", point.retain_nll, point.reference_forget_nll)
        | row("reference retain NLL", point.reference_retain_nll)
        for point in diagnostic(results)
    ]
    reading = f"The data of the diagnostic figure: {len(rows)} candidates."
    return Table.of("diagnostic-points", "Diagnostic, every candidate", reading, rows)


# -- the screen with fewer probes, and what surviving it means -------------------------------------


@lru_cache(maxsize=1)
def sub_panels(results: RunResults) -> tuple[SubPanel, ...]:
    """Return the screen at every number of probes from 1 to the largest that every cell has, from
    the stored items."""
    cells = [cell for cell in results.cells if cell.candidates]
    most = min((len(cell.evaluation.probe_facts) for cell in cells), default=0)
    return tuple(_sub_panel(cells, probes, results.rules.alpha) for probes in range(1, most + 1))


def _sub_panel(cells: Sequence[CellResult], probes: int, alpha: float) -> SubPanel:
    certifiable = candidates = excluded = at_floor = 0
    smallest = 1.0
    for cell in cells:
        models = [cell.evaluation[name] for name in cell.candidates]
        tests = rank_tests(
            np.stack([model.forget_deltas for model in models]),
            np.stack([model.probe_deltas[:probes] for model in models]),
        )
        bound = certifiability(len(cell.evaluation.forget_facts), probes, len(models), alpha)
        certifiable += bound.certifiable
        candidates += len(models)
        excluded += sum(holm([test.exact_p for test in tests], alpha).rejected)
        at_floor += sum(test.p_value <= bound.min_p for test in tests)
        smallest = min([smallest, *(test.p_value for test in tests)])
    return SubPanel(probes, len(cells), certifiable, candidates, excluded, at_floor, smallest)


def sub_panel_table(results: RunResults) -> Table:
    """Return the screen at every smaller number of probes."""
    sizes = sub_panels(results)
    rows: list[Row] = [
        row("probes|cells that can exclude", size.probes, Share(size.certifiable, size.cells))
        | row("excluded|at the smallest p", Share(size.excluded, size.candidates), size.at_floor)
        | row("smallest p|can exclude", size.smallest_p, not size.vacuous)
        for size in sizes
    ]
    vacuous = [size.probes for size in sizes if size.vacuous]
    reading = "Every number of probes can exclude a candidate."
    if vacuous:
        reading = (
            f"With {max(vacuous)} probes or fewer no candidate can be excluded at any effect size; "
            f"with {sizes[-1].probes} the screen excludes {sizes[-1].excluded} of "
            f"{sizes[-1].candidates}."
        )
    return Table.of("sub-panels", "The screen with fewer probes", reading, rows)


@lru_cache(maxsize=1)
def survivors_table(results: RunResults) -> Table:
    """Return how far survivors lie from never-learned, and how many are equivalent to it, at the
    median delta_f and at each family's own."""
    alive = [(cell, name) for cell in results.cells for name in cell.survivors]
    gaps = [abs(cell.evaluation[name].median_gap) for cell, name in alive]
    median = averaged(gaps, [cell.id for cell, _ in alive], results.rules, "median")
    kept = Share(len(alive), sum(len(cell.candidates) for cell in results.cells))
    names = "quantity|count|estimate|smallest margin|largest margin"
    rows = [
        row(names, "survivors", kept, None, None, None),
        row(names, "median |gap|, nats", None, median, None, None),
    ]
    reading = f"{kept.count} of {kept.total} candidates survive the screen"
    common = median_delta(results.tolerances)
    if common is not None:
        own = {family: noise.delta_f for family, noise in results.tolerances.items()}
        for title, margins in (
            ("median delta_f", dict.fromkeys(results.families, common)),
            ("family's delta_f", own),
        ):
            equivalent = _equivalent(results, margins)
            cells, same = [cell for cell, _ in equivalent], [float(yes) for _, yes in equivalent]
            limits = (min(margins.values()), max(margins.values()))
            count, share = Share(int(sum(same)), len(same)), averaged(same, cells, results.rules)
            rows.append(row(names, f"equivalent at {title}", count, share, *limits))
            if title == "median delta_f":
                reading += (
                    f", and {count.count} of them are equivalent to never-learned within "
                    f"{number(common)} nats"
                )
    return Table.of("survivors", "Survivors and equivalence", f"{reading}.", rows)


def _equivalent(results: RunResults, margins: Mapping[str, float]) -> list[tuple[str, bool]]:
    """Return for every survivor of a family with a margin its cell and whether its forget deltas
    are equivalent to its probe deltas within that."""
    tested = []
    for cell in results.cells:
        for name in cell.survivors if cell.family in margins else ():
            model = cell.evaluation[name]
            p_value = tost(model.forget_deltas, model.probe_deltas, margins[cell.family])
            tested.append((cell.id, p_value <= results.rules.equivalence_alpha))
    return tested
