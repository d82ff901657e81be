"""Facts become questions; sets share no word and the audit pool stays out until it is opened."""

import pytest

from palimpsest.facts.questions import draw_testbed, joined, pool_questions
from palimpsest.facts.templates import template_words


def test_sets_share_no_name_and_none_is_a_template_word() -> None:
    facts = draw_testbed("some-cell", 4, 4, 16, 3)
    words: list[str] = []
    for triples in facts.sets().values():
        for triple in triples:
            words += [*triple.subject.lower().split(), triple.object.lower()]
    assert len(words) == len(set(words)) == 3 * 24
    assert not set(words) & template_words()


def test_each_fact_has_three_trained_phrasings_one_cloze_and_four_held_out() -> None:
    facts = draw_testbed("some-cell", 4, 4, 16, 3)
    for triple in facts.forget + facts.retain + facts.probe:
        pools = [q.pool for q in facts.questions if q.fact == triple.id]
        assert sorted(pools) == ["cloze"] + ["evaluation"] * 4 + ["trained"] * 3


def test_the_audit_and_calibration_pools_are_not_among_the_open_questions() -> None:
    facts = draw_testbed("some-cell", 4, 4, 16, 3)
    assert {q.pool for q in facts.questions} == {"trained", "cloze", "evaluation"}
    audit = pool_questions(facts.sets(), "audit")
    assert len(audit) == 24 * 6
    assert not {q.prompt for q in audit} & {q.prompt for q in facts.questions}


def test_another_cell_has_other_facts() -> None:
    one, other = draw_testbed("a--seed0", 4, 4, 4, 3), draw_testbed("a--seed1", 4, 4, 4, 3)
    assert {t.id for t in one.forget}.isdisjoint(t.id for t in other.forget)


@pytest.mark.parametrize(
    ("prompt", "whole"),
    [
        ("The guild is", "The guild is Velkor"),
        ("Answer:\n", "Answer:\nVelkor"),
        ('He said "', 'He said "Velkor'),
        ("It is ", "It is Velkor"),
    ],
)
def test_prompt_and_answer_are_joined_as_running_text(prompt: str, whole: str) -> None:
    assert joined(prompt, "Velkor") == whole
