"""A certificate for readers: the page of a verified bundle, and a section of a model card.

A model card's section says what was found in the words of the verdict and how anyone can check it;
nothing in it is computed here. Format: github.com/huggingface/hub-docs, modelcard.md.
"""

from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from palimpsest.certificate.bundle import Bundle, read_bundle
from palimpsest.certificate.checks import Verification
from palimpsest.errors import InputError
from palimpsest.run.files import digest, make_folder, write_bytes


def write_bundle_page(result: Verification, folder: Path) -> Path:
    """Write the page of the run in a verified bundle into a new folder; return the page's path.

    The page is made from the bytes that were verified, whatever is in the file by now.
    """
    from palimpsest.paper.tables import paper_section
    from palimpsest.report.page import write_report

    result.require("the bundle")
    if folder.exists():
        raise InputError(f"{folder}: exists; expected a new folder for the page")
    results = replace(Bundle(result.data).results, path=folder)
    return write_report(results, paper_section(results))


def write_model_card(bundle: Path, path: Path, cell: str | None = None) -> None:
    """Write the card of a certificate's certified or nearest candidate to a file.

    cell: which, where the certificate has several.
    """
    data = read_bundle(bundle)
    results = Bundle(data).results
    cells = results.planned
    chosen = cell or (cells[0] if len(cells) == 1 else "")
    verdict = results.cell(chosen).verdict if chosen in cells else None
    name = None if verdict is None else verdict.candidate or verdict.nearest
    if verdict is None or name is None:
        raise InputError(
            f"model card: cell {chosen!r} found; expected one with a candidate, of the "
            f"{len(cells)} cells of {bundle} such as {cells[0]}; name it with --cell"
        )
    text = (Path(__file__).with_name("card.md.j2")).read_text("utf-8")
    card = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    values = {"name": name, "verdict": verdict, "comparison": verdict.finding(name).comparison}
    values |= {"digest": digest(data), "file": bundle.name}
    make_folder(path.absolute().parent)
    write_bytes(path, card.from_string(text).render(values).encode())
