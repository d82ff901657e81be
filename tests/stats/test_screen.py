"""The screen: base-anchored as in the paper, anchored to retrainings where there are any."""

from dataclasses import replace

import numpy as np
import pytest
from tests.stats.made_cell import cell, model, retrained, with_probes

from palimpsest.errors import ScoreError
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import exact_level
from palimpsest.stats.ranktest import rank_test
from palimpsest.stats.rules import Rules
from palimpsest.stats.screen import (
    inferable_share,
    screen_alone,
    screen_candidates,
)

RULES = Rules()


@pytest.fixture
def known():
    """Known-label models: injection teaches 2.5 nats and drifts probes slightly."""
    router = replace(model("router"), forget_deltas=np.zeros(4), probe_deltas=np.full(16, 0.13))
    return cell(
        0,
        retrained("restored"),
        model("half-knowing", share=0.4),
        model("damaged-and-knowing", share=1.0, forget=3.0, probes=3.0),
        model("over-forgotten", forget=8.0),
        router,
    )


def probes_by_injected(measures, name, rules):
    """Whether the candidate's forget NLLs lie below the *injected* model's probe NLLs.

    Damage anywhere raises the first and not the second, and passes for forgetting.
    """
    test = rank_test(measures[name].forget_nlls, measures.injected.probe_nlls)
    return test.exact_p <= exact_level(rules.alpha)


def injected_anchored(measures, name, rules):
    """Whether deltas from the injected model are lower on forget facts than on probes.

    Its gap between learned forget and never-seen probe facts is the very label under test: the
    injected model itself passes.
    """
    mine, injected = measures[name], measures.injected
    deltas = mine.forget_nlls - injected.forget_nlls, mine.probe_nlls - injected.probe_nlls
    return rank_test(*deltas).exact_p <= exact_level(rules.alpha)


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
