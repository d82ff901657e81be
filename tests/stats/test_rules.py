"""The rules carry the design's values, are plain JSON, and refuse nonsense by key."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

from palimpsest.config.plan import unmeasured_problems
from palimpsest.errors import PlanError
from palimpsest.stats.rules import Rules


def test_rules_are_frozen_plain_json():
    rules = Rules(alpha=0.1, margin=0.2)
    assert Rules(**json.loads(json.dumps(asdict(rules)))) == rules
    with pytest.raises(FrozenInstanceError):
        rules.alpha = 0.2  # type: ignore[misc]
    assert rules.differences() == {"alpha": (0.05, 0.1), "margin": (0.0, 0.2)}


def test_an_axis_leaves_only_because_it_cannot_be_measured():
    assert "reversed" not in Rules().without("reversed").axes
    assert Rules().without("reversed").differences() == {}
    (problem,) = unmeasured_problems(Rules().without("reversed"))
    assert problem.key == "rules.unmeasured_axes"


@pytest.mark.parametrize(
    "wrong",
    [
        {"unmeasured_axes": ("symbols",)},
        {"control_shares": (0.5,)},
        {"control_shares": ()},
    ],
)
def test_nonsense_is_refused_by_key(wrong):
    with pytest.raises(PlanError) as error:
        Rules(**wrong)
    assert error.value.key == f"rules.{next(iter(wrong))}"
