"""Measures that a plan names are taken of every model, and a faulty plug-in is named."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from palimpsest.errors import InputError, PlanError
from palimpsest.scoring.measures import build, find_measures, take_all

EXAMPLES = Path(__file__).parents[2] / "examples"


class Echo:
    def __init__(self, cell) -> None:
        pass

    def __call__(self, net):
        return [{"one": net.value}] * net.count


NET = SimpleNamespace(stack=2, count=2, value=1.0)


@pytest.mark.parametrize("name", ["no_such_module:Class", f"{__name__}:nothing", f"{__name__}:NET"])
def test_a_name_that_is_no_class_is_refused(name):
    with pytest.raises(InputError):
        find_measures(name)


@pytest.mark.parametrize("change", [{"count": 1}, {"value": "much"}])
def test_wrong_answers_are_the_plug_ins_fault(change):
    take = build(f"{__name__}:Echo", None)
    assert take(NET) == [{"one": 1.0}, {"one": 1.0}]
    with pytest.raises(PlanError) as error:
        take(SimpleNamespace(**vars(NET) | change))
    assert error.value.key == "measures" and "Echo" in str(error.value)


def test_two_measures_may_not_share_a_name_and_what_is_no_number_is_left_out():
    takes = {"a": lambda net: [{"x": np.nan, "y": 1.0}], "b": lambda net: [{"x": 2.0}]}
    one = SimpleNamespace(stack=1)
    assert take_all(takes, one) == [{"y": 1.0, "x": 2.0}]
    with pytest.raises(PlanError):
        take_all({**takes, "c": lambda net: [{"y": 0.0}]}, one)
