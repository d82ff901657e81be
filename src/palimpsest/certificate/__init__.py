"""Certificates: a run's evidence in one archive that others can check without torch.

::

    bundle.py     what is in a bundle, bounded reading of it, its in-toto statement
    checks.py     the checks of a bundle, each a function, and what they say together
    signature.py  Ed25519 signatures in a DSSE envelope
    card.md.j2    a section of a model card
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.certificate.bundle import (
    ENVELOPE,
    STATEMENT,
    Bundle,
    gather,
    pack,
    read_bundle,
    statement,
)
from palimpsest.certificate.checks import Verification, examine
from palimpsest.certificate.signature import (
    envelope,
    keygen,
    public_of,
    read_private,
    read_public,
    signer,
)
from palimpsest.errors import InputError
from palimpsest.files import given_path
from palimpsest.run.files import digest, make_folder, write_bytes
from palimpsest.run.store import Run

__all__ = ["Verification", "certify", "keygen", "read_verdicts", "verify"]


def verify(bundle_path: Path | str, public_key: Path | str | None = None) -> Verification:
    """Return the verification of the bundle in a file; InputError when it cannot be read at all.

    ``public_key`` is a PEM file with the key that the bundle must be signed with.

    ::

        checked = palimpsest.verify("certificate.zip")
        checked.answer, checked.verdicts
        print("\\n".join(checked.lines()))
    """
    public = None if public_key is None else read_public(given_path("public_key", public_key))
    return examine(read_bundle(given_path("bundle_path", bundle_path)), public)


def certify(
    run_path: Path | str,
    out_path: Path | str | None = None,
    key_path: Path | str | None = None,
    pool_path: Path | str | None = None,
) -> Path:
    """Write the certificate of a finished run and return its path (RUN/certificate.zip).

    ``key_path`` is an Ed25519 private key in PEM form; ``pool_path`` the file of a sealed pool of
    the user's own, which the certificate reveals. Nothing is written unless the bundle passes every
    check of ``verify``.

    ::

        palimpsest.certify("demo-run", "certificate.zip")
    """
    run = Run.open(given_path("run_path", run_path))
    key = None if key_path is None else read_private(key_path)
    public = None if key is None else public_of(key)
    out = run.path / "certificate.zip" if out_path is None else Path(out_path)
    if out.is_dir():
        raise InputError(f"{out}: a folder; expected the name of a file to write")
    members = gather(run, pool_path)
    members[STATEMENT] = statement(Bundle(members), None if public is None else signer(public))
    members |= {} if key is None else {ENVELOPE: envelope(members[STATEMENT], key)}
    data = pack(members)
    examine(data, public).require(str(run.path))
    make_folder(out.parent)
    write_bytes(out, data)
    return out


def read_verdicts(path: Path | str) -> dict[str, dict[str, Any]]:
    """Return what a bundle's statement says of each cell's verdict, without verifying anything."""
    stated = Bundle(read_bundle(Path(path))).stated
    return {cell_id: cell["verdict"] for cell_id, cell in stated["predicate"]["cells"].items()}


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
    return write_report(results, paper_section(results), result.heading())


def write_model_card(bundle: Path, path: Path, cell: str | None = None) -> None:
    """Write a section for the model card of a certificate's certified or nearest candidate.

    It says what was found in the words of the verdict and how anyone can check it, after metadata
    for the Hugging Face hub (github.com/huggingface/hub-docs, modelcard.md).
    cell: which, where the certificate has several.
    """
    from jinja2 import Environment, StrictUndefined

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
    text = Path(__file__).with_name("card.md.j2").read_text("utf-8")
    card = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    values = {"name": name, "verdict": verdict, "comparison": verdict.finding(name).comparison}
    values |= {"digest": digest(data), "file": bundle.name}
    make_folder(path.absolute().parent)
    write_bytes(path, card.from_string(text).render(values).encode())
