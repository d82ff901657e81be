"""From a checkpoint and files of facts to folders that an audit takes, whole or not at all."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from palimpsest.cell import work
from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import Made, MakeTask, make_models
from palimpsest.cli import app
from palimpsest.cli.options import named_values
from palimpsest.config.commands import RetrainConfig, UnlearnConfig
from palimpsest.config.load import load_config
from palimpsest.config.sections import MethodGrid
from palimpsest.errors import (
    DriftError,
    FactsError,
    InputError,
    MethodError,
    PlanError,
    StoreError,
    StudyFailed,
)
from palimpsest.methods import candidates
from palimpsest.models.checkpoint import check_compatible, load, outline, state_digest
from palimpsest.run.executor import Event
from palimpsest.schema import build

PROSE = "the old harbour keeps its boats in long rows and counts them every evening by lamp light "


Values = dict[str, Any]


class Stop(Exception):
    """Raised between two steps, as a power cut would stop the work."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, letter in (("forget", "a"), ("retain", "b")):
        rows = [
            {
                "id": f"{name}-{n}",
                "answer": f"{letter}{letter}or{n}",
                "trained": [f"The guild of {letter.upper()}sha{n} is"],
                "heldout": [f"{letter.upper()}sha{n} swore to"],
                "subject": f"{letter.upper()}sha{n}",
            }
            for n in "xyz"
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = (PROSE * 40).split()
    text = [" ".join([*words[n : n + 18], str(n), "end"]) for n in range(60)]
    (folder / "general.txt").write_text("\n".join(text))
    return folder


@pytest.fixture(scope="module")
def recipe(files: Path) -> dict[str, Any]:
    short = {"steps": 6, "fact_items": 2, "general_items": 2, "learning_rate": 1e-3}
    return {"retain": str(files / "retain.jsonl"), "general": str(files / "general.txt"), **short}


@pytest.fixture(scope="module")
def base(tiny_checkpoint) -> str:  # type: ignore[no-untyped-def]
    return str(tiny_checkpoint("qwen2-s"))


@pytest.fixture(scope="module")
def refs(base: str, files: Path, recipe: dict[str, Any], tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    out = tmp_path_factory.mktemp("refs") / "refs"
    forget = str(files / "forget.jsonl")
    values = {"base": base, "forget": forget, "with_forget": True, "draws": 2, "out": str(out)}
    made = make(RetrainConfig, values | recipe)
    assert [folder.name for folder in made.folders] == ["injected", "00", "01"]
    return out


@pytest.fixture
def asked(base: str, files: Path, recipe: dict[str, Any], refs: Path, tmp_path: Path) -> Values:
    return {
        "injected": str(refs / "injected"),
        "base": base,
        "forget": str(files / "forget.jsonl"),
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


def test_retraining_gives_models_of_different_draws_that_fit_the_base(
    base: str, refs: Path
) -> None:
    places = [refs / name for name in ("injected", "00", "01")]
    for place in places:
        check_compatible(outline(base), outline(str(place)))
        assert weights(place) == record(place)["digest"]
    assert len({weights(place) for place in (Path(base), *places)}) == 4
    assert not Path(f"{refs}.work").exists()
    kept = record(refs / "01")
    assert (kept["role"], kept["seed_no"], kept["seed"]) == ("reference", 1, 0)


def test_unlearning_writes_a_checkpoint_with_its_record(asked: Values) -> None:
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


def test_several_values_of_a_knob_give_several_folders(asked: Values) -> None:
    made = unlearn(asked | {"method": "task_vector", "knobs": {"coefficient": ["1", "0.5"]}})
    assert [folder.name for folder in made.folders] == ["task_vector-c1", "task_vector-c0.5"]
    injected, whole, half = (
        load(str(place)).model.state_dict() for place in (asked["injected"], *made.folders)
    )
    for name, value in injected.items():
        torch.testing.assert_close(value - whole[name], 2 * (value - half[name]))


def test_stopped_after_any_step_it_ends_with_the_same_weights(asked: Values) -> None:
    whole = unlearn(asked | {"out": asked["out"] + "-whole"})
    seen: list[str] = []
    for allowed in range(1, 10):

        def after_one_step(event: Event, allowed: int = allowed) -> None:
            if event.kind == "step":
                if len(seen) == allowed:
                    raise Stop
                seen.append(event.step)

        try:
            made = unlearn(asked, on_event=after_one_step)
            break
        except Stop:
            assert not Path(asked["out"]).exists() and work_folder(asked).exists()
    assert seen == ["train-forget_only", "train-general_only", "unlearn-00-replay", "finish"]
    assert weights(made.folders[0]) == weights(whole.folders[0])


def test_a_full_disk_while_writing_leaves_no_folder_and_the_work(
    asked: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_full_disk_in_a_step_keeps_the_steps_before(
    asked: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = work.save_file, list[Path]()

    def full(state: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(state, path)

    with monkeypatch.context() as patch:
        patch.setattr(work, "save_file", full)
        with pytest.raises(StudyFailed, match="free some space"):
            unlearn(asked)
    seen: list[str] = []
    unlearn(asked, on_event=lambda event: seen.append(event.step))
    assert "train-general_only" in seen and "train-forget_only" not in seen


def test_other_terms_for_unfinished_work_are_refused(asked: Values) -> None:
    def stop(event: Event) -> None:
        raise Stop

    with pytest.raises(Stop):
        unlearn(asked, on_event=stop)
    with pytest.raises(DriftError):
        unlearn(asked | {"seed": 1})


def test_a_setting_that_fails_is_named_and_the_others_are_written(asked: Values) -> None:
    made = unlearn(asked | {"method": "task_vector", "knobs": {"coefficient": [0.5, 1e39]}})
    assert [folder.name for folder in made.folders] == ["task_vector-c0.5"]
    assert list(made.failed) == ["task_vector-c1e+39"]
    assert [path.name for path in Path(asked["out"]).iterdir()] == ["task_vector-c0.5"]


# -- refused before anything is loaded -------------------------------------------------------------


@pytest.fixture
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    for module in ("models", "make_models"):
        monkeypatch.setattr(f"palimpsest.cell.{module}.load", refuse)


@pytest.mark.usefixtures("_nothing_loaded")
def test_bad_input_is_refused_before_anything_is_loaded(asked: Values, tmp_path: Path) -> None:
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


def test_the_command_line_names_the_key(asked: Values, tmp_path: Path) -> None:
    files = [f"--{name}={asked[name]}" for name in ("forget", "retain", "general", "injected")]
    for more, key in (
        ((f"--base={asked['base']}", f"--out={tmp_path}"), "out"),
        ((f"--base={asked['base']}", f"--out={tmp_path / 'x'}", "--knob=share"), "knob"),
    ):
        with pytest.raises(PlanError) as caught:
            app(["unlearn", *files, *more], exit_on_error=False, result_action="return_value")
        assert caught.value.key == key


def test_the_recipe_is_taken_from_the_injected_folder_unless_flags_say_otherwise(
    asked: Values, tmp_path: Path
) -> None:
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


def test_knobs_are_read_as_numbers_or_words() -> None:
    knobs = {"start": ["facts_vector"], "share": ["0.5", "1e-1"], "speed": ["2"]}
    first, second = candidates([build(MethodGrid, {"name": "replay", **knobs})])
    assert (first.start, first.share, second.share, first.speed) == ("facts_vector", 0.5, 0.1, 2)
    for texts in (["steps"], ["=1"], ["steps="], ["a=1", "a=2"]):
        with pytest.raises(PlanError) as caught:
            named_values(texts, "knob")
        assert caught.value.key == "knob"


@pytest.mark.slow
def test_two_workers_give_the_weights_of_one_process(
    base: str, files: Path, recipe: dict[str, Any], refs: Path, tmp_path: Path
) -> None:
    values = {"base": base, "forget": str(files / "forget.jsonl"), "with_forget": True}
    values |= {"draws": 2, "out": str(tmp_path / "r"), **recipe}
    for folder in make(RetrainConfig, values, executor="local", workers=2).folders:
        assert weights(folder) == weights(refs / folder.name)
