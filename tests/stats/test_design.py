"""The design calculator: the bound of the screen, and what each number of references buys."""

import json

import numpy as np
import pytest

from palimpsest.errors import PlanError
from palimpsest.stats.comparison import bag_scores, rank_counts
from palimpsest.stats.design import design_audit, design_references, detectable_shift


def test_json_has_the_promised_keys():
    answer = json.loads(json.dumps(design_audit(4, 16, 20, references=20).to_json()))
    expected = {"arrangements": 4845, "min_p": 1 / 4845, "required": 400, "certifiable": True}
    expected |= {"min_probes": 8, "min_matched": 6, "references": 20, "reference_test": "rank"}
    assert expected.items() <= answer.items()
    assert 0.5 < answer["power"] < 0.6 and answer["required_references"] == 20


def test_five_references_are_the_fewest_and_twenty_need_no_assumption():
    few = design_references(4)
    assert not few.references_suffice and few.detectable_sd is None
    assert design_references(5).reference_test == design_references(19).reference_test == "normal"
    assert design_references(20).min_p_model == 1 / 21
    with pytest.raises(PlanError) as error:
        design_references(-1)
    assert error.value.key == "references"


def test_a_larger_shift_is_needed_with_fewer_references_and_on_fewer_axes():
    found = {row.references: row for row in design_audit(4, 16, 20).choices}
    assert found[5].detectable_sd > found[9].detectable_sd > found[40].detectable_sd
    assert all(row.detectable_on_three < row.detectable_sd for row in found.values())


def test_the_shift_is_the_one_that_eighty_percent_notice():
    shift = detectable_shift(20, 0.05, 4, 1)
    bags = np.random.default_rng(1).standard_normal((4_000, 21, 4))
    bags[:, 0, 0] += shift
    assert np.mean(rank_counts(bag_scores(bags)) <= 1) == pytest.approx(0.8, abs=0.04)


def test_a_design_that_cannot_decide_says_so():
    lines = " ".join(design_audit(4, 2, 20, references=3).lines())
    assert "cannot exclude" in lines and "nothing is certified" in lines
