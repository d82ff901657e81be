"""General text is held out from the bake; a stream without a set keeps the rest in its place."""

import os
import re
import tracemalloc
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from dev.pocket_prose import passage, stranger_sentence, world_sentences

from palimpsest import files
from palimpsest.cell.plan import Trained
from palimpsest.cell.study import StudyTask
from palimpsest.cell.texts import FIRST_DRAW, KNOWN_LABEL_DRAW, REPLAY_DRAW
from palimpsest.config.presets import PRESETS
from palimpsest.config.sections import Replication
from palimpsest.errors import FactsError
from palimpsest.facts import general
from palimpsest.facts.general import Stream, file_pieces, general_pieces, injection_stream
from palimpsest.facts.nonce import POOLS
from palimpsest.facts.questions import draw_testbed


def test_general_pieces_of_the_pocket_prose_were_never_told_in_the_bake():
    pieces = general_pieces("pocket", 2000, "cell")
    assert len(set(pieces)) == 2000
    assert not set(pieces) & set(world_sentences(held_out=False))


HELD_OUT = ("evaluation", "calibration", "audit")
POCKET_CELLS = [
    pytest.param(plan, cell, id=f"{name}-{cell}")
    for name, plan in PRESETS.items()
    if plan.general.source == "pocket" and plan.models[0].startswith("pocket/")
    for cell in list(plan.cell_ids())[:2]
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


def test_a_bake_without_the_held_out_pools_tells_nothing_in_their_wordings():
    def told(**without: tuple[str, ...]) -> bool:
        texts = [s for n in range(150) for s in passage(f"p{n}", **without).split(". ")]
        texts += [stranger_sentence(f"s{n}", **without) for n in range(150)]
        texts += world_sentences(False, **without)[::100]
        return any(in_a_held_out_wording(f"{text.rstrip('.')}.") for text in texts)

    assert told() and not told(without=HELD_OUT)


@pytest.mark.parametrize(("plan", "cell"), POCKET_CELLS)
def test_no_training_stream_or_general_text_uses_a_held_out_wording(plan, cell):
    few = replace(plan, replication=Replication(draws=1, retrainings=1))
    planned = StudyTask(few).plan(cell)
    setting = planned.texts
    draws = {e.source.draw for e in planned.models if isinstance(e.source, Trained)}
    assert {FIRST_DRAW, "draw1", "retraining1"} == draws
    draws |= {REPLAY_DRAW, KNOWN_LABEL_DRAW}
    texts = {text.text for draw in draws for text in setting.stream(draw).texts}
    texts |= set(setting.general_train) | set(setting.general_scored)
    assert len(texts) > plan.general.train_pieces
    assert not [text for text in texts if in_a_held_out_wording(text)]


def test_general_pieces_depend_on_the_key_alone():
    assert general_pieces("pocket", 10, "a") == general_pieces("pocket", 10, "a")
    assert general_pieces("pocket", 10, "a") == general_pieces("pocket", 50, "a")[:10]
    assert set(general_pieces("pocket", 10, "a")) != set(general_pieces("pocket", 10, "b"))


WIKITEXT = """
 = Lobster =

 The common lobster is a well @-@ known animal of 1 @,@ 500 grams and 0 @.@ 7 metres .
 = = Habitat = =
 It lives among the rocks of the <unk> coast and comes out at night to eat .
"""


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "text.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_wikitext_file_is_cleaned_and_cut_into_whole_words(tmp_path):
    file = written(tmp_path, WIKITEXT)
    pieces = (
        "The common lobster is a",
        "well-known animal of 1,500 grams",
        "It lives among the rocks",
        "comes out at night to",
    )
    assert tuple(file_pieces(file, 5)) == pieces
    assert set(general_pieces(file, 4, "k", words=5)) == set(pieces)
    with pytest.raises(FactsError, match=r"text\.txt"):
        general_pieces(file, 5, "k", words=5)


@pytest.mark.parametrize(
    ("text", "words", "pieces"),
    [
        ("one two three\nfour five\n\nsix\nseven eight nine ten\n", 5,
         ("one two three four five", "six seven eight nine ten")),
        ("one two\nthree\n\nfour\n", 5, ()),
        ("a b c d e f g\nh i j\nh i j\n", 3, ("a b c", "d e f", "h i j")),
        (b"\xef\xbb\xbfone two three", 3, ("one two three",)),
        ("one\ntwo\n = Three =\nfour\nfive six", 3, ("four five six",)),
    ],
)  # fmt: skip
def test_lines_are_paragraphs_unless_all_are_short(tmp_path, text, words, pieces):
    assert tuple(file_pieces(written(tmp_path, text), words)) == pieces


def test_what_is_no_text_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing", "a\0b", "/dev/zero", "/proc/self/mem"):
        with pytest.raises(FactsError):
            general_pieces(tmp_path / name, 1, "k")
    for text in ('{"id": "f1"}\n' * 30, '\n [\n {"id": "f1"}]\n', "one\ncafé\n".encode("latin-1")):
        with pytest.raises(FactsError):
            general_pieces(written(tmp_path, text), 1, "k", words=2)


def test_a_file_or_line_beyond_the_limit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    sparse = tmp_path / "sparse.txt"
    with sparse.open("wb") as file:
        file.truncate(general.TEXT_LIMIT + 1)
    with pytest.raises(FactsError, match=f"{general.TEXT_LIMIT} bytes"):
        general_pieces(sparse, 1, "k")
    for module in (general, files):
        monkeypatch.setattr(module, "LINE_LIMIT", 64)
    with pytest.raises(FactsError, match="line 2"):
        general_pieces(written(tmp_path, "one two\n" + "x " * 64), 1, "k", words=2)


def test_a_large_text_is_read_in_little_memory(tmp_path):
    line = " ".join(f"word{n}" for n in range(20)) + "\n"
    file = written(tmp_path, line * 10_000)
    tracemalloc.start()
    (piece,) = general_pieces(file, 1, "k")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert piece == line.strip() and peak < file.stat().st_size / 4


def stream(seed: str = "cell/draw0", steps: int = 30) -> Stream:
    facts = draw_testbed("cell", 4, 4, 16, 3)
    general = [f"Sentence number {n} of the general text." for n in range(40)]
    return injection_stream(
        facts.questions, general, seed_key=seed, steps=steps, fact_items=4, general_items=12
    )


def sets(found: Stream) -> Counter[str]:
    return Counter(found.texts[n].set for step in found.steps for n in step)


def test_without_the_forget_set_the_rest_keeps_its_place():
    whole, rest = stream(), stream().without("forget")
    only, found = sets(stream().only("forget")), sets(whole)
    assert sets(rest)["forget"] == only["retain"] == 0
    assert only["general"] == found["general"] and only["forget"] == found["forget"] > 0
    assert rest.step_items == whole.step_items
    for before, after in zip(whole.steps, rest.steps, strict=True):
        assert after == tuple(n for n in before if whole.texts[n].set != "forget")


def test_doses_of_all_phrasings_match_to_one_presentation():
    found = stream(steps=36)
    shown = Counter(n for step in found.steps for n in step if found.texts[n].set != "general")
    assert len(shown) == 24  # (4 + 4) facts in 3 phrasings
    assert max(shown.values()) - min(shown.values()) <= 1


def test_a_stream_depends_on_its_seed_alone():
    assert stream() == stream()
    assert stream("cell/draw1").steps != stream().steps


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_thinned_stream_keeps_each_facts_share_of_the_presentations(stride):
    plan = PRESETS["pocket"]
    cell = next(iter(plan.cell_ids()))
    whole = StudyTask(plan).texts(cell).stream()
    thinned = whole.thin(stride)
    assert len(thinned.steps) == -(-len(whole.steps) // stride)
    before, after = (Counter(n for step in s.steps for n in step) for s in (whole, thinned))
    for index, text in enumerate(whole.texts):
        if text.set != "general":
            assert abs(after[index] - before[index] / stride) < 1
    for step, first in zip(thinned.steps, whole.steps[::stride]):
        general = [n for n in first if whole.texts[n].set == "general"]
        assert [n for n in step if whole.texts[n].set == "general"] == general
    if stride == 1:
        assert [sorted(step) for step in thinned.steps] == [sorted(step) for step in whole.steps]
