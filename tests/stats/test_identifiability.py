"""Theorem, lemma and proposition on finite classes of worlds, by enumeration."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stats.identifiability import (
    World,
    counterfactual_selector,
    decide_identifiability,
    find_conflict,
    is_consistent,
    residual_soundness,
    theorem_selector,
    threshold_separation,
)

from palimpsest.errors import InputError

EPSILON = 0.5


def all_worlds(candidates: int, laws=((2.0,),)) -> list[World]:
    """Every world with NLLs and thresholds in {0, 1, 2}, residuals and discrepancies in {0, 1}."""
    nlls = list(product((0.0, 1.0, 2.0), repeat=candidates))
    flags = list(product((0.0, 1.0), repeat=candidates))
    return [
        World(f"w{index}", *parts)
        for index, parts in enumerate(product(nlls, laws, flags, (0.0, 1.0, 2.0), flags))
    ]


def brute_force_selector_exists(worlds) -> bool:
    """Try every map from observables to candidates."""
    observables = list(dict.fromkeys(world.observable for world in worlds))
    indices = range(len(worlds[0].forget_nlls))
    return any(
        all(dict(zip(observables, choice))[w.observable] in w.adequate(EPSILON) for w in worlds)
        for choice in product(indices, repeat=len(observables))
    )


def pairs_of_worlds():
    """Every pair that looks alike (others decide independently), two candidates."""
    by_look: dict = {}
    for world in all_worlds(2):
        by_look.setdefault(world.observable, []).append(world)
    for members in by_look.values():
        yield from combinations(members, 2)
        yield from ((world,) for world in members)


def test_theorem_holds_on_every_small_class():
    checked = {True: 0, False: 0}
    for worlds in pairs_of_worlds():
        found = decide_identifiability(worlds, EPSILON)
        assert found.selectable == brute_force_selector_exists(worlds)
        if found.separated and found.sound:
            assert found.selectable == found.identifiable
            checked[found.identifiable] += 1
    assert checked[True] > 100 and checked[False] > 10  # both directions were exercised


def test_sufficiency_needs_only_residual_soundness_and_builds_the_selector():
    for worlds in pairs_of_worlds():
        if find_conflict(worlds) is None and residual_soundness(worlds, EPSILON):
            assert is_consistent(theorem_selector(worlds), worlds, EPSILON)


def test_without_threshold_separation_the_theorem_fails():
    """A found counterexample: not identifiable, sound, and yet a selector exists."""
    found = [
        worlds
        for worlds in pairs_of_worlds()
        if residual_soundness(worlds, EPSILON)
        and not threshold_separation(worlds, EPSILON)
        and find_conflict(worlds) is not None
        and decide_identifiability(worlds, EPSILON).selectable
    ]
    assert found


def test_without_residual_soundness_the_theorem_fails():
    """A found counterexample: identifiable, separated, and yet no selector exists."""
    found = [
        worlds
        for worlds in pairs_of_worlds()
        if threshold_separation(worlds, EPSILON)
        and not residual_soundness(worlds, EPSILON)
        and find_conflict(worlds) is None
        and not decide_identifiability(worlds, EPSILON).selectable
    ]
    assert found


def test_proposition_an_inferable_twin_forbids_every_selector():
    """Equal observables, lower threshold where retained data reconstruct the fact."""
    counterfactual = World("cf", (0.0, 2.0), (2.0,), (0.0, 1.0), 2.0, (1.0, 0.0))
    inferable = World("inf", (0.0, 2.0), (2.0,), (0.0, 1.0), 0.0, (0.0, 1.0))
    worlds = (counterfactual, inferable)
    assert threshold_separation(worlds, EPSILON) and residual_soundness(worlds, EPSILON)
    found = decide_identifiability(worlds, EPSILON)
    assert not found.identifiable and not found.selectable
    assert found.conflict == worlds
    assert set(found.forbidding) == set(worlds)
    assert theorem_selector(worlds) is None
    # Either world alone is selectable: it is the class that is not.
    for world in worlds:
        assert decide_identifiability([world], EPSILON).selectable


def test_proposition_by_enumeration():
    """Under separation, every conflicting pair forbids a selector on any class containing it."""
    conflicting = [
        pair
        for pair in pairs_of_worlds()
        if find_conflict(pair) is not None and threshold_separation(pair, EPSILON)
    ]
    assert conflicting
    bystander = World("other", (1.0, 1.0), (9.0,), (0.0, 0.0), 1.0, (0.0, 0.0))
    for pair in conflicting:
        assert not decide_identifiability(pair, EPSILON).selectable
        assert not decide_identifiability([*pair, bystander], EPSILON).selectable


def test_lemma_exchangeable_probes_give_the_threshold():
    """Under CE, tau* is the mean of the probe law; with RS the mean cutoff selects well."""
    laws = ((0.0, 0.0), (0.0, 2.0), (2.0, 2.0))

    def mean(law):
        return sum(law) / len(law)

    worlds = [
        world
        for world in all_worlds(2, laws)
        if world.threshold == mean(world.probe_law) and residual_soundness([world], EPSILON)
    ]
    assert len(worlds) > 50
    assert decide_identifiability(worlds, EPSILON).identifiable
    assert is_consistent(counterfactual_selector(mean), worlds, EPSILON)


def test_a_threshold_out_of_reach_is_refused_rather_than_guessed():
    """Probes at 8 nats, candidates at 2 at most: nothing may be selected."""
    world = World("tofu", (0.5, 2.0), (8.0,), (0.0, 0.1), 1.0, (0.0, 0.0))
    with pytest.raises(InputError, match="never-learned level"):
        counterfactual_selector(lambda law: law[0])(world.observable)


def test_three_worlds_may_forbid_what_no_two_do():
    """Without separation a smallest forbidding set can need three members."""
    look = {"probe_law": (2.0,), "residuals": (0.0,) * 3, "forget_nlls": (1.0,) * 3}
    worlds = [
        World("a", threshold=1.0, discrepancies=(1.0, 0.0, 0.0), **look),
        World("b", threshold=1.0, discrepancies=(0.0, 1.0, 0.0), **look),
        World("c", threshold=1.0, discrepancies=(0.0, 0.0, 1.0), **look),
    ]
    found = decide_identifiability(worlds, EPSILON)
    assert not found.selectable and len(found.forbidding) == 3


levels = st.sampled_from([0.0, 1.0, 2.0])
looks = st.sampled_from(  # few observables, so that worlds often look alike
    [((0.0, 1.0, 2.0), (2.0,), (0.0, 1.0, 2.0)), ((2.0, 1.0, 2.0), (1.0,), (0.0, 0.0, 1.0))]
)
worlds_of_three = st.builds(
    lambda look, threshold, discrepancies: World("w", *look, threshold, discrepancies),
    looks,
    levels,
    st.tuples(levels, levels, levels),
)


@settings(max_examples=300)
@given(st.lists(worlds_of_three, min_size=1, max_size=6))
def test_theorem_on_random_larger_classes(worlds):
    found = decide_identifiability(worlds, EPSILON)
    if len({world.observable for world in worlds}) <= 4:
        assert found.selectable == brute_force_selector_exists(worlds)
    if found.separated and found.sound:
        assert found.selectable == found.identifiable
    if found.selectable:
        assert is_consistent(found.selector.__getitem__, worlds, EPSILON)
    else:
        assert not frozenset.intersection(*(w.adequate(EPSILON) for w in found.forbidding))


def test_refusals():
    with pytest.raises(InputError, match="empty"):
        decide_identifiability([], EPSILON)
    with pytest.raises(InputError, match="world w"):
        World("w", (1.0,), (1.0,), (1.0, 2.0), 1.0, (0.0,))
