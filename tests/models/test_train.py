"""One loop trains everything: a stack as if each were alone, the same bytes every time."""

import copy

import pytest
import torch

from palimpsest.facts.general import Stream, Text
from palimpsest.models.checkpoint import load
from palimpsest.models.encode import encode_texts
from palimpsest.models.fast import StackedNet
from palimpsest.models.net import WholeNet
from palimpsest.models.train import (
    CLIP,
    LENGTH,
    OPTIMIZERS,
    stream_steps,
    text_batch,
    text_loss,
    train,
)

TEXTS = ("The guild of Asha Tren is Velkor.", "A ship.", "Nobody knows what Bo Lam plays.")
FAMILIES = ["qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s"]


def steps(tokenizer, count: int = 4):
    encoded = encode_texts(tokenizer, TEXTS)
    return [[text_batch(encoded, 3)] for _ in range(count)]


def whole(loaded) -> WholeNet:
    return WholeNet(copy.deepcopy(loaded.model))


def losses(net, data):
    """The losses (steps + 1, stack) along a training.

    Compared instead of weights: where a gradient is zero but for rounding, AdamW's first step is
    the sign of the rounding, which moves a weight and not the model.
    """
    seen = []

    def noted(net, part):
        seen.append(text_loss(net, part))
        return seen[-1]

    assert train(net, data, noted, learning_rate=1e-3) == {}
    with torch.no_grad():
        seen.append(text_loss(net, data[-1][0]))
    return torch.stack([loss.detach() for loss in seen])


def test_the_loss_is_the_mean_over_texts_of_their_mean_token_nll(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    found = text_loss(whole(loaded), steps(loaded.tokenizer)[0][0]).item()
    by_hand = []
    for text in TEXTS:
        ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
        by_hand.append(loaded.model(input_ids=ids, labels=ids).loss.item())
    assert found == pytest.approx(sum(by_hand) / 3, abs=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stack_trains_each_member_as_if_it_were_alone(tiny_checkpoint, name):
    one, other = (load(str(tiny_checkpoint(name, seed))) for seed in (0, 1))
    states = [one.model.state_dict(), other.model.state_dict()]
    stack = StackedNet(one.model.config, states)
    data = steps(one.tokenizer)
    together = losses(stack, data)
    for member, loaded in enumerate((one, other)):
        alone = losses(whole(loaded), data)
        assert torch.allclose(together[:, member], alone[:, 0], atol=1e-5)
        assert alone[-1, 0] < alone[0, 0]


def test_the_same_call_gives_the_same_bytes(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("gpt2-s")))
    results = []
    for _ in range(2):
        net = StackedNet(loaded.model.config, [loaded.model.state_dict()])
        train(net, steps(loaded.tokenizer), text_loss, learning_rate=1e-3)
        results.append(net.state())
    for key in results[0]:
        assert torch.equal(results[0][key], results[1][key])


def test_a_member_that_diverges_is_named_with_its_step_and_harms_no_other(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    state = loaded.model.state_dict()
    data = steps(loaded.tokenizer)
    calls = 0

    def poisoned(net, part):
        nonlocal calls
        calls += 1
        losses = text_loss(net, part)
        return torch.stack([losses[0], losses[1] * (float("nan") if calls >= 2 else 1.0)])

    net = StackedNet(loaded.model.config, [state, state])
    assert train(net, data, poisoned, learning_rate=1e-3) == {1: 2}
    healthy = StackedNet(loaded.model.config, [state, state])
    train(healthy, data, text_loss, learning_rate=1e-3)
    for key, value in healthy.state(0).items():
        assert torch.equal(net.state(0)[key], value)


def test_gradients_are_clipped_for_each_member_by_itself(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    state = loaded.model.state_dict()
    data = steps(loaded.tokenizer, 1)
    net = StackedNet(loaded.model.config, [state, state])

    def scaled(net, part):
        return text_loss(net, part) * torch.tensor([1e-4, 1e4])

    clipped = []

    def note(step):
        clipped.extend(leaf.grad.clone() for leaf in net.params.values())

    train(net, data, scaled, learning_rate=0.0, after_step=note)
    for member, norm in enumerate([None, CLIP]):
        found = float(sum(grad[member].square().sum() for grad in clipped).sqrt())
        assert found == pytest.approx(norm, rel=1e-3) if norm else found < CLIP / 10


def test_a_text_weighs_the_same_when_its_neighbours_are_taken_out(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    texts = tuple(
        Text(str(n), kind, text)
        for n, (kind, text) in enumerate(zip(("forget", "retain", "general"), TEXTS, strict=True))
    )
    stream = Stream(texts, ((0, 1, 2),), 3)
    encoded = encode_texts(loaded.tokenizer, TEXTS)
    net = whole(loaded)
    full = [text_loss(net, part) for part in next(iter(stream_steps(stream, encoded)))]
    rest = [
        text_loss(net, part) for part in next(iter(stream_steps(stream.without("forget"), encoded)))
    ]
    alone = text_loss(net, text_batch([encoded[0]], 3))
    assert sum(full).item() - sum(rest).item() == pytest.approx(alone.item(), abs=1e-5)


def test_accumulation_changes_nothing_but_the_batches(tiny_checkpoint):
    loaded = load(str(tiny_checkpoint("qwen2-s")))
    texts = tuple(Text(str(n), "general", text) for n, text in enumerate(TEXTS))
    stream = Stream(texts, ((0, 1, 2), (2, 1, 0)), 3)
    encoded = encode_texts(loaded.tokenizer, TEXTS)
    results = []
    for parts in (1, 3):
        net = whole(loaded)
        data = list(stream_steps(stream, encoded, accumulate=parts))
        assert {len(step) for step in data} == {parts}
        train(net, data, text_loss, learning_rate=1e-3)
        results.append(text_loss(net, text_batch(encoded, 3)).item())
    assert results[0] == pytest.approx(results[1], abs=1e-5)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_steps_are_about_as_long_as_the_rate_and_lead_downhill(name):
    torch.manual_seed(0)
    leaf = torch.randn(1, 20, 10, requires_grad=True)
    start = leaf.detach().clone()
    stepper = OPTIMIZERS[name]([leaf], 1e-3)
    for number in range(20):
        leaf.grad = 2 * leaf.detach()
        stepper.step()
        if number == 0:
            length = float((leaf.detach() - start).norm()) / 200**0.5
            expected = 1e-3 if name == "adamw" else 1e-3 * LENGTH
            assert length == pytest.approx(expected, rel=0.01)
    assert float(leaf.detach().norm()) < float(start.norm())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_member_of_a_stack_moves_as_if_it_were_alone(name):
    torch.manual_seed(0)
    members = torch.randn(3, 4, 5)
    grads = torch.randn(3, 4, 5)
    stacked = members.clone().requires_grad_()
    together = OPTIMIZERS[name]([stacked], 1e-2, stack=3)
    stacked.grad = grads.clone()
    together.step()
    for member in range(3):
        leaf = members[member : member + 1].clone().requires_grad_()
        alone = OPTIMIZERS[name]([leaf], 1e-2)
        leaf.grad = grads[member : member + 1].clone()
        alone.step()
        assert torch.allclose(leaf[0], stacked[member])


def test_weights_in_half_precision_decay_like_others(tiny_checkpoint):
    """Without a gradient a step is the decay alone, of matrices and not of vectors."""
    loaded = load(str(tiny_checkpoint("qwen2-s")), dtype="bfloat16")
    net = whole(loaded)
    train(
        net,
        steps(loaded.tokenizer, 1),
        lambda net, part: 0.0 * text_loss(net, part),
        learning_rate=0.5,
        weight_decay=1.0,
    )
    for name, value in loaded.model.named_parameters():
        assert torch.equal(net.params[name], value * (0.5 if value.dim() > 1 else 1.0))
