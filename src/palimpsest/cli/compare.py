"""Comparison of methods over one run or several."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer, say


def compare(
    runs: Annotated[list[Path], Argument(help="Run folders to compare.")],
    csv: Annotated[Path | None, Option("--csv", help="Write the leaderboard as CSV.")] = None,
    page: Annotated[Path | None, Option("--page", help="Write a page with all tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank methods by how close to retraining they come, over all cells of the runs."""
    from palimpsest.report.compare import board_lines, compared, comparison_page
    from palimpsest.report.formats import as_csv
    from palimpsest.run.store import write_bytes

    tables = compared(runs)
    board = tables[0]
    if csv is not None:
        write_bytes(csv, as_csv(board).encode())
        say(f"table: {csv}")
    if page is not None:
        write_bytes(page, comparison_page(tables).encode())
        say(f"page: {page}")
    if as_json:
        answer({table.name: table.plain() for table in tables})
        return
    answer(board_lines(board))
