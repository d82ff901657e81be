"""Samples of lm-evaluation-harness (``--log_samples``) as logs: a forget task and a control task.

A file ``samples_TASK_DATE.jsonl`` has one line per question. The score is the negative
log-likelihood of the right choice among the choices, -(l_right - log sum exp l), in nats: lower for
what a model knows better, whatever the length of its choices.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from palimpsest.errors import InputError, PlanError
from palimpsest.files import read_lines
from palimpsest.openunlearning.models import Model, median
from palimpsest.openunlearning.reading import NO_ROLE, SIZE_LIMIT, Given

CHOICE = "choice_nll"
NAME = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+))?\.jsonl")
NO_RETRAINING = (
    "WMDP and other multiple-choice benchmarks have no retraining: no model is known that was "
    "never taught what they ask. Passing means that the forget task is answered no better than the "
    "control task, beside the anchor"
)


def read_samples(
    paths: Iterable[Path | str], forget_task: str, holdout_task: str, given: Given
) -> tuple[list[Model], list[str]]:
    """Return a model per folder that has samples of both tasks, and what was left out."""
    sides = {"forget": forget_task, "holdout": holdout_task}
    for side, pattern in sides.items():
        if not pattern:
            key = f"{side}_task"
            raise PlanError("missing; expected a task (or pattern) on each side", key=key)
    models, remarks = list[Model](), [NO_RETRAINING]
    for folder, files in _newest_files(paths).items():
        tasks = {s: sorted(t for t in files if fnmatchcase(t, sides[s])) for s in sides}
        if not all(tasks.values()):
            lacking = " and ".join(sides[side] for side in sides if not tasks[side])
            remarks.append(f"{folder}: no samples of {lacking}; has {', '.join(sorted(files))}")
            continue
        rows = {s: [row for t in tasks[s] for row in _read_questions(files[t])] for s in sides}
        asked = [(r.get("doc_hash"), r.get("prompt_hash")) for s in sides for r in rows[s]]
        scores = {side: np.array([_right_choice(row) for row in rows[side]]) for side in sides}
        role, base = given.of(folder.name)
        models.append(
            Model(
                path=folder,
                name=folder.name,
                role=role,
                scores={CHOICE: scores},
                losses={},
                medians={},
                levels={f"{side} {CHOICE}": median(values) for side, values in scores.items()},
                benchmark="lm-eval",
                base=base,
                split=" against ".join(sides.values()),
                template={"questions": hashlib.sha256(repr(asked).encode()).hexdigest()[:12]},
                reason="" if role else NO_ROLE,
            )
        )
    return models, remarks


def _newest_files(paths: Iterable[Path | str]) -> dict[Path, dict[str, Path]]:
    """Return by folder the newest file of every task."""
    folders: dict[Path, dict[str, Path]] = {}
    for given in map(Path, paths):
        if not given.is_dir():
            raise InputError(f"{given}: not found; expected a folder of lm_eval's output")
        for folder, _, names in os.walk(given):
            for name in sorted(names):
                if match := NAME.fullmatch(name):
                    folders.setdefault(Path(folder), {})[match["task"]] = Path(folder) / name
    if not folders:
        raise InputError("no samples_*.jsonl found; run lm_eval with --log_samples")
    return dict(sorted(folders.items()))


def _read_questions(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a file by question; of several filters the first."""
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path, SIZE_LIMIT), 1):
        try:
            row = json.loads(line)
            rows.setdefault(int(row["doc_id"]), row)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{path} line {number}: no sample of lm_eval ({error})") from error
    return [rows[key] for key in sorted(rows)]


def _right_choice(row: dict[str, Any]) -> float:
    """Return the score of one question; NaN where the sample has no choices."""
    try:
        asked = [(a["arg_0"], a["arg_1"].strip()) for a in row["arguments"].values()]
        # Choices without their question, for mutual information, come after the others.
        shared = [index for index, (question, _) in enumerate(asked) if question == asked[0][0]]
        values = np.array([float(row["filtered_resps"][index][0]) for index in shared])
        target = str(row["target"])
        choices = [asked[index][1] for index in shared]
        right = int(target) if target.isdecimal() else choices.index(target.strip())
        return float(logsumexp(values) - values[right])
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        return float("nan")
