"""Figures are plain matplotlib figures; colours, markers and labels keep their promises."""

import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from palimpsest.criteria.axes import AXES
from palimpsest.report.palette import KNOWN, MARKS, METHODS, counterparts, in_order, styles
from palimpsest.report.plots import answer, canvas, matrix
from palimpsest.report.plots.canvas import columns, inline_svg, jitter, shortened, svg_bytes


def bag(count: int = 20) -> list[dict[str, float]]:
    draws = np.random.default_rng(0).normal(size=(count, len(AXES)))
    return [{axis.name: float(z) for axis, z in zip(AXES, row)} for row in draws]


def drawn(**options: object) -> Figure:
    looks = styles(())
    far = {axis.name: -400.0 if axis.name == "forget" else 0.5 for axis in AXES}
    shown = [answer.Shown("injected model", looks["injected"], {"injected": far})]
    focus = ("mine", {axis.name: 0.1 for axis in AXES} | {"retain": 7.5})
    return answer.retrainings(AXES, bag(), shown, focus, worst="retain", **options)  # type: ignore[arg-type]


def test_a_figure_is_a_matplotlib_figure_with_the_same_bytes_twice() -> None:
    first, again = drawn(), drawn()
    assert isinstance(first, Figure)
    assert svg_bytes(first) == svg_bytes(again)
    assert canvas.png_bytes(first) == canvas.png_bytes(again)


def test_the_picture_has_one_row_per_axis_and_names_the_distance() -> None:
    (panel,) = drawn().axes
    assert [tick.get_text() for tick in panel.get_yticklabels()] == [axis.title for axis in AXES]
    bold = [text.get_text() for text in panel.texts if text.get_fontweight() == "bold"]
    assert bold == ["+7.5 sd"]


def test_a_model_far_away_is_an_arrow_at_the_edge() -> None:
    figure = drawn()
    (panel,) = figure.axes
    arrows = [line for line in panel.lines if line.get_marker() == "<"]
    assert len(arrows) == 1
    low, _ = panel.get_xlim()
    assert low < arrows[0].get_xdata()[0] < -canvas.LINEAR
    assert "forget −400 sd" in inline_svg(figure, "f", "label")


@pytest.mark.parametrize("narrow", [False, True])
def test_points_have_names_and_no_style_attributes(narrow: bool) -> None:
    source = str(inline_svg(drawn(narrow=narrow), "f", "label"))
    assert "style" not in source and "<metadata" not in source
    names = re.findall(r"<title>([^<]*)</title>", source)
    assert len([name for name in names if name.startswith("mine: ")]) == len(AXES)


def test_an_axis_that_a_model_has_not_is_left_out() -> None:
    focus = ("mine", {"forget": 0.0})
    (panel,) = answer.retrainings(AXES, bag(), [], focus).axes
    assert [t.get_text() for t in panel.texts].count("not measured") == len(AXES) - 1


def test_acceptance_counts_what_was_accepted() -> None:
    looks = styles(["ga"])
    models = [matrix.Judged(f"ga in {k}", {"forget": float(k)}, k < 2) for k in range(5)]
    (panel,) = matrix.acceptance({"ga": (looks["ga"], models)}, 0.05).axes
    assert "2 of 5" in [text.get_text() for text in panel.texts]


@pytest.mark.parametrize("which", ["x", "y"])
def test_a_bent_axis_has_plain_numbers(which: str) -> None:
    figure, (panel,) = canvas.sheet(1, 1, (4.0, 3.0))
    panel.plot([0.0, 900.0], [0.0, 900.0])
    canvas.spread(panel, [0.0, 900.0], which)
    drawn_svg = svg_bytes(figure).decode()
    assert "mathdefault" not in drawn_svg and ">100<" in drawn_svg


def test_methods_keep_their_style_and_order_whatever_a_run_holds() -> None:
    few, many = styles(["npo", "ga"]), styles(["ga", "npo", "kl_reversion", "my_method"])
    assert few["npo"] == many["npo"]
    assert list(many)[:4] == ["kl_reversion", "ga", "npo", "my_method"]
    assert in_order(["mine", "npo", "gate_mask"]) == ("gate_mask", "npo", "mine")


def test_no_two_methods_share_colour_and_marker() -> None:
    pairs = [(style.light, style.marker) for style in METHODS]
    assert len(set(pairs)) == len(pairs)


def test_names_that_are_no_methods_get_marks_of_their_own() -> None:
    found = styles([*(f"mine-{k}" for k in range(MARKS)), *(style.name for style in METHODS)])
    mine = [(found[f"mine-{k}"].light, found[f"mine-{k}"].marker) for k in range(MARKS)]
    assert len(set(mine)) == MARKS
    assert not set(mine) & {(style.light, style.marker) for style in METHODS}


@pytest.mark.parametrize("style", [*METHODS, *KNOWN], ids=lambda style: style.name)
def test_colours_stand_out_from_both_pages(style: object) -> None:
    assert _contrast(style.light, "#ffffff") >= 2.5  # type: ignore[attr-defined]
    assert _contrast(style.dark, "#1d1d1a") >= 4.5  # type: ignore[attr-defined]


def test_every_colour_of_a_style_has_a_dark_counterpart() -> None:
    found = styles([f"mine-{k}" for k in range(40)])
    assert {style.light for style in found.values()} <= set(counterparts())


def test_a_legend_has_no_more_columns_than_fit() -> None:
    names = ["nothing-done", "task-vector-0.5", "never-learned probes"]
    assert [columns(names, inches) for inches in (9.6, 3.6, 0.1)] == [3, 2, 1]
    assert columns(["n" * 48], 3.2) == 1


def test_jitter_stays_within_its_row() -> None:
    assert all(abs(jitter(place)) <= 0.3 for place in range(500))
    assert len({round(jitter(place), 6) for place in range(100)}) == 100


def test_long_names_keep_both_ends() -> None:
    short = shortened("a" * 200 + "-w3", 12)
    assert len(short) == 12 and short.endswith("-w3") and "…" in short


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else math.pow((p + 0.055) / 1.055, 2.4) for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
