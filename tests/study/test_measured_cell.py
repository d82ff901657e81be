"""A cell whose plan asks for measures stores them, and everything else as without them."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.study.test_cell import finished, small_plan

from palimpsest.config.plan import Plan, plan_from_dict
from palimpsest.criteria.catalogue import measures_of
from palimpsest.errors import PlanError
from palimpsest.report.results import read_run
from palimpsest.stats.rules import Rules

SOME = ("leak_at_k", "uds", "masked_fisher", "update_rank", "barrier", "unrelated_tuning")
"""A measure of every kind of pass."""
ROLES = ("base", "injected", "reference", "retraining", "control", "challenge")


def bytes_of(plan: Plan, out: Path, *names: str) -> list[bytes]:
    run = finished(plan, out)
    return [(run.path / "cells" / run.cells[0] / name).read_bytes() for name in names]


def test_measures_are_stored_for_every_known_model_and_change_nothing_else(
    tiny_checkpoint, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    plain = small_plan(tiny_checkpoint("qwen2-s"))
    few = replace(plain.replication, draws=2, retrainings=1)
    panel = replace(plain.panel, models=("suppression", "router"))
    rules = replace(plain.rules, control_shares=(0.5,))
    plain = replace(plain, methods=(), replication=few, panel=panel, rules=rules)
    asked = replace(plain, measures=SOME)
    tables = ("items.parquet", "curves.parquet")
    assert bytes_of(asked, tmp_path / "asked", *tables) == bytes_of(
        plain, tmp_path / "plain", *tables
    )
    (cell,), (usual,) = (read_run(tmp_path / name).cells for name in ("asked", "plain"))
    for name, role in cell.roles.items():
        if role["role"] in ROLES:
            mine, default = cell.evaluation[name].extra, usual.evaluation[name].extra
            assert set(mine) == {*SOME, "reversed"} and set(default) == {"reversed"}, name
            # The pass that only asks otherwise gives what the pass of all criteria gives.
            assert default["reversed"] == pytest.approx(mine["reversed"], abs=1e-4), name


def test_an_optional_axis_brings_its_measure(tiny_checkpoint) -> None:  # type: ignore[no-untyped-def]
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    rules = Rules(axes=("forget", "bits_4"))
    assert measures_of(plan.measures, rules) == ("bits_4",)
    assert measures_of(("probability", "rtt"), rules) == ("probability", "relearn_others", "bits_4")


def test_an_unknown_measure_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"measures: 'bits_5' is unknown; expected all, none or"):
        plan_from_dict({"models": ["pocket/qwen2-s"], "measures": ["bits_5"]})
    assert plan_from_dict({"models": ["pocket/qwen2-s"], "measures": "all"}).measures == "all"
