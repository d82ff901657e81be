"""Tables of a run: complete, sayable in one sentence, the same bytes twice, safe to paste."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import RULES, cell_run, matrix_run, write_run

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Estimate, Share, Table, shown
from palimpsest.criteria.axes import chosen
from palimpsest.errors import ScoreError
from palimpsest.report.formats import as_csv, as_latex, as_markdown
from palimpsest.report.tables import PAPER, all_tables, candidates_table

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
        assert table.rows or table.name in ("not-made", "cost"), table.name
    assert {table.name for table in tables} >= set(PAPER)


def test_the_same_run_gives_the_same_bytes(results: RunResults, tmp_path: Path) -> None:
    first, again = all_tables(results), all_tables(read_run(matrix_run(tmp_path / "run")))
    for write in WRITERS:
        assert [write(table) for table in first] == [write(table) for table in again]


def test_a_single_cell_gives_the_same_tables(single: RunResults, results: RunResults) -> None:
    assert list(by_name(single)) == list(by_name(results))


def test_a_run_with_nothing_finished_still_has_tables(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", {}, planned=["gpt2-s--seed0"]))
    assert column(by_name(results)["cells"], "state") == ["waiting"]


def test_a_run_without_references_has_no_paper_edition(tmp_path: Path) -> None:
    tables = by_name(read_run(cell_run(tmp_path / "run", references=0)))
    assert not set(tables) & set(PAPER) and tables["candidates"].rows


def test_missing_cells_stand_in_the_cells_table(results: RunResults) -> None:
    table = by_name(results)["cells"]
    assert "5 of 6 planned" in table.reading and "1 are missing" in table.reading
    assert column(table, "state").count("waiting") == 1 and len(table.rows) == 6


def test_the_candidates_table_holds_the_verdicts_numbers(single: RunResults) -> None:
    table = candidates_table(single)
    (cell,) = single.cells
    assert cell.verdict is not None
    for place, one in enumerate(cell.verdict.findings):
        assert one.comparison is not None
        row = dict(zip(table.columns, table.rows[place]))
        assert row["p"] == one.comparison.p and row["restored"] == one.comparison.restored
        for axis in chosen(RULES):
            assert row[axis.title] == one.comparison.z[axis.name]
            gap = one.comparison.gaps[axis.name]
            assert row[f"gap {axis.title}"] == (None if gap is None else gap.share)
            assert row[f"{axis.title}, {axis.unit}"] == one.values[axis.name]
    outcomes = dict(zip(column(table, "candidate"), column(table, "outcome")))
    assert outcomes["kl_reversion-w12"] == "excluded by the screen"
    assert outcomes["kl_reversion-w3"] == "relearn early too low"
    assert outcomes["task_vector-c1"] == "retain too high"
    assert outcomes["replay-1"] == "indistinguishable"


def test_controls_are_named_from_their_roles(single: RunResults) -> None:
    table = by_name(single)["controls"]
    (cell,) = single.cells
    assert cell.verdict is not None
    assert len(table.rows) == len(cell.verdict.controls)
    names = column(table, "control")
    assert {"router", "suppression", "10 % of injected weights left"} <= set(names)
    assert not any(str(name).startswith("panel:") for name in names)


def test_a_known_label_model_of_any_name_reaches_the_tables(tmp_path: Path) -> None:
    from report_runs import planted

    cell = "qwen2-s--seed0"
    models = planted(cell, 20)
    role = dict(models["panel:router"].role) | {"entry": "brand-new"}
    models["panel:brand-new"] = replace(models["panel:router"], role=role)
    tables = by_name(read_run(write_run(tmp_path / "run", {cell: models})))
    for name, head in (("controls", "control"), ("panel", "model"), ("panel-cells", "model")):
        assert "brand-new" in column(tables[name], head), name
    assert any("brand-new" in head for head in tables["suppression"].columns)


def test_controls_over_all_cells_are_counted(results: RunResults) -> None:
    table = by_name(results)["control-rates"]
    found = dict(zip(column(table, "control"), column(table, "models")))
    assert found["fresh retrainings accepted"] == Share(5, 5)
    assert found["injected models rejected"] == found["router rejected"] == Share(5, 5)
    assert found["25 % of the injected weights left, rejected"] == Share(5, 5)


def test_one_row_per_method_counts_what_is_accepted(results: RunResults) -> None:
    table = by_name(results)["leaderboard"]
    found = dict(zip(column(table, "method"), column(table, "restores in")))
    assert found == {
        "replay": Share(5, 5),
        "kl_reversion": Share(0, 5),
        "task_vector": Share(0, 5),
        "ga": Share(0, 5),
    }
    assert column(table, "method")[0] == "replay"
    assert column(table, "certified in")[0] == Share(5, 5)


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


def test_a_hostile_candidate_name_reaches_no_format_unescaped(single: RunResults) -> None:
    (cell,) = single.cells
    assert cell.verdict is not None
    name = "ga-</td>|${x}"
    findings = (replace(cell.verdict.findings[0], name=name), *cell.verdict.findings[1:])
    bad = replace(cell, verdict=replace(cell.verdict, findings=findings))
    table = candidates_table(replace(single, cells=(bad,)))
    assert name in [row[1] for row in table.rows]
    assert name not in as_markdown(table)
    assert name not in as_latex(table)
