"""Distances, states, weights and interventions against small examples computed by hand."""

import math

import numpy as np
import pytest
import torch

from palimpsest_trials.criteria import whitebox as white
from palimpsest_trials.criteria.whitebox import (
    jensen_shannon,
    quantize,
    total_variation,
    zero_retrain_forgetting,
)


def logs(*chances: float) -> torch.Tensor:
    return torch.log(torch.tensor([chances]))


def test_distances_of_distributions_by_hand():
    p, q = logs(0.5, 0.5), logs(0.75, 0.25)
    middle = (0.625, 0.375)
    expected = 0.5 * sum(
        a * math.log(a / m) + b * math.log(b / m)
        for a, b, m in zip((0.5, 0.5), (0.75, 0.25), middle)
    )
    assert float(jensen_shannon(p, q)) == pytest.approx(expected, rel=1e-5)
    assert float(total_variation(p, q)) == pytest.approx(0.25)
    assert zero_retrain_forgetting(p, p) == pytest.approx(1.0)
    assert zero_retrain_forgetting(logs(1.0, 0.0), logs(0.0, 1.0)) == pytest.approx(0.0, abs=1e-6)


def test_the_closed_share_weighs_layers_by_their_gap_and_leaves_out_flat_ones():
    assert white.closed_share([2.0, 1.0, 0.01], [1.0, 5.0, 9.0]) == pytest.approx((1 + 1) / 3)
    assert white.closed_share([2.0], [-1.0]) == 0.0
    assert math.isnan(white.closed_share([0.01], [1.0]))


def test_cka_ignores_turns_and_scales_and_equals_its_formula():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 4, generator=generator)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator))[0]
    assert white.linear_cka(x, 3 * x @ turn + 1) == pytest.approx(1.0, abs=1e-6)
    y = torch.randn(12, 5, generator=generator)
    a, b = (v.double() - v.double().mean(0) for v in (x, y))
    grams = [v @ v.mT for v in (a, b)]
    hsic = [float((g * h).sum()) for g in grams for h in grams]
    assert white.linear_cka(x, y) == pytest.approx(hsic[1] / math.sqrt(hsic[0] * hsic[3]))


def test_logistic_weights_solve_the_penalised_likelihood():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    labels = (x[:, 0] + 0.3 * torch.randn(30, generator=generator) > 0).double()
    weights = white.fit_logistic(x, labels)
    # With w = Σ a x and intercept Σ a, the optimum has a = (label − chance) / ridge.
    scores = x @ weights
    low, high = -5.0, 5.0
    for _ in range(60):  # the intercept b satisfies b = Σ (label − σ(score + b)) / ridge
        middle = (low + high) / 2
        gap = float((labels - torch.sigmoid(scores + middle)).sum()) / white.RIDGE - middle
        low, high = (middle, high) if gap > 0 else (low, middle)
    rest = (labels - torch.sigmoid(scores + low)) / white.RIDGE
    assert torch.allclose(x.mT @ rest, weights, atol=1e-6)


def test_a_probe_finds_a_direction_that_all_facts_share_and_nothing_in_noise():
    generator = torch.Generator().manual_seed(7)
    facts = [f"f{n}" for n in range(8) for _ in range(6)]
    true = [n % 3 == 0 for n in range(48)]
    noise = torch.randn(48, 16, generator=generator)
    shared = noise.clone()
    shared[:, 0] += 6 * torch.tensor(true)
    left = ["f0", "f1", "f2", "f3"]
    assert white.probe_auc(shared, true, facts, left) > 0.95
    assert abs(white.probe_auc(noise, true, facts, left) - 0.5) < 0.3


def test_masked_fisher_looks_only_where_the_gap_is_largest():
    name = "model.layers.0.w"
    injected = {name: torch.zeros(2000)}
    reference = {name: torch.cat([torch.tensor([4.0, 2.0]), torch.zeros(1998)])}
    mine = {name: torch.cat([torch.tensor([1.0, 2.0]), torch.full((1998,), 9.0)])}
    assert white.masked_fisher(mine, reference, injected) == pytest.approx((1 + 2) / 6)


def test_stable_rank_and_distance():
    assert white.stable_rank(torch.diag(torch.tensor([2.0, 1.0]))) == pytest.approx(5 / 4)
    assert white.stable_rank(torch.zeros(3, 2)) == 0.0
    first, second = {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 4.0])}
    assert white.weight_distance(first, second) == pytest.approx(5.0)


def test_quantized_weights_by_hand():
    group = torch.tensor([7.0, 3.4, -0.6, 0.4])
    assert quantize(group, 4, 4).tolist() == [7.0, 3.0, -1.0, 0.0]
    two = torch.cat([group, torch.zeros(1)])  # a second group, shorter and empty
    assert quantize(two, 4, 4).tolist() == [7.0, 3.0, -1.0, 0.0, 0.0]
    fine = torch.linspace(-1, 1, 64)
    assert (quantize(fine, 8) - fine).abs().max() < 1 / 127
    assert np.array_equal(quantize(quantize(fine, 4), 4), quantize(fine, 4))
