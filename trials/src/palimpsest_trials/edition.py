"""The fourth version's rules on the third edition's runs: the matrix and the restoration trial.

Every model of known truth and every candidate of the matrix is judged alone, as the only candidate
of its cell, with 5, 9 and 20 of the cell's references. What the third version said of the same
models is stored beside the runs (``rules.csv``, written by version 0.3.0). Nothing is trained.
Writes CSV files and the tables of ``docs/results.md`` that are made from them.

    python -m palimpsest_trials.edition
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from palimpsest.report.results import CellResult, RunResults, read_run
from palimpsest.stats.models import Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Finding
from palimpsest_trials.alone import judged_alone
from palimpsest_trials.archive import unpack

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "results" / "third-edition"
"""Has the run folders without weights, packed by ``palimpsest_trials.archive``."""
COUNTED = ROOT / "results" / "fourth-edition"
"""Gets the counts under today's rules."""
PAGE = ROOT / "docs" / "results.md"
BAGS = (5, 9, 20)
"""Numbers of references."""
JUDGED = (Role.RETRAINING, Role.CANDIDATE, Role.KNOWN_LABEL, Role.CONTROL)
COUNTS = ("judged", "rejected", "excluded", "certified")
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
    with open(COUNTED / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def read(name: str, folder: Path = COUNTED) -> Rows:
    """Return the rows of a stored CSV file."""
    with open(folder / name, newline="", encoding="utf-8") as file:
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
    # Of the mixtures those of the reference with the injected model's draw, which is in no bag.
    names = [
        name
        for name in measured
        if cell.models[name].role in JUDGED
        and (cell.models[name].role is not Role.CONTROL or cell.models[name].of == "reference")
    ]
    for size in BAGS:
        bag = measured.references[:size]
        for name, verdict in judged_alone(measured, names, bag, rules):
            (finding,) = verdict.findings
            compared = finding.comparison
            counts[str(cell.models[name].role), kind_of(cell, name), size].update(
                judged=1,
                rejected=compared is not None and not compared.accepted,
                excluded=finding.excluded,
                certified=verdict.certified,
            )
    return counts


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


# -- tables of the page ----------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Return the tables of the page by the names of their marks, from the CSV files alone."""
    return {
        "bars": bars_table(),
        "rules": rules_table(),
        "methods": methods_table(read("methods.csv")),
        "restoration": restoration_table(),
    }


def lines(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return a Markdown table whose first columns are text."""
    marks = [":---"] * left + ["---:"] * (len(head) - left)
    shown = [[str(value).replace("|", "\\|") for value in row] for row in (head, *rows)]
    shown.insert(1, marks)
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def bars_table() -> str:
    """Return how often models of known truth were certified, by the third and the fourth rules."""
    kinds = {
        "fresh retraining": "fresh retrainings",
        "rescaled-retrained": "retrainings with rescaled weights",
        "5 % of the injected weights": "5 % of the injected weights",
        "10 % of the injected weights": "10 % of the injected weights",
        "25 % of the injected weights": "25 % of the injected weights",
    }
    rows = list[Sequence[object]]()
    for kind, title in kinds.items():
        counts = [
            f"{row['certified']} of {row['judged']}"
            for size in BAGS
            for folder in (FOLDER, COUNTED)
            for row in read("rules.csv", folder)
            if (row["model"], int(row["references"])) == (kind, size)
        ]
        rows.append((title, *counts))
    hiding = [
        [row for row in read("rules.csv", folder) if row["references"] == str(size)]
        for size in BAGS
        for folder in (FOLDER, COUNTED)
    ]
    counts = list[str]()
    for every in hiding:
        known = [row for row in every if row["role"] == str(Role.KNOWN_LABEL)]
        keep = [row for row in known if row["model"] != "rescaled-retrained"]
        certified, judged = (sum(int(row[key]) for row in keep) for key in ("certified", "judged"))
        counts.append(f"{certified} of {judged}")
    rows.append(("known-label models that keep facts", *counts))
    heads = (f"{rule}, {size}" for size in BAGS for rule in ("third", "fourth"))
    return lines(("certified", *heads), rows)


def rules_table() -> str:
    """Return the fourth rules on every kind of model."""
    cells = {(row["model"], int(row["references"])): row for row in read("rules.csv")}
    rows, never = list[Sequence[object]](), list[str]()
    for model in dict.fromkeys(model for model, _ in cells):
        bags = [cells[model, size] for size in BAGS]
        if all(row["certified"] == "0" for row in bags):
            never.append(f"{model} {bags[0]['judged']}")
            continue
        counts = (row[key] for row in bags for key in ("rejected", "certified"))
        rows.append((model, bags[0]["judged"], *counts))
    heads = (f"{what}, {size}" for size in BAGS for what in ("rejected", "certified"))
    table = lines(("model", "models", *heads), rows)
    return f"{table}\nNever certified: {', '.join(never)}.\n"


def methods_table(stored: Rows) -> str:
    """Return every held vector, and the best setting of every other method."""
    by_method: dict[str, Rows] = defaultdict(list)
    for row in stored:
        by_method[row["method"]].append(row)
    rows = list[Sequence[object]]()
    for method, settings in by_method.items():
        best = max(settings, key=lambda row: (int(row["accepted"]), -float(row["worst"])))
        for row in settings if method == "held_vector" else [best]:
            title = f"`{row['candidate']}`"
            title += f", best of {len(settings)}" if method != "held_vector" else ""
            passes = [
                f"{row[key]} of {row['cells']}" for key in ("survive", "accepted", "certified")
            ]
            rows.append((title, row["axes"] or "–", row["worst"], row["cost"], *passes))
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


if __name__ == "__main__":
    main()
