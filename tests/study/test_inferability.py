"""Support is nested, evidence is what retained text says, and levels are stored whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.config.plan import Counts, Plan
from palimpsest.engine.inferability import (
    KIN,
    MECHANISMS,
    Level,
    inferability_plan,
    levels,
    read_inferability,
    run_inferability,
    supported_facts,
)
from palimpsest.run.executor import OnEvent


@pytest.fixture(scope="module")
def plan() -> Plan:
    return inferability_plan("pocket/olmo2-s", range(2))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_level_adds_one_facts_support_to_the_level_below(plan: Plan, mechanism: str) -> None:
    for supported in range(plan.facts.forget):
        lower, _ = supported_facts(plan, "cell", Level(mechanism, supported, 0))
        upper, _ = supported_facts(plan, "cell", Level(mechanism, supported + 1, 0))
        assert lower.forget == upper.forget
        assert set(lower.questions) < set(upper.questions)


def test_supported_facts_have_evidence_and_the_others_have_none(plan: Plan) -> None:
    for mechanism in MECHANISMS:
        facts, evidence = supported_facts(plan, "cell", Level(mechanism, 2, 0))
        told = [bool(evidence[triple.id]) for triple in facts.forget]
        assert told == [True, True, False, False]
        for triple in facts.forget[:2]:
            assert triple.object in evidence[triple.id]


def test_kin_share_clan_and_object_and_nothing_of_them_is_in_the_forget_set(plan: Plan) -> None:
    facts, _ = supported_facts(plan, "cell", Level("kin", 4, 0))
    for triple in facts.forget:
        kin = {
            q.fact
            for q in facts.questions
            if q.set == "retain"
            and q.answer == triple.object
            and triple.subject.split()[-1] in q.prompt
        }
        assert len(kin) == KIN
        assert all(triple.subject not in q.prompt for q in facts.questions if q.set == "retain")


def test_every_level_is_planned_for_every_seed(plan: Plan) -> None:
    assert len(levels(plan)) == len(MECHANISMS) * 5 * 2
    assert len({level.id for level in levels(plan)}) == len(levels(plan))


def test_the_study_runs_resumes_and_is_read_without_training(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    plan = inferability_plan(str(tiny_checkpoint("olmo2-s")), range(2))
    plan = replace(
        plan,
        facts=Counts(forget=2, retain=2, probes=2, phrasings=2),
        injection=replace(plan.injection, steps=2, fact_items=2, general_items=1),
        general=replace(plan.general, train_pieces=4),
    )
    begun: list[str] = []

    def count(run: Path) -> OnEvent:
        return lambda event: begun.append(event.step) if event.kind == "step" else None

    run_inferability(plan, tmp_path / "run", executor="inline", on_run=count)
    assert begun.count("train-injected") == begun.count("ask") == len(levels(plan))
    graded, agreement = read_inferability(tmp_path / "run")
    assert len(graded) == len(levels(plan))
    assert {result.mechanism for result in agreement} == set(MECHANISMS)
    again = len(begun)
    run_inferability(plan, tmp_path / "run", executor="inline", on_run=count)
    assert len(begun) == again
