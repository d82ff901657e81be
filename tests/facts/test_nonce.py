"""Phrasings are disjoint; invented facts are fresh and of words that no pocket model has met."""

import hashlib
import itertools
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from dev.pocket_prose import world_sentences
from hypothesis import given
from hypothesis import strategies as st

import palimpsest.facts
from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.nonce import (
    POOLS,
    RELATIONS,
    Triple,
    invent_facts,
    packaged,
    render,
    same_wording,
    template_words,
    vocabulary,
    words_of,
)
from palimpsest_trials.evidence import ALIAS_TEMPLATES

NOTHING: frozenset[str] = frozenset()


def test_facts_of_a_key_do_not_move_when_the_recipe_is_edited():
    # Frozen: a change here changes every stored run.
    (fact,) = invent_facts(1, "frozen", ("guild",), NOTHING)
    assert fact == Triple("kides-sotul-guild", "Kides Sotul", "guild", "Pobuban")


def test_other_keys_give_other_facts_and_a_longer_draw_begins_with_the_shorter():
    assert invent_facts(4, "a", RELATIONS, NOTHING) != invent_facts(4, "b", RELATIONS, NOTHING)
    assert invent_facts(20, "cell", RELATIONS, NOTHING)[:7] == invent_facts(
        7, "cell", RELATIONS, NOTHING
    )


def test_no_name_is_a_word_of_the_templates():
    english = template_words() | {
        word.lower() for text in ALIAS_TEMPLATES for word in text.split() if "{" not in word
    }
    for role in ("name", "object"):
        for side in ("prose", "testbed"):
            assert not {word.lower() for word in vocabulary(role, side)} & english


def test_the_halves_part_the_word_space_about_evenly():
    for role in ("name", "object"):
        prose, testbed = set(vocabulary(role, "prose")), set(vocabulary(role, "testbed"))
        assert not prose & testbed
        assert 0.4 < len(prose) / len(prose | testbed) < 0.6
    assert not set(vocabulary("name", "testbed")) & set(vocabulary("object", "testbed"))


def test_no_testbed_word_is_anywhere_in_the_prose_of_the_pocket_models():
    told = {
        word.strip(".,")
        for held_out in (False, True)
        for text in world_sentences(held_out)
        for word in text.split()
    }
    assert not told & set(vocabulary("name", "testbed") + vocabulary("object", "testbed"))


def test_more_facts_than_names_is_a_plan_error_with_the_key():
    available = len(vocabulary("name", "testbed")) // 2
    first = invent_facts(available, "cell", RELATIONS, NOTHING)
    assert len(first) == available
    for taken, count in ((NOTHING, available + 1), (words_of(first), 1)):
        with pytest.raises(PlanError) as caught:
            invent_facts(count, "cell", RELATIONS, taken, key="facts.probes")
        assert caught.value.key == "facts.probes"
        assert str(available if taken == NOTHING else 0) in str(caught.value)


FACTS = Path(palimpsest.facts.__file__).parent
ALL = [
    (relation, pool, template)
    for relation, by_pool in POOLS.items()
    for pool, templates in by_pool.items()
    for template in templates
]


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_wording_of_two_pools_differs_by_more_than_one_word(relation):
    own = [(pool, t.split()) for name, pool, t in ALL if name == relation]
    for (pool, one), (other, two) in itertools.combinations(own, 2):
        if pool != other and len(one) == len(two):
            assert sum(a != b for a, b in zip(one, two)) > 1, (one, two)


def near(one: str, other: str) -> bool:
    """Whether two wordings share a run of four words, or most of their words in order."""
    words = [same_wording(text).split() for text in (one, other)]
    matcher = SequenceMatcher(None, *words, autojunk=False)
    return matcher.ratio() >= 0.6 or matcher.find_longest_match().size > 3


def test_no_sealed_phrasing_is_near_one_of_another_pool_in_any_relation():
    others = [template for _, pool, template in ALL if pool != "audit"]
    sealed = [template for _, pool, template in ALL if pool == "audit"]
    assert not [(one, two) for one in sealed for two in others if near(one, two)]


@given(st.text())
def test_rendering_puts_any_subject_in_and_changes_nothing_else(subject):
    assert render("The guild of {subject} is", subject) == "The guild of " + subject + " is"
    for template in ("{0.__class__} of {subject} is", "{x!r:>{y}} {subject} is"):
        assert render(template, "Asha Tren") == template.replace("{subject}", "Asha Tren")


def test_phrasings_are_those_the_code_was_written_for():
    assert packaged("templates.json", _digest("templates.json")).keys() == set(RELATIONS)
    with pytest.raises(FactsError, match=r"templates\.json"):
        packaged("templates.json", _digest("tofu_phrases.json"))


def _digest(name: str) -> str:
    return hashlib.sha256((FACTS / name).read_bytes()).hexdigest()
