"""Writes ``RUN/report``: the page, tables as CSV, Markdown and LaTeX, figures as SVG and PNG."""

from collections.abc import Iterable
from pathlib import Path

from palimpsest.report.figures import Figure, paper_figure
from palimpsest.report.formats import Table, as_csv, as_latex, as_markdown
from palimpsest.report.palette import styles
from palimpsest.run.store import make_folder, write_bytes

WRITERS = {"csv": as_csv, "md": as_markdown, "tex": as_latex}


def write_files(
    folder: Path,
    page: str,
    tables: Iterable[Table],
    figures: Iterable[Figure],
    methods: Iterable[str],
) -> Path:
    """The path of the page, after everything is on disk."""
    for part in (folder, folder / "tables", folder / "figures"):
        make_folder(part)
    for table in tables:
        for ending, written in WRITERS.items():
            write_bytes(folder / "tables" / f"{table.name}.{ending}", written(table).encode())
    palette = styles(methods)
    for figure in figures:
        for ending, data in paper_figure(figure, palette).items():
            write_bytes(folder / "figures" / f"{figure.name}.{ending}", data)
    write_bytes(folder / "index.html", page.encode())
    return folder / "index.html"
