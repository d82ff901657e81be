"""A plan is checked whole before anything is trained, an error has its key, and keys are described.

Flags win over a file, a file over its preset, a preset over the defaults.
"""

import copy
import json
import pickle
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from palimpsest.cell.study import StudyTask
from palimpsest.config.commands import AuditConfig, RetrainConfig, UnlearnConfig
from palimpsest.config.load import as_dict, changed, config_keys, config_schema, load_config
from palimpsest.config.plan import Plan, cell_id
from palimpsest.config.presets import PRESETS, preset
from palimpsest.config.sections import MethodGrid
from palimpsest.errors import PlanError
from palimpsest.methods import candidates
from palimpsest.models.sources import POCKET
from palimpsest.schema import build
from tests.command import palimpsest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "plans").glob("*.yaml"))
AUDIT = {"base": "b", "injected": "i", "candidates": {"mine": "c"}, "forget": "f.jsonl"}
AUDIT |= {"retain": "r.jsonl", "general": "pocket", "out": "run"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_the_trip_through_plain_values_and_yaml(name):
    plan = preset(name)
    assert load_config(Plan, json.loads(json.dumps(as_dict(plan)))) == plan
    shown = palimpsest("study", name, "--show")
    assert load_config(Plan, {}, shown.stdout) == plan


def test_the_pocket_matrix_has_820_candidates_3_held_vectors_and_14_replays_a_cell():
    plan = preset("pocket")
    gated = {spec.name for spec in POCKET if spec.gated}
    methods = candidates(plan.methods)
    counts = [
        sum(method.name != "gate_mask" or model in gated for method in methods)
        for model, _ in plan.cell_ids().values()
    ]
    assert len(counts) == 45 and sum(counts) == 820 + 45 * (3 + 14)
    assert set(counts) == {16 + 3 + 14, 20 + 3 + 14}


def test_a_misspelled_preset_is_named(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("preste: demo\n")
    with pytest.raises(PlanError, match="did you mean preset") as refused:
        load_config(Plan, {}, file)
    assert refused.value.key == "preste"


def test_values_win_over_the_file_and_the_file_over_its_preset(tmp_path):
    text = "preset: pocket-small\ninjection:\n  learning_rate: 2e-5\nseeds: [7]\n"
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    base = preset("pocket-small")
    expected = replace(base, injection=replace(base.injection, learning_rate=2e-5), seeds=(7,))
    for source in (text, path, str(path)):
        assert load_config(Plan, {}, source) == expected
    assert load_config(Plan, {"seeds": [8]}, path) == replace(expected, seeds=(8,))
    rules = changed(base, {"rules": {"alpha": 0.1}}).rules
    assert rules == replace(base.rules, alpha=0.1)


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [", "preset: none-such\n", "preset: 3\n", "\x00", "1: 2\n", "x: 1\n"]
)
def test_yaml_that_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError):
        load_config(Plan, {}, path)
    with pytest.raises(PlanError):
        load_config(Plan, {}, tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": 3}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"injektion": {}}, "injektion"),
        ({"\x1b[31m": 2}, "'\\x1b[31m'"),
        ({"injection": 3}, "injection"),
        ({"injection": {"stepz": 3}}, "injection.stepz"),
        ({"injection": {"steps": -1}}, "injection.steps"),
        ({"injection": {"steps": True}}, "injection.steps"),
        ({"injection": {"learning_rate": 0}}, "injection.learning_rate"),
        ({"injection": {"learning_rate": "nan"}}, "injection.learning_rate"),
        ({"injection": {"learning_rate": 10**400}}, "injection.learning_rate"),
        ({"facts": {"phrasings": 7}}, "facts.phrasings"),
        ({"facts": {"files": {"probe": "p"}}}, "facts.files[0][0]"),
        ({"reacquisition": {"chunks": 80}}, "steps"),
        ({"general": {"train_pieces": 3}}, "general.train_pieces"),
        ({"rules": {"alfa": 0.05}}, "rules.alfa"),
        ({"models": []}, "models"),
        ({"models": ["a", "a"]}, "models"),
        ({"models": ["a", 2]}, "models[1]"),
        ({"seeds": 100}, "seeds"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"engine": {"dtype": "int4"}}, "engine.dtype"),
        ({"engine": {"keep": ["all"]}}, "engine.keep[0]"),
        ({"methods": [{"name": "ga"}, {"weight": [1]}]}, "methods[1].name"),
        ({"facts": {"files": {"forget": 1}}}, "facts.files[0][1]"),
    ],
)
def test_a_bad_plan_is_refused_by_the_name_of_its_key(change, key):
    with pytest.raises(PlanError) as refusal:
        changed(preset("pocket-small"), change)
    assert refusal.value.key == key
    assert str(refusal.value).startswith(f"{key}: ") and len(str(refusal.value)) < 400


def test_numbers_may_be_text_lists_tuples_and_mappings_pairs():
    values = {"injection": {"steps": "1e2", "learning_rate": "2e-5"}}
    plan = build(Plan, values | {"rules": {"margin": 0}, "facts": {"files": {"forget": "b"}}})
    assert (plan.injection.steps, plan.injection.learning_rate) == (100, 2e-5)
    assert type(plan.injection.steps) is int and type(plan.rules.margin) is float
    assert plan.facts.files == (("forget", "b"),)


def test_the_key_of_an_error_survives_a_copy_and_another_process():
    error = PlanError("is empty", key="models")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.key) == ("models: is empty", "models")
    assert PlanError("no key").key == ""


def test_more_facts_than_names_is_refused_before_training():
    plan = preset("pocket-small")
    plan = replace(plan, facts=replace(plan.facts, probes=100_000))
    with pytest.raises(PlanError) as refusal:
        StudyTask(plan).check()
    assert refusal.value.key == "facts.probes"


def test_a_grid_gives_every_combination_in_the_order_written():
    grid = MethodGrid("npo", (("beta", (0.1, 0.5)), ("weight", (3, 12))))
    assert grid.settings() == (
        {"beta": 0.1, "weight": 3},
        {"beta": 0.1, "weight": 12},
        {"beta": 0.5, "weight": 3},
        {"beta": 0.5, "weight": 12},
    )


def test_paths_in_a_file_start_at_its_folder_and_names_of_models_stay(tmp_path):
    (tmp_path / "candidate").mkdir()
    text = yaml.safe_dump(AUDIT | {"base": "org/model", "candidates": {"mine": "candidate"}})
    (tmp_path / "audit.yaml").write_text(text)
    config = load_config(AuditConfig, {"out": "elsewhere"}, tmp_path / "audit.yaml")
    assert (config.base, config.general, config.out) == ("org/model", "pocket", "elsewhere")
    assert config.forget == str(tmp_path / "f.jsonl")
    assert config.candidates == (("mine", str(tmp_path / "candidate")),)


@pytest.mark.parametrize(
    ("kind", "values", "key"),
    [
        (AuditConfig, {"candidates": {}}, "candidates"),
        (AuditConfig, {"candidates": {"base": "x"}}, "candidates"),
        (AuditConfig, {"steps": 2}, "steps"),
        (AuditConfig, {"probes": -1}, "probes"),
        (AuditConfig, {"rules": {"margin": -1}}, "rules.margin"),
        (RetrainConfig, {}, "out"),
        (UnlearnConfig, {"retain": "r", "general": "g", "out": "o", "forget": "f"}, "injected"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_by_key(kind, values, key):
    with pytest.raises(PlanError) as refusal:
        load_config(kind, (AUDIT if kind is AuditConfig else {}) | values)
    assert refusal.value.key == key


@pytest.mark.parametrize("kind", [Plan, AuditConfig, RetrainConfig, UnlearnConfig])
def test_every_key_has_a_meaning(kind):
    assert [key.name for key in config_keys(kind) if not key.meaning] == []


def test_the_documentation_is_what_its_generator_writes():
    document = runpy.run_path(str(ROOT / "docs" / "plan_table.py"))["document"]
    assert (ROOT / "docs" / "plan.md").read_text() == document()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_plans_can_be_run(path, monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    plan = load_config(Plan, {}, path)
    specs = StudyTask(plan)
    specs.check()
    assert specs.methods


def test_the_schema_takes_the_examples_and_presets_and_refuses_a_misspelt_key():
    jsonschema = pytest.importorskip("jsonschema", reason="comes with nbclient")
    schema = json.loads(palimpsest("study", "--schema").stdout)
    assert schema == json.loads(json.dumps(config_schema(Plan)))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    plans = [yaml.safe_load(path.read_text()) for path in EXAMPLES]
    for plan in [*plans, *(json.loads(json.dumps(as_dict(preset(name)))) for name in PRESETS)]:
        assert not list(validator.iter_errors(plan))
    for wrong in ({"injektion": {}}, {"injection": {"steps": 0}}, {"facts": {"forgot": 3}}):
        assert list(validator.iter_errors(wrong))


def test_a_folder_counts_by_its_own_name_wherever_it_lies():
    places = ("/data/m/stories", "./stories", "../x/stories/", "a/b/stories")
    assert {cell_id(place, 3) for place in places} == {"stories--seed3"}
    assert cell_id("org/stories", 3) == "org-stories--seed3"
    with pytest.raises(PlanError) as refused:
        load_config(Plan, {"models": ["/a/stories", "/b/stories"]})
    assert refused.value.key == "models"
