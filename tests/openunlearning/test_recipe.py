"""A training run of OpenUnlearning as the recipe of references: what is read, said and refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command import palimpsest
from tests.openunlearning.run_folders import CHAT, chat_base, write_config
from tests.openunlearning.test_runs import rewrite
from tests.tofu.tofu_files import write_tofu

from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import OwnInputs, make_models
from palimpsest.config.commands import ExampleRecipe, RecipeSource, RetrainConfig
from palimpsest.errors import FactsError, InputError, PlanError
from palimpsest.facts.examples import read_examples
from palimpsest.openunlearning.recipe import retrain_run

BASE = "meta-llama/tiny"
ARGS = ("trainer", "args")
DATA = ("data", "train", "TOFU_QA")
FORGET, RETAIN = 8, 40
Prepare = Callable[..., tuple[RetrainConfig, list[str]]]


def write_run(folder: Path, train: str = "full", **trainer: Any) -> Path:
    known = {"gradient_accumulation_steps": 2, "weight_decay": 0.01, "warmup_epochs": 1.0}
    known |= {"optim": "paged_adamw_32bit", "learning_rate": "1e-4"}
    return write_config(folder, "finetune", BASE, BASE, train=train, handler="FinetuneTrainer",
                        **known | trainer)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "saves" / "finetune" / "tofu_tiny_full")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tofu(tmp_path / "data", forget=2, retain=10)


@pytest.fixture
def prepare(run: Path, data: Path, tmp_path: Path) -> Prepare:
    def prepared(forget_split: Any = "", **values: Any) -> tuple[RetrainConfig, list[str]]:
        source = RecipeSource(open_unlearning=str(run), data=str(data), forget_split=forget_split)
        return retrain_run(source, {"out": str(tmp_path / "refs"), **values})

    return prepared


def remark(remarks: list[str], start: str) -> str:
    (found,) = (text for text in remarks if text.startswith(start))
    return found


def test_recipe_prompt_and_rows_come_from_the_run(
    prepare: Prepare, run: Path, data: Path, tmp_path: Path
) -> None:
    config, remarks = prepare()
    file = str(run / ".hydra" / "config.yaml")
    assert (config.base, config.prompt.prompt_file) == (BASE, file)
    assert (config.learning_rate, config.weight_decay, config.loss) == (1e-4, 0.01, "completion")
    assert (config.epochs, config.steps, config.batch_size) == (5, None, 16)
    assert config.warmup == RETAIN // 16 and config.schedule is None
    assert "learning_rate 0.0001" in remark(remarks, file)
    assert "schedule linear" in remark(remarks, "Default of")
    rows = read_examples(config.train).rows
    assert [row.set for row in rows] == ["forget"] * FORGET + ["retain"] * RETAIN
    for name, part in (("forget10", rows[:FORGET]), ("retain90", rows[FORGET:])):
        lines = (data / f"{name}.json").read_text().splitlines()
        given = [tuple(json.loads(line).values()) for line in lines]
        assert [(row.values["prompt"], row.values["completion"]) for row in part] == given
    assert Path(config.train).parent == tmp_path / "refs.given"


def test_flags_win_over_the_run(prepare: Prepare, run: Path) -> None:
    rewrite(run, *ARGS, "lr_scheduler_type", value="polynomial")
    rewrite(run, *ARGS, "num_train_epochs", value=2.5)
    config, remarks = prepare(
        base="other/base", learning_rate=1e-3, steps=7, batch_size=4, schedule="cosine",
        prompt={"chat_date": "1 Jan 2020"},
    )  # fmt: skip
    assert (config.base, config.learning_rate, config.steps) == ("other/base", 1e-3, 7)
    assert (config.batch_size, config.schedule, config.epochs) == (4, "cosine", None)
    assert config.warmup == RETAIN // 4 and config.weight_decay == 0.01
    assert config.prompt.chat_date == "1 Jan 2020" and config.prompt.prompt_file
    assert all(text in remark(remarks, "Flags") for text in ("steps 7", "learning_rate 0.001"))


def test_what_the_run_does_not_state_is_the_default_of_the_trainer(
    prepare: Prepare, run: Path
) -> None:
    rewrite(run, *ARGS, value={})
    config, remarks = prepare()
    stated = {name: getattr(config, name) for name in vars(ExampleRecipe()) if name != "examples"}
    assert {name for name, value in stated.items() if value is not None} == {"loss"}
    said = remark(remarks, "Default of")
    assert all(text in said for text in ("epochs 3", "batch_size 8", "learning_rate 5e-05"))
    assert remark(remarks, "The run does not state its number of devices")


@pytest.mark.parametrize(
    ("stated", "warmup", "schedule"),
    [
        ({"warmup_epochs": None, "warmup_steps": 4, "warmup_ratio": 0.5}, 4, None),
        ({"warmup_epochs": None, "warmup_ratio": 0.5}, 8, None),  # half of 5 × ceil(40 / 16)
        ({"warmup_epochs": None, "warmup_ratio": 0.5, "max_steps": 9}, 5, None),
        ({"lr_scheduler_type": "constant"}, 0, "constant"),
        ({"lr_scheduler_type": "constant_with_warmup"}, 2, "constant"),
        ({"lr_scheduler_type": "cosine"}, 2, "cosine"),
    ],
)
def test_warm_up_and_schedule_are_those_of_the_trainer(
    prepare: Prepare, run: Path, stated: dict[str, Any], warmup: int, schedule: str | None
) -> None:
    write_run(run, **stated)
    config, _ = prepare()
    assert (config.warmup, config.schedule) == (warmup, schedule)
    assert (config.steps, config.epochs) == ((9, None) if "max_steps" in stated else (None, 5))


@pytest.mark.parametrize(
    ("train", "steps", "size"),
    # With 65 the last step of an epoch, which has fewer parts, is not counted.
    [("full", 80, 3), ("full", 40, 6), ("retain90", 65, 3), ("retain90", 70, 3)],
)
def test_the_steps_of_the_run_tell_its_number_of_devices(
    prepare: Prepare, run: Path, train: str, steps: int, size: int
) -> None:
    write_run(run, train, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    state = run / "trainer_state.json"
    state.write_text(json.dumps({"max_steps": steps, "log_history": [{}]}))
    config, remarks = prepare()
    assert config.batch_size == size
    assert not any("number of devices" in text for text in remarks)
    for unclear in (777, 5):  # of no number of devices, and of several
        state.write_text(json.dumps({"max_steps": unclear}))
        with pytest.raises(PlanError) as caught:
            prepare()
        assert caught.value.key == "trainer_state.json.max_steps"
    assert prepare(batch_size=6)[0].batch_size == 6
    state.write_text("{")
    with pytest.raises(InputError):
        prepare()


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ((*ARGS, "lr_scheduler_type"), "polynomial"),
        ((*ARGS, "lr_scheduler_type"), ["linear"]),
        ((*ARGS, "lr_scheduler_kwargs"), {"num_cycles": 3}),
        ((*ARGS, "optim"), "adafactor"),
        ((*ARGS, "packing"), True),
        ((*ARGS, "adam_beta2"), 0.95),
        ((*ARGS, "learning_rate"), "fast"),
        ((*ARGS, "num_train_epochs"), 2.5),
        ((*ARGS, "per_device_train_batch_size"), 0),
        ((*ARGS, "warmup_epochs"), "one"),
        (("trainer", "handler"), "NPO"),
        (("model", "template_args"), None),
        (("data", "train"), {"a": {}, "b": {}}),
        ((*DATA, "handler"), "PretrainingDataset"),
        ((*DATA, "args", "packing"), True),
        ((*DATA, "args", "max_length"), 64),
        ((*DATA, "args", "hf_args", "path"), "muse-bench/MUSE-News"),
        ((*DATA, "args", "hf_args", "split"), "train[:10%]"),
        ((*DATA, "args", "hf_args", "name"), "forget10"),
        (("forget_split",), "forget20"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_by_its_key(
    prepare: Prepare, run: Path, tmp_path: Path, keys: tuple[str, ...], value: Any
) -> None:
    rewrite(run, *keys, value=value)
    with pytest.raises(PlanError) as caught:
        prepare()
    assert caught.value.key == ".".join(keys)
    assert not (tmp_path / "refs.given").exists()


def test_the_split_to_forget_is_named_where_the_run_does_not(
    prepare: Prepare, run: Path, data: Path
) -> None:
    with pytest.raises(FactsError, match="forget05"):  # the folder has forget10 alone
        prepare("forget05")
    write_run(run, "retain90")
    rewrite(run, "forget_split", value="forget05")
    assert "forget10" in prepare()[1][0]
    with pytest.raises(PlanError) as caught:
        prepare("forget05")
    assert caught.value.key == "forget_split"


def test_other_data_are_given_as_rows_or_to_a_trainer_of_your_own(
    run: Path, prepare: Prepare, tmp_path: Path
) -> None:
    rows = [{"text": f"The boat {n} lies there.", "set": "retain"} for n in range(6)]
    rows[0]["set"] = "forget"
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewrite(run, *DATA, "handler", value="PretrainingDataset")
    source = RecipeSource(open_unlearning=str(run))
    config, _ = retrain_run(source, {"train": str(mine), "out": "refs", "batch_size": 2})
    assert (config.train, config.loss, config.warmup) == (str(mine), None, 5 // 2)
    rewrite(run, *DATA, "handler", value="QADataset")
    rewrite(run, *ARGS, "optim", value="adafactor")
    config, remarks = prepare(command="train {data} {seed} {out}")
    assert config.epochs is None and len(remarks) == 1


def test_missing_things_are_named(run: Path, data: Path, tmp_path: Path) -> None:
    def key(source: RecipeSource, **values: Any) -> str:
        with pytest.raises(PlanError) as caught:
            retrain_run(source, values)
        return caught.value.key

    assert key(RecipeSource(open_unlearning=str(run)), out="refs") == "data"
    assert key(RecipeSource(open_unlearning=str(run), data=str(data))) == "out"
    assert key(RecipeSource(open_unlearning=str(data)), out="refs") == "open_unlearning"
    done = palimpsest("retrain", "--data", str(data), "--out", str(tmp_path / "refs"))
    assert done.returncode == 2 and "open_unlearning" in done.stderr


def test_one_command_makes_references_of_one_recipe(tmp_path: Path) -> None:
    data = write_tofu(tmp_path / "data", forget=1, retain=2)
    base = str(chat_base(tmp_path / "base"))
    run = write_config(tmp_path / "saves" / "finetune" / "full", "finetune", base, base,
                       train="full", handler="FinetuneTrainer", learning_rate=1e-3,
                       warmup_epochs=0.25, weight_decay=0.01)  # fmt: skip
    flags = ["--open-unlearning", run, "--data", data, "--out", tmp_path / "refs"]
    flags += ["--draws", 2, "--epochs", 1, "--batch-size", 4]
    done = palimpsest("retrain", *map(str, flags), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Flags: epochs 1, batch_size 4" in " ".join(done.stderr.split())
    values = {"out": str(tmp_path / "refs"), "draws": 2, "epochs": 1, "batch_size": 4}
    source = RecipeSource(open_unlearning=str(run), data=str(data))
    make_models(OwnInputs(retrain_run(source, values)[0]), RunOptions())
    files = [tmp_path / "refs" / name / "palimpsest.json" for name in ("00", "01")]
    first, second = (json.loads(file.read_text()) for file in files)
    assert first["digest"] != second["digest"] and first["recipe"] == second["recipe"]
    expected = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "warmup": 0, "steps": 0}
    expected |= {"schedule": "linear", "weight_decay": 0.01, "loss": "completion"}
    assert first["recipe"].items() >= expected.items()
    assert f"<system {CHAT['date_string']}>{CHAT['system_prompt']}" in first["prompt"]
