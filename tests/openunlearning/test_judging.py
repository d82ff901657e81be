"""Outcomes, anchors and refusals on small worlds whose truth is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from tests.openunlearning.conftest import BASE, CHAT, World

from palimpsest.openunlearning import Model, Outcome, Role, logs
from palimpsest.openunlearning.judging import ALPHA
from palimpsest.stats.comparison import p_value
from palimpsest.stats.multiplicity import holm


def judge(world: World, **keywords: Any) -> dict[str, Model]:
    (group,) = logs([world.root], **keywords).groups
    return {model.label: model for model in group.models}


def outcomes(world: World, **keywords: Any) -> dict[str, str]:
    return {name: model.outcome.value for name, model in judge(world, **keywords).items()}


def test_every_outcome(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    world.candidate("over", 3.0, 0.4)
    world.candidate("damaged", 9.0, 9.0)
    world.candidate("collapsed", 40.0, 41.0)
    world.candidate("wrecked", 41.0, 40.0)
    world.candidate("retains", 0.4, 0.4, 0.5)
    world.candidate("alike", 0.4, 0.4)
    assert outcomes(world) == {
        "pretrained_retain99": "anchor",
        "retain99": "not told apart by these scores",
        "full": "still knows",
        "knows": "still knows",
        "over": "over-forgotten",
        "damaged": "damaged",
        "collapsed": "still knows and damaged",
        "wrecked": "over-forgotten and damaged",
        "retains": "damaged",
        "alike": "not told apart by these scores",
    }


@pytest.mark.parametrize("questions", [40, 200])
def test_p_values_and_auc_are_scipys(tmp_path: Path, questions: int) -> None:
    world = World(tmp_path, questions)
    base, model = world.sets(), world.sets(0.2, 0.4)
    world.write("base", base)
    world.write("model", model)
    judged = judge(world, roles={"base": "pretrained", "model": "retrained"})["model"]
    deltas = [model[side] - base[side] for side in ("forget", "holdout")]
    for p, side in ((judged.p_below, "less"), (judged.p_above, "greater")):
        test = mannwhitneyu(*deltas, alternative=side, method="asymptotic")
        assert p == pytest.approx(test.pvalue)
    assert judged.screen is not None
    assert judged.screen.auc == pytest.approx(1 - test.statistic / questions**2)
    assert judged.screen.median_forget == pytest.approx(np.median(deltas[0]))


def test_every_judgement_states_its_baseline_and_its_family(world: World) -> None:
    world.references()
    for name, shift in (("A", -1.5), ("B", 0.3)):
        world.candidate(name, shift, 0.4)
    models = judge(world)
    tests = [p for name in "AB" for p in (models[name].p_below, models[name].p_above)]
    adjusted = [(models[n].adjusted_below, models[n].adjusted_above) for n in "AB"]
    assert [p for pair in adjusted for p in pair] == list(holm(tests, ALPHA).adjusted)
    assert (models["A"].family, models["full"].family, models["retain99"].family) == (4, 2, 2)
    (anchor,), (reference,) = models["A"].anchor_logs, models["A"].reference_logs
    assert anchor.parent.name.endswith("pretrained_retain99")
    assert reference.parent.name.endswith(f"{BASE}_retain99")
    assert models["retain99"].reference_logs == ()


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
    assert models["retain99"].outcome is Outcome.ANCHOR and models["retain99"].p_below is None
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
    assert judge(world, score="mia_min_k")["NPO"].outcome is Outcome.NOT_JUDGED
    world.candidate("RMU", 0.4, 0.4, scores=("mia_loss",))
    world.candidate("DPO", 0.4, 0.4, scores=("mia_loss",))
    world.candidate("GA", 0.4, 0.4, scores=("mia_loss",))
    assert {model.score for model in judge(world).values()} == {"mia_loss"}
    world.write(f"eval/tofu_{BASE}_forget01_B", {**sets, "holdout": sets["holdout"][:30]})
    models = judge(world)
    assert models["B"].outcome is Outcome.NOT_JUDGED
    assert "[40, 30]" in models["B"].reason


# -- runs and their checkpoints --------------------------------------------------------------------


def test_a_run_counts_once_by_its_last_log(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    for step in (5, 10, 15, 20, 25, 30):
        world.retraining("retain99_seed1", 0.1 * step, 0.1 * step, at=step)
    models = judge(world)
    assert models["knows"].retraining_p is None  # six checkpoints are not six retrainings
    assert [path.parents[1].name for path in models["knows"].reference_logs] == [
        "eval",
        "checkpoint-30",
    ]
    path = [m for m in models.values() if m.name.endswith("seed1")]
    assert [model.last for model in path] == [False] * 5 + [True]
    assert models["knows"].family == 2 and {model.family for model in path} == {2, 10}


def test_what_a_half_trained_checkpoint_shows_is_a_path_alone(world: World) -> None:
    world.references()
    world.retraining("retain99_seed1", -1.0, 0.4, at=5)
    world.retraining("retain99_seed1", 0.4, 0.4, at=10)
    models = judge(world)
    assert models["retain99_seed1-5"].outcome is Outcome.STILL_KNOWS
    assert models["retain99_seed1-10"].outcome is Outcome.NOT_TOLD_APART
    assert not any("no reference" in text for text in logs([world.root]).problems)


def test_the_log_at_the_start_of_a_run_is_of_the_model_it_began_with(world: World) -> None:
    world.retraining("retain99", 0.0, 0.0, at=0)
    world.retraining("retain99", 0.4, 0.4, at=12)
    world.candidate("NPO", -3.0, 0.4, at=0)
    world.candidate("NPO", 9.0, 9.0, at=7)
    models = judge(world)
    assert {name: (m.role, m.outcome) for name, m in models.items()} == {
        "retain99-0": (Role.PRETRAINED, Outcome.ANCHOR),
        "NPO-0": (Role.FULL, Outcome.STILL_KNOWS),
        "retain99-12": (Role.RETRAINED, Outcome.NOT_TOLD_APART),
        "NPO-7": (Role.CANDIDATE, Outcome.DAMAGED),
    }


def test_checkpoints_have_a_nearest_one(world: World) -> None:
    world.references()
    for step, forget, other in ((30, 9.0, 9.0), (6, -2.0, 0.4), (18, 0.2, 0.5)):
        world.candidate("NPO", forget, other, at=step)
    (group,) = logs([world.root]).groups
    steps = [model.checkpoint for model in group.models if model.label.startswith("NPO")]
    assert steps == [6, 18, 30]
    assert [model.checkpoint for model in group.nearest] == [18]


# -- which retrained model is a reference ----------------------------------------------------------


def test_a_copy_of_another_models_log_is_named_and_no_reference(world: World) -> None:
    world.references()
    world.candidate("NPO", 9.0, 9.0)
    full = world.root / f"eval/tofu_{BASE}_full/evals_forget01/TOFU_EVAL.json"
    retrained = world.root / f"eval/tofu_{BASE}_retain99/TOFU_EVAL.json"
    retrained.write_bytes(full.read_bytes())
    models = judge(world)
    assert models["retain99"].outcome is Outcome.NOT_JUDGED
    assert f"tofu_{BASE}_full" in models["retain99"].reason
    assert models["full"].outcome is Outcome.STILL_KNOWS
    assert models["NPO"].reference_logs == () and not models["NPO"].shifts


def test_a_retrained_model_that_still_knows_is_no_reference(world: World) -> None:
    world.references()
    world.retraining("retain99_wrong", 0.4, 0.4)
    world.write(f"eval/tofu_{BASE}_retain99_seed2", world.sets(-2.5, 0.4))
    world.candidate("NPO", 0.4, 0.4)
    models = judge(world)
    assert models["retain99_seed2"].outcome is Outcome.STILL_KNOWS
    (reference,) = models["NPO"].reference_logs
    assert reference.parent.name == f"tofu_{BASE}_retain99"
    assert any("retain99_seed2" in text for text in logs([world.root]).problems)


def test_copies_of_one_seed_are_one_retraining(world: World) -> None:
    world.references()
    path = world.retraining("retain99_seed1", 0.4, 0.4)
    again = world.retraining("retain99_seed2", 0.4, 0.4)
    again.write_bytes(path.read_bytes())
    assert judge(world)["retain99_seed2"].outcome is Outcome.NOT_JUDGED


def test_two_logs_of_one_model_are_told_and_the_first_is_used(world: World) -> None:
    world.references()
    world.candidate("NPO", 0.4, 0.4)
    world.write(f"eval/tofu_{BASE}_forget01_NPO", world.sets(-3.0, 0.4))
    (group,) = logs([world.root]).groups
    first, second = (model for model in group.models if model.label == "NPO")
    assert (first.path.parents[1].name, first.outcome) == ("eval", Outcome.STILL_KNOWS)
    assert second.outcome is Outcome.NOT_JUDGED and str(first.path) in second.reason


def test_five_retrainings_are_compared_with(world: World) -> None:
    world.references()
    world.candidate("knows", -1.5, 0.4)
    for seed in range(1, 4):
        world.retraining(f"retain99_seed{seed}", 0.4, 0.4)
    assert judge(world)["knows"].retraining_p is None
    world.retraining("retain99_seed4", 0.4, 0.4)
    models = judge(world)
    bag = [models["knows"], *(m for m in models.values() if m.role is Role.RETRAINED)]
    rows = np.array([[np.median(model.sets[key]) for key in bag[0].sets] for model in bag])
    assert models["knows"].retraining_p == p_value(rows[0], rows[1:], "normal")[1] < ALPHA
    assert models["retain99"].retraining_p is None
    assert not any("recipes" in text for text in logs([world.root]).problems)


def test_retrainings_of_several_recipes_are_said(world: World) -> None:
    world.references()
    for rate in ("1e-05", "2e-05"):
        world.retraining(f"retain99_lr{rate}_wd0.01_epoch5", 0.4, 0.4)
    assert sum("3 recipes" in text for text in logs([world.root]).problems) == 1


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "candidate", "outcome"),
    [(0.0, 0.02, "not told apart by these scores"), (0.0, 0.2, "damaged"),
     (0.15, 0.2, "not told apart by these scores"), (-0.15, 0.6, "damaged")],
)  # fmt: skip
def test_the_limit_of_damage_is_what_the_full_model_does(
    world: World, full: float, candidate: float, outcome: str
) -> None:
    world.references()
    world.write(f"eval/tofu_{BASE}_full/evals_forget01", world.sets(-3.0, 0.4, full))
    world.candidate("NPO", 0.4, 0.4, candidate)
    models = judge(world)
    assert models["NPO"].outcome.value == outcome
    assert models["full"].outcome is Outcome.STILL_KNOWS  # never damaged by its own measure


def test_retrainings_that_lie_apart_widen_the_limit(world: World) -> None:
    world.references()
    world.candidate("NPO", 0.4, 0.4, 0.25)
    assert judge(world)["NPO"].outcome is Outcome.DAMAGED
    world.write(f"finetune/tofu_{BASE}_retain99_seed1/evals", world.sets(0.4, 0.4, 0.25))
    assert judge(world)["NPO"].outcome is Outcome.NOT_TOLD_APART


def test_without_a_full_model_there_are_levels_and_no_word(world: World) -> None:
    world.references()
    (world.root / f"eval/tofu_{BASE}_full/evals_forget01/TOFU_EVAL.json").unlink()
    world.candidate("NPO", 9.0, 9.0)
    model = judge(world)["NPO"]
    assert model.outcome is Outcome.NOT_TOLD_APART and model.shifts["holdout"] > 3
    assert any("no full model" in text for text in logs([world.root]).problems)


# -- collections, prompts and base models ----------------------------------------------------------


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
    assert any("1 of 6" in text for text in logs([world.root]).problems)


def test_without_a_references_template_two_candidates_exclude_each_other(world: World) -> None:
    world.references()
    for name, date in (("A", "1"), ("B", "2"), ("C", "2")):
        world.candidate(name, 0.4, 0.4, config=chat(date))
    models = judge(world)
    assert {models[name].outcome for name in "ABC"} == {Outcome.NOT_JUDGED}
    assert models["retain99"].outcome is Outcome.NOT_TOLD_APART


def test_renamed_runs_of_two_bases_are_told_apart_by_patterns(world: World) -> None:
    roles = {"*_ref": "pretrained", "*_npo": "candidate"}
    for base in ("small", "large"):
        for kind, shift in (("ref", 0.0), ("npo", -1.5)):
            world.write(f"{base}_{kind}", world.sets(shift, 0.0))
    mixed = logs([world.root], roles=roles)
    assert len(mixed.groups) == 1 and any("--base" in text for text in mixed.problems)
    apart = logs([world.root], roles=roles, bases={"small*": "1B", "large*": "8B"})
    assert [group.title for group in apart.groups] == ["TOFU 1B forget01", "TOFU 8B forget01"]
    for group in apart.groups:
        assert [model.outcome.value for model in group.models] == ["anchor", "still knows"]


def test_time_is_linear(tmp_path: Path) -> None:
    """What is counted is the work per log, not the clock."""
    counts = []
    for size in (10, 40):
        world = World(tmp_path / str(size), 20)
        world.references()
        for number in range(size):
            world.retraining(f"retain99_seed{number}", 0.4, 0.4)
            world.candidate(f"NPO{number}", 0.4, 0.4)
        counts.append(calls(world) / (2 * size + 3))
    assert counts[1] < 1.3 * counts[0]


def calls(world: World) -> int:
    """Return the number of function calls that judging and showing a folder takes."""
    import cProfile
    import pstats

    from palimpsest.openunlearning.show import as_csv_file, as_json, as_text

    with cProfile.Profile() as profile:
        report = logs([world.root])
        as_text(report), as_text(report, True), as_json(report), as_csv_file(report)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
