"""The command line answers on stdout, complains on stderr, and ends with the promised code."""

import io
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from palimpsest.cli.options import RunFlags
from palimpsest.cli.output import Watch
from palimpsest.errors import PlanError
from palimpsest.run.executor import Event
from palimpsest.run.ray import RayExecutor
from palimpsest.run.store import Run
from tests.command import palimpsest


def test_design_answers_in_the_promised_keys() -> None:
    done = palimpsest("design", "--forget", "4", "--probes", "16", "--candidates", "20", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["arrangements"] == 4845
    assert answer["min_p"] == pytest.approx(1 / 4845)
    assert answer["required"] == 400
    assert answer["certifiable"] is True
    assert answer["min_probes"] == 8
    assert 0 < answer["power"] < 1


def test_it_says_its_version() -> None:
    asked = [sys.executable, "-m", "palimpsest.cli", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"palimpsest {version('palimpsest-audit')}\n")


def test_design_says_when_nothing_can_be_excluded() -> None:
    done = palimpsest("design", "--forget", "4", "--probes", "4", "--candidates", "20", "--json")
    answer = json.loads(done.stdout)
    assert (answer["arrangements"], answer["certifiable"]) == (70, False)


def test_design_says_what_so_many_references_can_show() -> None:
    answer = json.loads(palimpsest("design", "--references", "19", "--json").stdout)
    assert (answer["references"], answer["required_references"]) == (19, 19)
    assert answer["min_p_model"] == pytest.approx(0.05)
    few = json.loads(palimpsest("design", "--references", "2", "--json").stdout)
    assert few["min_p_model"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "no-such-preset"], ["no-such-preset", "pocket-small"]),
        (["study", "missing.yaml"], ["missing.yaml"]),
        (["design", "--forget", "0"], ["forget"]),
        (["report", "no-such-run"], ["no-such-run"]),
        (["status", "no-such-run"], ["no-such-run"]),
        (["facts", "check", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
        (["facts", "check", "forgot=facts.jsonl"], ["unknown set 'forgot'", "forget, retain"]),
        (["audit"], ["palimpsest audit -h", "docs/audit-your-model.md"]),
        (["seal", "no-such-pool.jsonl"], ["no-such-pool.jsonl"]),
        (["study", "pocket-small", "--alpha", "2"], ["--alpha"]),
        (["study", "pocket-small", "--margin=-1", "--dry-run"], ["--margin"]),
        (["tofu", "--alpha", "2", "--dry-run"], ["--alpha"]),
        (
            ["tofu", "--train", "--base", "pocket/qwen2-s", "--return-steps", "1"],
            ["--return-steps"],
        ),
        (["study", "pocket-small", "--device", "cuda"], ["--device: cuda", "no CUDA device"]),
        (["inferability", "--device", "cuda"], ["--device: cuda", "no CUDA device"]),
        (["demo", "--device", "gpu", "--dry-run"], ["'gpu' found; expected cpu, cuda"]),
        (["verify", "."], ["a folder; expected a bundle"]),
        (["demo", "--gpus-per-step", "1"], ["--executor ray"]),
        (["demo", "--batch-tokens", "1"], ["--batch-tokens"]),
    ],
)
def test_bad_input_ends_with_2_and_one_readable_paragraph(
    arguments: list[str], words: list[str]
) -> None:
    done = palimpsest(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    for word in words:
        assert word in said


def test_facts_check_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    good = {"id": "f1", "answer": "Velkor", "trained": ["A is"], "heldout": ["B is"]}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "f2", "answer": ""}) + "\n")
    done = palimpsest("facts", "check", str(path))
    assert done.returncode == 2
    assert "line 2" in done.stdout
    assert "answer" in done.stdout


def test_methods_lists_the_papers_pool() -> None:
    done = palimpsest("methods", "--json")
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in json.loads(done.stdout)]
    assert names[:6] == ["kl_reversion", "gate_mask", "task_vector", "ga", "npo", "rollback"]


def test_methods_cuts_nothing_off_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told = palimpsest("methods").stdout
    assert max(map(len, told.split("\n"))) <= 60
    words = set(told.replace(",", " ").split())
    for row in json.loads(palimpsest("methods", "--json").stdout):
        assert set(row["citation"].replace(",", " ").split()) <= words
        assert set(row["knobs"]) <= {word.partition("=")[0] for word in words}


RUN = ("--workers", "--executor", "--address", "--gpus-per-step", "--memory-per-step")
RUN += ("--out", "--json", "--preview")
ENGINE = ("--device", "--dtype", "--batch-tokens", "--checkpointing", "--accumulate", "--optimizer")
RULES = ("--alpha", "--detection-limit", "--margin")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        *((name, (*RUN, *ENGINE, *RULES)) for name in ("study", "audit", "tofu")),
        *((name, (*RUN, *ENGINE)) for name in ("demo", "unlearn", "retrain", "inferability")),
        ("headroom", (*RUN, *ENGINE)),
        ("second-suite", RUN),
    ],
)
def test_commands_that_compute_take_the_same_flags(command: str, flags: tuple[str, ...]) -> None:
    shown = palimpsest(command, "--help").stdout
    assert [flag for flag in flags if flag not in shown] == []


def test_the_resources_of_a_step_reach_ray_and_no_other_executor() -> None:
    flags = RunFlags(executor="ray", gpus_per_step=0.5, memory_per_step=2, address="auto")
    options = flags.runner()
    assert options.pop("executor") == "ray"
    asked = RayExecutor(**options)
    assert asked.address == "auto"
    wanted = {"num_cpus": 1, "num_gpus": 0.5, "memory": 2_000_000_000}
    assert asked.resources({"engine": {"device": "cpu"}}) == wanted
    with pytest.raises(PlanError, match="--executor ray"):
        RunFlags(memory_per_step=2).runner()


def test_progress_is_one_line_per_event_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Watch() as watch:
        show = watch.begin(Path("run"))
        for event in (
            Event("", "run", words="run: 1 of 2 cells to do"),
            Event("a", "step", "train", "training \x1b[31mit", 0, 2),
            Event("a", "done", "train", "training it", 1, 2, 3.0),
            Event("a", "again", "score", "its worker was lost"),
            Event("a", "failed", "score", "no memory"),
            Event("b", "finished", "finish"),
        ):
            show(event)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", {}, {}, {}, {"commitment": "none"}, cells=("a",))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Watch() as watch:
        watch.begin(run.path)(Event("a", "finished"))
    assert "a: finished" in terminal.getvalue()
    assert "0 of 1 cells done" in terminal.getvalue()
