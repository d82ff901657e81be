"""The answer in the terminal, as JSON, CSV and page, without a library that loads models."""

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command import palimpsest
from tests.openunlearning.conftest import BASE, World

from palimpsest.cli.audit import logs
from palimpsest.openunlearning import logs as logs_of
from palimpsest.openunlearning.show import logs_figure

COMMAND = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "safetensors")))  # as if not installed
from palimpsest.cli import main
main()
"""


@pytest.fixture
def saves(world: World) -> Path:
    world.references()
    world.candidate("a_method_with_a_name_that_is_far_too_long_for_a_column", 0.4, 0.4)
    for step in (6, 18):
        world.candidate("<b>NPO", -1.0, 0.4, at=step)
    return world.root


def test_the_command_answers_first_in_80_columns_and_loads_no_torch(saves: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "logs", str(saves)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    order = [text.index(part) for part in ("logs of", "<b>NPO-18", "No certificate")]
    assert order == sorted(order)
    (row,) = (line for line in lines if "<b>NPO-18" in line)
    assert "1.00" in row and row.endswith("kk")  # AUC, and the path of both checkpoints


def test_400_runs_are_one_screen_and_all_of_them_can_be_had(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.references()
    for number in range(60):
        world.candidate(f"a_method_with_a_long_name_{number}", 0.4 if number == 37 else -2.0, 0.4)
    logs(world.root)
    short = capsys.readouterr().out.splitlines()
    assert len(short) <= 60 and max(map(len, short)) <= 80
    assert sum("method" in line for line in short) > 30 and "_37" in "".join(short[:12])
    logs(world.root, all=True)
    assert sum("method" in line for line in capsys.readouterr().out.splitlines()) >= 120


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_at_once(tmp_path: Path, number: int) -> None:
    busy = """
import time
import palimpsest.openunlearning.judging as judging
def find(paths):
    print("reading", flush=True)
    while True:  # as in one long call that looks at no flag
        sum(range(1000))
judging.find_logs = find
main()
"""
    command = [sys.executable, "-c", COMMAND.replace("main()\n", busy), "logs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"reading\n"
        process.send_signal(number)
        assert process.wait(timeout=20) == -number


def test_nothing_to_judge_is_an_error_that_says_what_to_do(world: World) -> None:
    world.write("mine", world.sets(0.4, 0.4))
    done = palimpsest("logs", str(world.root), "--json")
    assert done.returncode == 2 and not done.stdout
    assert "--role" in done.stderr and "mine" in done.stderr


def test_json_has_every_key(saves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs(saves, role=[f"tofu_{BASE}_full=candidate"], json=True)
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {
        *("models", "groups", "counts", "missing_for_certificate", "problems"),
    }
    (model,) = (entry for entry in document["models"] if entry["name"].endswith("full"))
    assert {
        *("name", "role", "split", "outcome", "reason", "p_below", "p_above", "median_forget"),
        *("median_holdout", "anchor", "score", "benchmark", "base", "checkpoint", "levels"),
        *("auc", "adjusted_below", "adjusted_above", "family", "anchor_logs", "reference_logs"),
    } <= set(model)
    assert (model["role"], model["levels"]["model_utility"]) == ("candidate", 0.6)
    assert document["groups"][0]["nearest"].keys() == {f"tofu_{BASE}_forget01_<b>NPO"}


def test_csv_and_page_are_written(saves: Path, tmp_path: Path) -> None:
    logs(saves, csv=tmp_path / "models.csv", page=tmp_path / "page")
    rows = list(csv.DictReader((tmp_path / "models.csv").read_text().splitlines()))
    assert len(rows) == 6 and rows[0]["model_utility"] == "0.6" and "levels" not in rows[0]
    assert float(rows[1]["median of retain"]) == pytest.approx(1.0, abs=0.1)
    page = (tmp_path / "page" / "index.html").read_text()
    assert "<b>NPO" not in page and "&lt;b&gt;NPO" in page
    assert not re.search(r"href=|url\(|<script ", page)
    assert page.count("data:image/svg+xml") == 1


def test_the_picture_has_a_mark_per_judged_model_and_a_line_per_run(saves: Path) -> None:
    (group,) = logs_of([saves]).groups
    (panel,) = logs_figure(group).figure.axes
    marks = [line for line in panel.lines if line.get_marker() != "None"]
    assert len(marks) == 5 == len(panel.texts)  # all but the anchor
    runs = [line for line in panel.lines if line.get_marker() == "None" and len(line.get_xdata())]
    assert sorted(len(line.get_xdata()) for line in runs) == [1, 1, 1, 2, 2]
