"""What the fourth version's rules say of stored runs: the matrix on pocket models and on two real
models, and the third edition's matrix.

Every model of known truth and every candidate is judged alone, as the only candidate of its cell,
with the first 5, 9 and 20 of the cell's references. Nothing is trained. What the third version said
of its own matrix (``rules.csv``, written by version 0.3.0) and the fourth of the same models
(``third-rules.csv``) are stored counts.
Writes CSV files and the tables of ``docs/results.md`` that are made from them.

    python -m palimpsest_trials.edition [NAME ...]
"""

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
THIRD = ROOT / "results" / "third-edition"
COUNTED = ROOT / "results" / "fourth-edition"
"""Gets the counts under today's rules."""
RUNS = {
    "pocket": COUNTED / "pocket.tar.xz",
    "stories15m": COUNTED / "stories15m.tar.xz",
}
"""Run folders without weights, packed by ``palimpsest_trials.archive``."""
PAGES = (ROOT / "docs" / "results.md", ROOT / "results" / "details.md")
BAGS = (5, 9, 20)
"""Numbers of references."""
JUDGED = (Role.RETRAINING, Role.CANDIDATE, Role.KNOWN_LABEL, Role.CONTROL)
COUNTS = ("judged", "rejected", "excluded", "certified")
RULE_COLUMNS = ("role", "model", "references", *COUNTS)
Rows = list[dict[str, str]]

SHOWN = {"pocket": "pocket", "stories15m": "stories15M"}
"""Runs of this edition in the tables, with their titles."""
KEEPING = "known-label models that keep facts"
RESCALED = "rescaled-retrained"
MIXED = tuple(f"{share} % of the injected weights" for share in (5, 10, 25))
KINDS = ("fresh retraining", *MIXED, KEEPING)


def main(names: Sequence[str]) -> None:
    """Write the CSV files of these runs, all if none is named, and put the tables into the page."""
    for name in names or RUNS:
        with TemporaryDirectory() as folder:
            run = unpack_run(name, Path(folder))
        write(f"{name}-rules.csv", RULE_COLUMNS, rule_rows(run))
        write(f"{name}-methods.csv", SETTING_COLUMNS, setting_rows(run))
        write(f"{name}-power.csv", ("share", "detected", "mixtures"), power_rows(run))
    publish(tables())


def unpack_run(name: str, folder: Path) -> RunResults:
    """Return the results of a stored run, unpacked into a folder."""
    unpack(RUNS[name], folder)
    (run,) = folder.iterdir()
    return read_run(run)


def publish(tables: Mapping[str, str]) -> None:
    """Put every table between the marks of its name, on the page that has them."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        (page,) = (page for page, text in texts.items() if begin in text)
        before, _, rest = texts[page].partition(begin)
        texts[page] = before + begin + table + end + rest.partition(end)[2]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


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
    for size in (size for size in BAGS if size <= len(measured.references)):
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
    *("worst", "scale", "left", "cost", "axes"),
)


def setting_rows(run: RunResults) -> Iterator[Sequence[object]]:
    """Yield one row per candidate of the plan, as the run judged it.

    survive, accepted, certified: cells; worst: median of the largest |t| over the axes; scale: as
    far from retrainings as a mixture of this share; left: what is left of the injected weights,
    unless hidden (medians); axes: those furthest out in the cells in which it was not accepted.
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
            _median(one.scale.share for *_, one in mine if one.scale),
            _median(one.left.share for *_, one in mine if one.left),
            round(costs[name], 3),
            ", ".join(f"{axis} {count}" for axis, count in away.most_common(3)),
        )


def _median(values: Iterable[float]) -> float | str:
    known = list(values)
    return round(median(known), 3) if known else ""


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
    return {"level": level_table(), "methods": methods_table(), "bars": bars_table()}


def lines(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return a Markdown table whose first columns are text."""
    marks = [":---"] * left + ["---:"] * (len(head) - left)
    shown = [[str(value).replace("|", "\\|") for value in row] for row in (head, *rows)]
    shown.insert(1, marks)
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def counted(rows: Rows) -> dict[tuple[str, int], str]:
    """Return how many models of a kind were certified, by kind and number of references, with those
    that keep facts together."""
    counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for row in rows:
        kind, size = row["model"], int(row["references"])
        found = Counter({key: int(row[key]) for key in ("certified", "judged")})
        counts[kind, size].update(found)
        if row["role"] == str(Role.KNOWN_LABEL) and kind != RESCALED:
            counts[KEEPING, size].update(found)
    return {key: f"{some['certified']} of {some['judged']}" for key, some in counts.items()}


def level_table() -> str:
    """Return how often models of known truth were certified, by run and number of references."""
    found = {name: counted(read(f"{name}-rules.csv")) for name in SHOWN}
    heads = [(name, n) for name in SHOWN for n in BAGS if (KINDS[0], n) in found[name]]
    rows = [(kind, *(found[name].get((kind, n), "–") for name, n in heads)) for kind in KINDS]
    rows = [row for row in rows if set(row[1:]) != {"–"}]
    return lines(("certified", *(f"{SHOWN[name]}, {n}" for name, n in heads)), rows)


def bars_table() -> str:
    """Return the third and the fourth rules on the same models of the third edition's matrix."""
    found = [counted(read("rules.csv", THIRD)), counted(read("third-rules.csv"))]
    rows = [(k, *(rules[k, n] for n in BAGS for rules in found)) for k in (*KINDS, RESCALED)]
    heads = (f"{rule}, {size}" for size in BAGS for rule in ("third", "fourth"))
    return lines(("certified", *heads), rows)


def methods_table() -> str:
    """Return the best setting of every method on every run: cells certified, scale and cost."""
    stored = {name: read(f"{name}-methods.csv") for name in SHOWN}
    methods = dict.fromkeys(row["method"] for rows in stored.values() for row in rows)
    rows = list[Sequence[object]]()
    for method in methods:
        row = [f"`{method}`"]
        for settings in ([r for r in rows if r["method"] == method] for rows in stored.values()):
            row += _best(settings) if settings else ["–"] * 4
        rows.append(row)
    parts = ("best setting", "certified", "as far as a mixture of", "cost")
    heads = (f"{title}: {part}" for title in SHOWN.values() for part in parts)
    return lines(("method", *heads), rows)


def _best(settings: Rows) -> list[str]:
    """Return what the table shows of the setting that is nearest to retrainings."""
    best = min(settings, key=lambda row: (-int(row["certified"]), float(row["scale"] or "inf")))
    scale = float(best["scale"] or "nan")
    title = best["candidate"].removeprefix(f"{best['method']}-")
    certified = f"{best['certified']} of {best['cells']}"
    shown = "> 100 %" if scale > 1 else f"{100 * scale:.2g} %"
    return [f"{title}, of {len(settings)}", certified, shown, best["cost"]]


if __name__ == "__main__":
    main(sys.argv[1:])
