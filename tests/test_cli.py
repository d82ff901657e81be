"""The command line answers on stdout, complains on stderr, and ends with the promised code."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclopts import App

from palimpsest.cell.estimate import Estimate, estimate_cells
from palimpsest.cell.study import StudyTask
from palimpsest.cli import app
from palimpsest.cli.output import Watch, status_lines
from palimpsest.config.load import as_dict, load_config
from palimpsest.config.plan import Plan
from palimpsest.methods import candidates
from palimpsest.report.results import read_run
from palimpsest.run.executor import Event
from palimpsest.run.status import Status, StepAtWork, duration
from palimpsest.run.steps import Failure
from tests.command import Done, palimpsest
from tests.shared_runs import tiny_plan

QUICK = Path(__file__).parents[1] / "examples" / "quick"


def commands(parent: App = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    for name in parent:
        if not name.startswith("-"):
            inner = list(commands(parent[name], (*path, name)))
            yield from inner or [(*path, name)]


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_help_says_of_every_argument_what_it_means(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    done = palimpsest(*command, "--help")
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.startswith(f"Usage: palimpsest {' '.join(command)} ")
    rows = [line.strip("│ *") for line in done.stdout.splitlines() if line.startswith("│")]
    assert rows
    for row in rows:
        meaning = row.partition("  ")[2].strip()
        assert re.match(r"[A-Z].*[.\]]$", meaning), row


@pytest.mark.parametrize(
    ("command", "also"),
    [
        *((name, ("--alpha", "--detection-limit")) for name in ("study", "audit")),
        *((name, ()) for name in ("demo", "unlearn", "retrain")),
    ],
)
def test_commands_that_compute_take_the_same_flags(command, also):
    shown = palimpsest(command, "--help").stdout
    flags = ("--workers", "--executor", "--per-step", "--reuse", "--out", "--json", "--dry-run")
    flags += ("--device", "--dtype", "--checkpointing", "--lora", *also)
    assert [flag for flag in flags if flag not in shown] == []


def test_it_says_its_version():
    asked = [sys.executable, "-m", "palimpsest", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and version("palimpsest-audit") in done.stdout


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "no-such-preset"], ["no-such-preset", "pocket-small"]),
        (["study", "pocket-small", "--alpha", "2"], ["--alpha"]),
        (["study", "pocket-small", "--detection-limit=-1", "--dry-run"], ["--detection-limit"]),
        (["study", "pocket-small", "--keep", "everything"], ["everything", "candidates"]),
        (["study", "pocket-small", "--method", "no_such_method"], ["no_such_method"]),
        (["study", "pocket-small", "--polo", "x"], ["--pool"]),
        (["demo", "--device", "gpu", "--dry-run"], ["gpu", "cuda"]),
        (["demo", "--per-step", "gpus=1"], ["--per-step", "--executor ray"]),
        (["demo", "--executor", "ray", "--per-step", "gpu=1"], ["--per-step", "gpus"]),
        (["demo", "--executor", "slurm"], ["slurm"]),
        (["design", "--forget", "0"], ["forget"]),
        (["report", "no-such-run"], ["no-such-run"]),
        (["status", "x" * 300], ["xxx"]),
        (["demo", "--out", "x" * 300], ["xxx"]),
        (["compare"], ["runs"]),
        (["facts", "check", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
        (["audit"], ["palimpsest audit --help"]),
        (["audit", "--referense", "x"], ["--reference", "palimpsest audit --help"]),
        (["certify"], ["--new-key"]),
        (["no-such-command"], ["no-such-command"]),
        (["study", "pocket-small", "--executor", "ray", "--workers", "many"], ["--workers"]),
        (["retrain", "--base", "pocket/qwen2-s"], ["out"]),
        (["unlearn", "--injected", "x", "--knob", "weight"], ["knob"]),
        (["verify", "no-such-file.zip"], ["no-such-file.zip"]),
        (["certify", "no-such-run"], ["no-such-run"]),
        (["logs", "no-such-folder"], ["no-such-folder"]),
        (["facts", "from-csv", "no-such.csv", "--out", "x.jsonl"], ["no-such.csv"]),
        (["facts", "from-csv", "no-such.csv"], ["--out", "palimpsest facts from-csv --help"]),
    ],
)
def test_bad_input_ends_with_2_and_one_readable_paragraph(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = palimpsest(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said and len(said) < 2_000
    assert [word for word in words if word not in said] == []
    assert list(tmp_path.iterdir()) == []


def test_a_key_of_a_list_is_named_by_its_flag(tmp_path):
    done = palimpsest("study", "pocket-small", "--keep", "everything", "--show")
    assert done.returncode == 2 and done.stderr.startswith("error: --keep: ")


@pytest.mark.parametrize(
    ("name", "advice"), [("torch", "palimpsest-audit[models]"), ("ray", "ray")]
)
def test_a_missing_package_ends_with_2_and_how_to_install_it(name, advice, monkeypatch):
    def missing() -> None:
        raise ModuleNotFoundError(name=f"{name}.nn")

    monkeypatch.setattr("palimpsest.methods.describe", missing)
    done = palimpsest("methods")
    assert done.returncode == 2 and f"pip install {advice}" in done.stderr.replace("'", "")


def test_a_reader_that_closes_the_pipe_ends_it_without_a_traceback():
    command = f"{sys.executable} -m palimpsest methods | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


# -- answers ---------------------------------------------------------------------------------------


def test_a_dry_run_says_what_a_study_takes_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = palimpsest("demo", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 cell" in done.stdout and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "more"), [("retrain", {"draws": 3}), ("unlearn", {"injected": "pocket/qwen2-s"})]
)
def test_a_request_in_yaml_takes_what_has_no_flag_and_flags_override_it(command, more, tmp_path):
    facts = {name: str(QUICK / f"{name}.jsonl") for name in ("forget", "retain")}
    values = {"base": "pocket/qwen2-s", "general": "pocket", **facts, **more}
    file = tmp_path / "request.yaml"
    for key, value, code in (("accumulate", 2, 0), ("accumulate", 0, 2), ("stacks", 1, 2)):
        file.write_text(yaml.safe_dump(values | {"out": "unused", "engine": {key: value}}))
        done = palimpsest(command, str(file), "--out", str(tmp_path / "made"), "--dry-run")
        assert done.returncode == code, done.stderr
        assert f"{tmp_path / 'made'}" in done.stdout or f"engine.{key}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["request.yaml"]


def test_a_dry_run_shows_what_is_left_of_a_run(tiny_study, tmp_path):
    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    plan = tiny_plan()
    specs, (cell,) = StudyTask(plan), plan.cell_ids()

    def left(out: Path) -> Estimate:
        return estimate_cells({cell: specs.plan(cell)}, out)

    whole, nothing = left(tmp_path / "new"), left(run)
    assert whole.stored == nothing.steps == nothing.seconds == 0
    assert nothing.stored == whole.steps and "nothing is left" in nothing.line(2)
    shutil.rmtree(run / "cells" / cell / "steps" / "known-label")
    # The weights it needs were dropped and are trained again.
    some = left(run)
    assert 1 < some.steps < whole.steps and some.steps + some.stored == whole.steps
    assert some.seconds > 0 and f"{some.steps} steps left" in some.line(2)
    # A new run takes everything from another one but what opens the sealed pool.
    reused = estimate_cells({cell: specs.plan(cell)}, tmp_path / "new", str(tiny_study))
    assert (reused.steps, reused.stored) == (some.steps, some.stored)


def test_a_finished_run_prints_its_answer_and_nothing_else_if_quiet(tiny_study, tmp_path):
    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(as_dict(tiny_plan())))
    words = ("study", str(tmp_path / "plan.yaml"), "--out", str(run))
    loud, quiet, whole = (palimpsest(*words, *more) for more in ((), ["--quiet"], ["--explain"]))
    assert quiet.stdout == loud.stdout and quiet.stderr == "" and "nothing left" in loud.stderr
    assert len(loud.stdout.splitlines()) <= 25 < len(whole.stdout.splitlines())
    (cell,) = read_run(run).cells
    assert cell.work is not None and f"{cell.work[0]} models trained" in loud.stdout
    trained = sum(step["kind"] == "train" for step in cell.summary["steps"])
    assert cell.work[0] == trained and 0 < cell.work[1] < 100


def test_a_method_that_is_added_takes_its_knobs_from_flags():
    def shown(*more: str) -> Done:
        return palimpsest("study", "demo", "--show", "--json", *more)

    done = shown("--method", "npo", "--knob", "weight=7,8", "--knob", "beta=0.5")
    plan = load_config(Plan, json.loads(done.stdout))
    made = [method for method in candidates(plan.methods) if method.name == "npo"]
    assert [(m.weight, m.beta) for m in made][-2:] == [(7.0, 0.5), (8.0, 0.5)]
    for wrong in ((), ("--method", "npo", "--method", "ga")):
        done = shown(*wrong, "--knob", "weight=7")
        assert done.returncode == 2 and "--knob" in done.stderr


def test_a_report_of_a_damaged_run_is_one_of_the_rest_and_ends_with_1(tiny_study, tmp_path):
    run, out = Path(shutil.copytree(tiny_study, tmp_path / "run")), tmp_path / "board.csv"
    before = (run / "summary.json").read_bytes()
    assert palimpsest("report", str(run)).returncode == 0
    assert (run / "summary.json").read_bytes() == before
    assert palimpsest("compare", str(run), "--csv", str(out)).returncode == 0
    assert "task_vector" in out.read_text()
    next(run.glob("cells/*/items.parquet")).write_bytes(b"damaged")
    damaged = palimpsest("report", str(run), "--json")
    assert (damaged.returncode, json.loads(damaged.stdout)["finished"]) == (1, 0)
    assert "items.parquet" in damaged.stderr


def test_a_finished_study_is_read_and_answers_in_one_document(tiny_study, tmp_path):
    run = Path(shutil.copytree(tiny_study, tmp_path / "run"))
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(as_dict(tiny_plan())))
    done = palimpsest("study", str(tmp_path / "plan.yaml"), "--out", str(run), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {"format", "kind", "cells", "report", "run"} <= set(answer)
    assert (answer["kind"], answer["run"]) == ("study", str(run)) and len(answer["cells"]) == 1


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["status", "RUN"], {"planned", "done", "failed", "waiting", "working", "seconds_left"}),
        (["report", "RUN"], {"report", "finished", "planned"}),
        (["compare", "RUN"], {"leaderboard"}),
        (["certify", "RUN", "--out", "OUT"], {"bundle", "verdicts"}),
        (["study", "demo", "--show"], {item.name for item in fields(Plan)}),
        (["ask", "RUN"], {"fact", "prompt", "truth", "model", "answer", "rank", "probability"}),
        (["methods"], {"name", "summary", "knobs", "needs"}),
        (["facts", "check", f"forget={QUICK}/forget.jsonl"], {"problems", "facts", "screen"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_json_is_one_document_with_the_keys_that_scripts_read(
    tiny_study, tmp_path, arguments, keys
):
    run = str(shutil.copytree(tiny_study, tmp_path / "run"))
    places = {"RUN": run, "OUT": str(tmp_path / "certificate.zip")}
    done = palimpsest(*(places.get(word, word) for word in arguments), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert all(keys <= set(row) for row in (document if isinstance(document, list) else [document]))


def test_design_counts_arrangements_and_references():
    def design(*words: str) -> dict[str, Any]:
        return json.loads(palimpsest("design", *words, "--json").stdout)

    answer = design("--forget", "4", "--probes", "16", "--candidates", "20")
    assert (answer["arrangements"], answer["required"], answer["min_probes"]) == (4845, 400, 8)
    assert answer["min_p"] == pytest.approx(1 / 4845) and 0 < answer["power"] < 1
    none, many = design("--probes", "4"), design("--references", "20")
    assert (none["arrangements"], none["certifiable"], answer["certifiable"]) == (70, False, True)
    assert many["references_suffice"] and many["min_p_model"] == pytest.approx(1 / 21)


def test_methods_fit_the_terminal_and_cut_nothing_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    told = palimpsest("methods").stdout
    assert max(map(len, told.split("\n"))) <= 60
    words = set(told.replace(",", " ").split())
    for row in json.loads(palimpsest("methods", "--json").stdout):
        assert set(row["citation"].replace(",", " ").split()) <= words
        assert set(row["knobs"]) <= {word.partition("=")[0] for word in words}


STEPS = [
    Event("", "run", words="RUN: 4 of 4 steps to do", total=1),
    *(Event("a", "step", f"train-{n}", f"training {n}" * 20, n, 4, phase="train") for n in (0, 1)),
    Event("a", "done", "train-1", "training 1", 2, 4, 3.0, phase="train"),
    Event("a", "step", "score", "measuring \x1b[31mit", 2, 4, phase="score"),
    Event("a", "again", "score", "its worker was lost"),
    Event("a", "failed", "score", "no memory"),
]


def test_piped_progress_is_one_line_a_phase_within_80_columns(monkeypatch, capsys):
    monkeypatch.setattr("palimpsest.cli.output.status", lambda run: made())
    watch = Watch(Path("RUN"))
    for event in STEPS:
        watch.show(event)
    told = capsys.readouterr()
    assert told.out == "" and told.err.splitlines() == [
        "RUN: 4 of 4 steps to do",
        "training models (0 of 4 steps)",
        r"measuring \x1b[31mit (2 of 4 steps, about 2.2 h left)",
        "a: its worker was lost",
        "a: score failed: no memory",
    ]
    Watch(Path("RUN")).show(replace(STEPS[-3], cell="c" * 80, words="w" * 80))
    assert len(capsys.readouterr().err.rstrip()) <= 80


@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_terminal_it_is_one_line_that_changes(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("palimpsest.cli.output.status", lambda run: made())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    watch = Watch(Path("RUN"))
    for event in STEPS:
        watch.show(event)
    first, lost, failed, rest = sys.stderr.getvalue().split("\n", 3)[0:4]  # type: ignore[attr-defined]
    assert first == STEPS[0].words and failed.endswith("no memory") and rest == ""
    *shown, last = lost.split("\r\x1b[K")
    assert len(shown) == 3 and last == "a: its worker was lost"
    assert all(len(line) < columns and "of 4 steps" in line for line in shown)


# -- the status of a run ---------------------------------------------------------------------------


def made(**changes: object) -> Status:
    values: dict[str, object] = {
        "planned": ("a", "b"),
        "done": (),
        "running": ("a",),
        "failed": {},
        "failed_candidates": {},
        "waiting": ("b",),
        "steps": {"a": ("draw",)},
        "totals": {"a": 4},
        "now": (StepAtWork("worker-0", "a", "train", "training the injected model", 100.0),),
        "working": True,
        "seconds_left": 8000.0,
    }
    return Status(**(values | changes))  # type: ignore[arg-type]


def test_lines_name_the_steps_at_work_and_the_time_left():
    assert status_lines(made()) == [
        "0 of 2 cells done, 1 running, 0 failed, 1 waiting",
        "about 2.2 h left",
        "running  a: training the injected model (1 of 4 steps done), for 2 min",
    ]


def test_failures_are_counted_named_and_cannot_command_the_terminal():
    failure = Failure("error", "\x1b[31m[red]x", "train")
    told = status_lines(
        made(failed={"b": failure}, waiting=(), failed_candidates={"a": {"npo": "nan\x1b"}})
    )
    assert r"failed   b: \x1b[31m[red]x" in told
    assert r"failed   a: candidate npo: nan\x1b" in told and told[0].endswith(": 1")


def test_a_run_without_a_process_says_how_to_resume():
    told = status_lines(made(running=(), now=(), waiting=("a", "b"), working=False))
    assert told[1] == "No active process. Run the same command again to resume."
    assert not any("left" in line for line in told)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "1 s"), (89, "89 s"), (95, "2 min"), (5400, "1.5 h"), (2e5, "2.3 days")],
)
def test_durations_are_in_the_usual_units(seconds, said):
    assert duration(seconds) == said
