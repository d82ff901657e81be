"""Retrainings of a pocket model, made once for all tests that certify."""

import shutil
from pathlib import Path

import pytest
from tests.audit.audit_models import mix
from tests.command import palimpsest
from tests.shared_runs import made_once

BASE = "pocket/qwen2-s"
QUICK = Path(__file__).parents[2] / "examples" / "quick"
REFERENCES, FRESH = 20, 3


def _run(*words: str) -> None:
    done = palimpsest(*words, "--retain", f"{QUICK}/retain.jsonl", "--workers=2")
    assert done.returncode == 0, done.stderr


def _make(folder: Path) -> None:
    """Write references 00 to 19, base, injected, and candidates, all by the commands."""
    general = ("--general", f"{QUICK}/train.txt")
    forget = f"{QUICK}/forget.jsonl"
    models = folder / "models"
    more = ("--base", BASE, *general)
    both = ("--forget", forget, "--with-forget")
    _run("retrain", *more, *both, f"--draws={REFERENCES + FRESH + 1}", f"--out={models}")
    _run("retrain", *more, "--draws=1", "--seed=3", "--steps=50", f"--out={folder / 'short'}")
    unlearn = ("unlearn", *more, "--injected", f"{models}/injected", "--forget", forget)
    for name, knobs in {"ga": ("--knob", "weight=12"), "kl_reversion": (), "npo": ()}.items():
        _run(*unlearn, f"--method={name}", *knobs, f"--out={folder / name}")
    for number in range(FRESH):
        (models / f"{REFERENCES + number}").rename(folder / f"fresh-{number}")
    last = models / f"{REFERENCES + FRESH}"
    mix(last, models / "injected", folder / "left-25", 0.25)
    shutil.rmtree(last)
    (models / "injected").rename(folder / "injected")
    noted(models / "00", folder / "copied")


def noted(source: Path, target: Path) -> None:
    """Write a copy of a checkpoint whose files differ in their metadata alone."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", "seed": "other"})
    (target / "notes.txt").write_text("another seed")


@pytest.fixture(scope="session")
def pocket_models(tmp_path_factory):
    """A folder with ``models/00`` to ``19``, ``injected``, ``short/00`` and candidates."""
    return made_once(tmp_path_factory, "pocket-models", _make)
