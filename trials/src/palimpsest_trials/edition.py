"""The tables of the third edition, from its two run folders: the matrix and the restoration trial.

Every model of known truth and every candidate of the matrix is judged alone, as the only candidate
of its cell, with 5, 9 and 20 of the cell's references: by the second rule and by the third. Nothing
is trained. Writes the CSV files beside the run and the tables of ``docs/results.md`` that are made
from them.

    python -m palimpsest_trials.edition
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from palimpsest.paper.study import read_paper
from palimpsest.report.results import CellResult, RunResults, read_run
from palimpsest.stats.axes import chosen
from palimpsest.stats.controls import axis_values
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Finding, Verdict, decide
from palimpsest_trials.archive import unpack
from palimpsest_trials.headlines import ours

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "results" / "third-edition"
"""Has the run folders without weights, packed by ``palimpsest_trials.archive``."""
PAGE = ROOT / "docs" / "results.md"
BAGS = (5, 9, 20)
"""Numbers of references."""
JUDGED = (Role.RETRAINING, Role.CANDIDATE, Role.KNOWN_LABEL, Role.CONTROL)
COUNTS = ("judged", "second", "rejected", "excluded", "certified")
RULE_COLUMNS = ("role", "model", "references", *COUNTS)
Rows = list[dict[str, str]]


def main() -> None:
    """Write the CSV files and put their tables into the page."""
    with TemporaryDirectory() as folder:
        run, trial = (unpack_run(name, Path(folder)) for name in ("pocket", "restoration"))
    write("rules.csv", RULE_COLUMNS, rule_rows(run))
    write("methods.csv", SETTING_COLUMNS, setting_rows(run))
    write("restoration-rules.csv", RULE_COLUMNS, rule_rows(trial))
    write("restoration.csv", SETTING_COLUMNS, setting_rows(trial))
    write("power.csv", ("share", "detected", "mixtures"), power_rows(run))
    write("figures.csv", ("key", "third edition"), figure_rows(run))
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        page = put(page, name, table)
    PAGE.write_text(page, encoding="utf-8")


def unpack_run(name: str, folder: Path) -> RunResults:
    """Return the results of a stored run, unpacked into a folder."""
    unpack(FOLDER / f"{name}.tar.xz", folder)
    return read_run(folder / name)


def put(page: str, name: str, table: str) -> str:
    """Return the page with a table between the marks of its name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    assert found and end in rest, f"docs/results.md has no marks for {name}"
    return before + begin + table + end + rest.partition(end)[2]


def write(name: str, columns: Sequence[str], rows: Iterator[Sequence[object]]) -> None:
    """Write a CSV file beside the run."""
    with open(FOLDER / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def read(name: str) -> Rows:
    """Return the rows of a stored CSV file."""
    with open(FOLDER / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- every model judged alone ----------------------------------------------------------------------


def rule_rows(run: RunResults) -> Iterator[Sequence[object]]:
    """Yield role and kind of model, number of references, and the counts."""
    counts: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    with ProcessPoolExecutor() as pool:
        for found in pool.map(partial(count_cell, rules=run.rules), run.cells):
            for key, more in found.items():
                counts[key].update(more)
    for key in sorted(counts):
        yield (*key, *(counts[key][column] for column in COUNTS))


def count_cell(cell: CellResult, rules: Rules) -> dict[tuple[str, str, int], Counter[str]]:
    """Return the counts of one cell by role, kind of model and number of references."""
    counts: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    measured = cell.evaluation
    for size in BAGS:
        for name, bag, verdict in judged_alone(cell, rules, size):
            (finding,) = verdict.findings
            compared = finding.comparison
            counts[str(cell.models[name].role), kind_of(cell, name), size].update(
                judged=1,
                second=second_rule(measured[name], [measured[n] for n in bag], rules),
                rejected=compared is not None and not compared.accepted,
                excluded=finding.excluded,
                certified=verdict.certified,
            )
    return counts


def judged_alone(
    cell: CellResult, rules: Rules, size: int
) -> Iterator[tuple[str, Sequence[str], Verdict]]:
    """Yield every model to be judged in a cell, the references used and the verdict on it alone.

    Of the mixtures only those of the reference with the injected model's draw, which is in no bag.
    """
    measured = cell.evaluation
    records = {name: cell.models[name] for name in measured}
    bag = [n for n, m in records.items() if m.role is Role.REFERENCE and not m.same_draw]
    bag = sorted(bag, key=lambda name: records[name].seed_no or 0)[:size]
    free = [n for n, m in records.items() if m.role is Role.CONTROL and m.of not in bag]
    for name, model in records.items():
        if model.role not in JUDGED or (model.role is Role.CONTROL and model.of != "reference"):
            continue
        names = ("base", "injected", *bag, *(other for other in free if other != name), name)
        mine = {other: records[other] for other in names}
        mine[name] = replace(model, role=Role.CANDIDATE, truth="", of="", share=None)
        alone = CellMeasures(
            measured.pool,
            measured.forget_facts,
            measured.probe_facts,
            {other: measured[other] for other in names},
            mine,
        )
        verdict = decide(alone, rules)
        assert verdict is not None
        yield name, bag, verdict


def second_rule(model: ModelMeasures, references: Sequence[ModelMeasures], rules: Rules) -> bool:
    """Return whether the second edition's exact test rejects a model; never with few references.

    Its nine axes end with the level after the last chunk of re-acquisition. A model's score is its
    largest |z| in a bag that it is part of, its p-value the share of the bag that scores as much.
    """
    if len(references) < 19:
        return False
    left = ("relearn_mid", "retain_mid", "trained_mid")
    axes = [axis for axis in chosen(rules) if axis.name not in left]
    bag = np.array(
        [[*axis_values(one, axes), _last_level(one)] for one in (model, *references)], float
    )
    spread = bag.std(axis=0)
    scores = np.abs((bag - bag.mean(axis=0)) / np.where(spread > 0, spread, 1)).max(axis=1)
    p = np.mean(scores >= scores[0] - 1e-9)
    return bool(not np.isfinite(bag[0]).all() or p <= rules.alpha)


def _last_level(model: ModelMeasures) -> float:
    return float("nan") if model.curve is None else float(model.curve.forget_heldout_nll[-1])


def kind_of(cell: CellResult, name: str) -> str:
    """Return how a model is counted: by its kind, share or method."""
    model = cell.models[name]
    if model.role is Role.RETRAINING:
        return "fresh retraining"
    if model.role is Role.CONTROL:
        return f"{100 * (model.share or 0):g} % of the injected weights"
    return model.method or name.removeprefix("known-")


# -- candidates and mixtures as the run judged them ------------------------------------------------

SETTING_COLUMNS = (
    *("method", "candidate", "cells", "survive", "accepted", "certified"),
    *("worst", "cost", "axes"),
)
CHEAP = (0.5, 1.0)
"""Costs in retrainings that a restoring method should stay below."""


def setting_rows(run: RunResults) -> Iterator[Sequence[object]]:
    """Yield one row per candidate of the plan, then the cells in which any restoring one passes.

    survive, accepted, certified: cells; worst: median of the largest |t| over the axes; axes: those
    furthest out in the cells in which it was not accepted.
    """
    found: dict[str, list[tuple[CellResult, bool, Finding]]] = defaultdict(list)
    for cell, verdict in run.judged:
        for finding in verdict.findings:
            found[finding.name].append((cell, verdict.certified and finding.clears, finding))
    costs = {name: mean_cost(name, [cell for cell, *_ in mine]) for name, mine in found.items()}
    for name, mine in found.items():
        compared = [finding.comparison for *_, finding in mine if finding.comparison]
        away = Counter(
            f"{gap.axis} {'+' if gap.t > 0 else '−'}"
            for gap in (one.worst for one in compared if not one.accepted)
        )
        yield (
            mine[0][0].method(name),
            name,
            len(mine),
            sum(not finding.excluded for *_, finding in mine),
            sum(finding.clears for *_, finding in mine),
            sum(certified for _, certified, _ in mine),
            round(median(abs(one.worst.t) for one in compared), 2),
            round(costs[name], 3),
            ", ".join(f"{axis} {count}" for axis, count in away.most_common(3)),
        )
    for limit in CHEAP:
        names = [name for name in found if costs[name] <= limit]
        cells = {cell.id for name in names for cell, certified, _ in found[name] if certified}
        yield (
            "any",
            f"any at a cost of at most {limit:g}",
            len(run.cells),
            "",
            "",
            len(cells),
            *3 * [""],
        )


def mean_cost(name: str, cells: Sequence[CellResult]) -> float:
    """Return a candidate's cost in retrainings, averaged over cells."""
    costs = [cell.models[name].cost for cell in cells]
    return float(np.mean([cost.retrainings for cost in costs if cost is not None]))


def power_rows(run: RunResults) -> Iterator[Sequence[object]]:
    """Yield share, mixtures detected and mixtures, over all cells and references mixed."""
    detected: Counter[float] = Counter()
    tried: Counter[float] = Counter()
    for _, verdict in run.judged:
        for power in verdict.powers:
            detected[power.share] += power.noticed
            tried[power.share] += power.tried
    for share in sorted(tried):
        yield share, detected[share], tried[share]


def figure_rows(run: RunResults) -> Iterator[Sequence[object]]:
    """Yield the paper's headline figures in this edition."""
    study = read_paper(run)
    assert study is not None
    for key, value in ours(study).items():
        yield key, value or ""


# -- tables of the page ----------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Return the tables of the page by the names of their marks, from the CSV files alone."""
    return {
        "bars": bars_table(),
        "rules": rules_table(),
        "methods": methods_table(read("methods.csv")),
        "restoration": restoration_table(),
        "figures": figures_table(),
    }


def lines(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return a Markdown table whose first columns are text."""
    marks = [":---"] * left + ["---:"] * (len(head) - left)
    shown = [[str(value).replace("|", "\\|") for value in row] for row in (head, *rows)]
    shown.insert(1, marks)
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def bars_table() -> str:
    """Return what was wanted of this edition beside what came out."""
    judged = {row["model"]: row for row in read("rules.csv") if row["references"] == "20"}
    methods = {row["candidate"]: row for row in read("methods.csv")}
    mixtures = {row["share"]: row for row in read("power.csv")}
    fresh, tenth = judged["fresh retraining"], judged["10 % of the injected weights"]
    rescaled = judged["rescaled-retrained"]
    keeps = [row for row in judged.values() if row["role"] == "known_label" and row != rescaled]
    trial = {row["candidate"]: row for row in read("restoration.csv")}
    cheap, below = (restored_cells(methods, trial, limit) for limit in CHEAP)
    suppress = [judged[name] for name in ("ga", "npo", "gate_mask", "kl_reversion")]

    def accepted(rows: Sequence[dict[str, str]]) -> str:
        total = sum(int(row["judged"]) for row in rows)
        return f"{total - sum(int(row['rejected']) for row in rows)} of {total}"

    def certified(rows: Sequence[dict[str, str]]) -> str:
        total = sum(int(row["judged"]) for row in rows)
        return f"{sum(int(row['certified']) for row in rows)} of {total}"

    some = mixtures["0.1"]
    all_mixtures = f"{some['detected']} of {some['mixtures']} mixtures of five references"
    rows = [
        ("fresh retrainings accepted by the comparison", "216 of 225", "≥ 95 %", accepted([fresh])),
        ("certified by a whole audit of one", "200 of 225", "≥ 92 %", certified([fresh])),
        ("10 % of the injected weights detected", "37 of 45", "≥ 43 of 45",
         f"{tenth['rejected']} of {tenth['judged']} ({all_mixtures})"),
        ("known-label models that keep facts, accepted", "0 of 585", "0", accepted(keeps)),
        ("rescaled retraining accepted", "2 of 27", "as fresh ones", accepted([rescaled])),
        ("cells with a certified method of at most half a retraining", "0", "≥ 25 of 45",
         cheap),
        ("the same below one retraining", "0", "≥ 35 of 45", below),
        ("GA, NPO, mask, KL reversion certified", "0", "0", certified(suppress)),
    ]  # fmt: skip
    return lines(("what", "second edition", "wanted", "third edition"), rows)


def restored_cells(
    matrix: dict[str, dict[str, str]], trial: dict[str, dict[str, str]], limit: float
) -> str:
    """Return in how many cells a method of at most this cost is certified: matrix, then trial."""
    name = f"any at a cost of at most {limit:g}"
    first, second = (
        f"{rows[name]['certified']} of {rows[name]['cells']}" for rows in (matrix, trial)
    )
    return f"{first}; `held_vector` as it now is, on other seeds: {second}"


def rules_table() -> str:
    """Return the second and third rule on the same models."""
    cells = {(row["model"], int(row["references"])): row for row in read("rules.csv")}
    rows, always = list[Sequence[object]](), list[str]()
    for model in dict.fromkeys(model for model, _ in cells):
        few, nine, most = (cells[model, size] for size in BAGS)
        if {most["second"], *(row["rejected"] for row in (few, nine, most))} == {most["judged"]}:
            always.append(f"{model} {most['judged']}")
            continue
        counts = [most["second"], few["rejected"], nine["rejected"], most["rejected"]]
        rows.append((model, most["judged"], *counts, most["certified"]))
    head = ("model", "models", "second rule rejects", "third, 5 references", "third, 9")
    table = lines((*head, "third, 20", "whole audit certifies, 20"), rows)
    return f"{table}\nRejected by both rules every time: {', '.join(always)}.\n"


def methods_table(stored: Rows) -> str:
    """Return every held vector, and the best setting of every other method."""
    by_method: dict[str, Rows] = defaultdict(list)
    for row in stored:
        by_method[row["method"]].append(row)
    rows = list[Sequence[object]]()
    for method, settings in by_method.items():
        if method == "any":
            continue
        best = max(settings, key=lambda row: (int(row["accepted"]), -float(row["worst"])))
        for row in settings if method == "held_vector" else [best]:
            title = f"`{row['candidate']}`"
            title += f", best of {len(settings)}" if method != "held_vector" else ""
            passes = [
                f"{row[key]} of {row['cells']}" for key in ("survive", "accepted", "certified")
            ]
            rows.append((title, row["axes"] or "–", row["worst"], row["cost"], *passes))
    rows += [
        (row["candidate"], "", "", "", "", "", f"{row['certified']} of {row['cells']}")
        for row in by_method["any"]
    ]
    head = ("candidate", "furthest out where rejected, cells", "median worst |t|")
    return lines((*head, "cost, retrainings", "survives screen", "accepted", "certified"), rows, 2)


def restoration_table() -> str:
    """Return the settings of the restoration trial, and its controls."""
    judged = [row for row in read("restoration-rules.csv") if row["references"] == "20"]
    controls = [
        f"{row['model']} {row['rejected']} of {row['judged']}"
        for row in judged
        if row["role"] != str(Role.CANDIDATE)
    ]
    table = methods_table(read("restoration.csv"))
    return f"{table}\nControls, rejected by the comparison: {', '.join(controls)}.\n"


def figures_table() -> str:
    """Return the paper's headline figures beside those of the editions."""
    with open(ROOT / "results" / "paper" / "figures.csv", newline="", encoding="utf-8") as file:
        paper = list(csv.DictReader(file))
    ours = {row["key"]: row["third edition"] for row in read("figures.csv")}
    rows = [(row["figure"], row["paper"], ours.get(row["key"]) or "–") for row in paper]
    return lines(("figure", "paper", "third edition"), rows, left=3)


if __name__ == "__main__":
    main()
