"""The certificate over a run: what its controls came to, and whom it certifies.

Rates are counted over the cells that have enough references. Each comes with an exact interval over
models; models that share a bag of references share its luck, so the count of bags is given too.
"""

from collections import Counter
from dataclasses import dataclass

from palimpsest.analysis.results import RunResults
from palimpsest.criteria.intervals import Interval, clopper_pearson


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many models, in so many cells."""

    title: str
    count: int
    total: int
    cells: int
    interval: Interval | None
    """Clopper–Pearson over models; None without any."""


@dataclass(frozen=True, slots=True)
class ControlSummary:
    """What the controls of all cells came to; a control without a comparison is not counted."""

    cells: int
    """Cells with enough references for a comparison."""
    references: Rate
    """References accepted by the others of their cell."""
    retrainings: Rate
    """Fresh retrainings accepted: 1 minus the measured rate of false rejection."""
    injected: Rate
    """Injected models rejected."""
    shares: tuple[tuple[float, Rate], ...]
    """Interpolations rejected, by share of injected weights left, from the largest."""
    challenges: tuple[tuple[str, Rate], ...]
    """Known-label models rejected, by registry entry."""
    missing: int
    """Controls that could not be compared."""


@dataclass(frozen=True, slots=True)
class MethodCertified:
    """One method's candidates under the certificate."""

    method: str
    kind: str
    """What it does: restores, suppresses or other."""
    candidates: int
    excluded: int
    """By the screen."""
    compared: int
    """Survivors that were compared with retrainings."""
    indistinguishable: int
    """Survivors that the comparison accepts."""
    certified: int
    """Cells whose certified candidate this method made."""
    worst: tuple[tuple[str, int], ...]
    """Axes that the rejected survivors were furthest off on, with counts, most frequent first."""


def control_summary(results: RunResults) -> ControlSummary:
    """Return what the controls of every cell came to."""
    known = [
        (cell, control)
        for cell in results.cells
        if cell.verdict is not None
        for control in cell.verdict.controls
    ]
    compared = [(cell, control) for cell, control in known if control.comparison is not None]
    groups: dict[tuple[str, float | str | None], list[tuple[str, bool]]] = {}
    for cell, control in compared:
        which: float | str | None = control.share
        if control.kind == "suppressor":
            which = str(cell.roles[control.name].get("entry") or control.name)
        event = (cell.id, bool(control.as_expected))
        groups.setdefault((control.kind, which), []).append(event)

    def rate(title: str, kind: str, which: float | str | None = None) -> Rate:
        events = groups.get((kind, which), [])
        count, total = sum(expected for _, expected in events), len(events)
        interval = clopper_pearson(count, total, results.rules.confidence) if total else None
        return Rate(title, count, total, len({cell for cell, _ in events}), interval)

    shares = sorted((which for _, which in groups if isinstance(which, float)), reverse=True)
    entries = [which for _, which in groups if isinstance(which, str)]
    left = "% of the injected weights left, rejected"
    return ControlSummary(
        cells=len({cell.id for cell, _ in compared}),
        references=rate("references accepted", "reference"),
        retrainings=rate("fresh retrainings accepted", "retraining"),
        injected=rate("injected models rejected", "injected"),
        shares=tuple((s, rate(f"{100 * s:g} {left}", "interpolation", s)) for s in shares),
        challenges=tuple((e, rate(f"{e} rejected", "suppressor", e)) for e in entries),
        missing=len(known) - len(compared),
    )


def certified_by_method(results: RunResults) -> tuple[MethodCertified, ...]:
    """Return how each method's candidates fare, in the order of the plan."""
    rows = []
    for method in results.methods:
        mine = [
            (cell, cell.verdict.finding(name))
            for cell in results.cells
            if cell.verdict is not None
            for name in cell.of_method(method)
        ]
        picks = [f for cell, f in mine if cell.verdict and cell.verdict.candidate == f.name]
        survivors = [f for _, f in mine if not f.excluded and f.comparison is not None]
        worst = Counter(
            f.comparison.worst.axis
            for f in survivors
            if f.comparison is not None and not f.comparison.accepted
        )
        rows.append(
            MethodCertified(
                method,
                next(cell.kind(f.name) for cell, f in mine) if mine else "other",
                len(mine),
                sum(f.excluded for _, f in mine),
                len(survivors),
                sum(f.clears for f in survivors),
                len(picks),
                tuple(worst.most_common()),
            )
        )
    return tuple(rows)
