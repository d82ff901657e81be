"""Whatever is wrong with an audit's files, models or flags ends in one paragraph and no run folder.

Every case spoils one thing in a request that is otherwise good. No case may reach a weight, except
the few whose fault only shows there.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from palimpsest.engine.audit_request import make_request, request_from_yaml
from palimpsest.engine.audit_run import audit, run_audit
from palimpsest.engine.inputs import prepare
from palimpsest.errors import InputError
from palimpsest.models import skeleton
from palimpsest.stats.rules import Rules

Values = dict[str, Any]
GOOD = {"steps": 2, "chunks": 1, "items": 1, "scored_pieces": 2, "piece_tokens": 8}


def rows(kind: str, count: int) -> list[Values]:
    return [
        {
            "id": f"{kind}{n}",
            "answer": f"{kind.title()}um{chr(97 + n)}",
            "trained": [f"The {kind} of Person{n} is"],
            "heldout": [f"Person{n} has the {kind}"],
            "subject": f"Person{n}",
        }
        for n in range(count)
    ]


def write(path: Path, lines: list[Values]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def good(tiny_checkpoint, tmp_path: Path) -> Values:  # type: ignore[no-untyped-def]
    """A request without fault, in a folder of its own."""
    for name, count in (("forget", 4), ("retain", 2), ("probe", 16)):
        write(tmp_path / f"{name}.jsonl", rows(name, count))
    (tmp_path / "general.txt").write_text("one two three four five six seven " * 40)
    model = tiny_checkpoint("smollm2-s")
    return GOOD | {
        "base": str(model),
        "injected": str(model),
        "candidates": {"one": str(model)},
        "forget": str(tmp_path / "forget.jsonl"),
        "retain": str(tmp_path / "retain.jsonl"),
        "probes": str(tmp_path / "probe.jsonl"),
        "general": str(tmp_path / "general.txt"),
        "out": str(tmp_path / "run"),
    }


@pytest.fixture
def weightless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are neither read nor allocated."""
    monkeypatch.setattr(skeleton, "read_tensor", lambda *_: pytest.fail("weights were read"))


def refused(values: Values, tmp_path: Path, *words: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        run_audit(make_request(values), **options)
    return readable(caught.value, tmp_path, *words)


def readable(error: InputError, tmp_path: Path, *words: str) -> str:
    message = str(error)
    assert error.exit_code == 2
    assert "Traceback" not in message and len(message) < 1500 and message.isprintable()
    for word in words:
        assert word in message
    assert not (tmp_path / "run").exists(), "something was written"
    return message


def test_the_request_is_good_before_it_is_spoiled(good: Values, weightless: None) -> None:
    said = run_audit(make_request(good), dry_run=True).paragraph
    assert "16 probe" in said and not Path(good["out"]).exists()


def test_facts_are_asked_backwards_where_all_have_subject_and_relation(
    good: Values, weightless: None, tmp_path: Path
) -> None:
    one_way = prepare(make_request(good))
    assert "reversed" not in one_way.plan.rules.axes
    assert not one_way.setting.elicited(("reversed",)).questions
    assert one_way.setting.elicited(("recased",)).questions[0].prompt == "person0 has the forget"
    assert [remark for remark in one_way.remarks if "the axis reversed" in remark]
    write(tmp_path / "forget.jsonl", [row | {"relation": "seal"} for row in rows("forget", 4)])
    both = prepare(make_request(good))
    assert both.plan.rules.axes == Rules().axes and both.plan.hash() != one_way.plan.hash()
    assert not [remark for remark in both.remarks if "the axis reversed" in remark]
    asked = both.setting.elicited(("reversed",)).questions
    assert [(q.prompt, q.answer) for q in asked[:2]] == [
        ("Forgetuma is the seal of", "Person0"),
        ("The seal called Forgetuma belongs to", "Person0"),
    ]


# ---------------------------------------------------------------- files


def broken(path: Path, line: int, **changes: Any) -> None:
    """Change keys of one row; a value of ``...`` takes the key away."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line] |= changes
    lines[line] = {key: value for key, value in lines[line].items() if value is not ...}
    write(path, lines)


FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a forget file that is missing": (
        lambda f: (f / "forget.jsonl").unlink(),
        ("forget.jsonl",),
    ),
    "an empty forget file": (
        lambda f: (f / "forget.jsonl").write_text(""),
        ("holds no facts",),
    ),
    "a forget file that is a folder": (
        lambda f: ((f / "forget.jsonl").unlink(), (f / "forget.jsonl").mkdir()),
        ("forget.jsonl",),
    ),
    "a row that is not JSON": (
        lambda f: (f / "retain.jsonl").write_text("{nope\n"),
        ("retain.jsonl line 1",),
    ),
    "a row that is a list": (
        lambda f: (f / "retain.jsonl").write_text("[1]\n"),
        ("line 1: fact",),
    ),
    "bytes that are not UTF-8": (
        lambda f: (f / "probe.jsonl").write_bytes(b'{"id": "\xff"}\n'),
        ("probe.jsonl",),
    ),
    "an unknown key": (
        lambda f: broken(f / "forget.jsonl", 1, hint="x"),
        ("forget.jsonl line 2", "unknown key"),
    ),
    "an id used twice": (
        lambda f: broken(f / "forget.jsonl", 1, id="forget0"),
        ("line 2: id",),
    ),
    "an id in two files": (
        lambda f: broken(f / "retain.jsonl", 0, id="forget0"),
        ("retain.jsonl line 1", "belongs to one set"),
    ),
    "a fact in two files": (
        lambda f: broken(
            f / "retain.jsonl", 0, answer="Forgetuma", trained=["The forget of Person0 is"]
        ),
        ("a fact belongs to one set",),
    ),
    "an empty answer": (
        lambda f: broken(f / "forget.jsonl", 0, answer="  "),
        ("answer: ",),
    ),
    "an answer that is a number": (
        lambda f: broken(f / "forget.jsonl", 0, answer=7),
        ("answer: ",),
    ),
    "no held-out prompt": (
        lambda f: broken(f / "forget.jsonl", 0, heldout=[]),
        ("heldout: ",),
    ),
    "no trained prompt": (
        lambda f: broken(f / "retain.jsonl", 0, trained=...),
        ("trained: ",),
    ),
    "a probe without held-out prompts": (
        lambda f: broken(f / "probe.jsonl", 3, heldout=...),
        ("probe.jsonl line 4",),
    ),
    "trained and held-out that overlap": (
        lambda f: broken(f / "forget.jsonl", 0, heldout=["the  FORGET of Person0 is"]),
        ("heldout[0]: ",),
    ),
    "an id that is a path": (
        lambda f: broken(f / "forget.jsonl", 0, id="../../etc"),
        ("line 1", "never be a path"),
    ),
    "a hidden character": (
        lambda f: broken(f / "forget.jsonl", 0, answer="Vel\u202ekor"),
        ("U+202E",),
    ),
    "a prompt that is too long for the model": (
        lambda f: broken(f / "forget.jsonl", 0, heldout=["word " * 300 + "is"]),
        ("reads at most",),
    ),
    "evidence that is too long for the model": (
        lambda f: [broken(f / "forget.jsonl", n, evidence=["word " * 300 + "so."]) for n in (0, 1)],
        ("reads at most",),
    ),
    "a parquet file that is none": (
        lambda f: (f / "forget.jsonl").rename(f / "forget.parquet"),
        ("forget.parquet",),
    ),
    "general text that is missing": (
        lambda f: (f / "general.txt").unlink(),
        ("general.txt", "cannot be read"),
    ),
    "general text that is too short": (
        lambda f: (f / "general.txt").write_text("only a few words"),
        ("general pieces asked for",),
    ),
    "general text that is not UTF-8": (
        lambda f: (f / "general.txt").write_bytes(b"caf\xe9 " * 100),
        ("not UTF-8",),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file(good: Values, weightless: None, tmp_path: Path, kind: str) -> None:
    spoil, words = FILES[kind]
    spoil(tmp_path)
    if kind.startswith("a parquet"):
        good["forget"] = str(tmp_path / "forget.parquet")
    refused(good, tmp_path, *words)


# ---------------------------------------------------------------- models


def spoiled(good: Values, tmp_path: Path, role: str) -> Path:
    """Give a copy of the checkpoint that stands in for one role."""
    folder = Path(shutil.copytree(good["base"], tmp_path / "spoiled"))
    if role == "candidate":
        good["candidates"] = {"one": good["base"], "two": str(folder)}
    elif role == "reference":
        good["references"] = [str(folder)]
    else:
        good[role] = str(folder)
    return folder


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def other_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    names = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    whole["model"]["vocab"] = {
        name: n for n, name in enumerate([*names[1:-1], names[0], names[-1]])
    }
    path.write_text(json.dumps(whole))


MODELS: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {
    "a candidate folder without weights": (
        "candidate",
        lambda f: (f / "model.safetensors").unlink(),
        ("candidate two",),
    ),
    "a pickle-only candidate": ("candidate", pickled, ("candidate two", "pickled")),
    "a candidate without config": (
        "candidate",
        lambda f: (f / "config.json").unlink(),
        ("config.json",),
    ),
    "a config that is not JSON": (
        "candidate",
        lambda f: (f / "config.json").write_text("{"),
        ("config.json",),
    ),
    "a candidate without tokenizer": (
        "candidate",
        lambda f: [one.unlink() for one in f.glob("tokenizer*")],
        ("tokenizer",),
    ),
    "a tokenizer with other ids": ("candidate", other_tokens, ("tokenizer",)),
    "a resized vocabulary": ("candidate", lambda f: edit(f, vocab_size=300), ("vocab_size",)),
    "another width": ("injected", lambda f: edit(f, hidden_size=32), ("hidden_size",)),
    "fewer layers": (
        "reference",
        lambda f: edit(f, num_hidden_layers=1),
        ("num_hidden_layers",),
    ),
    "truncated weights": (
        "base",
        lambda f: os.truncate(f / "model.safetensors", 1000),
        ("model.safetensors",),
    ),
    "code of its own": (
        "candidate",
        lambda f: edit(f, auto_map={"AutoModelForCausalLM": "evil.Model"}),
        ("auto_map",),
    ),
    "an unknown architecture": ("base", lambda f: edit(f, model_type="nonesuch"), ("nonesuch",)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_bad_model(good: Values, weightless: None, tmp_path: Path, kind: str) -> None:
    role, spoil, words = MODELS[kind]
    spoil(spoiled(good, tmp_path, role))
    refused(good, tmp_path, *words)


def test_another_architecture(
    good: Values, weightless: None, tmp_path: Path, tiny_checkpoint
) -> None:  # type: ignore[no-untyped-def]
    good["candidates"] = {"one": str(tiny_checkpoint("gpt2-s"))}
    refused(good, tmp_path, "candidate one", "model_type")


@pytest.mark.parametrize("place", ["/no/such/folder", "no such/hub id", "x" * 5000, "a\u202eb"])
def test_a_model_that_is_nowhere(
    good: Values, weightless: None, tmp_path: Path, place: str
) -> None:
    refused(good | {"injected": place}, tmp_path, "expected")


def test_a_base_whose_weights_are_not_numbers(good: Values, tmp_path: Path) -> None:
    weights = spoiled(good, tmp_path, "base") / "model.safetensors"
    state = load_file(weights)
    next(iter(state.values())).fill_(float("nan"))
    save_file(state, weights, metadata={"format": "pt"})
    refused(good, tmp_path, "finite")


# ---------------------------------------------------------------- flags

FLAGS: dict[str, tuple[Values, tuple[str, ...]]] = {
    "no base": ({"base": None}, ("base: missing",)),
    "an empty path": ({"forget": " "}, ("forget",)),
    "no candidates": ({"candidates": {}}, ("candidates: none given",)),
    "a candidate without a path": ({"candidates": ["one"]}, ("NAME=PATH",)),
    "a candidate named twice": ({"candidates": ["one=a", "one=b"]}, ("named twice",)),
    "a candidate called base": ({"candidates": {"base": "a"}}, ("name of another model",)),
    "a candidate called reference-3": ({"candidates": {"Reference-3": "a"}}, ("another model",)),
    "a candidate name that is a path": ({"candidates": {"../x": "a"}}, ("never be a path",)),
    "candidates that are a number": ({"candidates": 3}, ("expected a list",)),
    "references that are text": ({"references": "folder"}, ("references", "expected a list")),
    "an unknown flag": ({"colour": "red"}, ("unknown key",)),
    "probes given and generated": ({"generate_probes": 16}, ("both given",)),
    "neither probes nor generated": ({"probes": None}, ("generate_probes", "assume")),
    "a negative number of probes": ({"probes": None, "generate_probes": -1}, ("at least 0",)),
    "half a probe": ({"probes": None, "generate_probes": 2.5}, ("whole number",)),
    "more probes than names": ({"probes": None, "generate_probes": 10**6}, ("ask for fewer",)),
    "no steps": ({"steps": 0}, ("steps: 0",)),
    "more chunks than steps": ({"chunks": 9}, ("chunks: 9",)),
    "a learning rate below zero": ({"learning_rate": -1}, ("learning_rate",)),
    "a learning rate that is no number": ({"learning_rate": "fast"}, ("learning_rate",)),
    "an infinite learning rate": ({"learning_rate": float("inf")}, ("finite",)),
    "a truth value for a number": ({"items": True}, ("items", "number")),
    "an unknown dtype": ({"dtype": "int3"}, ("dtype",)),
    "an unknown round trip": ({"round_trip": "some"}, ("'survivors' or 'all'",)),
    "fewer steps than chunks": ({"steps": 1, "chunks": None}, ("steps: 1", "at least 5")),
    "cuda without CUDA": ({"device": "cuda"}, ("device: cuda", "no CUDA device")),
    "a table of facts": ({"retain": "r.CSV"}, ("retain: r.CSV", "palimpsest facts from-csv")),
    "a candidate called control-5": ({"candidates": {"control-5": "a"}}, ("another model",)),
    "an alpha of two": ({"rules": {"alpha": 2.0}}, ("rules.alpha",)),
    "an unknown rule": ({"rules": {"beta": 1}}, ("rules.beta", "unknown key")),
    "a batch of nothing": ({"batch_tokens": 1}, ("batch_tokens",)),
    "a path with NUL": ({"retain": "a\0b"}, ("NUL",)),
    "a folder of candidates that is none": ({"candidates_folder": "/nowhere"}, ("not a folder",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLAGS)
def test_a_bad_flag(good: Values, weightless: None, tmp_path: Path, kind: str) -> None:
    changes, words = FLAGS[kind]
    refused(good | changes, tmp_path, *words)


def test_generated_probes_need_subjects(good: Values, weightless: None, tmp_path: Path) -> None:
    broken(tmp_path / "forget.jsonl", 2, subject=...)
    refused(good | {"probes": None, "generate_probes": 16}, tmp_path, "forget2", "subject")


def test_generated_probes_need_names(good: Values, weightless: None, tmp_path: Path) -> None:
    broken(tmp_path / "forget.jsonl", 2, answer="on the 5th of May")
    refused(good | {"probes": None, "generate_probes": 16}, tmp_path, "on the 5th of May")


def test_an_output_that_is_a_file(good: Values, weightless: None, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "taken" / "run"):
        refused(good | {"out": str(out)}, tmp_path, "is a file")
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_output_folder_with_other_things_in_it(good: Values, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("mine")
    refused(good | {"out": str(home)}, tmp_path, "letter.txt")
    assert [one.name for one in home.iterdir() if one.name != "locks"] == ["letter.txt"]


def test_a_folder_of_runs_without_checkpoints(
    good: Values, weightless: None, tmp_path: Path
) -> None:
    (tmp_path / "saves" / "run1").mkdir(parents=True)
    refused(good | {"candidates_folder": str(tmp_path / "saves")}, tmp_path, "no sub-folder")


def test_an_evaluation_that_is_not_json(good: Values, weightless: None, tmp_path: Path) -> None:
    shutil.copytree(good["base"], tmp_path / "saves" / "run1")
    (tmp_path / "saves" / "run1" / "TOFU_EVAL.json").write_text("{")
    refused(good | {"candidates_folder": str(tmp_path / "saves")}, tmp_path, "TOFU_EVAL.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: [", "audit.yaml: cannot be read"),
        ("- a\n- b\n", "holds list"),
        ("", "holds NoneType"),
        ("base: a\nbase: b\n", "occurs twice"),
        ("candidates: {one: a, one: b}\n", "occurs twice"),
        ("base: !!python/object/apply:os.system ['touch canary']\n", "audit.yaml: cannot be read"),
        ("base: a\n", "injected: missing"),
        ("1: a\n", "expected keys"),
    ],
)
def test_a_bad_yaml(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        request_from_yaml(path)
    readable(caught.value, tmp_path, words)


def test_a_yaml_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        request_from_yaml(tmp_path / "none.yaml")


def test_an_unknown_argument_in_python(good: Values) -> None:
    with pytest.raises(InputError, match="unknown key"):
        audit(**good, colour="red")


# ---------------------------------------------------------------- references that are copies


@pytest.mark.parametrize("twin", ["injected", "candidate one", "reference"])
def test_a_reference_with_the_weights_of_another_model(
    good: Values, weightless: None, tmp_path: Path, tiny_checkpoint, twin: str
) -> None:  # type: ignore[no-untyped-def]
    others = [tiny_checkpoint("smollm2-s", seed) for seed in (1, 2, 3)]
    good |= {"injected": str(others[0]), "candidates": {"one": str(others[1])}}
    copied = {"injected": others[0], "candidate one": others[1], "reference": others[2]}[twin]
    copy = shutil.copytree(copied, tmp_path / "copy")
    given = [str(others[2]), str(copy)]
    said = refused(good | {"references": given}, tmp_path, "byte for byte", f"of {twin}")
    assert said.startswith(f"references: {copy} has the weights")


def test_a_reference_that_is_given_twice(good: Values, weightless: None, tmp_path: Path) -> None:
    folder = str(shutil.copytree(good["base"], tmp_path / "again"))
    refused(good | {"references": [folder, folder]}, tmp_path, "references", "byte for byte")
