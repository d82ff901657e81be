"""Checkpoints in a folder: unlearning runs as candidates, retrainings as references.

::

    saves/unlearn/GradDiff_lr1e-5/config.json  model.safetensors  evals/TOFU_EVAL.json
    saves/unlearn/NPO/checkpoint-60/config.json …

This is how OpenUnlearning stores its runs. Every sub-folder with a checkpoint in it, or in its
newest ``checkpoint-N``, counts, unless it was given as another model. The numbers of
``*_EVAL.json`` and ``*_SUMMARY.json`` files are kept as notes; no verdict uses them.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.facts.names import shown_path

EVALUATION_LIMIT = 256 * 2**20
"""Largest evaluation file, in bytes; toolkits store every generated text in it."""
_NUMBERED = re.compile(r"checkpoint-(\d{1,9})")
_MARKS = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a folder; ``notes`` is JSON text, empty without evaluations."""

    name: str
    path: str
    notes: str


def checkpoints_in(
    path: Path | str, given: Mapping[str, str]
) -> tuple[tuple[Checkpoint, ...], tuple[tuple[str, str], ...]]:
    """Return the checkpoints in a folder by name; a folder without any is refused.

    given: places of the models that were named already, by what they are. Those in the folder are
    left out and returned second: each with its path and what it is.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"{shown_path(path)}: is not a folder; expected one whose sub-folders hold checkpoints"
        )
    known = {os.path.realpath(os.path.expanduser(place)): what for what, place in given.items()}
    checkpoints, left_out = [], []
    for child in sorted(folder.iterdir(), key=lambda child: child.name):
        place = _checkpoint(child)
        if place is None:
            continue
        what = known.get(os.path.realpath(place)) or known.get(os.path.realpath(child))
        if what is not None:
            left_out.append((str(child), what))
        else:
            checkpoints.append(Checkpoint(child.name, str(place), _notes(child, place)))
    if not checkpoints:
        others = f" beside {', '.join(what for _, what in left_out)}" if left_out else ""
        raise ModelError(
            f"{shown_path(path)}: no sub-folder{others} holds a checkpoint "
            f"({' or '.join(_MARKS)}); expected one sub-folder per model"
        )
    return tuple(checkpoints), tuple(left_out)


def _checkpoint(folder: Path) -> Path | None:
    """Return where a run's checkpoint is: the folder itself, or its newest numbered one."""
    if not folder.is_dir() or folder.name.startswith("."):
        return None
    if any((folder / mark).is_file() for mark in _MARKS):
        return folder
    numbered = [
        (int(match[1]), child)
        for child in folder.iterdir()
        if (match := _NUMBERED.fullmatch(child.name))
        and any((child / mark).is_file() for mark in _MARKS)
    ]
    return max(numbered)[1] if numbered else None


def _notes(*folders: Path) -> str:
    """Return the aggregate numbers of the evaluations in and beside the folders, as JSON text."""
    notes: dict[str, dict[str, float]] = {}
    for place in dict.fromkeys(place for folder in folders for place in (folder, folder / "evals")):
        for file in sorted([*place.glob("*_EVAL.json"), *place.glob("*_SUMMARY.json")]):
            notes[file.name] = _numbers(file)
    return json.dumps(notes, sort_keys=True, allow_nan=False) if notes else ""


def _numbers(file: Path) -> dict[str, float]:
    advice = "expected an evaluation of OpenUnlearning; move it away to leave it out"
    try:
        if os.stat(file).st_size > EVALUATION_LIMIT:
            raise ModelError(f"{shown_path(file)}: is larger than {EVALUATION_LIMIT} bytes")
        data: Any = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        what = type(error).__name__
        raise ModelError(f"{shown_path(file)}: is not JSON ({what}); {advice}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{shown_path(file)}: holds {type(data).__name__}; {advice}")
    numbers = {}
    for metric, value in data.items():
        number: Any = value.get("agg_value") if isinstance(value, dict) else value
        real = isinstance(number, int | float) and not isinstance(number, bool)
        if real and math.isfinite(number):
            numbers[str(metric)[:100]] = float(number)
    return numbers
