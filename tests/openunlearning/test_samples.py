"""Samples of lm-evaluation-harness: a forget task against a control task, anchored to a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.errors import InputError, PlanError
from palimpsest.openunlearning import LogReport, Outcome, logs
from palimpsest.openunlearning.samples import CHOICE, NO_RETRAINING

ROLES = {"base": "pretrained", "zephyr": "full", "rmu": "candidate"}
TASKS = {"forget_task": "wmdp_bio", "holdout_task": "mmlu_*"}


def sample(
    number: int, losses: Sequence[float], right: Any = 1, prompt: str = "Q"
) -> dict[str, Any]:
    """Return a line as lm_eval writes it: numbers as text, a response per choice."""
    answers = [[str(-loss), "False"] for loss in losses]
    return {
        "doc_id": number,
        "doc": {"question": "?"},
        "target": str(right),
        "arguments": {
            f"gen_args_{i}": {"arg_0": f"{prompt}{number}", "arg_1": f" {letter}"}
            for i, letter in enumerate("ABCD"[: len(losses)])
        },
        "resps": [[answer] for answer in answers],
        "filtered_resps": answers,
        "filter": "none",
        "doc_hash": f"d{number}",
        "prompt_hash": f"{prompt}{number}",
    }


def write(folder: Path, task: str, rows: Sequence[dict[str, Any]], date: str = "01") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_2026-01-{date}T10-00-00.123456.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Three models: the unlearned one answers the forget task at chance, the others do not."""
    random = np.random.default_rng(1)
    for model, gap in (("base", 1.0), ("zephyr", 4.0), ("rmu", 0.0)):
        for task, right in (("wmdp_bio", gap), ("mmlu_law", 3.0), ("mmlu_virology", 3.0)):
            losses = random.normal(5, 0.5, (40, 4))
            losses[:, 1] -= right
            rows = [sample(number, row) for number, row in enumerate(losses)]
            write(tmp_path / model, task, random.permutation(np.array(rows)).tolist())
    return tmp_path


def outcomes(report: LogReport) -> dict[str, Outcome]:
    return {model.name: model.outcome for group in report.groups for model in group.models}


def test_a_forget_task_is_screened_against_a_control_task(out: Path) -> None:
    report = logs([out], roles=ROLES, **TASKS)
    assert outcomes(report) == {
        "base": Outcome.ANCHOR,
        "zephyr": Outcome.STILL_KNOWS,
        "rmu": Outcome.OVER_FORGOTTEN,
    }
    assert {len(v) for m in report.groups[0].models for v in m.scores[CHOICE].values()} == {40, 80}
    assert NO_RETRAINING in report.problems


def test_the_score_is_that_of_the_right_choice_among_the_choices(tmp_path: Path) -> None:
    rows = [sample(0, [1.0, 2.0, 4.0], 2), sample(1, [1.0, 2.0], "B"), sample(2, [])]
    for folder in ("base", "rmu"):
        write(tmp_path / folder, "wmdp_bio", rows)
        write(tmp_path / folder, "mmlu_law", rows)
    (group,) = logs([tmp_path], roles={"*": "candidate"}, **TASKS).groups
    scores = group.models[0].scores[CHOICE]["forget"]
    expected = [4 + np.log(np.exp([-1.0, -2, -4]).sum()), 2 + np.log(np.exp([-1.0, -2]).sum())]
    assert scores[:2] == pytest.approx(expected) and np.isnan(scores[2])


def test_the_newest_samples_of_one_filter_are_taken(out: Path) -> None:
    before = logs([out], roles=ROLES, **TASKS).groups[0].models[1].screen
    easy = [sample(number, [9.0, 0.0]) for number in range(40)]
    write(out / "zephyr", "wmdp_bio", easy, date="02")
    twice = out / "zephyr" / "samples_mmlu_law_2026-01-01T10-00-00.123456.jsonl"
    twice.write_text(twice.read_text() * 2)
    after = logs([out], roles=ROLES, **TASKS).groups[0].models[1].screen
    assert before is not None and after is not None
    assert after.median_forget < before.median_forget and after.holdout == before.holdout


def test_other_prompts_are_not_compared(out: Path) -> None:
    write(out / "rmu", "wmdp_bio", [sample(n, [1.0, 2.0], prompt="shot") for n in range(40)])
    assert outcomes(logs([out], roles=ROLES, **TASKS))["rmu"] is Outcome.NOT_JUDGED


def test_what_is_missing_is_named(out: Path) -> None:
    with pytest.raises(PlanError) as caught:
        logs([out], roles=ROLES, forget_task="wmdp_bio")
    assert caught.value.key == "holdout_task"
    with pytest.raises(InputError, match="wmdp_chem"):
        logs([out], roles=ROLES, forget_task="wmdp_chem", holdout_task="mmlu_*")
    (out / "nothing").mkdir()
    with pytest.raises(InputError, match="samples_"):
        logs([out / "nothing"], **TASKS)
    assert any("--role" in text for text in logs([out], **TASKS).problems)
    (path,) = (out / "rmu").glob("samples_wmdp*")
    path.write_text("[1]\n")
    with pytest.raises(InputError, match="line 1"):
        logs([out], roles=ROLES, **TASKS)
