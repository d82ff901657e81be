"""The cells of real models and of TOFU, from their run folders.

Every candidate, fresh retraining, known-label model and mixture is judged alone, as the only
candidate of its cell. Writes the rows of the runs given (a row per model and axis) into
``results/fourth-edition/real-models.csv``, keeps those of others, and puts the tables into
``results/details.md``. Nothing is trained.

    python -m palimpsest_trials.real_models smollm2=runs/smollm2 tofu=runs/tofu
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from palimpsest.report.results import read_run
from palimpsest.stats.models import Role
from palimpsest_trials.alone import judged_alone
from palimpsest_trials.edition import (
    COUNTED,
    Rows,
    kind_of,
    lines,
    publish,
    read,
    write,
)

CSV = "real-models.csv"
COLUMNS = (
    *("run", "role", "model", "kind", "cost", "excluded", "accepted", "p"),
    *("axis", "sd", "offset"),
)
SHOWN = (Role.CANDIDATE, Role.RETRAINING, Role.KNOWN_LABEL, Role.CONTROL)


def main(arguments: Sequence[str]) -> None:
    """Write the CSV file and put its tables into the page."""
    runs = dict(argument.split("=", 1) for argument in arguments)
    stored = read(CSV) if (COUNTED / CSV).is_file() else []
    kept = [tuple(row.values()) for row in stored if row["run"] not in runs]
    new = [row for name, place in runs.items() for row in run_rows(name, Path(place))]
    write(CSV, COLUMNS, iter([*kept, *new]))
    publish(tables())


def run_rows(name: str, place: Path) -> Iterator[Sequence[object]]:
    """Yield one row per model and axis of a run."""
    run = read_run(place)
    for cell in run.cells:
        measured = cell.evaluation
        names = [
            name
            for name in measured
            if cell.models[name].role in SHOWN
            and (cell.models[name].role is not Role.CONTROL or cell.models[name].of == "reference")
        ]
        for model, verdict in judged_alone(measured, names, measured.references, run.rules):
            (finding,) = verdict.findings
            compared = finding.comparison
            if compared is None:
                continue
            of = cell.models[model]
            cost = "" if of.cost is None else f"{of.cost.retrainings:.3f}"
            shared = (
                *(name, str(of.role), model, kind_of(cell, model), cost),
                *(str(finding.excluded), str(compared.accepted), f"{compared.p:.4g}"),
            )
            for gap in compared.gaps.values():
                yield (
                    *shared,
                    gap.axis,
                    f"{math.nan if gap.sd is None else gap.sd:.3f}",
                    f"{gap.offset:.4f}",
                )


# -- tables of the page ----------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Return the tables of the page by the names of their marks, from the CSV file alone."""
    by_run: dict[str, Rows] = defaultdict(list)
    for row in read(CSV):
        by_run[row["run"]].append(row)
    return {name: run_table(rows) for name, rows in by_run.items()}


def run_table(rows: Rows) -> str:
    """Return one line per model: p, and the two axes that lie furthest out."""
    by_model: dict[str, Rows] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    order = [str(role) for role in SHOWN]
    shown = [
        _line(mine) for mine in sorted(by_model.values(), key=lambda r: order.index(r[0]["role"]))
    ]
    head = ("model", "furthest out: sd (nats)", "cost, retrainings", "screen", "p", "accepted")
    return lines(head, shown, 2)


def _line(rows: Rows) -> Sequence[object]:
    first = rows[0]
    far = sorted(rows, key=lambda row: -abs(float(row["sd"])))[:2]
    axes = ", ".join(
        f"{row['axis']} {float(row['sd']):+.1f} ({float(row['offset']):+.2f})".replace("-", "−")
        for row in far
    )
    title = f"`{first['model']}`" if first["role"] == "candidate" else first["model"]
    if first["role"] == "control":
        title = first["kind"]
    screen = "excludes" if first["excluded"] == "True" else "passes"
    accepted = "yes" if first["accepted"] == "True" else "no"
    # The normal rule's p-values are rounded to six digits.
    p = "< 1e-6" if float(first["p"]) == 0 else first["p"]
    return title, axes, first["cost"] or "–", screen, p, accepted


if __name__ == "__main__":
    main(sys.argv[1:])
