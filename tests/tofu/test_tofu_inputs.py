"""Whatever is wrong with a TOFU study's files, models or flags ends in one paragraph, no run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.engine.tofu_request import TofuRequest
from palimpsest.engine.tofu_run import run_tofu
from palimpsest.errors import InputError
from palimpsest.models import skeleton

ROWS = [
    {
        "question": f"Where was Writer{n} born?",
        "answer": f"Writer{n} was born in Port{n}.",
        "paraphrased_question": f"In which place was Writer{n} born?",
    }
    for n in range(24)
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def good(tiny_checkpoint, tmp_path: Path) -> TofuRequest:  # type: ignore[no-untyped-def]
    """A request without fault."""
    data = tmp_path / "data"
    data.mkdir()
    plain = [{key: row[key] for key in ("question", "answer")} for row in ROWS]
    write(data / "forget10.json", plain[:8])
    write(data / "forget10_perturbed.json", ROWS[:8])
    write(data / "retain90.json", plain[8:])
    model = Path(shutil.copytree(tiny_checkpoint("smollm2-s"), tmp_path / "base"))
    return TofuRequest(
        out=str(tmp_path / "run"),
        data=str(data),
        base=str(model),
        train=True,
        seeds=1,
        forget_items=8,
        retain_items=8,
        probes=12,
        per_author=4,
        scored_pieces=2,
    )


@pytest.fixture(autouse=True)
def weightless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are neither read nor allocated."""
    monkeypatch.setattr(skeleton, "read_tensor", lambda *_: pytest.fail("weights were read"))


def refused(request: TofuRequest, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        run_tofu(request)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "Traceback" not in message and len(message) < 1500 and message.isprintable()
    for word in words:
        assert word in message, message
    assert not Path(request.out).exists(), "something was written"


def test_the_request_is_good_before_it_is_spoiled(good: TofuRequest) -> None:
    said = run_tofu(good, dry_run=True).paragraph
    assert "8 forget and 8 retain items" in said and not Path(good.out).exists()


def test_every_flag_of_the_command_reaches_the_request(
    good: TofuRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TofuRequest] = []

    def stop(request: TofuRequest, **_: object) -> None:
        asked.append(request)
        raise InputError("far enough")

    monkeypatch.setattr("palimpsest.engine.tofu_run.run_tofu", stop)
    wanted = replace(
        good, split="forget01", base="b", longest=30, evidence=2, grid="one", methods=("rmu",),
        draws=1, steps=5, items=3, learning_rate=0.5, unlearning_steps=6, unlearning_items=2,
        round_trip="all", return_steps=7, chunks=2, general="g.txt", device="cuda",
        dtype="bfloat16", batch_tokens=512, accumulate=2, checkpointing=True, optimizer="host",
        per_author=20,
    )  # fmt: skip
    flags = ["--train", "--method", "rmu"]
    for name, value in asdict(wanted).items():
        # These have no flag: rules are frozen, authors have 20 questions, the rest is above.
        if name in ("rules", "per_author", "return_items", "train", "methods", "retain", "full"):
            continue
        flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    result = CliRunner().invoke(app, ["tofu", *flags])
    assert isinstance(result.exception, InputError), result.output
    assert asked == [wanted]
    flags = ["--full", "f", "--retain", "r", "--retain", "s", "--out", "x"]
    CliRunner().invoke(app, ["tofu", *flags])
    assert asked[1] == TofuRequest(out="x", full="f", retain=("r", "s"))


def changed(name: str, row: int, **changes: Any) -> Callable[[Path], object]:
    """Give what changes keys of one row; a value of ``...`` takes the key away."""

    def spoil(data: Path) -> None:
        rows = [json.loads(line) for line in (data / name).read_text().splitlines()]
        rows[row] = {k: v for k, v in (rows[row] | changes).items() if v is not ...}
        write(data / name, rows)

    return spoil


FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no forget file": (lambda d: (d / "forget10.json").unlink(), ("no forget10.json", "split")),
    "no paraphrases": (
        lambda d: (d / "forget10_perturbed.json").unlink(),
        ("no forget10_perturbed.json",),
    ),
    "no retain file": (lambda d: (d / "retain90.json").unlink(), ("no retain90.json",)),
    "an empty file": (lambda d: (d / "forget10.json").write_text(""), ("forget_items",)),
    "a file that is not JSON": (
        lambda d: (d / "retain90.json").write_text("{nope\n"),
        ("retain90.json",),
    ),
    "rows that are lists": (
        lambda d: (d / "retain90.json").write_text("[1]\n[2]\n"),
        ("retain90.json", "expected"),
    ),
    "bytes that are not UTF-8": (
        lambda d: (d / "retain90.json").write_bytes(b'{"question": "\xff"}\n'),
        ("retain90.json",),
    ),
    "a row without answer": (
        changed("forget10.json", 2, answer=...),
        ("forget10.json: row 3", "answer"),
    ),
    "an answer that is a number": (
        changed("forget10.json", 2, answer=7),
        ("row 3: answer",),
    ),
    "a question without paraphrase": (
        changed("forget10_perturbed.json", 2, question="Who?"),
        ("forget10.json: row 3", "no paraphrase"),
    ),
    "a paraphrase that is the question": (
        changed("forget10_perturbed.json", 0, paraphrased_question=ROWS[0]["question"]),
        ("heldout[0]: ",),
    ),
    "text that changes its direction": (
        changed("retain90.json", 0, answer="Writer8 was \u202eborn."),
        ("retain90.json", "U+202E"),
    ),
    "an answer of a megabyte": (
        changed("retain90.json", 0, answer="x" * 10**6),
        ("retain90.json", "at most"),
    ),
    "a forget question among the retained": (
        changed("retain90.json", 0, question=ROWS[0]["question"], answer=ROWS[0]["answer"]),
        ("forget10-0 is also retain90-0",),
    ),
    "a question longer than the model reads": (
        changed("retain90.json", 0, question="Where " * 300 + "?"),
        ("reads at most 256", "--longest"),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file(good: TofuRequest, kind: str) -> None:
    spoil, words = FILES[kind]
    assert good.data is not None
    spoil(Path(good.data))
    # Every item is drawn, so that the spoiled one is among them.
    refused(replace(good, retain_items=16), *words)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


MODELS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "another width": (lambda f: edit(f, hidden_size=32), ("injected", "hidden_size")),
    "code of its own": (
        lambda f: edit(f, auto_map={"AutoModelForCausalLM": "evil.Model"}),
        ("auto_map",),
    ),
    "no config": (lambda f: (f / "config.json").unlink(), ("config.json",)),
    "no tokenizer": (lambda f: [one.unlink() for one in f.glob("tokenizer*")], ("tokenizer",)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_bad_checkpoint(good: TofuRequest, tmp_path: Path, kind: str) -> None:
    full = Path(shutil.copytree(good.base, tmp_path / "full"))
    spoil, words = MODELS[kind]
    spoil(full)
    refused(replace(good, train=False, full=str(full), retain=(good.base,)), *words)


FLAGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a folder that is missing": ({"data": "/nowhere/tofu"}, ("/nowhere/tofu", "forget10.json")),
    "a split that is none": ({"split": "forget50"}, ("forget50", "forget10")),
    "a split whose files are not there": ({"split": "forget01"}, ("no forget01.json",)),
    "no checkpoints and no training": ({"train": False}, ("both are missing", "--train")),
    "a full model alone": ({"train": False, "full": "x"}, ("one is missing",)),
    "checkpoints and training": ({"full": "x"}, ("one or the other",)),
    "a base that is nowhere": ({"base": "/no/such/folder"}, ("/no/such/folder", "expected")),
    "more items than there are": ({"forget_items": 41}, ("forget_items: 41",)),
    "items too short to exist": ({"longest": 2}, ("of at most 2 words",)),
    "too few probes": ({"probes": 1}, ("none could be excluded", "at least")),
    "more probes than names": ({"probes": 5000}, ("names end",)),
    "no seeds": ({"seeds": 0}, ("seeds: 0",)),
    "an unknown grid": ({"grid": "huge"}, ("grid", "'paper' or 'one'")),
    "an unknown method": ({"methods": ("magic",)}, ("magic", "unknown")),
    "an unknown round trip": ({"round_trip": "some"}, ("'survivors' or 'all'",)),
    "no steps": ({"steps": 0}, ("steps: 0",)),
    "a learning rate below zero": ({"learning_rate": -1.0}, ("learning_rate",)),
    "more chunks than steps": ({"chunks": 99}, ("chunks: 99",)),
    "an unknown dtype": ({"dtype": "int3"}, ("dtype",)),
    "a general text that is missing": ({"general": "/no/text.txt"}, ("/no/text.txt",)),
    "less general text than asked for": ({"scored_pieces": 10**6}, ("pieces asked for",)),
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_bad_flag(good: TofuRequest, kind: str) -> None:
    changes, words = FLAGS[kind]
    refused(replace(good, **changes), *words)


def test_an_out_that_is_a_file(good: TofuRequest, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        run_tofu(replace(good, out=str(tmp_path / "taken")))
    assert (tmp_path / "taken").read_text() == "mine"
