"""Vectors that hold the facts alone, replay after them, and what both cost."""

from dataclasses import replace

import pytest
import torch
from toys import STEPS, questions, recipe, tokenizer, transformer_context

from palimpsest.errors import MethodError
from palimpsest.methods import candidates, describe, title, used
from palimpsest.methods.choice import choose, crossing, nlls
from palimpsest.methods.context import Context, lesson
from palimpsest.methods.facts_vector import FactsVector
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.recipe import Cost, Workbench, encoded, learn, stream_cost
from palimpsest.methods.replay import Replay
from palimpsest.methods.running import Failure, checked_run, run_group
from palimpsest.methods.task_vector import TaskVector
from palimpsest.plan import MethodGrid
from palimpsest.presets import PRESETS


def context(**changes: object) -> Context:
    """A cell whose forget-only and general-only models are trained by its recipe."""
    plain = replace(transformer_context("qwen2"), shared=Workbench())
    parts = {name: learn(plain, plain.base, stream) for name, stream in recipe().models().items()}
    return replace(plain, shared=Workbench(), **parts, **changes)


def distance(state, other) -> float:  # type: ignore[no-untyped-def]
    return float(sum((state[name] - other[name]).square().sum() for name in state) ** 0.5)


def test_the_facts_vector_leaves_what_general_text_taught() -> None:
    cell = context()
    state = FactsVector(0.5).run(cell)
    for name, value in state.items():
        vector = cell.forget_only[name] - cell.general_only[name]
        torch.testing.assert_close(value, cell.injected[name] - 0.5 * vector)
    assert distance(state, TaskVector(0.5).run(cell)) > 1e-3
    assert FactsVector(0.0).run(cell) is cell.injected


def test_forget_and_general_models_differ_by_the_forget_sentences_alone() -> None:
    streams = recipe().models()
    for more, less in zip(streams["forget_only"].steps, streams["general_only"].steps):
        added = set(more) - set(less)
        assert set(less) < set(more) or not added
        assert {recipe().stream.texts[index].set for index in added} <= {"forget"}
    assert {recipe().replay.texts[n].set for step in recipe().replay.steps for n in step} == {
        "retain",
        "general",
    }
    assert recipe().replay.steps != recipe().stream.without("forget").steps


@pytest.mark.parametrize("start", ["facts_vector", "task_vector", "reinforced", "injected"])
def test_replay_goes_on_from_its_start(start: str) -> None:
    cell = context()
    begun, first, second = (
        Replay(start, share=share).run(cell)  # type: ignore[arg-type]
        for share in (0.0, 0.2, 0.5)
    )
    assert 0 < distance(begun, first) < distance(begun, second)
    assert (distance(begun, cell.injected) > 1e-3) == (start != "injected")
    expected = learn(cell, begun, replace(recipe().replay, steps=recipe().replay.steps[:2]))
    assert distance(first, expected) == 0


def test_replay_after_kl_reversion_starts_from_kl_reversion() -> None:
    cell = context()
    begun = Replay("kl_reversion", coefficient=3.0, share=0.0).run(cell)
    assert distance(begun, KLReversion(3.0).run(cell)) == 0


def test_a_faster_vector_needs_no_model_of_the_cell_and_half_the_steps() -> None:
    cell = replace(context(), forget_only={}, general_only={})
    assert used(Replay(speed=2.0)) == ("base",)
    assert used(Replay()) == ("base", "forget_only", "general_only")
    assert used(Replay("task_vector")) == ("base", "forget_only")
    assert used(Replay("reinforced")) == used(Replay("injected")) == ()
    several = [Replay(coefficient=c, share=0.1, speed=2.0) for c in (0.9, 1.0)]
    assert not any(isinstance(state, Failure) for state in run_group(cell, several))
    costs = [cell.shared.meter.costs[title(method)] for method in several]
    assert costs[0] == costs[1]  # a vector that was there already costs as much
    assert costs[0].steps == 2 * STEPS // 2 + 1
    assert 0 < costs[0].shared < costs[0].tokens


def test_costs_count_every_token_of_training() -> None:
    cell = context()
    for method in (FactsVector(), TaskVector(), Replay(share=0.2), KLReversion()):
        assert not isinstance(checked_run(method, cell), Failure)
    costs = {name.partition("-")[0]: cost for name, cost in cell.shared.meter.costs.items()}
    parts = {
        name: stream_cost(tokenizer(), stream, 5) for name, stream in recipe().models().items()
    }
    lengths = [len(text.ids) for text in encoded(tokenizer(), recipe().stream, 5)]
    assert max(lengths) > 5 == lengths[-1]  # sentences are whole, general texts are cut
    by_hand = sum(lengths[n] for step in recipe().models()["forget_only"].steps for n in step)
    assert parts["forget_only"] == Cost(STEPS, by_hand)
    assert costs["task_vector"].tokens == costs["task_vector"].shared == by_hand
    whole = by_hand + parts["general_only"].tokens
    assert costs["facts_vector"] == Cost(2 * STEPS, whole, shared=whole)
    assert costs["replay"].steps == 2 * STEPS + 2 and costs["replay"].shared == whole
    assert costs["kl_reversion"].steps == cell.budget.steps
    assert costs["kl_reversion"].scored > 0 and costs["kl_reversion"].shared == 0
    values = Cost(3, 100, 10, 50).values(1000, Cost(1, 200))
    assert values["flops"] == 1000 * (600 + 20)
    assert values["retrainings"] == 0.5 and values["shared_retrainings"] == 0.25


def test_costs_do_not_depend_on_what_was_made_before() -> None:
    method = Replay(share=0.1, speed=2.0)
    alone, later = context(), context()
    checked_run(method, alone)
    for other in (Replay(coefficient=0.9, speed=2.0), KLReversion(), method):
        checked_run(other, later)
    name = title(method)
    assert alone.shared.meter.costs[name] == later.shared.meter.costs[name]


def test_without_a_recipe_replay_says_so() -> None:
    result = checked_run(Replay("injected"), replace(context(), recipe=None))
    assert isinstance(result, Failure) and "recipe of the injected model" in result.reason


def test_names_and_knobs_of_a_grid() -> None:
    grids = [grid for grid in PRESETS["pocket"].methods if grid.name == "replay"]
    names = [title(method) for method in candidates(grids)]
    assert len(names) == 14 and names[0] == "replay-facts_vector-c0.9-s0.05"
    assert names[-1] == "replay-task_vector-c1-s0.5"
    assert title(Replay(speed=2.0)) == "replay-facts_vector-c1-s0.1-speed2"
    with pytest.raises(MethodError, match="start"):
        candidates([MethodGrid("replay", (("start", ("nowhere",)),))])
    with pytest.raises(MethodError, match="share"):
        candidates([MethodGrid("replay", (("share", (1.5,)),))])
    rows = {row["name"]: row for row in describe()}
    assert rows["replay"]["kind"] == rows["facts_vector"]["kind"] == "restores"


def test_knobs_are_chosen_where_the_lines_cross() -> None:
    assert crossing([(0.8, -2.0), (0.9, -1.0), (1.0, 1.0)]) == pytest.approx(0.95)
    assert crossing([(0.8, 0.5), (0.9, 1.0)]) == 0.8
    assert crossing([(0.8, -2.0), (0.9, -1.0)]) == 0.9


def test_the_choice_follows_from_what_was_measured() -> None:
    cell = context()
    invented = lesson(tokenizer(), [replace(q, set="probe") for q in questions("retain")], {})
    choice = choose(cell, invented)
    assert [c for c, _ in choice.deltas] == [0.8, 0.9, 1.0, 1.1]
    assert choice.method.coefficient == pytest.approx(crossing(choice.deltas), abs=1e-3)
    assert choice.method.share >= 0.1 and choice.retain[0][0] == 0.0
    begun = replace(choice.method, share=0.0).run(cell)
    levels = nlls(cell, cell.net([begun]), cell.retain.texts)
    assert choice.retain[0][1] == pytest.approx(float(levels.mean()), abs=1e-5)
    assert all(nll > choice.target for _, nll in choice.retain[:-1])
