"""The screen: base-anchored as in the paper, anchored to retrainings where there are any."""

from dataclasses import replace

import numpy as np
import pytest
from tests.stats.made_cell import cell, model, retrained, with_probes
from tests.stats.wrong_screens import injected_anchored, probes_by_injected

from palimpsest.errors import ScoreError
from palimpsest.stats.measures import measure_cell
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.screen import (
    inferable_share,
    screen_alone,
    screen_candidates,
)

RULES = Rules()


@pytest.fixture
def known(made, make_tables):
    """Known-label models: base NLLs near 3, injection teaches 2 nats and drifts probes slightly."""
    generator = np.random.default_rng(1)
    base_forget, base_probe = generator.normal(3, 0.5, 4), generator.normal(3, 0.5, 16)
    drift = generator.normal(0.08, 0.05, 16)

    def scored(forget_shift, probe_shift, noise=0.1):
        return made(
            list(base_forget + forget_shift + noise * generator.normal(size=4)),
            list(base_probe + probe_shift + noise * generator.normal(size=16)),
        )

    return measure_cell(
        *make_tables(
            {
                "base": made(list(base_forget), list(base_probe)),
                "injected": scored(-2.0, drift),
                "restored": scored(0.15, drift),
                "half-knowing": scored(-1.0, drift),
                "damaged-and-knowing": scored(-2.0 + 3.0, drift + 3.0),
                "over-forgotten": scored(8.0, drift),
                "router": made(list(base_forget), list(base_probe + 0.05 + drift)),
            }
        )
    )


def test_the_base_anchored_screen_finds_what_a_model_still_knows(known):
    names = ("restored", "half-knowing", "damaged-and-knowing", "over-forgotten", "router")
    screen = screen_candidates(known, names, RULES)
    assert screen.anchor == "base"
    assert screen.survivors == ("restored", "over-forgotten")
    assert screen["half-knowing"].test.p_value == pytest.approx(1 / 4845)
    assert screen_alone(known["injected"], RULES).excluded
    assert screen["half-knowing"].gap < -0.8


def test_two_tempting_designs_are_wrong(known):
    """Probes scored by the injected model hide knowledge behind damage; anchoring to it brings in
    the label under test."""
    assert not probes_by_injected(known, "damaged-and-knowing", RULES)
    assert not injected_anchored(known, "injected", RULES)
    assert screen_candidates(known, ["injected"], RULES).survivors == ()


def test_facts_that_are_easier_for_every_retraining_exclude_none_with_references():
    """The base-anchored screen would refuse a true retraining here (0.3 nats easier facts)."""
    easy = cell(20, retrained())
    shifted = {
        name: replace(m, forget_nlls=m.forget_nlls - 0.5, forget_deltas=m.forget_deltas - 0.5)
        for name, m in easy.models.items()
        if name != "base"
    }
    easy = replace(easy, models=easy.models | shifted)
    assert screen_candidates(easy, ["retrained"], RULES).survivors == ()
    screen = screen_candidates(easy, ["retrained"], RULES, easy.references)
    assert screen.anchor == "references" and screen.survivors == ("retrained",)
    assert inferable_share(easy, easy.references) < 0.5


def test_a_shift_that_references_show_too_excludes_none():
    """All forget facts a little below all probes, as in one of the references."""
    low = model("low", forget=-0.4)
    record = Model("reference-4", Role.REFERENCE, seed_no=4)
    measures = cell(20, low, model("knowing", share=0.6))
    assert "low" not in screen_candidates(measures, ["low"], RULES, measures.references).survivors
    also = replace(model("reference-4", forget=-0.4), name="reference-4")
    measures = cell(20, low, model("knowing", share=0.6), more={"reference-4": (also, record)})
    screen = screen_candidates(measures, ["low"], RULES, measures.references)
    assert screen.survivors == ("low",)


def test_inferable_facts_are_told_by_an_effect_size():
    measures = cell(6)
    assert abs(inferable_share(measures, measures.references)) < 0.1
    inferred = {
        name: (model(name, share=0.7), Model(name, Role.REFERENCE, seed_no=n))
        for n in range(1, 7)
        for name in [f"reference-{n}"]
    }
    measures = cell(6, more=inferred)
    assert inferable_share(measures, measures.references) > 0.5
    assert inferable_share(measures, ()) is None


def test_holm_runs_over_the_candidates_together():
    knowing = [model(f"k{n}", share=0.6) for n in range(3)]
    screen = screen_candidates(cell(0, *knowing), [m.name for m in knowing], RULES)
    assert [p.adjusted_p for p in screen.screened] == [pytest.approx(3 / 4845)] * 3


def test_too_few_probes_exclude_nothing_and_say_so():
    screen = screen_candidates(with_probes(cell(0, model("k", share=1.0)), 2), ["k"], RULES)
    assert not screen.bound.certifiable and screen.survivors == ("k",)


def test_candidates_are_listed_once():
    measures = cell(0, retrained())
    for names in ([], ["retrained", "retrained"]):
        with pytest.raises(ScoreError):
            screen_candidates(measures, names, RULES)
