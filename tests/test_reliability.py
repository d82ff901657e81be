"""The list behind `make reliability` names tests that exist, and the page names every point."""

import re
from pathlib import Path

import pytest

from tests.reliability import POINTS, points

HERE = Path(__file__).parent


@pytest.mark.parametrize("start", [s for _, starts in POINTS.values() for s in starts])
def test_every_entry_leads_to_a_test(start: str) -> None:
    file, _, name = start.partition("::")
    assert re.search(rf"^def {name or 'test_'}", (HERE / file).read_text(), re.MULTILINE)


def test_every_point_has_its_row() -> None:
    page = (HERE.parent / "docs" / "reliability.md").read_text()
    found = re.findall(r"^(\d+)\. \*\*([A-Z][a-z ]+)\.\*\*", page, re.MULTILINE)
    expected = [(str(n), name) for n, (name, _) in POINTS.items()]
    assert [(number, name.lower()) for number, name in found] == expected


def test_a_test_can_stand_for_two_points() -> None:
    assert points("certificate/test_tampering.py::test_every_single_byte") == [4, 10]
    assert points("stats/test_bars.py::test_anything") == []
