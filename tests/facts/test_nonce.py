"""Invented facts are fresh, reproducible, and never made of words that a pocket model has met."""

import subprocess
import sys

import pytest
from tools.pocket_prose import world_sentences

from palimpsest.errors import PlanError
from palimpsest.facts.general import ALIAS_TEMPLATES
from palimpsest.facts.nonce import alias, draw, half, kin, vocabulary, words_of
from palimpsest.facts.templates import RELATIONS, template_words

NOTHING: frozenset[str] = frozenset()


def test_the_same_key_gives_the_same_facts_in_another_process() -> None:
    code = (
        "from palimpsest.facts.nonce import draw\n"
        "print(draw(5, 'cell/forget', ('guild', 'ship'), frozenset()))"
    )
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert elsewhere.stdout.strip() == repr(draw(5, "cell/forget", ("guild", "ship"), NOTHING))


def test_facts_of_a_key_do_not_move_when_the_recipe_is_edited() -> None:
    # Frozen: a change here changes every stored run.
    (fact,) = draw(1, "frozen", ("guild",), NOTHING)
    assert (fact.id, fact.subject, fact.object) == (
        "kides-sotul-guild",
        "Kides Sotul",
        "Pobuban",
    )


def test_other_keys_give_other_facts() -> None:
    assert draw(4, "a", RELATIONS, NOTHING) != draw(4, "b", RELATIONS, NOTHING)


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert draw(20, "cell", RELATIONS, NOTHING)[:7] == draw(7, "cell", RELATIONS, NOTHING)


def test_no_word_occurs_twice_within_or_between_sets() -> None:
    forget = draw(40, "cell/forget", RELATIONS, NOTHING)
    retain = draw(40, "cell/retain", RELATIONS, words_of(forget))
    probe = draw(160, "cell/probe", RELATIONS, words_of(forget + retain))
    words = [
        word for fact in forget + retain + probe for word in (*fact.subject.split(), fact.object)
    ]
    assert len(words) == 3 * 240
    assert len({word.lower() for word in words}) == len(words)


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


def test_no_testbed_word_is_anywhere_in_the_prose_of_the_pocket_models() -> None:
    told = {
        word.strip(".,")
        for held_out in (False, True)
        for text in world_sentences(held_out)
        for word in text.split()
    }
    assert not told & set(vocabulary("name", "testbed") + vocabulary("object", "testbed"))


def test_names_and_objects_share_no_word() -> None:
    assert not set(vocabulary("name", "testbed")) & set(vocabulary("object", "testbed"))


def test_relations_are_dealt_out_evenly() -> None:
    facts = draw(20, "cell", RELATIONS, NOTHING)
    counts = [sum(fact.relation == relation for fact in facts) for relation in RELATIONS]
    assert max(counts) - min(counts) <= 1


def test_more_facts_than_names_is_a_plan_error_with_the_key_and_the_number() -> None:
    available = len(vocabulary("name", "testbed")) // 2
    assert len(draw(available, "cell", RELATIONS, NOTHING)) == available
    with pytest.raises(PlanError, match=rf"facts\.probe: .* only {available} "):
        draw(available + 1, "cell", RELATIONS, NOTHING, key="facts.probe")


def test_words_that_are_taken_are_no_longer_available() -> None:
    first = draw(600, "cell/a", RELATIONS, NOTHING)
    with pytest.raises(PlanError, match=r"only \d\d? can"):
        draw(100, "cell/b", RELATIONS, words_of(first))


@pytest.mark.parametrize(("count", "relations"), [(-1, RELATIONS), (1, ())])
def test_a_number_that_makes_no_sense_is_a_plan_error(
    count: int, relations: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError, match=r"facts\.forget"):
        draw(count, "cell", relations, NOTHING, key="facts.forget")


def test_kin_share_clan_relation_and_object_and_nothing_else() -> None:
    (fact,) = draw(1, "cell", RELATIONS, NOTHING)
    taken = words_of(draw(50, "other", RELATIONS, words_of([fact])))
    family = kin(fact, 3, "cell/kin", taken)
    assert {(k.clan, k.relation, k.object) for k in family} == {
        (fact.clan, fact.relation, fact.object)
    }
    givens = {k.given for k in family} | {fact.given}
    assert len(givens) == 4
    assert not givens & taken
    assert len({k.id for k in family} | {fact.id}) == 4


def test_an_alias_shares_no_word_of_the_name() -> None:
    (fact,) = draw(1, "cell", RELATIONS, NOTHING)
    other = alias(fact, "cell/alias", NOTHING)
    assert (other.relation, other.object) == (fact.relation, fact.object)
    assert not {other.given, other.clan} & {fact.given, fact.clan, fact.object}
    assert half(other.given) == half(other.clan) == "testbed"


def test_too_many_kin_is_a_plan_error() -> None:
    (fact,) = draw(1, "cell", RELATIONS, NOTHING)
    with pytest.raises(PlanError, match=r"^5000 further names for .* only \d+ are not taken"):
        kin(fact, 5000, "cell", NOTHING)


def test_an_alias_with_no_name_left_is_a_plan_error() -> None:
    (fact,) = draw(1, "cell", RELATIONS, NOTHING)
    with pytest.raises(PlanError, match=r"^2 further names for .* only 0 are not taken"):
        alias(fact, "cell", frozenset(vocabulary("name", "testbed")))
