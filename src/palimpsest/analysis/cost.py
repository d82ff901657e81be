"""Closeness against cost: how near to retraining each candidate comes, and what it took.

A retraining costs 1. A candidate that is as close for less is what retraining can be replaced by.
"""

from dataclasses import dataclass
from statistics import median

from palimpsest.analysis.results import RunResults
from palimpsest.analysis.table import Row, Share, Table, counted, row


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
    for candidate in priced(results):
        by_name.setdefault(candidate.candidate, []).append(candidate)
    return tuple(
        Price(
            name,
            mine[0].method,
            len(mine),
            median(candidate.retrainings for candidate in mine),
            median(candidate.sd for candidate in mine),
            sum(candidate.clears for candidate in mine),
        )
        for name, mine in by_name.items()
    )


def cost_table(results: RunResults) -> Table:
    """Return closeness against cost, the cheapest candidate first."""
    rows: list[Row] = [
        row("candidate|method|cells", price.candidate, price.method, price.cells)
        | row("cost, retrainings|worst axis, sd", price.retrainings, price.sd)
        | row("cannot be told from a retraining", Share(price.clears, price.cells))
        for price in sorted(prices(results), key=lambda price: (price.retrainings, price.sd))
    ]
    reading = "No candidate that was compared has its cost recorded."
    if rows:
        cheap = [price for price in prices(results) if price.clears]
        reading = "No candidate that cannot be told from a retraining has its cost recorded."
        if cheap:
            least = min(cheap, key=lambda price: (price.retrainings, price.sd))
            reading = (
                f"The cheapest candidate that cannot be told from a retraining is "
                f"{least.candidate}: {least.retrainings:.2f} retrainings, in {least.clears} of "
                f"{counted(least.cells, 'cell')}."
            )
    forms = {"cost, retrainings": ".2f", "worst axis, sd": ".1f"}
    return Table.of("cost", "Closeness against cost", reading, rows, forms)
