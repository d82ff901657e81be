"""The one table: what it refuses, how values are shown, and text that is safe to paste."""

import csv
import io
from pathlib import Path

import pytest

from palimpsest.errors import ScoreError
from palimpsest.report.table import Estimate, Share, Table, as_csv, as_latex, shown

HOSTILE = ["=cmd()", 'a,"b"\nc', "|x| `y` *z*", r"\input{/etc/passwd}%$&#_^~", "<script>", "[1]"]


def hostile() -> Table:
    rows = tuple((name, 0.5, Share(1, 2), Estimate(1.0, 0.5, 1.5)) for name in HOSTILE)
    return Table("hostile", "A_title", "100% of & it.", ("name", "x", "share", "mean"), rows)


def test_csv_is_read_back_by_a_csv_reader():
    rows = list(csv.reader(io.StringIO(as_csv(hostile()))))
    assert rows[0] == ["name", "x", "share", "share of", "mean", "mean low", "mean high"]
    assert rows[1] == ["'=cmd()", "0.5", "1", "2", "1", "0.5", "1.5"]
    assert rows[2][0] == HOSTILE[1]
    assert {len(row) for row in rows} == {7}


def test_latex_specials_are_escaped():
    text = as_latex(hostile())
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\}\%\$\&\#\_\textasciicircum{}" in text
    assert "{}[1] &" in text and text.count(r"\\") == 1 + len(HOSTILE)
    assert r"\toprule" in text and r"\bottomrule" in text


def test_csv_columns_stay_together_where_a_value_is_missing():
    values = ((Share(1, 2), None), (None, Estimate(1.0)))
    assert (
        as_csv(Table("t", "t", "t.", ("a", "b"), values))
        == "a,a of,b,b low,b high\n1,2,,,\n,,1,,\n"
    )
    assert as_csv(Table("t", "t", "t.", ("a",), ())) == "a\n"


def test_values_for_a_person():
    assert shown(None) == "–" and shown(True) == "yes" and shown(-0.0) == "0.000"
    assert shown(0.0002064) == "2.1e-04" and shown(1e-16) == "0.000"
    assert shown(Estimate(-2.82, -3.16, -2.48)) == "-2.820 [-3.160, -2.480]"
    assert (
        shown(Share(12, 45)) == "12/45"
        and shown(Share(0, 0)) == "–"
        and shown(0.25, ".0%") == "25 %"
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), Estimate(1.0, float("nan"), 2.0), Path("x")]
)
def test_what_is_no_value_is_refused(value):
    with pytest.raises(ScoreError, match="column a"):
        Table("t", "t", "t.", ("a",), ((value,),))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Table("t", "t", "t.", ("a", "b"), ((1,),))


def test_an_average_has_limits_only_from_several_cells():
    assert Estimate.average([], []) is None
    assert Estimate.average([1.0, 3.0], ["a", "a"]) == Estimate(2.0)
    several = Estimate.average([1.0, 3.0], ["a", "b"])
    assert several is not None and (several.low, several.high) == (1.0, 3.0)
