"""A certificate as a section of a model card, with ``model-index`` metadata for the hub.

The section says what was found in the words of the verdict and how anybody can check it; nothing in
it is computed here. Format: github.com/huggingface/hub-docs, modelcard.md.
"""

from pathlib import Path
from typing import Any

from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import STATEMENT, document, verdict_of
from palimpsest.errors import InputError
from palimpsest.run.store import digest
from palimpsest.stats.axes import AXES
from palimpsest.stats.verdict import Finding, Verdict


def model_card(bundle: Path, cell: str | None = None) -> str:
    """Return the card of a certificate's certified or nearest candidate, metadata first.

    cell: which, where the certificate has several.
    """
    import yaml

    data = bundle.read_bytes()
    members = unpack(data)
    predicate = document(members, STATEMENT)["predicate"]
    cells = list(predicate["cells"])
    if cell is None and len(cells) > 1:
        raise InputError(
            f"model card: {bundle} has {len(cells)} cells; name one, such as {cells[0]}"
        )
    chosen = cell or cells[0]
    if chosen not in cells:
        raise InputError(
            f"model card: {bundle} has no cell {chosen!r}; it has {', '.join(cells[:5])}"
        )
    verdict = verdict_of(members, chosen)
    name = None if verdict is None else verdict.candidate or verdict.nearest
    if verdict is None or name is None:
        raise InputError(f"model card: cell {chosen} has no candidate to describe")
    finding = verdict.finding(name)
    metadata = yaml.safe_dump(
        _index(name, verdict, finding, digest(data)), sort_keys=False, allow_unicode=True
    )
    return f"---\n{metadata}---\n\n{_section(name, verdict, finding, bundle.name, digest(data))}"


def _index(name: str, verdict: Verdict, finding: Finding, bundle: str) -> dict[str, Any]:
    """Return the ``model-index`` of one result."""
    metrics: list[dict[str, Any]] = [
        {"type": "certified", "name": "certified as restored", "value": verdict.candidate == name}
    ]
    if finding.comparison is not None:
        worst = finding.comparison.worst
        metrics.append(
            {
                "type": "p_value",
                "name": "p-value as one more retraining",
                "value": finding.comparison.p,
            }
        )
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


_URL = "https://github.com/palimpsest-audit/palimpsest"


def _section(name: str, verdict: Verdict, finding: Finding, file: str, bundle: str) -> str:
    """Return the section as Markdown."""
    lines = ["## Unlearning audit", "", f"**{name}**. {verdict.paragraph()}", ""]
    if finding.comparison is not None:
        lines += ["| axis | value | distance from the mean retraining, in standard deviations |"]
        lines += ["|---|---|---|"]
        for axis in AXES:
            z = finding.comparison.z.get(axis.name)
            if z is not None:
                value = finding.values.get(axis.name)
                shown = "" if value is None else f"{value:.3g}"
                lines.append(f"| {axis.title} | {shown} | {z:+.2f} |")
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
