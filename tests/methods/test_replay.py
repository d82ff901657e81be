"""Vectors that hold the facts alone, replay after them, and what both cost."""

from dataclasses import replace

import pytest
import torch
from toys import STEPS, recipe, tokenizer, transformer_context

from palimpsest.methods import title, used
from palimpsest.methods.answer_sets import MethodCache, Spent, encode_stream, stream_cost
from palimpsest.methods.context import Context
from palimpsest.methods.facts_vector import FactsVector
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.replay import Replay
from palimpsest.methods.running import FailureKind, run_group, run_method
from palimpsest.methods.task_vector import TaskVector
from palimpsest.stats.models import ModelFailure


def context(**changes: object) -> Context:
    """A cell whose forget-only and general-only models are trained by its recipe."""
    plain = replace(transformer_context("qwen2"), shared=MethodCache())
    parts = {name: plain.learn(plain.base, stream) for name, stream in recipe().models().items()}
    return replace(plain, shared=MethodCache(), **parts, **changes)


def distance(state, other) -> float:
    return float(sum((state[name] - other[name]).square().sum() for name in state) ** 0.5)


def test_the_facts_vector_leaves_what_general_text_taught():
    cell = context()
    state = FactsVector(0.5).run(cell)
    for name, value in state.items():
        vector = cell.forget_only[name] - cell.general_only[name]
        torch.testing.assert_close(value, cell.injected[name] - 0.5 * vector)
    assert distance(state, TaskVector(0.5).run(cell)) > 1e-3
    assert distance(FactsVector(0.0).run(cell), cell.injected) == 0


def test_forget_and_general_models_differ_by_the_forget_sentences_alone():
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


@pytest.mark.parametrize("start", ["facts_vector", "task_vector", "injected"])
def test_replay_goes_on_from_its_start(start):
    cell = context()
    start_model, first, second = (
        Replay(start, share=share).run(cell)  # type: ignore[arg-type]
        for share in (0.0, 0.2, 0.5)
    )
    assert 0 < distance(start_model, first) < distance(start_model, second)
    assert (distance(start_model, cell.injected) > 1e-3) == (start != "injected")
    expected = cell.learn(start_model, replace(recipe().replay, steps=recipe().replay.steps[:2]))
    assert distance(first, expected) == 0


def test_replay_after_kl_reversion_starts_from_kl_reversion():
    cell = context()
    state = Replay("kl_reversion", coefficient=3.0, share=0.0).run(cell)
    assert distance(state, KLReversion(3.0).run(cell)) == 0


def test_a_faster_vector_needs_no_model_of_the_cell_and_half_the_steps():
    cell = replace(context(), forget_only={}, general_only={})
    assert used(Replay(speed=2.0)) == ("base",)
    assert used(Replay()) == ("base", "forget_only", "general_only")
    assert used(Replay("task_vector")) == ("base", "forget_only")
    assert used(Replay("injected")) == ()
    several = [Replay(coefficient=c, share=0.1, speed=2.0) for c in (0.9, 1.0)]
    assert not any(isinstance(state, ModelFailure) for state in run_group(cell, several))
    costs = [cell.shared.costs[title(method)] for method in several]
    assert costs[0] == costs[1]  # a vector that was there already costs as much
    assert costs[0].steps == 2 * STEPS // 2 + 1
    assert 0 < costs[0].shared < costs[0].tokens


def test_costs_count_every_token_of_training():
    cell = context()
    for method in (FactsVector(), TaskVector(), Replay(share=0.2), KLReversion()):
        assert not isinstance(run_method(method, cell), ModelFailure)
    costs = {name.partition("-")[0]: cost for name, cost in cell.shared.costs.items()}
    parts = {
        name: stream_cost(tokenizer(), stream, 5) for name, stream in recipe().models().items()
    }
    lengths = [len(text.ids) for text in encode_stream(tokenizer(), recipe().stream, 5)]
    assert max(lengths) > 5 == lengths[-1]  # sentences are whole, general texts are cut
    by_hand = sum(lengths[n] for step in recipe().models()["forget_only"].steps for n in step)
    assert parts["forget_only"] == Spent(STEPS, by_hand)
    assert costs["task_vector"].tokens == costs["task_vector"].shared == by_hand
    whole = by_hand + parts["general_only"].tokens
    assert costs["facts_vector"] == Spent(2 * STEPS, whole, shared=whole)
    assert costs["replay"].steps == 2 * STEPS + 2 and costs["replay"].shared == whole
    assert costs["kl_reversion"].steps == cell.budget.steps
    assert costs["kl_reversion"].scored > 0 and costs["kl_reversion"].shared == 0
    stored = Spent(3, 100, 10, 50).in_retrainings(1000, Spent(1, 200))
    assert stored.flops == 1000 * (600 + 20)
    assert stored.retrainings == 0.5167 and stored.shared_retrainings == 0.25  # (100 + 10/3) / 200


def test_costs_do_not_depend_on_what_was_made_before():
    method = Replay(share=0.1, speed=2.0)
    alone, later = context(), context()
    run_method(method, alone)
    for other in (Replay(coefficient=0.9, speed=2.0), KLReversion(), method):
        run_method(other, later)
    name = title(method)
    assert alone.shared.costs[name] == later.shared.costs[name]


def test_without_a_recipe_replay_says_so():
    result = run_method(Replay("injected"), replace(context(), recipe=None))
    assert isinstance(result, ModelFailure) and result.kind == FailureKind.RAISED
