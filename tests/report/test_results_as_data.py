"""A run as pandas frames and matplotlib figures, and what a study writes for other programs."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from report_runs import cell_run, matrix_run

from palimpsest import load_run, plots
from palimpsest.errors import InputError
from palimpsest.results import LoadedRun, write_results


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return load_run(cell_run(tmp_path_factory.mktemp("one") / "run"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    run = matrix_run(tmp_path_factory.mktemp("many") / "run")
    with pytest.warns(UserWarning, match="cells are not finished"):
        return load_run(run)


def test_scores_have_a_row_for_every_model_of_every_cell(many: LoadedRun) -> None:
    frame = many.scores
    assert list(frame.columns[:6]) == ["cell", "base", "family", "seed", "model", "role"]
    assert set(frame["cell"]) == {cell.id for cell in many.results.cells}
    for cell in many.results.cells:
        mine = frame[frame["cell"] == cell.id].set_index("model")
        for name in cell.candidates:
            assert mine.loc[name, "retain_nll"] == cell.evaluation[name].retain_nll
            assert mine.loc[name, "method"] == cell.methods[name]
    restores = frame[frame["role"] == "candidate"].groupby("method")["clears"].mean()
    assert restores["replay"] > restores["ga"]


def test_verdicts_have_a_row_for_every_cell(many: LoadedRun) -> None:
    frame = many.verdicts.set_index("cell")
    for cell in many.results.cells:
        assert cell.verdict is not None
        assert frame.loc[cell.id, "status"] == cell.verdict.status
        assert frame.loc[cell.id, "paragraph"] == cell.verdict.paragraph()
    assert {"reason", "p", "worst_axis", "worst_sd", "detection_limit"} <= set(frame.columns)


def test_items_and_curves_are_the_stored_rows(many: LoadedRun) -> None:
    for name in ("items", "curves"):
        frame = getattr(many, name)
        for cell in many.results.cells:
            stored = pd.read_parquet(many.path / "cells" / cell.id / f"{name}.parquet")
            mine = frame[frame["cell"] == cell.id].drop(columns="cell").reset_index(drop=True)
            pd.testing.assert_frame_equal(mine, stored, check_dtype=False)


def test_a_study_writes_its_summary_and_scores(many: LoadedRun) -> None:
    write_results(many.path)
    document = json.loads((many.path / "summary.json").read_text())
    assert document["format"] == "palimpsest-study/1"
    assert set(document["cells"]) == {cell.id for cell in many.results.cells}
    assert document["missing"] and document["planned"] == 6
    stored = pd.read_parquet(many.path / "scores.parquet")
    pd.testing.assert_frame_equal(stored, many.scores, check_dtype=False)
    before = (many.path / "scores.parquet").read_bytes()
    write_results(many.path)
    assert (many.path / "scores.parquet").read_bytes() == before


def test_an_audits_own_summary_is_left_alone(one: LoadedRun) -> None:
    own = '{"format": "palimpsest-audit/2"}'
    (one.path / "summary.json").write_text(own)
    write_results(one.path)
    assert (one.path / "summary.json").read_text() == own


@pytest.mark.parametrize("name", ["retrainings", "forget_deltas", "measures", "relearning"])
def test_figures_of_one_cell(name: str, one: LoadedRun, many: LoadedRun) -> None:
    draw = getattr(plots, name)
    assert isinstance(draw(one.path), Figure)
    with pytest.raises(InputError, match="cell: the run has 5 finished; name one"):
        draw(many)
    assert isinstance(draw(many, many.results.cells[1].id), Figure)


@pytest.mark.parametrize("name", ["acceptance", "axes_by_group", "relearning_by_family"])
def test_figures_of_many_cells(name: str, many: LoadedRun) -> None:
    assert isinstance(getattr(plots, name)(many), Figure)


def test_every_figure_of_the_page_has_a_function(many: LoadedRun, one: LoadedRun) -> None:
    from palimpsest.report import figures
    from palimpsest.report.plots import paper

    for run in (one, many):
        for picture in figures.all_figures(run.results):
            places = (figures, paper)
            drawn = [getattr(at, name) for at in places for name in dir(plots) if hasattr(at, name)]
            names = {made.name for draw in drawn if callable(draw) and (made := _try(draw, run))}
            assert picture.name in names
    assert plots.diagnostic(many).axes


def _try(draw: object, run: LoadedRun) -> object:
    try:
        made = draw(run.results)  # type: ignore[operator]
    except Exception:
        return None
    return made if hasattr(made, "figure") else None


def test_pandas_is_needed_for_frames_alone_and_torch_for_nothing(one: LoadedRun) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('pandas', 'torch'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"import palimpsest\nrun = palimpsest.load_run({str(one.path)!r})\n"
        "assert run.summary()['cells']\n"
        "try:\n    run.scores\nexcept palimpsest.PalimpsestError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'palimpsest-audit[pandas]'" in done.stdout


def test_a_run_without_finished_cells_says_so(tmp_path: Path) -> None:
    run = matrix_run(tmp_path / "run")
    for cell in (run / "cells").iterdir():
        (cell / "cell.json").unlink(missing_ok=True)
    with pytest.warns(UserWarning, match=r"cells are not finished and have no rows"):
        loaded = load_run(run)
    with pytest.raises(InputError, match="no cell is finished"):
        _ = loaded.items
