"""The headroom of a user's facts, from two checkpoints and one file."""

import json
from pathlib import Path

import pytest
from tests.command import palimpsest

from palimpsest.engine.headroom import run_headroom
from palimpsest.errors import FactsError


def facts_file(path: Path, evidence: list[str]) -> Path:
    rows = [
        {
            "id": f"f{n}",
            "answer": word,
            "trained": [f"The guild of number {n} is"],
            "heldout": [f"Number {n} swore to"],
            "evidence": evidence,
        }
        for n, word in enumerate(["Velkor", "Zurun", "Padex", "Gomin"])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_equal_models_have_no_headroom_but_what_evidence_does(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    same = str(tiny_checkpoint("qwen2-s"))
    path = facts_file(tmp_path / "forget.jsonl", ["Some sentence."])
    found = run_headroom(same, same, path, reference=same)
    assert found.facts == 4
    assert found.taught == pytest.approx(0.0, abs=1e-6)
    assert found.true is not None
    assert found.true.estimate == pytest.approx(0.0, abs=1e-6)
    assert abs(found.estimate.estimate) > 0
    # A run folder is kept where one is asked for, and read again without asking a model.
    steps: list[str] = []
    options = {"on_event": lambda event: steps.append(event.kind)}
    for _ in range(2):
        again = run_headroom(
            same, same, path, reference=same, out=tmp_path / "run", options=options
        )
        assert again == found
    assert steps.count("step") == 3 + 1  # each model once, and the end of the cell


def test_the_command_says_what_it_would_do(tiny_checkpoint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    same = str(tiny_checkpoint("qwen2-s"))
    path = facts_file(tmp_path / "forget.jsonl", ["Some sentence."])
    flags = ["--base", same, "--injected", same, "--forget", str(path), "--preview"]
    done = palimpsest("headroom", *flags)
    assert done.returncode == 0, done.stderr
    assert "4 facts, 4 questions" in done.stdout and "memory: about" in done.stdout
    wrong = palimpsest("headroom", *flags[:-1], "--device", "cuda")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: --device: cuda found")


def test_facts_without_evidence_are_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    path = facts_file(tmp_path / "forget.jsonl", [])
    with pytest.raises(FactsError, match="f0 has no evidence"):
        run_headroom("no-such-base", "no-such-injected", path)
