"""Inside OpenUnlearning: the metric on scores, and its own program with our configurations.

The second needs a copy of OpenUnlearning (tried with commit d3d7cf9), whose folder the environment
variable OPEN_UNLEARNING names, and Hydra. Its heavy imports are replaced by stand-ins.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.openunlearning.conftest import BASE, World

import palimpsest
from palimpsest.errors import InputError
from palimpsest.openunlearning import Outcome, logs
from palimpsest.openunlearning.metric import screen_metric, value_metric

ROOT = Path(palimpsest.__file__).parent
THEIRS = os.environ.get("OPEN_UNLEARNING", "")
DRIVER = """
import runpy, sys, types
from importlib.machinery import ModuleSpec

class Whatever:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return a[0] if a else self

def stand_in(name):
    module = types.ModuleType(name)
    module.__path__, module.__spec__ = [], ModuleSpec(name, None)
    module.__getattr__ = lambda key: type(key, (Whatever,), {})
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module

for name in ("torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils.data",
             "transformers", "datasets", "rouge_score", "rouge_score.rouge_scorer", "lm_eval",
             "lm_eval.models",
             "lm_eval.models.hf_vlms", "lm_eval.tasks", "sklearn", "sklearn.metrics", "data",
             "data.utils", "trainer"):
    stand_in(name)

class Fake:
    def eval(self): return self

stand_in("model").get_model = lambda config: (Fake(), None)
stand_in("trainer.utils").seed_everything = lambda seed: None
sys.argv[0] = "src/eval.py"
sys.path.insert(0, "src")
runpy.run_path("src/eval.py", run_name="__main__")
"""


def metrics_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def settings(world: World, path: Path) -> dict[str, Any]:
    """Return what OpenUnlearning hands to the metric when it evaluates the model of this log."""
    evaluated = metrics_of(path)
    places = {
        "pretrained": f"eval/tofu_{BASE}_pretrained_retain99/TOFU_EVAL.json",
        "full": f"eval/tofu_{BASE}_full/evals_forget01/TOFU_EVAL.json",
        "retained": f"eval/tofu_{BASE}_retain99*/TOFU_EVAL.json",
    }
    paths = {name: str(world.root / place) for name, place in places.items()}
    scores = {"pre_compute": {"scores": evaluated["mia_min_k"]}}
    return {**scores, "evaluated": evaluated, **paths}


@pytest.mark.parametrize("shifts", [(-1.5, 0.4), (0.4, 0.4), (0.4, 0.4, 0.5)])
def test_the_metric_says_what_the_logs_say(world: World, shifts: tuple[float, ...]) -> None:
    world.references()
    path = world.candidate("NPO", *shifts)
    found = screen_metric(None, **settings(world, path))
    (model,) = (m for m in logs([world.root]).groups[0].models if m.path == path)
    assert model.screen is not None
    assert found["agg_value"] == model.screen.auc
    assert (found["p_below"], found["p_above"]) == (model.p_below, model.p_above)
    assert found["outcome"] == model.outcome and found["shifts"] == model.shifts
    computed = {"palimpsest_screen": found}
    value = value_metric(None, pre_compute=computed, key="p_below")
    assert value == {"agg_value": model.p_below}
    json.dumps(found)


def test_any_number_of_retrained_logs_is_read(world: World) -> None:
    world.references()
    for seed in range(1, 5):
        world.write(f"eval/tofu_{BASE}_retain99_seed{seed}", world.sets(0.4, 0.4))
    path = world.candidate("NPO", -1.5, 0.4)
    given = settings(world, path)
    found = screen_metric(None, **given)
    assert len(found["reference_logs"]) == 5 and found["retraining_p"] < 0.05
    alone = screen_metric(None, **given | {"retained": [None, found["reference_logs"][0]]})
    assert len(alone["reference_logs"]) == 1 and alone["retraining_p"] is None


def test_without_an_anchor_one_side_is_told(world: World) -> None:
    path = world.candidate("NPO", -3.0, 0.4)
    given = settings(world, path) | {"pretrained": None, "full": None, "retained": None}
    found = screen_metric(None, **given)
    assert found["outcome"] == Outcome.STILL_KNOWS
    assert found["p_above"] is None and not found["shifts"]
    with pytest.raises(InputError, match="absent"):
        screen_metric(None, **given | {"pretrained": str(world.root / "absent.json")})


def test_the_wheel_has_plugin_and_configurations() -> None:
    project = ROOT.parents[1]
    built = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "src/hydra_plugins" in built["targets"]["wheel"]["packages"]
    folder = project / "src" / "hydra_plugins"
    assert not (folder / "__init__.py").exists()  # a namespace that others share
    configs = {p.relative_to(ROOT).as_posix(): p for p in ROOT.glob("openunlearning/**/*.yaml")}
    assert len(configs) == 2
    for path in configs.values():
        assert path.read_text().startswith("# @package _global_\n")
        assert "eval" in yaml.safe_load(path.read_text())


@pytest.mark.skipif(not THEIRS, reason="OPEN_UNLEARNING names no copy of OpenUnlearning")
@pytest.mark.skipif(importlib.util.find_spec("hydra") is None, reason="needs hydra-core")
@pytest.mark.parametrize(
    "words",
    [
        ["eval=palimpsest", "model=Llama-3.2-1B-Instruct"],
        ["experiment=eval/tofu/default", "+eval/tofu_metrics=palimpsest_screen"],
        ["experiment=eval/tofu/default", "eval=palimpsest", "forget_split=forget01"],
    ],
)
def test_their_program_evaluates_it(world: World, tmp_path: Path, words: list[str]) -> None:
    world.references()
    log = world.write("out", world.sets(-1.5, 0.4))
    given = settings(world, log)
    others = ("forget_truth_ratio", "forget_Q_A_ROUGE", "extraction_strength", "privleak")
    names = (*others, "ra_Q_A_Prob", "wf_Q_A_Prob", "forget_quality", "model_utility")
    stored = metrics_of(log) | {name: {"agg_value": 0.5} for name in names}
    log.write_text(json.dumps(stored))
    retained = given["retained"].replace("*", "")
    words += ["task_name=X", f"paths.output_dir={log.parent}"]
    words += [f"eval.tofu.retain_logs_path={retained}"]
    words += [f"palimpsest.{name}={given[name]}" for name in ("pretrained", "full")]
    source = str(Path(ROOT).parent)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *words],
        cwd=THEIRS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = metrics_of(log.with_name("TOFU_SUMMARY.json"))
    expected = screen_metric(None, **given)
    assert metrics_of(log)["palimpsest_screen"]["outcome"] == expected["outcome"]
    assert summary["palimpsest_screen"] == pytest.approx(expected["agg_value"])
    assert summary["palimpsest_p_below"] == pytest.approx(expected["p_below"])
    assert summary["palimpsest_p_above"] == pytest.approx(expected["p_above"])
