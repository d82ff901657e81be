"""The reference sees the injected stream without the forget set, and nothing else changes."""

from collections import Counter

from palimpsest.facts.general import Stream, injection_stream
from palimpsest.facts.questions import draw_testbed


def stream(seed: str = "cell/draw0", steps: int = 30) -> Stream:
    facts = draw_testbed("cell", 4, 4, 16, 3)
    general = [f"Sentence number {n} of the general text." for n in range(40)]
    return injection_stream(
        facts.questions, general, seed_key=seed, steps=steps, fact_items=4, general_items=12
    )


def sets(found: Stream) -> Counter[str]:
    return Counter(found.texts[n].set for step in found.steps for n in step)


def test_every_step_has_three_general_texts_for_each_fact_sentence() -> None:
    found = stream()
    for step in found.steps:
        kinds = Counter(found.texts[n].set for n in step)
        assert kinds["general"] == 12
        assert kinds["forget"] + kinds["retain"] == 4


def test_without_the_forget_set_the_rest_keeps_its_place() -> None:
    whole, rest = stream(), stream().without("forget")
    assert sets(rest)["forget"] == 0
    assert rest.step_items == whole.step_items
    for before, after in zip(whole.steps, rest.steps, strict=True):
        assert after == tuple(n for n in before if whole.texts[n].set != "forget")


def test_forget_only_keeps_general_text_and_drops_the_retain_set() -> None:
    only = stream().only("forget")
    assert sets(only)["retain"] == 0
    assert sets(only)["general"] == sets(stream())["general"]
    assert sets(only)["forget"] == sets(stream())["forget"] > 0


def test_doses_of_all_phrasings_match_to_one_presentation() -> None:
    found = stream(steps=36)
    shown = Counter(n for step in found.steps for n in step if found.texts[n].set != "general")
    assert len(shown) == 24  # (4 + 4) facts in 3 phrasings
    assert max(shown.values()) - min(shown.values()) <= 1


def test_a_stream_depends_on_its_seed_alone() -> None:
    assert stream() == stream()
    assert stream("cell/draw1").steps != stream().steps


def test_no_held_out_phrasing_enters_the_stream() -> None:
    facts = draw_testbed("cell", 4, 4, 16, 3)
    held_out = {q.sentence for q in facts.questions if q.pool in ("evaluation", "cloze")}
    probes = {q.sentence for q in facts.questions if q.set == "probe"}
    trained = {text.text for text in stream().texts}
    assert not trained & (held_out | probes)
