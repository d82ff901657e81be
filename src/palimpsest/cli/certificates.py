"""Certificates: make one, check one, sign one."""

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer


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

    bundle = write_bundle(run, out, key, pool)
    answer({"bundle": str(bundle)} if as_json else str(bundle))


def verify(
    bundle: Path,
    key: Annotated[Path | None, typer.Option(help="Public key (PEM) it must be signed by.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the verdicts of a bundle and check hashes, rules, seal and signature."""
    from palimpsest.certificate import verify as check_bundle

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
