"""The base-anchored screen, and the two designs it must not be confused with."""

import numpy as np
import pytest
from tests.criteria.made_cell import with_probes
from tests.criteria.wrong_screens import injected_anchored, probes_by_injected

from palimpsest.criteria.measures import measure_cell
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone, screen_candidates
from palimpsest.errors import ScoreError

RULES = Rules()


@pytest.fixture
def cell(made, make_tables):
    """Known-label models: base NLLs near 3, injection teaches 2 nats and drifts probes slightly."""
    generator = np.random.default_rng(1)
    base_forget, base_probe = generator.normal(3, 0.5, 4), generator.normal(3, 0.5, 16)
    drift = generator.normal(0.08, 0.05, 16)

    def model(forget_shift, probe_shift, noise=0.1):
        return made(
            list(base_forget + forget_shift + noise * generator.normal(size=4)),
            list(base_probe + probe_shift + noise * generator.normal(size=16)),
        )

    return measure_cell(
        *make_tables(
            {
                "base": made(list(base_forget), list(base_probe)),
                "injected": model(-2.0, drift),
                "reference": model(0.12, drift),
                "restored": model(0.15, drift),
                "half-knowing": model(-1.0, drift),
                "damaged-and-knowing": model(-2.0 + 3.0, drift + 3.0),
                "over-forgotten": model(8.0, drift),
                "panel:router": made(list(base_forget), list(base_probe + 0.05 + drift)),
            }
        )
    )


def test_injected_is_excluded_and_reference_base_and_restored_pass(cell):
    assert screen_alone(cell.injected, RULES).excluded
    assert screen_alone(cell.injected, RULES).test.p_value == 1 / 4845
    for name in ("reference", "base", "restored", "over-forgotten"):
        assert not screen_alone(cell[name], RULES).excluded


def test_base_is_all_ties_and_passes_with_p_one(cell):
    passage = screen_alone(cell["base"], RULES)
    assert passage.test.p_value == 1.0
    assert passage.test.method == "exact-ties"


def test_router_is_caught_by_the_drift_seam(cell):
    """Its forget deltas are exactly zero, its probe deltas carry the injected model's drift."""
    passage = screen_alone(cell["panel:router"], RULES)
    assert np.all(cell["panel:router"].forget_deltas == 0)
    assert passage.excluded
    assert passage.test.method == "exact-ties"


def test_global_damage_hides_knowledge_when_probes_are_scored_by_the_injected_model(cell):
    assert not probes_by_injected(cell, "damaged-and-knowing", RULES)
    assert screen_alone(cell["damaged-and-knowing"], RULES).excluded


def test_anchoring_to_the_injected_model_hands_over_the_label(cell):
    """The injected model itself passes, and so does one that kept half its knowledge."""
    for name in ("injected", "half-knowing"):
        assert not injected_anchored(cell, name, RULES)
        assert screen_alone(cell[name], RULES).excluded


def test_candidates_are_corrected_together(cell):
    names = ["restored", "half-knowing", "damaged-and-knowing", "over-forgotten"]
    result = screen_candidates(cell, names, RULES)
    assert result.survivors == ("restored", "over-forgotten")
    assert result["half-knowing"].adjusted_p == pytest.approx(4 / 4845)
    assert result["damaged-and-knowing"].adjusted_p == pytest.approx(4 / 4845)
    assert result.bound.required == 80 and result.bound.certifiable


def test_correction_can_save_a_candidate_that_fails_alone(cell):
    few = with_probes(cell, 4)  # C(8, 4) = 70: p = 1/70 passes at 0.05 alone, not among four
    assert screen_alone(few["half-knowing"], RULES).excluded
    result = screen_candidates(few, ["half-knowing", "restored", "base", "over-forgotten"], RULES)
    assert not result["half-knowing"].excluded
    assert not result.bound.certifiable


def test_refusals(cell):
    with pytest.raises(ScoreError, match="no candidates"):
        screen_candidates(cell, [], RULES)
    with pytest.raises(ScoreError, match="listed twice"):
        screen_candidates(cell, ["restored", "restored"], RULES)
    with pytest.raises(ScoreError, match="no scores of model ghost"):
        screen_candidates(cell, ["ghost"], RULES)
    with pytest.raises(ScoreError, match="was not screened"):
        screen_candidates(cell, ["restored"], RULES)["ghost"]
