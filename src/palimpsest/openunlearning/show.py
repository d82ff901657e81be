"""The answer about a set of logs as text, JSON and CSV."""

import csv
import io
import textwrap
from typing import Any

from palimpsest.openunlearning.judging import ALPHA, DAMAGE, show_p
from palimpsest.openunlearning.models import Group, LogReport, Model, Role
from palimpsest.text import escaped

MISSING = (
    "weights of candidates, full and pretrained model",
    "weights of at least five retrained models of one recipe",
    "re-acquisition: how fast each model learns the forget questions again",
)
SCOPE = "This is no certificate: forward scores, compared with one retraining. One needs "
SCOPE += "; ".join(MISSING) + "."
COLUMNS = ("model", "forget", "holdout", "below", "above", "outcome")
LEGEND = (
    "forget, holdout: median difference from the anchor. below, above: p-values that forget "
    f"questions score below or above never-taught holdout ones; outcomes at {ALPHA} after Holm. "
    f"spread: variation of the retrained model over questions; damage is more than {DAMAGE}. "
    "level: median negative log-likelihood of answers in nats per token (MUSE: mean ROUGE)."
)
FIELDS = (
    *("name", "role", "split", "benchmark", "base", "checkpoint", "outcome", "reason", "score"),
    *("anchor", "p_below", "p_above", "median_forget", "median_holdout", "left_out"),
    *("distance", "retraining_p", "path", "shifts", "medians", "levels"),
)
"""What JSON and CSV say about a model."""


def as_json(report: LogReport) -> dict[str, Any]:
    """Return the whole answer as one JSON document."""
    models = [model for group in report.groups for model in group.models]
    return {
        "models": [{key: getattr(model, key) for key in FIELDS} for model in models],
        "groups": [
            {
                "title": group.title,
                "models": [model.name for model in group.models],
                "nearest": {near.name: near.checkpoint for near in group.nearest},
            }
            for group in report.groups
        ],
        "missing_for_certificate": list(MISSING),
        "problems": list(report.problems),
    }


def as_csv(report: LogReport) -> str:
    """Return one line per model, with a column per level."""
    rows = [row.pop("levels") | row for row in as_json(report)["models"]]
    levels = sorted({key for row in rows for key in row} - set(FIELDS))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*FIELDS[:-1], *levels])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_text(report: LogReport, width: int = 80) -> str:
    """Return the answer, then the tables, then what is missing, in lines of ``width``."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False)
    wrapper.break_on_hyphens = False
    wrap = wrapper.fill
    lines: list[str] = []
    for group in report.groups:
        head = f"{group.title}: {setting(group)}"
        lines += map(wrap, [head, *sentences(group), ""])
    for group in report.groups:
        lines += [group.title, *_table([COLUMNS, *map(table_row, group.models)], width)]
        levels = level_rows(group)
        lines += ["", *_table(levels, width), ""] if levels else [""]
    lines += map(wrap, [LEGEND, "", SCOPE, *report.problems])
    return escaped("\n".join(lines), keep="\n")


def _table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    widths[0] = min(widths[0], width - sum(widths[1:]) - 2 * len(widths[1:]))
    lines: list[str] = []
    for name, *cells in rows:
        lines += [name, ""] if len(name) > widths[0] else [name]
        lines[-1] = "  ".join(map(str.ljust, [lines[-1], *cells], widths)).rstrip()
    return lines


def setting(group: Group) -> str:
    """Return how the models of a group are compared."""
    first = max(group.models, key=lambda model: model.p_below is not None)
    return f"{first.score}, " + (f"anchored to the {first.anchor} model" if first.anchor else "raw")


def sentences(group: Group) -> list[str]:
    """Return the answer: a sentence per candidate, and the nearest checkpoint of every run."""
    candidates = [model for model in group.models if model.role is Role.CANDIDATE]
    texts = [f"{m.label}: {m.outcome}; {m.reason}." for m in candidates or group.models]
    if group.nearest:
        nearest = ", ".join(model.label for model in group.nearest)
        texts.append(f"Nearest to the retrained model, of each run's checkpoints: {nearest}.")
    return texts


def table_row(model: Model) -> tuple[str, ...]:
    """Return a model's cells under ``COLUMNS``."""
    medians = (model.median_forget, model.median_holdout)
    shown = ["–" if value is None else f"{value:+.2f}" for value in medians]
    return (model.label, *shown, show_p(model.p_below), show_p(model.p_above), model.outcome)


def level_rows(group: Group) -> list[tuple[str, ...]]:
    """Return the table of levels, with its heading; empty if no log of the group has any."""
    sets = list(dict.fromkeys(name for model in group.models for name in model.medians))
    rows = [[model.label, *map(model.medians.get, sets)] for model in group.models]
    shown = [
        tuple(f"{cell:.2f}" if isinstance(cell, float) else cell or "–" for cell in row)
        for row in rows
    ]
    return [("level", *sets), *shown] if sets else []
