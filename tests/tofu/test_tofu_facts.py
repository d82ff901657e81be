"""TOFU's files as facts, and never-learned questions that resemble them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tofu.tofu_files import write_tofu

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact
from palimpsest.facts.probes import kind_of, tofu_probes, with_relations
from palimpsest.facts.tofu import TofuItems, draw_sets, nearest, read_tofu, row_of, with_authors


@pytest.fixture
def tofu(tmp_path):
    return read_tofu(write_tofu(tmp_path, forget=10, retain=10))


def test_a_split_holds_paraphrases_out_and_names_facts_by_their_row(tofu, tmp_path):
    assert [fact.id for fact in tofu.forget[:2]] == ["forget10-0", "forget10-1"]
    assert tofu.forget[0].trained == ("Question: Where was Writer0 Name born?\nAnswer:",)
    assert tofu.forget[0].heldout == ("Question: In what place was Writer0 Name born?\nAnswer:",)
    assert tofu.retain[0].id == "retain90-0" and tofu.retain[0].heldout == ()
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_suffix(".jsonl"))
    assert read_tofu(tmp_path) == tofu


ITEMS = TofuItems(forget_items=22, retain_items=20, probes=4, trained_here=True)


def test_items_come_author_by_author_and_by_the_seed_alone(tmp_path):
    data = write_tofu(tmp_path, forget=10, retain=10)
    sets, _ = draw_sets(data, ITEMS)
    assert sets == draw_sets(data, ITEMS)[0]
    assert any(draw_sets(data, replace(ITEMS, seed=n))[0] != sets for n in range(1, 6))
    authors = [row_of(fact) // 20 for fact in sets["forget"]]
    assert len(set(authors[:20])) == 1 and len(set(authors)) == 2
    assert not {fact.id for fact in sets["probe"]} & {fact.id for fact in sets["retain"]}
    assert not any(fact.trained for fact in sets["probe"])


def test_long_items_can_be_left_out(tofu, tmp_path):
    lengths = {len(f"{fact.trained[0]} {fact.answer}".split()) for fact in tofu.forget}
    items = TofuItems(forget_items=2, retain_items=2, probes=2, longest=min(lengths))
    sets, _ = draw_sets(tmp_path, items)
    found = {len(f"{f.trained[0]} {f.answer}".split()) for f in sets["forget"]}
    assert found == {min(lengths)}
    with pytest.raises(FactsError, match="forget_items: 99 "):
        draw_sets(tmp_path, replace(items, forget_items=99))


def test_evidence_is_the_most_similar_question_of_an_author_that_stays(tofu):
    for fact in tofu.forget[:8]:
        first, second = nearest(fact, tofu.retain[:12], 2)
        kept = [f"{other.trained[0]} {other.answer}" for other in tofu.retain[:12]]
        assert first in kept and second in kept and first != second
        assert first.split("Writer")[0] == fact.trained[0].split("Writer")[0]
        assert fact.answer not in first + second


def test_the_author_is_the_name_that_twenty_rows_share():
    asked = ("Where was {0} born?", "What did {0}'s father do?", "Did {0} win the Oak Prize?")
    told = ("{0} was born in New Haven.", "A smith.", "Yes, the Oak Prize went to {0}.")
    names = ("Jad Ambrose Al-Shamary", "Ji-Yeon Park")
    facts = [
        Fact(f"forget10-{20 * n + k}", told[k % 3].format(name), (asked[k % 3].format(name),))
        for n, name in enumerate(names)
        for k in range(20)
    ]
    found = with_authors(facts)
    assert [fact.subject for fact in found] == [name for name in names for _ in range(20)]
    # Only an answer that does not name the author can be asked for the author.
    assert {fact.answer for fact in with_relations(found) if fact.relation} == {"A smith."}


def test_holdout_questions_are_probes_and_a_form_can_be_the_bare_question(tmp_path):
    tofu = read_tofu(write_tofu(tmp_path, 3, 5, 2), form="{}")
    assert [fact.id for fact in tofu.holdout[:2]] == ["holdout10-0", "holdout10-1"]
    assert tofu.holdout[0].heldout == ("Where was Writer80 Name born?",)
    assert not any(fact.trained for fact in tofu.holdout)
    made = tofu_probes(tofu.forget, 3, "one", tofu.words(), "{}")
    assert not any("Question:" in probe.heldout[0] for probe in made)


def test_probes_ask_the_same_kind_of_question_at_about_the_same_length(tofu):
    made = tofu_probes(tofu.forget, 12, "one", tofu.words())
    assert made == tofu_probes(tofu.forget, 12, "one", tofu.words())
    assert made != tofu_probes(tofu.forget, 12, "two", tofu.words())
    assert len({probe.subject for probe in made}) == len({probe.id for probe in made}) == 12
    for fact, probe in zip(tofu.forget, made):
        assert probe.relation == kind_of(fact.heldout[0])
        assert probe.heldout[0].startswith("Question: ") and probe.heldout[0].endswith("\nAnswer:")
    gaps = [len(f.answer.split()) - len(p.answer.split()) for f, p in zip(tofu.forget, made)]
    assert np.abs(gaps).max() <= 3 and abs(np.mean(gaps)) <= 1.5
    assert "{" not in "".join(probe.answer + probe.heldout[0] for probe in made)


def test_names_that_run_out_are_refused(tofu):
    with pytest.raises(FactsError, match="probes: 100000 "):
        tofu_probes(tofu.forget, 100_000, "one", tofu.words())


def test_the_hub_gives_the_files_of_the_split_or_it_is_said_that_it_does_not(tmp_path, monkeypatch):
    import huggingface_hub

    folder, asked = write_tofu(tmp_path), []

    def download(repository: str, name: str, *, repo_type: str) -> str:
        asked.append((repository, name, repo_type))
        if len(asked) > 3:
            raise OSError("no route to host")
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert read_tofu(None) == read_tofu(folder)
    assert ("locuslab/TOFU", "forget10_perturbed.json", "dataset") in asked
    with pytest.raises(FactsError, match="no route to host"):
        read_tofu(None)


def test_of_names_that_are_as_common_the_first_is_the_author():
    """In every process: the order of a set would differ from one to the next."""
    prompt = "is Ana Bell kin of Bo Cole, Cy Dunn, Di Eads, Ed Fox, Flo Gray or Gus Hall?"
    facts = [Fact(f"x-{row}", "Yes.", (prompt,)) for row in range(20)]
    assert {fact.subject for fact in with_authors(facts)} == {"Ana Bell"}
