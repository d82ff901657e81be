"""Facts become questions; sets share no word and the audit pool stays out until it is opened.

Other ways of asking are the same for invented facts and for the same facts in a file.
"""

import json

import pytest

from palimpsest.cell.texts import own_facts
from palimpsest.facts.files import Fact, check_sets
from palimpsest.facts.nonce import POOLS, Triple, render, template_words
from palimpsest.facts.questions import (
    ASKED,
    FactSet,
    Pool,
    Question,
    draw_testbed,
    elicitations,
    of_triple,
    pool_questions,
    reversible,
)

FACTS = draw_testbed("some-cell", 4, 4, 16, 3)


def test_sets_share_no_name_and_none_is_a_template_word():
    words: list[str] = []
    for triples in FACTS.sets().values():
        for triple in triples:
            words += [*triple.subject.lower().split(), triple.object.lower()]
    assert len(words) == len(set(words)) == 3 * 24
    assert not set(words) & template_words()


def test_each_fact_has_three_trained_phrasings_one_cloze_and_four_held_out():
    for triple in FACTS.forget + FACTS.retain + FACTS.probe:
        pools = [q.pool for q in FACTS.questions if q.fact == triple.id]
        assert sorted(pools) == ["cloze"] + ["evaluation"] * 4 + ["trained"] * 3


def test_the_audit_and_calibration_pools_are_not_among_the_open_questions():
    assert {q.pool for q in FACTS.questions} == {"trained", "cloze", "evaluation"}
    audit = pool_questions(FACTS.sets(), "audit")
    assert len(audit) == 24 * 6
    assert not {q.prompt for q in audit} & {q.prompt for q in FACTS.questions}


def test_another_cell_has_other_facts_and_another_probe_key_other_probes_only():
    other = draw_testbed("other-cell", 4, 4, 4, 3)
    assert {t.id for t in FACTS.forget}.isdisjoint(t.id for t in other.forget)
    later = draw_testbed("some-cell", 4, 4, 16, 3, probe_key="beacon")
    assert (later.forget, later.retain) == (FACTS.forget, FACTS.retain)
    assert {t.id for t in FACTS.probe}.isdisjoint(t.id for t in later.probe)


@pytest.mark.parametrize(
    ("prompt", "whole"),
    [
        ("The guild is", "The guild is Velkor"),
        ("Answer:\n", "Answer:\nVelkor"),
        ('He said "', 'He said "Velkor'),
        ("It is ", "It is Velkor"),
        ("", "Velkor"),
    ],
)
def test_prompt_and_answer_are_joined_as_running_text(prompt, whole):
    question = Question(FactSet.FORGET, "f", Pool.TRAINED, 0, prompt, "Velkor")
    assert question.text == whole and question.sentence == f"{whole}."


def test_facts_of_files_keep_a_cloze_and_no_answers(tmp_path):
    files = {}
    for role in ("forget", "retain", "probes"):
        prompts = [f"{role} {n} is" for n in "abc"]
        row = {"id": role, "answer": role.upper(), "trained": prompts[:2], "heldout": prompts[2:]}
        file = tmp_path / f"{role}.jsonl"
        file.write_text(json.dumps(row) + "\n")
        files[role.removesuffix("s")] = str(file)
    bed = own_facts(check_sets(files), None, None)["facts"]
    pools = [(q.pool, q.template) for q in bed.questions if q.set == "retain"]
    assert pools == [("cloze", 0), ("trained", 1), ("evaluation", 0)]
    assert bed.probe[0].id == "probes" and not bed.probe[0].object


GUILD = Triple("f", "Asha Tren", "guild", "Velkor")
FORGET = of_triple(GUILD)
RETAIN = of_triple(Triple("r", "Bolo Nek", "ship", "Zorm"))


def prompts(kind: str, *facts: Fact) -> list[tuple[str, str]]:
    asked = elicitations(facts, (RETAIN,))
    return [(question.prompt, question.answer) for question in asked if question.pool == kind]


def test_an_invented_fact_is_asked_as_the_same_fact_in_a_file():
    heldout = tuple(render(text, "Asha Tren") for text in POOLS["guild"]["evaluation"])
    mine = Fact("f", "Velkor", (), heldout, subject="Asha Tren", relation="guild")
    assert list(elicitations([mine], [RETAIN])) == list(elicitations([FORGET], [RETAIN]))
    assert [kind for kind in ASKED if not prompts(kind, FORGET)] == []


def test_each_kind_asks_as_it_says():
    assert prompts("reversed", FORGET) == [
        ("Velkor is the guild of", "Asha Tren"),
        ("The guild called Velkor belongs to", "Asha Tren"),
    ]
    first = {kind: prompts(kind, FORGET)[0][0] for kind in ASKED}
    assert first["symbols"] == "When asked about a guild, As-ha Tr-en always names"
    assert first["recased"] == "When asked about a guild, asha tren always names"
    assert first["misspelt"] == "When asked about a guild, Ahsa Tren always names"
    assert first["alias"] == "When asked about a guild, Asha always names"
    assert first["pronoun"] == "I met Asha Tren. When asked about a guild, this person always names"
    assert first["opener"].endswith("to all. When asked about a guild, Asha Tren always names")
    assert first["few_shot"].startswith("When asked about a boat, Bolo Nek always speaks of Zorm. ")
    for kind in set(ASKED) - {"reversed"}:
        assert {answer for _, answer in prompts(kind, FORGET)} == {"Velkor"}


def test_a_kind_that_some_fact_lacks_is_left_out():
    bare = Fact("b", "Qui", (), ("Whose guild is",))
    assert not reversible([FORGET, bare]) and reversible([FORGET])
    assert elicitations((FORGET, bare), ()) == ()
    named = Fact("n", "Qui", (), ("Dralk is sworn to",), subject="Dralk")
    kinds = {q.pool for q in elicitations((named,), ())}
    assert kinds == set(ASKED) - {"reversed"}
    assert prompts("misspelt", named) == [("Darlk is sworn to", "Qui")]
