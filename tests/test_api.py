"""The public functions as a notebook uses them: what they take, refuse and show."""

import ast
import inspect
import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest import plots
from palimpsest.config.load import changed
from palimpsest.errors import DamagedArtifact, InputError, PlanError
from palimpsest.report.leaderboard import compare_runs
from palimpsest.stats.verdict import decide
from tests.shared_runs import tiny_plan

QUICK = Path(__file__).parents[1] / "examples" / "quick"
MODEL = "pocket/qwen2-s"
AUDIT: dict[str, Any] = {"base": MODEL, "injected": "i", "candidates": {"a": "b"}, "out": "o"}
AUDIT |= {"forget": "f.jsonl", "retain": "r.jsonl"}
CALLS = {
    palimpsest.audit: AUDIT,
    palimpsest.study: {"plan": "demo", "out": "o"},
    palimpsest.retrain: {"base": MODEL, "out": "o", "train": "t.jsonl"},
    palimpsest.unlearn: {"injected": "i", "base": MODEL, "out": "o", "train": "t.jsonl"},
    palimpsest.load_run: {},
    palimpsest.read_facts: {},
    palimpsest.logs: {},
    palimpsest.certify: {},
    palimpsest.verify: {},
    plots.retrainings: {},
    palimpsest.Plan.preset: {},
}
WRONG = [
    *((palimpsest.audit, key, 3) for key in ("base", "forget", "out", "general", "exclude")),
    (palimpsest.audit, "candidates", ["unlearned"]),
    (palimpsest.audit, "references", "retrained"),
    (palimpsest.audit, "probes", 0),
    (palimpsest.audit, "learning_rate", "fast"),
    (palimpsest.study, "plan", ["demo"]),
    *((palimpsest.study, key, 3) for key in ("out", "pool", "reuse", "progress")),
    (palimpsest.study, "workers", "2"),
    (palimpsest.study, "executor", "threads"),
    (palimpsest.retrain, "draws", "many"),
    (palimpsest.unlearn, "knobs", 3),
    (palimpsest.unlearn, "method", 3),
    (palimpsest.load_run, "path", 3),
    (palimpsest.read_facts, "path", 3),
    (palimpsest.logs, "paths", 3),
    (palimpsest.certify, "run_path", 3),
    (palimpsest.verify, "bundle_path", 3),
    (plots.retrainings, "run", 3),
]


@pytest.mark.parametrize(("function", "key", "value"), WRONG)
def test_a_wrong_type_is_refused_by_the_name_of_its_argument(
    function, key, value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError) as refused:
        function(**CALLS[function] | {key: value})
    assert refused.value.key == key and str(refused.value).startswith(f"{key}: ")
    assert not list(tmp_path.iterdir())  # nothing was written


@pytest.mark.parametrize("wrong", [{"seeds": 100}, {"seeds": 100, "methods": "npo"}])
def test_every_wrong_key_of_a_plan_is_named_wherever_it_comes_from(wrong, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("preset: demo\n" + "".join(f"{k}: {v}\n" for k, v in wrong.items()))
    made: list[Any] = [palimpsest.Plan(**wrong), {"preset": "demo"} | wrong, file, str(file)]
    for plan in made:
        with pytest.raises(PlanError) as refused:
            palimpsest.study(plan, tmp_path / "run")
        assert all(re.search(rf"^{key}: ", str(refused.value), re.MULTILINE) for key in wrong)
    with pytest.raises(PlanError):
        palimpsest.Plan.preset("demo", **wrong)


def test_a_study_takes_a_plan_a_preset_a_mapping_and_a_file(tmp_path, monkeypatch, tiny_study):
    seen = []
    monkeypatch.setattr(palimpsest.api, "run_task", lambda task, options: seen.append(task.config))
    file = tmp_path / "plan.yaml"
    file.write_text("preset: demo\nseeds: [3]\n")
    wanted = palimpsest.Plan.preset("demo", seeds=[3])
    for plan in (wanted, {"preset": "demo", "seeds": range(3, 4)}, file, str(file), "demo"):
        palimpsest.study(plan, tmp_path / "run")
    assert seen == [wanted] * 4 + [palimpsest.Plan.preset("demo")]


def test_unlearn_takes_an_object_with_its_knobs_set(monkeypatch):
    from palimpsest.cell import make_models
    from palimpsest.methods.npo import NPO

    monkeypatch.setattr(make_models, "make_models", lambda task, options: task.methods)
    given = CALLS[palimpsest.unlearn]
    (method,) = palimpsest.unlearn(**given, method=NPO(weight=3.0))
    assert method == NPO(weight=3.0)
    several = palimpsest.unlearn(**given, method=NPO, knobs={"weight": [3.0, 12.0], "beta": 0.5})
    assert several == (NPO(3.0, 0.5), NPO(12.0, 0.5))


def shown(value: Any) -> str:
    text = repr(value)
    assert len(text) < 25 * 80 and "\n" not in text, type(value)
    return text


def test_what_functions_return_fits_a_screen(tiny_study, tiny_audit, tmp_path):
    run = palimpsest.load_run(tiny_study)
    results = run.results
    (cell,), ((_, verdict),) = results.cells, results.judged
    answer = palimpsest.Answer(run.summary(), results, verdict)
    bundle = palimpsest.certify(tiny_study, tmp_path / "bundle.zip")
    values = [run, results, answer, cell, cell.evaluation, verdict, results.rules, tiny_plan()]
    values += [
        *verdict.findings,
        palimpsest.load(MODEL),
        palimpsest.read_facts(QUICK / "forget.jsonl")[0],
    ]
    assert [shown(value) for value in values]
    assert palimpsest.verify(bundle).answer in shown(palimpsest.verify(bundle))


def test_figures_say_which_argument_is_missing_or_what_the_run_lacks(tiny_study, tiny_audit):
    assert plots.retrainings(tiny_study, candidate="task_vector-c1")
    for key, value in {"cell": "nowhere", "candidate": "nobody"}.items():
        with pytest.raises(PlanError) as refused:
            plots.retrainings(tiny_study, **{key: value})
        assert refused.value.key == key
    with pytest.raises(InputError):
        plots.acceptance(tiny_study)  # of one cell


def test_a_comparison_is_a_frame_with_a_row_per_method(tiny_study):
    frame = palimpsest.compare(tiny_study)
    assert sorted(frame["method"]) == ["kl_reversion", "task_vector"]
    with pytest.raises(PlanError):
        palimpsest.compare()


def test_a_comparison_names_everything_that_is_damaged_or_missing(tiny_study, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(tiny_study, tmp_path / name)
        (table,) = (tmp_path / name).glob("cells/*/items.parquet")
        table.write_bytes(table.read_bytes()[:-1])
    runs = [tmp_path / name for name in ("one", "two", "none")]
    with pytest.raises(DamagedArtifact) as refused:
        compare_runs([tiny_study, *runs])
    assert all(str(run) in str(refused.value) for run in runs)
    assert str(tiny_study) not in str(refused.value)


def test_nothing_is_said_of_candidates_that_were_not_measured(tiny_study):
    results = palimpsest.load_run(tiny_study).results
    measures = results.cells[0].evaluation
    kept = {name: model for name, model in measures.models.items() if name != "task_vector-c1"}
    verdict = decide(replace(measures, models=kept), results.rules)
    assert verdict is not None and verdict.unmeasured == ("task_vector-c1",)
    words = verdict.paragraph().replace("every candidate that was measured", "")
    assert "task_vector-c1" in words and "every candidate" not in words


@pytest.mark.parametrize("above", ["file/x", "file"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_else(above, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError) as refused:
        palimpsest.study(changed(tiny_plan(), {"methods": []}), tmp_path / above)
    assert refused.value.key == "out" and str(tmp_path / "file") in str(refused.value)


# -- docstrings ------------------------------------------------------------------------------------

FUNCTIONS = {
    name: getattr(palimpsest, name)
    for name in palimpsest.__all__
    if inspect.isfunction(getattr(palimpsest, name))
}
FUNCTIONS |= {f"plots.{name}": getattr(plots, name) for name in plots.__all__}
FUNCTIONS |= {"facts.invent": palimpsest.facts.invent}
FUNCTIONS |= {f"Plan.{name}": getattr(palimpsest.Plan, name) for name in ("preset", "read")}


def example(function: Any) -> str:
    """Return the example in a function's docstring."""
    text = inspect.getdoc(function) or ""
    return textwrap.dedent(text.partition("\n::\n")[2].partition("\nKeys:\n")[0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_a_signature_and_an_example_that_fits_it(name):
    function = FUNCTIONS[name]
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds or name.startswith("Plan.")
    calls = [node for node in ast.walk(ast.parse(example(function))) if isinstance(node, ast.Call)]
    mine = [call for call in calls if ast.unparse(call.func) == f"palimpsest.{name}"]
    assert mine
    for call in mine:
        signature.bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "openunlearning"))
    from conftest import World  # type: ignore[import-not-found]

    for file in QUICK.iterdir():
        shutil.copy(file, tmp_path)
    Path("plan.yaml").write_text("preset: demo\n")
    world = World(tmp_path / "saves")
    for name, shift in (("pretrained", 0.0), ("retain90", 0.0), ("unlearned", -0.5)):
        world.write(name, world.sets(shift))
    first = ("retrain", "unlearn", "audit", "study", "certify")
    names: dict[str, Any] = {"palimpsest": palimpsest}
    for name in (*first, *(name for name in FUNCTIONS if name not in first)):
        exec(compile(example(FUNCTIONS[name]), name, "exec"), names)
    assert names["answer"].results is not None and names["results"].judged
