"""What the audit says of foreign cells: every check that can refuse, on what it must accept.

A cell is measured once, with all of its models as candidates. Every model of known nature is then
judged alone, with 5, 9 and 20 of the references: fresh retrainings must be certified; mixtures,
suppressed models and the injected model must not. Injected models of wrong recipes take the
injected model's place in the check of recipes. With one reference only what is left is bounded.
"""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest import api
from palimpsest.report.results import read_run
from palimpsest.stats.controls import check_recipe
from palimpsest.stats.intervals import clopper_pearson
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.rules import Rules
from palimpsest.stats.share import make_ruler
from palimpsest_trials.alone import judged_alone

BAGS = (5, 9, 20)
"""Numbers of references."""
TAUGHT = 0.5
"""A cell counts if the injected model's NLL of the forget answers is at most this share of base's:
else nothing was taught that could be forgotten. Base and injected model alone decide."""
SUPPRESSED = ("ascent", "reverted")
COLUMNS = ("cell", "kind", "references", "model", "rejected", "excluded", "certified", "reason",
           "p", "share", "bound", "scale", "retain_share", "inferable")  # fmt: skip


def audit_named(cell: tuple[Path, Path]) -> str:
    """Audit a cell in a worker process and say what became of it."""
    folder, out = cell
    try:
        audit_cell(folder, out)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    return "audited"


def audit_cell(folder: Path, out: Path) -> None:
    """Audit a cell with the default settings; its run folder is written to ``out``."""
    api.audit(
        folder / "base", folder / "injected", None, folder / "forget.jsonl",
        folder / "retain.jsonl", folder / "probe.jsonl", folder / "general.txt",
        candidates_folder=folder / "candidates", references_folder=folder / "references",
        out=out, beacon="foreign cells",
    )  # fmt: skip


def taught(folder: Path) -> bool:
    """Tell whether the facts of a cell were taught at all."""
    nll = json.loads((folder / "cell.json").read_text())["nll"]
    return bool(nll["injected"]["forget"] <= TAUGHT * nll["base"]["forget"])


def kind_of(name: str) -> str:
    """Return what a model of a cell is: fresh, mixture-10, ascent, reverted, injected."""
    head, _, number = name.rpartition("-")
    return head if number.isdigit() else name


def cell_rows(folder: Path, out: Path, rules: Rules) -> Iterator[dict[str, Any]]:
    """Yield one row per model, number of references and question asked of it."""
    (cell,) = read_run(out).cells
    measured = cell.evaluation
    references = measured.references
    known = [name for name in cell.candidates if not name.startswith("wrong-")] + ["injected"]
    for size in (size for size in BAGS if size <= len(references)):
        bag = references[:size]
        for name, verdict in judged_alone(measured, known, bag, rules):
            (finding,) = verdict.findings
            compared, left, scale = finding.comparison, finding.left, finding.scale
            why = f"{verdict.reason or ''}" + (f"/{verdict.because}" if verdict.because else "")
            yield {"cell": folder.name, "kind": kind_of(name), "references": size} | {
                "model": name, "rejected": bool(compared and not compared.accepted),
                "excluded": finding.excluded, "certified": verdict.certified, "reason": why,
                "p": compared and compared.p, "share": left and left.share,
                "bound": left and left.bound, "scale": scale and scale.share,
                "inferable": verdict.inferable_share,
            }  # fmt: skip
        for name in ("injected", *(n for n in cell.candidates if n.startswith("wrong-"))):
            found = check_recipe(in_place(measured, name), bag)
            yield {"cell": folder.name, "kind": f"recipe of {name}", "references": size} | {
                "model": name, "rejected": bool(found and found.failing),
                "retain_share": found and found.retain_share,
            }  # fmt: skip
    mixed = [n for n in references if any(r.of == n for r in measured.records.values())]
    for reference in mixed:
        ruler = make_ruler(measured, [reference])
        for name in known:
            left = None if ruler is None else ruler.left(measured[name])
            yield {"cell": folder.name, "kind": kind_of(name), "references": 1, "model": name} | {
                "share": left and left.share, "bound": left and left.bound,
                "certified": left is not None and left.bound < rules.most_left,
            }  # fmt: skip


def in_place(cell: CellMeasures, name: str) -> CellMeasures:
    """Return the cell with a model in the injected model's place."""
    models = dict(cell.models) | {"injected": replace(cell[name], name="injected")}
    return replace(cell, models=models)


def write_rows(folders: Sequence[Path], outs: Sequence[Path], file: Path) -> None:
    """Write the rows of the cells in which something was taught."""
    rules = Rules()
    with open(file, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for folder, out in zip(folders, outs):
            if taught(folder) and (out / "rosters.json").exists():
                for row in cell_rows(folder, out, rules):
                    writer.writerow({key: _plain(value) for key, value in row.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return f"{value:.6g}" if isinstance(value, float) else value


def summary(file: Path) -> str:
    """Return the counts of a file of rows as a Markdown table, with 95 % intervals."""
    with open(file, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["references"]].append(row)
    lines = ["| model | references | certified | rejected | excluded | refused by other checks |",
             "| :--- | ---: | ---: | ---: | ---: | :--- |"]  # fmt: skip
    for (kind, size), mine in groups.items():
        recipe = kind.startswith("recipe")
        column = "rejected" if recipe else "certified"
        count, total = sum(row[column] == "1" for row in mine), len(mine)
        interval = clopper_pearson(count, total)
        shown = f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"
        other = Counter(row["reason"] for row in mine if row["reason"])
        why = ", ".join(f"{name} {n}" for name, n in other.most_common())
        cells = ["", shown] if recipe else [shown, _count(mine, "rejected")]
        lines.append(f"| {' | '.join([kind, size, *cells, _count(mine, 'excluded'), why])} |")
    return "\n".join(lines) + "\n"


def _count(rows: Sequence[Mapping[str, str]], column: str) -> str:
    known = [row[column] for row in rows if row[column]]
    return f"{sum(value == '1' for value in known)}" if known else ""
