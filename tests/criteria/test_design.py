"""The design calculator answers the bound, the power, and how many probes are needed."""

import json

import pytest

from palimpsest.criteria.design import design_screen
from palimpsest.errors import PlanError


def test_json_has_the_promised_keys():
    answer = json.loads(json.dumps(design_screen(4, 16, 20).to_json()))
    assert answer["arrangements"] == 4845
    assert answer["min_p"] == 1 / 4845
    assert answer["required"] == 400
    assert answer["certifiable"] is True
    assert answer["min_probes"] == 8
    assert answer["min_matched"] == 6
    assert 0.5 < answer["power"] < 0.6
    assert answer["power_shift"] == 2.0


def test_table_contains_the_design_and_the_turning_point():
    rows = {row.probes: row for row in design_screen(4, 16, 20).table}
    assert rows[16].power == design_screen(4, 16, 20).power
    assert rows[8].certifiable and not rows[7].certifiable
    assert rows[7].power == 0.0


def test_lines_explain_both_outcomes():
    good = "\n".join(design_screen(4, 16, 20).lines())
    assert "C(20, 4) = 4,845" in good and "<- this design" in good and "can exclude" in good
    bad = "\n".join(design_screen(4, 4, 16).lines())
    assert "abstain as underpowered" in bad and "Use 7 probes" in bad


def test_power_is_against_the_stated_shift():
    assert design_screen(4, 16, 20, shift=4.0).power > design_screen(4, 16, 20, shift=1.0).power


def test_a_stricter_alpha_needs_more_probes():
    assert design_screen(4, 16, 20, alpha=0.01).min_probes > 8


@pytest.mark.parametrize("counts", [(0, 16, 20), (4, 0, 20), (4, 16, 0)])
def test_counts_must_be_positive(counts):
    with pytest.raises(PlanError, match="expected at least 1"):
        design_screen(*counts)
