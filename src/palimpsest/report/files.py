"""Writes tables as CSV, Markdown and LaTeX, figures as SVG and PNG, and the page they belong to."""

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
    path: Path,
    page: str,
    tables: Iterable[Table],
    pictures: Iterable[Picture],
    endings: Iterable[str] = WRITERS,
) -> set[Path]:
    """Write a page after its tables and figures, in folders beside it; return what these are."""
    data, drawn = path.parent / "tables", path.parent / "figures"
    files: dict[Path, bytes] = {}
    for table in tables:
        for ending in endings if len(table.rows) <= PRINTED else ("csv",):
            files[data / f"{table.name}.{ending}"] = WRITERS[ending](table).encode()
    for picture in pictures:
        files[drawn / f"{picture.name}.svg"] = svg_bytes(picture.figure)
        files[drawn / f"{picture.name}.png"] = png_bytes(picture.figure)
    for folder in (path.parent, data, drawn):
        make_folder(folder)
    for file, content in files.items():
        write_bytes(file, content)
    write_bytes(path, page.encode())
    return set(files)


def remove_others(folder: Path, kept: set[Path]) -> None:
    """Remove tables and figures of an earlier version, or of a run that had fewer cells."""
    for old in sorted((*(folder / "tables").iterdir(), *(folder / "figures").iterdir())):
        if old not in kept and old.suffix in (".csv", ".md", ".tex", ".svg", ".png"):
            remove(old)
