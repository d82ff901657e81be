"""The share axis, its bound, and the scale: against plain loops, and on models of known share."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats
from tests.stats.made_cell import cell, model, retrained

from palimpsest.stats.axes import AXES
from palimpsest.stats.controls import reference_bag
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.rules import Rules
from palimpsest.stats.share import (
    BORROWED_SPREAD,
    KNOWLEDGE,
    DistanceScale,
    Ruler,
    distance_scale,
    make_ruler,
)

RULES = Rules()


def ruler_of(measures: CellMeasures) -> Ruler:
    found = make_ruler(measures, measures.references)
    assert found is not None
    return found


def scale_of(measures: CellMeasures) -> DistanceScale:
    bag = reference_bag(measures, RULES)
    found = distance_scale(measures, bag.names, bag.values, bag.axes)
    assert found is not None
    return found


def test_the_axes_of_knowledge():
    names = ["forget", "weakest", "relearn_early", "relearn_mid", "trained_mid", "reversed"]
    assert [axis.name for axis in KNOWLEDGE] == names


def test_share_and_bound_by_hand():
    """Plain loops over the formulas of the module."""
    measures = cell(6, retrained())
    names, candidate = measures.references, measures["retrained"]
    ruler = ruler_of(measures)
    readings, spreads = [], {name: [] for name in names}
    for axis in KNOWLEDGE:
        values = {name: axis.read(measures[name]) for name in names}
        mean = statistics.fmean(values.values())
        moved = statistics.fmean(
            axis.read(measures[f"control-10-{n}"]) - values[f"reference-{n}"] for n in range(1, 6)
        )
        assert abs(moved) >= statistics.stdev(values.values())  # else the axis is left out
        readings.append(0.1 * (axis.read(candidate) - mean) / moved)
        for name in names:
            spreads[name].append(0.1 * (values[name] - mean) / moved)
    share = statistics.fmean(readings)
    sd = statistics.stdev(statistics.fmean(own) for own in spreads.values())
    width = stats.t.ppf(0.95, 5) * sd * math.sqrt(1 + 1 / 6)
    assert (ruler.spread, ruler.width) == (pytest.approx(sd), pytest.approx(width))
    left = ruler.left(candidate)
    assert left.share == pytest.approx(share, abs=1e-12)  # near 0, where reading and share agree
    assert left.bound == pytest.approx(max(0.0, share + width))
    assert not ruler.borrowed and ruler.references == 6


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.25, 0.5])
def test_models_of_known_share_are_read_and_bounded(share):
    """200 models: unbiased to a fifth of a hundredth part of a weight; the bound holds in 95 %."""
    read, held = [], 0
    for seed in range(40):
        ruler = ruler_of(cell(9, seed=seed))
        for draw in range(5):
            left = ruler.left(model("m", np.random.default_rng(10_000 + 10 * seed + draw), share))
            read.append(left.share)
            held += left.bound >= share
    assert np.mean(read) == pytest.approx(share, abs=0.01 + 0.05 * share)
    assert held >= 180


def test_a_model_that_forgot_more_has_a_negative_share_and_a_bound_of_0():
    left = ruler_of(cell(9)).left(model("m", np.random.default_rng(1), -0.4))
    assert left.share < -0.2 and left.bound == 0.0 and left.overshoots


def test_one_reference_borrows_the_spread_of_others():
    ruler = ruler_of(cell(1))
    assert ruler.borrowed and ruler.spread == BORROWED_SPREAD
    assert ruler.width == pytest.approx(stats.norm.ppf(0.95) * BORROWED_SPREAD * math.sqrt(2))
    assert make_ruler(cell(0), ()) is None


def test_beyond_a_tenth_shares_follow_the_larger_mixtures():
    """Where 25 % move 6.6 times as far as 10 %, that reading is 25 % and not 66."""

    def bent(share: float) -> float:
        return share if share <= 0.1 else 0.1 + (share - 0.1) * 3.7

    measures = cell(9)
    generator = np.random.default_rng(3)
    moved = {
        name: model(name, generator, bent(record.share))
        for name, record in measures.records.items()
        if record.share in (0.25, 0.5)
    } | {"injected": model("injected", generator, 3.0)}
    measures = CellMeasures(
        measures.pool, measures.forget_facts, measures.probe_facts,
        dict(measures.models) | moved, measures.records,
    )  # fmt: skip
    left = ruler_of(measures).left(model("m", np.random.default_rng(4), bent(0.25)))
    assert left.share == pytest.approx(0.25, abs=0.02)
    assert left.bound >= left.share + ruler_of(measures).width


def test_an_axis_that_was_not_measured_gives_no_share():
    measures = cell(9)
    assert ruler_of(measures).left(model("m", extra={})) is None
    bag = reference_bag(measures, RULES)
    assert scale_of(measures).place(np.full(len(bag.axes), math.nan)) is None


def test_the_scale_puts_mixtures_where_they_are_and_retrainings_at_0():
    found = {share: [] for share in (0.0, 0.1, 0.18, 0.25, 1.5)}
    inside = 0
    for seed in range(30):
        measures = cell(9, seed=seed)
        scale, axes = scale_of(measures), reference_bag(measures, RULES).axes
        for share, places in found.items():
            made = model("m", np.random.default_rng(500 + seed), share)
            values = np.array([axis.read(made) for axis in axes])
            place = scale.place(values)
            places.append(place.share)
            assert place.low <= place.share <= place.high and place.high >= 0.05
            inside += share in (0.1, 0.18, 0.25) and place.low <= share <= place.high
    medians = {share: float(np.median(places)) for share, places in found.items()}
    assert medians[0.0] < 0.04 and math.isinf(medians[1.5])
    for share in (0.1, 0.18, 0.25):
        assert medians[share] == pytest.approx(share, abs=0.03)
    assert inside >= 72  # 90 intervals at 90 %


def test_the_scale_has_no_direction():
    """A model that forgot more than a retraining lies as far away as one that keeps as much."""
    measures = cell(20)
    axes = reference_bag(measures, RULES).axes
    less, more = (
        scale_of(measures).place(np.array([a.read(model("m", share=s)) for a in axes]))
        for s in (0.25, -0.25)
    )
    assert more.share == pytest.approx(less.share, rel=0.35)
    assert len(axes) == len(AXES)
