"""The design calculator answers the bound, the power, and how many probes are needed."""

import json

import numpy as np
import pytest

from palimpsest.criteria.design import design_references, design_screen, detectable_shift
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
    rows = {row.probes: (row, power) for row, power in design_screen(4, 16, 20).table}
    assert rows[16][1] == design_screen(4, 16, 20).power
    assert rows[8][0].certifiable and not rows[7][0].certifiable
    assert rows[7][1] == 0.0


def test_lines_explain_both_outcomes():
    good = "\n".join(design_screen(4, 16, 20).lines())
    assert "C(20, 4) = 4,845" in good and "<- this design" in good and "can exclude" in good
    bad = "\n".join(design_screen(4, 4, 16).lines())
    assert "verdict would be underpowered" in bad and "Use 7 probes" in bad


def test_power_is_against_the_stated_shift():
    assert design_screen(4, 16, 20, shift=4.0).power > design_screen(4, 16, 20, shift=1.0).power


def test_a_stricter_alpha_needs_more_probes():
    assert design_screen(4, 16, 20, alpha=0.01).bound.min_probes > 8


@pytest.mark.parametrize("counts", [(0, 16, 20), (4, 0, 20), (4, 16, 0)])
def test_counts_must_be_positive(counts):
    with pytest.raises(PlanError, match="expected at least 1"):
        design_screen(*counts)


# -- the comparison with retrainings --------------------------------------------------------------


@pytest.mark.parametrize(
    ("references", "test", "suffices"),
    [(0, None, False), (2, None, False), (3, "student-t", True), (18, "student-t", True),
     (19, "exact", True), (30, "exact", True)],
)  # fmt: skip
def test_the_number_of_references_decides_the_test(references, test, suffices):
    answer = json.loads(json.dumps(design_screen(4, 16, 20, references=references).to_json()))
    assert answer["references"] == references and answer["required_references"] == 19
    assert answer["min_p_model"] == 1 / (references + 1)
    assert (answer["reference_test"], answer["references_suffice"]) == (test, suffices)
    assert (answer["detectable_sd"] is not None) == suffices


def test_without_references_the_answer_is_about_the_screen_alone():
    assert "references" not in design_screen(4, 16, 20).to_json()


def test_the_detectable_shift_is_rejected_with_the_stated_power():
    """Of the published powers of one shifted axis in four (K = 19: .53, .81, .99 at 3, 4, 6 sd),
    and by direct simulation of the Student-t region."""
    assert 3.5 < detectable_shift(19, 0.05, 4) < 4.2
    shift = detectable_shift(5, 0.05, 8)
    generator = np.random.default_rng(0)
    bags = generator.standard_normal((4000, 6))
    bags[:, 0] += shift
    from palimpsest.criteria.retraining import student_p_values

    p_values = student_p_values(bags[:, :1], bags[:, 1:, None], ("two",))
    assert np.mean(8 * p_values <= 0.05) == pytest.approx(0.8, abs=0.03)


def test_more_references_detect_less():
    shifts = [design_references(count).detectable_sd for count in (3, 5, 9, 39)]
    assert shifts == sorted(shifts, reverse=True)


def test_lines_say_what_the_references_are_good_for():
    assert "nothing can be certified" in "\n".join(design_screen(4, 16, 20, references=2).lines())
    few = "\n".join(design_screen(4, 16, 20, references=5).lines())
    assert "assumes normally distributed draws" in few
    many = "\n".join(design_screen(4, 16, 20, references=19).lines())
    assert "1/20 = 0.05" in many and "One more reference" in many
    with pytest.raises(PlanError, match="references is -1"):
        design_screen(4, 16, 20, references=-1)
