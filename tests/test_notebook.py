"""The notebook runs from its first cell to its last, and is committed with what it printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
manager = nbclient.client.KernelManager(kernel_name="python3")
manager.kernel_spec.argv[0] = sys.executable
nbclient.NotebookClient(notebook, timeout=300, km=manager).execute()
nbformat.write(notebook, sys.argv[2])
"""


def printed(notebook: object) -> list[str]:
    """The kinds of output of every cell of code, in order."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]  # type: ignore[index]
    return ["+".join(sorted({o["output_type"] for o in cell["outputs"]})) for cell in cells]


@pytest.mark.slow
def test_the_notebook_runs_and_its_outputs_are_committed(tmp_path: Path) -> None:
    committed = printed(json.loads(NOTEBOOK.read_text("utf-8")))
    assert sum(map(bool, committed)) >= 6
    done = tmp_path / "done.ipynb"
    # In a process of its own: the client leaves sockets open.
    subprocess.run(
        [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(done)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "JUPYTER_PLATFORM_DIRS": "1"},
        cwd=tmp_path,
        check=True,
    )
    notebook = json.loads(done.read_text("utf-8"))
    assert printed(notebook) == committed
    parts = [o.get("text", "") for cell in notebook["cells"] for o in cell.get("outputs", ())]
    text = "".join("".join(part) for part in parts)
    assert "certified" in text.lower() and "recomputed" in text
