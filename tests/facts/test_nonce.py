"""Invented facts are fresh, reproducible, and never made of words that a pocket model has met."""

import pytest
from tools.evidence import ALIAS_TEMPLATES
from tools.pocket_prose import world_sentences

from palimpsest.errors import PlanError
from palimpsest.facts.nonce import RELATIONS, Triple, draw, template_words, vocabulary, words_of

NOTHING: frozenset[str] = frozenset()


def test_facts_of_a_key_do_not_move_when_the_recipe_is_edited() -> None:
    # Frozen: a change here changes every stored run.
    (fact,) = draw(1, "frozen", ("guild",), NOTHING)
    assert fact == Triple("kides-sotul-guild", "Kides Sotul", "guild", "Pobuban")


def test_other_keys_give_other_facts_and_a_longer_draw_begins_with_the_shorter() -> None:
    assert draw(4, "a", RELATIONS, NOTHING) != draw(4, "b", RELATIONS, NOTHING)
    assert draw(20, "cell", RELATIONS, NOTHING)[:7] == draw(7, "cell", RELATIONS, NOTHING)


def test_taken_may_name_whole_subjects_in_any_case() -> None:
    first = draw(1, "cell", RELATIONS, NOTHING)[0]
    again = draw(1, "cell", RELATIONS, frozenset({first.subject.upper(), first.object.lower()}))
    assert not words_of([first]) & words_of(again)


def test_no_name_is_a_word_of_the_templates() -> None:
    english = template_words() | {
        word.lower() for text in ALIAS_TEMPLATES for word in text.split() if "{" not in word
    }
    for role in ("name", "object"):
        for side in ("prose", "testbed"):
            assert not {word.lower() for word in vocabulary(role, side)} & english


def test_the_halves_part_the_word_space_about_evenly() -> None:
    for role in ("name", "object"):
        prose, testbed = set(vocabulary(role, "prose")), set(vocabulary(role, "testbed"))
        assert not prose & testbed
        assert 0.4 < len(prose) / len(prose | testbed) < 0.6
    assert not set(vocabulary("name", "testbed")) & set(vocabulary("object", "testbed"))


def test_no_testbed_word_is_anywhere_in_the_prose_of_the_pocket_models() -> None:
    told = {
        word.strip(".,")
        for held_out in (False, True)
        for text in world_sentences(held_out)
        for word in text.split()
    }
    assert not told & set(vocabulary("name", "testbed") + vocabulary("object", "testbed"))


def test_relations_are_dealt_out_evenly() -> None:
    facts = draw(20, "cell", RELATIONS, NOTHING)
    counts = [sum(fact.relation == relation for fact in facts) for relation in RELATIONS]
    assert max(counts) - min(counts) <= 1


def test_more_facts_than_names_is_a_plan_error_with_the_key() -> None:
    available = len(vocabulary("name", "testbed")) // 2
    first = draw(available, "cell", RELATIONS, NOTHING)
    assert len(first) == available
    for taken, count in ((NOTHING, available + 1), (words_of(first), 1)):
        with pytest.raises(PlanError) as caught:
            draw(count, "cell", RELATIONS, taken, key="facts.probes")
        assert caught.value.key == "facts.probes"
        assert str(available if taken == NOTHING else 0) in str(caught.value)
