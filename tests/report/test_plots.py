"""Axes, colours and shapes of figures."""

import itertools
import math

import pytest

from palimpsest.errors import ScoreError
from palimpsest.report.palette import KNOWN, MARKS, METHODS, SHAPES, in_order, styles
from palimpsest.report.plots.paper import _columns
from palimpsest.report.plots.spec import Axis, Panel, axis_over, far_spread, jitter, two
from palimpsest.report.plots.svg import colour, shortened


def test_methods_keep_their_style_and_order_whatever_a_run_holds() -> None:
    few, many = styles(["npo", "ga"]), styles(["ga", "npo", "kl_reversion", "my_method"])
    assert few["npo"] == many["npo"]
    assert list(many)[:4] == ["kl_reversion", "ga", "npo", "my_method"]
    assert in_order(["mine", "npo", "gate_mask"]) == ("gate_mask", "npo", "mine")


def test_no_two_methods_share_colour_and_shape() -> None:
    pairs = [(style.light, style.shape) for style in (*METHODS, *KNOWN)]
    assert len(set(pairs)) == len(pairs)
    paper = [style for style in METHODS if style.name in _PAPER]
    assert len({style.shape for style in paper}) == len({style.light for style in paper}) == 5
    assert all(style.shape in SHAPES for style in (*METHODS, *KNOWN))


def test_names_that_are_no_methods_get_marks_of_their_own() -> None:
    found = styles([*(f"mine-{k}" for k in range(MARKS)), *(style.name for style in METHODS)])
    pairs = [(style.light, style.shape) for style in found.values()]
    assert len(found) == MARKS + len(METHODS) + len(KNOWN)
    assert len(set(pairs)) == len(pairs)


_PAPER = ("kl_reversion", "gate_mask", "task_vector", "ga", "npo")


@pytest.mark.parametrize("style", METHODS, ids=lambda style: style.name)
def test_colours_stand_out_from_both_pages(style: object) -> None:
    assert _contrast(style.light, "#ffffff") >= 2.5  # type: ignore[attr-defined]
    assert _contrast(style.dark, "#1d1d1a") >= 4.5  # type: ignore[attr-defined]


def test_an_unknown_method_gets_a_class_that_is_safe_in_a_style_sheet() -> None:
    found = styles(["a{}*/</style>", "ga"])["a{}*/</style>"]
    assert colour(found) == "c-other-0"


def test_a_legend_has_no_more_columns_than_fit() -> None:
    names = ["nothing-done", "task-vector-0.5", "task-vector-1", "gradient-ascent"]
    names += ["never-learned probe", "excluded by the screen"]
    assert [_columns(names, inches) for inches in (9.6, 6.4, 3.2, 0.1)] == [6, 5, 2, 1]
    assert _columns(["a", "b"], 9.6) == 2
    assert _columns(["n" * 300], 3.2) == 1


def test_an_axis_holds_its_values_and_places_them_in_order() -> None:
    for scale, values in (
        ("linear", [-2.0, 0.0, 3.0]),
        ("log", [0.01, 1.0, 50.0]),
        ("asinh", [-30.0, 0.0, 200.0]),
    ):
        axis = axis_over("x", values, scale=scale)
        places = [axis.place(value) for value in values]
        assert places == sorted(places) and places[0] > 0 and places[-1] < 1


@pytest.mark.parametrize("scale", ["linear", "log", "asinh"])
def test_ticks_lie_inside_the_axis_and_apart(scale: str) -> None:
    axis = Axis("x", 0.02 if scale == "log" else -7.0, 400.0, scale)
    ticks = [value for value, _ in axis.ticks(5)]
    assert len(ticks) >= 3 and all(axis.low <= value <= axis.high for value in ticks)
    places = [axis.place(value) for value in ticks]
    assert all(b - a > 0.1 for a, b in itertools.pairwise(places))


def test_equal_values_still_make_an_axis() -> None:
    axis = axis_over("x", [2.0, 2.0])
    assert axis.low < 2.0 < axis.high and axis.ticks(4)


def test_far_values_bend_the_axis_and_near_ones_do_not() -> None:
    assert far_spread([-1.0, 3.0]) == "linear" and far_spread([0.1, 30.0]) == "asinh"


def test_a_note_rounds_and_has_no_minus_zero() -> None:
    assert (two(2.307), two(-0.001), two(-1.5)) == ("2.31", "0.00", "−1.50")


def test_jitter_stays_within_its_row() -> None:
    assert all(abs(jitter(place)) <= 0.3 for place in range(500))
    assert len({round(jitter(place), 6) for place in range(100)}) == 100


def test_long_names_keep_both_ends() -> None:
    short = shortened("a" * 200 + "-w3", 12)
    assert len(short) == 12 and short.endswith("-w3") and "…" in short


def test_a_panel_has_rows_or_an_axis() -> None:
    with pytest.raises(ScoreError, match="either a y axis or rows"):
        Panel("both", axis_over("x", [0.0, 1.0]))


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else math.pow((p + 0.055) / 1.055, 2.4) for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
