"""Whatever is wrong with a TOFU study's files, models or settings is refused before it starts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.command import palimpsest

from palimpsest.api import tofu
from palimpsest.config.commands import TofuConfig
from palimpsest.config.load import as_dict, load_config
from palimpsest.errors import InputError
from palimpsest.models import skeleton

ROWS = [
    {
        "question": f"Where was Writer{n} born?",
        "answer": f"Writer{n} was born in Port{n}.",
        "paraphrased_question": f"In which place was Writer{n} born?",
    }
    for n in range(48)
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def good(tiny_checkpoint: Any, tmp_path: Path) -> TofuConfig:
    """Settings without fault."""
    data = tmp_path / "data"
    data.mkdir()
    plain = [{key: row[key] for key in ("question", "answer")} for row in ROWS]
    write(data / "forget10.json", plain[:8])
    write(data / "forget10_perturbed.json", ROWS[:8])
    write(data / "retain90.json", plain[8:])
    return TofuConfig(
        out=str(tmp_path / "run"),
        data=str(data),
        base=str(shutil.copytree(tiny_checkpoint("smollm2-s"), tmp_path / "base")),
        train=True,
        seeds=1,
        forget_items=8,
        retain_items=40,
        probes=12,
    )


@pytest.fixture
def weightless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are neither read nor allocated."""
    monkeypatch.setattr(skeleton, "read_tensor", lambda *_: pytest.fail("weights were read"))


def refused(config: TofuConfig, word: str) -> None:
    with pytest.raises(InputError) as caught:
        tofu(load_config(TofuConfig, as_dict(config)))
    message = f"{getattr(caught.value, 'key', '')}: {caught.value}"
    assert "Traceback" not in message and len(message) < 1500 and message.isprintable()
    assert word in message, message
    assert not Path(config.out).exists(), "something was written"


def test_the_settings_are_good_before_they_are_spoiled(good: TofuConfig) -> None:
    keys = ("out", "data", "base", "seeds", "forget_items", "retain_items", "probes")
    flags = [f"--{key.replace('_', '-')}={getattr(good, key)}" for key in keys]
    done = palimpsest("tofu", "--train", "--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    assert "generated" in done.stderr and not Path(good.out).exists()


def changed(name: str, row: int, **changes: Any) -> Callable[[Path], object]:
    """Return what changes keys of one row; a value of ``...`` takes the key away."""

    def spoil(data: Path) -> None:
        rows = [json.loads(line) for line in (data / name).read_text().splitlines()]
        rows[row] = {k: v for k, v in (rows[row] | changes).items() if v is not ...}
        write(data / name, rows)

    return spoil


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no forget file": (lambda d: (d / "forget10.json").unlink(), "no forget10.json"),
    "no paraphrases": (lambda d: (d / "forget10_perturbed.json").unlink(), "forget10_perturbed"),
    "no retain file": (lambda d: (d / "retain90.json").unlink(), "no retain90.json"),
    "an empty file": (lambda d: (d / "forget10.json").write_text(""), "forget_items"),
    "no JSON": (lambda d: (d / "retain90.json").write_text("{nope\n"), "retain90.json"),
    "rows that are lists": (lambda d: (d / "retain90.json").write_text("[1]\n[2]\n"), "retain90"),
    "a row without answer": (changed("forget10.json", 2, answer=...), "forget10.json: row 3"),
    "an answer that is a number": (changed("forget10.json", 2, answer=7), "row 3: answer"),
    "no paraphrase of a question": (
        changed("forget10_perturbed.json", 2, question="Who?"), "no paraphrase"),
    "a paraphrase that is the question": (
        changed("forget10_perturbed.json", 0, paraphrased_question=ROWS[0]["question"]),
        "heldout[0]: "),
    "text that changes its direction": (
        changed("retain90.json", 0, answer="Writer8 was \u202eborn."), "U+202E"),
    "a forget question among the retained": (
        changed("retain90.json", 0, question=ROWS[0]["question"], answer=ROWS[0]["answer"]),
        "forget10-0 is also retain90-0"),
    "a forget question in the holdout": (
        lambda d: shutil.copy(d / "forget10.json", d / "holdout10.json"), "is also holdout10-0"),
}  # fmt: skip


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file(good: TofuConfig, kind: str) -> None:
    spoil, word = FILES[kind]
    spoil(Path(good.data))
    refused(good, word)


@pytest.mark.usefixtures("weightless")
def test_a_checkpoint_of_another_width(good: TofuConfig, tmp_path: Path) -> None:
    full = Path(shutil.copytree(good.base, tmp_path / "full"))
    config = json.loads((full / "config.json").read_text()) | {"hidden_size": 32}
    (full / "config.json").write_text(json.dumps(config))
    refused(replace(good, train=False, full=str(full), retain=(good.base,)), "hidden_size")


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a folder that is missing": ({"data": "/nowhere/tofu"}, "/nowhere/tofu"),
    "a split that is none": ({"split": "forget50"}, "split"),
    "a split whose files are not there": ({"split": "forget01"}, "no forget01.json"),
    "a full model alone": ({"train": False, "full": "x"}, "retain"),
    "checkpoints and training": ({"full": "x"}, "train"),
    "candidates and training": ({"candidates": (("c", "x"),)}, "candidates"),
    "a base that is nowhere": ({"base": "/no/such/folder"}, "/no/such/folder"),
    "more items than there are": ({"forget_items": 41}, "forget_items: 41"),
    "items too short to exist": ({"longest": 2}, "of at most 2 words"),
    "more probes than names": ({"probes": 5000}, "names end"),
    "no seeds": ({"seeds": 0}, "seeds"),
    "an unknown method": ({"methods": ("magic",)}, "magic"),
    "a learning rate below zero": ({"learning_rate": -1.0}, "learning_rate"),
    "too few steps of re-acquisition": ({"reacquisition_steps": 2}, "reacquisition_steps"),
    "a general text that is missing": ({"general": "/no/text.txt"}, "/no/text.txt"),
    "a file of probes that is missing": ({"probes_file": "/no/probes.json"}, "/no/probes.json"),
}


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_bad_setting(good: TofuConfig, kind: str) -> None:
    changes, word = SETTINGS[kind]
    refused(replace(good, **changes), word)


def test_too_few_probes_in_a_file_are_refused(good: TofuConfig) -> None:
    write(Path(good.data) / "mine.json", ROWS[:3])
    refused(replace(good, probes_file=f"{good.data}/mine.json"), "probes_file")
