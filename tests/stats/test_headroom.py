"""Headroom and the regime it decides."""

import numpy as np
import pytest

from palimpsest.errors import ScoreError
from palimpsest.stats.headroom import measure_headroom

FACTS = tuple(f"f{i}" for i in range(8))


def headroom(evidence, base=3.0, injected=0.5, reference=None, spread=0.2):
    wobble = spread * np.linspace(-1, 1, len(FACTS))

    def around(level):
        return level + wobble

    return measure_headroom(
        FACTS,
        around(base),
        around(evidence) + wobble[::-1],
        np.full(len(FACTS), injected),
        None if reference is None else around(reference),
    )


def test_estimates_are_differences_of_means():
    found = headroom(2.4, reference=2.2)
    assert found.estimate.estimate == pytest.approx(1.9)
    assert found.true.estimate == pytest.approx(1.7)
    assert found.taught == pytest.approx(2.5)
    assert found.estimate.low < 1.9 < found.estimate.high or found.estimate.low == 1.9


def test_regimes():
    assert headroom(2.9).regime == "counterfactual"  # evidence explains nothing
    assert headroom(0.6).regime == "inferable"  # evidence explains nearly all
    rng = np.random.default_rng(0)
    unsure = measure_headroom(FACTS, np.full(8, 3.0), 1.75 + rng.normal(0, 1, 8), np.full(8, 0.5))
    assert unsure.regime == "undecided"


def test_the_boundary_is_a_fraction_of_what_injection_taught():
    assert headroom(1.9).regime == "counterfactual"  # G-hat 1.4 of 2.5 taught
    assert headroom(1.6).regime == "inferable"  # 1.1 of them


def test_injection_that_taught_nothing_decides_nothing():
    found = headroom(2.9, injected=3.5)
    assert found.regime == "undecided"
    assert "taught nothing" in found.reason


def test_few_facts_decide_nothing():
    found = measure_headroom(["a", "b"], [3.0, 3.1], [3.0, 3.0], [0.5, 0.5])
    assert found.regime == "undecided"
    with pytest.raises(ScoreError):
        measure_headroom(["a"], [3.0], [3.0], [0.5])


def test_bad_scores_name_model_and_fact():
    with pytest.raises(ScoreError, match="f3"):
        measure_headroom(FACTS, np.ones(8), np.ones(8), [1, 1, 1, np.nan, 1, 1, 1, 1])
    with pytest.raises(ScoreError):
        measure_headroom(FACTS, np.ones(7), np.ones(8), np.ones(8))


def test_same_seed_same_interval():
    assert headroom(2.0) == headroom(2.0)
