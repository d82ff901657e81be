"""From a checkpoint and files of facts to folders that an audit takes, whole or not at all."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audit.audit_models import write_facts

from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import Made, MakeTask, make_models
from palimpsest.cli.options import named_values
from palimpsest.config.commands import RetrainConfig, UnlearnConfig
from palimpsest.config.load import load_config
from palimpsest.config.sections import MethodGrid
from palimpsest.errors import DriftError, FactsError, InputError, MethodError, PlanError, StoreError
from palimpsest.methods import candidates
from palimpsest.models.checkpoint import check_compatible, load, outline, state_digest
from palimpsest.run.executor import Event
from palimpsest.schema import build

PROSE = "the old harbour keeps its boats in long rows and counts them every evening by lamp light "


Values = dict[str, Any]


class Stop(Exception):
    """Raised between two steps, as a power cut would stop the work."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_facts(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def recipe(files):
    short = {"steps": 6, "fact_items": 2, "general_items": 1, "learning_rate": 1e-3}
    return {"retain": files["retain"], "general": files["general"], **short}


@pytest.fixture(scope="module")
def base(tiny_checkpoint):
    return str(tiny_checkpoint("qwen2-s"))


@pytest.fixture(scope="module")
def refs(base, files, recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("refs") / "refs"
    values = {"base": base, "forget": files["forget"], "with_forget": True, "draws": 2}
    values |= {"out": str(out)}
    made = make(RetrainConfig, values | recipe)
    assert [folder.name for folder in made.folders] == ["injected", "00", "01"]
    return out


@pytest.fixture
def asked(base, files, recipe, refs, tmp_path):
    return {
        "injected": str(refs / "injected"),
        "base": base,
        "forget": files["forget"],
        "method": "replay",
        "knobs": {"share": [0.5]},
        "unlearning_steps": 2,
        "out": str(tmp_path / "unlearned"),
        **recipe,
    }


def make(kind: type, values: Values, **options: Any) -> Made:
    return make_models(MakeTask(load_config(kind, values)), RunOptions(**options))


def unlearn(values: Values, **options: Any) -> Made:
    return make(UnlearnConfig, values, **options)


def weights(folder: Path | str) -> str:
    return state_digest(load(str(folder)).model.state_dict())


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "palimpsest.json").read_text())
    return found


def work_folder(values: Values) -> Path:
    return Path(f"{values['out']}.work")


def test_retraining_gives_models_of_different_draws_that_fit_the_base(base, refs):
    places = [refs / name for name in ("injected", "00", "01")]
    for place in places:
        check_compatible(outline(base), outline(str(place)))
        assert weights(place) == record(place)["digest"]
    assert len({weights(place) for place in (Path(base), *places)}) == 4
    assert not Path(f"{refs}.work").exists()
    kept = record(refs / "01")
    assert (kept["role"], kept["seed_no"], kept["seed"]) == ("reference", 1, 0)
    assert kept["tokens"] > kept["recipe"]["steps"]


def test_unlearning_writes_a_checkpoint_with_its_record(asked):
    (folder,) = unlearn(asked).folders
    assert folder == Path(asked["out"])
    kept = record(folder)
    assert kept["method"] == "replay" and kept["knobs"]["share"] == 0.5
    assert kept["cost"]["steps"] == 6 + 6 + 3 and kept["cost"]["retrainings"] > 1
    assert kept["recipe"]["steps"] == 6
    assert set(kept["inputs"]) == {
        *("base", "injected", "forget facts", "retain facts", "general text")
    }
    assert weights(folder) == kept["digest"] != weights(asked["injected"])
    assert [path.name for path in folder.parent.iterdir()] == ["unlearned"]


def test_several_values_of_a_knob_give_several_folders(asked):
    made = unlearn(asked | {"method": "task_vector", "knobs": {"coefficient": ["1", "0.5"]}})
    assert [folder.name for folder in made.folders] == ["task_vector-c1", "task_vector-c0.5"]
    injected, whole, half = (
        load(str(place)).model.state_dict() for place in (asked["injected"], *made.folders)
    )
    for name, value in injected.items():
        torch.testing.assert_close(value - whole[name], 2 * (value - half[name]))


def test_a_full_disk_while_writing_leaves_no_folder_and_the_work(asked, monkeypatch):
    values = asked | {"method": "task_vector", "knobs": {"coefficient": [0.5, 1]}}
    with monkeypatch.context() as patch:
        written: list[Path] = []

        def full(self: Any, folder: Path, **rest: Any) -> None:
            written.append(folder)
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("transformers.PreTrainedModel.save_pretrained", full)
        with pytest.raises(StoreError):
            unlearn(values)
    assert written and not Path(asked["out"]).exists()
    seen: list[str] = []
    made = unlearn(values, on_event=lambda event: seen.append(event.step))
    assert len(made.folders) == 2 and "train-forget_only" not in seen


def test_other_terms_for_unfinished_work_are_refused(asked):
    def stop(event: Event) -> None:
        raise Stop

    with pytest.raises(Stop):
        unlearn(asked, on_event=stop)
    with pytest.raises(DriftError):
        unlearn(asked | {"seed": 1})


def test_a_setting_that_fails_is_named_and_the_others_are_written(asked):
    made = unlearn(asked | {"method": "task_vector", "knobs": {"coefficient": [0.5, 1e39]}})
    assert [folder.name for folder in made.folders] == ["task_vector-c0.5"]
    assert list(made.failed) == ["task_vector-c1e+39"]
    assert [path.name for path in Path(asked["out"]).iterdir()] == ["task_vector-c0.5"]


@pytest.fixture
def _nothing_loaded(monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    for module in ("models", "make_models"):
        monkeypatch.setattr(f"palimpsest.cell.{module}.load", refuse)


@pytest.mark.usefixtures("_nothing_loaded")
def test_bad_input_is_refused_before_anything_is_loaded(asked, tmp_path):
    both, empty = tmp_path / "both.jsonl", tmp_path / "empty.txt"
    row = json.loads(Path(asked["forget"]).read_text().splitlines()[0])
    both.write_text(json.dumps(row | {"id": "other"}))
    empty.write_text("  \n")
    wrong: list[tuple[Values, type[InputError]]] = [
        ({"retain": str(both)}, FactsError),
        ({"general": str(empty)}, FactsError),
        ({"out": str(tmp_path)}, PlanError),
        ({"method": "nothing"}, MethodError),
        ({"knobs": {"shaer": [0.1]}}, MethodError),
        ({"steps": 0}, PlanError),
        ({"injected": str(tmp_path / "gone")}, InputError),
        ({"epochs": 2}, PlanError),
        ({"train": str(both)}, PlanError),
        ({"retain": ""}, PlanError),
        ({"base": ""}, PlanError),
    ]
    for values, error in wrong:
        with pytest.raises(error):
            unlearn(asked | values)
        assert not work_folder(asked | values).exists()


def test_the_recipe_is_taken_from_the_injected_folder_unless_flags_say_otherwise(asked, tmp_path):
    def inputs(**values: Any) -> MakeTask:
        bare = {k: v for k, v in asked.items() if k not in ("steps", "learning_rate", "fact_items")}
        return MakeTask(load_config(UnlearnConfig, bare | values))

    found = inputs()
    assert found.recipe == MakeTask(load_config(UnlearnConfig, asked)).recipe
    assert found.unlearning.learning_rate == 1e-3
    assert found.unlearning.ascent_learning_rate == 1e-3 / 4
    assert inputs(steps=9).recipe.steps == 9
    kept = tmp_path / "injected" / "palimpsest.json"
    kept.parent.mkdir()
    for text in ("{", "[]", "{}", '{"recipe": {"steps": "many"}}'):
        kept.write_text(text)
        if text == "{}":
            continue  # no record at all
        with pytest.raises(InputError):
            _ = inputs(injected=str(kept.parent)).recipe


def test_knobs_are_read_as_numbers_or_words():
    knobs = {"start": ["facts_vector"], "share": ["0.5", "1e-1"], "speed": ["2"]}
    first, second = candidates([build(MethodGrid, {"name": "replay", **knobs})])
    assert (first.start, first.share, second.share, first.speed) == ("facts_vector", 0.5, 0.1, 2)
    for texts in (["steps"], ["=1"], ["steps="], ["a=1", "a=2"]):
        with pytest.raises(PlanError) as caught:
            named_values(texts, "knob")
        assert caught.value.key == "knob"
