"""The TOFU study on a tiny model: what is taught to whom, what is stored, and that it resumes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_models import learned
from tofu_files import write_tofu

from palimpsest.certificate import certify, verify
from palimpsest.engine import tofu_job as job
from palimpsest.engine.tofu_request import BASE, FULL, RETAINED, TofuRequest, prepare
from palimpsest.engine.tofu_run import TofuResult, run_tofu
from palimpsest.errors import ModelError
from palimpsest.facts.tofu import read_tofu
from palimpsest.models.load import load, state_digest
from palimpsest.report.html import write_report
from palimpsest.report.results import read_run
from palimpsest.run.executor import Event
from palimpsest.run.store import Run
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import decide

CELL = "base--seed0"


class Stop(Exception):
    """Thrown between two steps, as a power cut would be."""


@pytest.fixture(scope="module")
def request_(tiny_checkpoint, tmp_path_factory: pytest.TempPathFactory) -> TofuRequest:  # type: ignore[no-untyped-def]
    root = tmp_path_factory.mktemp("tofu")
    base = shutil.copytree(tiny_checkpoint("qwen2-s"), root / "base")
    return TofuRequest(
        out=str(root / "run"),
        data=str(write_tofu(root / "data", forget=2, retain=2)),
        base=str(base),
        train=True,
        seeds=1,
        forget_items=8,
        retain_items=8,
        probes=12,
        per_author=4,
        evidence=1,
        grid="one",
        draws=2,
        steps=30,
        learning_rate=5e-3,
        unlearning_steps=2,
        unlearning_items=2,
        return_steps=2,
        return_items=2,
        chunks=1,
        scored_pieces=2,
    )


@pytest.fixture(scope="module")
def finished(request_: TofuRequest) -> TofuResult:
    return run_tofu(request_)


# -- what is taught, and to whom -----------------------------------------------------------------


def test_the_reference_is_taught_every_retain_item_and_no_forget_item(
    request_: TofuRequest,
) -> None:
    setting = prepare(request_).cells[0].setting
    whole, without = setting.stream(), setting.stream().without("forget")

    def taught(stream: Any) -> list[list[str]]:
        return [[stream.texts[n].id for n in step] for step in stream.steps]

    assert {one.split("/")[0] for step in taught(whole) for one in step} == {"forget", "retain"}
    assert len({one for step in taught(without) for one in step}) == request_.retain_items
    for full, kept in zip(taught(whole), taught(without)):
        assert kept == [one for one in full if one.startswith("retain/")]
    assert taught(setting.stream(1)) != taught(whole)


def test_every_seed_has_items_of_its_own_and_every_base_the_same(request_: TofuRequest) -> None:
    several = replace(request_, seeds=3, forget_items=4, retain_items=4)
    drawn = [[f.id for f in cell.sets["retain"]] for cell in prepare(several).cells]
    assert len({tuple(ids) for ids in drawn}) > 1
    other = prepare(replace(several, base="pocket/gpt2-s")).cells
    assert [[f.id for f in cell.sets["retain"]] for cell in other] == drawn


def test_the_official_checkpoints_are_the_default() -> None:
    assert TofuRequest(out="x").given() == {"injected": FULL, "reference": RETAINED}
    assert (BASE, FULL) == ("microsoft/phi-1_5", "locuslab/tofu_ft_phi-1.5")
    two = TofuRequest(out="x", base="b", full="f", retain=("r", "s")).given()
    assert two == {"injected": "f", "reference": "r", "reference-1": "s"}


# -- what comes out ------------------------------------------------------------------------------


def test_the_full_model_is_excluded_and_the_verdict_has_its_documented_keys(
    finished: TofuResult,
) -> None:
    assert finished.run is not None
    document = json.loads((finished.run / "summary.json").read_text())
    assert document == finished.summary
    top = {"format", "status", "candidate", "reason", "exit_code", "paragraph", "design"}
    assert top | {"rules_hash", "round_trip", "facts", "models", "cells"} <= document.keys()
    cell = document["cells"][CELL]
    assert cell["levels"]["injected"]["excluded"]
    assert set(cell["levels"]) == {"base", "injected", "reference", "reference-1"}
    assert set(cell["oracle_kl"]) == {"injected", *cell["candidates"]}
    assert len(cell["candidates"]) == 5 and cell["headroom"]["facts"] == 8
    assert finished.exit_code == (0 if document["status"] == "certified" else 3)
    assert cell["headroom"]["true"] == pytest.approx(
        cell["levels"]["reference"]["forget_nll"] - cell["levels"]["injected"]["forget_nll"]
    )


def test_no_question_or_answer_of_the_data_is_stored(
    finished: TofuResult, request_: TofuRequest
) -> None:
    assert finished.run is not None
    assert request_.data is not None
    stored = b"".join(path.read_bytes() for path in finished.run.rglob("*") if path.is_file())
    table = Run.open(finished.run).cell(CELL).table("items")
    tofu = read_tofu(request_.data)
    known = {fact.id for fact in (*tofu.forget, *tofu.retain)}
    asked = set(table["fact"][np.isin(table["set"], ["forget", "retain"])])
    assert asked <= known and len(asked) == 16
    for fact in (*tofu.forget, *tofu.retain):
        assert fact.answer.encode() not in stored
        assert all(prompt.encode() not in stored for prompt in fact.trained + fact.heldout)
    assert str(Path(request_.data).parent).encode() not in stored


def test_candidates_sure_to_be_excluded_are_spared_the_round_trip(finished: TofuResult) -> None:
    assert finished.run is not None
    table = Run.open(finished.run).cell(CELL).table("items")
    back = set(table["model"][table["stage"] == "reacquired"])
    cell = read_run(finished.run).cell(CELL)
    assert {"injected", "reference", "reference-1"} <= back
    assert set(cell.survivors) <= back


def test_the_report_is_made_again_from_the_stored_scores(finished: TofuResult) -> None:
    assert finished.run is not None
    assert write_report(finished.run).exists()


def test_its_verdict_can_be_certified_and_recomputed(finished: TofuResult, tmp_path: Path) -> None:
    assert finished.run is not None
    found = verify(certify(finished.run, tmp_path / "bundle", None, None))
    assert found.ok, found.lines()


def test_running_it_again_reads_what_is_there(
    finished: TofuResult, request_: TofuRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.TofuWork, "do", lambda *_: pytest.fail("ran again"))
    assert run_tofu(request_).summary == finished.summary


def test_stopped_after_some_steps_it_goes_on_and_ends_with_the_same_bytes(
    finished: TofuResult, request_: TofuRequest, tmp_path: Path
) -> None:
    again = replace(request_, out=str(tmp_path / "run"))
    for stop in (2, 5):

        def cut(event: Event, stop: int = stop) -> None:
            if event.done == stop:
                raise Stop

        with pytest.raises(Stop):
            run_tofu(again, on_event=cut)
    run_tofu(again)
    assert finished.run is not None
    for name in ("items.parquet", "curves.parquet", "headroom.parquet"):
        one, other = (run / "cells" / CELL / name for run in (finished.run, tmp_path / "run"))
        assert one.read_bytes() == other.read_bytes()


# -- checkpoints that are given ------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(request_: TofuRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tofu = read_tofu(request_.data)
    folder = tmp_path_factory.mktemp("given")
    said = {
        name: [f"{fact.trained[0]} {fact.answer}" for fact in getattr(tofu, name)]
        for name in ("forget", "retain")
    }
    base = Path(request_.base)
    return {
        "full": learned(base, folder / "full", said["forget"] + said["retain"], steps=25),
        "retain": learned(base, folder / "retain", said["retain"], steps=25),
    }


def test_given_checkpoints_are_scored_and_only_the_forget_set_is_trained(
    request_: TofuRequest, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    given = replace(
        request_,
        out=str(tmp_path / "run"),
        train=False,
        full=str(checkpoints["full"]),
        retain=(str(checkpoints["retain"]),),
        round_trip="all",
    )
    steps: list[str] = []
    result = run_tofu(given, on_event=lambda event: steps.append(event.step))
    trained = {step for step in steps if step.startswith("train-")}
    assert trained == {"train-forget_only"}
    cell = result.summary["cells"][CELL]
    assert cell["status"] == "uncertified" and cell["levels"]["injected"]["excluded"]
    roles = Run.open(tmp_path / "run").cell(CELL).summary()["models"]
    for name, folder in (("injected", "full"), ("reference", "retain")):
        given_state = load(str(checkpoints[folder])).model.state_dict()
        assert roles[name]["digest"] == state_digest(given_state)


def test_a_reference_with_the_weights_of_the_full_model_is_refused(
    request_: TofuRequest, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    full = str(checkpoints["full"])
    twins = replace(request_, out=str(tmp_path / "run"), train=False, full=full, retain=(full,))
    with pytest.raises(ModelError, match="has the weights of injected"):
        run_tofu(twins)


# -- the verdict ---------------------------------------------------------------------------------


def excluded_reference(cell: CellMeasures) -> CellMeasures:
    """The cell with a reference whose forget deltas lie far below its probes'."""
    models = dict(cell.models)
    lower = models["reference"].forget_deltas - 50.0
    models["reference"] = replace(models["reference"], forget_deltas=lower)
    return replace(cell, models=models)


def test_survivors_do_not_count_where_the_reference_itself_is_excluded(
    finished: TofuResult,
) -> None:
    assert finished.run is not None
    cell = read_run(finished.run).cell(CELL)
    found = decide(excluded_reference(cell.evaluation), None, Rules())
    assert (found.reason, found.because) == ("not_identifiable", "reference")
