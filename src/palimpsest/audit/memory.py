"""Models and facts in memory, for an audit that is called from Python.

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

MODELS = ("base", "injected")
FACTS = ("forget", "retain", "probes")


def on_disk(asked: Mapping[str, Any], tokenizer: Any = None) -> dict[str, Any]:
    """Return the arguments of an audit with paths in the place of models and facts in memory."""
    folder = Path(f"{os.fspath(asked['out'])}.given")
    values = dict(asked)
    for key in MODELS:
        values[key] = _model(key, values[key], tokenizer, folder)
    candidates = values["candidates"]
    if isinstance(candidates, Mapping):
        values["candidates"] = {
            name: _model(f"candidates.{name}", value, tokenizer, folder)
            for name, value in candidates.items()
        }
    values["references"] = tuple(
        _model(f"references[{number}]", value, tokenizer, folder)
        for number, value in enumerate(values["references"])
    )
    for key in FACTS:
        values[key] = _facts(key, values[key], folder)
    return values


def _model(key: str, value: Any, tokenizer: Any, folder: Path) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value
    if not hasattr(value, "save_pretrained") or not hasattr(value, "state_dict"):
        raise PlanError(
            f"{key}: {type(value).__name__} found; expected a path, a Hugging Face id or a "
            "transformers model"
        )
    if tokenizer is None:
        raise PlanError(f"{key}: a model in memory; give its tokenizer too, with tokenizer=…")
    from palimpsest.models.load import state_digest
    from palimpsest.models.quiet import quiet

    config = value.config.to_json_string()
    name = digest((state_digest(value.state_dict()) + config).encode())[7:23]
    place = folder / name
    if not (place / "config.json").exists():
        with quiet():
            tokenizer.save_pretrained(place)
            value.save_pretrained(place)
    return str(place)


def _facts(key: str, value: Any, folder: Path) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas frame
        value = value.to_dict("records")
    facts = []
    for number, row in enumerate(value):
        if isinstance(row, Fact):
            row = dataclasses.asdict(row)
        elif not isinstance(row, Mapping):
            row = dict(vars(row))
        given = {name: item for name, item in row.items() if not _empty(item)}
        lists = {n: list(item) if isinstance(item, tuple) else item for n, item in given.items()}
        fact, problems = make_fact(lists, "probe" if key == "probes" else key)
        if fact is None:
            raise FactsError(f"{key}[{number}]: {'; '.join(problems)}")
        facts.append(fact)
    data = as_jsonl(facts)
    path = folder / f"{key}-{digest(data)[7:23]}.jsonl"
    make_folder(folder)
    write_bytes(path, data)
    return str(path)


def _empty(item: Any) -> bool:
    return item is None or (isinstance(item, str | tuple | list) and len(item) == 0)
