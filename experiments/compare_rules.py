"""The third certificate beside the second on the stored models of the second edition.

Every model of known truth and every candidate is judged alone, by the comparison and by a whole
audit of that one candidate, with the references of its own cell: 5, 9 and 20 of them. Nothing is
trained; the second rule's answers are those stored. Writes ``results/second-edition/rules.csv`` and
the table of ``docs/results.md`` that is made from it.

    python experiments/compare_rules.py
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from palimpsest.stats.measures import CellMeasures, ModelMeasures, RelearningCurve
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Verdict, decide

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results" / "second-edition"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- rules -->\n", "<!-- end of rules -->"
RUNS = ("pocket", "criteria", "breadth")
BAGS = (5, 9, 20)
"""Numbers of references; a run with fewer uses what it has."""
ROLES = {"challenge": Role.KNOWN_LABEL}
CURVE = ("forget_trained_nll", "forget_heldout_nll", "retain_nll")
CURVE += ("residual_retain", "residual_general")
Row = Mapping[str, Any]


def main() -> None:
    """Judge every model of the stored table and write the counts."""
    rows = pq.read_table(FOLDER / "models.parquet").to_pylist()
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["run"] in RUNS and not row["failure"]:
            cells[row["run"], row["cell"]].append(row)
    counts: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for (run, _), models in cells.items():
        for size in BAGS:
            for kind, found in judged_alone(models, size):
                counts[run, kind, size].update(found)
    with open(FOLDER / "rules.csv", "w", newline="") as file:
        columns = ("judged", "old_rejected", "rejected", "excluded", "certified", "blocked")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "model", "references", *columns))
        for key in sorted(counts):
            writer.writerow((*key, *(counts[key][column] for column in columns)))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    page = before + BEGIN + rules_table() + END + rest.partition(END)[2]
    PAGE.write_text(page, encoding="utf-8")


def rules_table() -> str:
    """Return the table of the results page, from the stored counts."""
    with open(FOLDER / "rules.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {(row["run"], row["model"], int(row["references"])): row for row in rows}
    head = "| model | run | models | second rule rejects |"
    head += "".join(f" third, {size} references |" for size in BAGS) + " audit certifies, 20 |"
    lines = [head, "|:---|:---|" + "---:|" * (3 + len(BAGS))]
    always: dict[str, list[str]] = defaultdict(list)
    for run, model in dict.fromkeys((run, model) for run, model, _ in cells):
        of = [cells[run, model, size] for size in BAGS]
        judged = of[0]["judged"]
        # The stored answers of the criteria's run are of another form.
        old = of[0]["old_rejected"] if run != "criteria" else judged
        if {old, *(row["rejected"] for row in of)} == {judged}:
            always[run].append(f"{model} {judged}")
            continue
        shown = [model, run, judged, "–" if run == "criteria" else old]
        shown += [row["rejected"] for row in of] + [of[-1]["certified"]]
        lines.append(f"| {' | '.join(shown)} |")
    lines.append("\nRejected by both rules, with any number of references, in every cell:\n")
    lines += [f"- `{run}`: {', '.join(kinds)}." for run, kinds in always.items()]
    return "\n".join(lines) + "\n"


def judged_alone(rows: Sequence[Row], size: int) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the kind of every model to be judged in a cell, with what became of it."""
    records = {row["model"]: record_of(row) for row in rows}
    measured = {row["model"]: measures_of(row) for row in rows if row["model"] != "forget_only"}
    kept = [n for n, m in records.items() if m.role is Role.REFERENCE and not m.same_draw]
    kept = sorted(kept, key=lambda name: records[name].draw or 0)[:size]
    common = ("base", "injected", *kept)
    controls = [name for name, model in records.items() if model.role is Role.CONTROL]
    judged = (Role.RETRAINING, Role.CANDIDATE, Role.KNOWN_LABEL, Role.CONTROL)
    for row in rows:
        name = row["model"]
        if records[name].role not in judged:
            continue
        names = (*common, *(control for control in controls if control != name), name)
        mine = {n: records[n] for n in names}
        # A mixture is made of the reference with the injected model's draw, which is in no bag.
        mine[name] = replace(records[name], role=Role.CANDIDATE, truth="", of="", share=None)
        first = measured["base"]
        cell = CellMeasures(
            "evaluation",
            first.forget_facts,
            first.probe_facts,
            {n: measured[n] for n in names},
            mine,
        )
        verdict = decide(cell, Rules())
        assert verdict is not None
        yield kind_of(row), outcome(verdict, row)


def outcome(verdict: Verdict, row: Row) -> Counter[str]:
    """Return what the old and the new rule made of one model."""
    (finding,) = verdict.findings
    compared = finding.comparison
    found = Counter(judged=1)
    found["old_rejected"] = int(bool(row["old_rejected"]))
    found["rejected"] = int(compared is not None and not compared.accepted)
    found["excluded"] = int(finding.excluded)
    found["certified"] = int(verdict.certified)
    # Accepted by screen and comparison, and yet not certified: the audit itself was not sound.
    found["blocked"] = int(finding.clears and not verdict.certified)
    return found


def kind_of(row: Row) -> str:
    """Return how a model is counted: by its kind, share or method."""
    if row["role"] == "retraining":
        return "fresh retraining"
    if row["role"] == "control":
        return f"{100 * row['share']:g} % of the injected weights"
    return str(row["method"] or row["model"].removeprefix("panel:"))


def record_of(row: Row) -> Model:
    """Return what a model of the stored table is."""
    role = ROLES.get(row["role"]) or Role(row["role"])
    draw = None if row["draw"] is None or np.isnan(row["draw"]) else int(row["draw"])
    share = None if row["share"] is None or np.isnan(row["share"]) else float(row["share"])
    same = role is Role.REFERENCE and draw == 0
    return Model(row["model"], role, draw=draw, same_draw=same, share=share, of=row["made_of"])


def measures_of(row: Row) -> ModelMeasures:
    """Return a model's measures; NLLs are stored as deltas from base, which serve as well."""
    forget, probe = np.array(row["forget_deltas"]), np.array(row["probe_deltas"])
    chunks = row["chunk_forget_heldout_nll"]
    curve = None
    if chunks is not None and len(chunks):
        curve = RelearningCurve(
            np.arange(len(chunks)), *(np.array(row[f"chunk_{name}"]) for name in CURVE)
        )
    return ModelMeasures(
        name=row["model"],
        forget_facts=tuple(f"f{n}" for n in range(len(forget))),
        probe_facts=tuple(f"p{n}" for n in range(len(probe))),
        forget_nlls=forget,
        probe_nlls=probe,
        forget_deltas=forget,
        probe_deltas=probe,
        retain_nll=_known(row["retain"]),
        general_nll=_known(row["general"]),
        residual=_known(row["residual"]),
        curve=curve,
        extra={} if _known(row["reversed"]) is None else {"reversed": row["reversed"]},
    )


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


if __name__ == "__main__":
    main()
