"""Logs are recognized by names and configurations, and a bad one is refused by name."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.openunlearning.conftest import BASE, CHAT, World

from palimpsest.errors import InputError, PlanError
from palimpsest.openunlearning import Model, Outcome, Role, hydra, logs, reading
from palimpsest.openunlearning.naming import parse_name, parse_place
from palimpsest.openunlearning.reading import NO_ROLE, Given, read_log


def read(path: Path, **roles: str) -> Model:
    return read_log(path, Given(roles, {}), {})


@pytest.mark.parametrize(
    ("name", "base", "split", "role"),
    [
        (f"tofu_{BASE}_full", BASE, "", "full"),
        (f"tofu_{BASE}_retain90", BASE, "forget10", "retrained"),
        ("tofu_m_retain95_seed3", "m", "forget05", "retrained"),
        ("tofu_m_retain95_NPO", "m", "forget05", None),
        ("tofu_m_ft_retain99", "m", "forget01", "full"),
        ("tofu_m_pretrained_retain90", "m", "forget10", "pretrained"),
        ("tofu_my_model_forget05_NPO_beta_0.1", "my_model", "forget05", "candidate"),
        ("muse_Llama-2-7b-hf_News_target", "Llama-2-7b-hf", "News", "full"),
        ("muse_m_Books_retrain", "m", "Books", "retrained"),
        ("muse_m_Books_SimNPO_scal_forget_1", "m", "Books", "candidate"),
        ("SAMPLE", "", "", None),
        ("tofu_m_full_forget05", "m", "forget05", "full"),
        ("neg_tofu_m_retain90_lr1e-05_wd0.01_epoch5", "m", "forget10", "retrained"),
        ("neg_tofu_m_retain90_forget10_pert_lr1e-05_epoch5", "m", "forget10", None),
        ("unlearn_tofu_m_forget10_NPO_lr1e-05_alpha2", "m", "forget10", "candidate"),
        ("official_NPO_forget10_Llama_3_2_1B_Instruct", BASE, "forget10", "candidate"),
        ("llama2_7b_forget01_s0_smoke", "", "forget01", "candidate"),
        ("NPO_full_forget10", "", "forget10", None),
    ],
)
def test_names_say_base_split_and_role(name: str, base: str, split: str, role: str | None) -> None:
    assert parse_name(name)[:3] == (base, split, role)


@pytest.mark.parametrize(
    ("name", "setting", "recipe"),
    [
        ("tofu_m_ft_retain99_temp_1.3", "temp_1.3", ""),
        ("tofu_m_retain90_lr1e-05_wd0.01_epoch5", "", "_lr1e-05_wd0.01_epoch5"),
        ("tofu_m_retain90_seed1", "", ""),
    ],
)
def test_names_say_setting_and_recipe(name: str, setting: str, recipe: str) -> None:
    found = parse_name(name)
    assert found.role is not None and (found.setting, found.recipe) == (setting, recipe)


@pytest.mark.parametrize(
    ("place", "base", "role"),
    [
        ("open-unlearning/tofu_m_full", "m", "full"),
        ("/hf/models--open-unlearning--tofu_m_full/snapshots/cc5b31", "m", "full"),
        ("saves/unlearn/tofu_m_forget10_NPO/checkpoint-60", "m", "candidate"),
        (f"meta-llama/{BASE}", BASE, None),
        ("/data/mine", "", None),
    ],
)
def test_places_say_it_too(place: str, base: str, role: str | None) -> None:
    assert (parse_place(place).base, parse_place(place).role) == (base, role)


def test_every_layout_is_found(world: World) -> None:
    world.references()
    world.candidate("NPO", 0.4, 0.4)
    world.candidate("NPO", -1.0, 0.4, at=6)
    muse = world.write("eval/muse_m_News_target", world.sets())
    muse.rename(muse.with_name("MUSE_EVAL.json"))
    other, group = logs([world.root]).groups
    assert (other.title, group.title) == ("MUSE m News", f"TOFU {BASE} forget01")
    assert [(model.label, model.role, model.checkpoint) for model in group.models] == [
        ("pretrained_retain99", Role.PRETRAINED, None),
        ("full", Role.FULL, None),
        ("retain99", Role.RETRAINED, None),
        ("NPO-6", Role.CANDIDATE, 6),
        ("NPO", Role.CANDIDATE, None),
    ]


@pytest.mark.parametrize(
    ("mode", "model", "train", "role"),
    [
        ("unlearn", "open-unlearning/tofu_m_full", "", Role.CANDIDATE),
        ("eval", f"meta-llama/{BASE}", "", Role.PRETRAINED),
        ("eval", "/data/unlearn_tofu_m_forget01_NPO_lr2e-05", "", Role.CANDIDATE),
        ("eval", "saves/finetune/tofu_m_retain99", "", Role.RETRAINED),
        ("eval", "/data/checkpoint", "", None),
        ("finetune", f"meta-llama/{BASE}", "retain99", Role.RETRAINED),
        ("finetune", f"meta-llama/{BASE}", "full", Role.FULL),
    ],
)
def test_configurations_say_it_too(
    world: World, mode: str, model: str, train: str, role: Role | None
) -> None:
    config = {
        "mode": mode,
        "forget_split": "forget01",
        "data_split": "${nothing}",
        "model": {
            "model_args": {"pretrained_model_name_or_path": model},
            "tokenizer_args": {"pretrained_model_name_or_path": f"meta-llama/{BASE}"},
            "template_args": {**CHAT, "user_start_tag": "unused"},
        },
        "data": {"train": {"set": {"args": {"hf_args": {"name": train}}}}},
    }
    found = read(world.write("SAMPLE", world.sets(), config=config))
    assert (found.base, found.split, found.role) == (BASE, "forget01", role)
    assert found.template == {**CHAT, "apply_chat_template": "True"}
    assert (found.reason == NO_ROLE) is (role is None)


def test_a_finetuned_model_with_its_own_tokenizer_is_not_the_pretrained_one(world: World) -> None:
    place = {"pretrained_model_name_or_path": "saves/unlearn/mine"}
    config = {"mode": "eval", "model": {"model_args": place, "tokenizer_args": dict(place)}}
    assert read(world.write("SAMPLE", world.sets(), config=config)).role is None


def test_a_run_in_the_folder_of_unlearning_is_a_candidate(world: World) -> None:
    assert read(world.write("unlearn/mine/evals", world.sets())).role is Role.CANDIDATE
    assert read(world.write("finetune/mine/evals", world.sets())).role is None


def test_a_prefix_of_the_file_is_the_models_name(world: World) -> None:
    found = read(world.write("test", world.sets(), name="NPO_TOFU_EVAL.json"), NPO="candidate")
    assert (found.name, found.role) == ("NPO", Role.CANDIDATE)


def test_logs_without_a_role_are_one_line_that_says_how_to_give_it(world: World) -> None:
    world.references()
    for number in range(5):
        world.write(f"mine{number}", world.sets(0.4, 0.4))
    problems = logs([world.root]).problems
    (line,) = (text for text in problems if NO_ROLE in text)
    assert line.startswith("5 ") and "--role" in line and "mine0" in line
    (base,) = {model.base for group in logs([world.root]).groups for model in group.models} - {BASE}
    report = logs([world.root], roles={"mine*": "candidate"}, bases={"mine*": BASE})
    assert sum(model.role is Role.CANDIDATE for model in report.groups[0].models) == 5
    assert base == reading.NO_BASE


# -- what is not a log, or none that can be judged -------------------------------------------------


def test_only_files_of_known_suites_are_read(world: World) -> None:
    world.references()
    world.candidate("NPO", -1.5, 0.4)
    for name in ("RELU_EVAL.json", "TOFU_SUMMARY.json"):
        folder = f"unlearn/tofu_{BASE}_forget01_NPO/evals"
        world.write(folder, world.sets(0.4, 0.4), name=name)
    report = logs([world.root])
    models = {model.label: model.outcome for model in report.groups[0].models}
    assert len(models) == 4 and models["NPO"] is Outcome.STILL_KNOWS
    assert sum("RELU_EVAL.json" in text for text in report.problems) == 1
    assert not any("SUMMARY" in text for text in report.problems)


@pytest.mark.parametrize("name", ["TOFU_SUMMARY.json", "saves.zip", "saves.tgz", "saves.tar.gz"])
def test_what_has_no_scores_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    for path in (tmp_path, tmp_path / name):
        if path.is_dir() or not name.endswith("json"):
            with pytest.raises(InputError, match=name.removesuffix(".json")):
                logs([path])


@pytest.mark.parametrize(
    ("metrics", "word"),
    [({"forget_minKpc_neg_logprob": {"value_by_index": {}}}, "2025"), ({}, "privleak")],
)
def test_a_log_without_scores_says_which_metric_to_evaluate(
    world: World, metrics: Any, word: str
) -> None:
    world.references()
    path = world.candidate("NPO", 0.4, 0.4, scores=())
    path.write_text(json.dumps(json.loads(path.read_text()) | metrics))
    (model,) = (m for m in logs([world.root]).groups[0].models if m.label == "NPO")
    assert model.outcome is Outcome.NOT_JUDGED
    assert word in model.reason and "mia_min_k" in model.reason and "holdout_" not in model.reason


def test_an_evaluation_at_another_temperature_is_not_judged(world: World) -> None:
    world.references()
    world.write(f"eval/tofu_{BASE}_retain99_temp_2", world.sets(-3.0, 0.4))
    models = {model.label: model for model in logs([world.root]).groups[0].models}
    assert models["retain99_temp_2"].outcome is Outcome.NOT_JUDGED
    assert models["retain99"].outcome is Outcome.NOT_TOLD_APART


def test_an_anchor_that_no_log_can_be_is_an_error(world: World) -> None:
    world.write(f"eval/tofu_{BASE}_retain99", world.sets(0.4, 0.4))
    world.candidate("NPO", 0.4, 0.4)
    with pytest.raises(PlanError) as caught:
        logs([world.root], anchor="pretrained")
    assert caught.value.key == "anchor"


@pytest.mark.parametrize(
    ("folder", "config", "words"),
    [
        (f"tofu_{BASE}_forget05_NPO", None, "forget05"),
        (f"tofu_{BASE}_forget01_cut", None, "{39}"),
        (f"tofu_{BASE}_forget01_NPO", {"forget_split": "forget10"}, "forget10"),
        (f"tofu_{BASE}_full/evals_forget10", None, "forget10"),
        (f"tofu_{BASE}_retain99", {"mode": "unlearn"}, "candidate"),
    ],
)
def test_contradictions_are_refused(world: World, folder: str, config: Any, words: str) -> None:
    end = 39 if folder.endswith("cut") else None
    sets = {name: values[:end] for name, values in world.sets().items()}
    path = world.write(folder, sets, config=config)
    report = logs([path, path])
    (model,) = report.groups[0].models
    assert model.outcome is Outcome.NOT_JUDGED and words in model.reason
    assert model.reason in report.problems[0]
    assert read(path, **{model.name: "full"}).role is Role.FULL


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("score", "mia_gradnorm"),
        ("anchor", "full"),
        ("roles", {"x": "full"}),
        ("roles", {f"tofu_{BASE}_full": "x"}),
    ],
)
def test_unknown_settings_carry_their_key(world: World, key: str, setting: Any) -> None:
    world.references()
    with pytest.raises(PlanError) as caught:
        logs([world.root], **{key: setting})
    assert caught.value.key == key.removesuffix("s")


def test_scores_that_are_not_finite_are_left_out_and_counted(world: World) -> None:
    def npo() -> Model:
        return next(m for m in logs([world.root]).groups[0].models if m.label == "NPO")

    def left_out() -> int | None:
        return getattr(npo().screen, "left_out", None)

    world.references()
    path = world.candidate("NPO", 0.4, 0.4)
    assert (left_out(), npo().outcome) == (0, Outcome.NOT_TOLD_APART)
    log = json.loads(path.read_text())
    log["forget_Q_A_ROUGE"] = {"value_by_index": {"0": {"generation": "Émile 東京"}}}
    entries = log["mia_min_k"]["forget"]["value_by_index"]
    for place, value in enumerate((float("nan"), None, "text", 10**400, float("inf"))):
        entries[str(place)]["score"] = value
    entries["9" * 12] = entries.pop("39")  # question 39 is missing, and this is none of forget01
    path.write_text(json.dumps(log, ensure_ascii=False), encoding="utf-8")
    assert (left_out(), npo().outcome) == (6, Outcome.NOT_TOLD_APART)
    assert np.isnan(npo().scores["mia_min_k"]["forget"][[0, 1, 2, 3, 4, 39]]).all()
    assert any("6 scores" in problem for problem in logs([world.root]).problems)
    log["mia_min_k"]["forget"]["value_by_index"] = {str(i): {"score": None} for i in range(40)}
    path.write_text(json.dumps(log))
    assert npo().outcome is Outcome.NOT_JUDGED and "finite" in npo().reason
    assert any("_NPO" in problem for problem in logs([world.root]).problems)


@pytest.mark.parametrize(
    "content",
    [b'{"mia_min_k": {"forget"', b"[1, 2]", b"[" * 200_000, b"", b'{"a": 1' + b"0" * 5000 + b"}"],
)
def test_a_damaged_log_is_named_and_the_others_are_judged(world: World, content: bytes) -> None:
    world.references()
    path = world.candidate("NPO", 0.4, 0.4)
    path.write_bytes(content)
    report = logs([world.root])
    assert str(path) in report.problems[0]
    assert len(report.groups[0].models) == 3
    with pytest.raises(InputError, match="NPO"):
        logs([path])


@pytest.mark.slow
def test_a_log_of_200_megabytes_is_read(world: World) -> None:
    world.references()
    path = world.candidate("NPO", 0.4, 0.4)
    (before,) = (m for m in logs([world.root]).groups[0].models if m.label == "NPO")
    texts = f'{{"forget_Q_A_ROUGE": {{"0": {{"generation": "{"word " * 40_000_000}"}}}}, '
    path.write_text(texts + path.read_text()[1:])
    assert path.stat().st_size > 200e6
    (after,) = (m for m in logs([world.root]).groups[0].models if m.label == "NPO")
    path.unlink()
    assert (after.p_below, after.outcome) == (before.p_below, before.outcome)


def test_a_log_beyond_the_limit_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.candidate("NPO", 0.4, 0.4)
    monkeypatch.setattr(reading, "SIZE_LIMIT", path.stat().st_size - 1)
    with pytest.raises(InputError):
        logs([path])


@pytest.mark.parametrize("text", ["mode: [", "mode: " + "[" * 100_000, "mode: \x00"])
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".hydra" / "config.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        hydra.read_run_config(tmp_path)


def test_devices_pipes_and_bombs_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    levels = [f"  m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 9)]
    bomb = "\n".join(["model:", "  m0: &m0 {a: 1, b: 2}", *levels])
    for place in ("pipe", "zero"):
        with pytest.raises(InputError):
            hydra.load_bounded(tmp_path / place, 100, str)
    (tmp_path / ".hydra").mkdir()
    for text in (bomb, "mode: !!int ''", "mode: !!bool x"):
        (tmp_path / ".hydra" / "config.yaml").write_text(text)
        with pytest.raises(InputError):
            hydra.read_run_config(tmp_path)
    assert hydra.RunConfig(tmp_path, {"name": 16**900_000}).text("name") == ""


def test_nothing_found_is_an_error(tmp_path: Path) -> None:
    for paths in ([tmp_path], [tmp_path / "absent"], []):
        with pytest.raises(InputError):
            logs(paths)
