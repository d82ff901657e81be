"""Every method of both pools runs on every family, alone and side by side, at matched compute."""

import pytest
import torch
from toys import FAMILIES, GATED, answers_of, transformer_context

from palimpsest.config.plan import MethodGrid
from palimpsest.methods import BUILT_IN, candidates, method_class, title
from palimpsest.methods.running import FailureKind, groups, run_group, run_method
from palimpsest.models.net import WholeNet
from palimpsest.models.train import AdamW
from palimpsest.stats.models import ModelFailure

LOSSES = ("kl_reversion", "gate_mask", "ga", "npo", "graddiff", "simnpo")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_changes_the_model_on_either_engine_alike(name, family):
    method = method_class(name)()
    results = [
        run_method(method, transformer_context(family, stacked)) for stacked in (False, True)
    ]
    if name == "gate_mask" and family not in GATED:
        assert [failure.kind for failure in results] == [FailureKind.NOT_APPLICABLE] * 2
        return
    context = transformer_context(family)
    before = answers_of(family, context, context.injected)
    alone, side_by_side = (answers_of(family, context, state) for state in results)
    assert (alone - before).abs().max() > 1e-3
    torch.testing.assert_close(alone, side_by_side, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", LOSSES)
def test_side_by_side_is_one_by_one(name, family):
    if name == "gate_mask" and family not in GATED:
        pytest.skip("gated MLPs only")
    methods = candidates([MethodGrid(name, (("weight", (3.0, 12.0, 50.0)),))])
    context = transformer_context(family, stacked=True)
    together = run_group(context, methods)
    for method, state in zip(methods, together, strict=True):
        alone = run_method(method, context)
        torch.testing.assert_close(
            answers_of(family, context, state),
            answers_of(family, context, alone),
            atol=1e-5,
            rtol=0,
        )
    first, last = (answers_of(family, context, together[n]) for n in (0, -1))
    assert (first - last).abs().max() > 1e-5


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "held_vector"])
def test_gradient_methods_cost_the_budgets_steps_and_items(name, monkeypatch):
    """The exceptions are named: arithmetic is free, dampening has no steps, DPO reads pairs."""
    steps, rows = [], []
    step, logits = AdamW.step, WholeNet.logits
    monkeypatch.setattr(
        AdamW, "step", lambda self, *given: (steps.append(1), step(self, *given))[1]
    )

    def counted(self, batch, params=None):
        if torch.is_grad_enabled():
            rows.append(len(batch.ids))
        return logits(self, batch, params)

    context = transformer_context("llama", steps=4, forget_items=3, retain_items=2)
    monkeypatch.setattr(WholeNet, "logits", counted)
    assert not isinstance(run_method(method_class(name)(), context), ModelFailure)
    texts = len(context.forget.texts) + len(context.retain.texts)
    expected = {
        "task_vector": (0, []),
        "rollback": (0, []),
        "ssd": (0, [1] * texts),
        "rmu": (4, []),  # reads the body only, see below
        "dpo": (4, [5, 3] * 4),
        "facts_vector": (0, []),
        "replay": (1, [len(context.recipe.replay.steps[0])]),  # a tenth of ten injection steps
    }
    assert (len(steps), rows) == expected.get(name, (4, [5] * 4))


def test_groups_join_neighbours_that_differ_in_scalars_or_train_nothing():
    methods = candidates(
        [
            MethodGrid("kl_reversion", (("weight", (3.0, 12.0, 50.0)),)),
            MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
            MethodGrid("npo", (("rate", (0.5, 1.0)), ("beta", (0.1, 0.5)), ("weight", (3, 12)))),
            MethodGrid("dpo", (("weight", (1.0, 2.0)),)),
        ]
    )
    assert [len(group) for group in groups(methods, 4)] == [3, 2, 4, 4, 2]
    assert [len(group) for group in groups(methods, 2)] == [2, 1, 2, 2, 2, 2, 2, 2]
    assert all(len(group) == 1 for group in groups(methods, 1))
    assert [title(method) for group in groups(methods, 4) for method in group] == [
        title(method) for method in methods
    ]
