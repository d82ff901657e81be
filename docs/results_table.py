"""Write the tables of docs/results.md anew from stored scores: ``python docs/results_table.py``.

The paper's figures are in results/paper/figures.csv, the first edition's in
results/first-edition/figures.csv; every number of the second edition comes from the run folders.
The remarks are written by hand, by key.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from headlines import ours, paper_figures

from palimpsest.report.leaderboard import leaderboard_table, ranks_table
from palimpsest.report.results import RunResults, read_run
from palimpsest.paper.second_suite import compared, regret_table
from palimpsest.report.table import Share, Table, row
from palimpsest.paper.trained_probes import diagnostic_table
from palimpsest.stats.axes import chosen
from palimpsest.stats.intervals import clopper_pearson
from palimpsest.stats.screen import screen_candidates
from palimpsest.config.presets import PAPER_POOL
from palimpsest.report.cell_tables import candidates_table, control_rates_table, controls_table
from palimpsest.report.formats import as_markdown
from palimpsest.engine.inferability import read_inferability
from palimpsest.stats.verdict import Finding

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"
MATRIX = RESULTS / "pocket"

REMARKS = {
    "trained-probe-mean": "pocket answers hold about 2 nats of knowledge in all, the paper's 5",
    "trained-probe-mean-probes": "as above",
    "trained-probe-median": "as above",
    "rollback": "rollback destroys the retain set in all of them",
    "loss-based-excluded": "GA and NPO over-forget here; the screen looks for what is left",
    "diagnostic": "smaller models, smaller gaps; the order is the paper's",
    "n4-vacuous": "as Proposition 1 says",
    "screen-excluded": "GA and NPO, which over-forget, are excluded less often here",
    "at-floor": "the same lattice",
    "survivors": "as above",
    "survivor-gap": "survivors are mostly over-forgetters in all of them",
    "survivor-equivalent": "as above: survivors that over-forget are not equivalent",
    "injected-retain": "the pocket dose was set to a median of 1 nat",
    "injected-residual": "first edition: mean of the two parts; second: their sum, as in the paper",
    "reference-screen": "an error rate of 5 % expects 43",
    "reference-retain": "a reference knows its retain facts as the injected model does",
    "reference-residual": "first edition: mean of the two parts; second: their sum",
    "reference-all": "the paper's conclusion holds: the bar rejects retraining itself",
    "absolute-candidates": "all are GA or NPO, which fit the retain facts further",
    "injected-retain-nll": "by choice of the dose",
    "floor": "sum instead of mean",
    "shortest-budget": "first edition: mean of the two parts; second: their sum",
    "delta-range": "float32 on a CPU; smaller models",
    "delta-median": "as above",
    "panel-injected": "as in the paper",
    "panel-reference": "an error rate of 5 % expects 43",
    "panel-interpolation": "share of injected weights left; first edition: way to the reference",
    "panel-router": "the router answers as base where a forget name occurs",
    "panel-suppression-screen": "a penalty of 10 lies far above 3-nat answers",
    "panel-suppression-forward": "the penalty overshoots the reference",
    "panel-suppression-relearning": "as above",
    "panel-embedding": "as in the paper",
    "residual-selection": "against the paper: GA and NPO stay near the injected model's residual",
    "certified": "by the paper's recalibrated bar, not by this edition's certificate",
    "certified-cells": "as above",
    "abstaining": "as above",
    "certified-by-method": "as above",
    "noisiest-family": "8 are too few to say more",
    "global-minimum": "tolerances differ less between families than in the paper",
    "with-veto": "the veto takes none of the 8",
    "selection-recalibrated": "mean over the 8 cells that certify",
    "selection-absolute-bar": "in none of those 8 cells does a candidate clear the absolute bar",
    "selection-trained-probe": "over the same 8 cells",
    "headroom-spearman": "the paper has alias alone; first edition: kin of pocket/olmo2-s",
    "headroom-error": "as above",
    "tofu-excluded": "not run again",
    "tofu-diagnostic": "not run again",
}


def targets(results: RunResults) -> Iterator[dict[str, object]]:
    """Yield what the matrix was to reach, and what it came to."""
    verdicts = [verdict for _, verdict in results.judged]
    cells = len(verdicts)
    controls = [
        (cell.roles[control.name], control)
        for cell, verdict in results.judged
        for control in verdict.controls
        if control.comparison is not None
    ]
    fresh = [not control.rejected for _, control in controls if control.kind == "retraining"]
    yield _target("fresh retrainings accepted", sum(fresh), len(fresh), at_least=0.93)
    known = [(role, c) for role, c in controls if c.kind == "suppressor"]
    blind = [c for role, c in known if "schedule" not in role.get("knows", ())]
    passed = sum(not control.rejected for control in blind)
    title = "known-label models that do not know the schedule, accepted"
    yield _target(title, passed, len(blind), at_most=0)
    knowing = [c for role, c in known if "schedule" in role.get("knows", ())]
    passed = sum(not control.rejected for control in knowing)
    yield _target("known-label models that know the schedule, accepted", passed, len(knowing))
    certified = sum(verdict.certified for verdict in verdicts)
    yield _target("cells that certify a candidate", certified, cells, at_least=30 / 45)
    methods = [
        cell.methods[verdict.candidate] for cell, verdict in results.judged if verdict.candidate
    ]
    yield _target("of these, by replay", methods.count("replay"), len(methods))
    pushed = [
        finding.clears
        for cell, verdict in results.judged
        for finding in verdict.findings
        if cell.methods[finding.name] in ("ga", "npo")
    ]
    yield _target("GA and NPO candidates that pass", sum(pushed), len(pushed), at_most=0)
    low = [v.detection_limit is not None and v.detection_limit <= 0.1 for v in verdicts]
    yield _target("cells with a detection limit of at most 10 %", sum(low), cells, at_least=40 / 45)


def _target(
    title: str,
    count: int,
    total: int,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, object]:
    interval = clopper_pearson(count, total) if total else None
    share = "" if interval is None else f"{interval.low:.1%} to {interval.high:.1%}"
    wanted, reached = "", ""
    if at_least is not None:
        wanted = f"at least {at_least:.0%}"
        reached = "yes" if count >= at_least * total - 1e-9 else "no"
    if at_most is not None:
        wanted, reached = f"at most {at_most:g}", "yes" if count <= at_most else "no"
    return row("what|found", title, Share(count, total)) | row(
        "95 % interval|wanted|reached", share, wanted, reached
    )


def targets_table(results: RunResults) -> Table:
    """Return the targets and whether they were reached."""
    reading = f"{len(results.cells)} of {len(results.planned)} planned cells."
    return Table.of("targets", "What the matrix was to show", reading, list(targets(results)))


def settings_table(results: RunResults) -> Table:
    """Return every candidate of the pool over all cells: how often it passes, at what cost."""
    groups: dict[str, list[tuple[object, object]]] = {}
    for cell, verdict in results.judged:
        for finding in verdict.findings:
            groups.setdefault(finding.name, []).append((cell, finding))
    ranks = ranks_table({"pocket": results})
    tests = {str(one["candidate"]): one for one in ranks.records()}
    rows = []
    for name, mine in groups.items():
        costs = [cell.roles[name].get("cost") for cell, _ in mine]
        paid = [float(cost["retrainings"]) for cost in costs if cost]
        worst = [
            abs(f.comparison.worst.sd)
            for _, f in mine
            if f.comparison is not None and f.comparison.worst.sd is not None
        ]
        rows.append(
            row("candidate", name)
            | row("screened out", Share(sum(f.excluded for _, f in mine), len(mine)))
            | row("passes", Share(sum(f.clears for _, f in mine), len(mine)))
            | row("worst axis, sd, median", median(worst) if worst else None)
            | row("cost, retrainings", median(paid) if paid else None)
            | row("p over cells (Holm)", tests[name]["p (Holm)"] if name in tests else None)
        )
    forms = {"worst axis, sd, median": ".1f", "cost, retrainings": ".2f"}
    forms["p over cells (Holm)"] = ".2g"
    reading = f"passes: indistinguishable from a retraining in its cell. {ranks.reading}"
    return Table.of("settings", "Every candidate over all cells", reading, rows, forms)


def choice_table(results: RunResults) -> Table:
    """Return how near three choices of replay's knobs come, from the facts vector.

    Without references: the coefficient at which forget and probe deltas are nearest to each other
    (share 0.1), then the share at which retain facts are nearest to the injected model's level.
    """
    picks: dict[str, list[tuple[bool, float]]] = {}
    for cell, verdict in results.judged:
        grid = {
            (knobs["coefficient"], knobs["share"]): verdict.finding(name)
            for name in cell.candidates
            if (knobs := cell.roles[name].get("knobs", {})).get("start") == "facts_vector"
            and knobs.get("speed", 1.0) == 1.0
        }
        far = {key: _sd(finding) for key, finding in grid.items()}
        models = {key: cell.evaluation[finding.name] for key, finding in grid.items()}
        level = cell.evaluation.injected.need("retain_nll")

        def gap(coefficient: float, models: dict = models) -> float:
            model = models[coefficient, 0.1]
            return abs(model.median_forget_delta - model.median_probe_delta)

        def off(share: float, models: dict = models, level: float = level) -> float:
            return abs(models[chosen, share].need("retain_nll") - level)

        chosen = min({key[0] for key in grid}, key=gap)
        share = min({key[1] for key in grid}, key=off)
        for title, key in (
            ("without references: deltas meet, retain facts at the injected model's level",
             (chosen, share)),
            ("fixed: coefficient 1, share 0.1", (1.0, 0.1)),
            ("with references: the nearest of the nine", min(far, key=lambda key: far[key])),
        ):  # fmt: skip
            picks.setdefault(title, []).append((grid[key].clears, far[key]))
    rows = [
        row("choice", title)
        | row("passes", Share(sum(passed for passed, _ in mine), len(mine)))
        | row("worst axis, sd, median", median(distance for _, distance in mine))
        for title, mine in picks.items()
    ]
    forms = {"worst axis, sd, median": ".1f"}
    return Table.of("choice", "Choosing the knobs of replay", "", rows, forms)


def _sd(finding: Finding) -> float:
    assert finding.comparison is not None and finding.comparison.worst.sd is not None
    return abs(finding.comparison.worst.sd)


def paper_pool(results: RunResults) -> RunResults:
    """Return the run with the candidates of the paper's pool alone, screened by themselves."""
    methods = {grid.name for grid in PAPER_POOL}
    cells = []
    for cell in results.cells:
        kept = tuple(name for name in cell.candidates if cell.methods[name] in methods)
        screen = screen_candidates(cell.evaluation, kept, results.rules)
        cells.append(replace(cell, candidates=kept, screen=screen))
    return replace(results, cells=tuple(cells))


def figures(results: RunResults) -> str:
    """Return the paper's figures beside those of both editions."""
    with (RESULTS / "first-edition" / "figures.csv").open(encoding="utf-8", newline="") as file:
        first = {one["key"]: one for one in csv.DictReader(file)}
    second = ours(paper_pool(results)) | _headroom()
    lines = [
        "| figure | paper | first edition | second edition | remark |",
        "|---|---|---|---|---|",
    ]
    for one in paper_figures():
        key = one["key"]
        before = first.get(key, {}).get("pocket matrix") or "–"
        cells = (one["figure"], one["paper"], before, second.get(key) or "–", REMARKS[key])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _headroom() -> dict[str, str]:
    """Return the range of the agreement over the models that were run, by mechanism."""
    agreements = [
        one
        for path in sorted((RESULTS / "inferability").glob("*/"))
        for one in read_inferability(path)[1]
    ]
    ranks, errors = [], []
    for mechanism in ("kin", "alias"):
        mine = [one for one in agreements if one.mechanism == mechanism]
        if mine:
            rank = sorted(one.rank_correlation.estimate for one in mine)
            error = sorted(one.absolute_error.estimate for one in mine)
            ranks.append(f"{mechanism} {rank[0]:.2f} to {rank[-1]:.2f}")
            errors.append(f"{mechanism} {error[0]:.2f} to {error[-1]:.2f}")
    return {"headroom-spearman": ", ".join(ranks), "headroom-error": ", ".join(errors)}


def inferability() -> str:
    """Return the agreement of estimated and true headroom, model by model."""
    rows = []
    for path in sorted((RESULTS / "inferability").glob("*/")):
        for one in read_inferability(path)[1]:
            rank, error = one.rank_correlation, one.absolute_error
            rows.append(
                row("model|mechanism|levels", path.name, one.mechanism, one.levels)
                | row("Spearman", f"{rank.estimate:.2f} [{rank.low:.2f}, {rank.high:.2f}]")
                | row("error, nats", f"{error.estimate:.2f} [{error.low:.2f}, {error.high:.2f}]")
            )
    return as_markdown(Table.of("inferability", "Estimated and true headroom", "", rows))


def blocks() -> Iterator[tuple[str, str]]:
    """Yield every generated part of the page by its mark; a run that is not there has none."""
    results = read_run(MATRIX)
    runs = {"pocket": results}
    yield "targets", as_markdown(targets_table(results))
    yield "controls", as_markdown(control_rates_table(results))
    yield "methods", as_markdown(leaderboard_table(runs))
    yield "settings", as_markdown(settings_table(results))
    yield "choice", as_markdown(choice_table(results))
    yield "regret", as_markdown(regret_table(results))
    if (RESULTS / "pocket-second").exists():
        yield "second", as_markdown(compared(MATRIX, RESULTS / "pocket-second"))
    if (RESULTS / "inferability").exists():
        yield "inferability", inferability()
    for name in ("breadth", "fair-sweep", "smollm2"):
        if (RESULTS / name).exists():
            run = read_run(RESULTS / name)
            parts = [leaderboard_table({name: run})]
            if name != "smollm2":
                parts.insert(0, control_rates_table(run))
            if name == "fair-sweep":
                parts.append(diagnostic_table(run))
            if name == "smollm2":
                axes = [one.title for one in chosen(run.rules)]
                columns = ["candidate", "p", "restored", *axes]
                parts.append(candidates_table(run).only(columns))
                parts.append(controls_table(run).only(["control", "was", *columns[1:]]))
            yield name, "\n".join(as_markdown(table) for table in parts)
    yield "figures", figures(results)


def main() -> None:
    """Replace what stands between the marks of each part."""
    text = PAGE.read_text(encoding="utf-8")
    for name, body in blocks():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        if not found:
            raise SystemExit(f"{PAGE}: the mark {begin} is missing; expected one for each part")
        text = f"{before}{begin}\n{body.rstrip()}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
