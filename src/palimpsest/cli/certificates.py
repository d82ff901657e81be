"""Certificates: write, verify, sign."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer, say
from palimpsest.errors import BundleError, InputError


def certify(
    run: Annotated[Path, Argument(help="Finished run folder.")],
    out: Annotated[
        Path | None, Option("--out", help="Archive to write. Default: RUN/certificate.zip.")
    ] = None,
    key: Annotated[Path | None, Option(help="Ed25519 private key (PEM) to sign with.")] = None,
    pool: Annotated[Path | None, Option(help="Your sealed pool, to reveal in the bundle.")] = None,
    card: Annotated[
        Path | None,
        Option("--model-card", help="Write a model-card section with hub metadata (.md)."),
    ] = None,
    cell: Annotated[
        str | None, Option(help="Cell of the model card, if there are several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a certificate: one archive with plan, rules, seal, scores and verdicts."""
    from palimpsest.certificate import certify as write_bundle
    from palimpsest.certificate.archive import unpack
    from palimpsest.certificate.bundle import STATEMENT, document
    from palimpsest.run.status import status

    try:
        bundle = write_bundle(run, out, key, pool)
    except BundleError as error:
        now = status(run)
        if len(now.done) == len(now.planned):
            raise
        # Evidence that fails is damage; a run that is not finished is the wrong input.
        raise InputError(str(error)) from error
    if card is not None:
        from palimpsest.certificate.model_card import model_card
        from palimpsest.run.disk import write_bytes

        write_bytes(card, model_card(bundle, cell).encode())
    cells = document(unpack(bundle.read_bytes()), STATEMENT)["predicate"]["cells"]
    verdicts = {cell: entry["verdict"] for cell, entry in cells.items()}
    if as_json:
        answer({"bundle": str(bundle), "verdicts": verdicts})
        return
    answer(str(bundle))
    for cell, verdict in verdicts.items():
        where = f"{cell}: " if len(verdicts) > 1 else ""
        answer(f"{where}verdict: {_in_words(verdict)}")


def _in_words(verdict: Mapping[str, Any]) -> str:
    if verdict["status"] is None:
        return "none, because there is no candidate"
    if verdict["status"] == "certified":
        return f"certified: {verdict['candidate']}"
    return f"uncertified: {verdict['reason']}"


def verify(
    bundle: Annotated[Path, Argument(help="Archive that certify wrote.")],
    key: Annotated[Path | None, Option(help="Public key (PEM) that must have signed it.")] = None,
    page: Annotated[Path | None, Option(help="New folder to write the run's page into.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the verdicts of a certificate and check hashes, rules, seal and signature."""
    from palimpsest.certificate import verify as check_bundle

    inside = bundle / "certificate.zip"
    if bundle.is_dir() and inside.is_file():
        raise InputError(
            f"{bundle}: is a folder; expected a certificate; use `palimpsest verify {inside}`"
        )
    result = check_bundle(bundle, key)
    answer(result.to_json() if as_json else "\n".join(result.lines()))
    if not result.ok:
        raise typer.Exit(1)
    if page is not None:
        from palimpsest.report.html import write_bundle_report

        say(f"page: {write_bundle_report(bundle, page)}")


def keygen(
    out: Annotated[
        Path, Argument(help="Private key file. The public key is written beside it (.pub).")
    ],
) -> None:
    """Generate an Ed25519 key pair for signing certificates."""
    from palimpsest.certificate import keygen as make_key

    answer("\n".join(str(path) for path in make_key(out)))
