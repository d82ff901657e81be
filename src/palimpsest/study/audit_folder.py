"""A folder of unlearning runs as candidates, the way OpenUnlearning leaves them.

::

    saves/unlearn/GradDiff_lr1e-5/config.json  model.safetensors  evals/TOFU_EVAL.json
    saves/unlearn/NPO/checkpoint-60/config.json …

Every sub-folder with a checkpoint in it, or in its newest ``checkpoint-N``, is a candidate under
its own name, unless it was given as another model. The numbers of ``*_EVAL.json`` and
``*_SUMMARY.json`` files beside a checkpoint are kept as notes; no verdict looks at them.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palimpsest.errors import InputError, ModelError
from palimpsest.facts.names import candidate_name, shown_path

EVALUATION_LIMIT = 256 * 2**20
"""Largest evaluation file, in bytes; toolkits store every generated text in it."""
_NUMBERED = re.compile(r"checkpoint-(\d{1,9})")
_MARKS = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate found in a folder; ``notes`` is JSON text, empty without evaluations."""

    name: str
    path: str
    notes: str


def candidates_from_folder(
    path: Path | str, given: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[Found, ...], tuple[tuple[str, str], ...]]:
    """Give the runs in a folder as candidates, by name; a folder without any is refused.

    ``given`` are the places of the models that were named already, by what they are. Those among
    the runs are left out, and come second: each with its path and what it is.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"{shown_path(path)}: is not a folder; expected one whose sub-folders hold checkpoints"
        )
    known = {os.path.realpath(os.path.expanduser(place)): what for what, place in given.items()}
    found, left_out = [], []
    for child in sorted(folder.iterdir(), key=lambda one: one.name):
        checkpoint = _checkpoint(child)
        if checkpoint is None:
            continue
        what = known.get(os.path.realpath(checkpoint)) or known.get(os.path.realpath(child))
        if what is not None:
            left_out.append((str(child), what))
            continue
        try:
            name = candidate_name(child.name)
        except InputError as error:
            raise ModelError(
                f"{shown_path(child)}: {error}; give it a name with --candidate "
                f"NAME={shown_path(child)}"
            ) from error
        found.append(Found(name, str(checkpoint), _notes(child, checkpoint)))
    if not found:
        others = f" beside {', '.join(what for _, what in left_out)}" if left_out else ""
        raise ModelError(
            f"{shown_path(path)}: no sub-folder{others} holds a checkpoint "
            f"({' or '.join(_MARKS)}); expected one sub-folder a candidate"
        )
    return tuple(found), tuple(left_out)


def _checkpoint(folder: Path) -> Path | None:
    """Give where a run's checkpoint is: the folder itself, or its newest numbered one."""
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
    """Give the aggregate numbers of the evaluations in and beside the folders, as JSON text."""
    kept: dict[str, dict[str, float]] = {}
    places = dict.fromkeys(place for one in folders for place in (one, one / "evals"))
    for place in places:
        for file in sorted([*place.glob("*_EVAL.json"), *place.glob("*_SUMMARY.json")]):
            kept[file.name] = _numbers(file)
    return json.dumps(kept, sort_keys=True, allow_nan=False) if kept else ""


def _numbers(file: Path) -> dict[str, float]:
    try:
        if os.stat(file).st_size > EVALUATION_LIMIT:
            raise ModelError(f"{shown_path(file)}: is larger than {EVALUATION_LIMIT} bytes")
        data: Any = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{shown_path(file)}: is not JSON ({type(error).__name__}); expected an evaluation of "
            "OpenUnlearning; move it away to leave it out"
        ) from error
    if not isinstance(data, dict):
        raise ModelError(
            f"{shown_path(file)}: holds {type(data).__name__}; expected an object of metrics; move "
            "it away to leave it out"
        )
    numbers = {}
    for metric, value in data.items():
        found = value.get("agg_value") if isinstance(value, dict) else value
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            numbers[str(metric)[:100]] = float(found)
    return numbers
