"""The example that does an audit by hand says what the command says of the same models."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import palimpsest
from palimpsest.config.sections import General, Reacquisition
from tests.audit.audit_models import REFERENCES, STEPS, audit_values

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import audit_by_hand

    return audit_by_hand


def same(by_hand: dict[str, Any], document: dict[str, Any]) -> None:
    """Check the numbers of an audit by hand against the summary of the command."""
    for name, found in document["candidates"].items():
        assert by_hand["p"][name] == pytest.approx(found["p"], abs=1e-5), name
        assert by_hand["screen_p"][name] == pytest.approx(found["screen_p"], rel=1e-9), name
        assert by_hand["worst_axis"][name] == found["worst_axis"]["name"], name
        assert (name in by_hand["passing"]) == found["clears"], name
        if found["at_most"] is not None and found["at_most"] < 0.1:
            assert by_hand["at_most"][name] == pytest.approx(found["at_most"], abs=1e-4), name


def test_the_numbers_are_the_commands(example: ModuleType, tiny_audit: Path) -> None:
    values = audit_values(tiny_audit.parent)
    plan = Reacquisition(
        steps=STEPS["steps"],
        items=STEPS["items"],
        chunks=STEPS["chunks"],
        learning_rate=values["learning_rate"],
    )
    text = General(
        source=values["general"],
        scored_pieces=STEPS["scored_pieces"],
        piece_tokens=STEPS["piece_tokens"],
    )
    by_hand = example.audit_by_hand(
        {key: values[key] for key in ("base", "injected")},
        values["candidates"],
        values["references"],
        {"forget": values["forget"], "retain": values["retain"], "probe": values["probes"]},
        plan,
        text,
    )
    assert len(values["references"]) == REFERENCES
    same(by_hand, json.loads((tiny_audit / "summary.json").read_text()))


@pytest.mark.slow
def test_pocket_models_get_the_commands_verdict(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(tmp_path)
    printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    models, quick = tmp_path / "models", EXAMPLES / "quick"
    answer = palimpsest.audit(
        base="pocket/qwen2-s",
        injected=str(models / "injected"),
        candidates={"nothing-done": str(models / "injected"), "retrained": str(models / "05")},
        references=[str(models / f"{number:02d}") for number in range(5)],
        forget=str(quick / "forget.jsonl"),
        retain=str(quick / "retain.jsonl"),
        probes=str(quick / "probe.jsonl"),
        general=str(quick / "general.txt"),
        learning_rate=1.5e-4,
        out=tmp_path / "run",
    )
    by_hand = {key: eval(value) for key, value in printed.items() if key != "reason"}
    same(by_hand, dict(answer.document))
    assert answer.verdict is not None
    assert printed["reason"] == str(answer.verdict.reason)
