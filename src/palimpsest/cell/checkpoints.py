"""Checkpoint folders: found in a folder, written with a record of how they were made, or written
for models and facts that a Python caller has in memory."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError, InputError, ModelError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, make_fact
from palimpsest.files import read_object
from palimpsest.run.files import digest, disk_errors, folder_path, make_folder, write_bytes
from palimpsest.text import shown, shown_path

RECORD = "palimpsest.json"
"""What ``retrain`` and ``unlearn`` write beside the weights."""
RECORD_LIMIT = 2**20
_NUMBERED = re.compile(r"checkpoint-(\d{1,9})")
_MARKS = ("config.json", "adapter_config.json")


def find_checkpoints(folder: str, key: str) -> dict[str, str]:
    """Return the checkpoints in a folder by the name of their subfolder.

    Every subfolder with a checkpoint in it, or in its newest ``checkpoint-N``, counts.
    """
    path = Path(folder)
    if not path.is_dir():
        raise PlanError(
            f"{shown_path(folder)} is not a folder; expected subfolders with checkpoints",
            key=key,
        )
    places = {child.name: newest_checkpoint(child) for child in sorted(path.iterdir())}
    found = {name: str(place) for name, place in places.items() if place is not None}
    if not found:
        raise PlanError(
            f"no subfolder of {shown_path(folder)} holds a checkpoint ({' or '.join(_MARKS)}); "
            "expected one subfolder per model",
            key=key,
        )
    return found


def newest_checkpoint(folder: Path) -> Path | None:
    """Return where a run's checkpoint is: the folder itself, or its newest numbered one."""
    if not folder.is_dir() or folder.name.startswith("."):
        return None
    if _marked(folder):
        return folder
    numbered = [
        (int(match[1]), child)
        for child in folder.iterdir()
        if (match := _NUMBERED.fullmatch(child.name)) and _marked(child)
    ]
    return max(numbered)[1] if numbered else None


def _marked(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def read_record(place: str) -> dict[str, Any]:
    """Return what ``palimpsest.json`` beside a checkpoint says; empty where there is none."""
    path = Path(place) / RECORD
    if not os.path.isfile(path):
        return {}
    expected = "the file that `palimpsest retrain` wrote; remove it, or write it again"
    return read_object(path, RECORD_LIMIT, ModelError, expected)


def same_place(place: str, other: str) -> bool:
    """Tell whether two names lead to one folder."""
    return os.path.realpath(os.path.expanduser(place)) == os.path.realpath(
        os.path.expanduser(other)
    )


def check_out(out: Path) -> Path:
    """Return the resolved path of the folder to make; PlanError where none can be made."""
    try:
        above = Path(os.path.abspath(out))
        nearest = next(path for path in (above, *above.parents) if os.path.lexists(path))
        out = folder_path(out) if nearest.is_dir() else out
    except (InputError, ValueError) as error:
        raise PlanError(str(error), key="out") from error
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        found = "cannot be written to" if nearest.is_dir() else "is no folder"
        raise PlanError(
            f"{shown_path(nearest)} {found}; expected a folder that can be made or written to; "
            "choose another, or change its permissions",
            key="out",
        )
    return out


def check_new_folder(out: Path) -> None:
    """Refuse an existing folder: nothing is overwritten."""
    if os.path.lexists(out):
        raise PlanError(
            f"{shown_path(out)} exists; expected a new folder, because nothing is overwritten; "
            "choose another, or move it away",
            key="out",
        )
    check_out(out)


def write_checkpoint(folder: Path, loaded: Any, weights: Path, record: Mapping[str, Any]) -> None:
    """Write a model in Hugging Face layout; module and tokenizer are the loaded model's."""
    import torch

    from palimpsest.models.checkpoint import stored_state
    from palimpsest.models.device import quiet

    state = stored_state(weights)
    with torch.no_grad():
        for name, value in loaded.model.state_dict().items():
            value.copy_(state[name])
    with disk_errors(folder, "write"), quiet():
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    write_bytes(folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")


def publish_folder(built: Path, out: Path) -> None:
    """Rename a finished folder into place; an existing one is never replaced."""
    make_folder(Path(os.path.abspath(out)).parent)
    if out.exists():
        raise InputError(f"out: {out} was created meanwhile; expected a new folder; move it away")
    with disk_errors(out, "rename"):
        os.rename(built, out)


# -- what a Python caller has in memory ------------------------------------------------------------


def on_disk(values: Mapping[str, Any], out: str, tokenizer: Any = None) -> dict[str, Any]:
    """Return the settings of an audit with paths in the place of models and facts in memory.

    They are written beside the run folder, to ``OUT.given/``, under names made of their contents,
    so that the same call finds them again and resumes.
    """
    folder = Path(f"{out}.given")

    def model(key: str, value: Any) -> str:
        return _model_place(key, value, tokenizer, folder)

    placed = dict(values) | {key: model(key, values[key]) for key in ("base", "injected")}
    named = values["candidates"] or {}
    if not isinstance(named, Mapping):
        wanted = 'expected models by their names, such as {"npo": "unlearned"}'
        raise PlanError(f"{wanted}, got {shown(named)}", key="candidates")
    placed["candidates"] = {name: model(f"candidates.{name}", v) for name, v in named.items()}
    listed = values["references"]
    if isinstance(listed, list | tuple):
        placed["references"] = [model(f"references[{n}]", each) for n, each in enumerate(listed)]
    for key in ("forget", "retain", "probes"):
        placed[key] = _facts_place(key, values[key], folder)
    return placed


def _model_place(key: str, value: Any, tokenizer: Any, folder: Path) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if tokenizer is None or not hasattr(value, "save_pretrained"):
        raise PlanError(
            "expected a path, a Hugging Face id, or a transformers model and its tokenizer=…, got "
            f"{shown(value)}",
            key=key,
        )
    from palimpsest.models.checkpoint import state_digest
    from palimpsest.models.device import quiet

    config = value.config.to_json_string()
    place = folder / digest((state_digest(value.state_dict()) + config).encode())[7:23]
    if not (place / "config.json").exists():
        with quiet():
            tokenizer.save_pretrained(place)
            value.save_pretrained(place)
    return str(place)


def _facts_place(key: str, value: Any, folder: Path) -> Any:
    if value is None or (key == "probes" and isinstance(value, int)):  # how many to generate
        return value
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas frame
        value = value.to_dict("records")
    if not isinstance(value, Iterable):
        raise PlanError(f"expected a path, or rows of facts, got {shown(value)}", key=key)
    facts = []
    for number, row in enumerate(value):
        if not isinstance(row, Fact | Mapping):
            wanted = "expected a Fact, or its keys and values"
            raise PlanError(f"{wanted}, got {shown(row)}", key=f"{key}[{number}]")
        row = dataclasses.asdict(row) if isinstance(row, Fact) else row
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}
        given = {k: v for k, v in given.items() if v is not None and v not in ("", [])}
        try:
            facts.append(make_fact(given, "probe" if key == "probes" else key))
        except FactsError as error:
            raise FactsError(f"{key}[{number}]: {error}") from error
    data = as_jsonl(facts)
    path = folder / f"{key}-{digest(data)[7:23]}.jsonl"
    make_folder(folder)
    write_bytes(path, data)
    return str(path)
