"""Whether the instrument can be trusted here is said from what was measured, or not said."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import write_run
from report_runs import cell_run

from palimpsest.criteria.headroom import measure_headroom
from palimpsest.report import trust
from palimpsest.report.trust import MEASURE_HEADROOM, Check, trust_checks
from palimpsest.study.results import RunResults, read_run


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    return read_run(cell_run(tmp_path_factory.mktemp("trust") / "run"))


def of(results: RunResults, word: str) -> Check:
    (found,) = [one for one in trust_checks(results) if word in one.title]
    return found


def test_a_panel_that_gets_everybody_right_holds(cell: RunResults) -> None:
    found = of(cell, "truth is known")
    assert found.state == "holds"
    assert "the whole battery rejects all. It accepts the retrained reference." in found.found


def test_the_panel_names_whom_the_battery_gets_wrong(
    cell: RunResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"panel:router": True, "reference": False}
    rows = [
        replace(row, relearning=wrong.get(row.challenge, row.relearning))
        for row in trust.challenge_panel(cell)
    ]
    monkeypatch.setattr(trust, "challenge_panel", lambda results: rows)
    found = of(cell, "truth is known")
    assert found.state == "with exceptions"
    assert "rejects 7 and accepts the router." in found.found
    assert "rejects the retrained reference: it is stricter" in found.found


def test_a_run_without_panel_says_so(tmp_path: Path) -> None:
    found = of(read_run(cell_run(tmp_path / "run", panel=False)), "truth is known")
    assert found.state == "not measured"


def test_certifiability_is_proposition_1(cell: RunResults) -> None:
    found = of(cell, "Enough probes")
    assert found.state == "holds" and "4,845 ways" in found.found


def test_headroom_is_read_off_the_reference_where_no_evidence_was_asked_with(
    cell: RunResults,
) -> None:
    found = of(cell, "headroom")
    one = cell.cells[0].evaluation
    gap = (one["reference"].forget_deltas - one.injected.forget_deltas).mean()
    assert found.state == "holds" and f"is {gap:.3f} nats behind" in found.found
    assert "not measured here" in found.found and found.measure == MEASURE_HEADROOM


@pytest.mark.parametrize(
    ("evidence", "state", "word"),
    [(3.0, "holds", "counterfactual"), (0.1, "does not hold", "inferable")],
)
def test_headroom_measured_with_evidence_is_shown_with_its_regime(
    cell: RunResults, evidence: float, state: str, word: str
) -> None:
    facts = [f"f{n}" for n in range(6)]
    spread = [0.01 * n for n in range(6)]
    headroom = measure_headroom(
        facts,
        [3.0 + s for s in spread],
        [evidence + s for s in spread],
        [0.1] * 6,
        cell.rules,
    )
    measured = replace(cell, cells=(replace(cell.cells[0], headroom=headroom),))
    found = of(measured, "headroom")
    assert found.state == state and f"The facts are {word}" in found.found
    assert not found.measure


def test_without_reference_and_evidence_the_command_is_given(cell: RunResults) -> None:
    alone = replace(
        cell.cells[0],
        evaluation=replace(
            cell.cells[0].evaluation,
            models={
                name: one
                for name, one in cell.cells[0].evaluation.models.items()
                if not name.startswith("reference")
            },
        ),
    )
    found = of(replace(cell, cells=(alone,)), "headroom")
    assert found.state == "not measured" and found.measure == MEASURE_HEADROOM


def test_noise_without_replicated_references_is_not_made_up(tmp_path: Path) -> None:
    found = of(read_run(cell_run(tmp_path / "run", draws=1)), "Retraining noise")
    assert found.state == "not measured"


def test_a_matrix_counts_cells(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run"))
    assert "rejects all in every cell" in of(results, "truth is known").found
    assert "6 of 6 cells" in of(results, "headroom").found
