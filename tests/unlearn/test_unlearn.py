"""From a checkpoint and files of facts to folders that an audit takes, whole or not at all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.engine import unlearn_run as running
from palimpsest.engine.unlearn_request import Retrain, Unlearn, knob_values, work_folder
from palimpsest.engine.unlearn_run import Made, make
from palimpsest.errors import DriftError, FactsError, InputError, MethodError, PlanError
from palimpsest.models.load import check_compatible, load, outline, state_digest
from palimpsest.run.executor import Event

PROSE = "the old harbour keeps its boats in long rows and counts them every evening by lamp light "


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
    made = make(Retrain(base=base, forget=forget, draws=2, out=str(out), **recipe))
    assert [folder.name for folder in made.folders] == ["injected", "00", "01"]
    return out


@pytest.fixture
def asked(base: str, files: Path, recipe: dict[str, Any], refs: Path, tmp_path: Path) -> Unlearn:
    return Unlearn(
        injected=str(refs / "injected"),
        base=base,
        forget=str(files / "forget.jsonl"),
        method="replay",
        knobs=(("share", (0.5,)),),
        unlearning_steps=2,
        out=str(tmp_path / "unlearned"),
        **recipe,
    )


def weights(folder: Path) -> str:
    return state_digest(load(str(folder)).model.state_dict())


def test_retraining_gives_models_of_different_draws_that_fit_the_base(
    base: str, refs: Path
) -> None:
    places = [refs / name for name in ("injected", "00", "01")]
    for place in places:
        check_compatible(outline(base), outline(str(place)))
    assert len({weights(place) for place in (Path(base), *places)}) == 4
    assert not work_folder(refs).exists()
    for place in places:
        assert weights(place) == json.loads((place / "palimpsest.json").read_text())["digest"]
    record = json.loads((refs / "01" / "palimpsest.json").read_text())
    assert (record["role"], record["draw"], record["seed"]) == ("reference", 1, 0)


def test_unlearning_writes_a_checkpoint_with_its_record_and_card(asked: Unlearn) -> None:
    made = make(asked)
    (folder,) = made.folders
    assert folder == Path(asked.out)
    record = json.loads((folder / "palimpsest.json").read_text())
    assert record["method"] == "replay" and record["knobs"]["share"] == 0.5
    assert record["cost"]["steps"] == 6 + 6 + 3 and record["cost"]["retrainings"] > 1
    assert set(record["inputs"]) == {
        *("base", "injected", "forget facts", "retain facts", "general text")
    }
    card = (folder / "README.md").read_text()
    assert "audit it" in card and "share = 0.5" in card
    assert weights(folder) == record["digest"]
    assert weights(folder) != weights(Path(asked.injected))
    assert [path.name for path in folder.parent.iterdir()] == ["unlearned"]


def test_several_values_of_a_knob_give_several_folders(asked: Unlearn) -> None:
    knobs = knob_values(["coefficient=1,0.5"])
    made = make(replace(asked, method="task_vector", knobs=knobs))
    for folder in made.folders:
        assert weights(folder) == json.loads((folder / "palimpsest.json").read_text())["digest"]
    assert [folder.name for folder in made.folders] == ["task_vector-c0.5", "task_vector-c1"]
    injected, half, whole = (
        load(str(place)).model.state_dict() for place in (asked.injected, *made.folders)
    )
    for name, value in injected.items():
        torch.testing.assert_close(value - whole[name], 2 * (value - half[name]))


def test_stopped_after_any_step_it_ends_with_the_same_weights(asked: Unlearn) -> None:
    whole = make(replace(asked, out=asked.out + "-whole"))
    seen: list[str] = []
    for allowed in range(1, 10):

        def after_one_step(event: Event, allowed: int = allowed) -> None:
            if event.kind == "step":
                if len(seen) == allowed:
                    raise Stop
                seen.append(event.step)

        try:
            made = make(asked, on_event=after_one_step)
            break
        except Stop:
            assert not Path(asked.out).exists() and work_folder(Path(asked.out)).exists()
    assert seen == ["train-forget_only", "train-general_only", "make-000", "finish"]
    assert weights(made.folders[0]) == weights(whole.folders[0])


def test_a_fault_while_writing_leaves_no_folder_and_the_work(
    asked: Unlearn, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(asked, method="task_vector", knobs=knob_values(["coefficient=0.5,1"]))
    write = running.write_checkpoint

    def failing(folder: Path, *rest: Any) -> None:
        if folder.name == "task_vector-c1":
            raise Stop
        write(folder, *rest)

    monkeypatch.setattr(running, "write_checkpoint", failing)
    with pytest.raises(Stop):
        make(asked)
    assert not Path(asked.out).exists()
    monkeypatch.setattr(running, "write_checkpoint", write)
    assert len(make(asked).folders) == 2


def test_other_terms_for_unfinished_work_are_refused(asked: Unlearn) -> None:
    def stop(event: Event) -> None:
        raise Stop

    with pytest.raises(Stop):
        make(asked, on_event=stop)
    with pytest.raises(DriftError, match="unfinished work of another command"):
        make(replace(asked, seed=1))


def test_without_a_base_methods_that_need_none_run(asked: Unlearn, tmp_path: Path) -> None:
    alone = replace(asked, base=None)
    for method, knobs in (("npo", ()), ("replay", knob_values(["start=injected"]))):
        out = str(tmp_path / method)
        made = make(replace(alone, method=method, knobs=knobs, out=out))
        assert weights(made.folders[0]) != weights(Path(asked.injected))


def test_a_method_that_uses_the_base_in_secret_fails_without_one(asked: Unlearn) -> None:
    secret = replace(asked, base=None, method="secret_method:Secret", knobs=())
    with pytest.raises(running.NotMade, match="diverged"):
        make(secret)
    assert not Path(asked.out).exists() and not work_folder(Path(asked.out)).exists()


def test_a_setting_that_fails_is_named_and_the_others_are_written(asked: Unlearn) -> None:
    knobs = (("coefficient", (0.5, 1e39)),)
    made = make(replace(asked, method="task_vector", knobs=knobs))
    assert [folder.name for folder in made.folders] == ["task_vector-c0.5"]
    assert list(made.failed) == ["task_vector-c1e+39"]
    assert made.failed["task_vector-c1e+39"]
    assert [path.name for path in Path(asked.out).iterdir()] == ["task_vector-c0.5"]
    assert made.lines[-1].startswith("failed: task_vector-c1e+39: ")


@pytest.fixture(autouse=True)
def _secret_method(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("plug-in")
    lines = [
        "from dataclasses import dataclass",
        "from typing import ClassVar",
        "from palimpsest.methods.kl_reversion import KLReversion",
        "@dataclass(frozen=True)",
        "class Secret(KLReversion):",
        "    name: ClassVar[str] = 'secret'",
        "    needs: ClassVar[tuple[str, ...]] = ()",
    ]
    (folder / "secret_method.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))


def test_the_preview_says_what_would_be_done_and_writes_nothing(asked: Unlearn) -> None:
    made = make(asked, preview=True)
    text = "\n".join(made.lines)
    for part in ("training general_only", "replay-facts_vector-c1-s0.5", "memory", "time"):
        assert part in text
    assert not made.folders and not any(Path(asked.out).parent.iterdir())


# -- refused before anything is loaded -------------------------------------------------------------


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    for module in (
        "palimpsest.engine.bench",
        "palimpsest.engine.sources",
        "palimpsest.engine.unlearn_run",
    ):
        monkeypatch.setattr(f"{module}.load", refuse)


def refused(request: Any, error: type[InputError], *words: str) -> None:
    with pytest.raises(error) as caught:
        make(request)
    for word in words:
        assert word in str(caught.value)
    assert not work_folder(Path(request.out)).exists()


@pytest.mark.usefixtures("nothing_loaded")
def test_bad_input_is_refused_before_anything_is_loaded(asked: Unlearn, tmp_path: Path) -> None:
    both = tmp_path / "both.jsonl"
    row = json.loads(Path(str(asked.forget)).read_text().splitlines()[0])
    both.write_text(json.dumps(row | {"id": "other"}))
    refused(replace(asked, retain=str(both)), FactsError, "a fact belongs to one set")
    empty = tmp_path / "empty.txt"
    empty.write_text("  \n")
    refused(replace(asked, general=str(empty)), FactsError, "general", "no piece of 20 words")
    for method in ("replay", "task_vector", "kl_reversion", "facts_vector", "rollback"):
        bare = replace(asked, base=None, method=method, knobs=())
        refused(bare, MethodError, f"method {method} needs base", "--base")
    refused(replace(asked, out=str(tmp_path)), InputError, "exists", "choose another")
    refused(replace(asked, method="nothing"), MethodError, "unknown")
    refused(replace(asked, knobs=(("shaer", (0.1,)),)), MethodError, "shaer")
    refused(replace(asked, device="cuda"), PlanError, "device")
    refused(replace(asked, steps=0), PlanError, "steps")
    refused(replace(asked, injected=str(tmp_path / "gone")), InputError, "gone")


def test_the_command_line_names_its_flags(asked: Unlearn, tmp_path: Path) -> None:
    files = ("--forget", asked.forget, "--retain", asked.retain, "--general", asked.general)
    common = ("unlearn", "--injected", asked.injected, *files)
    for more, words in (
        (("--out", str(tmp_path)), "--base"),
        (("--base", asked.base, "--out", str(tmp_path)), "--out"),
        (("--base", asked.base, "--out", str(tmp_path / "x"), "--knob", "share"), "NAME=VALUE"),
    ):
        done = CliRunner().invoke(app, [*common, *more])
        assert isinstance(done.exception, InputError) and words in str(done.exception)
        assert not done.stdout


def test_the_recipe_is_taken_from_the_injected_folder_unless_flags_say_otherwise(
    asked: Unlearn, tmp_path: Path
) -> None:
    own = {"steps": None, "learning_rate": None, "fact_items": None, "general_items": None}
    plan = replace(asked, **own).plan
    assert plan.injection == asked.plan.injection
    assert plan.unlearning.learning_rate == 1e-3
    assert plan.unlearning.ascent_learning_rate == 1e-3 / 4
    assert replace(asked, **own | {"steps": 9}).plan.injection.steps == 9
    record = tmp_path / "injected" / "palimpsest.json"
    record.parent.mkdir()
    for text in ("{", "[]", "{}", '{"recipe": {"steps": "many"}}'):
        record.write_text(text)
        with pytest.raises(InputError, match=r"recipe of the injected model .*--learning-rate"):
            _ = replace(asked, injected=str(record.parent)).plan


def test_knobs_are_read_as_numbers_or_words() -> None:
    assert knob_values(["steps=10,20", "start=injected", "rate=0.5,1e-3", "x=true"]) == (
        ("steps", (10, 20)),
        ("start", ("injected",)),
        ("rate", (0.5, 1e-3)),
        ("x", (True,)),
    )
    for text in ("steps", "=1", "a b=1", "steps="):
        with pytest.raises(PlanError, match="NAME=VALUE"):
            knob_values([text])
    with pytest.raises(PlanError, match="twice"):
        knob_values(["a=1", "a=2"])


@pytest.mark.slow
def test_two_workers_give_the_weights_of_one_process(
    base: str, files: Path, recipe: dict[str, Any], refs: Path, tmp_path: Path
) -> None:
    request = Retrain(
        base=base, forget=str(files / "forget.jsonl"), draws=2, out=str(tmp_path / "r"), **recipe
    )
    made: Made = make(request, executor="local", workers=2)
    for folder in made.folders:
        assert weights(folder) == weights(refs / folder.name)
