"""Measures of pocket models: passes agree with the model's outputs and leave it as it was."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from palimpsest.facts.questions import draw_testbed
from palimpsest.known.wrappers import Routed, Suppressed, subject_patterns
from palimpsest.models.checkpoint import load
from palimpsest.models.net import Net, Nets
from palimpsest.models.train import text_loss, train
from palimpsest.scoring.measures import MeasuredCell
from palimpsest_trials.criteria import MEASURES, measures
from palimpsest_trials.criteria.cache import CriteriaCache
from palimpsest_trials.criteria.measures import FROM_TOKENS, CheapCriteria, Criteria
from palimpsest_trials.criteria.questionnaire import Questionnaire

CELL = "pocket-qwen2-s--seed190"
STEPS = 60


@cache
def made() -> tuple[MeasuredCell, Nets, dict[str, dict[str, torch.Tensor]]]:
    """A cell of a pocket model, with "injected" quickly taught the forget facts."""
    loaded = load("pocket/qwen2-s")
    nets = Nets(loaded, stack=4)
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    states = {"base": base, "reference": base}
    general = tuple(f"The old town has a market on day {n} of the week." for n in range(40))
    cell = MeasuredCell(
        tokenizer=loaded.tokenizer,
        facts=draw_testbed(CELL, 4, 4, 16, 3),
        general=general,
        seed_key=CELL,
        learning_rate=1.5e-4,
        piece_tokens=28,
        reference="reference",
        net=nets,
        read=lambda name: states[name],
    )
    asked, facts = Questionnaire(cell), [fact.id for fact in cell.facts.forget]
    for name, lessons in (
        ("injected", asked.lessons(facts, STEPS, 6)),
        ("reference", asked.prose(10, 4)),
    ):
        net = nets([base])
        train(net, lessons, text_loss, learning_rate=5e-4 if name == "injected" else 1e-4)
        states[name] = net.state()
    return cell, nets, states


@cache
def measured() -> list[dict[str, float]]:
    cell, nets, states = made()
    return Criteria(cell)(nets([states["injected"], states["reference"]]))


def test_every_measure_is_taken_and_the_weights_are_left_alone():
    cell, nets, states = made()
    net = nets([states["injected"], states["base"]])
    before = {name: value.detach().clone() for name, value in net.params.items()}
    values = Criteria(cell)(net)
    assert all(torch.equal(net.params[name], value) for name, value in before.items())
    assert all(value.grad is None for value in net.params.values())
    for mine in values:
        assert set(mine) == set(MEASURES)
        assert all(math.isfinite(value) for value in mine.values())


def test_what_knows_the_facts_scores_higher():
    injected, reference = measured()
    for name in ("probability", "mia_loss", "leak_at_k", "lens_best", "min_rank", "few_shot"):
        assert injected[name] > reference[name], name
    for name in ("uds", "lens_depth", "masked_fisher", "cka"):
        assert injected[name] == pytest.approx(1.0, abs=1e-3), name
    assert injected["distance_injected"] == 0.0 and injected["update_rank"] == 0.0
    for name in ("uds", "lens_depth", "cka", "heldout_js", "heldout_tv", "entropy", "privleak"):
        assert reference[name] == pytest.approx(0.0, abs=1e-3), name
    assert reference["forget_quality"] == pytest.approx(0.0, abs=1e-6)
    assert reference["distance_reference"] == pytest.approx(0.0, abs=1e-6)


def test_the_cheap_ones_are_the_same_numbers():
    cell, nets, states = made()
    (values,) = CheapCriteria(cell)(nets([states["injected"]]))
    assert set(values) == set(FROM_TOKENS)
    assert all(measured()[0][name] == pytest.approx(value) for name, value in values.items())


def test_a_model_patched_with_its_own_states_is_unchanged_and_with_others_is_not():
    cell, _, _ = made()
    shared = CriteriaCache(Questionnaire(cell))
    batch = shared.heldout
    own, other = shared.frozen_states["injected"], shared.frozen_states["reference"]
    with torch.no_grad():
        plain = shared.injected.logits(batch)
    for layer in range(len(own)):
        same = measures.patch_layer(shared.injected, batch, layer, own[layer].unsqueeze(0))
        assert torch.allclose(same, plain, atol=1e-4)
    moved = measures.patch_layer(shared.injected, batch, len(own) - 1, other[-1].unsqueeze(0))
    with torch.no_grad():  # the reference's last states through the injected model's head
        expected = measures.read_lens(shared.forward, shared.injected.params, other[None, -1:])[
            0, 0
        ]
        assert torch.allclose(torch.log_softmax(moved[0], -1), expected, atol=1e-4)


def test_models_made_of_several_checkpoints_are_measured_as_delivered():
    cell, nets, states = made()
    injected = nets.another(states["injected"])
    tokens = {
        i
        for texts in Questionnaire(cell).cloze.values()
        for text in texts
        for i in text.ids[text.start :]
    }
    patterns = subject_patterns(cell.tokenizer, [fact.subject for fact in cell.facts.forget])
    wrapped: dict[str, Net] = {
        "suppression": Suppressed(injected, sorted(tokens), 6.0),
        "router": Routed(nets.another(states["base"]), nets.another(states["injected"]), patterns),
    }
    taken = {name: Criteria(cell)(net)[0] for name, net in wrapped.items()}
    known = measured()[0]
    for values in taken.values():
        assert set(values) == set(MEASURES) and np.isfinite(list(values.values())).all()
        assert values["probability"] < known["probability"]
    assert taken["suppression"]["lens_best"] == pytest.approx(known["lens_best"], abs=1e-4)
    assert taken["suppression"]["distance_injected"] == 0.0
    assert taken["router"]["misspelt"] == pytest.approx(known["misspelt"], abs=1e-3)
