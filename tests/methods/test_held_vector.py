"""The held vector is what its formulas say, and its cost what it read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from tests.methods.toys import recipe, tokenizer, transformer_context, whole
from torch import Tensor
from torch.nn import functional

from palimpsest.facts.examples import schedule_rates
from palimpsest.methods.answer_sets import MethodCache, Recipe, encode_stream
from palimpsest.methods.context import Context
from palimpsest.methods.held_vector import HeldVector
from palimpsest.methods.running import run_method
from palimpsest.models.net import WholeNet

SPEED, TEXTS, SAMPLE = 2, 2, 3


def by_examples() -> Recipe:
    """The toy recipe with every token of a step weighing the same, and a decaying rate."""
    stream = recipe().stream
    steps = len(stream.steps)
    decayed = replace(stream, full_steps=stream.steps, rates=schedule_rates("linear", steps))
    return replace(recipe(), stream=decayed)


def spelled_out(context: Context, sets: tuple[str, ...]) -> dict[str, Tensor]:
    """The model after the steps of the vector, written as the formulas are."""
    stream = context.known_recipe.stream
    texts = [text.ids for text in encode_stream(tokenizer(), stream, 5)]
    kinds = [str(text.set) for text in stream.texts]
    model = whole("llama", context.base).model
    start = whole("llama", context.base).model
    leaves = dict(model.named_parameters())

    def logp(net: torch.nn.Module, ids: tuple[int, ...]) -> Tensor:
        return torch.log_softmax(net(torch.tensor([ids])).logits[0, :-1], -1)

    def nll(net: torch.nn.Module, ids: tuple[int, ...]) -> Tensor:
        return functional.nll_loss(logp(net, ids), torch.tensor(ids[1:]), reduction="sum")

    def share(step: tuple[int, ...], ids: tuple[int, ...]) -> float:
        """The weight of one token of a text in the loss of a step."""
        if stream.full_steps:
            return 1 / sum(len(texts[n]) - 1 for n in step)
        return 1 / stream.step_items / (len(ids) - 1)

    everyday = [ids for ids, kind in zip(texts, kinds) if kind == "general"][:SAMPLE]
    mean_tokens = sum(len(texts[n]) - 1 for step in stream.steps for n in step) / len(stream.steps)
    rows = []
    for ids in everyday:
        weight = 1 / mean_tokens if stream.full_steps else 1 / stream.step_items / (len(ids) - 1)
        rows.append(torch.autograd.grad(weight * nll(start, ids), list(start.parameters())))
    noise = [2 * torch.stack(each).var(0, unbiased=False) for each in zip(*rows)]

    norms: list[float] = []
    first = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    squares = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    thinned = stream.thin(SPEED)
    for t, step in enumerate(thinned.steps, start=1):
        general = [texts[n] for n in step if kinds[n] == "general"]
        loss = torch.zeros(())
        for ids in (texts[n] for n in step if kinds[n] in sets):
            loss = loss + share(step, ids) * nll(model, ids)
        weight = sum(share(step, ids) * (len(ids) - 1) for ids in general) / TEXTS
        for ids in general[:TEXTS]:
            base = logp(start, ids).detach()
            loss = loss + weight * (base.exp() * (base - logp(model, ids))).sum(-1).mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        factor = thinned.rates[t - 1] if stream.rates else 1.0
        rate = SPEED * context.known_recipe.learning_rate * factor
        beta = 0.9**SPEED
        norm = sum(float(own.sum() + grad.square().sum()) for own, grad in zip(noise, grads)) ** 0.5
        clipped = min(1.0, 1.0 / (norm + 1e-6))
        norms.append(norm)
        for (name, leaf), grad, own in zip(leaves.items(), grads, noise):
            first[name] = beta * first[name] + (1 - beta) * clipped * grad
            squares[name] = squares[name] + clipped**2 * (own + grad**2)
            spread = (squares[name] / t).sqrt() + 1e-8
            with torch.no_grad():
                leaf -= rate * first[name] / (1 - beta**t) / spread
    assert min(norms) < 1.0 < max(norms), norms  # some steps are clipped, others are not
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("own", [recipe, by_examples], ids=["facts", "examples"])
def test_it_subtracts_the_vector_of_its_formulas(own):
    context = replace(transformer_context("llama"), recipe=own(), shared=MethodCache())
    method = HeldVector(coefficient=0.5, texts=TEXTS, speed=SPEED, blend=0.3, sample=SAMPLE)
    found = run_method(method, context)
    assert isinstance(found, dict)
    more, less = (spelled_out(context, sets) for sets in (("forget", "retain"), ("retain",)))
    assert any(not torch.equal(more[name], less[name]) for name in more)
    for name, value in context.injected.items():
        expected = 0.7 * (value - 0.5 * (more[name] - less[name])) + 0.3 * less[name]
        # A single weight whose gradient is rounding error alone may go either way.
        assert float((found[name] - expected).norm()) < 0.01 * float((expected - value).norm())


def test_its_cost_is_what_it_read():
    context = replace(transformer_context("llama"), shared=MethodCache())
    method = HeldVector(texts=1, speed=SPEED, sample=SAMPLE)
    run_method(method, context)
    spent = next(iter(context.shared.costs.values()))
    assert spent.steps == 2 * 5 and spent.scored > 0


def test_a_model_that_learned_too_little_is_refused():
    refused: list[object] = []
    context = replace(transformer_context("llama"), shared=MethodCache(), check_dose=refused.append)
    run_method(HeldVector(speed=SPEED, sample=SAMPLE), context)
    assert len(refused) == 1


def test_steps_smaller_than_the_spacing_of_bfloat16_are_in_the_vector():
    slow = replace(recipe(), learning_rate=1e-5)
    exact = replace(transformer_context("llama"), recipe=slow, shared=MethodCache())
    zeros = {name: torch.zeros_like(value) for name, value in exact.injected.items()}
    base = {name: value.bfloat16() for name, value in exact.base.items()}

    def rounded(states: Sequence[Mapping[str, Tensor]]) -> WholeNet:
        return WholeNet(whole("llama", states[0]).model.bfloat16())

    method = HeldVector(texts=TEXTS, speed=SPEED, blend=0.0, sample=SAMPLE)
    vectors = []
    for context in (exact, replace(exact, base=base, net=rounded, shared=MethodCache())):
        found = run_method(method, replace(context, injected=zeros))
        assert isinstance(found, dict)
        assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
        vectors.append(torch.cat([value.flatten() for value in found.values()]))
    assert float(torch.cosine_similarity(*vectors, dim=0)) > 0.95
    assert 0.9 < float(vectors[1].norm() / vectors[0].norm()) < 1.1
