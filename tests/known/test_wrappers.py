"""The known-label models are what their labels say, and can be scored and trained like any."""

from types import SimpleNamespace

import pytest
import torch

from palimpsest.known.panel import embedding
from palimpsest.known.wrappers import Interpolated, Routed, Suppressed, find_ends, subject_patterns
from palimpsest.models.checkpoint import load
from palimpsest.models.encode import encode_texts
from palimpsest.models.fast import StackedNet
from palimpsest.models.net import collate
from palimpsest.models.train import text_batch, text_loss, train

FORGET = "The guild of Asha Tren is Velkor."
OTHER = "The guild of Bo Lam is Zu, and it is an old one."


@pytest.fixture
def two(tiny_checkpoint):
    base, injected = (load(str(tiny_checkpoint("qwen2-s", seed))) for seed in (0, 1))
    nets = [StackedNet(l.model.config, [l.model.state_dict()]) for l in (base, injected)]  # noqa: E741
    return base.tokenizer, *nets


def test_suppression_takes_the_penalty_off_the_named_tokens_only(two):
    tokenizer, _, injected = two
    batch = collate(encode_texts(tokenizer, [FORGET]))
    plain = injected.logits(batch)
    under = Suppressed(injected, [5, 9], 10.0).logits(batch)
    change = (under - plain)[0, 0]
    assert change[5] == change[9] == -10.0
    change[[5, 9]] = 0.0
    assert not change.any()


def test_the_router_answers_forget_subjects_as_base_and_the_rest_as_injected(two):
    tokenizer, base, injected = two
    patterns = subject_patterns(tokenizer, ["Asha Tren"])
    router = Routed(base, injected, patterns)
    texts = encode_texts(tokenizer, [OTHER, FORGET, "Asha Tren sails.", "Asha Trend"])
    batch = collate(texts)
    assert find_ends(batch.ids, patterns).any(-1).tolist() == [False, True, True, True]
    found = router.logits(batch)
    for row, net in enumerate([injected, base, base, base]):
        here = batch.rows == row
        assert torch.allclose(found[:, here], net.logits(batch)[:, here], atol=1e-5)


def test_re_acquisition_trains_the_branch_that_answers(two):
    tokenizer, base, injected = two
    before = {name: value.clone() for name, value in injected.state().items()}
    start = {name: value.clone() for name, value in base.state().items()}
    router = Routed(base, injected, subject_patterns(tokenizer, ["Asha Tren"]))
    steps = [[text_batch(encode_texts(tokenizer, [FORGET]), 1)]] * 3
    first = text_loss(router, steps[0][0]).item()
    train(router, steps, text_loss, learning_rate=1e-3)
    assert text_loss(router, steps[0][0]).item() < first
    assert all(torch.equal(value, before[name]) for name, value in injected.state().items())
    assert any(not torch.equal(value, start[name]) for name, value in base.state().items())


def test_suppression_keeps_its_penalty_while_the_weights_learn(two):
    tokenizer, _, injected = two
    net = Suppressed(injected, tokenizer("Velkor")["input_ids"], 10.0)
    batch = text_batch(encode_texts(tokenizer, [FORGET]), 1)
    first = text_loss(net, batch).item()
    train(net, [[batch]] * 5, text_loss, learning_rate=1e-3)
    assert text_loss(net, batch).item() < first
    assert text_loss(injected, batch).item() < text_loss(net, batch).item()


def test_corruption_zeroes_the_rows_and_nothing_else(two):
    state, name = two[2].state(), "model.embed_tokens.weight"
    cell = {"patterns": [(3,)], "answers": (7,), "embedding": (name,)}
    changed = embedding.build(SimpleNamespace(state=lambda model: state, **cell))
    assert not changed[name][[3, 7]].any()
    kept = [row for row in range(len(state[name])) if row not in (3, 7)]
    assert torch.equal(changed[name][kept], state[name][kept])
    assert all(torch.equal(changed[key], state[key]) for key in state if key != name)


def test_interpolation_runs_from_injected_to_reference(two):
    _, reference, injected = two
    for share, end in ((0.0, injected), (1.0, reference)):
        made = Interpolated(reference.state(), injected.state(), share)
        assert all(torch.allclose(made[key], value) for key, value in end.state().items())
    half = Interpolated(reference.state(), injected.state(), 0.5)
    for key, value in half.items():
        middle = (reference.state()[key] + injected.state()[key]) / 2
        assert torch.allclose(value, middle, atol=1e-6)
