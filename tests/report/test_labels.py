"""One plain label per model, by one rule, the same wherever it stands."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_runs import PLACE, Made, compared_cell, write_run
from tests.shared_runs import made_once

from palimpsest.report.documents import run_document, score_rows
from palimpsest.report.leaderboard import leaderboard_table
from palimpsest.report.page import write_report
from palimpsest.report.results import RunResults, read_run
from palimpsest.report.tables import run_tables
from palimpsest.report.terminal import study_lines
from palimpsest.stats.axes import Sign, axis
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
def labeled(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
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


def test_every_kind_of_model_has_the_label_its_measures_call_for(labeled: RunResults) -> None:
    verdict = labeled.judged[0][1]
    assert {f.name: f.label for f in verdict.findings} == {
        n: label for n, (_, label) in KINDS.items()
    }
    for control in verdict.controls:
        if control.kind is ControlKind.RETRAINING and not control.rejected:
            assert label_of(control.comparison) == "restored"


def test_the_label_is_the_same_wherever_it_stands(labeled: RunResults) -> None:
    cell, verdict = labeled.judged[0]
    said = json.loads(json.dumps(run_document(labeled)))["cells"][cell.id]
    scores = {row["model"]: row for row in score_rows(labeled)}
    table = {row["candidate"]: row for row in run_tables(labeled)["candidates"].records()}
    board = {row["method"]: row for row in leaderboard_table({"one": labeled}).records()}
    page, terminal = write_report(labeled).read_text(), "\n".join(study_lines(labeled))
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


def test_what_a_label_says_comes_before_what_lies_further_out(labeled: RunResults) -> None:
    finding = labeled.judged[0][1].finding("embedding")
    assert axis(finding.failing[0].axis).side(finding.failing[0].offset).sign is not Sign.KNOWS
    sentence = run_document(labeled)["cells"]["qwen2-s--seed0"]["candidates"]["embedding"][
        "sentence"
    ]
    knows, first = axis("relearn_early").low.words, axis(finding.failing[0].axis)
    assert sentence.index(knows) < sentence.index(first.side(finding.failing[0].offset).words)


def test_an_audit_that_could_not_certify_restores_nobody(labeled: RunResults) -> None:
    passing = labeled.judged[0][1].finding("retraining").comparison
    rejected = labeled.judged[0][1].finding("ascent").comparison
    assert label_of(passing) == "restored" and label_of(passing, blocked=True) == "not told apart"
    assert label_of(passing, excluded=True) == "suppressed" and label_of(None) == "not compared"
    assert label_of(rejected, blocked=True) == "over-forgotten"
    assert passing is not None
    unequal = replace(passing, accepted=False)
    assert label_of(unequal) == "not told apart"  # not rejected, and not shown equivalent
    assert label_of(replace(unequal, missing=("forget",))) == "not compared"


@pytest.mark.slow
def test_known_label_models_that_were_really_built_have_their_labels(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def make(out: Path) -> None:
        import palimpsest
        from palimpsest.config.presets import preset
        from palimpsest.config.sections import MethodGrid, Replication

        methods = (MethodGrid("ga", (("weight", (3.0,)),)),)
        methods += (MethodGrid("task_vector", (("coefficient", (2.0,)),)),)
        plan = replace(preset("demo"), methods=methods, replication=Replication(7, 2))
        palimpsest.study(replace(plan, rules=replace(plan.rules, control_shares=(0.25,))), out)

    results = read_run(made_once(tmp_path_factory, "labeled-study", make))
    rows = {row["model"]: row for row in score_rows(results)}
    kept = {name: row["label"] for name, row in rows.items() if row["role"] == "known_label"}
    assert len(kept) == 6
    for name in ("router", "suppression", "interpolation-25", "interpolation-50"):
        assert kept[f"known-{name}"].startswith("suppressed")
    # Zeroed embeddings leave nothing that any axis could read as knowledge.
    assert kept["known-embedding"] == "over-forgotten and damaged"
    assert "damaged" in rows["ga-w3"]["label"]
    assert rows["task_vector-c2"]["label"] == "over-forgotten and damaged"
    assert {rows[f"retraining-{n}"]["label"] for n in (1, 2)} == {"restored"}
