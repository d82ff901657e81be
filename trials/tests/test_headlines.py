"""Every figure that the paper states is computed from a study."""

from tests.made_runs import paper_run, read_study

from palimpsest_trials import headlines


def test_every_figure_of_the_paper_is_computed_from_a_study(tmp_path):
    study = read_study(paper_run(tmp_path / "run"))
    elsewhere = {"headroom-spearman", "headroom-error", "tofu-excluded", "tofu-diagnostic"}
    ours = headlines.ours(study)
    assert {row["key"] for row in headlines.paper_figures()} - set(ours) == elsewhere
    assert ours["screen-excluded"] == "12/56" and ours["panel-injected"] == "6/6"
    assert ours["certified"] == "20/56" and ours["with-veto"] == "8/56 in 4 cells"
    assert ours["selection-recalibrated"].startswith("0.050, ")
