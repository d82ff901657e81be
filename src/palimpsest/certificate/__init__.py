"""Certificates: a run's evidence in one archive that others can check without torch.

::

    bundle.py     what is in a bundle, bounded reading of it, its in-toto statement
    checks.py     the checks of a bundle, each a function, and what they say together
    signature.py  Ed25519 signatures in a DSSE envelope
    card.md.j2    a section of a model card
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest import __version__
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
from palimpsest.report.documents import finding_document
from palimpsest.report.results import CellResult
from palimpsest.run.files import digest, make_folder, write_bytes
from palimpsest.run.store import Run
from palimpsest.stats.verdict import Finding

__all__ = ["Verification", "certify", "keygen", "read_verdicts", "verify", "write_records"]


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


def write_records(bundle: Path, cell: str = "") -> list[Path]:
    """Write beside a certificate what says of its certified or nearest candidate what was found,
    and how anyone can check it: a section for a model card with metadata for the Hugging Face hub
    (github.com/huggingface/hub-docs, modelcard.md), and a record of Every Eval Ever
    (github.com/evaleval/every_eval_ever). Return their paths.

    cell: which, where the certificate has several; none are written without it, nor where there is
    no candidate to name.
    """
    from jinja2 import Environment, StrictUndefined

    data = read_bundle(bundle)
    stated = Bundle(data)
    cells = stated.results.planned
    if cell and cell not in cells:
        raise InputError(f"--cell: {cell!r} found; expected one of {', '.join(cells[:5])}")
    if not cell and len(cells) > 1:
        return []
    found = stated.results.cell(cell or cells[0])
    verdict = found.verdict
    name = None if verdict is None else verdict.candidate or verdict.nearest
    if verdict is None or name is None:
        return []
    text = Path(__file__).with_name("card.md.j2").read_text("utf-8")
    card = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    finding = verdict.finding(name)
    values = {"name": name, "verdict": verdict, "comparison": finding.comparison}
    about = {"digest": digest(data), "file": bundle.name}
    record = _evaluation(found, finding, about | {"terms": stated.terms.digest})
    files = {
        bundle.with_suffix(".card.md"): card.from_string(text)
        .render(values | about | {"left": finding.left})
        .encode(),
        bundle.with_suffix(".eee.json"): record,
    }
    for path, content in files.items():
        write_bytes(path, content)
    return list(files)


METRICS = {
    "certified": ("certified as restored", False, 1.0),
    "p": ("p-value as one more retraining", False, 1.0),
    "at_most": ("share of the injected weights left, 95 % bound, unless hidden", True, "Infinity"),
    "as_far_as_mixture": ("as far from retrainings as a mixture with this share", True, 1.0),
}
"""Numbers of a record: what each is, whether less is better, and its largest value."""


def _evaluation(cell: CellResult, finding: Finding, about: Mapping[str, str]) -> bytes:
    """Return a candidate's record in the schema of Every Eval Ever, version 0.3.0; ``about`` says
    where the certificate is."""
    assert cell.verdict is not None
    verdict, model, now = cell.verdict, cell.models[finding.name], f"{time.time():.0f}"
    found = finding_document(finding)
    share, *limits = found["as_far_as_mixture"] or (None, None, None)
    values = {"certified": float(verdict.candidate == finding.name), "as_far_as_mixture": share}
    told = {"label": finding.label, "status": verdict.status, "reason": verdict.reason or ""}
    told |= {"references": str(verdict.reference_count), "sentence": found["sentence"]}
    results = []
    for name, (words, less, most) in METRICS.items():
        if (value := values.get(name, found.get(name))) is None:
            continue
        metric = {"metric_id": f"palimpsest.{name}", "metric_name": words, "lower_is_better": less}
        metric |= {"score_type": "continuous", "min_score": 0.0, "max_score": most}
        score: dict[str, Any] = {"score": value, "details": told}
        if name == "as_far_as_mixture" and None not in limits:
            interval = {"lower": limits[0], "upper": limits[1], "confidence_level": 0.9}
            score["uncertainty"] = {"confidence_interval": interval}
        data = {"dataset_name": "forget, retain and never-learned facts", "source_type": "other"}
        entry = {"evaluation_name": "palimpsest", "source_data": data, "metric_config": metric}
        results.append(entry | {"score_details": score})
    details = {"deployment_type": "self_deployed", "model_availability": "unknown"}
    details |= {"base": cell.base, "weights": model.weights or model.digest}
    record = {
        "schema_version": "0.3.0",
        "evaluation_id": f"palimpsest/{finding.name}/{now}",
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_name": "Palimpsest certificate",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",  # to be filled in by who publishes it
            "evaluator_relationship": "other",
            "additional_details": dict(about),
        },
        "eval_library": {"name": "palimpsest", "version": __version__},
        "model_info": {"name": finding.name, "id": finding.name, "additional_details": details},
        "evaluation_results": results,
    }
    return json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"
