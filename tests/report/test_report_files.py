"""The files of a report: all there, the same bytes each time, made without torch."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from palimpsest.report.html import write_report
from palimpsest.report.plots import canvas, shared
from palimpsest.report.plots.canvas import Picture, png_bytes, svg_bytes


def contents(page: Path) -> dict[str, bytes]:
    folder = page.parent
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_the_same_artifacts_give_the_same_bytes(matrix_page: Path) -> None:
    before = contents(matrix_page)
    assert contents(write_report(matrix_page.parents[1])) == before


def test_a_second_process_draws_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def picture(width: float) -> Picture:
        figures = [canvas.sheet(1, 1, (width + n, 1.0))[0] for n in range(2)]
        return Picture(f"of {width}", "", *figures)

    def drawn(pictures: Sequence[Picture]) -> list[tuple[bytes, bytes, bytes]]:
        return [(svg_bytes(p.figure), png_bytes(p.figure), svg_bytes(p.narrow)) for p in pictures]

    def kept(pictures: Sequence[Picture]) -> list[bool]:
        return [f in canvas._drawn for p in pictures for f in (p.figure, p.narrow)]

    alone, shared_out, left = ([picture(1.0), picture(2.0)] for _ in range(3))
    expected = drawn(alone)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    shared.draw_together(shared_out)
    assert all(kept(shared_out)) and drawn(shared_out) == expected
    monkeypatch.setattr(shared, "_send", lambda *_: None)  # a process that draws nothing
    shared.draw_together(left)
    assert sum(kept(left)) == 2 and drawn(left) == expected


def test_every_table_has_three_forms_and_every_figure_two(cell_page: Path) -> None:
    names = contents(cell_page)
    assert "index.html" in names
    stems = {name.rpartition(".")[0] for name in names if name != "index.html"}
    for stem in stems:
        endings = ("csv", "md", "tex") if stem.startswith("tables/") else ("svg", "png")
        assert all(f"{stem}.{ending}" in names for ending in endings)
    figures = {stem.removeprefix("figures/") for stem in stems if stem.startswith("figures/")}
    assert {"retrainings", "measures", "forget-deltas", "relearning", "diagnostic"} <= figures
    assert {"candidates", "controls", "positions", "leaderboard"} <= {
        s.partition("/")[2] for s in stems
    }


def test_files_of_an_earlier_version_are_removed_and_others_are_kept(
    uncertified_page: Path,
) -> None:
    folder = uncertified_page.parent
    old, mine = folder / "figures" / "distance.svg", folder / "figures" / "notes.txt"
    old.write_text("old")
    mine.write_text("mine")
    write_report(folder.parent)
    assert not old.exists() and mine.read_text() == "mine"
    mine.unlink()


@pytest.mark.parametrize("page", ["cell_page", "matrix_page"])
def test_figures_carry_no_date_and_no_maker(page: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(page).parent / "figures"
    for file in folder.glob("*.svg"):
        assert b"<dc:date>" not in file.read_bytes() and b"<text" in file.read_bytes()
    for file in folder.glob("*.png"):
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG") and b"tEXt" not in data and b"Software" not in data


def test_a_report_is_written_without_torch(cell_page: Path) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers'):\n"
        "            raise ImportError(name + ' is not here')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from palimpsest.report.html import write_report\n"
        "print(write_report(sys.argv[1]))\n"
    )
    run = cell_page.parents[1]
    before = contents(cell_page)
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert contents(cell_page) == before
