"""Each experiment runs on a small scale, resumes, and says what it found."""

import re
from dataclasses import replace

import pytest
from tests.cell.small import bare_plan

from palimpsest.cell.launch import RunOptions
from palimpsest.config.sections import Facts, General, Injection, MethodGrid
from palimpsest.methods import candidates
from palimpsest.report.results import read_run
from palimpsest_trials import fair_sweep, inferability, second_suite
from palimpsest_trials.inferability import Level, inferability_plan, plan_levels, supported_facts


@pytest.fixture(scope="module")
def plan():
    return inferability_plan("pocket/olmo2-s", range(2))


def test_the_fair_sweep_has_32_configurations_beside_8():
    assert len(candidates(fair_sweep.sweep_plan().methods)) == 32 + 8


def test_the_fair_sweep_counts_what_passes(tmp_path, capsys):
    plan = bare_plan(methods=(MethodGrid("ga"), MethodGrid("npo")))
    fair_sweep.main(["--out", str(tmp_path / "run"), "--workers", "1"], plan)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ga", "npo"]


def test_picks_are_frozen_made_again_and_asked_other_phrasings(tiny_study, tmp_path, capsys):
    first = read_run(tiny_study)
    picks = second_suite.freeze_picks(first)
    second_suite.main([str(tiny_study), "--out", str(tmp_path / "second"), "--workers", "1"])
    second = read_run(tmp_path / "second")
    assert second.terms.config["second_suite"]["picks"] == picks
    (cell,) = second.cells
    assert set(cell.candidates) == set(picks[cell.id].values())
    name = cell.candidates[0]
    old, new = (results.cells[0].evaluation[name].forget_nll for results in (first, second))
    assert old != pytest.approx(new, abs=1e-3)
    told = capsys.readouterr().out.splitlines()
    assert {line[:28].strip() for line in told} == set(picks[cell.id])
    assert second_suite.run_second(first, tmp_path / "second", RunOptions())[1] == picks


@pytest.mark.parametrize("mechanism", inferability.MECHANISMS)
def test_a_level_adds_one_facts_support_to_the_level_below(plan, mechanism):
    for supported in range(plan.facts.forget):
        lower, _ = supported_facts(plan, "cell", Level(mechanism, supported, 0))
        upper, evidence = supported_facts(plan, "cell", Level(mechanism, supported + 1, 0))
        assert lower.forget == upper.forget and set(lower.questions) < set(upper.questions)
        told = [bool(evidence[fact.id]) for fact in upper.forget]
        assert told == [n <= supported for n in range(plan.facts.forget)]
        assert upper.forget[0].object in evidence[upper.forget[0].id]


def test_every_level_is_run_once_and_read_without_training(plan, tmp_path, capsys):
    small = replace(
        plan,
        facts=Facts(forget=2, retain=2, probes=2, phrasings=2),
        injection=Injection(steps=2, learning_rate=5e-4, fact_items=2, general_items=1),
        general=General(train_pieces=4, scored_pieces=1),
    )
    out = ["--out", str(tmp_path / "run"), "--workers", "1"]
    inferability.main(out, small)
    told = capsys.readouterr().out
    assert re.findall(r"^(\w+) +6 levels", told, re.MULTILINE) == ["kin", "alias"]
    steps: list[str] = []
    again = RunOptions(on_event=lambda event: steps.append(event.step))
    run = inferability.run_levels(small, tmp_path / "run", again)
    assert not [step for step in steps if step.startswith(("train", "headroom"))]
    assert set(inferability.read_levels(run, small)) == set(plan_levels(small))
