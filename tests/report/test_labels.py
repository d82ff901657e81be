"""One plain label per model, by one rule, the same wherever it stands."""

import json
import re
from dataclasses import replace

import pytest
from tests.made_runs import PLACE, Made, compared_cell, write_run

from palimpsest.report.documents import run_document, score_rows
from palimpsest.report.leaderboard import leaderboard_table
from palimpsest.report.page import write_report
from palimpsest.report.results import read_run
from palimpsest.report.tables import run_tables
from palimpsest.report.terminal import study_lines
from palimpsest.stats.axes import axis
from palimpsest.stats.controls import ControlKind
from palimpsest.stats.models import Model, Role
from palimpsest.stats.verdict import label_of

KINDS: dict[str, tuple[Made, str]] = {
    "retraining": (replace(PLACE, retain=1.22, forget=0.11), "restored"),
    "suppression": (replace(PLACE, early=0.9, late=0.6), "suppressed"),
    "router": (replace(PLACE, residual=0.0, early=2.9, late=2.2), "suppressed"),
    "embedding": (replace(PLACE, forget=4.0, retain=8.0, early=0.9), "suppressed and damaged"),
    "interpolation-50": (replace(PLACE, forget=-0.95, early=1.4, late=1.05), "suppressed"),
    "interpolation-25": (replace(PLACE, forget=-0.42, early=1.75, late=1.3), "suppressed"),
    "ascent": (replace(PLACE, forget=6.0, early=4.0, late=3.0), "over-forgotten"),
    "ascent-on-all": (replace(PLACE, forget=6.0, general=3.0, early=4.0), "over-forgotten and "
                      "damaged"),
    "lost-facts": (replace(PLACE, retain=3.0), "damaged"),
}  # fmt: skip
"""A model of every kind with the label that its measures call for."""


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """A cell whose candidates are the kinds above, each of a method of its own."""
    cell = "qwen2-s--seed0"
    models = {
        name: made
        for name, made in compared_cell(cell, fresh=3).items()
        if made.model.role is not Role.CANDIDATE
    }
    for name, (made, _) in KINDS.items():
        models[name] = replace(made, model=Model("", Role.CANDIDATE, method=name, aim="restores"))
    return read_run(write_run(tmp_path_factory.mktemp("labels") / "run", {cell: models}))


def test_every_kind_of_model_has_the_label_its_measures_call_for(labeled):
    verdict = labeled.judged[0][1]
    assert {f.name: f.label for f in verdict.findings} == {
        n: label for n, (_, label) in KINDS.items()
    }
    for control in verdict.controls:
        if control.kind is ControlKind.RETRAINING and not control.rejected:
            assert label_of(control.comparison) == "restored"


def test_the_label_is_the_same_wherever_it_stands(labeled):
    cell, verdict = labeled.judged[0]
    said = json.loads(json.dumps(run_document(labeled)))["cells"][cell.id]
    scores = {row["model"]: row for row in score_rows(labeled)}
    table = {row["candidate"]: row for row in run_tables(labeled)["candidates"].records()}
    board = {row["method"]: row for row in leaderboard_table({"one": labeled}).records()}
    page, terminal = (
        write_report(labeled).read_text(),
        "\n".join(study_lines(labeled, explain=True)),
    )
    rows = dict(re.findall(r'<th scope="row">([\w-]+).*?</th>.*?class="label \w+">(.*?)<', page))
    for finding in verdict.findings:
        label, name = finding.label, finding.name
        assert said["candidates"][name]["label"] == scores[name]["label"] == label
        assert table[name]["label"] == board[name]["most frequent label"] == rows[name] == label
        assert re.search(rf"^ *\d+  {name} +{label} ", terminal, re.M)
        for gap in finding.failing:  # every axis in words, not only the worst
            words = axis(gap.axis).side(gap.offset).words
            assert words in said["candidates"][name]["sentence"] and words in table[name]["why"]
    assert {c["label"] for c in said["controls"] if c["kind"] == "injected"} == {"suppressed"}
    assert scores["injected"]["label"] == "suppressed" and scores["base"]["label"] == ""


def test_an_audit_that_could_not_certify_restores_nobody(labeled):
    passing = labeled.judged[0][1].finding("retraining").comparison
    rejected = labeled.judged[0][1].finding("ascent").comparison
    assert label_of(passing) == "restored" and label_of(passing, blocked=True) == "not told apart"
    assert label_of(passing, excluded=True) == "suppressed" and label_of(None) == "not compared"
    assert label_of(rejected, blocked=True) == "over-forgotten"
    assert passing is not None
    unequal = replace(passing, accepted=False)
    assert label_of(unequal) == "not told apart"  # not rejected, and not shown equivalent
    assert label_of(replace(unequal, missing=("forget",))) == "not compared"
