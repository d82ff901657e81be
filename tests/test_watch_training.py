"""The example that watches a Trainer logs the NLL of every set."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.filterwarnings("ignore")
def test_the_nll_of_what_is_trained_falls_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(EXAMPLES / "quick" / f"{name}.jsonl") for name in ("forget", "retain", "probe")]
    monkeypatch.setattr(sys, "argv", ["watch_training.py", "pocket/qwen2-s", *files])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "watch_training.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if "retain_nll" in line]
    first, *_, last = [ast.literal_eval(line[line.index("{") :]) for line in lines]
    assert list(first) == ["step", "forget_nll", "retain_nll", "probe_nll"]
    assert (first["step"], last["step"]) == (0, 10)
    assert last["retain_nll"] < first["retain_nll"] - 0.05
