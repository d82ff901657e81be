"""An audit's beacon is bound to the candidates' files, and its record shows the order."""

from pathlib import Path
from typing import Any

import pytest
from tests.audit.test_audit_inputs import GOOD, rows, write

from palimpsest.engine.audit_request import make_request
from palimpsest.engine.inputs import Inputs, prepare
from palimpsest.errors import ScoreError
from palimpsest.stats.beacon import checked


@pytest.fixture
def asked(tiny_checkpoint, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Give a function from the seed of the candidate and further keys to a prepared audit."""
    facts = {name: rows(name, count) for name, count in (("forget", 4), ("retain", 2))}
    for name, lines in facts.items():
        for line in lines:
            line["heldout"] += [f"People say that {line['subject']} has the {name}"]
        write(tmp_path / f"{name}.jsonl", lines)
    (tmp_path / "general.txt").write_text("one two three four five six seven " * 40)
    base = str(tiny_checkpoint("smollm2-s"))

    def prepared(seed: int = 1, **more: Any) -> Inputs:
        candidate = str(tiny_checkpoint("smollm2-s", seed))
        files = {name: str(tmp_path / f"{name}.jsonl") for name in facts}
        values = GOOD | files | {"base": base, "injected": base, "candidates": {"one": candidate}}
        values |= {"general": str(tmp_path / "general.txt"), "out": str(tmp_path / "run")}
        return prepare(make_request(values | {"generate_probes": 16} | more))

    return prepared


def test_text_and_candidates_fix_the_draw_and_the_terms_record_it(asked) -> None:  # type: ignore[no-untyped-def]
    first, other_text, other_model = (
        asked(beacon="tuesday"),
        asked(beacon="wednesday"),
        asked(2, beacon="tuesday"),
    )
    records = [inputs.terms()["beacon"] for inputs in (first, other_text, other_model)]
    assert len({record["value"] for record in records}) == 3
    assert records[0] == asked(beacon="tuesday").terms()["beacon"]
    assert records[0]["bound"] == {"one": first.digests()["one"]}
    checked(records[0], first.digests())
    with pytest.raises(ScoreError, match="another one"):
        checked(records[0], other_model.digests())


def test_probes_phrasings_and_schedule_are_drawn_and_trained_prompts_stay(asked) -> None:  # type: ignore[no-untyped-def]
    plain, drawn = asked(), asked(beacon="tuesday")
    assert "beacon" not in plain.terms()
    assert {f.subject for f in plain.sets["probe"]} != {f.subject for f in drawn.sets["probe"]}
    heldout = [
        {q.template for q in inputs.setting.facts.questions if q.pool == "evaluation"}
        for inputs in (plain, drawn)
    ]
    assert len(heldout[0]) == 2 and len(heldout[1]) == 1
    trained = [
        [q for q in inputs.setting.facts.questions if q.pool == "trained"]
        for inputs in (plain, drawn)
    ]
    assert trained[0] == trained[1]
    assert drawn.setting.rate != 1.0
