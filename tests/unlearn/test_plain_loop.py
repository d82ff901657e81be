"""A recipe made outside the package is matched: by its own training, and by running the trainer.

A plain PyTorch loop makes the injected model and references. Models of ``retrain --train`` must be
retrainings to an audit against them, and references of ``retrain --command`` one kind with them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import palimpsest
from palimpsest.models.checkpoint import load

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "examples" / "quick"
TRAINER = ROOT / "examples" / "train.py"
RECIPE = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-4}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in RECIPE.items()]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_models_of_the_package_are_retrainings_of_a_plain_loop(tmp_path):
    base, refs = str(tmp_path / "base"), tmp_path / "refs"
    loaded = load("pocket/smollm2-s")
    loaded.model.save_pretrained(base)
    loaded.tokenizer.save_pretrained(base)
    train, kept = QUICK / "train.jsonl", tmp_path / "kept.jsonl"
    rows = train.read_text().splitlines(keepends=True)
    kept.write_text("".join(row for row in rows if '"forget"' not in row))

    def run_plain(data: Path, seed: int, out: Path) -> None:
        places = [f"--data={data}", f"--base={base}", f"--seed={seed}", f"--out={out}"]
        subprocess.run([sys.executable, str(TRAINER), *places, *FLAGS], check=True)

    run_plain(train, 100, tmp_path / "injected")
    for seed in range(101, 105):
        run_plain(kept, seed, refs / f"plain-{seed}")
    shared = {"base": base, "train": str(train)}
    command = f"{sys.executable} {TRAINER} --data {{data}} --base {{base}} --seed {{seed}}"
    command = " ".join([command, "--out {out}", *FLAGS])
    palimpsest.retrain(**shared, command=command, draws=4, out=str(tmp_path / "commanded"))
    for folder in (tmp_path / "commanded").iterdir():
        shutil.copytree(folder, refs / f"commanded-{folder.name}")

    injected = str(tmp_path / "injected")
    own = palimpsest.retrain(
        **shared, **RECIPE, with_forget=True, draws=2, out=str(tmp_path / "own")
    )
    held = palimpsest.unlearn(
        **shared, **RECIPE, injected=injected, method="held_vector", out=str(tmp_path / "held")
    )
    (record,) = held.records.values()
    assert record["cost"]["retrainings"] < 0.5

    answer = palimpsest.audit(
        base,
        injected,
        {"own-0": own.folders[1], "own-1": own.folders[2], "held": held.folders[0]},
        *(str(QUICK / f"{name}.jsonl") for name in ("forget", "retain", "probe")),
        str(QUICK / "general.txt"),
        [str(place) for place in sorted(refs.iterdir())],
        out=tmp_path / "run",
        learning_rate=1.5e-4,
    )
    verdict = answer.verdict
    assert verdict is not None and verdict.references is not None
    assert verdict.references.homogeneity is not None
    assert not verdict.references.homogeneity.odd
    found = {finding.name: finding for finding in verdict.findings}
    assert found["own-0"].clears or found["own-1"].clears
    assert verdict.certified
    assert found["held"].comparison is not None
