"""TOFU's files as facts, and never-learned questions that resemble them."""

from pathlib import Path

import numpy as np
import pytest
from tofu_files import write_tofu

from palimpsest.errors import FactsError
from palimpsest.tofu.data import draw_items, read_tofu, words
from palimpsest.tofu.probes import KINDS, QUESTIONS, kind_of, tofu_probes


def test_a_split_holds_paraphrases_out_and_names_facts_by_their_row(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    assert [fact.id for fact in tofu.forget[:2]] == ["forget10-0", "forget10-1"]
    assert tofu.forget[0].trained == ("Question: Where was Writer0 born?\nAnswer:",)
    assert tofu.forget[0].heldout == ("Question: In what place was Writer0 born?\nAnswer:",)
    assert tofu.retain[0].id == "retain90-0" and tofu.retain[0].heldout == ()


def test_files_may_be_json_lines_by_either_name(tmp_path: Path) -> None:
    expected = read_tofu(write_tofu(tmp_path))
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_suffix(".jsonl"))
    assert read_tofu(tmp_path) == expected


def test_items_come_author_by_author_and_by_the_key_alone(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    items = draw_items(tofu, 6, 8, "seed", per_author=4)
    assert items == draw_items(tofu, 6, 8, "seed", per_author=4)
    assert any(draw_items(tofu, 6, 8, f"seed{n}", per_author=4) != items for n in range(5))
    authors = [int(fact.id.rpartition("-")[2]) // 4 for fact in items.forget]
    assert len(set(authors[:4])) == 1 and len(set(authors)) == 2


def test_long_items_can_be_left_out(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    lengths = {len(f"{fact.trained[0]} {fact.answer}".split()) for fact in tofu.forget}
    shortest = min(lengths)
    items = draw_items(tofu, 2, 2, "seed", longest=shortest, per_author=4)
    assert {len(f"{f.trained[0]} {f.answer}".split()) for f in items.forget} == {shortest}
    with pytest.raises(FactsError, match="forget10: 99 items asked for"):
        draw_items(tofu, 99, 2, "seed", longest=shortest)


def test_evidence_is_the_most_similar_question_of_an_author_that_stays(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    items = draw_items(tofu, 8, 12, "seed", per_author=4, evidence=2)
    for fact in items.forget:
        (first, second) = items.evidence[fact.id]
        kept = [f"{other.trained[0]} {other.answer}" for other in items.retain]
        assert first in kept and second in kept and first != second
        assert first.split("Writer")[0] == fact.trained[0].split("Writer")[0]
        assert fact.answer not in first + second


def test_probes_are_the_same_for_the_same_key_and_others_for_another(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    made = tofu_probes(tofu.forget, 12, "one", tofu.words())
    assert made == tofu_probes(tofu.forget, 12, "one", tofu.words())
    assert made != tofu_probes(tofu.forget, 12, "two", tofu.words())
    assert len({probe.subject for probe in made}) == len({probe.id for probe in made}) == 12


def test_probes_ask_the_same_kind_of_question_at_about_the_same_length(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    made = tofu_probes(tofu.forget, 12, "one", tofu.words())
    for fact, probe in zip(tofu.forget, made):
        assert probe.relation == kind_of(fact.heldout[0])
        assert probe.heldout[0].startswith("Question: ") and probe.heldout[0].endswith("\nAnswer:")
    apart = [len(f.answer.split()) - len(p.answer.split()) for f, p in zip(tofu.forget, made)]
    assert np.abs(apart).max() <= 3 and abs(np.mean(apart)) <= 1.5
    assert "{" not in "".join(probe.answer + probe.heldout[0] for probe in made)


def test_no_name_of_a_probe_is_a_word_of_the_data(tmp_path: Path) -> None:
    tofu = read_tofu(write_tofu(tmp_path))
    free = tofu_probes(tofu.forget, 12, "one", tofu.words())
    taken = tofu.words() | {word for probe in free for word in words(probe.subject)}
    again = tofu_probes(tofu.forget, 12, "one", taken)
    assert not {word for probe in again for word in words(probe.subject)} & taken


def test_every_kind_of_question_has_forms() -> None:
    assert set(QUESTIONS) == {*KINDS, "other"}
    assert kind_of("How tall is a house?") == "other"


def test_without_a_folder_and_without_the_hub_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(FactsError, match=r"no route to host.*--data"):
        read_tofu(None)


def test_the_hub_gives_the_files_of_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = write_tofu(tmp_path)
    asked = []

    def download(repository: str, name: str, *, repo_type: str) -> str:
        asked.append((repository, name, repo_type))
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert read_tofu(None) == read_tofu(folder)
    assert ("locuslab/TOFU", "forget10_perturbed.json", "dataset") in asked
