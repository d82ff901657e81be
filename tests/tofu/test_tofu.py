"""The TOFU study on a pocket model: what is taught to whom, what is stored, and that it resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.openunlearning.run_folders import TEMPLATE, teach
from tests.tofu.tofu_files import write_tofu

from palimpsest.api import Answer, tofu
from palimpsest.cell.launch import RunOptions
from palimpsest.cell.tofu import OFFICIAL, TofuInputs
from palimpsest.certificate import certify, verify
from palimpsest.config.commands import TofuConfig
from palimpsest.config.sections import Prompt
from palimpsest.facts.tofu import read_tofu
from palimpsest.models import checkpoint
from palimpsest.run.store import Run
from palimpsest.stats.verdict import Because, Reason, decide
from palimpsest.stats.words import probes_fail

CELL = "pocket-qwen2-s--seed0"


@pytest.fixture(scope="module")
def finished(small: TofuConfig) -> Answer:
    return tofu(small)


# -- what is taught, and to whom -----------------------------------------------------------------


def test_the_reference_is_taught_every_retain_item_and_no_forget_item(small: TofuConfig) -> None:
    setting = TofuInputs(small)(CELL).setting
    whole, without = setting.stream(), setting.stream().without("forget")

    def taught(stream: Any) -> list[list[str]]:
        return [[stream.texts[n].id for n in step] for step in stream.steps]

    sets = {name.split("/")[0] for step in taught(whole) for name in step}
    assert sets == {"forget", "retain"}
    assert len({name for step in taught(without) for name in step}) == small.retain_items
    for full, kept in zip(taught(whole), taught(without)):
        assert kept == [name for name in full if name.startswith("retain/")]
    assert taught(setting.stream("draw1")) != taught(whole)


def test_every_seed_has_items_of_its_own_and_every_base_the_same(
    small: TofuConfig, tmp_path: Path
) -> None:
    data = str(write_tofu(tmp_path, forget=2, retain=20, per_author=20))
    several = replace(small, seeds=3, forget_items=4, retain_items=4, probes=4, data=data)
    drawn = [[f.id for f in TofuInputs(several).items(seed).retain] for seed in range(3)]
    assert len({tuple(ids) for ids in drawn}) > 1
    other = TofuInputs(replace(several, base="pocket/gpt2-s"))
    assert [[f.id for f in other.items(seed).retain] for seed in range(3)] == drawn


def test_the_official_checkpoints_are_the_default() -> None:
    assert TofuInputs(TofuConfig()).given() == (OFFICIAL[0], (OFFICIAL[1],))
    given = TofuInputs(TofuConfig(base="b", full="f", retain=("r", "s"))).given()
    assert given == ("f", ("r", "s"))


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
    small: TofuConfig, tmp_path: Path, train: bool, holdout: int, per_author: int, source: str
) -> None:
    data = write_tofu(tmp_path, 2, 4, holdout, per_author=per_author)
    study = TofuInputs(replace(small, train=train, data=str(data)))
    sets = study.sets(0)
    assert {fact.id.partition("-")[0] for fact in sets["probe"]} == {source}
    assert len(sets["probe"]) == small.probes
    taught = {fact.subject for fact in (*sets["forget"], *sets["retain"])}
    assert not taught & {fact.subject for fact in sets["probe"]}
    assert any(remark.startswith("Probes: ") for remark in study.remarks())
    own = data / ("retain90.json" if not holdout else "holdout10.json")
    given = TofuInputs(replace(small, data=str(data), probes_file=str(own)))
    assert {fact.id.partition("-")[0] for fact in given.sets(0)["probe"]} == {own.stem}


def test_questions_are_asked_and_taught_in_the_frame(small: TofuConfig) -> None:
    prompt = Prompt(chat=True, system_prompt="Be brief.", chat_date="3 May 2021")
    study = TofuInputs(replace(small, prompt=prompt))
    study.outline.tokenizer.chat_template = TEMPLATE
    setting = study(CELL).setting
    for question in (*setting.facts.questions, *setting.with_evidence):
        assert question.prompt.startswith("<system 3 May 2021>Be brief.\n<user>")
        assert question.sentence.endswith("\n<|endoftext|>") and "Question:" not in question.text
    assert "3 May 2021" in study.terms()[0].config["template"]


# -- what comes out ------------------------------------------------------------------------------


def test_the_injected_model_is_found_and_the_document_complete(
    finished: Answer, small: TofuConfig
) -> None:
    assert finished.results is not None
    ((cell, verdict),) = finished.results.judged
    document = finished.document["cells"][CELL]
    assert {"status", "reason", "headroom", "models", "facts"} <= document.keys()
    assert document["facts"] == {"forget": 8, "retain": 8, "probe": 12}
    assert verdict.injected_p is not None and verdict.injected_p < 0.05
    assert verdict.reference_count == small.draws
    assert finished.exit_code == (0 if document["status"] == "certified" else 3)
    headroom = cell.headroom
    assert headroom is not None and headroom.facts == 8


def test_where_only_the_probes_fail_candidates_are_compared_all_the_same(finished: Answer) -> None:
    assert finished.results is not None
    ((cell, verdict),) = finished.results.judged
    measures = cell.evaluation
    models = {
        name: replace(model, probe_deltas=model.probe_deltas - 50.0)
        for name, model in measures.models.items()
    }
    blind = decide(replace(measures, models=models), verdict.rules)
    assert blind is not None
    assert (blind.reason, blind.because) == (Reason.NOT_IDENTIFIABLE, Because.INJECTED)
    assert all(finding.comparison is not None for finding in blind.findings)
    assert probes_fail(blind) is (verdict.detection_limit is not None)


def test_no_question_or_answer_of_the_data_is_stored(finished: Answer, small: TofuConfig) -> None:
    assert finished.run is not None
    files = [
        path for path in finished.run.rglob("*") if path.is_file() and "answers" not in path.name
    ]
    stored = b"".join(path.read_bytes() for path in files)
    table = Run.open(finished.run).cell(CELL).table("items")
    data = read_tofu(small.data)
    known = {fact.id for fact in (*data.forget, *data.retain)}
    asked = set(table["fact"][np.isin(table["set"], ["forget", "retain"])])
    assert asked <= known and len(asked) == 16
    for fact in (*data.forget, *data.retain):
        assert fact.answer.encode() not in stored
        assert all(prompt.encode() not in stored for prompt in fact.trained + fact.heldout)
    assert str(Path(small.data).parent).encode() not in stored


def test_its_verdict_can_be_certified_and_recomputed(finished: Answer, tmp_path: Path) -> None:
    assert finished.run is not None
    found = verify(certify(finished.run, tmp_path / "bundle", None, None))
    assert found.ok, found.lines()


# -- checkpoints that are given ------------------------------------------------------------------


def test_given_checkpoints_are_measured_and_nothing_is_trained(
    small: TofuConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_tofu(small.data)
    texts = {
        name: [f"{fact.trained[0]} {fact.answer}" for fact in getattr(data, name)]
        for name in ("forget", "retain")
    }
    base, both = Path(small.base), texts["forget"] + texts["retain"]
    full = teach(base, tmp_path / "full", both, 0, steps=10)
    retain = teach(base, tmp_path / "retain", texts["retain"], 0, steps=10)
    mine = teach(base, tmp_path / "mine", texts["retain"], 1, steps=10)
    given = replace(
        small,
        out=str(tmp_path / "run"),
        train=False,
        full=str(full),
        retain=(str(retain),),
        candidates=(("mine", str(mine)),),
        methods=(),
    )
    steps: list[str] = []
    result = tofu(given, RunOptions(on_event=lambda event: steps.append(event.step)))
    assert not [step for step in steps if step.startswith("train")]
    assert result.results is not None
    ((cell, verdict),) = result.results.judged
    assert verdict.reason is Reason.NO_REFERENCE or verdict.reason is not None
    for name, folder in (("injected", full), ("reference", retain), ("mine", mine)):
        state = checkpoint.load(str(folder)).model.state_dict()
        assert cell.models[name].digest == checkpoint.state_digest(state)
