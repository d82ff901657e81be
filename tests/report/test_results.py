"""A run read once: its cells, what is missing, and the same as pandas frames."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.made_runs import compared_cell, matrix_run, paper_run, write_run

from palimpsest import load_run
from palimpsest.errors import InputError
from palimpsest.report.documents import LoadedRun, run_document
from palimpsest.report.results import read_run
from palimpsest.run import cell as stored
from palimpsest.run.files import read_digested
from palimpsest.run.steps import Failure
from palimpsest.run.store import FixedRoster, Run


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    run = matrix_run(tmp_path_factory.mktemp("many") / "run")
    with pytest.warns(UserWarning, match="1 of 4"):
        return load_run(run)


def test_planted_scores_come_back(tmp_path):
    results = read_run(paper_run(tmp_path / "run"))
    assert results.families == ("qwen2", "gpt2") and len(results.cells) == 6
    assert results.methods == ("kl_reversion", "gate_mask", "task_vector", "ga", "npo")
    measures = results.cell("qwen2-s--seed0").evaluation
    assert measures["kl_reversion-w1"].median_forget_delta == pytest.approx(-1.5)
    assert measures["injected"].retain_nll == pytest.approx(1.2)
    assert measures.floor == pytest.approx(1.8)  # two parts of 0.9
    assert measures["ga-w1"].oracle_kl == pytest.approx(3.0)
    sealed = results.cells[0].known_label
    assert sealed is not None and sealed["known-suppression"].median_forget_delta == pytest.approx(
        0.1
    )


def test_what_is_recorded_of_a_cell_is_read_once(many, monkeypatch):
    read: list[Path] = []

    def counted(path: Path) -> dict[str, Any]:
        read.append(path)
        return read_digested(path)

    monkeypatch.setattr(stored, "read_digested", counted)
    read_run(many.path)
    assert [path.parent.name for path in read if path.name == stored.CELL] == [
        entry.id for entry in many.results.cells
    ]


def test_unfinished_and_damaged_cells_are_listed_and_the_others_are_read(tmp_path):
    skipped = ["gpt2-s--seed1", "qwen2-s--seed1"]
    folder = paper_run(tmp_path / "run", skip=skipped)
    failing = Run.open(folder).cell("qwen2-s--seed1")
    failing.folder.mkdir(parents=True)
    failing.fail(Failure("diverged", "training diverged at step 3", "train-injected"))
    file = folder / "cells" / "qwen2-m--seed0" / "items.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    results = read_run(folder)
    assert {cell.id: cell.state for cell in results.missing} == {
        "qwen2-s--seed1": "failed",
        "qwen2-m--seed0": "damaged",
        "gpt2-s--seed1": "waiting",
    }
    assert "step 3" in results.missing[0].reason and len(results.cells) == 3


def test_a_verdict_does_not_depend_on_other_seeds(tmp_path):
    cells = {f"qwen2-s--seed{k}": compared_cell(f"qwen2-s--seed{k}") for k in (0, 1)}
    alone = read_run(write_run(tmp_path / "a", {"qwen2-s--seed0": cells["qwen2-s--seed0"]}))
    together = read_run(write_run(tmp_path / "b", cells))
    assert together.cells[0].verdict == alone.cells[0].verdict


def test_scores_have_a_row_for_every_model_of_every_cell(many):
    frame = many.scores
    assert list(frame.columns[:6]) == ["cell", "base", "family", "seed", "model", "role"]
    for cell in many.results.cells:
        mine = frame[frame["cell"] == cell.id].set_index("model")
        for name in cell.candidates:
            assert mine.loc[name, "retain_nll"] == cell.evaluation[name].retain_nll
            assert mine.loc[name, "method"] == cell.method(name)
    restores = frame[frame["role"] == "candidate"].groupby("method")["clears"].mean()
    assert restores["replay"] > restores["ga"]


def test_verdicts_have_a_row_for_every_cell(many):
    frame = many.verdicts.set_index("cell")
    for cell, verdict in many.results.judged:
        assert frame.loc[cell.id, "status"] == verdict.status
        assert frame.loc[cell.id, "paragraph"] == verdict.paragraph()
    assert {"reason", "p", "worst_axis", "worst_sd", "detection_limit"} <= set(frame.columns)
    assert many.summary() == run_document(many.results)


@pytest.mark.parametrize("name", ["items", "curves"])
def test_items_and_curves_are_the_stored_rows(many, name):
    frame = getattr(many, name)
    for cell in many.results.cells:
        stored = pd.read_parquet(many.path / "cells" / cell.id / f"{name}.parquet")
        mine = frame[frame["cell"] == cell.id].drop(columns="cell").reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, stored, check_dtype=False)


def test_a_table_that_no_cell_has_is_refused(many, single):
    with pytest.raises(InputError, match="answers"):
        _ = many.answers
    with pytest.raises(InputError, match="items"):
        _ = LoadedRun(replace(single, cells=())).items


def test_a_candidate_that_was_replaced_is_named(single):
    def roster(*entries: dict[str, Any]) -> FixedRoster:
        return FixedRoster(tuple({"role": "candidate", **entry} for entry in entries), "")

    def tried(*rosters: FixedRoster) -> tuple[tuple[str, ...], str]:
        results = replace(single, lists=rosters)
        return results.replaced, results.tried()

    ga, npo = {"name": "ga-w3"}, {"name": "npo-w3"}
    assert tried(roster(ga)) == tried(roster(ga), roster(ga, npo)) == ((), "")
    gone, words = tried(roster(ga), roster({"name": "ga-w4"}, npo))
    assert gone == ("ga-w3",) and words.endswith(": ga-w3.")
    edited = tried(roster({**ga, "plugin": "sha256:1"}), roster({**ga, "plugin": "sha256:2"}))
    assert edited[0] == ("ga-w3",) and edited[1].endswith("an earlier version of ga-w3.")
