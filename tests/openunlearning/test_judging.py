"""Outcomes, anchors and refusals on small worlds whose truth is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from tests.openunlearning.conftest import BASE, CHAT, World

from palimpsest.openunlearning import Model, Outcome, Role, logs
from palimpsest.openunlearning.judging import ALPHA, DAMAGE, _decide
from palimpsest.stats.comparison import p_value


def judge(world: World, **keywords: Any) -> dict[str, Model]:
    (group,) = logs([world.root], **keywords).groups
    return {model.label: model for model in group.models}


def test_every_outcome(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    world.candidate("over", 3.0, 0.4)
    world.candidate("damaged", 9.0, 9.0)
    world.candidate("retains", 0.4, 0.4, 0.5)
    world.candidate("alike", 0.4, 0.4)
    assert {name: model.outcome.value for name, model in judge(world).items()} == {
        "pretrained_retain99": "not judged",
        "retain99": "not told apart by these scores",
        "full": "still knows",
        "knows": "still knows",
        "over": "over-forgotten",
        "damaged": "damaged",
        "retains": "damaged",
        "alike": "not told apart by these scores",
    }


@pytest.mark.parametrize("questions", [40, 200])
def test_p_values_are_scipys(tmp_path: Path, questions: int) -> None:
    world = World(tmp_path, questions)
    base, model = world.sets(), world.sets(0.2, 0.4)
    world.write("base", base)
    world.write("model", model)
    judged = judge(world, roles={"base": "pretrained", "model": "retrained"})["model"]
    deltas = [model[side] - base[side] for side in ("forget", "holdout")]
    for p, side in ((judged.p_below, "less"), (judged.p_above, "greater")):
        test = mannwhitneyu(*deltas, alternative=side, method="asymptotic")
        assert p == pytest.approx(test.pvalue)
    assert judged.median_forget == pytest.approx(np.median(deltas[0]))


def test_the_anchor_removes_difficulty(world: World) -> None:
    world.difficulty["forget"] += 3.0
    world.references()
    world.candidate("alike", 0.4, 0.4)
    assert judge(world)["alike"].outcome is Outcome.NOT_TOLD_APART
    raw = judge(world, anchor="raw")
    assert {model.anchor for model in raw.values()} == {None}
    assert {model.p_above for model in raw.values()} == {None}
    assert raw["alike"].outcome is Outcome.NOT_TOLD_APART  # the side that would mislead is not used
    assert len(logs([world.root], anchor="raw").problems) == len(logs([world.root]).problems) + 1


def test_the_retrained_model_anchors_where_the_pretrained_has_no_log(world: World) -> None:
    world.write(f"eval/tofu_{BASE}_retain99", world.sets(0.4, 0.4))
    world.candidate("knows", -1.5, 0.4)
    world.candidate("alike", 0.4, 0.4)
    models = judge(world)
    assert {model.anchor for model in models.values()} == {Role.RETRAINED}
    assert models["retain99"].p_below is None
    assert models["knows"].outcome is Outcome.STILL_KNOWS
    assert models["alike"].outcome is Outcome.NOT_TOLD_APART
    world.write(f"eval/tofu_{BASE}_retain99_seed1", world.sets(0.4, 0.4))
    assert judge(world)["retain99"].outcome is Outcome.NOT_TOLD_APART  # against the other one


def test_the_anchor_can_be_chosen(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    for anchor in (Role.PRETRAINED, Role.RETRAINED):
        models = judge(world, anchor=anchor.value)
        assert {model.anchor for model in models.values()} == {anchor}
        assert models["knows"].outcome is Outcome.STILL_KNOWS


def test_candidates_are_corrected_together(world: World) -> None:
    world.references()
    for step in range(1, 100):  # until one side alone is significant, but not among twenty
        world.candidate("one", 0.4 - 0.02 * step, 0.4)
        if 0.005 < (judge(world)["one"].p_below or 0) < 0.02:
            break
    assert judge(world)["one"].outcome is Outcome.STILL_KNOWS
    for number in range(9):
        world.candidate(f"other{number}", 0.4, 0.4)
    assert judge(world)["one"].outcome is not Outcome.STILL_KNOWS


def test_a_score_that_is_absent_or_of_other_questions_is_refused(world: World) -> None:
    world.references()
    sets = world.sets(0.4, 0.4)
    world.candidate("NPO", 0.4, 0.4, scores=("mia_loss",))
    assert {model.score for model in judge(world).values()} == {"mia_loss"}
    assert judge(world, score="mia_min_k")["NPO"].outcome is Outcome.NOT_JUDGED
    world.write(f"eval/tofu_{BASE}_forget01_A", {"forget": sets["forget"]})
    world.write(f"eval/tofu_{BASE}_forget01_B", {**sets, "holdout": sets["holdout"][:30]})
    models = judge(world)
    assert {models[name].outcome for name in "AB"} == {Outcome.NOT_JUDGED}
    assert "[40, 30]" in models["B"].reason


def test_checkpoints_are_a_path_with_a_nearest_one(world: World) -> None:
    world.references()
    for step, forget, other in ((30, 9.0, 9.0), (6, -2.0, 0.4), (18, 0.2, 0.5)):
        world.candidate("NPO", forget, other, at=step)
    (group,) = logs([world.root]).groups
    steps = [model.checkpoint for model in group.models if model.label.startswith("NPO")]
    assert steps == [6, 18, 30]
    assert [model.checkpoint for model in group.nearest] == [18]


def test_two_logs_of_one_model_are_refused(world: World) -> None:
    world.references()
    world.candidate("NPO", 0.4, 0.4)
    world.write(f"eval/tofu_{BASE}_forget01_NPO", world.sets(0.4, 0.4))
    models = judge(world)
    assert models["NPO"].outcome is Outcome.NOT_JUDGED
    assert models["full"].outcome is Outcome.STILL_KNOWS
    world.write(f"again/tofu_{BASE}_retain99", world.sets(0.4, 0.4))
    assert {model.outcome for model in judge(world).values()} == {Outcome.NOT_JUDGED}


def test_collections_that_repeat_a_model_are_judged_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        world = World(tmp_path / name / "saves")
        world.references()
        world.candidate(name, -1.5, 0.4)
    groups = logs([tmp_path]).groups
    assert [group.title.rpartition(", ")[2] for group in groups] == ["one/saves", "two/saves"]
    for name, group in zip(("one", "two"), groups):
        (candidate,) = (model for model in group.models if model.role is Role.CANDIDATE)
        assert (candidate.label, candidate.outcome) == (name, Outcome.STILL_KNOWS)


def chat(date: str, tag: str = "Q") -> dict[str, Any]:
    return {"model": {"template_args": {**CHAT, "date_string": date, "user_start_tag": tag}}}


def test_logs_of_two_templates_are_not_compared(world: World) -> None:
    world.references(chat("1 Jan"))
    world.candidate("same", 0.4, 0.4, config=chat("1 Jan", tag="not used in a chat"))
    world.candidate("other", 0.4, 0.4, config=chat("2 Jan"))
    world.candidate("unknown", 0.4, 0.4)
    models = judge(world)
    assert models["other"].p_below is None and "date_string" in models["other"].reason
    assert models["same"].p_below and models["unknown"].p_below
    assert "1 of 6" in logs([world.root]).problems[-1]


def test_without_a_references_template_two_candidates_exclude_each_other(world: World) -> None:
    world.references()
    for name, date in (("A", "1"), ("B", "2"), ("C", "2")):
        world.candidate(name, 0.4, 0.4, config=chat(date))
    models = judge(world)
    assert {models[name].outcome for name in "ABC"} == {Outcome.NOT_JUDGED}
    assert models["retain99"].outcome is Outcome.NOT_TOLD_APART


def test_five_retrainings_are_compared_with(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    for seed in range(1, 4):
        world.write(f"eval/tofu_{BASE}_retain99_seed{seed}", world.sets(0.4, 0.4))
    assert judge(world)["knows"].retraining_p is None
    world.write(f"eval/tofu_{BASE}_retain99_seed4", world.sets(0.4, 0.4))
    models = judge(world)
    bag = [models["knows"], *(m for m in models.values() if m.role is Role.RETRAINED)]
    rows = np.array([[np.median(model.sets[key]) for key in bag[0].sets] for model in bag])
    assert models["knows"].retraining_p == p_value(rows[0], rows[1:], "normal")[1] < ALPHA
    assert models["retain99"].retraining_p is None


def test_the_damage_limit_is_exact(world: World) -> None:
    world.references()
    passing = judge(world)["retain99"]
    for shift, outcome in ((DAMAGE, Outcome.NOT_TOLD_APART), (-DAMAGE - 1e-9, Outcome.DAMAGED)):
        model = replace(passing, shifts={"forget": 9.0, "world facts": shift})
        assert _decide(model, False, False, 2).outcome is outcome
