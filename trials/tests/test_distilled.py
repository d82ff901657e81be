"""Distilled without distillation, it is a retraining; a matched vector is matched."""

from dataclasses import replace

import pytest
import torch
from tests.methods.toys import transformer_context

from palimpsest.methods.answer_sets import MethodCache
from palimpsest_trials.distilled import Distilled
from palimpsest_trials.matched_vector import MatchedVector


def distance(one, other):
    gaps = [(one[name].float() - other[name].float()).square().sum() for name in one]
    return float(torch.stack(gaps).sum().sqrt())


def test_with_every_text_and_its_labels_it_is_the_retraining():
    context = replace(transformer_context("llama"), shared=MethodCache())
    recipe = context.known_recipe
    retrained = context.learn(context.base, recipe.stream.only("retain"))
    whole = Distilled(texts=9, noise=9.0).run(context)
    moved = distance(retrained, context.base)
    # The second moment is a plain mean in the place of AdamW's, which is nearly one.
    assert distance(whole, retrained) < 0.05 * moved
    assert distance(Distilled(texts=9, noise=0.0).run(context), retrained) > 0.1 * moved


def test_it_costs_the_texts_that_it_reads():
    spent = []
    for texts in (1, 2):
        context = replace(transformer_context("llama"), shared=MethodCache())
        Distilled(texts=texts).run(context)
        spent.append(context.shared.spent.tokens)
    assert spent[0] < spent[1]


@pytest.mark.parametrize("match", ["level", "speed"])
def test_the_matched_vector_leaves_no_gap(match, monkeypatch):
    context = replace(transformer_context("llama"), shared=MethodCache())
    method = MatchedVector(match=match)
    new = [list(context.forget.texts)]
    monkeypatch.setattr(MatchedVector, "_new_facts", lambda self, context: new)
    # The forget texts themselves as the new ones: the gap is 0 at any coefficient.
    assert method._gap(context, context.base, new) == pytest.approx(0.0, abs=1e-6)
