"""Cells that were really trained (tiny, untrained bases) go through every table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from palimpsest.config.plan import Counts, MethodGrid
from palimpsest.config.presets import preset
from palimpsest.engine.matrix import run_cell, start
from palimpsest.engine.second import run_second
from palimpsest.paper.panel import by_challenge, challenge_panel
from palimpsest.paper.second_suite import read_second, second_suite_table
from palimpsest.report.formats import as_csv, as_latex, as_markdown
from palimpsest.report.results import RunResults, read_run
from palimpsest.report.tables import all_tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_path(tiny_checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:  # type: ignore[no-untyped-def]
    plan = preset("demo")
    weights = (("weight", (3.0,)),)
    plan = replace(
        plan,
        models=(str(tiny_checkpoint("qwen2-s")), str(tiny_checkpoint("gpt2-s"))),
        facts=Counts(forget=4, retain=2, probes=8, phrasings=2),
        injection=replace(plan.injection, steps=6, fact_items=2, general_items=2),
        unlearning=replace(plan.unlearning, steps=2, forget_items=2, retain_items=2),
        round_trip=replace(plan.round_trip, steps=3, chunks=3, items=2),
        general=replace(plan.general, train_pieces=8, scored_pieces=2, piece_tokens=12),
        methods=(
            *(MethodGrid(name, weights) for name in ("kl_reversion", "gate_mask", "ga", "npo")),
            MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
        ),
        replication=replace(plan.replication, draws=3, cells="family"),
    )
    out = tmp_path_factory.mktemp("real") / "run"
    for cell in start(plan, out).cells:
        run_cell(out, cell)
    return out


@pytest.fixture(scope="module")
def real(run_path: Path) -> RunResults:
    return read_run(run_path)


def test_every_table_is_written_from_a_trained_run(real: RunResults) -> None:
    assert not real.missing
    for table in all_tables(real):
        for write in (as_csv, as_markdown, as_latex):
            assert "nan" not in write(table).lower().split(",")
    assert {cell.family for cell in real.cells} == set(real.tolerances) == {"qwen2", "gpt2"}


def test_the_logged_residual_ends_where_the_items_say(real: RunResults) -> None:
    for cell in real.cells:
        for name in cell.candidates:
            model = cell.evaluation[name]
            curve = model.need_curve()
            assert curve.residual[-1] == pytest.approx(model.need("residual"), rel=1e-9)


def test_the_mask_is_asked_of_gated_models_only(real: RunResults) -> None:
    made = {cell.family: cell for cell in real.cells}
    assert "gate_mask-w3" in made["qwen2"].candidates
    assert made["gpt2"].not_applicable == ("gate_mask-w3",)


def test_the_router_is_base_on_forget_facts_and_injected_on_probes(real: RunResults) -> None:
    for cell in real.cells:
        assert cell.panel is not None
        router = cell.panel["panel:router"]
        assert np.abs(router.forget_deltas).max() < 1e-6
        assert router.probe_deltas == pytest.approx(cell.panel["injected"].probe_deltas, abs=1e-6)
    assert len(by_challenge(challenge_panel(real))) == 9


def test_frozen_picks_are_made_again_and_compared(
    run_path: Path, real: RunResults, tmp_path: Path
) -> None:
    run_second(run_path, tmp_path / "second", executor="inline")
    table = second_suite_table(real, read_second(tmp_path / "second", real))
    cells = {row["selector"]: row["cells"] for row in table.records()}
    assert set(cells) >= {"residual", "trained-probe"} and cells["trained-probe"] == 2
