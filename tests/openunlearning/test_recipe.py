"""A training run of OpenUnlearning as a ``retrain --command``: what is kept, replaced, refused."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command import palimpsest
from tests.openunlearning.run_folders import chat_base, write_config
from tests.openunlearning.test_runs import rewrite
from tests.tofu.tofu_files import write_tofu

from palimpsest.config.commands import RunSource
from palimpsest.errors import InputError, PlanError
from palimpsest.facts.examples import read_examples
from palimpsest.openunlearning.models import Role
from palimpsest.openunlearning.naming import parse_name
from palimpsest.openunlearning.recipe import PYTHON, REPLACED, retrain_command

FORGET, RETAIN = 8, 40
RECIPE = ["experiment=finetune/tofu/default.yaml", "model=Llama-3.2-1B-Instruct"]
RECIPE += ["trainer.args.learning_rate=1e-4", "model.template_args.system_prompt='Be brief.'"]
OWN = ["task_name=tofu_full", "trainer.args.seed=7", "trainer.args.do_eval=true"]
OWN += ["data/datasets@data.train=TOFU_QA_full", "paths.output_dir=saves/finetune/x"]
OWN += ["+data.train.TOFU_QA_full.args.max_length=512", "hydra.run.dir=."]


def write_run(folder: Path, base: str = "meta-llama/tiny", train: str = "full") -> Path:
    write_config(folder, "finetune", base, base, train=train, handler="FinetuneTrainer")
    file = folder / ".hydra" / "overrides.yaml"
    file.write_text(yaml.safe_dump([*OWN, *RECIPE]))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "saves" / "finetune" / "tofu_tiny_full")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tofu(tmp_path / "data", forget=2, retain=10)


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of a printed command line as a shell would read them."""
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["palimpsest", "retrain"]
    return dict(zip(words[2::2], words[3::2]))


def test_the_command_keeps_the_recipe_and_replaces_what_differs_between_runs(
    run: Path, data: Path, tmp_path: Path
) -> None:
    source = RunSource(open_unlearning=str(run), data=str(data))
    command, _ = retrain_command(source, {"out": str(tmp_path / "refs")})
    flags = flags_of(command)
    assert flags["--base"] == "meta-llama/tiny" and flags["--out"] == str(tmp_path / "refs")
    assert flags["--prompt-file"] == str(run / ".hydra" / "config.yaml")
    words = shlex.split(flags["--command"])
    assert words == [*PYTHON, "src/train.py", *RECIPE, *REPLACED]
    rows = read_examples(flags["--train"]).rows
    assert [row.set for row in rows] == ["forget"] * FORGET + ["retain"] * RETAIN
    for name, part in (("forget10", rows[:FORGET]), ("retain90", rows[FORGET:])):
        lines = (data / f"{name}.json").read_text().splitlines()
        given = [tuple(json.loads(line).values()) for line in lines]
        assert [(row.values["prompt"], row.values["completion"]) for row in part] == given


def test_settings_of_retrain_are_handed_on(run: Path, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "my rows.jsonl"
    values = {"base": "other/base", "draws": 5, "with_forget": True, "train": str(mine)}
    command, _ = retrain_command(RunSource(open_unlearning=str(run)), values)
    assert "--with-forget" in command and flags_of(command.replace("--with-forget", ""))
    assert shlex.quote(str(mine)) in command
    assert "--draws 5" in command and "--base other/base" in command
    assert not list(tmp_path.glob("**/*.given"))


def test_retrain_accepts_the_command_that_it_prints(tmp_path: Path) -> None:
    data = write_tofu(tmp_path / "data", forget=1, retain=2)
    base = str(chat_base(tmp_path / "base"))
    run = write_run(tmp_path / "saves" / "finetune" / "full", base)
    flags = ["--open-unlearning", run, "--data", data, "--out", tmp_path / "refs", "--draws", 2]
    done = palimpsest("retrain", *map(str, flags))
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.replace("\\\n", ""))
    again = palimpsest(*words[1:], "--dry-run")
    assert again.returncode == 0, again.stderr
    assert "2 times" in again.stdout and not (tmp_path / "refs").exists()


@pytest.mark.parametrize(("gpus", "accumulate"), [(1, 4), (2, 2), (4, 1), (3, None)])
def test_a_script_for_a_cluster_does_the_same_on_any_number_of_devices(
    run: Path, data: Path, tmp_path: Path, gpus: int, accumulate: int | None
) -> None:
    rewrite(run, "trainer", "args", "gradient_accumulation_steps", value=4)
    (run / "trainer_state.json").write_text('{"max_steps": 625, "num_train_epochs": 5}')
    source = RunSource(open_unlearning=str(run), data=str(data))
    _, remark = retrain_command(source, {"out": str(tmp_path / "refs"), "draws": 7})
    (script,) = tmp_path.glob("refs.given/*.sbatch")
    assert str(script) in remark and "--array=0-6" in script.read_text()
    mine = tmp_path / "python"
    mine.write_text('#!/bin/bash\nprintf "%q " "$@"; echo "threads=$OMP_NUM_THREADS"\n')
    mine.chmod(0o755)
    told = {"OU": str(mine), "SLURM_ARRAY_TASK_ID": "0", "SLURM_GPUS_ON_NODE": str(gpus)}
    told |= {"SLURM_JOB_ID": "41", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", script], env=told, capture_output=True, text=True, check=False)
    if accumulate is None:
        assert done.returncode == 2
        return
    train, seeded, pretrained = map(shlex.split, done.stdout.splitlines())
    assert done.returncode == 0 and train[-1] == "threads="
    assert ("--main_process_port" in train) is (gpus > 1) is ("20041" in train)
    for word in (
        *RECIPE,
        "trainer.args.seed=0",
        "trainer.args.do_eval=false",
        f"trainer.args.gradient_accumulation_steps={accumulate}",
        "data.train.TOFU_QA_retain.args.hf_args.name=retain90",
        "task_name=tofu_Llama-3.2-1B-Instruct_retain90_seed0",
    ):
        assert word in train, word
    model = "model.model_args.pretrained_model_name_or_path="
    assert f"{model}saves/finetune/tofu_Llama-3.2-1B-Instruct_retain90_seed0" in seeded
    assert f"{model}meta-llama/tiny" in pretrained and RECIPE[3] in pretrained
    for words, name, role in (
        (seeded, "tofu_Llama-3.2-1B-Instruct_retain90_seed0", Role.RETRAINED),
        (pretrained, "tofu_Llama-3.2-1B-Instruct_pretrained", Role.PRETRAINED),
    ):
        assert f"paths.output_dir=saves/eval/{name}/evals_forget10" in words
        assert parse_name(name).role is role


def test_the_split_to_forget_is_named_where_the_run_does_not(run: Path, data: Path) -> None:
    def prepared(forget_split: Any = "") -> str:
        source = RunSource(open_unlearning=str(run), data=str(data), forget_split=forget_split)
        return retrain_command(source, {"out": str(data / "refs")})[1]

    with pytest.raises(PlanError) as caught:  # the folder has forget10 alone
        prepared("forget05")
    assert caught.value.key == "data"
    write_run(run, train="retain90")
    rewrite(run, "forget_split", value="forget05")
    assert "forget10" in prepared()
    with pytest.raises(PlanError) as caught:
        prepared("forget05")
    assert caught.value.key == "forget_split"


@pytest.mark.parametrize(
    ("keys", "value", "key"),
    [
        (("trainer", "handler"), "NPO", "open_unlearning"),
        (("data", "train"), {"a": {}, "b": {}}, "data.train"),
        (("data", "train", "TOFU_QA", "args", "hf_args", "name"), "forget10", "data.train"),
        (("forget_split",), "forget20", "forget_split"),
    ],
)
def test_what_cannot_be_repeated_is_refused_by_its_key(
    run: Path, data: Path, tmp_path: Path, keys: tuple[str, ...], value: Any, key: str
) -> None:
    rewrite(run, *keys, value=value)
    with pytest.raises(PlanError) as caught:
        retrain_command(RunSource(open_unlearning=str(run), data=str(data)), {})
    assert caught.value.key == key
    assert not list(tmp_path.glob("**/*.given"))


def test_missing_things_are_named(run: Path, data: Path, tmp_path: Path) -> None:
    def key(folder: Path, data: Path | None = None, **values: Any) -> str:
        source = RunSource(open_unlearning=str(folder), data=str(data or ""))
        with pytest.raises(PlanError) as caught:
            retrain_command(source, values)
        return caught.value.key

    assert key(run) == "data" and key(data, data) == "open_unlearning"
    assert key(run, data, command="mine {data} {seed} {out}") == "command"
    overrides = run / ".hydra" / "overrides.yaml"
    overrides.write_text("[")
    with pytest.raises(InputError):
        retrain_command(RunSource(open_unlearning=str(run), data=str(data)), {})
    overrides.unlink()
    assert key(run, data) == "open_unlearning"
