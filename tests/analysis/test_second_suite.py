from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from made_run import made_plan, planted, tables, write_run

from palimpsest.analysis import second_suite
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Share
from palimpsest.errors import DriftError
from palimpsest.run.store import Run


def score_second(folder: Path, results: RunResults, plan: dict) -> Path:
    """A second run that scored base, reference and the picks on the second pool."""
    run = Run.create(
        folder, plan, {}, {}, {"commitment": "c"}, cells=[cell.id for cell in results.cells]
    )
    for cell in results.cells:
        models = planted(cell.family, cell.gated, 1)
        chosen = {"base", "reference", *plan["picks"][cell.id].values()}
        models = {name: made for name, made in models.items() if name in chosen}
        # On the second pool the certified pick moved to 0.4 from the reference.
        moved = {"gate_mask-w3": replace(models["gate_mask-w3"], forget=0.5)} if cell.gated else {}
        items, curves = tables(cell.id, models | moved, 16)
        items["pool"] = ["calibration" if one == "evaluation" else one for one in items["pool"]]
        store = run.cell(cell.id)
        store.put("second", {"items": items, "curves": curves})
        store.finish({}, ["second"])
    return folder


def test_picks_are_frozen_from_the_first_pool(results: RunResults) -> None:
    picks = second_suite.frozen_picks(results)
    assert picks["qwen2-s--seed0"] == {
        "recalibrated": "gate_mask-w3",
        "nearest": "npo-w3",
        "residual": "npo-w3",
        "trained-probe": "kl_reversion-w3",
    }
    assert "recalibrated" not in picks["gpt2-s--seed0"]


def test_frozen_picks_are_compared_on_the_second_pool(results: RunResults, tmp_path: Path) -> None:
    folder = score_second(tmp_path / "second", results, second_suite.second_plan(results))
    scores = second_suite.read_second(folder, results)
    table = second_suite.second_suite_table(results, scores)
    rows = {row["selector"]: row for row in table.records()}
    ours = rows["recalibrated"]
    assert ours["cells"] == 4
    assert ours["forget distance"] == pytest.approx(0.4)
    assert ours["trained-probe best's"] == pytest.approx(1.6)
    assert ours["difference"].value == pytest.approx(-1.2)  # type: ignore[union-attr]
    assert (ours["nearer"], ours["within delta_f"]) == (Share(4, 4), Share(4, 4))
    assert ours["excluded by the screen"] == Share(0, 4)
    assert rows["trained-probe"]["excluded by the screen"] == Share(6, 6)


def test_scores_of_other_picks_are_refused(results: RunResults, tmp_path: Path) -> None:
    plan = second_suite.second_plan(results)
    plan["picks"]["qwen2-s--seed0"]["residual"] = "ga-w3"
    folder = score_second(tmp_path / "second", results, plan)
    with pytest.raises(DriftError, match="picks"):
        second_suite.read_second(folder, results)


def test_regret_is_the_distance_lost_by_choosing_and_is_correlated_with_headroom(
    results: RunResults,
) -> None:
    rows = {row["selector"]: row for row in second_suite.regret_table(results).records()}
    picks = second_suite.frozen_picks(results)
    lost, headroom = [], []
    for cell in results.cells:
        if "residual" in picks[cell.id]:
            measures = cell.evaluation
            drawn = [measures[name] for name in measures.references]
            level = np.mean([np.median(model.forget_deltas) for model in drawn])
            away = {n: abs(np.median(measures[n].forget_deltas) - level) for n in cell.candidates}
            lost.append(away[picks[cell.id]["residual"]] - min(away.values()))
            known = np.mean(measures["injected"].forget_deltas)
            headroom.append(np.mean([model.forget_deltas.mean() for model in drawn]) - known)
    mine = rows["residual"]
    assert mine["cells"] == len(lost) >= 4
    assert mine["mean regret, nats"] == pytest.approx(np.mean(lost))
    assert mine["mean headroom, nats"] == pytest.approx(np.mean(headroom))
    rank = scipy.stats.spearmanr(headroom, lost).statistic
    assert mine["Spearman of headroom and regret"].value == pytest.approx(rank)  # type: ignore[union-attr]


def test_nothing_scored_gives_no_comparison(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,))))
    assert not second_suite.second_suite_table(results, {}).rows
