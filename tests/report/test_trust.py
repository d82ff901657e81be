"""Whether verdicts can be relied on is said from what was measured, or not said."""

from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import audit_run, cell_run, kept, planted, write_run

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.criteria.headroom import measure_headroom
from palimpsest.report.trust import MEASURE_HEADROOM, Check, trust_checks

CELL = "qwen2-s--seed0"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    return read_run(cell_run(tmp_path_factory.mktemp("trust") / "run"))


def of(results: RunResults, word: str) -> Check:
    (found,) = [one for one in trust_checks(results) if word in one.title]
    return found


def test_controls_that_come_out_right_hold(cell: RunResults) -> None:
    found = of(cell, "accepted")
    assert found.state == "holds" and "about 95 % are expected" in found.found
    assert "never among the references: 1 of 1 accepted" in found.found


def test_the_detection_limit_and_who_was_missed_are_named(cell: RunResults) -> None:
    found = of(cell, "keep knowledge")
    assert cell.cells[0].verdict is not None and cell.cells[0].verdict.detection_limit == 0.25
    assert found.state == "holds" and "Detection limit: 25 %" in found.found
    assert "5 % of injected weights left" in found.found


def test_an_audit_that_misses_half_the_weights_does_not_hold(tmp_path: Path) -> None:
    models = planted(CELL, 30)
    weak = {n: kept(0.01, m.role) for n, m in models.items() if n.startswith("control")}
    found = of(read_run(write_run(tmp_path / "run", {CELL: models | weak})), "keep knowledge")
    assert found.state == "does not hold"


def test_without_references_nothing_is_made_up(tmp_path: Path) -> None:
    results = read_run(audit_run(tmp_path / "run", ["mine"], references=0))
    for word in ("keep knowledge", "accepted", "recipe", "Re-acquisition"):
        assert of(results, word).state == "not measured"
    found = of(results, "inferred")
    assert found.state == "not measured" and found.measure == MEASURE_HEADROOM


def test_a_weak_dose_is_named_with_the_steps_to_try(tmp_path: Path) -> None:
    models = {
        n: replace(m, early=2.9, late=2.8) if m.role["role"] == "reference" else m
        for n, m in planted(CELL, 20).items()
    }
    models = {n: replace(m, late=m.late + 0.001 * k) for k, (n, m) in enumerate(models.items())}
    found = of(read_run(write_run(tmp_path / "run", {CELL: models})), "Re-acquisition")
    assert found.state == "does not hold" and "Try " in found.found


def test_another_recipe_is_remarked(tmp_path: Path) -> None:
    models = planted(CELL, 20)
    models["injected"] = replace(models["injected"], retain=3.0)
    found = of(read_run(write_run(tmp_path / "run", {CELL: models})), "recipe")
    assert found.state == "with exceptions" and "(retain)" in found.found


def test_certifiability_is_proposition_1(cell: RunResults) -> None:
    found = of(cell, "Enough probes")
    assert found.state == "holds" and "4,845 ways" in found.found


def test_headroom_is_read_off_the_references_where_no_evidence_was_given(cell: RunResults) -> None:
    found = of(cell, "inferred")
    assert found.state == "holds" and "1 of 1 cell" in found.found


@pytest.mark.parametrize(
    ("evidence", "state", "word"),
    [(3.0, "holds", "counterfactual"), (0.1, "does not hold", "inferable")],
)
def test_headroom_measured_with_evidence_is_shown_with_its_regime(
    cell: RunResults, evidence: float, state: str, word: str
) -> None:
    facts, spread = [f"f{n}" for n in range(6)], [0.01 * n for n in range(6)]
    headroom = measure_headroom(
        *(facts, [3.0 + s for s in spread], [evidence + s for s in spread], [0.1] * 6), cell.rules
    )
    found = of(replace(cell, cells=(replace(cell.cells[0], headroom=headroom),)), "inferred")
    assert found.state == state and f": {word}" in found.found
    assert not found.measure
