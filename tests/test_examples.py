"""The examples and quick starts do what they say: as printed, and as the commands do."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.config.sections import General, Reacquisition
from tests.audit.audit_models import STEPS, audit_values

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
QUICK = EXAMPLES / "quick"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import audit_by_hand

    return audit_by_hand


def same(by_hand: dict[str, Any], document: dict[str, Any]) -> None:
    """Check the numbers of an audit by hand against the summary of the command."""
    for name, found in document["candidates"].items():
        assert by_hand["p"][name] == pytest.approx(found["p"], abs=1e-5), name
        assert by_hand["screen_p"][name] == pytest.approx(found["screen_p"], rel=1e-9), name
        assert by_hand["worst_axis"][name] == found["worst_axis"]["name"], name
        assert (name in by_hand["passing"]) == found["clears"], name
        if found["at_most"] is not None and found["at_most"] < 0.1:
            assert by_hand["at_most"][name] == pytest.approx(found["at_most"], abs=1e-4), name


def test_the_numbers_of_an_audit_by_hand_are_the_commands(example, tiny_audit):
    values = audit_values(tiny_audit.parent)
    steps = {key: STEPS[key] for key in ("steps", "items", "chunks")}
    pieces = {key: STEPS[key] for key in ("scored_pieces", "piece_tokens")}
    by_hand = example.audit_by_hand(
        {key: values[key] for key in ("base", "injected")},
        values["candidates"],
        values["references"],
        {"forget": values["forget"], "retain": values["retain"], "probe": values["probes"]},
        Reacquisition(**steps, learning_rate=values["learning_rate"]),
        General(source=values["general"], **pieces),
    )
    same(by_hand, json.loads((tiny_audit / "summary.json").read_text()))


@pytest.mark.slow
def test_an_audit_by_hand_of_pocket_models_has_the_commands_verdict(example, tmp_path, capsys):
    example.main(tmp_path)
    printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    models = tmp_path / "models"
    answer = palimpsest.audit(
        base="pocket/qwen2-s",
        injected=str(models / "injected"),
        candidates={"nothing-done": str(models / "injected"), "retrained": str(models / "05")},
        references=[str(models / f"{number:02d}") for number in range(5)],
        **{key: str(QUICK / f"{key}.jsonl") for key in ("forget", "retain")},
        probes=str(QUICK / "probe.jsonl"),
        general=str(QUICK / "general.txt"),
        learning_rate=1.5e-4,
        out=tmp_path / "run",
    )
    by_hand = {key: eval(value) for key, value in printed.items() if key != "reason"}
    same(by_hand, dict(answer.document))
    assert answer.verdict is not None
    assert printed["reason"] == str(answer.verdict.reason)


@pytest.mark.filterwarnings("ignore")
def test_watched_training_logs_the_nll_of_every_set(tmp_path, monkeypatch, capsys):
    files = [str(QUICK / f"{name}.jsonl") for name in ("forget", "retain", "probe")]
    monkeypatch.setattr(sys, "argv", ["watch_training.py", "pocket/qwen2-s", *files])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "watch_training.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if "retain_nll" in line]
    first, *_, last = [ast.literal_eval(line[line.index("{") :]) for line in lines]
    assert list(first) == ["step", "forget_nll", "retain_nll", "probe_nll"]
    assert (first["step"], last["step"]) == (0, 10)
    assert last["retain_nll"] < first["retain_nll"] - 0.05


def test_the_files_of_the_quick_start_are_what_their_script_writes(tmp_path):
    script = [sys.executable, str(EXAMPLES / "make_facts.py"), str(tmp_path)]
    subprocess.run(script, check=True)
    for file in sorted(QUICK.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert len(list(tmp_path.iterdir())) == len(list(QUICK.iterdir()))


EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
manager = nbclient.client.KernelManager(kernel_name="python3")
manager.kernel_spec.argv[0] = sys.executable
nbclient.NotebookClient(notebook, timeout=300, km=manager).execute()
nbformat.write(notebook, sys.argv[2])
"""


def printed_by(notebook: Any) -> list[str]:
    """The kinds of output of every cell of code, in order."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["+".join(sorted({o["output_type"] for o in cell["outputs"]})) for cell in cells]


@pytest.mark.slow
def test_the_notebook_runs_and_its_outputs_are_committed(tmp_path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    notebook, done = EXAMPLES / "tour.ipynb", tmp_path / "done.ipynb"
    committed = printed_by(json.loads(notebook.read_text("utf-8")))
    assert sum(map(bool, committed)) >= 6
    # In a process of its own: the client leaves sockets open.
    subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook), str(done)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "JUPYTER_PLATFORM_DIRS": "1"},
        cwd=tmp_path,
        check=True,
    )
    assert printed_by(json.loads(done.read_text("utf-8"))) == committed


def run_quick_start(page: str, folder: Path) -> tuple[str, str]:
    """Run the commands of a page's quick start; return what it says that they print, and what they
    print."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands, promised = (part.strip("\n") for part in section.split("```")[1:4:2])
    activate, rest = commands.split("\n", 1)
    assert activate == ". .venv/bin/activate"  # the test has its environment already
    (folder / "examples").symlink_to(EXAMPLES)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", rest],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return promised, done.stdout


def labels(text: str) -> list[tuple[str, ...]]:
    """Name and label of each row of the table of candidates, in order."""
    rows = [re.split(r"  +", line) for line in text.splitlines() if re.match(r"\d+  ", line)]
    return [tuple(row[1:3]) for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quick_start_of_an_audit_gives_the_verdict_it_prints(tmp_path):
    promised, printed = run_quick_start("audit-your-model.md", tmp_path)
    assert len(labels(promised)) == 5 and labels(promised) == labels(printed)
    assert promised.split("(")[0] == printed[printed.index("Certified") :].split("(")[0]
    document = json.loads((tmp_path / "quick" / "run" / "summary.json").read_text())
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared == ["retrained"] and document["detection_limit"] <= 0.25


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quick_start_of_unlearning_gives_the_labels_it_prints(tmp_path):
    promised, printed = run_quick_start("unlearn-your-model.md", tmp_path)
    for line in re.findall(r"^wrote .*$", promised, re.MULTILINE):
        assert line in printed
    document = json.loads((tmp_path / "mine" / "run" / "summary.json").read_text())
    for name, found in document["candidates"].items():
        assert re.search(rf"{name}\s+{found['label']}\b", promised)
