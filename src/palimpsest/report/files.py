"""Writes ``RUN/report``: the page, tables as CSV, Markdown and LaTeX, figures as SVG and PNG."""

from collections.abc import Iterable
from pathlib import Path

from palimpsest.analysis.table import Table
from palimpsest.report.formats import as_csv, as_latex, as_markdown
from palimpsest.report.plots.canvas import Picture, png_bytes, svg_bytes
from palimpsest.run.disk import remove
from palimpsest.run.store import make_folder, write_bytes

WRITERS = {"csv": as_csv, "md": as_markdown, "tex": as_latex}
PRINTED = 2000  # rows up to which a table is written for people too


def write_files(
    folder: Path, page: str, tables: Iterable[Table], pictures: Iterable[Picture]
) -> Path:
    """Return the path of the page, after everything is on disk and older files are gone."""
    files: dict[Path, bytes] = {}
    for table in tables:
        endings = WRITERS if len(table.rows) <= PRINTED else ("csv",)
        for ending in endings:
            files[folder / "tables" / f"{table.name}.{ending}"] = WRITERS[ending](table).encode()
    for picture in pictures:
        files[folder / "figures" / f"{picture.name}.svg"] = svg_bytes(picture.figure)
        files[folder / "figures" / f"{picture.name}.png"] = png_bytes(picture.figure)
    for part in (folder, folder / "tables", folder / "figures"):
        make_folder(part)
    for path, data in files.items():
        write_bytes(path, data)
    for old in sorted((*(folder / "tables").iterdir(), *(folder / "figures").iterdir())):
        if old not in files and old.suffix in (".csv", ".md", ".tex", ".svg", ".png"):
            remove(old)  # of an earlier version, or of a run that had fewer cells
    write_bytes(folder / "index.html", page.encode())
    return folder / "index.html"
