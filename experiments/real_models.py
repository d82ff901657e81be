"""The cells of real models and of TOFU, from their run folders.

Every candidate, fresh retraining, known-label model and mixture is judged alone, as the only
candidate of its cell. Writes one CSV file (a row per model and axis) beside the archives and the
tables of ``docs/results.md``. Nothing is trained.

    python -m experiments.real_models
"""

import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.edition import FOLDER, PAGE, Rows, judged_alone, kind_of, lines, put, read, write
from palimpsest.report.results import RunResults, read_run
from palimpsest.stats.models import Role

COLUMNS = ("run", "role", "model", "kind", "cost", "excluded", "accepted", "p")
COLUMNS += ("axis", "t", "offset")
MOST_REFERENCES = 1000
SHOWN = (Role.CANDIDATE, Role.RETRAINING, Role.KNOWN_LABEL, Role.CONTROL)


def main() -> None:
    """Write the CSV file and put its tables into the page."""
    write("real-models.csv", COLUMNS, (row for name in archives() for row in run_rows(name)))
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        page = put(page, name, table)
    PAGE.write_text(page, encoding="utf-8")


def archives() -> list[str]:
    """Return the names of the stored runs, without the pocket matrix."""
    names = (path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
    return sorted(name for name in names if name != "pocket")


def unpack(name: str, folder: Path) -> RunResults:
    """Return the results of a stored run, unpacked into a folder."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return read_run(folder / name)


def run_rows(name: str) -> Iterator[Sequence[object]]:
    """Yield one row per model and axis of a run."""
    with TemporaryDirectory() as folder:
        run = unpack(name, Path(folder))
    for cell in run.cells:
        for model, _, verdict in judged_alone(cell, run.rules, MOST_REFERENCES):
            (finding,) = verdict.findings
            compared = finding.comparison
            if compared is None:
                continue
            of = cell.models[model]
            cost = "" if of.cost is None else f"{of.cost.retrainings:.3f}"
            shared = (name, str(of.role), model, kind_of(cell, model), cost)
            shared += (str(finding.excluded), str(compared.accepted), f"{compared.p:.4g}")
            for gap in compared.gaps.values():
                yield (*shared, gap.axis, f"{gap.t:.3f}", f"{gap.offset:.4f}")


# -- tables of the page ----------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Return the tables of the page by the names of their marks, from the CSV file alone."""
    by_run: dict[str, Rows] = defaultdict(list)
    for row in read("real-models.csv"):
        by_run[row["run"]].append(row)
    return {name: run_table(rows) for name, rows in by_run.items()}


def run_table(rows: Rows) -> str:
    """Return one line per model: p, and the three axes that lie furthest out."""
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
    far = sorted(rows, key=lambda row: -abs(float(row["t"])))[:3]
    axes = ", ".join(
        f"{row['axis']} {float(row['t']):+.1f} ({float(row['offset']):+.2f})" for row in far
    )
    title = f"`{first['model']}`" if first["role"] == "candidate" else first["model"]
    if first["role"] == "control":
        title = first["kind"]
    screen = "excludes" if first["excluded"] == "True" else "passes"
    accepted = "yes" if first["accepted"] == "True" else "no"
    return title, axes, first["cost"] or "–", screen, first["p"], accepted


if __name__ == "__main__":
    main()
