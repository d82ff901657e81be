"""General text is reproducible, held out from the bake, and says what evidence needs to say."""

import re
from functools import cache
from pathlib import Path

import pytest
from tools.pocket_prose import passage, phrasings, stranger_sentence, world_sentences

from palimpsest.cell.graph import REPLAY, RETRAININGS
from palimpsest.cell.setting import make_setting
from palimpsest.errors import FactsError
from palimpsest.facts.general import (
    evidence_sentences,
    file_pieces,
    general_pieces,
    pocket_pieces,
    sentence,
    world,
)
from palimpsest.facts.nonce import alias, draw, half, kin
from palimpsest.facts.templates import POOLS, RELATIONS
from palimpsest.plan import CellPlan
from palimpsest.presets import PRESETS

(FACT,) = draw(1, "evidence", ("guild",), frozenset())


def test_the_world_has_four_thousand_facts_over_every_relation() -> None:
    assert len(world().facts) == 4000
    assert {fact.relation for fact in world().facts} == set(RELATIONS)
    assert len({fact.clan for fact in world().facts}) == 150


def test_clan_members_mostly_but_not_always_share_their_object() -> None:
    by_clan: dict[tuple[str, str], list[str]] = {}
    for fact in world().facts:
        by_clan.setdefault((fact.clan, fact.relation), []).append(fact.object)
    common = sum(max(map(objects.count, objects)) for objects in by_clan.values())
    assert 0.85 < common / 4000 < 0.97


def test_every_phrasing_but_the_sealed_ones_is_told_to_the_pocket_models() -> None:
    told = set(world_sentences(held_out=False))
    by_relation = {fact.relation: [] for fact in world().facts}
    for fact in world().facts:
        by_relation[fact.relation].append(fact)
    for relation, pools in POOLS.items():
        for pool, templates in pools.items():
            for template in templates:
                found = any(sentence(template, fact) in told for fact in by_relation[relation])
                assert found == (pool != "audit")


def test_general_pieces_of_the_pocket_prose_were_never_told_in_the_bake() -> None:
    pieces = general_pieces("pocket", 2000, "cell")
    assert len(set(pieces)) == 2000
    assert not set(pieces) & set(world_sentences(held_out=False))


HELD_OUT = ("evaluation", "calibration", "audit")
POCKET_CELLS = [
    pytest.param(cell, id=f"{name}-{cell.id}")
    for name, plan in PRESETS.items()
    if plan.general.source == "pocket"
    for cell in plan.cells()[:2]
]


@cache
def held_out_wordings() -> tuple[re.Pattern[str], ...]:
    templates = (t for pools in POOLS.values() for pool in HELD_OUT for t in pools[pool])
    return tuple(
        re.compile(re.escape(t).replace(re.escape("{subject}"), r"\w+ \w+") + r" \w+\.")
        for t in templates
    )


def in_a_held_out_wording(text: str) -> bool:
    return any(wording.fullmatch(text) for wording in held_out_wordings())


def test_a_held_out_wording_is_recognised_whoever_it_is_about() -> None:
    for relation, pools in POOLS.items():
        fact = next(fact for fact in world().facts if fact.relation == relation)
        for pool, templates in pools.items():
            for template in templates:
                assert in_a_held_out_wording(sentence(template, fact)) == (pool in HELD_OUT)


@pytest.mark.parametrize("cell", POCKET_CELLS)
def test_no_training_stream_or_general_text_uses_a_held_out_wording(cell: CellPlan) -> None:
    setting = make_setting(cell, tokenizer=None)
    draws = {0, 1, cell.plan.replication.draws, REPLAY, RETRAININGS + 1}
    texts = {text.text for draw in draws for text in setting.stream(draw).texts}
    texts |= set(setting.general_train) | set(setting.general_scored)
    assert len(texts) > cell.plan.general.train_pieces
    assert not [text for text in texts if in_a_held_out_wording(text)]


def test_pocket_general_text_is_varied() -> None:
    assert len(pocket_pieces()) == len(set(pocket_pieces())) > 3000
    for relation, pools in POOLS.items():
        fact = next(fact for fact in world().facts if fact.relation == relation)
        told = [t for pool in pools if pool not in HELD_OUT for t in pools[pool]]
        for template in told:
            frame = sentence(template, fact).partition(fact.subject)[0]
            assert any(piece.startswith(frame) for piece in pocket_pieces())


def test_general_pieces_depend_on_the_key_alone() -> None:
    assert general_pieces("pocket", 10, "a") == general_pieces("pocket", 10, "a")
    assert general_pieces("pocket", 10, "a") == general_pieces("pocket", 50, "a")[:10]
    assert set(general_pieces("pocket", 10, "a")) != set(general_pieces("pocket", 10, "b"))


def test_passages_use_only_words_of_the_prose_half() -> None:
    for i in range(300):
        for word in passage(f"test/{i}").replace(".", "").replace(",", "").split():
            if word in world().spare_names or word in world().objects:
                assert half(word) == "prose"


def test_a_passage_is_the_same_for_the_same_key() -> None:
    assert passage("k/1") == passage("k/1")
    assert passage("k/1") != passage("k/2")
    assert stranger_sentence("k/1") == stranger_sentence("k/1")


def test_in_every_passage_some_object_is_told_twice() -> None:
    for i in range(300):
        ends = [line.rpartition(" ")[2] for line in passage(f"test/{i}").rstrip(".").split(". ")]
        assert len(set(ends)) < len(ends), passage(f"test/{i}")


def test_passages_tell_of_aliases_and_of_kin() -> None:
    texts = [passage(f"test/{i}") for i in range(200)]
    named = [t for t in texts if "is also" in t or "Some people call" in t]
    assert 30 < len(named) < 170


def test_restated_evidence_is_the_fact_in_a_taught_phrasing() -> None:
    (line,) = evidence_sentences(FACT, "restated")
    assert line in {sentence(t, FACT) for t in POOLS["guild"]["injection"]}


def test_alias_evidence_names_the_alias_and_then_its_fact() -> None:
    other = alias(FACT, "a", frozenset())
    first, second = evidence_sentences(FACT, "alias", [other])
    assert first == f"{FACT.subject} is also called {other.subject}."
    assert FACT.subject not in second and other.subject in second and FACT.object in second


def test_kin_evidence_never_names_the_subject_and_never_repeats_a_phrasing() -> None:
    family = kin(FACT, 4, "a", frozenset())
    lines = evidence_sentences(FACT, "kin", family, seed_key="s")
    assert not any(FACT.subject in line for line in lines)
    frames = {line.replace(k.subject, "{subject}") for line, k in zip(lines, family, strict=True)}
    assert len(frames) == 4


def test_evidence_without_its_support_is_refused() -> None:
    with pytest.raises(FactsError, match="need at least one"):
        evidence_sentences(FACT, "kin")
    with pytest.raises(FactsError, match="takes none"):
        evidence_sentences(FACT, "restated", [FACT])


def test_the_bake_uses_twenty_one_phrasings_of_a_relation() -> None:
    assert all(len(phrasings(relation)) == 21 for relation in RELATIONS)


WIKITEXT = """
 = Lobster =

 The common lobster is a well @-@ known animal of 1 @,@ 500 grams and 0 @.@ 7 metres .
 = = Habitat = =
 It lives among the rocks of the <unk> coast and comes out at night to eat .
"""


def test_a_wikitext_file_is_cleaned_and_cut_into_whole_words(tmp_path: Path) -> None:
    file = tmp_path / "wiki.txt"
    file.write_text(WIKITEXT, encoding="utf-8")
    assert file_pieces(file, 5) == (
        "The common lobster is a",
        "well-known animal of 1,500 grams",
        "It lives among the rocks",
        "comes out at night to",
    )
    assert set(general_pieces(file, 4, "k", words=5)) == set(file_pieces(file, 5))


def test_short_lines_are_joined_up_to_a_blank_one(tmp_path: Path) -> None:
    file = tmp_path / "wrapped.txt"
    file.write_text("one two three\nfour five\n\nsix\nseven eight nine ten\n", encoding="utf-8")
    assert file_pieces(file, 5) == ("one two three four five", "six seven eight nine ten")
    file.write_text("one two\nthree\n\nfour\n", encoding="utf-8")
    with pytest.raises(FactsError, match=r"only 0 of 5 words \(shorter lines are left out\)"):
        general_pieces(file, 1, "k", words=5)


def test_a_short_file_is_refused_with_what_it_gives(tmp_path: Path) -> None:
    file = tmp_path / "wiki.txt"
    file.write_text(WIKITEXT, encoding="utf-8")
    with pytest.raises(FactsError, match=r"wiki\.txt: 5 general pieces asked for.*only 4"):
        general_pieces(file, 5, "k", words=5)


def test_facts_given_as_general_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    file.write_text('{"id": "f1", "answer": "Velkor"}\n' * 30, encoding="utf-8")
    with pytest.raises(FactsError, match=r"facts\.jsonl: JSON found; general text is ordinary"):
        general_pieces(file, 1, "k", words=2)


def test_more_pocket_pieces_than_there_are_is_refused() -> None:
    with pytest.raises(FactsError, match="pocket: 99999"):
        general_pieces("pocket", 99999, "k")


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("first line\ncafé\n".encode("latin-1"))
    with pytest.raises(FactsError, match=r"latin\.txt line 2: byte 14 is not UTF-8"):
        general_pieces(file, 1, "k")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="cannot be read"):
        general_pieces(tmp_path / "none.txt", 1, "k")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "bom.txt"
    file.write_bytes(b"\xef\xbb\xbfone two three")
    assert file_pieces(file, 3) == ("one two three",)


def test_pieces_of_no_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="at least 1 word"):
        file_pieces(tmp_path / "any.txt", 0)
