"""The notebook runs from its first cell to its last, and is committed with what it printed."""

import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def printed(notebook: object) -> list[str]:
    """The kinds of output of every cell of code, in order."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]  # type: ignore[index]
    return ["+".join(sorted({o["output_type"] for o in cell["outputs"]})) for cell in cells]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_its_outputs_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    source = Path(__file__).parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", str(source))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    committed = printed(notebook)
    assert sum(map(bool, committed)) >= 6
    manager = nbclient.client.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    client = nbclient.NotebookClient(notebook, timeout=300, km=manager)
    client.execute()
    assert printed(notebook) == committed
    text = "".join(o.get("text", "") for cell in notebook["cells"] for o in cell.get("outputs", ()))
    assert "certified" in text.lower() and "recomputed" in text
