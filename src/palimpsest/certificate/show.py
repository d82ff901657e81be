"""A certificate for readers: the page of a verified bundle, and a section of a model card.

A model card's section says what was found in the words of the verdict and how anyone can check it;
nothing in it is computed here. Format: github.com/huggingface/hub-docs, modelcard.md.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.certificate.bundle import Bundle, unpack
from palimpsest.certificate.verification import Verification, read_bundle
from palimpsest.errors import InputError
from palimpsest.run.files import digest, make_folder, write_bytes
from palimpsest.stats.axes import chosen
from palimpsest.stats.verdict import Finding, Verdict

_URL = "https://github.com/palimpsest-audit/palimpsest"


def write_bundle_page(result: Verification, folder: Path) -> Path:
    """Write the page of the run in a verified bundle into a new folder; return the page's path.

    The page is made from the bytes that were verified, whatever is in the file by now.
    """
    from palimpsest.paper.tables import paper_section
    from palimpsest.report.page import write_report

    result.require("the bundle")
    if folder.exists():
        raise InputError(f"{folder}: exists; expected a new folder for the page")
    results = replace(Bundle(unpack(result.data)).results, path=folder)
    return write_report(results, paper_section(results))


def write_model_card(bundle: Path, path: Path, cell: str | None = None) -> None:
    """Write the model card of a certificate's certified or nearest candidate to a file."""
    make_folder(path.absolute().parent)
    write_bytes(path, model_card(bundle, cell).encode())


def model_card(bundle: Path, cell: str | None = None) -> str:
    """Return the card of a certificate's certified or nearest candidate, metadata first.

    cell: which, where the certificate has several.
    """
    import yaml

    data = read_bundle(bundle)
    results = Bundle(unpack(data)).results
    cells = results.planned
    chosen_cell = cell or (cells[0] if len(cells) == 1 else "")
    if chosen_cell not in cells:
        raise InputError(
            f"model card: cell {chosen_cell!r} found; expected one of the {len(cells)} cells of "
            f"{bundle}, such as {cells[0]}; name it with --cell"
        )
    verdict = results.cell(chosen_cell).verdict
    name = None if verdict is None else verdict.candidate or verdict.nearest
    if verdict is None or name is None:
        raise InputError(f"model card: cell {chosen_cell} has no candidate to describe")
    finding = verdict.finding(name)
    index = _index(name, verdict, finding, digest(data))
    metadata = yaml.safe_dump(index, sort_keys=False, allow_unicode=True)
    return f"---\n{metadata}---\n\n{_section(name, verdict, finding, bundle.name, digest(data))}"


def _index(name: str, verdict: Verdict, finding: Finding, bundle: str) -> dict[str, Any]:
    """Return the ``model-index`` of one result."""
    custom = " under custom rules" if verdict.rules.differences() else ""
    certified = f"certified as restored{custom}"
    metrics: list[dict[str, Any]] = [
        {"type": "certified", "name": certified, "value": verdict.candidate == name}
    ]
    if finding.comparison is not None:
        p, worst = finding.comparison.p, finding.comparison.worst
        title = "p-value as one more retraining"
        metrics.append({"type": "p_value", "name": title, "value": float(p)})
        if worst.sd is not None:
            title = f"worst axis ({worst.axis}), retraining standard deviations"
            metrics.append({"type": "worst_axis_sd", "name": title, "value": float(worst.sd)})
    result = {
        "task": {"type": "text-generation", "name": "Unlearning audit"},
        "dataset": {"type": "palimpsest", "name": "forget, retain and never-learned facts"},
        "metrics": metrics,
        "source": {"name": f"Palimpsest certificate {bundle}", "url": _URL},
    }
    return {"model-index": [{"name": name, "results": [result]}]}


def _section(name: str, verdict: Verdict, finding: Finding, file: str, bundle: str) -> str:
    """Return the section as Markdown."""
    lines = ["## Unlearning audit", "", f"**{name}**. {verdict.paragraph()}", ""]
    if finding.comparison is not None:
        lines += ["| axis | value | distance from the mean retraining, in standard deviations |"]
        lines += ["|---|---|---|"]
        for axis in chosen(verdict.rules):
            gap = finding.comparison.gaps.get(axis.name)
            if gap is not None:
                value = finding.values.get(axis.name)
                shown = "" if value is None else f"{value:.3g}"
                distance = "no spread" if gap.sd is None else f"{gap.sd:+.2f}"
                lines.append(f"| {axis.title} | {shown} | {distance} |")
        lines.append("")
    lines += [
        "A certificate is an empirical statement about models as they were produced, not a privacy "
        "guarantee. It can be recomputed from stored scores, without any model:",
        "",
        "```",
        "pip install palimpsest-audit",
        f"palimpsest verify {file}",
        "```",
        "",
        f"`{file}` is {bundle}.",
        "",
    ]
    return "\n".join(lines)
