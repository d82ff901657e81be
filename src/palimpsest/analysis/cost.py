"""Closeness against cost: how near to retraining each candidate comes, and what it took.

A retraining costs 1. A candidate that is as close for less is what retraining can be replaced by.
"""

from dataclasses import dataclass
from statistics import median

from palimpsest.analysis.results import RunResults
from palimpsest.analysis.table import Row, Share, Table, counted, row


@dataclass(frozen=True, slots=True)
class Price:
    """One candidate over all cells: medians of cost and distance, and in how many it clears."""

    candidate: str
    method: str
    cells: int
    retrainings: float
    """Tokens trained on, in units of one retraining, in models made for it included."""
    sd: float
    """Distance on its worst axis in standard deviations of retraining."""
    clears: int


def prices(results: RunResults) -> tuple[Price, ...]:
    """Return one row per candidate that has a cost and a comparison, over its cells."""
    compared: dict[str, list[tuple[float, float, bool]]] = {}
    methods: dict[str, str] = {}
    for cell, verdict in results.judged:
        for finding in verdict.findings:
            cost = cell.roles[finding.name].get("cost")
            comparison = finding.comparison
            if cost is None or comparison is None or comparison.worst.sd is None:
                continue
            numbers = (float(cost["retrainings"]), abs(comparison.worst.sd), finding.clears)
            compared.setdefault(finding.name, []).append(numbers)
            methods[finding.name] = cell.methods[finding.name]
    rows = []
    for name, mine in compared.items():
        costs, distances, clears = zip(*mine)
        averages = (median(costs), median(distances), sum(clears))
        rows.append(Price(name, methods[name], len(mine), *averages))
    return tuple(rows)


def cost_table(results: RunResults) -> Table:
    """Return closeness against cost, the cheapest candidate first."""
    rows: list[Row] = [
        row("candidate|method|cells", price.candidate, price.method, price.cells)
        | row("cost, retrainings|worst axis, sd", price.retrainings, price.sd)
        | row("indistinguishable from a retraining", Share(price.clears, price.cells))
        for price in sorted(prices(results), key=lambda price: (price.retrainings, price.sd))
    ]
    reading = "No candidate that was compared has its cost recorded."
    if rows:
        cheap = [price for price in prices(results) if price.clears]
        reading = "No candidate whose cost is recorded is indistinguishable from a retraining."
        if cheap:
            least = min(cheap, key=lambda price: (price.retrainings, price.sd))
            reading = (
                f"The cheapest candidate that is indistinguishable from a retraining is "
                f"{least.candidate}: {least.retrainings:.2f} retrainings, in {least.clears} of "
                f"{counted(least.cells, 'cell')}."
            )
    forms = {"cost, retrainings": ".2f", "worst axis, sd": ".1f"}
    return Table.of("cost", "Closeness against cost", reading, rows, forms)
