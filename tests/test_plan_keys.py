"""The plan is documented from its code: every key has a meaning, the schema takes real plans."""

import json
import os
import runpy
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.config.keys import plan_keys, plan_schema
from palimpsest.config.plan import plan_from_dict, plan_from_yaml
from palimpsest.config.presets import PRESETS, preset

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "plans").glob("*.yaml"))


def test_every_key_has_a_meaning() -> None:
    assert [key.name for key in plan_keys() if not key.meaning] == []


def test_the_documentation_is_what_its_generator_writes() -> None:
    document = runpy.run_path(str(ROOT / "docs" / "plan_table.py"))["document"]
    assert (ROOT / "docs" / "plan.md").read_text() == document()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_can_be_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    answered = CliRunner().invoke(app, ["study", str(path), "--dry-run"])
    assert answered.exit_code == 0, answered.output
    assert "candidates" in answered.output


def test_the_schema_takes_the_examples_and_presets_and_refuses_a_misspelt_key() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = plan_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    plans = [yaml.safe_load(path.read_text()) for path in EXAMPLES]
    for plan in [*plans, *(json.loads(json.dumps(preset(name).as_dict())) for name in PRESETS)]:
        assert not list(validator.iter_errors(plan))
    for wrong in ({"injektion": {}}, {"injection": {"steps": 0}}, {"facts": {"forgot": 3}}):
        assert list(validator.iter_errors(wrong))


def test_the_command_shows_schema_and_presets() -> None:
    schema = CliRunner().invoke(app, ["plan", "--schema"])
    assert json.loads(schema.output) == plan_schema()
    for name in PRESETS:
        shown = CliRunner().invoke(app, ["plan", "--show", name])
        assert plan_from_dict(yaml.safe_load(shown.output)) == preset(name)
        assert plan_from_yaml(shown.output) == preset(name)
    assert CliRunner().invoke(app, ["plan"]).exception is not None


def test_a_plan_is_read_from_a_path_or_from_text(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("preset: demo\nseeds: [7]\n")
    plans = [
        plan_from_yaml(file),
        plan_from_yaml(os.fspath(file)),
        plan_from_yaml(file.read_text()),
    ]
    assert plans == [plans[0]] * 3 and plans[0].seeds == (7,)
