"""A plan is checked whole before anything is trained, and an error names the key."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.plan import MethodGrid, Plan, plan_from_dict, plan_from_yaml
from palimpsest.config.presets import PRESETS, preset
from palimpsest.config.schema import json_schema
from palimpsest.errors import PlanError


def test_every_preset_survives_the_trip_through_plain_values() -> None:
    for name in PRESETS:
        plan = preset(name)
        again = plan_from_dict(plan.as_dict())
        assert again == plan
        assert again.hash() == plan.hash()


def test_the_pocket_matrix_has_the_papers_820_candidates_and_14_replays_a_cell() -> None:
    from palimpsest.methods import candidates
    from palimpsest.models.families import POCKET

    plan = preset("pocket")
    gated = {spec.name for spec in POCKET if spec.gated}
    methods = candidates(plan.methods)
    counts = [
        sum(method.name != "gate_mask" or cell.model in gated for method in methods)
        for cell in plan.cells()
    ]
    assert len(counts) == 45
    assert sum(counts) == 820 + 45 * 14
    assert set(counts) == {16 + 14, 20 + 14}


def test_a_plan_is_read_from_a_path_or_from_text(tmp_path: Path) -> None:
    text = "preset: pocket-small\nseeds: [7]\n"
    (tmp_path / "plan.yaml").write_text(text)
    for source in (text, tmp_path / "plan.yaml", str(tmp_path / "plan.yaml"), "preset: demo"):
        assert plan_from_yaml(source).models
    assert plan_from_yaml(text) == plan_from_yaml(str(tmp_path / "plan.yaml"))
    with pytest.raises(PlanError, match=r"no-such\.yaml: cannot be read"):
        plan_from_yaml("no-such.yaml")
    with pytest.raises(PlanError, match="the text: line 2: "):
        plan_from_yaml("seeds: [1]\nseeds: [2]\n")
    with pytest.raises(PlanError, match=r"prest.*: unknown key; did you mean preset\?"):
        plan_from_yaml("prest: demo\n")


def test_the_fair_sweep_has_32_configurations() -> None:
    from palimpsest.methods import candidates

    assert len(candidates(preset("fair-sweep").methods)) == 32 + 8


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"injektion": {}}, "injektion"),
        ({"injection": {"stepz": 3}}, "injection.stepz"),
        ({"injection": {"steps": -1}}, "injection.steps"),
        ({"injection": {"steps": 1.5}}, "injection.steps"),
        ({"injection": {"steps": True}}, "injection.steps"),
        ({"injection": {"learning_rate": 0}}, "injection.learning_rate"),
        ({"injection": {"learning_rate": "fast"}}, "injection.learning_rate"),
        ({"facts": {"phrasings": 7}}, "facts.phrasings"),
        ({"round_trip": {"chunks": 80}}, "round_trip.chunks"),
        ({"rules": {"alpha": 1.5}}, "rules.alpha"),
        ({"rules": {"alfa": 0.05}}, "rules.alfa"),
        ({"models": []}, "models"),
        ({"models": "pocket/qwen2-s"}, "models"),
        ({"models": ["a", "a"]}, "models"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"engine": {"dtype": "int4"}}, "engine.dtype"),
        ({"panel": {"models": ["router", "router"]}}, "panel.models"),
        ({"methods": [{"weight": [1]}]}, "methods[0].name"),
        ({"methods": [{"name": "ga", "weight": []}]}, "methods[0].weight"),
    ],
)
def test_a_bad_plan_is_refused_by_the_name_of_its_key(change: dict, key: str) -> None:
    good = preset("pocket-small").as_dict()
    for name, value in change.items():
        if isinstance(value, dict):
            good[name] = {**good.get(name, {}), **value}
        else:
            good[name] = value
    with pytest.raises(PlanError, match=f"^{key.replace('[', '.').replace(']', '.')}"):
        plan_from_dict(good)


def test_more_facts_than_names_is_refused_before_training(tmp_path: Path) -> None:
    from palimpsest.engine.matrix import start

    plan = preset("pocket-small")
    plan = replace(plan, facts=replace(plan.facts, probes=100_000))
    with pytest.raises(PlanError, match=r"facts\.probes"):
        start(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_yaml_starts_from_a_preset_and_changes_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("preset: pocket-small\ninjection:\n  learning_rate: 2e-5\nseeds: [7]\n")
    plan = plan_from_yaml(path)
    base = preset("pocket-small")
    assert plan.injection == replace(base.injection, learning_rate=2e-5)
    assert plan.seeds == (7,)
    assert replace(plan, injection=base.injection, seeds=base.seeds) == base


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [", "preset: none-such\n", "preset: 3\n", "\x00", "1: 2\n"]
)
def test_yaml_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError):
        plan_from_yaml(path)


def test_a_grid_gives_every_combination_in_the_order_written() -> None:
    grid = MethodGrid("npo", (("beta", (0.1, 0.5)), ("weight", (3, 12))))
    assert grid.settings() == (
        {"beta": 0.1, "weight": 3},
        {"beta": 0.1, "weight": 12},
        {"beta": 0.5, "weight": 3},
        {"beta": 0.5, "weight": 12},
    )


def test_a_plan_has_a_json_schema() -> None:
    schema = json.loads(json.dumps(json_schema(Plan)))
    assert set(schema["properties"]) == {*preset("pocket").as_dict(), "beacon"}
    assert schema["$defs"]["Counts"]["properties"]["phrasings"]["maximum"] == 6
    assert schema["properties"]["methods"]["items"]["required"] == ["name"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*preset("pocket-small").as_dict(), "x"]), json_values)
def test_whatever_stands_under_a_key_the_answer_is_a_plan_or_a_plan_error(
    key: str, value: object
) -> None:
    data = {**preset("pocket-small").as_dict(), key: value}
    with contextlib.suppress(PlanError):
        assert plan_from_dict(data).hash()
