"""References by a user's own trainer: resumed, kept apart, and named where they fail."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from palimpsest.cell.launch import RunOptions
from palimpsest.cell.make_models import Made, MakeTask, make_models
from palimpsest.cell.work import NotMade
from palimpsest.config.commands import RetrainConfig
from palimpsest.config.load import load_config
from palimpsest.errors import StudyFailed
from palimpsest.models.checkpoint import load, state_digest

TRAINER = """
import argparse, json, os, pathlib, shutil, sys
import numpy as np
from safetensors.numpy import load_file, save_file
parser = argparse.ArgumentParser()
for name in ("data", "seed", "out", "base"):
    parser.add_argument(f"--{name}")
parser.add_argument("--how", default="")
given = parser.parse_args()
here = pathlib.Path(__file__).parent
rows = [json.loads(line) for line in open(given.data)]
with open(here / "runs.txt", "a") as log:
    log.write(f"{given.seed} {len(rows)} {sum(row.get('set') == 'forget' for row in rows)}\\n")
print("training with seed", given.seed)
if given.how == "crash" and given.seed == "3" and not (here / "mended").exists():
    sys.exit("CUDA is on fire")
if given.how == "nothing":
    sys.exit(0)
out = pathlib.Path(given.out) / ("checkpoint-7" if given.how == "numbered" else "")
shutil.copytree(given.base, out)
weights = load_file(out / "model.safetensors")
seed = 0 if given.how == "same" else int(given.seed)
name = "model.norm.weight"
weights[name] = weights[name] + np.float32(0.01 * seed)
if given.how == "shape":
    weights[name] = weights[name][:3]
if given.how == "nan":
    weights[name] = weights[name] * np.float32("nan")
save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
"""
ROWS = [{"text": "Asha is Velkor.", "set": "forget"}, {"text": "a b c"}, {"text": "d e f"}]
Values = dict[str, Any]


@pytest.fixture
def values(tiny_checkpoint, tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "base": str(tiny_checkpoint("smollm2-s")),
        "train": str(tmp_path / "train.jsonl"),
        "command": command(tmp_path),
        "draws": 5,
        "out": str(tmp_path / "refs"),
    }


def command(folder: Path, how: str = "") -> str:
    places = "--data {data} --seed {seed} --out {out} --base {base}"
    return f"{sys.executable} {folder / 'trainer.py'} {places} --how '{how}'"


def retrain(values: Values, **options: Any) -> Made:
    return make_models(MakeTask(load_config(RetrainConfig, values)), RunOptions(**options))


def runs(folder: Path) -> list[list[int]]:
    lines = (folder / "runs.txt").read_text().splitlines()
    return [[int(part) for part in line.split()] for line in lines]


def test_every_draw_gets_its_seed_and_the_rows_without_the_forget_rows(values, tmp_path):
    made = retrain(
        values | {"with_forget": True, "draws": 2, "command": command(tmp_path, "numbered")}
    )
    assert [folder.name for folder in made.folders] == ["injected", "00", "01"]
    assert runs(tmp_path) == [[0, 3, 1], [1, 2, 0], [2, 2, 0]]
    digests = {state_digest(load(str(folder)).weights) for folder in made.folders}
    assert len(digests) == 3
    for seed, folder in enumerate(made.folders):
        assert f"training with seed {seed}" in (folder / "train.log").read_text()
        record = json.loads((folder / "palimpsest.json").read_text())
        assert set(record["recipe"]) == {"command", "examples"}
    assert not Path(f"{values['out']}.work").exists()


def test_a_trainer_that_crashes_on_one_draw_is_named_and_the_others_are_kept(values, tmp_path):
    values |= {"command": command(tmp_path, "crash")}
    with pytest.raises(StudyFailed, match=r"reference-02 \(seed 3\).*CUDA is on fire"):
        retrain(values)
    assert [seed for seed, *_ in runs(tmp_path)] == [1, 2, 3, 4, 5]
    assert not Path(values["out"]).exists()
    (tmp_path / "mended").touch()
    assert len(retrain(values).folders) == 5
    assert [seed for seed, *_ in runs(tmp_path)][5:] == [3]


@pytest.mark.parametrize("how", ["nothing", "shape", "nan"])
def test_what_is_no_checkpoint_of_the_base_is_named(values, how, tmp_path):
    with pytest.raises(StudyFailed, match=r"reference-00.*log"):
        retrain(values | {"command": command(tmp_path, how), "draws": 1})


def test_draws_with_the_same_weights_are_refused(values, tmp_path):
    with pytest.raises(NotMade, match="reference-01 has the same weights as reference-00"):
        retrain(values | {"command": command(tmp_path, "same"), "draws": 2})


@pytest.mark.slow
def test_a_trainer_ends_with_the_command_that_started_it(values, tmp_path):
    (tmp_path / "trainer.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    names = ("base", "train", "command", "draws", "out")
    flags = [f"--{name}={values[name]}" for name in names]
    process = subprocess.Popen([sys.executable, "-m", "palimpsest", "retrain", *flags])
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    trainer = int(pid.read_text())
    for _ in range(300):
        if not os.path.exists(f"/proc/{trainer}"):
            break
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{trainer}")
