"""The command line answers on stdout, complains on stderr, and ends with the promised code."""

import io
import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from palimpsest.cell.estimate import Estimate, estimate_cells
from palimpsest.cell.study import StudySpecs
from palimpsest.cli.options import RunFlags
from palimpsest.cli.output import Watch
from palimpsest.errors import PlanError
from palimpsest.run.executor import Event
from palimpsest.run.ray import RayExecutor
from tests.command import palimpsest
from tests.shared_runs import tiny_plan


def test_design_answers_in_the_promised_keys() -> None:
    done = palimpsest("design", "--forget", "4", "--probes", "16", "--candidates", "20", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert (answer["arrangements"], answer["required"]) == (4845, 400)
    assert answer["min_p"] == pytest.approx(1 / 4845)
    assert (answer["certifiable"], answer["min_probes"]) == (True, 8)
    assert 0 < answer["power"] < 1
    none = json.loads(palimpsest("design", "--probes", "4", "--json").stdout)
    assert (none["arrangements"], none["certifiable"]) == (70, False)
    many = json.loads(palimpsest("design", "--references", "20", "--json").stdout)
    assert (many["references"], many["references_suffice"]) == (20, True)
    assert many["min_p_model"] == pytest.approx(1 / 21)


def test_it_says_its_version() -> None:
    asked = [sys.executable, "-m", "palimpsest", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and version("palimpsest-audit") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "no-such-preset"], ["no-such-preset", "pocket-small"]),
        (["study", "missing.yaml"], ["missing.yaml"]),
        (["study"], ["plan"]),
        (["study", "pocket-small", "--alpha", "2"], ["--alpha"]),
        (["study", "pocket-small", "--detection-limit=-1", "--dry-run"], ["--detection-limit"]),
        (["study", "pocket-small", "--keep", "everything"], ["everything", "candidates"]),
        (["study", "pocket-small", "--method", "no_such_method"], ["no_such_method"]),
        (["study", "pocket-small", "--device", "cuda"], ["cuda"]),
        (["study", "pocket-small", "--polo", "x"], ["--pool"]),
        (["demo", "--device", "gpu", "--dry-run"], ["gpu", "cuda"]),
        (["demo", "--per-step", "gpus=1"], ["--per-step", "--executor ray"]),
        (["demo", "--executor", "ray", "--per-step", "gpu=1"], ["--per-step", "gpus"]),
        (["demo", "--lora", "-1"], ["--lora"]),
        (["demo", "--executor", "slurm"], ["slurm"]),
        (["design", "--forget", "0"], ["forget"]),
        (["report", "no-such-run"], ["no-such-run"]),
        (["status", "no-such-run"], ["no-such-run"]),
        (["compare"], ["runs"]),
        (["facts", "check", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
        (["facts", "seal", "no-such-pool.jsonl"], ["no-such-pool.jsonl"]),
        (["audit"], ["palimpsest audit --help"]),
        (["audit", "--refs", "x"], ["--reference", "palimpsest audit --help"]),
        (["tofu", "--alpha", "2", "--dry-run"], ["--alpha"]),
        (["certify"], ["--new-key"]),
        (["no-such-command"], ["no-such-command"]),
    ],
)
def test_bad_input_ends_with_2_and_one_readable_paragraph(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = palimpsest(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said and len(said) < 2_000
    assert [word for word in words if word not in said] == []
    assert list(tmp_path.iterdir()) == []


def test_methods_lists_the_papers_pool_and_cuts_nothing_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = json.loads(palimpsest("methods", "--json").stdout)
    papers = ["kl_reversion", "gate_mask", "task_vector", "ga", "npo", "rollback"]
    assert [row["name"] for row in rows][:6] == papers
    monkeypatch.setenv("COLUMNS", "60")
    told = palimpsest("methods").stdout
    assert max(map(len, told.split("\n"))) <= 60
    words = set(told.replace(",", " ").split())
    for row in rows:
        assert set(row["citation"].replace(",", " ").split()) <= words
        assert set(row["knobs"]) <= {word.partition("=")[0] for word in words}


def test_a_dry_run_says_what_a_study_takes_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = palimpsest("demo", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 cell" in done.stdout and list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_what_is_left_of_a_run(tiny_study: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    plan = tiny_plan()
    specs, (cell,) = StudySpecs(plan), plan.cell_ids()

    def left(out: Path) -> Estimate:
        return estimate_cells({cell: specs(cell)}, out)

    whole, nothing = left(tmp_path / "new"), left(run)
    assert whole.stored == nothing.steps == nothing.seconds == 0
    assert nothing.stored == whole.steps and "nothing is left" in nothing.line(2)
    shutil.rmtree(run / "cells" / cell / "steps" / "known-label")
    # The weights it needs were dropped and are trained again.
    some = left(run)
    assert 1 < some.steps < whole.steps and some.steps + some.stored == whole.steps
    assert some.seconds > 0 and f"{some.steps} steps left" in some.line(2)


def test_report_status_and_compare_read_a_finished_study(tiny_study: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    before = (run / "summary.json").read_bytes()
    done = palimpsest("report", str(run), "--json")
    assert (
        json.loads(done.stdout)["finished"] == 1 and (run / "summary.json").read_bytes() == before
    )
    state = json.loads(palimpsest("status", str(run), "--json").stdout)
    assert state["working"] is False
    out = tmp_path / "board.csv"
    board = palimpsest("compare", str(run), "--csv", str(out), "--json")
    assert board.returncode == 0, board.stderr
    assert "task_vector" in out.read_text() and "task_vector" in board.stdout
    next(run.glob("cells/*/items.parquet")).write_bytes(b"damaged")
    damaged = palimpsest("report", str(run), "--json")
    assert (damaged.returncode, json.loads(damaged.stdout)["finished"]) == (1, 0)
    assert "items.parquet" in damaged.stderr


RUN = ("--workers", "--executor", "--per-step", "--reuse", "--out", "--json", "--dry-run")
ENGINE = ("--device", "--dtype", "--checkpointing", "--lora")
RULES = ("--alpha", "--detection-limit")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        *((name, (*RUN, *ENGINE, *RULES)) for name in ("study", "audit", "tofu")),
        *((name, (*RUN, *ENGINE)) for name in ("demo", "unlearn", "retrain")),
    ],
)
def test_commands_that_compute_take_the_same_flags(command: str, flags: tuple[str, ...]) -> None:
    shown = palimpsest(command, "--help").stdout
    assert [flag for flag in flags if flag not in shown] == []


def test_the_resources_of_a_step_reach_ray_and_no_other_executor() -> None:
    flags = RunFlags(executor="ray", per_step="gpus=0.5,memory=2")
    asked = RayExecutor(**flags.resources())
    wanted = {"num_cpus": 1, "num_gpus": 0.5, "memory": 2_000_000_000}
    assert asked.resources({"engine": {"device": "cpu"}}) == wanted
    for wrong in (
        RunFlags(per_step="memory=2"),
        *(RunFlags(executor="ray", per_step=text) for text in ("disk=1", "gpus=x", "gpus=1,")),
    ):
        with pytest.raises(PlanError) as refused:
            wrong.resources()
        assert refused.value.key == "--per-step"


def test_progress_is_one_line_per_event_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Watch() as watch:
        for event in (
            Event("", "run", words="run: 1 of 2 cells to do"),
            Event("a", "step", "train", "training \x1b[31mit", 0, 2),
            Event("a", "done", "train", "training it", 1, 2, 3.0),
            Event("a", "again", "score", "its worker was lost"),
            Event("a", "failed", "score", "no memory"),
            Event("b", "finished", "finish"),
        ):
            watch.show(event)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "run: 1 of 2 cells to do",
        r"a: training \x1b[31mit (0/2)",
        "a: its worker was lost",
        "a: score failed: no memory",
        "b: finished",
    ]


def test_a_terminal_shows_what_status_shows(
    tiny_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Watch() as watch:
        watch.show(Event("", "run", words=f"{tiny_study}: 1 of 1 cells to do"))
        watch.show(Event("a", "finished"))
    assert "a: finished" in terminal.getvalue()
    assert "1 of 1 cells" in terminal.getvalue()
