"""Scores of every question of a study's models, as evaluation logs of OpenUnlearning.

    python -m palimpsest_trials.question_logs RUN OUT
    palimpsest logs OUT --role '*_base=pretrained' --role '*_injected=full' --role '*_re*=retrained'

A log per base, injected model, reference and fresh retraining of every cell, in the names and
units of ``TOFU_EVAL.json``: mean negative log-likelihood of the answer's tokens. Questions are
trained phrasings (``Q_A``) and held-out ones (``Q_A_PARA``) of forget and retain facts;
``mia_loss`` holds both of the forget facts, and of facts that no model was taught.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from palimpsest.stats.ranktest import rank_tests

ROLES = ("base", "injected", "reference", "retraining")
TRAINED, HELD_OUT = "trained", "evaluation"


def logs(cell: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the log of every model of these roles of a finished cell."""
    summary = json.loads((cell / "cell.json").read_text(encoding="utf-8"))
    rows = pq.read_table(cell / "items.parquet").to_pylist()
    for model in summary["models"]:
        if model["role"] in ROLES:
            mine = [r for r in rows if r["model"] == model["name"] and r["stage"] == "forward"]
            yield model["name"], log(mine)


def log(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a log of one model from its rows of ``items.parquet``."""

    def losses(name: str, *pools: str) -> list[float]:
        chosen = [r for r in rows if r["set"] == name and r["pool"] in pools]
        chosen.sort(key=lambda row: (row["fact"], row["pool"], row["template"]))
        return [row["nll_sum"] / row["tokens"] for row in chosen]

    def answers(values: Sequence[float]) -> dict[str, Any]:
        entries = [{"prob": float(np.exp(-value)), "avg_loss": value} for value in values]
        return {
            "agg_value": float(np.mean([entry["prob"] for entry in entries])),
            "value_by_index": {str(n): entry for n, entry in enumerate(entries)},
        }

    found = {
        f"{name}_Q_A{suffix}_Prob": answers(losses(name, pool))
        for name in ("forget", "retain")
        for suffix, pool in (("", TRAINED), ("_PARA", HELD_OUT))
    }
    every = (TRAINED, HELD_OUT)
    sides = {"forget": losses("forget", *every), "holdout": losses("probe", *every)}
    forget, holdout = (np.array(values)[None] for values in sides.values())
    (test,) = rank_tests(forget, holdout)
    auc = 1 - test.statistic / (forget.size * holdout.size)
    scores = {
        side: {
            "agg_value": float(np.mean(values)),
            "value_by_index": {str(n): {"score": value} for n, value in enumerate(values)},
        }
        for side, values in sides.items()
    }
    return found | {"mia_loss": {**scores, "auc": auc, "agg_value": auc}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    for cell in sorted(path.parent for path in given.run.glob("cells/*/cell.json")):
        for name, metrics in logs(cell):
            folder = given.out / f"{cell.name}_{name}"
            folder.mkdir(parents=True)
            text = json.dumps(metrics, indent=1)
            (folder / "TOFU_EVAL.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
