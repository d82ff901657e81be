"""The list behind `make reliability` names files that exist, and the page names every point."""

import re
from pathlib import Path

from tests.reliability import POINTS, points

HERE = Path(__file__).parent


def test_every_entry_is_a_file_of_tests_and_every_point_has_its_row():
    for file in " ".join(POINTS.values()).split():
        assert "\ndef test_" in (HERE / file).read_text(), file
    page = (HERE.parent / "docs" / "reliability.md").read_text()
    found = re.findall(r"^(\d+)\. \*\*([A-Z][a-z ]+)\.\*\*", page, re.MULTILINE)
    assert [name.lower() for _, name in found] == list(POINTS)
    assert points("certificate/test_forged.py") == ["sealing", "numbers"]
