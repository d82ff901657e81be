"""The rules carry the design's values, are plain JSON, and refuse nonsense by key."""

import json
from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from palimpsest.criteria.rules import Rules
from palimpsest.errors import PlanError


def test_the_designs_values():
    rules = Rules()
    assert rules.alpha == 0.05
    assert (rules.detection_limit, rules.margin, rules.minimum_references) == (0.25, 0.0, 3)
    assert rules.control_shares == (0.5, 0.25, 0.1, 0.05)
    assert (rules.dose_fraction, rules.recipe_limit) == (0.5, 10.0)
    assert rules.retain_limit == rules.residual_limit == 0.5
    assert rules.adequate_fraction == 0.5
    assert rules.tolerance_percentile == 90
    assert rules.screen_pool == "evaluation" and rules.panel_pool == "audit"


def test_rules_are_frozen_plain_json():
    rules = Rules()
    assert Rules(**json.loads(json.dumps(asdict(rules)))) == rules
    with pytest.raises(FrozenInstanceError):
        rules.alpha = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0.0),
        ("alpha", 1.0),
        ("alpha", float("nan")),
        ("retain_limit", -0.1),
        ("residual_limit", float("inf")),
        ("minimum_draws", 1),
        ("tolerance_percentile", 0.0),
        ("screen_pool", "sealed"),
        ("bootstrap_resamples", 10),
        ("relearn_margin", -1.0),
        ("headroom_minimum_facts", 1),
        ("axes", ()),
        ("axes", ("forget", "forget")),
        ("axes", ("speed",)),
        ("control_shares", (0.5, 1.0)),
        ("control_shares", ()),
        ("minimum_references", 2),
        ("margin", -0.1),
        ("detection_limit", float("nan")),
        ("dose_fraction", 1.0),
        ("recipe_limit", 0.0),
    ],
)
def test_nonsense_names_the_key(key, value):
    with pytest.raises(PlanError, match=rf"rules\.{key}"):
        replace(Rules(), **{key: value})
