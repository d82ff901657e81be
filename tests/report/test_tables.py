"""Tables of a run: complete, sayable in one sentence, the same bytes twice, safe to paste."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import made_plan, write_run

from palimpsest.errors import ScoreError
from palimpsest.report.formats import Estimate, Share, Table, as_csv, as_latex, as_markdown, shown
from palimpsest.report.tables import all_tables, candidates_table, headlines
from palimpsest.study.results import RunResults, read_run

WRITERS = (as_csv, as_markdown, as_latex)


def by_name(results: RunResults) -> dict[str, Table]:
    return {table.name: table for table in all_tables(results)}


def column(table: Table, name: str) -> list:
    place = table.columns.index(name)
    return [row[place] for row in table.rows]


def test_every_table_has_a_reading_and_a_name_of_its_own(results: RunResults) -> None:
    tables = all_tables(results)
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert table.reading.endswith("."), table.name
        assert table.rows, table.name


def test_the_same_run_gives_the_same_bytes(run_folder: Path, results: RunResults) -> None:
    first, again = all_tables(results), all_tables(read_run(run_folder))
    for write in WRITERS:
        assert [write(table) for table in first] == [write(table) for table in again]


def test_a_single_cell_gives_the_same_tables(single: RunResults, results: RunResults) -> None:
    assert list(by_name(single)) == list(by_name(results))
    for table in all_tables(single):
        for write in WRITERS:
            assert write(table)


def test_a_run_with_nothing_finished_still_has_tables(tmp_path: Path) -> None:
    plan = made_plan(("gpt2-s",), (0,))
    results = read_run(write_run(tmp_path / "run", plan, skip=["gpt2-s--seed0"]))
    tables = by_name(results)
    assert column(tables["cells"], "state") == ["waiting"]
    assert all(one.ours is None for one in headlines(results))


def test_a_run_without_tolerances_says_so(tmp_path: Path) -> None:
    results = read_run(
        write_run(tmp_path / "run", made_plan(("gpt2-s",), (0, 1)), skip=["gpt2-s--seed0"])
    )
    tables = by_name(results)
    assert "no recalibrated bar" in tables["certificate"].reading
    assert "no tolerances" in tables["replication"].reading
    assert column(tables["panel"], "forward battery") == [None] * 9


def test_missing_cells_stand_in_the_cells_table(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["qwen2-m--seed1"]))
    table = by_name(results)["cells"]
    assert "5 of 6 planned" in table.reading and "1 are missing" in table.reading
    assert len(table.rows) == 6
    assert "waiting" in column(table, "state")


def test_counts_in_tables_are_the_planted_ones(results: RunResults) -> None:
    tables = by_name(results)
    certificate = tables["certificate"]
    assert column(certificate, "certified candidates") == [
        Share(20, 56),
        Share(8, 56),
        Share(20, 56),
        Share(8, 56),
    ]
    suppression = tables["suppression"]
    assert column(suppression, "suppression accepted") == [Share(6, 6)] * 3 + [Share(0, 6)]
    assert column(suppression, "npo candidates accepted") == [Share(12, 12)] * 3 + [Share(0, 12)]
    assert column(suppression, "ga candidates accepted") == [Share(12, 12)] + [Share(0, 12)] * 3
    assert column(tables["absolute-bar"], "screen")[:2] == [Share(6, 6), Share(0, 6)]


def test_one_cells_candidates(results: RunResults) -> None:
    table = candidates_table(results, "gpt2-s--seed1")
    assert len(table.rows) == 8
    outcomes = dict(zip(column(table, "candidate"), column(table, "outcome")))
    assert outcomes["npo-w3"] == "relearn veto"
    assert outcomes["kl_reversion-w3"] == "screen; forget equivalence; relearn veto"


def test_headlines_set_the_paper_beside_ours(results: RunResults) -> None:
    rows = {one.key: one for one in headlines(results, {"headroom-spearman": "0.93"})}
    assert rows["certified"].paper == "38/820" and rows["certified"].ours == "20/56"
    assert rows["n4-vacuous"].ours == "0/56"
    assert rows["screen-excluded"].ours == "12/56"
    assert rows["trained-probe-mean"].ours == "-1.500 [-1.500, -1.500]"
    assert rows["panel-router"].ours == "6/6"
    assert rows["panel-suppression-forward"].ours == "6/6 (upper bound 100.0%)"
    assert rows["global-minimum"].ours == "20/56 in 6 cells"
    assert rows["headroom-spearman"].ours == "0.93"
    assert rows["tofu-excluded"].ours is None
    names = {table.name for table in all_tables(results)}
    assert {one.table for one in rows.values() if one.table} <= names


# -- writers --------------------------------------------------------------------------------------

HOSTILE = ["=cmd()", 'a,"b"\nc', "|x| `y` *z*", r"\input{/etc/passwd}%$&#_^~", "<script>", "[1]"]


def hostile() -> Table:
    rows = tuple((name, 0.5, Share(1, 2), Estimate(1.0, 0.5, 1.5)) for name in HOSTILE)
    return Table("hostile", "A_title", "100% of & it.", ("name", "x", "share", "mean"), rows)


def test_csv_is_read_back_by_a_csv_reader() -> None:
    rows = list(csv.reader(io.StringIO(as_csv(hostile()))))
    assert rows[0] == ["name", "x", "share", "share of", "mean", "mean low", "mean high"]
    assert rows[1] == ["'=cmd()", "0.5", "1", "2", "1", "0.5", "1.5"]
    assert rows[2][0] == HOSTILE[1]
    assert {len(row) for row in rows} == {7}


def test_markdown_cannot_be_broken_out_of() -> None:
    text = as_markdown(hostile())
    lines = text.splitlines()[2:]
    assert len(lines) == 2 + len(HOSTILE)
    for line in lines:
        unescaped = line.replace(r"\|", "")
        assert unescaped.count("|") == 5
    assert "<script>" not in text
    assert r"\`y\` \*z\*" in text


def test_latex_specials_are_escaped() -> None:
    text = as_latex(hostile())
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\}\%\$\&\#\_\textasciicircum{}" in text
    assert "{}[1] &" in text
    assert text.count(r"\\") == 1 + len(HOSTILE)
    assert r"\toprule" in text and r"\bottomrule" in text


def test_csv_columns_stay_together_where_a_value_is_missing() -> None:
    table = Table(
        "t", "t", "t.", ("a", "b"), ((Share(1, 2), None), (None, Estimate(1.0, None, None)))
    )
    assert as_csv(table) == "a,a of,b,b low,b high\n1,2,,,\n,,1,,\n"


def test_values_for_a_person() -> None:
    assert shown(None) == "–"
    assert shown(True) == "yes"
    assert shown(-0.0) == "0.000"
    assert shown(0.0002064) == "2.1e-04"
    assert shown(1e-16) == "0.000"
    assert shown(Estimate(-2.82, -3.16, -2.48)) == "-2.820 [-3.160, -2.480]"
    assert shown(Share(12, 45)) == "12/45"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Estimate(1.0, float("nan"), 2.0)])
def test_a_number_that_is_none_is_refused(value: float | Estimate) -> None:
    with pytest.raises(ScoreError, match="table t, column a"):
        Table("t", "t", "t.", ("a",), ((value,),))


def test_a_short_row_is_refused() -> None:
    with pytest.raises(ScoreError, match="1 values for 2 columns"):
        Table("t", "t", "t.", ("a", "b"), ((1,),))


def test_a_hostile_candidate_name_reaches_no_format_unescaped(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,))))
    cell = results.cells[0]
    assert cell.verdict is not None
    name = "ga-</td>|${x}"
    findings = (replace(cell.verdict.findings[0], name=name), *cell.verdict.findings[1:])
    models = dict(cell.evaluation.models) | {name: cell.evaluation[cell.candidates[0]]}
    bad = replace(
        cell,
        verdict=replace(cell.verdict, findings=findings),
        methods=dict(cell.methods) | {name: "ga"},
        evaluation=replace(cell.evaluation, models=models),
    )
    table = candidates_table(replace(results, cells=(bad,)))
    assert name not in as_markdown(table)
    assert name not in as_latex(table)
