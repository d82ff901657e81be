"""The calibrated certificate: yes to a retrained model, no to a suppressed one."""

from pathlib import Path

import pytest
from audit_models import RATE, summary, values

from palimpsest.engine.audit_run import audit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("references", [0, 2])
def test_gradient_ascent_is_not_certified_without_three_references(
    retrainings: Path, tmp_path: Path, references: int
) -> None:
    asked = values(retrainings, tmp_path / "run", ("ascent",), references)
    result = audit(**asked, learning_rate=RATE)
    assert result.verdict is not None and result.verdict.reason == "no_reference"
    assert result.exit_code == 3 and not result.verdict.finding("ascent").excluded
    assert result.verdict.nearest == "ascent" and "not a certificate" in result.paragraph


@pytest.mark.parametrize(
    ("references", "rate"), [(19, RATE), (5, None)], ids=["the recipe's dose", "a chosen dose"]
)
def test_a_retrained_model_is_certified_and_the_others_are_not(
    retrainings: Path, tmp_path: Path, references: int, rate: float | None
) -> None:
    candidates = ("retrained", "ascent", "task-vector-1", "nothing-done")
    asked = values(retrainings, tmp_path / "run", candidates, references)
    result = audit(**asked, learning_rate=rate)
    assert result.verdict is not None and result.verdict.candidate == "retrained", result.paragraph
    assert [f.name for f in result.verdict.findings if f.clears] == ["retrained"]
    assert result.exit_code == 0
    document = summary(tmp_path / "run")
    assert document["test"] == ("exact" if references == 19 else "student-t")
    assert document["references"] == references and document["grade"] == "indistinguishable"
    assert document["detection_limit"] <= 0.25
    assert document["dose"]["chosen"] is (rate is None) and document["dose"]["reached"] >= 0.5
    # In the other order it is the same audit: what is stored is read again.
    asked["references"].reverse()
    assert audit(**asked, learning_rate=rate).summary == {**result.summary}


def test_a_weak_dose_is_underpowered_and_says_what_to_try(
    retrainings: Path, tmp_path: Path
) -> None:
    asked = values(retrainings, tmp_path / "run", ("retrained",), 3)
    result = audit(**asked | {"steps": 5}, learning_rate=1e-9)
    assert result.verdict is not None and result.verdict.reason == "underpowered"
    assert result.verdict.because == "dose" and "learning rate" in result.paragraph
