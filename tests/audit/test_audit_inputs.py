"""Whatever is wrong with an audit's files, models or flags is found before anything takes long.

Every case spoils one thing in a request that is otherwise good. No case may reach a weight, except
the few whose fault only shows there; none leaves a run folder.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.audit.audit_models import STEPS, audit_values, fact, spoil, write_facts, write_rows
from tests.checkpoints import change_weights, edit

import palimpsest
from palimpsest.cell.audit import AuditTask
from palimpsest.cell.checkpoints import find_checkpoints
from palimpsest.config.commands import AuditConfig
from palimpsest.config.load import load_config
from palimpsest.errors import FactsError, InputError, ModelError, PlanError
from palimpsest.models import device, sources, stored
from palimpsest.models.checkpoint import load
from palimpsest.report.results import SELF_DRAWN, find_conditions
from palimpsest.stats.models import Cost
from palimpsest.stats.rules import Rules

Values = dict[str, Any]


@pytest.fixture
def good(tiny_checkpoint, tmp_path):
    """A request without fault, in a folder of its own."""
    base, injected, candidate = (str(tiny_checkpoint("smollm2-s", seed)) for seed in range(3))
    return STEPS | write_facts(tmp_path) | {
        "base": base,
        "injected": injected,
        "candidates": {"one": candidate},
        "learning_rate": 1e-3,
        "out": str(tmp_path / "run"),
    }  # fmt: skip


@pytest.fixture
def weightless(monkeypatch):
    """Weights are not read."""
    monkeypatch.setattr(stored, "read_tensor", lambda *_: pytest.fail("weights were read"))


def prepared(values: Values) -> AuditTask:
    task = AuditTask(load_config(AuditConfig, values))
    task.check()
    return task


def refused(values: Values, kind: type[InputError] = InputError, word: str = "") -> InputError:
    with pytest.raises(kind) as caught:
        prepared(values)
    message = str(caught.value)
    assert caught.value.exit_code == 2 and word in message
    assert len(message) < 1500 and message.isprintable()
    assert not Path(values["out"]).exists(), "something was written"
    return caught.value


def test_the_request_is_good_before_it_is_spoiled(good):
    inputs = prepared(good)
    assert inputs.bound.certifiable and not inputs.notes and len(inputs.sets["probe"]) == 16


def test_facts_are_asked_backwards_where_all_have_subject_and_relation(good, tmp_path):
    both = prepared(good)
    assert both.rules == Rules()
    asked = both.texts.elicited(("reversed",))
    forget = fact("forget", 0)
    assert (asked[0].prompt, asked[0].answer) == (
        f"{forget['answer']} is the guild of",
        forget["subject"],
    )
    broken(tmp_path / "forget.jsonl", 0, relation=...)
    one_way = prepared(good)
    assert one_way.rules.unmeasured_axes == ("reversed",)
    assert not one_way.texts.elicited(("reversed",))
    assert len(both.remarks) < len(one_way.remarks)


# -- files -----------------------------------------------------------------------------------------


def broken(path: Path, line: int, **changes: Any) -> None:
    """Change keys of one row; a value of ``...`` takes the key away."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line] |= changes
    lines[line] = {key: value for key, value in lines[line].items() if value is not ...}
    write_rows(path, lines)


FILES: dict[str, Callable[[Path], object]] = {
    "a forget file that is missing": lambda f: (f / "forget.jsonl").unlink(),
    "an id in two files": lambda f: broken(f / "retain.jsonl", 0, id="forget-0"),
    "general text that is too short": lambda f: (f / "general.txt").write_text("a few words"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file(good, weightless, tmp_path, kind):
    FILES[kind](tmp_path)
    refused(good, FactsError)


@pytest.mark.parametrize("key", ["heldout", "evidence"])
def test_a_prompt_that_is_too_long_for_the_model(good, tmp_path, key):
    for line in (0, 1):
        broken(tmp_path / "forget.jsonl", line, **{key: [f"word{line} " * 300 + "is"]})
    refused(good, FactsError, "tokens")


# -- models ----------------------------------------------------------------------------------------


def spoiled(good: Values, tmp_path: Path, role: str) -> Path:
    """Return a copy of the checkpoint that stands in for one role."""
    place = good["candidates"]["one"] if role in ("candidate", "reference") else good[role]
    folder = Path(shutil.copytree(place, tmp_path / "spoiled"))
    if role == "candidate":
        good["candidates"] = {"one": good["candidates"]["one"], "two": str(folder)}
    elif role == "reference":
        good["references"] = [str(folder)]
    else:
        good[role] = str(folder)
    return folder


def other_tokens(folder: Path) -> None:
    whole = json.loads((folder / "tokenizer.json").read_text())
    names = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    turned = {name: n for n, name in enumerate([*names[1:-1], names[0], names[-1]])}
    edit(folder, "tokenizer.json", model=whole["model"] | {"vocab": turned})


MODELS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a tokenizer with other ids": ("candidate", other_tokens),
    "fewer layers": ("reference", lambda f: edit(f, "config.json", num_hidden_layers=1)),
    "truncated weights": ("base", lambda f: os.truncate(f / "model.safetensors", 1000)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_bad_model(good, tmp_path, kind):
    role, spoil = MODELS[kind]
    spoil(spoiled(good, tmp_path, role))
    refused(good, ModelError)


@pytest.mark.parametrize("role", ["base", "injected", "reference", "candidate"])
def test_weights_that_are_not_numbers(good, tmp_path, role):
    spoil(spoiled(good, tmp_path, role))
    if role == "candidate":
        assert "two" in prepared(good).notes[0]
        good["candidates"].pop("one")
    refused(good, ModelError, "NaN")


@pytest.mark.parametrize("place", ["/no/such/folder", "no such/hub id", "x" * 5000, "a\u202eb"])
def test_a_model_that_is_nowhere(good, weightless, place):
    refused(good | {"injected": place}, ModelError, "injected: ")


def test_a_misspelt_folder_is_named_before_the_network_is_asked(
    good, weightless, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "snapshot", lambda *_: pytest.fail("the network was asked"))
    shutil.copytree(good["injected"], tmp_path / "models" / "injected")
    monkeypatch.chdir(tmp_path)
    for typo in ("models/injectd", "model/injected", f"{tmp_path}/models/injekted"):
        refused(good | {"injected": typo}, ModelError, "models/injected?")
    assert sources.find_kind("models/olmo") == "hub"  # nothing like it is there


def test_base_and_injected_that_are_one_model(good, tmp_path):
    copy = str(shutil.copytree(good["base"], tmp_path / "copy"))
    error = refused(good | {"injected": copy}, PlanError)
    assert isinstance(error, PlanError) and error.key == "injected"


def test_base_and_injected_that_are_swapped(tiny_audit, tmp_path):
    values = audit_values(tiny_audit.parent, references=2, out=tmp_path / "run")
    swapped = {"base": values["injected"], "injected": values["base"]}
    for rate in (1e-3, None):  # where it is chosen on a reference, that step comes first
        with pytest.raises(ModelError, match="swapped"):
            palimpsest.audit(**values | swapped | {"learning_rate": rate})
        assert not (tmp_path / "run").exists()


def test_a_model_given_as_what_it_was_not_made_as_is_pointed_out(good, tmp_path):
    (spoiled(good, tmp_path, "base") / "palimpsest.json").write_text('{"role": "injected"}')
    (note,) = prepared(good).notes
    assert "given as base" in note and "made as injected" in note


@pytest.mark.parametrize("wrong", [{}, {"retrainings": -1.0}, {"more": 1}, {"steps": "2"}])
def test_what_models_cost_is_taken_from_the_records_beside_them(good, tmp_path, wrong):
    cost = dict.fromkeys((item.name for item in fields(Cost)), 2) | {"retrainings": 0.4}
    told = {"recipe": {"steps": 3}, "tokens": 900}
    (spoiled(good, tmp_path, "injected") / "palimpsest.json").write_text(json.dumps(told))
    made = Path(shutil.copytree(good["candidates"]["one"], tmp_path / "made"))
    (made / "palimpsest.json").write_text(json.dumps({"cost": cost | wrong}))
    values = good | {"candidates": {"one": str(made)}}
    models = {entry.name: entry.model for entry in prepared(values).plan("audit").models}
    assert models["one"].cost == (None if wrong else Cost(**cost))
    assert models["injected"].recipe["tokens"] == 900


@pytest.mark.parametrize("twin", ["injected", "candidate one", "reference"])
def test_a_reference_with_the_weights_of_another_model(good, tmp_path, tiny_checkpoint, twin):
    other = str(tiny_checkpoint("smollm2-s", 3))
    copied = {"injected": good["injected"], "candidate one": good["candidates"]["one"]}
    copy = Path(shutil.copytree(copied.get(twin, other), tmp_path / "copy"))
    change_weights(copy, lambda state: None, note="another")
    error = refused(good | {"references": [other, str(copy)]}, PlanError, f"of {twin}")
    assert isinstance(error, PlanError) and error.key == "references"


def test_candidates_that_are_copies_are_noted(good, tmp_path):
    copy = Path(shutil.copytree(good["base"], tmp_path / "copy"))
    (copy / "README.md").write_text("unlearned, they say")
    (note,) = prepared(good | {"candidates": {"copy": str(copy)}}).notes
    assert note == "Candidate copy has the weights of base."


# -- tokenizers and adapters -----------------------------------------------------------------------


def test_tokenizers_are_compared_on_the_texts_that_are_used(good, tmp_path):
    folder = spoiled(good, tmp_path, "base")
    ligature = {"type": "Replace", "pattern": {"String": "\ufb01"}, "content": "fi"}
    edit(folder, "tokenizer.json", normalizer=ligature)
    assert prepared(good).outline.folder == folder  # no text has the character
    broken(tmp_path / "forget.jsonl", 0, heldout=["The of\ufb01ce of Asha is"])
    refused(good, ModelError, "tokenizer")


def test_a_pocket_base_saved_again_is_the_same_base(good, tmp_path):
    from transformers import AutoTokenizer

    pocket = load("pocket/qwen2-s")
    folder, _ = sources.locate("pocket/qwen2-s")
    saved = tmp_path / "saved"
    pocket.model.save_pretrained(saved)
    AutoTokenizer.from_pretrained(str(folder)).save_pretrained(saved)
    for name, scale in (("injected", 1.01), ("one", 0.99)):
        pocket.model.lm_head.weight.data.mul_(scale)
        pocket.model.save_pretrained(tmp_path / name)
        pocket.tokenizer.save_pretrained(tmp_path / name)
    good |= {"injected": str(tmp_path / "injected"), "candidates": {"one": str(tmp_path / "one")}}
    assert prepared(good | {"base": str(saved)}).outline.name == str(saved)


@pytest.fixture
def adapter(good, tmp_path):
    """A LoRA adapter of the injected model, saved as peft does by default: without a task."""
    import peft
    import torch

    model = load(good["injected"]).model
    torch.manual_seed(0)
    shell = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False))
    shell.peft_config["default"].base_model_name_or_path = good["injected"]
    shell.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_without_a_task_is_a_candidate(good, adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["task_type"] is None and config["auto_mapping"]
    good["candidates"] = {"adapted": str(adapter)}
    assert prepared(good).candidates == {"adapted": str(adapter)}
    own, base = load(str(adapter)).weights, load(good["injected"]).weights
    assert any(not own[name].equal(base[name]) for name in base)
    edit(adapter, "adapter_config.json", base_model_name_or_path=None)
    assert prepared(good | {"adapter_base": good["injected"]}).notes == ()


def test_a_missing_peft_is_named_before_weights_are_read(good, adapter, weightless, monkeypatch):
    real = device.importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "peft" else real(name, *more)

    monkeypatch.setattr(device.importlib.util, "find_spec", without)
    refused(good | {"candidates": {"adapted": str(adapter)}}, ModelError, "peft")
    refused(good | {"engine": {"lora": 4}}, ModelError, "peft")


# -- flags -----------------------------------------------------------------------------------------

FLAGS: dict[str, tuple[Values, str]] = {
    "a candidate called reference-3": ({"candidates": {"Reference-3": "a"}}, "candidates"),
    "a candidate name that is a path": ({"candidates": {"../x": "a"}}, "candidates"),
    "neither probes nor generated": ({"probes": None}, "probes"),
    "an alpha that accepts anything": ({"rules": {"alpha": 0.00042}}, "rules.alpha"),
    "an axis left out": ({"rules": {"unmeasured_axes": ["forget"]}}, "rules.unmeasured_axes"),
    "a folder of candidates that is none": ({"candidates_folder": "/none"}, "candidates_folder"),
    "an excluded reference that is none": ({"exclude": ["reference-9"]}, "exclude"),
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_bad_flag(good, weightless, kind):
    changes, key = FLAGS[kind]
    error = refused(good | changes)
    assert isinstance(error, PlanError) and error.key == key


@pytest.mark.parametrize("change", [{"subject": ...}, {"answer": "on the 5th of May"}])
def test_generated_probes_need_subjects_and_names(good, tmp_path, change):
    broken(tmp_path / "forget.jsonl", 2, **change)
    refused(good | {"probes": 16}, FactsError)


def test_an_output_that_is_a_file_or_holds_other_things(good, tmp_path):
    (tmp_path / "taken").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "taken" / "run", tmp_path):
        before = sorted(path.name for path in tmp_path.iterdir() if path.name != "locks")
        with pytest.raises(InputError):
            palimpsest.audit(**good | {"out": out})
        after = sorted(path.name for path in tmp_path.iterdir() if path.name != "locks")
        assert after == before and (tmp_path / "taken").read_text() == "mine"


def test_a_folder_of_runs_gives_its_newest_checkpoints(good, tmp_path, tiny_checkpoint):
    saves, place = tmp_path / "unlearn", good["candidates"]["one"]
    for name in ("NPO_lr1e-5", "GradDiff/checkpoint-20", "GradDiff/checkpoint-100"):
        shutil.copytree(place, saves / name)
    (saves / "logs").mkdir()
    found = find_checkpoints(str(saves), "candidates_folder")
    assert list(found) == ["GradDiff", "NPO_lr1e-5"]
    assert found["GradDiff"].endswith("checkpoint-100")
    given = {"candidates": {"mine": found["NPO_lr1e-5"]}, "candidates_folder": str(saves)}
    assert dict(prepared(good | given).candidates) == {
        "mine": found["NPO_lr1e-5"],
        "GradDiff": found["GradDiff"],
    }  # what is given by name is not taken from the folder again
    shutil.copytree(tiny_checkpoint("smollm2-s", 3), saves / "retrained")
    inputs = prepared(good | given | {"references": [str(saves / "retrained")]})
    assert "retrained" not in dict(inputs.candidates)
    with pytest.raises(PlanError):
        find_checkpoints(str(saves / "logs"), "candidates_folder")


# -- what is drawn ---------------------------------------------------------------------------------


def test_text_candidates_and_references_fix_the_draw_and_the_terms_record_it(good, tiny_checkpoint):
    other = {"candidates": {"one": str(tiny_checkpoint("smollm2-s", 4))}}
    first, text, model = (
        prepared(good | {"beacon": "tuesday"}),
        prepared(good | {"beacon": "wednesday"}),
        prepared(good | {"beacon": "tuesday"} | other),
    )
    records = [inputs.terms().config["drawn"] for inputs in (first, text, model)]
    assert len({record["value"] for record in records}) == 3
    assert records[0] == prepared(good | {"beacon": "tuesday"}).terms().config["drawn"]
    digests = {entry["name"]: entry["weights"] for entry in first.roster()}
    assert records[0]["bound"] == digests


def test_without_a_beacon_the_draw_comes_from_the_digests_and_says_so(good):
    plain, drawn = prepared(good), prepared(good | {"beacon": "tuesday"})
    assert plain.terms().config["drawn"]["beacon"] == ""
    cell = {"steps": [], "models": []}
    conditions = [list(find_conditions(inputs.terms(), cell)) for inputs in (plain, drawn)]
    assert conditions[0][0] == conditions[1][0] and "steps 4" in conditions[1][0]
    assert conditions[0][1] == SELF_DRAWN and "tuesday" in conditions[1][1]
    generated = {"probes": 16}
    subjects = [
        {fact.subject for fact in prepared(good | generated | more).sets["probe"]}
        for more in ({}, {"beacon": "tuesday"})
    ]
    assert subjects[0] != subjects[1]
    questions = [inputs.texts.facts.questions for inputs in (plain, drawn)]
    for asked in questions:
        assert len({q.template for q in asked if q.pool == "evaluation"}) == 1  # half of two
    trained = [[q for q in asked if q.pool == "trained"] for asked in questions]
    assert trained[0] == trained[1]


def test_a_fact_with_fewer_held_out_prompts_than_others_is_asked_too(good, tmp_path):
    for line in (0, 1):
        broken(tmp_path / "forget.jsonl", line, heldout=[f"Number {line} bears the"])
    for beacon in "abcd":  # whichever phrasing is drawn for the others
        questions = prepared(good | {"beacon": beacon}).texts.facts.questions
        asked = {q.fact for q in questions if q.set == "forget" and q.pool == "evaluation"}
        assert asked == {f"forget-{n}" for n in range(4)}
