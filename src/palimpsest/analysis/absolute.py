"""The paper's edition: the absolute bar, and whether reference and injected model pass it.

Screen, retain NLL and residual against fixed limits, component by component and cell by cell, for
the two models whose truth is known; the candidates under the same bar; and how the injected model's
own residual, the floor, grows with the re-acquisition budget.
"""

from collections.abc import Sequence

from palimpsest.analysis.counts import spread
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Row, Share, Table, number, row
from palimpsest.criteria.bars import AbsoluteBar, absolute_bar
from palimpsest.criteria.screen import screen_alone

KNOWN = ("reference", "injected")
"""Models of known truth that are held to the bar."""
COMPONENTS = {"screen": "screen", "retain": "retain", "residual": "residual", "clears": "all three"}
"""Parts of the bar, by attribute, in words."""


def _known(results: RunResults) -> list[tuple[CellResult, str, AbsoluteBar]]:
    """Return reference and injected model under the bar, in every cell."""
    judged = []
    for cell in results.cells:
        for name in KNOWN:
            if name in cell.evaluation:
                model = cell.evaluation[name]
                passes = not screen_alone(model, results.rules).excluded
                judged.append((cell, name, absolute_bar(model, passes, results.rules)))
    return judged


def absolute_table(results: RunResults) -> Table:
    """Return reference, injected model and candidates by method under the absolute bar."""
    known = _known(results)
    groups = {name: [(c, n, bar) for c, n, bar in known if n == name] for name in KNOWN}
    tried = [
        (cell, name, absolute_bar(cell.evaluation[name], cell.survives(name), results.rules))
        for cell, name in results.candidates()
    ]
    for method in results.methods:
        groups[method] = [(c, n, bar) for c, n, bar in tried if c.methods[n] == method]
    groups["all candidates"] = tried
    rows: list[Row] = []
    passing = []
    remark = ""
    for label, judged in groups.items():
        if not judged:
            continue
        shares = {
            words: Share(sum(getattr(bar, part) for *_, bar in judged), len(judged))
            for part, words in COMPONENTS.items()
        }
        mean = _by_the_mean(results, judged)
        models = [cell.evaluation[name] for cell, name, _ in judged if label in KNOWN]
        rows.append(
            row("model", label)
            | shares
            | row("residual, if it were the mean", mean)
            | row("retain NLL, median and range", spread([m.need("retain_nll") for m in models]))
            | row("residual, median and range", spread([m.need("residual") for m in models]))
        )
        count = shares["all three"]
        if label in KNOWN:
            passing.append(f"the {label} passes in {count.count} of {count.total} cells")
        if label == "injected":
            remark = (
                f" The injected model's own residual passes in {shares['residual'].count} cells, "
                f"and would in {mean.count} if its two parts were averaged and not added."
            )
    reading = (
        f"With limits of {results.rules.retain_limit:g} and {results.rules.residual_limit:g} nats "
        f"{', '.join(passing) or 'no known model was scored'}, and "
        f"{sum(bar.clears for *_, bar in tried)} of {len(tried)} candidates pass."
    )
    return Table.of("absolute-bar", "The absolute bar", reading + remark, rows)


def _by_the_mean(
    results: RunResults, judged: Sequence[tuple[CellResult, str, AbsoluteBar]]
) -> Share:
    """Return how many would pass the residual's limit if its two parts were averaged, not added."""
    models = [cell.evaluation[name] for cell, name, _ in judged]
    limit = 2 * results.rules.residual_limit
    return Share(sum(m.residual is None or m.residual <= limit for m in models), len(models))


def absolute_cells_table(results: RunResults) -> Table:
    """Return reference and injected model under the absolute bar, cell by cell."""
    known = _known(results)
    rows: list[Row] = []
    for cell, name, bar in known:
        model = cell.evaluation[name]
        p_value = screen_alone(model, results.rules).test.p_value
        rows.append(
            row("cell|family|model|p|screen", cell.id, cell.family, name, p_value, bar.screen)
            | row("retain NLL|retain", model.retain_nll, bar.retain)
            | row("residual|residual at most the limit", model.residual, bar.residual)
            | row("all three", bar.clears)
        )
    failing = sum(not bar.clears for *_, bar in known)
    reading = f"{failing} of {len(known)} known models fail at least one component."
    return Table.of("absolute-bar-cells", "The absolute bar, cell by cell", reading, rows)


def budget_table(results: RunResults) -> Table:
    """Return the injected model's own residual at every logged step, by family.

    Re-acquisition is one run at a constant rate, so its log after k steps is the round trip with a
    budget of k steps.
    """
    rows: list[Row] = []
    rising = 0
    for family in results.families:
        by_step: dict[int, list[float]] = {}
        for cell in results.of_family(family):
            curve = cell.evaluation.injected.need_curve()
            for step, value in zip(curve.step.tolist(), curve.residual.tolist()):
                if step:
                    by_step.setdefault(step, []).append(value)
        medians = []
        for step, values in sorted(by_step.items()):
            closes = sum(value <= results.rules.residual_limit for value in values)
            middle = spread(values)
            assert middle is not None
            medians.append(middle.value)
            rows.append(
                row("family|steps|median residual", family, step, middle.value)
                | row("smallest|largest", middle.low, middle.high)
                | row("at most the limit", Share(closes, len(values)))
            )
        rising += len(medians) > 1 and medians[-1] > medians[0]
    floor = spread([cell.evaluation.floor for cell in results.cells])
    reading = (
        "The residual of the injected model itself rises from the shortest to the longest budget "
        f"in {rising} of {len(results.families)} families"
        + (f"; the median floor is {number(floor.value)} nats." if floor else ".")
    )
    return Table.of("budget", "Round-trip floor by budget", reading, rows)
