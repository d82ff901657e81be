"""Certificates: write, verify, sign."""

import shlex
import sys
from pathlib import Path

from palimpsest.cli.options import EVIDENCE, AsJson, app
from palimpsest.cli.output import answer, say
from palimpsest.errors import InputError


@app.command(group=EVIDENCE)
def certify(
    run: Path | None = None,
    /,
    *,
    out: Path | None = None,
    key: Path | None = None,
    pool: Path | None = None,
    cell: str = "",
    new_key: Path | None = None,
    json: AsJson = False,
) -> None:
    """Write a certificate: one archive with the terms, rules, seal, scores and verdicts of a run.

    Beside it are a section for a model card and a record of Every Eval Ever, both of the certified
    or nearest candidate.

    Args:
        run: Finished run folder.
        out: Archive to write. Default: RUN/certificate.zip.
        key: Private Ed25519 key (PEM) to sign with.
        pool: Your own sealed pool, which the archive then reveals.
        cell: Cell that model card and record describe, if the run has several.
        new_key: Generate a private key at this path and its public key beside it (.pub), and exit.
    """
    if new_key is not None:
        from palimpsest.certificate import keygen

        private, public = keygen(new_key)
        answer(f"{private}\n{public}")
        say(f"next: palimpsest certify RUN --key {private}; publish {public} beforehand")
        return
    if run is None:
        raise InputError("run: missing; expected a finished run folder, or --new-key PATH")
    from palimpsest.certificate import certify as write_bundle
    from palimpsest.certificate import read_verdicts, write_records

    bundle = write_bundle(run, out, key, pool)
    records = write_records(bundle, cell)
    verdicts = read_verdicts(bundle)
    if json:
        answer({"bundle": str(bundle), "records": list(map(str, records)), "verdicts": verdicts})
        return
    for path in (bundle, *records):
        answer(str(path))
    for name, verdict in verdicts.items():
        words = f"{verdict['status']}: {verdict['candidate'] or verdict['reason']}"
        if verdict["candidate"] and verdict["cost"] is not None:
            words += f" (cost: {verdict['cost']:.2f} retrainings)"
        if verdict["status"] is None:
            words = "no verdict, because the run has no candidate"
        elif verdict["custom_rules"]:
            words += " (custom rules)"
        answer(f"{name}: {words}" if len(verdicts) > 1 else words)
    say(f"next: palimpsest verify {shlex.quote(str(bundle))}")


@app.command(group=EVIDENCE)
def verify(
    bundle: Path, /, *, key: Path | None = None, page: Path | None = None, json: AsJson = False
) -> None:
    """Recompute the verdicts of a certificate and check its hashes, rules, seal and signature.

    Args:
        bundle: Archive that certify wrote.
        key: Public key (PEM) that must have signed it.
        page: New folder to write the page of the run into.
    """
    from palimpsest.certificate import verify as check_bundle

    inside = bundle / "certificate.zip"
    if bundle.is_dir() and inside.is_file():
        raise InputError(
            f"{bundle}: is a folder; expected a certificate; use `palimpsest verify {inside}`"
        )
    result = check_bundle(bundle, key)
    answer(result.to_json() if json else "\n".join(result.lines()))
    if not result.ok:
        sys.exit(1)
    if page is not None:
        from palimpsest.certificate import write_bundle_page

        say(f"page: {write_bundle_page(result, page)}")
