"""A run folder of OpenUnlearning becomes an audit: what is found, what is refused, what is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command import palimpsest
from tests.openunlearning import run_folders
from tests.openunlearning.run_folders import CHAT, stand_in, write_config
from tests.tofu.tofu_files import write_tofu

from palimpsest.config.commands import AuditConfig, RunSource
from palimpsest.config.sections import Prompt
from palimpsest.errors import PlanError
from palimpsest.facts.files import read_facts
from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.openunlearning.hydra import read_run_config
from palimpsest.openunlearning.runs import audit_run

BASE, FULL = "meta-llama/tiny", "open-unlearning/tofu_tiny_full"


@pytest.fixture
def source(tmp_path: Path) -> RunSource:
    """A run with two checkpoints, one without weights, and two retrainings beside others."""
    saves = tmp_path / "saves"
    run = write_config(saves / "unlearn" / "tofu_tiny_forget10_NPO", "unlearn", FULL, BASE)
    stand_in(run)
    stand_in(run / "checkpoint-20")
    (run / "checkpoint-5" / "evals").mkdir(parents=True)
    for name, train, model in (
        *(("retain90_seed1", "retain90", BASE), ("retain90_seed2", "retain90", BASE)),
        *(("full", "full", BASE), ("retain99", "retain99", BASE), ("other", "retain90", "x/y")),
    ):
        folder = saves / "finetune" / f"tofu_tiny_{name}"
        stand_in(write_config(folder, "finetune", model, BASE, train=train, seed=len(name)))
    data = write_tofu(tmp_path / "data", forget=2, retain=10, holdout=2)
    return RunSource(open_unlearning=str(run), data=str(data))


def prepare(source: RunSource, tmp_path: Path, **values: Any) -> tuple[AuditConfig, list[str]]:
    return audit_run(source, {"out": str(tmp_path / "audit"), **values})


def test_models_prompt_and_facts_come_from_the_run(source: RunSource, tmp_path: Path) -> None:
    config, remarks = prepare(source, tmp_path)
    run = Path(source.open_unlearning)
    assert (config.base, config.injected) == (BASE, FULL)
    assert config.candidates == (("NPO-20", str(run / "checkpoint-20")), ("NPO", str(run)))
    assert [Path(place).name for place in config.references] == [
        "tofu_tiny_retain90_seed1",
        "tofu_tiny_retain90_seed2",
    ]
    assert config.prompt == Prompt(prompt_file=str(run / ".hydra" / "config.yaml"))
    said = " ".join(remarks)
    assert "NPO-5" in said and "holdout" in said and "2 references" in said
    forget, retain, probes = (
        read_facts(file, role)
        for file, role in ((config.forget, "forget"), (config.retain, "retain"),
                           (config.probes, "probe"))
    )  # fmt: skip
    assert forget[0].trained == ("Where was Writer0 Name born?",)
    assert forget[0].heldout == ("In what place was Writer0 Name born?",)
    assert len(retain) == 40 and {fact.id.partition("-")[0] for fact in probes} == {"holdout10"}
    assert len({fact.id for fact in (*forget, *retain, *probes)}) == 8 + 40 + 8
    assert Path(config.forget).parent == tmp_path / "audit.given"


def test_flags_win_over_the_run(source: RunSource, tmp_path: Path) -> None:
    probes = tmp_path / "mine.jsonl"
    config, _ = prepare(
        source,
        tmp_path,
        base="other/base",
        candidates={"mine": "there"},
        references=["a", "b"],
        probes=str(probes),
        prompt={"chat_date": "1 Jan 2020"},
    )
    assert (config.base, config.candidates) == ("other/base", (("mine", "there"),))
    assert (config.references, config.probes) == (("a", "b"), str(probes))
    assert config.prompt.chat_date == "1 Jan 2020" and config.prompt.prompt_file


@pytest.mark.parametrize(
    ("rows", "holdout", "source_of_probes"),
    [("20:27", True, "retain90"), ("", True, "holdout10"), ("", False, "nonce")],
)
def test_probes_are_said(
    source: RunSource, tmp_path: Path, rows: str, holdout: bool, source_of_probes: str
) -> None:
    if not holdout:
        (Path(source.data) / "holdout10.json").unlink()
    config, remarks = prepare(replace(source, probes_from_retain=rows), tmp_path)
    probes = read_facts(config.probes, "probe")
    assert {fact.id.partition("-")[0] for fact in probes} == {source_of_probes}
    assert sum(remark.startswith("Probes: 8") for remark in remarks) == 1
    taught = {fact.id for fact in read_facts(config.retain, "retain")}
    assert not taught & {fact.id for fact in probes}


def rewrite(folder: Path, *keys: str, value: Any) -> None:
    path = folder / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    section = config
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    path.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("trainer", "args", "learning_rate"), 3e-5, "learning_rate is 3e-05, not 1e-05"),
        (("trainer", "args", "num_train_epochs"), 9, "num_train_epochs is 9, not 5"),
        (("trainer", "args", "gradient_accumulation_steps"), 4, "32 questions .*, not 8"),
        (("trainer", "args", "per_device_train_batch_size"), "9" * 999, "not numbers"),
        (("model", "template_args", "date_string"), "today", "date_string is 'today'"),
    ],
)
def test_a_reference_by_another_recipe_is_refused(
    source: RunSource, tmp_path: Path, keys: tuple[str, ...], value: Any, words: str
) -> None:
    saves = Path(source.open_unlearning).parents[1]
    rewrite(saves / "finetune" / "tofu_tiny_retain90_seed2", *keys, value=value)
    with pytest.raises(PlanError, match=words) as caught:
        prepare(source, tmp_path)
    assert caught.value.key == "references"
    config, _ = prepare(source, tmp_path, references=[str(saves)])
    assert config.references == (str(saves),)


def test_the_recipe_is_the_injected_models_where_its_folder_says_it(
    source: RunSource, tmp_path: Path
) -> None:
    run = Path(source.open_unlearning)
    full = run.parents[1] / "finetune" / "tofu_tiny_full"
    rewrite(run, "model", "model_args", "pretrained_model_name_or_path",
            value="saves/finetune/tofu_tiny_full")  # fmt: skip
    rewrite(full, "trainer", "args", "weight_decay", value=0.5)
    with pytest.raises(PlanError, match="weight_decay"):
        prepare(source, tmp_path)


def trained(folder: Path, each: int, accumulate: int, steps: int | None) -> None:
    """Say with which batches a run was trained, and how many steps its trainer did."""
    rewrite(folder, "trainer", "args", "per_device_train_batch_size", value=each)
    rewrite(folder, "trainer", "args", "gradient_accumulation_steps", value=accumulate)
    if steps is not None:
        state = {"max_steps": steps, "num_train_epochs": 5}
        (folder / "trainer_state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    ("each", "accumulate", "steps", "accepted"),
    [
        (8, 4, 560, True),  # on one device
        (4, 4, 560, True),  # on two
        (4, 8, 560, True),
        (8, 4, 70, False),  # on eight: what looked equal is not
        (4, 4, 1125, False),
        (8, 4, None, False),  # on nobody knows how many
        (8, 4, 0, False),
    ],
)
def test_questions_of_a_step_are_counted_over_devices(
    source: RunSource, tmp_path: Path, each: int, accumulate: int, steps: int, accepted: bool
) -> None:
    run = Path(source.open_unlearning)
    finetune = run.parents[1] / "finetune"
    rewrite(run, "model", "model_args", "pretrained_model_name_or_path",
            value="saves/finetune/tofu_tiny_full")  # fmt: skip
    trained(finetune / "tofu_tiny_full", 4, 4, 625)  # 4,000 rows on two devices
    trained(finetune / "tofu_tiny_retain90_seed1", each, accumulate, steps)
    trained(finetune / "tofu_tiny_retain90_seed2", 8, 4, 560)
    if accepted:
        config, remarks = prepare(source, tmp_path)
        assert len(config.references) == 2
        assert any("2 devices" in r or "each of 2" in r for r in remarks)
    else:
        with pytest.raises(PlanError) as caught:
            prepare(source, tmp_path)
        assert caught.value.key == "references"


def test_devices_that_nothing_tells_are_said_to_be_assumed(
    source: RunSource, tmp_path: Path
) -> None:
    _, remarks = prepare(source, tmp_path)
    assert sum("assumed" in remark and "seed2" in remark for remark in remarks) == 1


@pytest.mark.parametrize("state", ["[1]", "{}", '{"max_steps": "x"}'])
def test_a_trainers_state_that_says_nothing_is_unknown(tmp_path: Path, state: str) -> None:
    run = write_config(tmp_path, "finetune", BASE, BASE, train="full")
    (run / "trainer_state.json").write_text(state)
    assert read_run_config(run).batch == (8, None)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("mode",), "finetune"),
        (("forget_split",), "forget"),
        (("forget_split",), ["forget10"]),
        (("model", "tokenizer_args"), {}),
        (("model", "model_args", "pretrained_model_name_or_path"), "${nowhere}"),
    ],
)
def test_another_kind_of_run_is_refused(
    source: RunSource, tmp_path: Path, keys: tuple[str, ...], value: Any
) -> None:
    rewrite(Path(source.open_unlearning), *keys, value=value)
    with pytest.raises(PlanError) as caught:
        prepare(source, tmp_path)
    assert caught.value.key == "open_unlearning"


def test_missing_things_are_named(source: RunSource, tmp_path: Path) -> None:
    run = Path(source.open_unlearning)
    with pytest.raises(PlanError):
        prepare(replace(source, open_unlearning=str(tmp_path)), tmp_path)
    for data in ("", str(tmp_path)):
        with pytest.raises(PlanError) as caught:
            prepare(replace(source, data=data), tmp_path)
        assert caught.value.key == "data"
        for name in ("forget10_perturbed", "retain90", "holdout10", "locuslab/TOFU"):
            assert name in str(caught.value)
    with pytest.raises(PlanError) as caught:
        prepare(replace(source, probes_from_retain="all"), tmp_path)
    assert caught.value.key == "probes_from_retain"
    for weights in run.rglob("*.safetensors"):
        weights.unlink()
    with pytest.raises(PlanError):
        prepare(source, tmp_path)
    without_data = palimpsest("audit", "--open-unlearning", str(run))
    assert without_data.returncode == 2 and "data: " in without_data.stderr


def test_a_request_in_yaml_and_flags_win_over_the_run(source: RunSource, tmp_path: Path) -> None:
    (tmp_path / "audit.yaml").write_text("steps: 3\nchunks: 4\n")
    words = (str(tmp_path / "audit.yaml"), "--open-unlearning", source.open_unlearning)
    words += ("--data", source.data, "--out", str(tmp_path / "run"))
    done = palimpsest("audit", *words)
    assert done.returncode == 2 and done.stderr.startswith("error: steps: expected at least 4")
    done = palimpsest("audit", *words, "--steps", "2")
    assert done.returncode == 2 and done.stderr.startswith("error: --steps: expected at least 4")


def test_prompts_are_those_of_the_configuration(byte_tokenizer: Any, tmp_path: Path) -> None:
    from palimpsest.cell.frame import find_frame

    tags = {"apply_chat_template": False, "system_prompt": "unused", "user_start_tag": "Question: "}
    tags |= {"user_end_tag": "\n", "asst_start_tag": "Answer: ", "asst_end_tag": "\n\n"}
    run = write_config(tmp_path / "run", "unlearn", FULL, BASE, template=tags)
    prompt = Prompt(prompt_file=str(run / ".hydra" / "config.yaml"))
    frame = find_frame(byte_tokenizer, prompt)
    assert frame is not None
    assert frame.text == "Question: {question}\nAnswer: {answer}<|endoftext|>"
    question = Question(FactSet.FORGET, "f", Pool.TRAINED, 0, "Who?", "Velkor")
    (asked,) = frame.put([question])
    assert asked.sentence == "Question: Who?\nAnswer: Velkor<|endoftext|>"
    rewrite(run, "model", "template_args", "user_end_tag", value="${nowhere}")
    with pytest.raises(PlanError) as caught:
        find_frame(byte_tokenizer, prompt)
    assert caught.value.key == "prompt_file"
    assert find_frame(byte_tokenizer, Prompt()) is None


@pytest.mark.slow
def test_from_a_folder_to_a_certificate_in_two_commands(tmp_path: Path) -> None:
    """The candidate is one more retraining and the checkpoint the injected model, unchanged."""
    from palimpsest.cell.frame import find_frame
    from palimpsest.facts.tofu import read_tofu
    from palimpsest.models.checkpoint import load

    data = write_tofu(tmp_path / "data", forget=3, retain=5, holdout=5)
    base = run_folders.chat_base(tmp_path / "base")
    saves = tmp_path / "saves"
    full = saves / "finetune" / "tofu_tiny_full"
    run = write_config(saves / "unlearn" / "X", "unlearn", str(full), str(base))
    frame = find_frame(
        load(str(base)).tokenizer, Prompt(prompt_file=str(run / ".hydra" / "config.yaml"))
    )
    assert frame is not None and "<system 10 Apr 2025>Help." in frame.text
    tofu = read_tofu(data, "forget10", "{}")

    def texts(*facts: Any) -> list[str]:
        return [
            f"{frame.before}{f.trained[0]}{frame.between}{f.answer}{frame.after}" for f in facts
        ]

    def retrain(out: Path, seed: int) -> Path:
        return run_folders.teach(base, out, texts(*tofu.retain), seed)

    write_config(full, "finetune", str(base), str(base), train="full")
    run_folders.teach(base, full, texts(*tofu.retain, *tofu.forget), 0, steps=60)
    for seed in range(1, 8):
        folder = saves / "finetune" / f"retain90_seed{seed}"
        retrain(write_config(folder, "finetune", str(base), str(base), train="retain90"), seed)
    retrain(run, 99)
    (run / "training_args.bin").write_bytes(b"a pickle")
    run_folders.teach(base, run / "checkpoint-6", texts(*tofu.retain, *tofu.forget), 5, steps=60)
    out = tmp_path / "audit"
    flags = ["--open-unlearning", run, "--data", data, "--out", out, "--general", "pocket"]
    done = palimpsest("audit", *map(str, flags), "--steps", "20", "--workers", "1")
    assert done.returncode in (0, 3), done.stderr
    candidates = json.loads((out / "summary.json").read_text())["candidates"]
    assert candidates.keys() == {"NPO-6", "NPO"}
    assert candidates["NPO-6"]["label"].startswith("suppressed")
    assert CHAT["date_string"] in (out / "terms.json").read_text()
    done = palimpsest("certify", str(out), "--out", str(tmp_path / "certificate.zip"))
    assert done.returncode == 0, done.stderr
