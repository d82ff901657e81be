"""Models and facts in memory, for calls from Python.

They are written beside the run folder, to ``OUT.given/``, under names made of their contents, so
that the same call finds them again and resumes. Whatever is a path already is left as it is.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, make_fact
from palimpsest.run.disk import digest, make_folder, write_bytes


def on_disk(values: Mapping[str, Any], out: str, tokenizer: Any = None) -> dict[str, Any]:
    """Return the settings of an audit with paths in the place of models and facts in memory."""
    folder = Path(f"{out}.given")
    placed = dict(values)
    for key in ("base", "injected"):
        placed[key] = _model(key, placed[key], tokenizer, folder)
    candidates = placed.get("candidates")
    if isinstance(candidates, Mapping):
        placed["candidates"] = {
            name: _model(f"candidates.{name}", value, tokenizer, folder)
            for name, value in candidates.items()
        }
    placed["references"] = [
        _model(f"references[{number}]", value, tokenizer, folder)
        for number, value in enumerate(placed.get("references") or ())
    ]
    for key in ("forget", "retain", "probes"):
        placed[key] = _facts(key, placed.get(key), folder)
    return placed


def _model(key: str, value: Any, tokenizer: Any, folder: Path) -> Any:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if not hasattr(value, "save_pretrained") or not hasattr(value, "state_dict"):
        raise PlanError(
            f"{type(value).__name__} found; expected a path, a Hugging Face id or a transformers "
            "model",
            key=key,
        )
    if tokenizer is None:
        raise PlanError("a model in memory; give its tokenizer too, with tokenizer=…", key=key)
    from palimpsest.models.device import quiet
    from palimpsest.models.load import state_digest

    config = value.config.to_json_string()
    place = folder / digest((state_digest(value.state_dict()) + config).encode())[7:23]
    if not (place / "config.json").exists():
        with quiet():
            tokenizer.save_pretrained(place)
            value.save_pretrained(place)
    return str(place)


def _facts(key: str, value: Any, folder: Path) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value and os.fspath(value)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas frame
        value = value.to_dict("records")
    facts = []
    for number, row in enumerate(value):
        if isinstance(row, Fact):
            row = dataclasses.asdict(row)
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in dict(row).items()}
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
