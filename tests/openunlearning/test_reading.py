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
from palimpsest.openunlearning.reading import parse_name, read_log


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
    ],
)
def test_names_say_base_split_and_role(name: str, base: str, split: str, role: str | None) -> None:
    assert parse_name(name)[:3] == (base, split, role)


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
        ("retain99", Role.RETRAINED, None),
        ("full", Role.FULL, None),
        ("NPO-6", Role.CANDIDATE, 6),
        ("NPO", Role.CANDIDATE, None),
    ]


@pytest.mark.parametrize(
    ("mode", "model", "train", "role"),
    [
        ("unlearn", "open-unlearning/tofu_m_full", "", Role.CANDIDATE),
        ("eval", f"meta-llama/{BASE}", "", Role.PRETRAINED),
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
    read = read_log(world.write("SAMPLE", world.sets(), config=config), {})
    assert (read.base, read.split, read.role) == (BASE, "forget01", role)
    assert read.template == {**CHAT, "apply_chat_template": "True"}
    assert ("--role SAMPLE" in read.reason) is (role is None)


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
    assert read_log(path, {model.name: Role.FULL}).role is Role.FULL


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

    world.references()
    path = world.candidate("NPO", 0.4, 0.4)
    assert (npo().left_out, npo().outcome) == (0, Outcome.NOT_TOLD_APART)
    log = json.loads(path.read_text())
    log["forget_Q_A_ROUGE"] = {"value_by_index": {"0": {"generation": "Émile 東京"}}}
    entries = log["mia_min_k"]["forget"]["value_by_index"]
    for place, value in enumerate((float("nan"), None, "text", 10**400, float("inf"))):
        entries[str(place)]["score"] = value
    entries["9" * 12] = entries.pop("39")  # question 39 is missing, and this is none of forget01
    path.write_text(json.dumps(log, ensure_ascii=False), encoding="utf-8")
    assert (npo().left_out, npo().outcome) == (6, Outcome.NOT_TOLD_APART)
    assert np.isnan(npo().scores["mia_min_k"]["forget"][[0, 1, 2, 3, 4, 39]]).all()
    assert any("6 scores" in problem for problem in logs([world.root]).problems)
    log["mia_min_k"]["forget"]["value_by_index"] = {str(i): {"score": None} for i in range(40)}
    path.write_text(json.dumps(log))
    assert (npo().left_out, npo().outcome) == (40, Outcome.NOT_JUDGED)
    assert any("NPO: not judged" in problem for problem in logs([world.root]).problems)


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
