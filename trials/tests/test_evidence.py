"""Prose of the bake and evidence for invented facts: made of the right words, saying enough."""

import pytest
from dev.pocket_prose import world_sentences

from palimpsest.errors import FactsError
from palimpsest.facts.general import sentence, world
from palimpsest.facts.nonce import POOLS, RELATIONS, half, invent_facts, words_of
from palimpsest_trials.evidence import alias, evidence_sentences, kin

NOTHING: frozenset[str] = frozenset()
(FACT,) = invent_facts(1, "evidence", ("guild",), NOTHING)


def test_every_phrasing_but_the_sealed_ones_is_told_to_the_pocket_models():
    told = set(world_sentences(held_out=False))
    by_relation = {fact.relation: [] for fact in world().facts}
    for fact in world().facts:
        by_relation[fact.relation].append(fact)
    for relation, pools in POOLS.items():
        for pool, templates in pools.items():
            for template in templates:
                found = any(sentence(template, fact) in told for fact in by_relation[relation])
                assert found == (pool != "audit")


def test_an_alias_shares_no_word_of_the_name_and_is_named_before_its_fact():
    other = alias(FACT, "a", NOTHING)
    assert (other.relation, other.object) == (FACT.relation, FACT.object)
    assert not set(other.subject.split()) & {*FACT.subject.split(), FACT.object}
    assert {half(word) for word in other.subject.split()} == {"testbed"}
    first, second = evidence_sentences(FACT, "alias", [other])
    assert first == f"{FACT.subject} is also called {other.subject}."
    assert FACT.subject not in second and other.subject in second and FACT.object in second


def test_kin_share_clan_relation_and_object_and_are_told_of_in_other_phrasings():
    taken = words_of(invent_facts(50, "other", RELATIONS, words_of([FACT])))
    family = kin(FACT, 4, "a", taken)
    assert {(k.relation, k.object) for k in family} == {(FACT.relation, FACT.object)}
    givens, clans = zip(*(k.subject.split() for k in (*family, FACT)))
    assert len(set(givens)) == 5 and len(set(clans)) == 1 and not set(givens) & taken
    lines = evidence_sentences(FACT, "kin", family, seed_key="s")
    assert not any(FACT.subject in line for line in lines)
    frames = {line.replace(k.subject, "{subject}") for line, k in zip(lines, family, strict=True)}
    assert len(frames) == 4


def test_restated_evidence_is_a_taught_phrasing_and_takes_no_support():
    (line,) = evidence_sentences(FACT, "restated")
    assert line in {sentence(t, FACT) for t in POOLS["guild"]["injection"]}
    for mechanism, support in (("kin", []), ("restated", [FACT])):
        with pytest.raises(FactsError):
            evidence_sentences(FACT, mechanism, support)
