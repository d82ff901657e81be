"""Certificates: make one, check one, sign one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer
from palimpsest.errors import BundleError, InputError


def certify(
    run: Path,
    out: Annotated[Path | None, typer.Option("--out", help="The archive to write.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) to sign with.")
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="Your sealed audit pool, to reveal.")] = None,
    as_json: AsJson = False,
) -> None:
    """One archive with plan, rules, seal, scores and verdicts, for others to check."""
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
        # Evidence that fails is damage; a run that has not come to its end is the wrong input.
        raise InputError(str(error)) from error
    cells = document(unpack(bundle.read_bytes()), STATEMENT)["predicate"]["cells"]
    verdicts = {cell: told["verdict"] for cell, told in cells.items()}
    if as_json:
        answer({"bundle": str(bundle), "verdicts": verdicts})
        return
    answer(str(bundle))
    for cell, verdict in verdicts.items():
        where = f"{cell}: " if len(verdicts) > 1 else ""
        answer(f"{where}certificate of {_in_words(verdict)}")


def _in_words(verdict: Mapping[str, Any]) -> str:
    if verdict["status"] is None:
        return "a cell without candidates, on which there is no verdict"
    if verdict["status"] == "certified":
        return f"a certified verdict: {verdict['candidate']}"
    return f"an uncertified verdict: {verdict['reason']}"


def verify(
    bundle: Path,
    key: Annotated[Path | None, typer.Option(help="Public key (PEM) it must be signed by.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the verdicts of a bundle and check hashes, rules, seal and signature."""
    from palimpsest.certificate import verify as check_bundle

    inside = bundle / "certificate.zip"
    if bundle.is_dir() and inside.is_file():
        raise InputError(
            f"{bundle}: a folder; expected a bundle, and there is one in it; "
            f"give `palimpsest verify {inside}`"
        )
    found = check_bundle(bundle, key)
    answer(found.to_json() if as_json else "\n".join(found.lines()))
    if not found.ok:
        raise typer.Exit(1)


def keygen(
    out: Annotated[Path, typer.Argument(help="Private key file; .pub goes beside it.")],
) -> None:
    """Make an Ed25519 key pair for signing certificates."""
    from palimpsest.certificate import keygen as make_key

    answer("\n".join(str(path) for path in make_key(out)))
