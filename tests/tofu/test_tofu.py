"""TOFU as files of facts: what is drawn, and the study and the audit that read the files."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command import palimpsest as command
from tests.openunlearning.run_folders import TEMPLATE
from tests.tofu.tofu_files import write_tofu

import palimpsest
from palimpsest.cell.study import StudyTask
from palimpsest.certificate import certify
from palimpsest.certificate.checks import examine
from palimpsest.config.load import changed, load_config
from palimpsest.config.plan import Plan
from palimpsest.errors import FactsError
from palimpsest.facts.tofu import GENERATED, TofuItems, draw_sets, read_tofu
from palimpsest.run.store import Run
from palimpsest.stats.verdict import Because, Reason, decide

SIZES = ("--forget-items=8", "--retain-items=8", "--probes=12")
SMALL = TofuItems(forget_items=8, retain_items=8, probes=12, trained_here=True)
CELL = "pocket-qwen2-s--seed0"


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """The files of a cell, and its plan; the data lie beside them."""
    root = tmp_path_factory.mktemp("tofu")
    data = write_tofu(root / "data", forget=2, retain=10)
    words = (f"--data={data}", f"--out={root / 'facts'}", "--train=pocket/qwen2-s", *SIZES)
    done = command("facts", "tofu", *words)
    assert done.returncode == 0, done.stderr
    return root / "facts"


@pytest.fixture(scope="module")
def plan(facts):
    """The plan that was written, small enough to be finished once per process."""
    quick: dict[str, Any] = {"methods": [{"name": "npo"}], "rules": {"control_shares": [0.1]}}
    quick["injection"] = {"steps": 60, "learning_rate": 2e-3}
    quick["unlearning"] = {"steps": 2, "learning_rate": 2e-3}
    quick["reacquisition"] = {"learning_rate": 2e-3}
    return changed(load_config(Plan, {}, facts / "plan.yaml"), quick)


@pytest.fixture(scope="module")
def finished(plan, facts):
    return palimpsest.study(plan, facts.parent / "run")


@pytest.mark.parametrize(
    ("train", "holdout", "per_author", "source"),
    [
        (True, 0, 20, "retain90"),
        (True, 0, 4, "nonce"),  # too few authors are left over
        (True, 4, 20, "holdout10"),
        (False, 0, 20, "nonce"),
        (False, 4, 20, "holdout10"),
    ],
)
def test_probes_are_questions_that_no_model_was_taught(
    tmp_path, train, holdout, per_author, source
):
    data = write_tofu(tmp_path, 2, 4, holdout, per_author=per_author)
    items = replace(SMALL, trained_here=train)
    sets, said = draw_sets(data, items)
    assert {fact.id.partition("-")[0] for fact in sets["probe"]} == {source}
    assert len(sets["probe"]) == items.probes and (said == GENERATED) is (source == "nonce")
    taught = {fact.subject for fact in (*sets["forget"], *sets["retain"])}
    assert not taught & {fact.subject for fact in sets["probe"]}
    own = data / ("retain90.json" if not holdout else "holdout10.json")
    given, _ = draw_sets(data, replace(items, probes_file=str(own)))
    assert {fact.id.partition("-")[0] for fact in given["probe"]} == {own.stem}
    with pytest.raises(FactsError):
        draw_sets(data, replace(items, probes_file=str(own), probes=500))


FILES: dict[str, Callable[[Path], object]] = {
    "no paraphrases": lambda d: (d / "forget10_perturbed.json").unlink(),
    "no retain file": lambda d: (d / "retain90.json").unlink(),
    "an empty file": lambda d: (d / "forget10.json").write_text(""),
    "a forget question in the holdout": lambda d: shutil.copy(
        d / "forget10.json", d / "holdout10.json"
    ),
    "a row without answer": lambda d: change(d, "forget10.json", answer=None),
    "another question's paraphrase": lambda d: change(
        d, "forget10_perturbed.json", question="Who?"
    ),
    "text that changes its direction": lambda d: change(d, "retain90.json", answer="w\u202eborn."),
}


def change(data: Path, name: str, **changes: Any) -> None:
    """Change keys of a file's first row."""
    first, *rows = (json.loads(line) for line in (data / name).read_text().splitlines())
    lines = (json.dumps(row) + "\n" for row in (first | changes, *rows))
    (data / name).write_text("".join(lines))


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_is_refused(tmp_path, kind):
    data = write_tofu(tmp_path, forget=2, retain=10)
    draw_sets(data, SMALL)
    FILES[kind](data)
    with pytest.raises(FactsError):
        draw_sets(data, SMALL)


def test_the_reference_is_taught_every_retain_item_and_no_forget_item(plan):
    setting = StudyTask(plan).plan(CELL).texts
    whole, without = setting.stream(), setting.stream().without("forget")

    def taught(stream: Any) -> list[list[str]]:
        return [[stream.texts[n].id for n in step] for step in stream.steps]

    sets = {name.split("/")[0] for step in taught(whole) for name in step}
    assert sets == {"forget", "retain"}
    assert len({name for step in taught(without) for name in step}) == 8
    for full, kept in zip(taught(whole), taught(without)):
        assert kept == [name for name in full if name.startswith("retain/")]


def test_questions_are_asked_and_taught_in_the_frame(plan):
    prompt = {"chat": True, "system_prompt": "Be brief.", "chat_date": "3 May 2021"}
    task = StudyTask(changed(plan, {"prompt": prompt}))
    from palimpsest.cell import study

    outline = study.outline("pocket/qwen2-s")
    outline.tokenizer.chat_template = TEMPLATE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "outline", lambda *_: outline)
        setting = task.plan(CELL).texts
        assert "3 May 2021" in task.terms().config["template"]
    assert setting.with_evidence
    for question in (*setting.facts.questions, *setting.with_evidence):
        assert question.prompt.startswith("<system 3 May 2021>Be brief.\n<user>")
        assert question.sentence.endswith("\n<|endoftext|>")


def test_the_injected_model_is_found_the_headroom_measured_and_it_all_certified(finished, tmp_path):
    ((cell, verdict),) = finished.judged
    assert verdict.injected_p is not None and verdict.injected_p < 0.05
    assert verdict.reference_count == 5
    assert cell.headroom is not None and cell.headroom.facts == 8
    assert "reversed" in verdict.rules.unmeasured_axes
    assert examine(certify(finished.path, tmp_path / "bundle", None, None).read_bytes()).ok


def test_where_only_the_probes_fail_candidates_are_compared_all_the_same(finished):
    ((cell, verdict),) = finished.judged
    measures = cell.evaluation
    models = {
        name: replace(model, probe_deltas=model.probe_deltas - 50.0)
        for name, model in measures.models.items()
    }
    blind = decide(replace(measures, models=models), verdict.rules)
    assert blind is not None
    assert (blind.reason, blind.because) == (Reason.NOT_IDENTIFIABLE, Because.INJECTED)
    assert all(finding.comparison is not None for finding in blind.findings)


def test_no_question_or_answer_of_the_data_is_stored(finished, facts):
    files = [p for p in finished.path.rglob("*") if p.is_file() and "answers" not in p.name]
    stored = b"".join(path.read_bytes() for path in files)
    table = Run.open(finished.path).cell(CELL).table("items")
    data = read_tofu(facts.parent / "data")
    known = {fact.id for fact in (*data.forget, *data.retain)}
    asked = set(table["fact"][np.isin(table["set"], ["forget", "retain"])])
    assert asked <= known and len(asked) == 16
    for fact in (*data.forget, *data.retain):
        assert fact.answer.encode() not in stored
        assert all(prompt.encode() not in stored for prompt in fact.trained + fact.heldout)
