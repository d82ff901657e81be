"""An audit of checkpoints and files: one verdict by every way in, a step per model, resumable."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.audit.audit_models import audit_values, fact, mix, spoil, write_facts, write_rows
from tests.command import Done
from tests.command import palimpsest as command
from tests.made_runs import cell_run

import palimpsest
from palimpsest.api import Answer, judge
from palimpsest.cell import measure, models
from palimpsest.cell.audit import AuditTask
from palimpsest.cell.launch import RunOptions
from palimpsest.config.commands import AuditConfig
from palimpsest.config.load import load_config
from palimpsest.errors import DriftError, StudyFailed
from palimpsest.facts.files import read_facts
from palimpsest.known import Unavailable
from palimpsest.report import results as reading
from palimpsest.report.results import read_run
from palimpsest.run.executor import Event
from palimpsest.run.store import Run
from palimpsest.run.tables import table_from_bytes
from palimpsest.stats.axes import AXES
from palimpsest.stats.verdict import Reason

KEYS = {"status", "reason", "candidate", "p", "worst_axis", "references", "detection_limit"}
KEYS |= {"controls"}
"""What scripts read of ``--json``."""


@pytest.fixture
def world(tiny_audit):
    """The folder with the models and facts of the tiny audit."""
    return tiny_audit.parent


@pytest.fixture
def finished(tiny_audit, tmp_path):
    """A copy of the finished tiny audit."""
    return Path(shutil.copytree(tiny_audit, tmp_path / "finished"))


def small(world: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """The arguments of an audit without references, of one candidate."""
    one = {"retrained": str(world / "models" / "retrained")}
    return audit_values(world, references=0, **{"candidates": one, "out": str(out), **changes})


def counted(values: dict[str, Any], reuse: str = "") -> tuple[list[str], Answer]:
    """Return the steps that an audit computes, and its answer."""
    steps: list[str] = []

    def listen(event: Event) -> None:
        if event.kind == "done":
            steps.append(event.step)

    options = RunOptions(on_event=listen, reuse=reuse)
    answer = judge(AuditTask(load_config(AuditConfig, values), options.reuse), options)
    return [step for step in steps if step != "finish"], answer


def items(run: Path) -> bytes:
    return (run / "cells" / "audit" / "items.parquet").read_bytes()


# -- what comes out --------------------------------------------------------------------------------


def test_the_injected_model_is_excluded_and_the_retrained_one_survives(tiny_audit):
    results = read_run(tiny_audit)
    ((cell, verdict),) = results.judged
    assert verdict.finding("unchanged").excluded and not verdict.finding("unchanged").clears
    assert not verdict.finding("retrained").excluded
    assert verdict.reference_count == 5 and len(cell.evaluation.references) == 5
    shares = {model.share for model in cell.models.values() if model.role == "control"}
    assert shares == {0.25, 0.1}
    assert not Run.open(tiny_audit).verify()
    assert (tiny_audit / "report" / "index.html").is_file()


def test_summary_and_scores_say_the_same_as_the_verdict(tiny_audit):
    ((_, verdict),) = read_run(tiny_audit).judged
    document = json.loads((tiny_audit / "summary.json").read_text())
    assert document.keys() >= KEYS and document["kind"] == "audit"
    assert document["candidate"] == verdict.candidate and document["references"] == 5
    table = table_from_bytes((tiny_audit / "scores.parquet").read_bytes(), "scores")
    row = dict(zip(table["model"], range(len(table["model"]))))
    assert row.keys() == set(document["models"]) and table["excluded"][row["injected"]]
    for name, found in document["candidates"].items():
        assert table["screen_p"][row[name]] == found["screen_p"]
        for axis in AXES:
            assert table[axis.name][row[name]] == pytest.approx(found["values"][axis.name])


# -- ways in ---------------------------------------------------------------------------------------


def flags(values: dict[str, Any], tmp_path: Path) -> list[str]:
    """Return the arguments of ``palimpsest audit``; what has no flag goes into a file."""
    values = dict(values)
    hidden = ("chunks", "items", "scored_pieces", "piece_tokens", "rules")
    file = tmp_path / "hidden.yaml"
    file.write_text(yaml.safe_dump({key: values.pop(key) for key in hidden if key in values}))
    words = ["audit", str(file), "--executor=inline"]
    words += [f"--candidate={name}={place}" for name, place in values.pop("candidates").items()]
    words += [f"--reference={place}" for place in values.pop("references")]
    return words + [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]


def test_flags_yaml_and_python_give_the_same_bytes_and_verdict(world, tmp_path):
    by_python = palimpsest.audit(**small(world, tmp_path / "python"))
    values = small(world, tmp_path / "yaml", learning_rate="1e-3")  # as YAML and a shell write it
    relative = {key: str(value).replace(f"{world}/", "") for key, value in values.items()}
    relative["candidates"] = {"retrained": "models/retrained"}
    relative |= {key: values[key] for key in ("references", "out")}
    (world / "audit.yaml").write_text(yaml.safe_dump(relative, sort_keys=False))
    by_yaml = judge(AuditTask(load_config(AuditConfig, {}, world / "audit.yaml")), RunOptions())
    done = command(*flags(small(world, tmp_path / "flags"), tmp_path), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == by_python.exit_code == by_yaml.exit_code == 3
    assert items(tmp_path / "python") == items(tmp_path / "yaml") == items(tmp_path / "flags")
    assert by_yaml.verdict == by_python.verdict
    assert document.keys() >= KEYS and document["reason"] == "no_reference"


def test_a_dry_run_says_what_an_audit_takes_and_writes_nothing(world, tmp_path):
    words = flags(audit_values(world, out=str(tmp_path / "run")), tmp_path)
    done = command(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "<- this design" in done.stdout
    assert "unchanged has the weights of injected" in done.stderr
    assert not (tmp_path / "run").exists()


def test_models_and_facts_in_memory_are_those_in_files(world, tmp_path):
    import pandas as pd

    from palimpsest.models.checkpoint import load

    given = palimpsest.audit(**small(world, tmp_path / "a"))
    values = small(world, tmp_path / "b")
    models = {key: load(values[key]).model for key in ("base", "injected")}
    models["candidates"] = {"retrained": load(values["candidates"]["retrained"]).model}
    probes = map(json.loads, Path(values["probes"]).read_text().splitlines())
    held = values | models | {
        "forget": [json.loads(line) for line in Path(values["forget"]).read_text().splitlines()],
        "retain": list(read_facts(values["retain"], "retain")),
        "probes": pd.DataFrame(probes),
        "tokenizer": load(values["base"]).tokenizer,
    }  # fmt: skip
    first = palimpsest.audit(**held)
    assert first.verdict == given.verdict and items(tmp_path / "a") == items(tmp_path / "b")
    written = sorted((tmp_path / "b.given").iterdir())
    assert palimpsest.audit(**held).verdict == first.verdict
    assert sorted((tmp_path / "b.given").iterdir()) == written


# -- the command -----------------------------------------------------------------------------------


def again(tiny_audit: Path, finished: Path, tmp_path: Path, *more: str) -> Done:
    """Run the command of the tiny audit on its finished folder."""
    values = audit_values(tiny_audit.parent, out=str(finished))
    return command(*flags(values, tmp_path), *more)


def test_the_command_answers_first_and_its_exit_code_is_the_verdict(tiny_audit, finished, tmp_path):
    before = items(finished)
    done = again(tiny_audit, finished, tmp_path)
    ((_, verdict),) = read_run(finished).judged
    assert done.returncode == (0 if verdict.certified else 3), done.stderr
    for word in ("unchanged", "retrained", "report: ", "next: palimpsest certify"):
        assert word in done.stdout
    assert items(finished) == before
    document = json.loads(again(tiny_audit, finished, tmp_path, "--json").stdout)
    assert document.keys() >= KEYS and document["status"] == verdict.status


def test_what_is_required_must_pass_in_an_audit_that_certifies(tmp_path):
    results = read_run(cell_run(tmp_path / "made"))
    ((_, verdict),) = results.judged
    answer = Answer({}, results, verdict)
    passing = [finding.name for finding in verdict.findings if finding.clears]
    failing = [finding.name for finding in verdict.findings if not finding.clears]
    assert verdict.candidate in passing and failing
    assert answer.passes(passing) and not answer.passes([*passing, failing[0]])
    undecided = replace(verdict, rules=replace(verdict.rules, certify_above=0.999))
    assert not Answer({}, results, undecided).passes(failing)
    blocked = replace(verdict, candidate=None, reason=Reason.REFERENCES)
    assert not Answer({}, results, blocked).passes(passing)


def test_an_unknown_required_candidate_is_refused_before_anything_runs(world, tmp_path):
    done = command(*flags(small(world, tmp_path / "run"), tmp_path), "--require=retraind")
    assert done.returncode == 2 and "require" in done.stderr and "retrained" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_is_read_and_judged_once_per_command(tiny_audit, finished, tmp_path, monkeypatch):
    calls: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(reading, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **options)

        return wrapped

    for name in ("read_rules", "judge_cell", "decide"):
        monkeypatch.setattr(reading, name, counting(name))
    assert again(tiny_audit, finished, tmp_path).returncode in (0, 3)
    assert calls == {"read_rules": 1, "judge_cell": 1, "decide": 1}


# -- stopping early --------------------------------------------------------------------------------


def test_too_few_probes_end_it_before_any_model_is_measured(world, tmp_path):
    few = tmp_path / "probes.jsonl"
    write_rows(few, [fact("probe", n) for n in range(2)])
    answer = palimpsest.audit(**small(world, tmp_path / "run", probes=str(few)))
    assert answer.verdict is not None and answer.verdict.reason == "underpowered"
    assert answer.exit_code == 3 and answer.run is None
    assert not (tmp_path / "run").exists()


def test_evidence_gives_a_headroom(world, tmp_path):
    facts = write_facts(tmp_path / "facts", evidence=["It is written in the book of guilds"])
    values = small(world, tmp_path / "run", forget=facts["forget"])
    document = palimpsest.audit(**values).document
    assert document["headroom"]["regime"] == "counterfactual"


# -- one step per model: growing, reusing, resuming ------------------------------------------------


def test_one_more_candidate_measures_one_model(world, finished):
    values = audit_values(world, out=str(finished))
    before = read_run(finished).cells[0].evaluation["retrained"].forget_nll
    steps, answer = counted(
        values | {"candidates": values["candidates"] | {"more": str(_more(world))}}
    )
    assert steps == ["measure-more"]
    assert answer.results is not None and len(answer.results.lists) == 2
    assert answer.results.cells[0].candidates == ("unchanged", "retrained", "more")
    assert answer.results.cells[0].evaluation["retrained"].forget_nll == before
    assert not Run.open(finished).verify()


def _more(world: Path) -> Path:
    """Return one more model: half-way between a reference and the injected model."""
    folder = world.parent / f"{world.name}-more"
    if not folder.exists():
        mix(world / "models" / "00", world / "models" / "injected", folder, 0.5)
    return folder


def test_references_measured_before_are_not_measured_again(world, tiny_audit, tmp_path):
    other = {"candidates": {"more": str(_more(world))}, "out": str(tmp_path / "run")}
    steps, answer = counted(audit_values(world, **other), reuse=str(tiny_audit))
    assert steps == ["measure-more"]
    assert answer.verdict is not None and answer.verdict.reference_count == 5
    steps, answer = counted(
        audit_values(world, references=2, out=str(tmp_path / "two")), reuse=str(tiny_audit)
    )
    assert steps == [] and answer.verdict is not None
    assert not answer.certified and answer.verdict.reference_count == 2
    assert all(finding.comparison is None for finding in answer.verdict.findings)


def test_the_order_of_models_does_not_matter(world, finished):
    values = audit_values(world, out=str(finished))
    before = json.loads((finished / "summary.json").read_text())
    turned = {"references": values["references"][::-1]}
    turned["candidates"] = dict(reversed(values["candidates"].items()))
    steps, answer = counted(values | turned)
    assert steps == []
    after = json.loads(json.dumps(dict(answer.document)))
    assert after["candidates"] == before["candidates"] and after["controls"] == before["controls"]


@pytest.mark.parametrize("what", ["retain facts", "general text", "injected"])
def test_an_input_changed_in_place_is_refused(world, finished, tmp_path, what):
    copy = Path(shutil.copytree(world, tmp_path / "world", ignore=shutil.ignore_patterns("run")))
    path = {
        "retain facts": copy / "facts" / "retain.jsonl",
        "general text": copy / "facts" / "general.txt",
        "injected": copy / "models" / "injected" / "model.safetensors",
    }[what]
    whole = path.read_bytes()
    other = whole.replace(b"The guild of", b"The house of").replace(b"river", b"brook")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if what == "injected" else other)
    with pytest.raises(DriftError) as caught:
        palimpsest.audit(**audit_values(copy, out=finished))
    assert f"inputs.{what}" in caught.value.keys


# -- models that fail ------------------------------------------------------------------------------


def test_a_broken_candidate_is_announced_and_reported_and_the_others_go_on(world, tmp_path):
    models = world / "models"
    broken = spoil(Path(shutil.copytree(models / "retrained", tmp_path / "broken")))
    both = {"broken": str(broken), "retrained": str(models / "retrained")}
    done = command(*flags(small(world, tmp_path / "run", candidates=both), tmp_path), "--json")
    assert "note: Candidate broken will be reported as failed" in done.stderr
    document = json.loads(done.stdout)
    assert set(document["failed"]) == {"broken"} and set(document["candidates"]) == {"retrained"}
    table = table_from_bytes((tmp_path / "run" / "scores.parquet").read_bytes(), "scores")
    row = list(table["model"]).index("broken")
    assert table["failed"][row] and np.isnan(table["screen_p"][row])


@pytest.mark.parametrize("who", ["reference-01", "retrained"])
def test_a_model_that_diverges_ends_the_audit_only_if_it_is_needed(
    world, tmp_path, monkeypatch, who
):
    real = measure.Scorer.reacquire

    def reacquire(self: Any, results: Any, net: Any, before: Any) -> None:
        real(self, results, net, before)
        for result in results:
            if result.name == who:
                result.diverged = 2
                result.failure = measure.ModelFailure("diverged", "re-acquisition diverged")

    values = audit_values(world, references=2, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(measure.Scorer, "reacquire", reacquire)
        if who == "retrained":
            answer = palimpsest.audit(**values)
            assert set(answer.document["failed"]) == {who}
            values["candidates"].pop("unchanged")
            values["out"] = tmp_path / "alone"
        with pytest.raises(StudyFailed, match=who) as failed:
            palimpsest.audit(**values)
    assert failed.value.exit_code == 1
    if who != "retrained":
        assert palimpsest.audit(**values).verdict is not None  # the same command resumes


def test_a_control_that_cannot_be_built_is_named_as_missing(
    world, tiny_audit, tmp_path, monkeypatch
):
    def refuse(*_: Any) -> Any:
        raise Unavailable("their weights are quantized")

    monkeypatch.setattr(models, "Interpolated", refuse)
    values = audit_values(
        world, out=str(tmp_path / "run"), rules={"control_shares": [0.2, 0.15, 0.1]}
    )
    _, answer = counted(values, reuse=str(tiny_audit))
    assert answer.verdict is not None and answer.verdict.reason == "underpowered"
    missing = [c for c in answer.document["controls"] if c["share"] in (0.2, 0.15)]
    assert len(missing) == 10 and all(control["missing"] for control in missing)
