"""An audit of models and facts in memory is the audit of the same in files."""

import json
from pathlib import Path
from typing import Any

import pytest
from audit_models import STEPS, checkpoints, write_facts

from palimpsest.engine.audit_run import audit
from palimpsest.engine.memory import on_disk
from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.files import Fact, read_facts
from palimpsest.models.load import load


def test_models_and_facts_in_memory(tiny_checkpoint: Any, tmp_path: Path) -> None:
    import pandas as pd

    files = write_facts(tmp_path / "facts")
    made = checkpoints(tiny_checkpoint("qwen2-s"), tmp_path / "models", files)
    common = {**STEPS, "learning_rate": 1e-3, "general": files["general"]}
    paths = {key: files[key] for key in ("forget", "retain", "probes")}
    given = audit(
        base=made["base"],
        injected=made["injected"],
        candidates={"retrained": made["retrained"]},
        out=tmp_path / "a",
        **paths,
        **common,
    )
    models = {name: load(str(place)).model for name, place in made.items()}
    rows = [json.loads(line) for line in Path(files["forget"]).read_text().splitlines()]
    held: dict[str, Any] = {
        "base": models["base"],
        "injected": models["injected"],
        "candidates": {"retrained": models["retrained"]},
        "forget": rows,
        "retain": list(read_facts(files["retain"])),
        "probes": pd.DataFrame(map(json.loads, Path(files["probes"]).read_text().splitlines())),
        "tokenizer": load(str(made["base"])).tokenizer,
        "out": tmp_path / "b",
    }
    first = audit(**held, **common)
    assert first.verdict == given.verdict
    items = [(tmp_path / name / "cells/audit/items.parquet").read_bytes() for name in "ab"]
    assert items[0] == items[1]
    folders = sorted((tmp_path / "b.given").iterdir())
    again = audit(**held, **common)
    assert again.verdict == first.verdict
    assert sorted((tmp_path / "b.given").iterdir()) == folders


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"base": object()}, PlanError, "base: object found; expected a path"),
        ({"forget": [{"id": "x"}]}, FactsError, r"forget\[0\]: "),
        ({"candidates": {"a": 3}}, PlanError, "candidates.a: int found"),
    ],
)
def test_what_is_neither_is_refused(change: Any, kind: Any, message: str, tmp_path: Path) -> None:
    asked = {"base": "b", "injected": "i", "candidates": {}, "references": (), "forget": "f"}
    asked |= {"retain": "r", "probes": None, "out": tmp_path / "run"}
    with pytest.raises(kind, match=message):
        on_disk(asked | change)


def test_a_model_needs_its_tokenizer(tiny_checkpoint: Any, tmp_path: Path) -> None:
    model = load(str(tiny_checkpoint("qwen2-s"))).model
    asked = {"base": model, "injected": "i", "candidates": {}, "references": (), "forget": "f"}
    asked |= {"retain": "r", "probes": None, "out": tmp_path / "run"}
    with pytest.raises(PlanError, match="base: a model in memory; give its tokenizer too"):
        on_disk(asked)


def test_an_object_with_the_fields_of_a_fact_is_one(tmp_path: Path) -> None:
    class Own:
        def __init__(self) -> None:
            self.id, self.answer = "f", "Velkor"
            self.trained, self.heldout = ("The guild is",), ("Sworn to",)

    asked = {"base": "b", "injected": "i", "candidates": {}, "references": (), "forget": [Own()]}
    asked |= {"retain": "r", "probes": None, "out": tmp_path / "run"}
    assert read_facts(on_disk(asked)["forget"]) == (
        Fact("f", "Velkor", ("The guild is",), ("Sworn to",)),
    )
