"""Closeness against cost: how near to retraining each candidate comes, and what it took.

A retraining costs 1. A candidate that is as close for less is what retraining can be replaced by.
"""

from dataclasses import dataclass
from statistics import median

from palimpsest.analysis.results import RunResults


@dataclass(frozen=True, slots=True)
class Priced:
    """One candidate of one cell that was compared with its references.

    retrainings: tokens trained on in units of one retraining, ``shared`` of them in models that
    other candidates use too; sd: distance on its worst axis in standard deviations of retraining.
    """

    cell: str
    candidate: str
    method: str
    retrainings: float
    shared: float
    flops: float
    axis: str
    sd: float
    p: float
    clears: bool


@dataclass(frozen=True, slots=True)
class Price:
    """One candidate over all cells: medians of cost and distance, and in how many it clears."""

    candidate: str
    method: str
    cells: int
    retrainings: float
    sd: float
    clears: int


def priced(results: RunResults) -> tuple[Priced, ...]:
    """Return every candidate that has a cost and a comparison, in the order of the tables."""
    rows = []
    for cell in results.cells:
        for finding in cell.verdict.findings if cell.verdict is not None else ():
            cost = cell.roles[finding.name].get("cost")
            comparison = finding.comparison
            if cost is None or comparison is None or comparison.worst.sd is None:
                continue
            rows.append(
                Priced(
                    cell.id,
                    finding.name,
                    cell.methods[finding.name],
                    float(cost["retrainings"]),
                    float(cost["shared_retrainings"]),
                    float(cost["flops"]),
                    comparison.worst.axis,
                    abs(comparison.worst.sd),
                    comparison.p,
                    finding.clears,
                )
            )
    return tuple(rows)


def prices(results: RunResults) -> tuple[Price, ...]:
    """Return one row per candidate, over the cells that have it."""
    by_name: dict[str, list[Priced]] = {}
    for row in priced(results):
        by_name.setdefault(row.candidate, []).append(row)
    return tuple(
        Price(
            name,
            rows[0].method,
            len(rows),
            median(row.retrainings for row in rows),
            median(row.sd for row in rows),
            sum(row.clears for row in rows),
        )
        for name, rows in by_name.items()
    )
